"""Deep leakage: the search that DLG and iDLG share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation

from ..running.channels import update_as_sent
from ..running.driver import Tick
from .explained import updates_explained
from .match import UpdateMatch, gradient
from .objectives import l2rel
from .restarts import choose
from .search import lbfgs
from .signed import by_trial
from .solve import Answer, batch_labels, check, known, one_hot, solve
from .starts import draw
from .victims import BN_MODES, Victim


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """Settings that `dlg` and `idlg` share."""

    steps: int = knob(200, help="outer L-BFGS steps per start", ge=1)
    inner: int = knob(20, help="inner steps of each", ge=1)
    restarts: int = knob(4, help="starts tried until one matches", ge=1)
    tolerance: float = knob(1e-7, help="relative match that counts as found", gt=0)
    float64: bool = knob(True, help="double precision")
    bn: str = knob(
        "auto",
        help="BatchNorm by running (eval) or batch statistics; auto: as the upload or the module's "
        "mode tells, else batch; either: the one that explains more in a short search",
        choices=BN_MODES,
        later=True,
    )

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        """See `updates_explained`."""
        return updates_explained(observation, images, labels, bn=self.bn)


def deep_leakage(
    observation: Observation, context: Context, labels: Sequence[Tensor | None], how: Leakage
) -> Reconstruction:
    """Minimise ||g - g*||^2 / ||g*||^2 by L-BFGS from up to `restarts` starts per victim.

    A further start is made only while none has come below `tolerance`; the best one is chosen by
    its match. Starts whose match is not finite are counted as diverged.

    Args:
        labels: (B,) of each victim, or None to seek them as free soft labels.
    """
    victims = check(observation, how.bn)
    size, classes = observation.images_per_target, observation.num_classes
    shape = (size, *observation.image_shape)
    dtype = torch.float64 if how.float64 else torch.float32
    device = context.device

    def match_of(rows: Sequence[Victim], precision: torch.dtype = torch.float32) -> UpdateMatch:
        return UpdateMatch(
            rows,
            gradient,
            l2rel,
            bn=rows[0].statistics,
            sent=update_as_sent(observation.channel),
            device=device,
            dtype=precision,
        )

    if how.bn == "either":
        tried = batch_labels(observation, victims, "joint")
        victims = by_trial(victims, tried, match_of, observation, context)

    def search(members: Sequence[Victim], given: Sequence[Tensor | None], tick: Tick) -> Answer:
        match = match_of(members, dtype)
        fixed: Tensor | None = None
        if given[0] is not None:
            fixed = one_hot(known(given), classes, 1).to(device, dtype)
        best: Answer | None = None
        failed = 0
        for number in range(how.restarts):
            start, scores = (
                draw(members, of, context.seed, "free", restarts=[number], purpose=purpose)
                for of, purpose in ((shape, "start"), ((size, classes), "soft labels"))
            )
            found = lbfgs(
                match,
                start.to(device, dtype),
                fixed,
                (2 * scores - 1).to(device, dtype),
                steps=how.steps,
                inner=how.inner,
                tolerance=how.tolerance,
                tick=tick,
            )
            fit = float(found.fit)
            failed += not math.isfinite(fit)
            if best is None or fit < float(best.fit) or not math.isfinite(float(best.fit)):
                one = choose(found, start, 1)
                best = one if best is None else replace(one, prior=best.prior)
            if fit < how.tolerance:
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
        steps=how.steps,
        restarts=how.restarts,
        chunk=None,
        together=False,
    )
