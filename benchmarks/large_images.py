"""What do attacks by maps cost at 224 pixels, and what do low frequencies give away?

The same attack on the same representations, written at several sides (`attack.resolution`), each in
a process of its own: processor seconds, how much its memory grew, PSNR of the answers, and beside
it the PSNR of the mean auxiliary image (the floor), of the same attack on noise in place of the
representations, and of the true images at that side (what no answer can exceed).

Targets and auxiliary images are different images of one data set, resized to the side asked for.
The network is untrained. Processor seconds are of one thread.

Usage: python benchmarks/large_images.py [--dataset photos] [--size 224] [--sides 64,224] [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tools
import torch
from torch import Tensor
from torch.nn import functional as F

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.attacks.inversion.auxiliary_images import Resolution
from fedre_privacy.core.artifacts import Representations
from fedre_privacy.core.memory import peak_bytes
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.data.base import datasets
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.threats.base import threats


def observation(given: argparse.Namespace) -> tuple[Observation, Tensor]:
    """Representations of some images through one untrained extractor, and the images."""
    kind, _, path = given.dataset.partition(":")
    settings: dict[str, Any] = {"path": path} if path else {"size": given.size}
    data = datasets.get(kind)(**settings).load()
    order = torch.randperm(len(data), generator=stream(given.seed, "benchmark"))
    order = order[: given.targets + given.aux]
    images = torch.cat([_resized(data.floats(part), given.size) for part in order.split(64)])
    labels = data.labels[order].long()
    with seeded_generators(given.seed, "benchmark"):
        shape = (images.shape[1], given.size, given.size)
        model = build_model(ModelSettings(name=given.architecture), 0, shape, 10).eval()
    count = given.targets
    with torch.no_grad():
        reps = torch.cat([model.extractor(part) for part in images[:count].split(4)])
    target = Upload(0, 1, (Representations(reps, labels[:count]),))
    seen = Observation(
        threat=threats.get("strong"),
        targets=(target,),
        uploads=(target,),
        broadcasts=(),
        extractors={(0, 1): model.extractor},
        image_shape=shape,
        num_classes=data.num_classes,
        aux=images[count:],
        aux_labels=labels[count:],
    )
    return seen, images[:count]


def _resized(images: Tensor, side: int) -> Tensor:
    if images.shape[-1] == side:
        return images
    size = (side, side)
    resized = F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)
    return resized.clamp(0, 1)


def psnr(images: Tensor, truth: Tensor) -> Tensor:
    """PSNR of each image (n,), in dB."""
    error = (images - truth).square().flatten(1).mean(1)
    return -10 * error.clamp(min=1e-12).log10()


def measured(given: argparse.Namespace, side: int) -> dict[str, Any]:
    """One attack written at one side; in a process of its own."""
    torch.set_num_threads(1)
    seen, truth = observation(given)
    options = {"views": given.views, "victims": 0, "resolution": side, **json.loads(given.options)}
    attack = attacks.get(given.attack)(**options)
    before, began = peak_bytes(), time.process_time()
    found = attack(seen, Context(seed=1))
    spent, grown = time.process_time() - began, peak_bytes() - before
    (artifact,) = seen.targets[0].artifacts
    assert isinstance(artifact, Representations)
    reps = artifact.reps
    drawn = torch.randn(reps.shape, generator=stream(given.seed, "noise"))
    noise = replace(artifact, reps=reps.mean(0) + reps.std(0) * drawn)
    blind = replace(seen, targets=(replace(seen.targets[0], artifacts=(noise,)),))
    unseen = attack(blind, Context(seed=1))
    assert seen.aux is not None
    floor = psnr(seen.aux.mean(0, keepdim=True).expand_as(truth), truth)
    over = psnr(found.images, truth) - floor
    size = Resolution.of(seen.image_shape, side)
    return {
        "attack": given.attack,
        "side": side,
        "processor_s": round(spent, 1),
        "grown_mib": round(grown / 2**20),
        "psnr_db": round(float(psnr(found.images, truth).mean()), 2),
        "floor_db": round(float(floor.mean()), 2),
        "over_floor_db": round(float(over.mean()), 2),
        "over_floor_se": round(float(over.std() / len(over) ** 0.5), 2),
        "noise_db": round(float(psnr(unseen.images, truth).mean()), 2),
        "at_most_db": round(float(psnr(size.enlarge(size.reduce(truth)), truth).mean()), 2),
        "n": len(over),
    }


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("--dataset", default="photos", help="its name, or name:PATH")
    options.add_argument("--size", type=int, default=224, help="side of the images (pixels)")
    options.add_argument("--sides", default="64", help="sides that are written, one after another")
    options.add_argument("--attack", default="linear")
    options.add_argument("--options", default="{}", help="settings of the attack, as JSON")
    options.add_argument("--architecture", default="cnn4")
    options.add_argument("--targets", type=int, default=16)
    options.add_argument("--aux", type=int, default=400, help="auxiliary images")
    options.add_argument("--views", type=int, default=4)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--quick", action="store_true", help="48 pixels, 40 images, 24 a side")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line of JSON for each side."""
    given = parser().parse_args(arguments)
    if given.quick:
        given.size, given.sides, given.aux, given.targets, given.views = 48, "24", 40, 4, 2
    for side in given.sides.split(","):
        print(json.dumps(tools.apart(measured, given, int(side))), flush=True)


if __name__ == "__main__":
    main()
