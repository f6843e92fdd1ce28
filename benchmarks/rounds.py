"""How long is a training round, beside a plain implementation and beside the arithmetic alone?

Three versions of the same round (models, number of batches, step sizes, seeds) take turns in one
process; the table gives medians and the median of paired ratios, which hold on a noisy machine
where single times do not.

ours   the round loop of the package: training, uploads recorded on disk, ledger, server, broadcast
plain  the style of public libraries: a DataLoader over single float samples, prototypes gathered
       sample by sample into dictionaries of lists, every client's model saved and loaded each round
bare   forward, backward and step on batches that already lie in memory as floats, and the
       eval-mode pass for representations where the protocol has one; no server, nothing written

Accuracy is evaluated in none of them. The checkpoint, written at most every ten seconds, is timed
apart. Usage: python benchmarks/rounds.py [--protocols fedre,fedavg] [--threads 2] [--out DIR]
Memory of many clients: python benchmarks/rounds.py --memory [--clients 100] [--architecture cnn-5]
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tools
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedre_privacy.core.events import Event
from fedre_privacy.core.files import write_json, write_text
from fedre_privacy.core.memory import peak_bytes
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.units import human_bytes
from fedre_privacy.federation import checkpoint, loop
from fedre_privacy.federation.recorder import Recorder
from fedre_privacy.models.families import (
    ModelSettings,
    architecture_of,
    build_model,
    representation_dim,
)
from fedre_privacy.models.split import SplitModel
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.protocols.blocks.local import EVAL_BATCH
from fedre_privacy.protocols.blocks.state import (
    SERVER_STATE,
    Client,
    Samples,
    Server,
    Setting,
    Training,
)

PROTOCOLS = ("fedre", "fedgh", "fedproto", "fedavg")
HEADS, PROTOTYPES = ("fedre", "fedgh"), ("fedre", "fedgh", "fedproto")
SHAPE, CLASSES = (3, 32, 32), 10
SERVER_LR, SERVER_BATCH = 0.01, 10


@dataclass(frozen=True)
class Times:
    """Seconds of one round."""

    wall: float
    cpu: float


class Watch:
    """Measures the seconds since it was last started."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.start()

    def start(self) -> None:
        """Start anew."""
        tools.wait(self.device)
        self.wall, self.cpu = time.perf_counter(), _cpu()

    def read(self) -> Times:
        """Seconds since the start."""
        tools.wait(self.device)
        return Times(time.perf_counter() - self.wall, _cpu() - self.cpu)


def _cpu() -> float:
    """CPU seconds of this process and of those it made that have ended."""
    return sum(os.times()[:4])


@dataclass
class Federation:
    """A protocol with its clients and server, ready for the round loop."""

    protocol: Protocol
    clients: list[Client]
    server: Server
    setting: Setting


def build(
    name: str,
    *,
    clients: int,
    samples: int,
    batch: int,
    rounds: int,
    architecture: str,
    device: torch.device,
) -> Federation:
    """Random colour images 32x32, `samples` for each client, and fresh models."""
    protocol = protocols.get(name)()
    model = ModelSettings(name=architecture)
    training = Training(
        clients=clients, rounds=rounds, batch_size=batch, lr=0.01, eval_every=rounds
    )
    names = tuple(architecture_of(architecture, k) for k in range(clients))
    rng = stream(0, "benchmark data")
    shares = []
    for _ in range(clients):
        images = torch.randint(0, 256, (samples + 2, *SHAPE), generator=rng, dtype=torch.uint8)
        labels = torch.randint(CLASSES, (samples + 2,), generator=rng)
        shares.append((images.to(device), labels.to(device)))
    setting = Setting(
        training=training,
        num_classes=CLASSES,
        image_shape=SHAPE,
        dims=(representation_dim(model, SHAPE),) * clients,
        architectures=names,
        class_counts=tuple(
            tuple(torch.bincount(y[:samples], minlength=CLASSES).tolist()) for _, y in shares
        ),
        device=device,
        model=model,
    )
    made = []
    for k, (images, labels) in enumerate(shares):
        with seeded_generators(0, f"model {names[k]}"):
            net = build_model(model, k, SHAPE, CLASSES).to(device)
        train, test = Samples(images[:samples], labels[:samples]), Samples(images[-2:], labels[-2:])
        made.append(Client(k, net, train, test))
        with seeded_generators(0, "protocol state", client=k):
            protocol.start_client(made[-1], setting)
    with seeded_generators(0, SERVER_STATE):
        server = protocol.start_server(setting)
    return Federation(protocol, made, server, setting)


# --- the arithmetic alone --------------------------------------------------------------------


class Bare:
    """Forward, backward, step, and the pass for representations; nothing else."""

    def __init__(self, name: str, federation: Federation) -> None:
        self.name, self.training = name, federation.setting.training
        self.models = [copy.deepcopy(client.model) for client in federation.clients]
        self.images = [client.train.images.float() / 255 for client in federation.clients]
        self.labels = [client.train.labels for client in federation.clients]
        dim = federation.setting.dims[0]
        self.table = torch.zeros(CLASSES, dim, device=federation.setting.device)
        self.batches: list[list[tuple[Tensor, Tensor]]] = []

    def prepare(self, round: int) -> None:
        """Lay out the round's batches in memory; not timed."""
        size = self.training.batch_size
        self.batches = []
        for k, (images, labels) in enumerate(zip(self.images, self.labels, strict=True)):
            rng = stream(self.training.seed, "batches", client=k, round=round)
            order = torch.randperm(len(labels), generator=rng).to(labels.device)
            parts = order[: len(labels) // size * size].split(size)
            self.batches.append([(images[part], labels[part]) for part in parts])

    def run(self) -> None:
        """Compute one round."""
        for model, images, batches in zip(self.models, self.images, self.batches, strict=True):
            optimiser = torch.optim.SGD(model.parameters(), lr=self.training.lr)
            model.train()
            for x, y in batches:
                reps = model.extractor(x)
                loss = F.cross_entropy(model.head(reps), y)
                if self.name == "fedproto":
                    loss = loss + F.mse_loss(reps, self.table[y])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
            if self.name in PROTOTYPES:
                model.eval()
                with torch.no_grad():
                    for x in images.split(EVAL_BATCH):
                        model.extractor(x)


# --- the plain way ---------------------------------------------------------------------------


class Plain:
    """One sample at a time where no arithmetic forces a batch, and models kept in files."""

    def __init__(self, name: str, federation: Federation, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.training, self.device = federation.setting.training, federation.setting.device
        self.net = copy.deepcopy(federation.clients[0].model)
        self.head = nn.Linear(federation.setting.dims[0], CLASSES).to(self.device)
        self.prototypes: dict[int, Tensor] = {}
        self.average: dict[str, Tensor] | None = None
        self.loaders = []
        for client in federation.clients:
            images = client.train.images.cpu().float() / 255
            data = TensorDataset(images, client.train.labels.cpu())
            size = self.training.batch_size
            self.loaders.append(
                (
                    DataLoader(data, batch_size=size, drop_last=True, shuffle=True),
                    DataLoader(data, batch_size=size, drop_last=False),
                )
            )
            torch.save(client.model.state_dict(), self._file(client.id))

    def prepare(self, round: int) -> None:
        """Seed the loaders' order; not timed."""
        torch.manual_seed(round)

    def run(self) -> None:
        """Run one round."""
        sent: list[dict[int, Tensor]] = []
        for k in range(len(self.loaders)):
            model = self._load(k)
            if self.name in HEADS:
                model.head.load_state_dict(self.head.state_dict())
            if self.name == "fedavg" and self.average is not None:
                model.load_state_dict(self.average)
            self._train(model, k)
            torch.save(model.state_dict(), self._file(k))
            if self.name in PROTOTYPES:
                sent.append(self._collect(self._load(k), k))
        if self.name == "fedre":
            self._train_head([self._entangle(one) for one in sent])
        elif self.name == "fedgh":
            pairs = [
                (mean, F.one_hot(torch.tensor(label), CLASSES).float())
                for one in sent
                for label, mean in one.items()
            ]
            self._train_head(pairs)
        elif self.name == "fedproto":
            self._average_prototypes(sent)
        else:
            self._average_models()

    def _file(self, k: int) -> Path:
        return self.folder / f"client{k}.pt"

    def _load(self, k: int) -> SplitModel:
        state = torch.load(self._file(k), weights_only=True)
        model = copy.deepcopy(self.net)
        model.load_state_dict(state)
        return model.to(self.device)

    def _train(self, model: SplitModel, k: int) -> None:
        optimiser = torch.optim.SGD(model.parameters(), lr=self.training.lr)
        model.train()
        for x, y in self.loaders[k][0]:
            x, y = x.to(self.device), y.to(self.device)
            reps = model.extractor(x)
            loss = F.cross_entropy(model.head(reps), y)
            if self.name == "fedproto" and self.prototypes:
                target = reps.detach().clone()
                for i, label in enumerate(y):
                    if label.item() in self.prototypes:
                        target[i] = self.prototypes[int(label.item())]
                loss = loss + F.mse_loss(reps, target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    def _collect(self, model: SplitModel, k: int) -> dict[int, Tensor]:
        model.eval()
        lists = defaultdict(list)
        with torch.no_grad():
            for x, y in self.loaders[k][1]:
                x, y = x.to(self.device), y.to(self.device)
                reps = model.extractor(x)
                for i, label in enumerate(y):
                    lists[label.item()].append(reps[i].detach())
        means = {}
        for label, members in lists.items():
            total = torch.zeros_like(members[0])
            for member in members:
                total += member
            means[int(label)] = total / len(members)
        return means

    def _entangle(self, means: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        weights = torch.rand(len(means))
        weights = weights / weights.sum()
        rep = torch.zeros_like(next(iter(means.values())))
        encoding = torch.zeros(CLASSES)
        for (label, mean), weight in zip(means.items(), weights, strict=True):
            rep += weight.item() * mean
            encoding[label] = weight
        return rep, encoding

    def _train_head(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        optimiser = torch.optim.SGD(self.head.parameters(), lr=SERVER_LR)
        loader: Any = DataLoader(pairs, batch_size=SERVER_BATCH, shuffle=True)  # type: ignore[arg-type]
        for rep, target in loader:
            loss = F.cross_entropy(self.head(rep), target.to(self.device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    def _average_prototypes(self, sent: list[dict[int, Tensor]]) -> None:
        lists = defaultdict(list)
        for one in sent:
            for label, mean in one.items():
                lists[label].append(mean)
        self.prototypes = {label: sum(m) / len(m) for label, m in lists.items()}  # type: ignore[misc]

    def _average_models(self) -> None:
        total: dict[str, Tensor] = {}
        for k in range(len(self.loaders)):
            for name, value in self._load(k).state_dict().items():
                part = value / len(self.loaders)
                total[name] = total[name] + part if name in total else part
        self.average = total


# --- taking turns ----------------------------------------------------------------------------


def measure(
    name: str, *, repeats: int, folder: Path, device: torch.device, **size: Any
) -> dict[str, list[Times]]:
    """Times of `repeats` rounds of each version, taking turns; a first round warms up.

    Ours is the real loop: the others run between two of its rounds. Its last round, the only one
    that evaluates, is not counted.
    """
    federation = build(name, rounds=repeats + 2, device=device, **size)
    (folder / "plain").mkdir(parents=True)
    plain, bare = Plain(name, federation, folder / "plain"), Bare(name, federation)
    watch = Watch(device)
    times: dict[str, list[Times]] = {"ours": [], "plain": [], "bare": []}
    threads = torch.get_num_threads()

    def end_of_ours(rows: list[loop.Row]) -> None:
        times["ours"].append(watch.read())

    def others(event: Event) -> None:
        torch.set_num_threads(threads)  # ours spreads clients over as many cores
        turns: list[tuple[str, Plain | Bare]] = [("plain", plain), ("bare", bare)]
        round = event.data["round"]
        if round <= repeats + 1:
            for key, version in turns if round % 2 else turns[::-1]:
                version.prepare(round)
                watch.start()
                version.run()
                times[key].append(watch.read())
        torch.set_num_threads(1)
        watch.start()

    often = loop.CHECKPOINT_SECONDS
    loop.CHECKPOINT_SECONDS = float("inf")
    try:
        loop.run_rounds(
            federation.protocol,
            federation.clients,
            federation.server,
            federation.setting,
            recorder=Recorder(
                folder / "uploads", behind=loop.ROUNDS_BEHIND if device.type == "cuda" else 0
            ),
            checkpoints=folder / "checkpoints",
            keep=lambda round, clients, emissions: None,
            report=others,
            on_row=end_of_ours,
        )
    finally:
        loop.CHECKPOINT_SECONDS = often
    counted = {key: values[1 : repeats + 1] for key, values in times.items()}
    watch.start()
    checkpoint.save(
        folder / "checkpoints", federation.clients, federation.server, round=1, metrics=[]
    )
    return counted | {"checkpoint": [watch.read()]}


def row(name: str, times: dict[str, list[Times]]) -> dict[str, Any]:
    """Medians over rounds, and medians of the ratios of neighbouring rounds."""
    out: dict[str, Any] = {"protocol": name}
    for clock in ("wall", "cpu"):
        seconds = {key: [getattr(t, clock) for t in values] for key, values in times.items()}
        for key in ("ours", "plain", "bare"):
            out[f"{key}_{clock}_s"] = statistics.median(seconds[key])
        for key, (top, bottom) in {
            "ours_over_bare": ("ours", "bare"),
            "plain_over_ours": ("plain", "ours"),
        }.items():
            ratios = [a / b for a, b in zip(seconds[top], seconds[bottom], strict=True)]
            out[f"{key}_{clock}"] = statistics.median(ratios)
    out["checkpoint_wall_s"] = times["checkpoint"][0].wall
    return out


HEADINGS = ("ours", "plain", "bare")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text: CPU and wall seconds, then ratios."""
    lines = [
        f"{'protocol':<10}{'clock':<6}"
        + "".join(f"{heading + ' s':>9}" for heading in HEADINGS)
        + f"{'ours/bare':>11}{'plain/ours':>12}"
    ]
    for entry in rows:
        for clock in ("wall", "cpu"):
            lines.append(
                f"{entry['protocol'] if clock == 'wall' else '':<10}{clock:<6}"
                + "".join(f"{entry[f'{heading}_{clock}_s']:>9.3f}" for heading in HEADINGS)
                + f"{entry[f'ours_over_bare_{clock}']:>11.2f}"
                + f"{entry[f'plain_over_ours_{clock}']:>12.2f}"
            )
    return "\n".join(lines)


# --- memory of many clients ------------------------------------------------------------------


def _one_round(name: str, clients: int, architecture: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    samples, device = 8, torch.device("cpu")
    small = build(
        name, clients=2, samples=samples, batch=4, rounds=1, architecture=architecture,
        device=device,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        _run(small, Path(folder))  # libraries and buffers that any number of clients needs
        del small
        gc.collect()
        before = peak_bytes()
        many = build(
            name, clients=clients, samples=samples, batch=4, rounds=1,
            architecture=architecture, device=device,
        )  # fmt: skip
        built = peak_bytes()
        _run(many, Path(folder) / "many")
        parameters = sum(p.numel() * 4 for c in many.clients for p in c.model.parameters())
        gradients = sum(
            p.grad.numel() * 4
            for c in many.clients
            for p in c.model.parameters()
            if p.grad is not None
        )
        return {
            "protocol": name,
            "architecture": architecture,
            "clients": clients,
            "parameter_bytes": parameters,
            "built_bytes": built - before,
            "peak_bytes": peak_bytes() - before,
            "gradients_left_bytes": gradients,
        }


def _run(federation: Federation, folder: Path) -> None:
    loop.run_rounds(
        federation.protocol,
        federation.clients,
        federation.server,
        federation.setting,
        recorder=Recorder(folder / "uploads"),
        checkpoints=folder / "checkpoints",
        keep=lambda round, clients, emissions: None,
        report=lambda event: None,
    )


def memory(name: str, clients: int, architecture: str) -> dict[str, Any]:
    """Peak memory of one round with many clients, in a process of its own.

    Returns:
        Bytes of all clients' parameters, the growth of resident memory when they were built and
        at the peak of the round, and the gradients still held after it.
    """
    return tools.apart(_one_round, name, clients, architecture)


def print_memory(found: dict[str, Any]) -> None:
    """Print one measurement of memory."""
    size = found["parameter_bytes"]
    print(
        f"{found['clients']} clients of {found['architecture']}, {found['protocol']}: "
        f"parameters {human_bytes(size)}, built +{human_bytes(found['built_bytes'])}, "
        f"peak of a round +{human_bytes(found['peak_bytes'])} "
        f"({found['peak_bytes'] / size:.2f} x parameters), "
        f"gradients left {human_bytes(found['gradients_left_bytes'])}"
    )


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("--protocols", default=",".join(PROTOCOLS))
    options.add_argument("--clients", type=int, default=None, help="10; with --memory 100")
    options.add_argument("--samples", type=int, default=320, help="training images of each client")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--architecture", default=None, help="cnn4; with --memory cnn-5")
    options.add_argument("--threads", type=int, default=None)
    options.add_argument("--device", default="cpu")
    options.add_argument("--out", type=Path, default=None, help="folder for rounds.csv and .json")
    options.add_argument("--memory", action="store_true")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write it."""
    chosen = parser().parse_args(arguments)
    names = chosen.protocols.split(",")
    if chosen.memory:
        for name in names:
            print_memory(memory(name, chosen.clients or 100, chosen.architecture or "cnn-5"))
        return
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    device = torch.device(chosen.device)
    size = {
        "clients": chosen.clients or 10,
        "samples": chosen.samples,
        "batch": chosen.batch,
        "architecture": chosen.architecture or "cnn4",
    }
    facts = {
        **size,
        "repeats": chosen.repeats,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": tools.device_name(device),
    }
    print(json.dumps(facts))
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            times = measure(
                name, repeats=chosen.repeats, folder=Path(folder), device=device, **size
            )
        rows.append(row(name, times))
    print(table(rows))
    print(f"checkpoint: {max(entry['checkpoint_wall_s'] for entry in rows):.2f} s at most")
    if chosen.out is not None:
        write_json(chosen.out / "rounds.json", {"facts": facts, "rounds": rows})
        text = "\n".join(
            [",".join(rows[0]), *(",".join(str(v) for v in entry.values()) for entry in rows)]
        )
        write_text(chosen.out / "rounds.csv", text + "\n")


if __name__ == "__main__":
    main()
