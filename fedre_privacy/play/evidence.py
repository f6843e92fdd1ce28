"""What can be said of recovered images where no truth is given: how well each explains its target.

A small residual means that the attack did what it was asked, not that the image is right.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.types import Observation, Reconstruction

WORDS = {
    "residual": "residual to the own target",
    "mismatched": "residual to other targets (mean)",
    "matched - mismatched": "matched minus mismatched",
    "grey": "residual of a grey image",
}
"""Rows of the table of evidence."""


@torch.no_grad()
def evidence(observation: Observation, outcome: Reconstruction) -> pd.DataFrame:
    """Relative squared distances of representations: own target, others of the client, grey.

    Distances are ||f(x) - r||^2 / ||r||^2. Columns: target, client, label, residual, mismatched
    (mean over the client's other targets, NaN for an only one), mismatched_least, grey, fit.
    """
    rows, owners = observation.target_rows()
    rows = rows.double()
    labels = torch.cat(
        [
            own if isinstance(own := getattr(a, "labels", None), Tensor) else torch.tensor([-1])
            for u in observation.targets
            for a in u.artifacts
        ]
    )
    out = []
    seen = torch.full_like(rows, torch.nan)
    grey = torch.empty_like(rows)
    for owner in dict.fromkeys(owners):
        index = torch.tensor([i for i, other in enumerate(owners) if other == owner])
        extractor = observation.extractors[owner].cpu()
        images = outcome.images[index].float()
        seen[index] = extractor(images.nan_to_num(0.5)).double()
        grey[index] = extractor(torch.full_like(images[:1], 0.5)).double()
    seen[~outcome.images.flatten(1).isfinite().all(1)] = torch.nan
    power = rows.square().sum(1).clamp(min=1e-30)
    distance = torch.cdist(seen, rows).square() / power
    for i, owner in enumerate(owners):
        others = [float(distance[i, j]) for j, o in enumerate(owners) if o == owner and j != i]
        out.append(
            {
                "target": i,
                "client": owner[0],
                "label": int(labels[i]),
                "residual": float(distance[i, i]),
                "mismatched": float(np.mean(others)) if others else float("nan"),
                "mismatched_least": min(others) if others else float("nan"),
                "grey": float((grey[i] - rows[i]).square().sum() / power[i]),
                "fit": float(outcome.fit[i]),
            }
        )
    return pd.DataFrame(out)


def evidence_table(rows: pd.DataFrame) -> list[dict[str, str]]:
    """Median, least and greatest residual of all targets, from `evidence`."""
    own, grey = rows["residual"], rows["grey"]
    others = rows["mismatched"].dropna()
    gap = (rows["mismatched"] - own).dropna()
    named = {"residual": own, "mismatched": others, "matched - mismatched": -gap, "grey": grey}
    return [
        {
            "evidence": WORDS[name],
            "median": _short(values.median()),
            "lowest": _short(values.min()),
            "highest": _short(values.max()),
            "n": str(values.notna().sum()),
        }
        for name, values in named.items()
    ]


def explained(rows: pd.DataFrame) -> str:
    """How many answers explain their own target best, from `evidence`."""
    usable = rows.dropna(subset=["residual", "mismatched"])
    nearest = int((usable["residual"] < usable["mismatched_least"]).sum())
    return (
        f"{nearest} of {len(usable)} answers explain their own target better than any other of "
        "the client; that does not say how near the images are"
    )


def _short(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.4g}"
