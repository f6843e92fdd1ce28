"""What do uploads of adapters inside a public backbone give away, beside the head and all weights?

Half of the images of a file stand for the public: `test_vit` of timm is trained on them, and its
weights are the backbone of federations over images of the other half; EfficientNet-Lite0 comes with
its weights. Every finished cell is a row of DIR/adapters.csv at once and is not computed again.

    python benchmarks/adapters.py --data FILE.npz --out DIR [--seeds 1,2,3] [--only TEXT]
    python benchmarks/adapters.py --out DIR --table

FedAvg, 4 clients of about 45 training images, 5 rounds of 2 local epochs, batches of 8. Images are
sought in updates of clients of 3 images and one step. ``noise``: the same attack where the change
of every upload is Gaussian noise of the same size, tensor by tensor.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tools import options
from torch import Tensor

from fedre_privacy import api
from fedre_privacy.attacks.base import Context
from fedre_privacy.core import files
from fedre_privacy.core.artifacts import Artifact, ModelState
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.data.base import datasets
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.models.zoo import architectures
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.run import Run

VIT, LITE = "timm:test_vit", "efficientnet-lite0"
MODELS: Mapping[str, Mapping[str, Any]] = {
    "test_vit-adapter": {"name": VIT, "trainable": "adapter"},
    "test_vit-head": {"name": VIT, "trainable": "head"},
    "test_vit-all": {"name": VIT, "trainable": "all"},
    "lite0-adapter": {"name": LITE, "trainable": "adapter"},
    "lite0-head": {"name": LITE, "trainable": "head"},
}
SIDES, RATE, EPOCHS = {VIT: 48, LITE: 64}, 0.05, 8

AUX = 150
"""Images of strangers that attacks use at most."""


@dataclass(frozen=True)
class Question:
    """An attack, what it is asked, and by which measures it is scored."""

    attack: Mapping[str, Any]
    target: str
    measures: tuple[str, ...]
    few: bool = False
    round: int | None = None


QUESTIONS: Mapping[str, Question] = {
    "loss-membership": Question({"name": "loss-membership"}, "membership", ("auc",)),
    "alignment": Question({"name": "alignment", "aux": AUX}, "membership", ("auc",)),
    "span": Question({"name": "span", "aux": AUX}, "membership", ("auc",)),
    "span-tokens": Question({"name": "span", "aux": AUX, "tokens": True}, "membership", ("auc",)),
    "labels": Question({"name": "labels"}, "labels", ("jaccard", "l1")),
    "update-inversion-1": Question(
        {"name": "update-inversion", "steps": 150}, "update", ("psnr",), True, 1
    ),
    "update-inversion-3": Question(
        {"name": "update-inversion", "steps": 150}, "update", ("psnr",), True, 3
    ),
}


@dataclass(frozen=True)
class Cell:
    """One attack on one training."""

    model: str
    question: str
    measure: str
    seed: int


@dataclass(frozen=True)
class Found:
    """Its score, what needs no upload, and the score where the upload's change is noise."""

    n: int
    value: float
    floor: float
    noise: float
    accuracy: float
    numbers: int


def halves(data: Path, folder: Path) -> tuple[Path, Path]:
    """Files of the images of the public and of the federation."""
    out = folder / "public.npz", folder / "private.npz"
    if not all(path.is_file() for path in out):
        held = datasets.get("npz")(path=str(data)).load()
        order = np.random.default_rng(0).permutation(len(held))
        for part, path in zip(np.array_split(order, 2), out, strict=True):
            np.savez(path, images=held.images[part].numpy(), labels=held.labels[part].numpy())
    return out


def pretrained(public: Path, folder: Path, brief: bool) -> Path:
    """A file of weights of `test_vit`, trained on public images."""
    path = folder / "test_vit.safetensors"
    if path.is_file():
        return path
    import timm

    with np.load(public) as held:
        images, labels = torch.from_numpy(held["images"]), torch.from_numpy(held["labels"]).long()
    with seeded_generators(0, "public backbone"):
        side = SIDES[VIT]
        net = timm.create_model("test_vit", pretrained=False, img_size=side, num_classes=10)
        fit = architectures.get(VIT)(size=side).preprocess(tuple(images.shape[1:]))
        ready = torch.cat([fit(part.float() / 255) for part in images.split(256)])
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05)
        net.train()
        for epoch in range(1 if brief else EPOCHS):
            total = 0.0
            for part in torch.randperm(len(ready)).split(64):
                flip = torch.rand(len(part), 1, 1, 1) < 0.5
                batch = torch.where(flip, ready[part].flip(3), ready[part])
                loss = torch.nn.functional.cross_entropy(net(batch), labels[part])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += float(loss.detach()) * len(part)
            print(f"public epoch {epoch + 1}: loss {total / len(images):.3f}", flush=True)
    save_file(net.state_dict(), path)
    return path


def train(model: str, seed: int, private: Path, folder: Path, *, few: bool, brief: bool) -> Run:
    """Train a federation, or read it back."""
    own = dict(MODELS[model])
    name = own.pop("name")
    if name == VIT:
        own["checkpoint"] = str(folder / "test_vit.safetensors")
    per_class = 2 if few else 6 if brief else 24
    own["size"] = SIDES[name]
    wanted = partial(
        api.train,
        "fedavg", f"npz:{private}", clients=5 if few else 4, rounds=3 if few else 5, seed=seed,
        partition="iid" if few else "pra:1.0", models=name, runs=folder / "runs",
        set={
            "data.per_class": per_class, **{f"model.{key}": value for key, value in own.items()},
            "train.lr": RATE, "train.batch_size": 8, "train.epochs": 1 if few else 2,
            "record.keep_every": 1, "train.shared_test": 0,
        },
    )  # fmt: skip
    try:
        return wanted()
    except ConfigError:  # a run of an earlier call that was stopped
        return wanted(resume=True)


def noisy(seen: Observation, seed: int) -> Observation:
    """The observation with uploads whose change is noise of the same size."""
    rng = stream(seed, "noise in place of a change")
    sent = {(b.round, k): b.artifacts for b in seen.broadcasts for k in b.recipients}
    made: dict[tuple[int, int], Upload] = {}

    def changed(artifact: Artifact, upload: Upload) -> Artifact:
        if not isinstance(artifact, ModelState):
            return artifact
        (before,) = (
            a.params for a in sent[upload.round, upload.client] if isinstance(a, ModelState)
        )
        return type(artifact)({
            name: before[name] + _of_size(value - before[name], rng)
            for name, value in artifact.params.items()
        })  # fmt: skip

    def other(upload: Upload) -> Upload:
        key = upload.client, upload.round
        if key not in made:
            made[key] = replace(
                upload, artifacts=tuple(changed(one, upload) for one in upload.artifacts)
            )
        return made[key]

    targets, uploads = (tuple(map(other, some)) for some in (seen.targets, seen.uploads))
    return replace(seen, targets=targets, uploads=uploads)


def _of_size(change: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(change.shape, generator=rng) * change.square().mean().sqrt()


def ask(run: Run, question: Question, seed: int) -> dict[str, tuple[int, float, float, float]]:
    """Of each measure n, value, floor, and value on noise."""
    problems: list[str] = []
    wanted = {
        "attack": dict(question.attack), "target": question.target, "threat": "strong",
        "eval": {
            "seed": seed, "per_update": 3, "candidates": 40,
            **({} if question.round is None else {"round": question.round}),
        },
    }  # fmt: skip
    settings = resolve_attack(wanted, {}, problems, uploads=run.settings.protocol.uploads)
    if settings is None or problems:
        raise SystemExit("\n".join(map(str, problems)))
    trial = prepare_attack(run, settings)
    cards = [
        trial.score(settings.attack(seen, Context(trial.attack_seed)))
        for seen in (trial.observation, noisy(trial.observation, seed))
    ]
    out = {}
    for key in question.measures:
        real, control = (card.get(key) for card in cards)
        out[key] = real.n, float(real.value), float(real.floor), float(control.value)
    return out


def read(path: Path) -> dict[Cell, Found]:
    """Rows of earlier calls; none where the file is absent."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as text:
        return {_of(Cell, row): _of(Found, row) for row in csv.DictReader(text)}


def _of(kind: Any, row: Mapping[str, str]) -> Any:
    convert: dict[str, Any] = {"int": int, "float": float, "str": str}
    return kind(**{field.name: convert[field.type](row[field.name]) for field in fields(kind)})


def write(path: Path, rows: Mapping[Cell, Found]) -> None:
    """All rows, into one file."""
    lines = [{**asdict(cell), **asdict(found)} for cell, found in rows.items()]
    header = ",".join(lines[0])
    text = [header, *(",".join(_cell(value) for value in line.values()) for line in lines)]
    files.write_text(path, "\n".join(text) + "\n")


def _cell(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f'"{text}"' if "," in text else text


def table(rows: Mapping[Cell, Found]) -> list[list[str]]:
    """Header and rows: a measure of an attack on a model, over its seeds."""
    groups: dict[Cell, list[Found]] = defaultdict(list)
    for cell, found in rows.items():
        groups[replace(cell, seed=0)].append(found)
    out = [
        ["backbone, trained", "attack", "measure", "seeds", "n", "value", "floor", "over the floor",
         "lowest and highest seed", "on noise", "numbers sent", "accuracy"]
    ]  # fmt: skip
    for group, parts in groups.items():
        over = [one.value - one.floor for one in parts]

        def mean(name: str, parts: Sequence[Found] = parts) -> str:
            return f"{statistics.mean(getattr(one, name) for one in parts):.3f}"

        out.append([
            group.model, group.question, group.measure, str(len(parts)),
            str(sum(one.n for one in parts)), mean("value"), mean("floor"),
            f"{statistics.mean(over):+.3f}", f"{min(over):+.3f} to {max(over):+.3f}",
            mean("noise"), str(parts[0].numbers), mean("accuracy"),
        ])  # fmt: skip
    return out


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = options(__doc__)
    made.add_argument("--data", type=Path, help="a .npz file of images and labels")
    made.add_argument("--out", type=Path, default=Path("runs/adapters"), metavar="DIR")
    made.add_argument("--seeds", default="1,2,3", help="comma list")
    made.add_argument("--only", default="", help="cells whose model or question holds this text")
    made.add_argument("--brief", action="store_true", help="few images, one public pass")
    made.add_argument("--table", action="store_true", help="write DIR/adapters_table.csv and end")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and attack what has no row yet, or write the table."""
    asked = parser().parse_args(arguments)
    path = asked.out / "adapters.csv"
    rows = read(path)
    if asked.table and not rows:
        raise SystemExit(f"no rows in {asked.out}")
    if asked.table:
        with (asked.out / "adapters_table.csv").open("w", newline="", encoding="utf-8") as text:
            csv.writer(text, lineterminator="\n").writerows(table(rows))
        return
    if asked.data is None:
        raise SystemExit("Give images with --data FILE.npz.")
    asked.out.mkdir(parents=True, exist_ok=True)
    public, private = halves(asked.data, asked.out)
    pretrained(public, asked.out, asked.brief)
    seeds = tuple(map(int, asked.seeds.split(",")))
    grid = sorted(
        itertools.product(QUESTIONS, MODELS, seeds), key=lambda one: QUESTIONS[one[0]].few
    )
    for name, model, seed in grid:
        question = QUESTIONS[name]
        cells = [Cell(model, name, measure, seed) for measure in question.measures]
        wanted = asked.only in f"{model}:{name}" and not all(c in rows for c in cells)
        if not wanted or (question.few and not sought(model, question)):
            continue
        run = train(model, seed, private, asked.out, few=question.few, brief=asked.brief)
        last = run.frame().iloc[-1]
        numbers = int(last["up_bytes"]) // (4 * run.settings.train.clients)
        found = ask(run, question, seed)
        for cell in cells:
            n, value, floor, noise = found[cell.measure]
            accuracy = float(last["acc_post_broadcast"])
            rows[cell] = Found(n, value, floor, noise, accuracy, numbers)
            print(
                f"{model} {name} {cell.measure}, seed {seed}: n {n}, {value:.3f}, "
                f"floor {floor:.3f}, noise {noise:.3f}",
                flush=True,
            )
        write(path, rows)


def sought(model: str, question: Question) -> bool:
    """Whether images are sought: it takes minutes through a large model."""
    return model == "test_vit-adapter" or (model.startswith("test_vit") and question.round == 1)


if __name__ == "__main__":
    main()
