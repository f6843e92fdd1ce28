"""Deep leakage: the search that DLG and iDLG share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.types import Observation, Reconstruction

from .match import Match, gradient
from .objectives import l2rel
from .search import Tick, lbfgs
from .solve import Answer, check, choose, known, one_hot, solve
from .starts import draw
from .victims import Victim


def deep_leakage(
    observation: Observation,
    context: Context,
    labels: Sequence[Tensor | None],
    *,
    steps: int,
    inner: int,
    restarts: int,
    tolerance: float,
    float64: bool,
    bn: str,
) -> Reconstruction:
    """Minimise ||g - g*||^2 / ||g*||^2 by L-BFGS from up to `restarts` starts per victim.

    A further start is made only while none has come below `tolerance`; the best one is chosen by
    its match. Starts whose match is not finite are counted as diverged.

    Args:
        labels: (B,) of each victim, or None to seek them as free soft labels.
    """
    victims = check(observation, bn)
    size, classes = observation.images_per_target, observation.num_classes
    shape = (size, *observation.image_shape)
    dtype = torch.float64 if float64 else torch.float32
    device = context.device

    def search(members: Sequence[Victim], given: Sequence[Tensor | None], tick: Tick) -> Answer:
        (victim,) = members
        match = Match([victim], gradient, l2rel, bn=bn, device=device, dtype=dtype)
        fixed: Tensor | None = None
        if given[0] is not None:
            fixed = one_hot(known(given), classes, 1).to(device, dtype)
        best: Answer | None = None
        failed = 0
        for number in range(restarts):
            start, scores = (
                draw(members, of, context.seed, "free", restarts=[number], purpose=purpose)
                for of, purpose in ((shape, "start"), ((size, classes), "soft labels"))
            )
            found = lbfgs(
                match,
                start.to(device, dtype),
                fixed,
                (2 * scores - 1).to(device, dtype),
                steps=steps,
                inner=inner,
                tolerance=tolerance,
                tick=tick,
            )
            fit = float(found.fit)
            failed += not math.isfinite(fit)
            if best is None or fit < float(best.fit) or not math.isfinite(float(best.fit)):
                best = choose(found, start, 1)
            if fit < tolerance:
                break
        if best is None:
            raise ValueError("deep leakage needs at least one start")
        return replace(best, failed=torch.tensor([failed]))

    return solve(
        observation,
        context,
        victims,
        labels,
        search,
        steps=steps,
        restarts=restarts,
        chunk=None,
        together=False,
    )
