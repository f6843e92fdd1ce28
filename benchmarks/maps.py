"""How much of an attack by linear maps need not be computed?

The same attack (`linear`, calibration included, on targets of two families for each extractor) with
what it shares and with everything computed where it is needed, taking turns in one process:
processor seconds, their ratio, images that went through the extractors, and whether answers and
confidence are the same bit for bit. Shared are passes over auxiliary images (families, calibration,
clients with one public extractor) and sums of single images (families, such clients).

With --pixels the same is fitted to all pixels instead of coordinates of the auxiliary pictures,
where these are few; answers are then compared up to rounding (1e-4).

A ratio over one says that sharing is faster. Times are of one thread.

Usage: python benchmarks/maps.py [--architectures cnn4,resnet18] [--public-extractor] [--quick]
       python benchmarks/maps.py --pixels --size 128 --aux 40 --extractors 1
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import tools
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.inversion import picture_basis
from fedre_privacy.attacks.inversion.ridge_fit import Latest
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.core.artifacts import Prototypes, Representations
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.data.photos import Photos
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.shared_passes import SharedPasses
from fedre_privacy.threats.base import threats

PASSED: list[int] = []
BEHIND = 10
"""Images behind a prototype."""


class Counted(nn.Module):
    """An extractor that counts the images which go through it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        PASSED.append(len(images))
        found: Tensor = self.inner(images)
        return found


def observation(architecture: str, size: int, aux: int, extractors: int, one: bool) -> Observation:
    """One representation and one prototype through each of some untrained extractors.

    Args:
        aux: auxiliary images. one: all clients have the same extractor.
    """
    data = Photos(size=size, per_photo=-(-(aux + BEHIND + extractors) // 4)).load()
    order = torch.randperm(len(data), generator=stream(0, "benchmark"))
    images, labels = data.floats(order), data.labels[order].long()
    nets, targets = {}, []
    for client in range(extractors):
        with seeded_generators(0, "benchmark", client=0 if one else client):
            model = build_model(ModelSettings(name=architecture), 0, data.image_shape, 10).eval()
        nets[client, 1] = Counted(model.extractor).eval()
        with torch.no_grad():
            reps = model.extractor(torch.cat([images[:BEHIND], images[BEHIND + client :][:1]]))
        mean = Prototypes(reps[:BEHIND].mean(0, keepdim=True), labels[:1])
        single = Representations(reps[BEHIND:], labels[BEHIND + client :][:1])
        targets.append(Upload(client, 1, (single, mean)))
    first = BEHIND + extractors
    return Observation(
        threat=threats.get("strong"),
        targets=tuple(targets),
        uploads=tuple(targets),
        broadcasts=(),
        extractors=nets,
        image_shape=data.image_shape,
        num_classes=10,
        aux=images[first : first + aux],
        aux_labels=labels[first : first + aux],
    )


@contextmanager
def nothing_shared() -> Iterator[None]:
    """Compute everything where it is needed."""

    def passes(self: Any, name: str, count: int, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        return make()[:count]

    def fit(self: Any, name: str, make: Callable[[], Any]) -> Any:
        return make()

    with patch.object(SharedPasses, "of", passes), patch.object(Latest, "of", fit):
        yield


@contextmanager
def all_pixels() -> Iterator[None]:
    """Fit maps to pixels, however few the pictures are."""
    with patch.object(picture_basis, "MOST", 0):
        yield


def timed(attack: LinearDecoder, seen: Observation) -> tuple[float, int, Reconstruction]:
    """Processor seconds, images that went through extractors, and the answer."""
    PASSED.clear()
    started = time.process_time()
    found: Reconstruction = attack(seen, Context(seed=1))
    return time.process_time() - started, sum(PASSED), found


def same(one: Tensor, other: Tensor, rounded: bool) -> bool:
    """Whether numbers are equal, or equal up to rounding."""
    return torch.allclose(one, other, atol=1e-4) if rounded else torch.equal(one, other)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("--architectures", default="cnn4")
    options.add_argument("--size", type=int, default=32, help="pixels")
    options.add_argument("--aux", type=int, default=760, help="auxiliary images")
    options.add_argument("--extractors", type=int, default=8)
    options.add_argument(
        "--public-extractor", action="store_true", help="all clients have the same one"
    )
    options.add_argument("--pixels", action="store_true", help="beside fits to all pixels")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--quick", action="store_true", help="two extractors, 80 images, once")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line for each architecture; return 1 if a number differs."""
    chosen = parser().parse_args(arguments)
    if chosen.quick:
        chosen.aux, chosen.extractors, chosen.repeats = 80, 2, 1
    torch.set_num_threads(1)
    attack, differs = LinearDecoder(), False
    plain, apart, now = (
        (all_pixels, "in pixels", "in coordinates")
        if chosen.pixels
        else (nothing_shared, "apart", "shared")
    )
    for architecture in chosen.architectures.split(","):
        seen = observation(
            architecture, chosen.size, chosen.aux, chosen.extractors, chosen.public_extractor
        )
        ratios, times = [], []
        for _ in range(chosen.repeats):
            with plain():
                alone, passed_alone, answer_alone = timed(attack, seen)
            shared, passed, answer = timed(attack, seen)
            ratios.append(alone / shared)
            times.append((alone, shared))
            differs |= not same(answer.images, answer_alone.images, chosen.pixels)
            differs |= not same(answer.confidence, answer_alone.confidence, chosen.pixels)
        middle = [statistics.median(column) for column in zip(*times, strict=True)]
        print(
            f"{architecture}, {chosen.size} px, {chosen.extractors} extractors, {chosen.aux} "
            f"auxiliary images: processor seconds {middle[0]:.1f} {apart}, {middle[1]:.1f} {now}, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
            f"passes {passed_alone} and {passed}; numbers {'DIFFER' if differs else 'equal'}",
            flush=True,
        )
    return int(differs)


if __name__ == "__main__":
    raise SystemExit(main())
