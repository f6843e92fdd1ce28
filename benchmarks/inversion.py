"""How much faster is attacking many targets at once than one after another?

Runs the same attack on the same targets both ways in one process and prints ratios, which hold
on a noisy machine where single times do not. Usage: python benchmarks/inversion.py [--targets 8,16]
"""

from __future__ import annotations

import argparse
import platform
import time

import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.core.rng import seeded
from fedre_privacy.core.types import (
    THREAT_MODELS,
    Observation,
    Representations,
    Upload,
)
from fedre_privacy.data.photos import Photos
from fedre_privacy.models.families import ModelSettings, build_model


def observation(count: int, size: int, architecture: str, device: torch.device) -> Observation:
    """Representations of `count` photograph crops through an untrained extractor."""
    data = Photos(size=size, per_photo=max(2, count // 4)).load()
    images = data.floats(torch.arange(0, len(data), max(1, len(data) // count))[:count])
    with seeded(0, "benchmark"):
        model = build_model(ModelSettings(name=architecture), 0, data.image_shape, 10).eval()
    with torch.no_grad():
        reps = model.extractor(images)
    upload = Upload(0, 1, (Representations(reps, torch.zeros(count, dtype=torch.int64)),))
    return Observation(
        threat=THREAT_MODELS["fedre-paper"],
        targets=(upload,),
        uploads=(),
        broadcasts=(),
        extractors={(0, 1): model.extractor},
        image_shape=data.image_shape,
        num_classes=10,
    )


def one_by_one(attack: DeepImagePrior, obs: Observation, context: Context) -> None:
    """The plain way: a loop over targets."""
    reps = obs.targets[0].artifacts[0].rows()
    assert reps is not None
    for row in reps.split(1):
        upload = Upload(0, 1, (Representations(row, torch.zeros(1, dtype=torch.int64)),))
        alone = Observation(
            obs.threat, (upload,), (), (), obs.extractors, obs.image_shape, obs.num_classes
        )
        attack(alone, context)


def main() -> None:
    """Print a table of ratios."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--targets", default="8,16")
    options.add_argument("--sizes", default="32")
    options.add_argument("--architectures", default="cnn4")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = options.parse_args()
    device = torch.device(chosen.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    print(f"torch {torch.__version__} on {name or device} ({torch.get_num_threads()} threads)")
    print(
        f"{'extractor':<12}{'px':>4}{'targets':>9}{'loop it/s':>11}{'batch it/s':>12}{'ratio':>8}"
    )
    attack = DeepImagePrior(steps=chosen.steps)
    context = Context(device=device)
    for architecture in chosen.architectures.split(","):
        for size in map(int, chosen.sizes.split(",")):
            for count in map(int, chosen.targets.split(",")):
                obs = observation(count, size, architecture, device)
                attack(obs, context)
                ratios, rates = [], (0.0, 0.0)
                for _ in range(chosen.repeats):
                    started = time.perf_counter()
                    one_by_one(attack, obs, context)
                    middle = time.perf_counter()
                    attack(obs, context)
                    loop, batch = middle - started, time.perf_counter() - middle
                    ratios.append(loop / batch)
                    rates = (count * chosen.steps / loop, count * chosen.steps / batch)
                median = sorted(ratios)[len(ratios) // 2]
                print(
                    f"{architecture:<12}{size:>4}{count:>9}{rates[0]:>11.0f}{rates[1]:>12.0f}"
                    f"{median:>8.2f}"
                )


if __name__ == "__main__":
    main()
