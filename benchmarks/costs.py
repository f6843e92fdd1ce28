"""What does a round cost a client and the server: computation, and where its time goes?

For each protocol one round is run step by step on random colour images of 32 pixels. Printed are
floating-point operations of one client's round (as `torch.utils.flop_counter` counts: products of
convolutions and linear layers, forward and backward, two for each multiplication with its
addition), of the server's step, and the times of the parts of a round, medians over rounds and sums
over clients. `upload` is what a client does to make its upload once it is trained; for FedRE that
is the pass for representations and their entanglement. Nothing is written to disk.

Usage: python benchmarks/costs.py [--protocols fedre,fedgh,local] [--architecture cnn4]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import rounds as sizes
import torch
from tools import device_name, options, wait
from torch.utils.flop_counter import FlopCounterMode

from fedre_privacy.active_server.behaviour import ServerBehaviour
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.federation.accuracy import evaluate
from fedre_privacy.federation.loop import LocalCohort, Post
from fedre_privacy.federation.steps import client_step, first_answer, next_broadcast, server_step
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.protocols.blocks.state import Client, Message, Task

PARTS = ("receive", "train", "upload", "server", "evaluate")


@dataclass
class Clock:
    """Seconds of each part of a round."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of a block."""
        wait(self.device)
        started = time.perf_counter()
        try:
            yield
        finally:
            wait(self.device)
            self.seconds[name] += time.perf_counter() - started


def timed(name: str, clock: Clock) -> Protocol:
    """A protocol whose uploads are timed."""
    kind = protocols.get(name)

    def upload(self: Protocol, client: Client, task: Task) -> tuple[Emission, ...]:
        with clock.part("upload"):
            return kind.upload(self, client, task)

    made: Protocol = type(kind.__name__, (kind,), {"upload": upload})()
    return made


def measure(name: str, *, repeats: int, device: torch.device, **size: Any) -> dict[str, float]:
    """Medians over `repeats` rounds after one that warms up, and operations of a round."""
    clock = Clock(device)
    federation = sizes.build(name, rounds=repeats + 1, device=device, **size)
    protocol, clients = timed(name, clock), federation.clients
    server, setting = federation.server, federation.setting
    here = LocalCohort(protocol, clients, setting, keep=lambda *_: None)
    first = here.first()
    if first:
        here.answered(first_answer(protocol, server, first, setting))
    training = setting.training
    honest = ServerBehaviour((), training.seed, training.clients, setting.num_classes)
    post = Post(setting, 1, next_broadcast(protocol, server), honest)
    post.deliver(protocol, clients)
    times: dict[str, list[float]] = defaultdict(list)
    counted: dict[str, float] = {}
    for round in range(1, repeats + 2):
        clock.seconds.clear()
        uploads = []
        for client in clients:
            step = partial(one_client, protocol, client, post.message(client.id), setting, round)
            if round == 1 and not uploads:
                made, counted["client"] = operations(step)
            else:
                with clock.part("client"):
                    made = step()
            uploads.append(Upload(client.id, round, tuple(e.artifact for e in made)))
        serve = partial(server_step, protocol, server, uploads, Task(setting, round))
        if round == 1:
            messages, counted["server"] = operations(serve)
        else:
            with clock.part("server"):
                messages = serve()
        post = Post(setting, round + 1, messages, honest)
        with clock.part("receive"):
            post.deliver(protocol, clients)
        with clock.part("evaluate"):
            evaluate(protocol, clients, setting)
        clock.seconds["train"] = clock.seconds["client"] - clock.seconds["upload"]
        if round > 1:
            for part in PARTS:
                times[part].append(clock.seconds[part])
    medians = {part: statistics.median(values) for part, values in times.items()}
    return medians | {f"{who}_flops": value for who, value in counted.items()}


def one_client(
    protocol: Protocol, client: Client, message: Message, setting: Any, round: int
) -> tuple[Emission, ...]:
    """A client's round."""
    return client_step(protocol, client, message, Task(setting, round, client.id))[0]


def operations(step: Any) -> tuple[Any, float]:
    """What a step returns, and its floating-point operations."""
    with FlopCounterMode(display=False) as counter:
        made = step()
    return made, float(counter.get_total_flops())


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = options(__doc__)
    made.add_argument("--protocols", default="local,fedre,fedgh,fedproto,fedavg,fedmrl,fedral")
    made.add_argument("--architecture", default="cnn4")
    made.add_argument("--clients", type=int, default=10)
    made.add_argument("--samples", type=int, default=320, help="training images of each client")
    made.add_argument("--batch", type=int, default=32)
    made.add_argument("--repeats", type=int, default=6, help="rounds that are timed")
    made.add_argument("--threads", type=int, default=None)
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return made


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print one row for each protocol."""
    chosen = parser().parse_args(given)
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    device = torch.device(chosen.device)
    print(
        f"{chosen.architecture}, {chosen.clients} clients of {chosen.samples} images, "
        f"batch {chosen.batch}, {device_name(device)}, {torch.get_num_threads()} threads"
    )
    print(f"{'protocol':<11}{'client GFLOP':>13}{'server GFLOP':>13}", end="")
    print("".join(f"{part + ' ms':>13}" for part in PARTS) + f"{'upload/train':>14}")
    for name in chosen.protocols.split(","):
        found = measure(
            name, repeats=chosen.repeats, device=device, clients=chosen.clients,
            samples=chosen.samples, batch=chosen.batch, architecture=chosen.architecture,
        )  # fmt: skip
        print(f"{name:<11}{found['client_flops'] / 1e9:>13.3f}", end="")
        print(f"{found['server_flops'] / 1e9:>13.5f}", end="")
        print("".join(f"{1e3 * found[part]:>13.1f}" for part in PARTS), end="")
        print(f"{found['upload'] / found['train']:>14.1%}", flush=True)


if __name__ == "__main__":
    main()
