"""What captured steps save: host calls and, on a GPU, time.

Without a GPU the tensor operations of one plain local step are counted (forward, backward, update;
each is a call of the host and, on a GPU, one or more kernels). A captured step is one launch. How
often the host waits for the device is counted by `waits.py`. A second table counts the
passes of the same round, batch by batch and captured: representations of all training images, and
accuracy of a third as many test images at both moments. With a GPU the same rounds are timed in
alternation, step by step and captured; mean losses of the first round must agree.

Usage: python benchmarks/captured.py [--architectures cnn4,resnet18,het10] [--steps 117]
                                     [--device cuda]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import rounds
import tools
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedre_privacy.federation.captured_passes import CapturedPass
from fedre_privacy.federation.captured_steps import CapturedTraining
from fedre_privacy.federation.steps import client_step
from fedre_privacy.models.families import members_of
from fedre_privacy.protocols.blocks.local import EVAL_BATCH, count_correct, represent
from fedre_privacy.protocols.blocks.state import Task

FREE = ("aten.view", "aten.detach", "aten.t", "aten.expand", "aten.slice", "aten.select")
"""Operations that launch nothing."""


class Operations(TorchDispatchMode):
    """Counts the tensor operations of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func).rpartition(".")[0]] += 1
        return func(*args, **(kwargs or {}))

    def kernels(self) -> int:
        """Operations that compute something."""
        return sum(n for name, n in self.counts.items() if name not in FREE)


def federation(architecture: str, steps: int, clients: int, device: torch.device) -> Any:
    """Clients of one architecture with so many steps a round, batches of 32."""
    return rounds.build(
        "local", clients=clients, samples=32 * steps, batch=32, rounds=100,
        architecture=architecture, device=device,
    )  # fmt: skip


def counted(architecture: str) -> int:
    """Operations of one local step."""
    found = []
    for steps in (1, 2):
        made = federation(architecture, steps, 1, torch.device("cpu"))
        task = Task(made.setting, 1, 0)
        with Operations() as operations:
            client_step(made.protocol, made.clients[0], (), task)
        found.append(operations)
    return found[1].kernels() - found[0].kernels()


def passes(architecture: str, images: int) -> tuple[int, int]:
    """Operations of one client's passes of a round, batch by batch, and with captured batches.

    Args:
        images: for training; tests are a third as many.
    """
    client = federation(architecture, 1, 1, torch.device("cpu")).clients[0]
    model, few = client.model.eval(), client.test
    with Operations() as vectors:
        represent(model.extractor, few)
    with Operations() as right:
        count_correct(model, few)
    trained, tested = (-(-count // EVAL_BATCH) for count in (images, images // 3))
    joined, begun = 1, 1  # once a pass: one concatenation; one counter
    plain = (vectors.kernels() - joined) * trained + joined
    plain += 2 * ((right.kernels() - begun) * tested + begun)
    made = CapturedPass(model.extractor, few)
    made.outputs, made.replay = torch.zeros(1, len(few), 1), lambda: None
    with Operations() as around:
        made.run()
    compared = 3  # the largest output, whether it is the label, the sum
    return plain, trained + around.kernels() + 2 * (tested + around.kernels() + compared)


def timed(
    architecture: str, steps: int, clients: int, repeats: int, device: torch.device
) -> tuple[float, float, float]:
    """Seconds of a round step by step and captured, and the median of paired ratios."""
    plain, graphs = (federation(architecture, steps, clients, device) for _ in "ab")
    captured = CapturedTraining(graphs.protocol, graphs.setting)

    def one_by_one(round: int) -> list[float]:
        tasks = [Task(plain.setting, round, client.id) for client in plain.clients]
        return [
            client_step(plain.protocol, client, (), task)[1]
            for client, task in zip(plain.clients, tasks, strict=True)
        ]

    def at_once(round: int) -> list[float]:
        done = captured.train(graphs.clients, range(clients), round)
        assert len(done) == clients, "some client was not captured"
        return list(done.values())

    pairs = []
    for round in range(1, repeats + 2):
        taken, losses = {}, {}
        for work in (one_by_one, at_once) if round % 2 else (at_once, one_by_one):
            tools.wait(device)
            began = time.perf_counter()
            losses[work] = work(round)
            tools.wait(device)
            taken[work] = time.perf_counter() - began
        pairs.append((taken[one_by_one], taken[at_once]))
        if round == 1:  # later, rounding has grown in deep models with BatchNorm
            torch.testing.assert_close(*map(torch.tensor, losses.values()), rtol=0.1, atol=0)
    first, second = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    return first, second, statistics.median(a / b for a, b in pairs[1:])


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("--architectures", default="cnn4,resnet18,het10")
    options.add_argument("--clients", type=int, default=10)
    options.add_argument("--steps", type=int, default=117, help="of a client and round")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, and on a GPU time, one row for each model."""
    chosen = parser().parse_args(arguments)
    device = torch.device(chosen.device)
    print(f"torch {torch.__version__}, {chosen.clients} clients, {chosen.steps} steps a round")
    print(f"{'models':<12}{'operations a step':>19}{'host calls a round':>20}{'captured':>10}")
    for name in chosen.architectures.split(","):
        members = members_of(name)
        each = [counted(member) for member in members]
        everyone = [each[k % len(members)] for k in range(chosen.clients)]
        spread = f"{min(each)}" + (f" to {max(each)}" if len(set(each)) > 1 else "")
        calls = sum(everyone) * chosen.steps
        launches = chosen.clients * chosen.steps
        print(f"{name:<12}{spread:>19}{calls:>20}{launches:>10}", flush=True)
    print(f"\n{'models':<12}{'host calls of passes':>22}{'captured':>10}")
    for name in chosen.architectures.split(","):
        members = members_of(name)
        both = [passes(member, 32 * chosen.steps) for member in members]
        all_of = [both[k % len(members)] for k in range(chosen.clients)]
        plain, launched = (sum(column) for column in zip(*all_of, strict=True))
        print(f"{name:<12}{plain:>22}{launched:>10}", flush=True)
    if device.type != "cuda":
        return
    print(f"\n{tools.device_name(device)}, {chosen.repeats} rounds of each in alternation")
    print(f"{'models':<12}{'step by step':>14}{'captured':>12}{'ratio':>8}")
    for name in chosen.architectures.split(","):
        size = (name, chosen.steps, chosen.clients, chosen.repeats, device)
        first, second, ratio = timed(*size)
        print(f"{name:<12}{first:>12.3f} s{second:>10.3f} s{ratio:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
