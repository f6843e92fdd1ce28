"""What of a picture a linear map reads from a public backbone's features, by their depth.

    python benchmarks/backbone_depth.py --out depth.csv
    python benchmarks/backbone_depth.py --data FILE.npz --public 600 2000 6000 --out depth.csv

Targets, public images and those behind the floors are drawn anew for each seed. The attacker fits
ridge regression from features to pixels on public images, plain and mirrored, as `linear` does. A
row of the file is a place in the backbone, a number of public images and a seed; what has a row
is not computed again. ``noise`` and ``other`` are controls: the map reads noise of the features'
mean and spread, or the features of another target.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tools import RowsFile
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from fedre_privacy.attacks.inversion.ridge_fit import fit_views
from fedre_privacy.attacks.inversion.simulated_uploads import views
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Mixture, Truth
from fedre_privacy.data.base import ImageData
from fedre_privacy.data.digits import Digits
from fedre_privacy.data.npz import Npz
from fedre_privacy.eval import PublicImages, evaluate
from fedre_privacy.models.zoo.base import architectures

VIEWS = 2
THUMB = 4
CHUNK = 32
FIELDS = (
    "backbone", "size", "depth", "grid", "values", "public", "change", "seed", "n", "psnr",
    "floor", "over", "low", "high", "found", "guess", "colour", "layout", "detail",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where in the backbone features are taken: behind `depth` blocks, in grid x grid cells.

    A depth of -1 stands for the whole backbone.
    """

    depth: int
    grid: int = 1


PLACES = (
    *(Place(depth) for depth in (1, 3, 5, 8, 11, 15, 16, -1)),
    Place(3, 8), Place(5, 4), Place(8, 4), Place(11, 4), Place(16, 2),
)  # fmt: skip


class Backbone:
    """A frozen backbone whose maps at several depths come from one pass."""

    def __init__(self, name: str, size: int, shape: tuple[int, int, int]) -> None:
        architecture = architectures.get(name)(size=size)  # type: ignore[call-arg]
        module, _ = architecture.build(shape)
        self.first = architecture.preprocess(shape)
        self.network = module.eval().network

    @torch.no_grad()
    def features(self, images: Tensor, places: Sequence[Place]) -> dict[Place, Tensor]:
        """Features (n, d) of images (n, C, H, W) in [0, 1] at each place."""
        parts: dict[Place, list[Tensor]] = {place: [] for place in places}
        kept: dict[int, Tensor] = {}
        hooks = [
            block.register_forward_hook(
                lambda module, given, made, depth=depth: kept.update({depth: made})
            )
            for depth, block in enumerate(self.network._blocks, 1)
        ]
        for part in images.split(CHUNK):
            kept[-1] = self.network.extract_features(self.first(part))
            for place in places:
                parts[place].append(adaptive_avg_pool2d(kept[place.depth], place.grid).flatten(1))
        for hook in hooks:
            hook.remove()
        return {place: torch.cat(made) for place, made in parts.items()}


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a seed draws: targets with their classes, images behind floors, the attacker's."""

    targets: Tensor
    labels: Tensor
    floors: PublicImages
    public: Tensor
    public_labels: Tensor


def draw(data: ImageData, seed: int, targets: int, floors: int, public: int) -> Drawn:
    """Draw disjoint images; of few, the attacker gets what is left."""
    order = torch.randperm(len(data), generator=stream(seed, "backbone depth"))
    own, beside, rest = (
        order[:targets],
        order[targets : targets + floors],
        order[targets + floors :],
    )
    return Drawn(
        data.floats(own),
        data.labels[own],
        PublicImages(data.floats(beside), data.labels[beside]),
        data.floats(rest[:public]),
        data.labels[rest[:public]],
    )


def bands(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split images (n, C, H, W) into mean colour, coarse layout without it, and the rest."""
    colour = images.mean((2, 3), keepdim=True)
    coarse = adaptive_avg_pool2d(images, THUMB)
    back = interpolate(coarse, size=images.shape[2:], mode="nearest")
    return colour, coarse - colour, images - back


def scored(answers: Tensor, drawn: Drawn, mean: Tensor, seed: int) -> dict[str, object]:
    """PSNR over the floor, line-ups, and the share of each band's variance that came back."""
    count = len(answers)
    index = torch.arange(count)
    mixture = Mixture(index, index, torch.ones(count), count)
    truth = Truth(drawn.targets, drawn.labels, index, mixture, index, drawn.labels)
    given = Reconstruction.of(answers, prior=mean.expand_as(answers).contiguous())
    card = evaluate(given, truth, drawn.floors, metrics={}, seed=seed, noun="target", unit="target")
    psnr, hit = card.get("psnr"), card.get("hit1")
    low, high = psnr.over_interval or (float("nan"),) * 2
    shares = {}
    parts = zip(
        ("colour", "layout", "detail"), *map(bands, (answers, drawn.targets, mean)), strict=True
    )
    for name, made, true, guess in parts:
        left = (made - true).square().sum() / (guess - true).square().sum()
        shares[name] = round(float(1 - left), 3)
    numbers = {
        "n": psnr.n, "psnr": psnr.value, "floor": psnr.floor, "over": psnr.over, "low": low,
        "high": high, "found": hit.value, "guess": hit.floor,
    }  # fmt: skip
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in numbers.items()} | shares


def rows_of(
    backbone: Backbone, data: ImageData, asked: argparse.Namespace, seed: int, public: int
) -> Iterator[dict[str, object]]:
    """All places for one seed and number of public images."""
    drawn = draw(data, seed, asked.targets, asked.floors, public)
    places = asked.places
    seen = [backbone.features(moved, places) for moved in views(drawn.public, VIEWS)]
    own = backbone.features(drawn.targets, places)
    mean = drawn.public.mean(0, keepdim=True)
    for place in places:
        ridge = fit_views([made.pop(place) for made in seen], drawn.public, None).whole
        reps = own[place]
        rng = stream(seed, "backbone depth: noise")
        loud = reps.mean(0) + reps.std(0) * torch.randn(reps.shape, generator=rng)
        given = {"none": reps, "noise": loud, "other": reps.roll(1, 0)}
        for change, sent in given.items():
            answers = ridge(sent).reshape(-1, *data.image_shape).clamp(0, 1)
            named = {
                "backbone": asked.backbone, "size": asked.size, "depth": place.depth,
                "grid": place.grid, "values": reps.shape[1], "public": len(drawn.public),
                "change": change, "seed": seed,
            }  # fmt: skip
            yield named | scored(answers, drawn, mean, seed)


def place_of(text: str) -> Place:
    """A place such as ``8`` or ``8x4``: depth, or depth and grid; ``-1`` is the whole backbone."""
    depth, _, grid = text.partition("x")
    return Place(int(depth), int(grid or 1))


def parser() -> argparse.ArgumentParser:
    """Its options."""
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument("--data", type=Path, help="npz file of images; none: the built-in digits")
    made.add_argument("--backbone", default="efficientnet-lite0")
    made.add_argument("--size", type=int, default=64, help="height and width inside (pixels)")
    made.add_argument("--public", type=int, nargs="+", default=[600], help="public images")
    made.add_argument("--targets", type=int, default=100)
    made.add_argument("--floors", type=int, default=1000, help="images behind the floors")
    made.add_argument("--places", type=place_of, nargs="+", default=PLACES, metavar="DEPTHxGRID")
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    made.add_argument("--out", type=Path, required=True, help="CSV file; its rows are kept")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute what the file lacks."""
    asked = parser().parse_args(arguments)
    data = Npz(path=str(asked.data)).load() if asked.data else Digits(size=32).load()
    backbone = Backbone(asked.backbone, asked.size, data.image_shape)
    file = RowsFile(asked.out, FIELDS, ("backbone", "size", "public", "seed", "depth", "grid"))
    done, wanted = file.done(), list(asked.places)
    for public in asked.public:
        for seed in asked.seeds:
            left = min(public, len(data) - asked.targets - asked.floors)
            here = (asked.backbone, str(asked.size), str(left), str(seed))
            asked.places = [p for p in wanted if (*here, str(p.depth), str(p.grid)) not in done]
            if not asked.places:
                continue
            rows = rows_of(backbone, data, asked, seed, public)
            for _, place in itertools.groupby(rows, lambda row: (row["depth"], row["grid"])):
                own = list(place)
                file.add(own)
                for row in own:
                    print(
                        f"block {row['depth']}, {row['grid']}x{row['grid']}, {row['public']} "
                        f"public, seed {row['seed']}, {row['change']}: {row['psnr']} dB, floor "
                        f"{row['floor']}, found {row['found']}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
