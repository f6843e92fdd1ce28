"""How many images of a client does a server read that imprints the adapters of a public backbone?

    python benchmarks/imprinted_adapters.py --data FILE.npz --out DIR [--seeds 1,2,3] [--only TEXT]
    python benchmarks/imprinted_adapters.py --out DIR --table

EfficientNet-Lite0 with bottleneck adapters, steering `imprint` with one direction and as many
samples as a client has, 32 images for each cell and seed: a gradient of all of a client's images,
or two local epochs in batches of 8. A vector that the last adapter is fed is right where one that
was read is within 1 %. Pictures are made of vectors by `linear` and public images of the second
half of FILE. ``noise``: vectors right where the upload is Gaussian noise of the same size.
Finished cells are rows of DIR/imprinted.csv.
"""

from __future__ import annotations

import argparse
import copy
import csv
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
from gradients import Images, Pairs, beside_floor, gradient, load, local_update, observe, unseen
from tools import RowsFile, options
from torch import Tensor, nn

from fedre_privacy.active_server.base import ServerKnowledge, ServerView, steerings
from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.attacks.gradients.victims import Victim
from fedre_privacy.attacks.imprint import BinReading, read_layers
from fedre_privacy.core.artifacts import AdapterState, GradientState
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.types import LocalTrainingFacts
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.hidden import HiddenLayer, imprintable, imprintable_together
from fedre_privacy.models.split import load_parameters
from fedre_privacy.threats.base import threats

SHAPE, CLASSES = (3, 32, 32), 10
PUBLIC, IMAGES, EPOCHS, RATE = 300, 32, 2, 0.05


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A measurement.

    Args:
        side: to which images are brought (pixels). rank: channels inside the adapters.
        samples: images of a client. sends: "gradient" or "update".
    """

    side: int
    rank: int
    samples: int
    sends: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was read of 32 images.

    Args:
        adapters: that are imprinted. vectors: that the last adapter is fed. read: distinct ones.
        right: of the true vectors. certified, certified_right: of those read.
        noise: true vectors that noise gives. found: first of 100 images.
    """

    adapters: int
    vectors: int
    read: int
    right: int
    certified: int
    certified_right: int
    noise: int
    psnr: float
    floor: float
    found: float
    found_floor: float


def cells(seeds: Sequence[int]) -> list[Cell]:
    """All measurements."""
    grid = [
        *((32, 8, samples, "gradient") for samples in (8, 32)),
        *((32, 16, samples, "gradient") for samples in (4, 8, 16, 32)),
        *((32, 16, samples, "update") for samples in (8, 32)),
        *((64, 16, samples, "gradient") for samples in (8, 32)),
    ]
    return [
        Cell(side=side, rank=rank, samples=samples, sends=sends, seed=seed)
        for side, rank, samples, sends in grid
        for seed in seeds
    ]


def imprinted(cell: Cell, data: Images) -> nn.Module:
    """The model as the server sends it."""
    settings = ModelSettings(
        name="efficientnet-lite0", trainable="adapter", rank=cell.rank, size=cell.side, dim=None
    )
    with seeded_generators(cell.seed, "imprinted adapters"):
        model = build_model(settings, 0, SHAPE, CLASSES).eval()
    public = data.public
    held = ServerKnowledge(
        public.images[:PUBLIC], public.labels[:PUBLIC], lambda _: copy.deepcopy(model)
    )
    honest = AdapterState({k: p.detach().clone() for k, p in model.named_parameters()})
    steering = steerings.get("imprint")(directions=1, samples=cell.samples)
    view = ServerView((), (), 1, CLASSES, held)
    (sent,) = steering.steer(view, 1, 0, (honest,), stream(cell.seed, "steering"))
    assert isinstance(sent, AdapterState)
    load_parameters(model, sent.params)
    return model


def clients(cell: Cell, data: Images) -> Pairs:
    """Images and labels of each client, others for each seed."""
    order = unseen(data)[cell.seed * IMAGES :][:IMAGES]
    return [(data.pixels[rows], data.labels[rows]) for rows in order.split(cell.samples)]


def upload(cell: Cell, model: nn.Module, pair: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """A gradient, or parameters before less after local training."""
    if cell.sends == "gradient":
        return gradient(model, *pair)
    facts = LocalTrainingFacts(RATE, EPOCHS, 8, {0: cell.samples})
    after = local_update(model, *pair, facts, cell.seed)
    return {name: value.detach() - after[name] for name, value in model.named_parameters()}


def near(read: BinReading, true: Tensor) -> Tensor:
    """Which vectors read (k, d) are which true ones (n, d) to 1 %, (k, n) bool."""
    return torch.cdist(read.inputs, true) < 0.01 * true.norm(dim=1)


def measure(cell: Cell, data: Images) -> Found:
    """One cell."""
    model, pairs = imprinted(cell, data), clients(cell, data)
    last, together = imprintable(model), imprintable_together(model, data.pixels[:1])
    assert isinstance(last, HiddenLayer) and not isinstance(together, str)
    rng, sums, sent = stream(cell.seed, "noise"), [0] * 6, []
    for pair in pairs:
        sent.append(upload(cell, model, pair))
        noise = {
            name: value.square().mean().sqrt() * torch.randn(value.shape, generator=rng)
            for name, value in sent[-1].items()
        }
        read, none = (
            read_layers(Victim(0, 1, model, one, local=False), SHAPE, 0.01)
            for one in (sent[-1], noise)
        )
        with torch.no_grad():
            true = last.inputs(pair[0])
        right = near(read, true)
        counts = (
            len(true), len(read.inputs), right.any(0).sum(), read.certified.sum(),
            right.any(1)[read.certified].sum(), near(none, true).any(0).sum(),
        )  # fmt: skip
        sums = [total + int(one) for total, one in zip(sums, counts, strict=True)]
    vectors, read_, right_, certified, certified_right, noisy = sums
    seen = replace(
        observe(model, [GradientState(one) for one in sent], cell.samples),
        threat=threats.get("strong"),
        aux=data.public.images[:PUBLIC],
        aux_labels=data.public.labels[:PUBLIC],
    )
    answer = attacks.get("imprint")(by=attacks.get("linear")(views=2))(seen, Context())
    ours, floor = beside_floor(answer, pairs, data)
    return Found(
        adapters=len(together), vectors=vectors, read=read_, right=right_, certified=certified,
        certified_right=certified_right, noise=noisy, psnr=float(ours["psnr"].mean()),
        floor=float(floor["psnr"].mean()), found=float(ours["hit"].mean()),
        found_floor=float(floor["hit"].mean()),
    )  # fmt: skip


def table(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Header and rows: a setting over its seeds."""
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["side"], row["rank"], row["samples"], row["sends"]].append(row)
    out = [
        ["pixels", "rank", "adapters", "images of a client", "sends", "seeds", "n", "read", "right",
         "share right", "lowest and highest seed", "with a certificate", "of these right",
         "right on noise", "PSNR", "floor", "found among 100", "floor"]
    ]  # fmt: skip
    for (side, rank, samples, sends), parts in groups.items():

        def total(name: str, parts: Sequence[Mapping[str, str]] = parts) -> int:
            return sum(int(row[name]) for row in parts)

        def mean(name: str, parts: Sequence[Mapping[str, str]] = parts) -> str:
            return f"{statistics.mean(float(row[name]) for row in parts):.2f}"

        shares = [int(row["right"]) / int(row["vectors"]) for row in parts]
        out.append([
            side, rank, parts[0]["adapters"], samples, sends, str(len(parts)),
            str(total("vectors")), str(total("read")), str(total("right")),
            f"{total('right') / total('vectors'):.2f}", f"{min(shares):.2f} to {max(shares):.2f}",
            str(total("certified")), str(total("certified_right")), str(total("noise")),
            mean("psnr"), mean("floor"), mean("found"), mean("found_floor"),
        ])  # fmt: skip
    return out


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = options(__doc__)
    made.add_argument("--data", type=Path, help="a .npz file of images and labels")
    made.add_argument("--out", type=Path, default=Path("runs/imprinted_adapters"), metavar="DIR")
    made.add_argument("--seeds", default="1,2,3", help="comma list")
    made.add_argument("--only", default="", help="cells side-rank-samples-sends with this text")
    made.add_argument("--table", action="store_true", help="write DIR/imprinted_table.csv and end")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what has no row yet, or write the table."""
    asked = parser().parse_args(arguments)
    key = [field.name for field in fields(Cell)]
    file = RowsFile(asked.out / "imprinted.csv", key + [f.name for f in fields(Found)], key)
    if asked.table:
        if not file.path.is_file():
            raise SystemExit(f"no rows in {asked.out}")
        with file.path.open(newline="", encoding="utf-8") as text:
            made = table(list(csv.DictReader(text)))
        with (asked.out / "imprinted_table.csv").open("w", newline="", encoding="utf-8") as text:
            csv.writer(text, lineterminator="\n").writerows(made)
        return
    if asked.data is None:
        raise SystemExit("Give images with --data FILE.npz.")
    asked.out.mkdir(parents=True, exist_ok=True)
    data = load(str(asked.data))
    for cell in cells(tuple(map(int, asked.seeds.split(",")))):
        name = f"{cell.side}-{cell.rank}-{cell.samples}-{cell.sends}"
        if asked.only not in name or tuple(map(str, asdict(cell).values())) in file.done():
            continue
        found = measure(cell, data)
        file.add([asdict(cell) | asdict(found)])
        print(
            f"{name} seed {cell.seed}: {found.right} of {found.vectors} vectors right, "
            f"{found.certified} with a certificate, {found.noise} on noise; PSNR "
            f"{found.psnr:.2f}, floor {found.floor:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
