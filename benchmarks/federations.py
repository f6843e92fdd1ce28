"""Federations on Flower: the same bytes, what a round takes, and what crosses the wire.

protocols   every protocol in one process and as a federation with TLS and authenticated SuperNodes
            on this machine: whether uploads, models and provenance are the same bytes, and seconds
            and bytes of a round. Needs Flower.
simulation  the same bytes in Flower's own simulation, and seconds of a training. Needs Ray too.
growth      a server alone, whose clients answer at once with uploads of a protocol's size: seconds,
            memory and bytes of a round as clients grow. Needs no Flower.

Usage: python benchmarks/federations.py protocols [--protocols fedre,fedavg] [--defence noise]
       python benchmarks/federations.py simulation [--protocols fedre,fedavg]
       python benchmarks/federations.py growth [--sizes 10,100,1000] [--protocols fedre,fedavg]
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import tools
import torch

from fedre_privacy.core.engines import BUILT_IN
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.flower import local_federation as loopback
from fedre_privacy.flower.local_federation import HOST, Loopback, free_port
from fedre_privacy.flower.server import Ask, DataFacts, serve, serve_work
from fedre_privacy.flower.simulation import simulation
from fedre_privacy.flower.wire import FIRST, Reply, order_of, pack, unpack
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolution import require_resolved, resolve_training
from fedre_privacy.runs.run_writer import UPLOADS
from fedre_privacy.runs.settings import TrainSettings
from fedre_privacy.runs.training import Work, train

CPU = torch.device("cpu")
EXTRA: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("fedmrl", "fml", "fedapen", "fedkd"), {"small": {"dim": 8}}),
    "fedgen": {"hidden": 12, "steps": 5},
    "fedtgp": {"server_epochs": 5},
}
"""Settings that make a protocol quick."""


def tiny(protocol: str, clients: int, rounds: int, defence: str = "", **more: Any) -> TrainSettings:
    """Digits of 16 pixels, cnn4, representations of length 16; accuracy after the last round."""
    values = {
        "data": {"name": "digits", "size": 16, "per_class": 12},
        "partition": {"name": "iid"},
        "model": {"name": "cnn4", "dim": 16},
        "protocol": {"name": protocol, **EXTRA.get(protocol, {})},
        "defense": [defence] if defence else [],
        "record": {},
        "train": {
            "clients": clients, "rounds": rounds, "batch_size": 16, "lr": 0.1,
            "eval_every": rounds, **more,
        },
    }  # fmt: skip
    problems: list[str] = []
    return require_resolved(resolve_training(values, {}, problems), problems)


def recorded(folder: Path) -> dict[str, bytes]:
    """Every file of a run that holds numbers, and its metrics without seconds."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for name in ("uploads", "models", "private")
        for path in sorted((folder / name).glob("*"))
    }
    metrics = pd.read_csv(folder / "metrics.csv").drop(columns="wall_s")
    return {**found, "metrics": metrics.to_csv().encode()}


# --- real federations ------------------------------------------------------------------------


class Gate(threading.Thread):
    """What clients reach the SuperLink through: it passes bytes on and counts them."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.to, self.up, self.down = free_port(), port, 0, 0
        self.door = socket.create_server((HOST, self.port))

    def run(self) -> None:
        while True:
            ours, _ = self.door.accept()
            with suppress(OSError):
                theirs = socket.create_connection((HOST, self.to))
                threading.Thread(target=self._pass, args=(ours, theirs), daemon=True).start()

    def _pass(self, client: socket.socket, link: socket.socket) -> None:
        with client, link, suppress(OSError):
            while True:
                for end in select.select([client, link], [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if end is client:
                        self.up += len(data)
                        link.sendall(data)
                    else:
                        self.down += len(data)
                        client.sendall(data)


class Watched(Loopback):
    """A federation whose clients go through a gate, and whose parties write down times."""

    def __enter__(self) -> Watched:
        super().__enter__()
        return self

    def _start_link(self) -> None:
        super()._start_link()
        self.gate = Gate(self.port)
        self.gate.start()

    def entrance(self) -> int:
        return self.gate.port


@dataclass(frozen=True)
class Taken:
    """What one protocol's training took; seconds and bytes of a round.

    Args:
        exchanges: of all rounds. bridge: seconds of an exchange less those of its slowest client.
        messages: bytes of orders and answers. wire: bytes between clients and the SuperLink.
    """

    name: str
    equal: bool
    here: float
    there: float
    exchanges: int
    work: float
    bridge: float
    server: float
    ledger: tuple[int, int]
    messages: tuple[int, int]
    wire: tuple[int, int]


def times_of(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the server's asking and the clients' answering took, from the file of times."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [one for one in lines if one["who"] == "server"], [
        one for one in lines if one["who"] != "server"
    ]


def one(settings: TrainSettings, federation: Watched, folder: Path, times: Path) -> Taken:
    """Train in this process and in a federation."""
    name, rounds = settings.protocol.name, settings.train.rounds
    begun = time.perf_counter()
    here = train(settings, runs=folder / "here")
    between = time.perf_counter()
    times.unlink(missing_ok=True)
    up, down = federation.gate.up, federation.gate.down
    there = train(settings, runs=folder / "there", engine=federation)
    asked, answered = times_of(times)
    spans = [one["end"] - one["begin"] for one in asked]
    work = [
        max(
            (a["end"] - a["begin"] for a in answered if s["begin"] <= a["end"] <= s["end"]),
            default=0.0,
        )
        for s in asked
    ]
    whole = asked[-1]["end"] - asked[0]["begin"]
    ledger = pd.read_csv(there.folder / "metrics.csv")
    return Taken(
        name=name,
        equal=recorded(here.folder) == recorded(there.folder),
        here=(between - begun) / rounds,
        there=whole / rounds,
        exchanges=len(asked),
        work=sum(work) / rounds,
        bridge=statistics.median(s - w for s, w in zip(spans, work, strict=True)),
        server=(whole - sum(spans)) / rounds,
        ledger=(int(ledger["up_bytes"].sum()) // rounds, int(ledger["down_bytes"].sum()) // rounds),
        messages=(
            sum(s["received"] for s in asked) // rounds,
            sum(s["sent"] for s in asked) // rounds,
        ),
        wire=((federation.gate.up - up) // rounds, (federation.gate.down - down) // rounds),
    )


def compare(chosen: argparse.Namespace) -> None:
    """Every protocol in one process and as a federation."""
    BUILT_IN["flower"].check()
    loopback.serve_work = timed
    names = (chosen.protocols or ",".join(protocols.names())).split(",")
    print(
        f"{chosen.clients} clients, {chosen.rounds} rounds; seconds and bytes of a round\n"
        f"{'protocol':<12} bytes   in one process  federation  exchanges  clients' work  "
        "Flower, an exchange  server  ledger up/down  messages up/down  wire up/down"
    )
    here = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as room:
        times = Path(room) / "times.jsonl"
        os.environ["FEDRE_TIMES"] = str(times)
        place = Path(room) / "federation"
        with Watched(place, chosen.clients, CPU, plugins=[Path(__file__).stem]) as federation:
            for name in names:
                settings = tiny(name, chosen.clients, chosen.rounds, chosen.defence)
                t = one(settings, federation, Path(room), times)
                print(
                    f"{t.name:<12} {'equal' if t.equal else 'DIFFER':<6} {t.here:>12.2f}"
                    f"{t.there:>14.1f} {t.exchanges:>10} {t.work:>13.2f} {t.bridge:>17.1f}"
                    f"{t.server:>13.2f}  {pair(t.ledger)}  {pair(t.messages)}  {pair(t.wire)}",
                    flush=True,
                )


def simulate(chosen: argparse.Namespace) -> None:
    """Every protocol in one process and in Flower's simulation."""
    print(f"{chosen.clients} clients, {chosen.rounds} rounds; seconds of a training")
    for name in (chosen.protocols or ",".join(protocols.names())).split(","):
        settings = tiny(name, chosen.clients, chosen.rounds, chosen.defence)
        with tempfile.TemporaryDirectory() as room:
            here = train(settings, runs=Path(room) / "here")
            begun = time.perf_counter()
            there = train(settings, runs=Path(room) / "there", engine=simulation)
            taken = time.perf_counter() - begun
            equal = recorded(here.folder) == recorded(there.folder)
        print(f"{name:<12} {'equal' if equal else 'DIFFER':<6} {taken:>7.1f}", flush=True)


def pair(both: tuple[int, int]) -> str:
    """Bytes up and down."""
    return f"{both[0]:,}/{both[1]:,}"


# --- growth ----------------------------------------------------------------------------------


def grow(chosen: argparse.Namespace) -> None:
    """The server's share of a round, each number of clients in a process of its own."""
    print(
        "protocol     clients  s a round  MiB more at most  bytes up a round  files  bytes of files"
    )
    for name in (chosen.protocols or "fedre,fedavg").split(","):
        for size in chosen.sizes.split(","):
            words = ["one", "--protocols", name, "--sizes", size, "--rounds", str(chosen.rounds)]
            subprocess.run([sys.executable, __file__, *words], check=True)


def serve_alone(chosen: argparse.Namespace) -> None:
    """One server whose clients all answer at once, each with the first client's upload."""
    name, clients, rounds = chosen.protocols, int(chosen.sizes), chosen.rounds
    with tempfile.TemporaryDirectory() as room:
        small = train(tiny(name, 2, 1), runs=Path(room) / "small")
        uploads, _ = read_messages(small.folder / UPLOADS)
        sent = {upload.round > 0: upload.artifacts for upload in reversed(uploads)}
        received = 0

        def ask(orders: Mapping[int, bytes]) -> dict[int, bytes]:
            nonlocal received
            answers = {}
            for k, data in orders.items():
                order = order_of(unpack(data)[0])
                head = Reply(received=0, trained=0, loss=1.0, right=(1, 2))
                training = order["train"] > 0
                asks = training or order["ask"] == FIRST
                answers[k] = pack(head, [sent.get(training, ())] if asks else [])
                received += len(answers[k])
            return answers

        folder = Path(room) / "run"
        facts = DataFacts(image_shape=(1, 16, 16), num_classes=10)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
        before = peak()
        begun = time.perf_counter()
        serve(
            tiny(name, clients, rounds), facts, folder, ask,
            resume=False, report=lambda event: None, on_row=lambda rows: None,
        )  # fmt: skip
        taken = (time.perf_counter() - begun) / rounds
        more = (peak() - before) / 1024
        made = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    print(
        f"{name:<12} {clients:>7} {taken:>10.2f} {more:>17.0f} {received // rounds:>17,} "
        f"{len(made):>6} {sum(made):>15,}",
        flush=True,
    )


def peak() -> int:
    """KiB that this process held at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


# --- what the parties of such a federation write down; clients import this file as a plug-in -----


def told(**what: Any) -> None:
    """Add a line to the file of times."""
    with Path(os.environ["FEDRE_TIMES"]).open("a", encoding="utf-8") as out:
        out.write(json.dumps(what) + "\n")


def watch() -> None:
    """Let this client tell, in the file that FEDRE_TIMES names, when it answered."""
    from fedre_privacy.flower.client import Worker

    answer = Worker.answer

    def answering(self: Worker, data: bytes) -> bytes:
        begin = time.time()
        sent = answer(self, data)
        told(who=self.number, begin=begin, end=time.time())
        return sent

    Worker.answer = answering  # type: ignore[method-assign]


def timed(work: Work, ask: Ask) -> None:
    """Lead a training, and write down when the server asked."""

    def asking(orders: Mapping[int, bytes]) -> Mapping[int, bytes]:
        begin = time.time()
        answers = ask(orders)
        sent, received = (sum(map(len, one.values())) for one in (orders, answers))
        told(who="server", begin=begin, end=time.time(), sent=sent, received=received)
        return answers

    serve_work(work, asking)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("part", choices=[*PARTS])
    options.add_argument("--protocols", default=None, help="default: all; of growth fedre,fedavg")
    options.add_argument("--defence", default="", help="that clients apply")
    options.add_argument("--clients", type=int, default=2)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--sizes", default="10,100,1000", help="numbers of clients, of growth")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    chosen = parser().parse_args(arguments)
    PARTS[chosen.part](chosen)


PARTS = {"protocols": compare, "simulation": simulate, "growth": grow, "one": serve_alone}
"""`one` is a process of `growth`."""

if __name__ == "__main__":
    main()
elif "FEDRE_TIMES" in os.environ:
    watch()
