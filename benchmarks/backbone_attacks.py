"""What attacks read of pictures from single representations of a frozen public backbone.

    python benchmarks/backbone_attacks.py --out attacks.csv
    python benchmarks/backbone_attacks.py --data FILE.npz --places 3x8 --seeds 4 5 --out attacks.csv

Targets, public images and those behind the floors are drawn as backbone_depth.py draws them. A row
of the file is an attack with its defaults, a place in the backbone, a number of public images and a
seed; what has a row is not computed again. ``each`` are the PSNR of single targets (dB), so that
attacks on the same targets can be compared in pairs. ``other`` is the control: answers are held
against another target's image. Processor seconds are of one thread; the first attack at a place
computes the features of public images, and later ones find them. The table has means over all
targets of all seeds, and the paired difference to `linear` with its 95 % interval (Student's t).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from backbone_depth import Drawn, Place, draw, place_of, scored
from tools import RowsFile, options
from torch import Tensor

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.core.artifacts import Representations
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.data.base import ImageData
from fedre_privacy.data.digits import Digits
from fedre_privacy.data.npz import Npz
from fedre_privacy.eval.intervals import cluster_means
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.threats.base import threats

ATTACKS = ("linear", "decoder", "diffusion", "ensemble-kalman")
FIELDS = (
    "backbone", "size", "depth", "grid", "values", "public", "attack", "change", "seed", "n",
    "psnr", "floor", "over", "low", "high", "found", "guess", "colour", "layout", "detail",
    "seconds", "each",
)  # fmt: skip


def observation(
    asked: argparse.Namespace, place: Place, data: ImageData, drawn: Drawn
) -> Observation:
    """Representations of the targets behind a place, as a server with public images sees them."""
    given = {"depth": place.depth, "grid": place.grid} if place.depth >= 0 else {}
    settings = ModelSettings(name=asked.backbone, size=asked.size, trainable="head", **given)
    model = build_model(settings, 0, data.image_shape, data.num_classes).eval()
    with torch.no_grad():
        reps = model.extractor(drawn.targets)
    target = Upload(0, 1, (Representations(reps, drawn.labels),))
    return Observation(
        threat=threats.get("public-backbone"),
        targets=(target,),
        uploads=(target,),
        broadcasts=(),
        extractors={(0, 1): model.extractor},
        image_shape=data.image_shape,
        num_classes=data.num_classes,
        aux=drawn.public,
        aux_labels=drawn.public_labels,
    )


def answers_of(name: str, seen: Observation, seed: int) -> tuple[Tensor, float]:
    """Images (n, C, H, W) that an attack with its defaults answers, and its processor seconds."""
    settings = {"victims": 0} if name == "linear" else {}
    began = time.process_time()
    found = attacks.get(name)(**settings)(seen, Context(seed=seed))
    assert isinstance(found, Reconstruction)
    return found.images, time.process_time() - began


def rows_of(name: str, seen: Observation, drawn: Drawn, seed: int) -> list[dict[str, object]]:
    """Scores of an attack, and of its answers held against the images of other targets."""
    images, seconds = answers_of(name, seen, seed)
    mean = drawn.public.mean(0, keepdim=True)
    rows = []
    for change, answers in (("none", images), ("other", images.roll(1, 0))):
        error = (answers - drawn.targets).square().flatten(1).mean(1).clamp(min=1e-12)
        each = " ".join(f"{value:.3f}" for value in (-10 * error.log10()).tolist())
        named = {"attack": name, "change": change, "seed": seed, "seconds": round(seconds, 1)}
        rows.append(named | {"each": each} | scored(answers, drawn, mean, seed))
    return rows


def table(asked: argparse.Namespace) -> pd.DataFrame:
    """A row for each place and attack, over the seeds of what was asked for in the file."""
    rows, one_setting = pd.read_csv(asked.out), ["backbone", "size", "public"]
    rows = rows[(rows[one_setting] == [getattr(asked, key) for key in one_setting]).all(axis=1)]
    rows = rows.set_index(["depth", "grid", "attack", "change"]).sort_index()
    lines = []
    for place, at in rows.groupby(["depth", "grid"], sort=False):
        known = at.droplevel(["depth", "grid"])
        linear = known.loc[[("linear", "none")]] if ("linear", "none") in known.index else None
        for attack in [one for one in ATTACKS if (one, "none") in known.index]:
            own, control = known.loc[[(attack, "none")]], known.loc[[(attack, "other")]]
            over, wrong = (one["psnr"] - one["floor"] for one in (own, control))
            lines.append(
                {
                    "after": "whole" if place[0] < 0 else f"block {place[0]}",
                    "cells": f"{place[1]}x{place[1]}",
                    "values": own["values"].iloc[0],
                    "attack": f"`{attack}`",
                    "seeds": len(own),
                    "n": own["n"].sum(),
                    "PSNR over the floor (dB)": f"{over.mean():+.2f}",
                    "floor (dB)": f"{own['floor'].mean():.2f}",
                    "over `linear` (dB)": _more(own, None if attack == "linear" else linear),
                    "found among 100 (%)": f"{100 * own['found'].mean():.0f}",
                    "control over the floor (dB)": f"{wrong.mean():+.2f}",
                    f"seconds of {own['n'].iloc[0]} targets": f"{own['seconds'].min():.0f}",
                }
            )
    return pd.DataFrame(lines)


def _more(own: pd.DataFrame, linear: pd.DataFrame | None) -> str:
    """Mean difference of the same targets, with its interval; empty without `linear`."""
    if linear is None:
        return ""
    pairs = own.reset_index().merge(linear.reset_index(), on="seed", suffixes=("", "_linear"))
    gaps = [
        float(one) - float(other)
        for _, row in pairs.iterrows()
        for one, other in zip(row["each"].split(), row["each_linear"].split(), strict=True)
    ]
    found = cluster_means(torch.tensor(gaps)[:, None], torch.arange(len(gaps)))
    low, high = (float(bound) for bound in found.interval())
    return f"{float(found.mean):+.2f} [{low:+.2f}, {high:+.2f}]"


def parser() -> argparse.ArgumentParser:
    """Its options."""
    made = options(__doc__)
    made.add_argument("--data", type=Path, help="npz file of images; none: the built-in digits")
    made.add_argument("--backbone", default="efficientnet-lite0")
    made.add_argument("--size", type=int, default=64, help="height and width inside (pixels)")
    made.add_argument("--public", type=int, default=620, help="public images")
    made.add_argument("--targets", type=int, default=12)
    made.add_argument("--floors", type=int, default=1000, help="images behind the floors")
    made.add_argument(
        "--places", type=place_of, nargs="+", default=[Place(-1), Place(3, 8)],
        metavar="DEPTHxGRID",
    )  # fmt: skip
    made.add_argument("--attacks", nargs="+", default=ATTACKS, choices=ATTACKS, metavar="NAME")
    made.add_argument("--seeds", type=int, nargs="+", default=[4, 5])
    made.add_argument("--out", type=Path, required=True, help="CSV file; its rows are kept")
    made.add_argument("--table", type=Path, help="CSV file for means over seeds")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute what the file lacks."""
    asked = parser().parse_args(arguments)
    torch.set_num_threads(1)
    data = Npz(path=str(asked.data)).load() if asked.data else Digits(size=32).load()
    key = ("backbone", "size", "public", "seed", "depth", "grid", "attack")
    file = RowsFile(asked.out, FIELDS, key)
    done = file.done()
    for seed in asked.seeds:
        drawn = draw(data, seed, asked.targets, asked.floors, asked.public)
        for place in asked.places:
            seen = observation(asked, place, data, drawn)
            place_named: dict[str, object] = {
                "backbone": asked.backbone, "size": asked.size, "public": len(drawn.public),
                "seed": seed, "depth": place.depth, "grid": place.grid,
            }  # fmt: skip
            for name in asked.attacks:
                if (*map(str, place_named.values()), name) in done:
                    continue
                rows = rows_of(name, seen, drawn, seed)
                width = seen.target_rows()[0].shape[1]
                file.add([place_named | {"values": width} | row for row in rows])
                row = rows[0]
                print(
                    f"block {place.depth}, {place.grid}x{place.grid}, {name}, seed {seed}: "
                    f"{row['psnr']} dB, floor {row['floor']}, found {row['found']}, "
                    f"{row['seconds']} s",
                    flush=True,
                )
    if asked.table:
        table(asked).to_csv(asked.table, index=False)


if __name__ == "__main__":
    main()
