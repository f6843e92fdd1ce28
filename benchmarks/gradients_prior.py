"""What is it worth to gradient matching to know what images are like, at equal processor time?

    python benchmarks/gradients_prior.py --data FILE.npz --out prior.csv
        [--seeds 21,22,23] [--sizes 8,1] [--victims 2,2] [--warm-up 400] [--steps 200]

`inverting-gradients` with `prior=public`, which holds 600 images of the second half of FILE.npz,
and with `prior=smooth`, the default, which gets a tenth more iterations, since an iteration takes
less time. For each seed a cnn4, untrained and after `--warm-up` steps, and `--victims` gradients of
`--sizes` images of the first half, others for each seed. The weight was chosen on other images and
networks. A row for each image; a table is printed. What is in --out is not measured again.
"""

from __future__ import annotations

import math
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from gradients import (
    AUX,
    BN,
    Images,
    Pairs,
    batches,
    beside_floor,
    gradient,
    load,
    observe,
    train,
    zoo,
)
from tools import RowsFile, options
from torch import nn

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.core.artifacts import GradientState
from fedre_privacy.eval.intervals import cluster_means
from fedre_privacy.threats.base import threats

MORE = {"smooth": 1.1, "public": 1.0}
"""Iterations of each way, in those asked for."""
SCORES = ("psnr", "ssim", "hit")
KEY = ("network", "size", "seed", "way")
FIELDS = (*KEY, "accuracy", "victim", *SCORES, "floor", "seconds")


def attacked(
    model: nn.Module, pairs: Pairs, data: Images, way: str, asked: Namespace
) -> list[dict[str, float]]:
    """Scores of every image, and processor seconds of all."""
    size = len(pairs[0][1])
    public = data.public
    observation = replace(
        observe(model, [GradientState(gradient(model, x, y)) for x, y in pairs], size),
        threat=threats.get("strong"),
        aux=public.images[:AUX],
        aux_labels=public.labels[:AUX],
    )
    attack = attacks.get("inverting-gradients")(
        bn=BN, prior=way, steps=math.ceil(MORE[way] * asked.steps)
    )
    begun = time.process_time()
    found = attack(observation, Context())
    seconds = time.process_time() - begun
    ours, floor = beside_floor(found, pairs, data)
    return [
        {
            "victim": row // size,
            **{name: round(float(ours[name][row]), 4) for name in SCORES},
            "floor": round(float(floor["psnr"][row]), 4),
            "seconds": round(seconds, 2),
        }
        for row in range(len(found.images))
    ]


def told(values: torch.Tensor, units: torch.Tensor) -> str:
    """A mean with its 95 % interval over victims."""
    low, high = cluster_means(values[:, None], units).interval()
    return f"{float(values.mean()):+.2f} [{float(low):+.2f}, {float(high):+.2f}]"


def summary(rows: pd.DataFrame) -> str:
    """A line for each network and size of batch."""
    lines = []
    for (network, size), some in rows.groupby(["network", "size"], sort=False):
        parts = {
            way: part.sort_values(["seed", "victim"], kind="stable").reset_index(drop=True)
            for way, part in some.groupby("way")
        }
        if len(parts) < len(MORE):
            continue
        smooth, public = parts["smooth"], parts["public"]
        units = torch.tensor(public.groupby(["seed", "victim"]).ngroup().to_numpy())
        gains = torch.tensor((public.psnr - smooth.psnr).to_numpy())
        by_seed = (public.psnr - smooth.psnr).groupby(public.seed).mean()
        lines.append(
            f"{network}, {size} images, n {len(public)} ({units.max() + 1} victims), floor "
            f"{public.floor.mean():.2f}\n    smooth {smooth.psnr.mean():.2f} dB, SSIM "
            f"{smooth.ssim.mean():.3f}, found {smooth.hit.mean():.0%}; public "
            f"{public.psnr.mean():.2f}, {public.ssim.mean():.3f}, {public.hit.mean():.0%}; gain "
            f"{told(gains, units)} dB, seeds {', '.join(f'{one:+.2f}' for one in by_seed)}, SSIM "
            f"{told(torch.tensor((public.ssim - smooth.ssim).to_numpy()), units)}; seconds "
            f"{smooth.groupby('seed').seconds.first().sum():.0f} and "
            f"{public.groupby('seed').seconds.first().sum():.0f}; accuracy "
            f"{', '.join(f'{one:.0%}' for one in public.groupby('seed').accuracy.first())}"
        )
    return "\n".join(lines)


def parser() -> ArgumentParser:
    """The command line."""
    made = options(__doc__)
    made.add_argument("--data", required=True, metavar="FILE.npz")
    made.add_argument("--out", type=Path, default=Path("prior.csv"), help="rows of images")
    made.add_argument("--seeds", default="21,22,23", help="of networks, comma list")
    made.add_argument("--networks", default="untrained,trained", help="comma list")
    made.add_argument("--sizes", default="8,1", help="images of a gradient, comma list")
    made.add_argument("--victims", default="2,2", help="of each seed and size, comma list")
    made.add_argument("--warm-up", type=int, default=400, help="steps of training, of 32 images")
    made.add_argument("--steps", type=int, default=200, help="iterations with public images")
    made.add_argument("--tuning", action="store_true", help="attack images to tune on")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as the command line says and print the table."""
    asked = parser().parse_args(arguments)
    torch.set_num_threads(1)
    data, file = load(asked.data), RowsFile(asked.out, FIELDS, KEY)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    sizes = list(zip(asked.sizes.split(","), asked.victims.split(","), strict=True))
    for network, (place, seed) in product(asked.networks.split(","), enumerate(seeds)):
        left = [
            (size, int(count), way)
            for (size, count), way in product(sizes, MORE)
            if (network, size, str(seed), way) not in file.done()
        ]
        model, right = zoo("cnn4", seed), math.nan
        if left and network == "trained":
            right = train(model, data, asked.warm_up)
        for size, count, way in left:
            drawn = batches(data, len(seeds) * count, int(size), tuning=asked.tuning)
            pairs = drawn[place * count : (place + 1) * count]
            made = attacked(model, pairs, data, way, asked)
            key = {"network": network, "size": size, "seed": seed, "way": way}
            file.add([{**key, "accuracy": right, **row} for row in made])
            db = sum(row["psnr"] for row in made) / len(made)
            print(*key.values(), f"{db:.2f} dB, {made[0]['seconds']:.0f} s", flush=True)
    print(summary(pd.read_csv(asked.out)))


if __name__ == "__main__":
    main()
