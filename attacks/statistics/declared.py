"""What clients declared to do to class statistics, undone or taken into account.

The eigenvalues and eigenvectors of a matrix with normal noise follow Benaych-Georges, Nadakuditi,
The eigenvalues and eigenvectors of finite, low rank perturbations of large random matrices,
Advances in Mathematics 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.channels import LeastCount, NoisySums, Shrinkage, Statistic, StepsAt
from fedre_privacy.core.class_sums import shrunk, spread_of
from fedre_privacy.core.types import Observation

from .spans import Array

ROUNDING = {torch.float16: 5e-4, torch.bfloat16: 4e-3}
FINE = 1e-6
"""Relative error of statistics that are not rounded to 16 bits."""
MARGIN = 4.0
"""By how much an eigenvalue must exceed what rounding makes of 0."""


def error_of(sent: ClassStatistics) -> float:
    """Relative error of statistics by the types that they are of, or that would hold them too."""
    return max(_rounding(sent.means), *map(_rounding, sent.spread.values()))


def _rounding(values: Tensor) -> float:
    if values.dtype in ROUNDING:
        return ROUNDING[values.dtype]
    for kind, error in ROUNDING.items():
        if bool((values.to(kind).to(values.dtype) == values).all()) and values.numel() > 1:
            return error
    return FINE


def without_shrinkage(
    sent: ClassStatistics, steps: Sequence[Statistic]
) -> tuple[ClassStatistics, float]:
    """Statistics in float64 with declared shrinkage undone, and by what it magnifies errors."""
    spread = {form: values.double() for form, values in sent.spread.items()}
    made, gain = ClassStatistics(sent.means.double(), sent.counts, sent.labels, spread), 1.0
    for step in reversed(steps):
        if not isinstance(step, Shrinkage):
            continue
        if step.share == 1:
            made = _all_that_is_left(made, step.towards)
        else:
            made = shrunk(made, -step.share / (1 - step.share), step.towards)
            gain /= 1 - step.share
    return made, gain


def _all_that_is_left(sent: ClassStatistics, towards: str) -> ClassStatistics:
    """Covariances of classes in the form that they were shrunk to altogether."""
    form, values = spread_of(sent)
    if form != "full":
        return sent
    variances = values.diagonal(dim1=-2, dim2=-1)
    spread = {"diagonal": variances} if towards == "diagonal" else {"spherical": variances.mean(-1)}
    return ClassStatistics(sent.means, sent.counts, sent.labels, spread)


def noise_among(steps: Sequence[Statistic]) -> NoisySums | None:
    """The declared noise on sums, if there is one."""
    return next((step for step in steps if isinstance(step, NoisySums)), None)


def hides_classes(steps: Sequence[Statistic], form: str) -> bool:
    """Whether samples of classes that were left out are in the one covariance of all.

    That can be seen of a moment about 0, whose rank is the number of samples.
    """
    return form == "moment" and any(isinstance(step, LeastCount) for step in steps)


def steps_used(observation: Observation, steps: StepsAt, *, spans_alone: bool = False) -> StepsAt:
    """Those steps on statistics that change something in the forms that the targets have.

    Args:
        spans_alone: of a covariance that is not diagonal its largest eigenvectors are used alone,
            unless it has full rank; shrinkage towards the identity leaves them as they are, and
            noise is known of them alone.
    """
    sent = [a for u in observation.targets for a in u.artifacts if isinstance(a, ClassStatistics)]
    forms = {form for one in sent for form in one.spread}
    kinds = steps.get("statistics", ())
    if forms <= {"diagonal", "spherical"}:
        kinds = tuple(kind for kind in kinds if kind is not Shrinkage)
    spans = forms - {"diagonal", "spherical"} and any(
        float(one.counts.sum()) < one.means.shape[1] for one in sent
    )
    if spans_alone and not spans:
        kinds = tuple(kind for kind in kinds if kind is not NoisySums)
    shrinks = [s for s in observation.channel.statistics if isinstance(s, Shrinkage)]
    boxes = forms & {"diagonal", "spherical"} or any(
        float(one.counts.sum()) >= one.means.shape[1] for one in sent
    )
    if spans_alone and not boxes and all(step.towards == "identity" for step in shrinks):
        kinds = tuple(kind for kind in kinds if kind is not Shrinkage)
    if "moment" not in forms:
        kinds = tuple(kind for kind in kinds if kind is not LeastCount)
    return {**steps, "statistics": kinds} if "statistics" in steps else steps


def samples_behind(moment: Tensor, level: float) -> int:
    """Number of samples behind a second moment (d, d), which is its rank, at most d.

    Args:
        level: relative error of its values.
    """
    values = torch.linalg.eigvalsh(moment)
    least = MARGIN * level * float(moment.norm()) / math.sqrt(len(moment))
    return int((values > least).sum())


def strengths(values: Array, noise: float) -> tuple[Array, Array]:
    """Eigenvalues (r,) before noise came to the matrix, and how much of each eigenvector is left.

    Args:
        noise: half of the largest eigenvalue that the noise alone has.

    Returns:
        eigenvalues, and squared cosines between eigenvectors with and without noise, in [0, 1].
    """
    before = (values + np.sqrt(np.maximum(np.square(values) - 4 * noise**2, 0))) / 2
    kept = 1 - np.square(noise / np.maximum(before, max(noise, 1e-300)))
    return before, np.where(before > noise, kept, 0.0)


def noise_edge(step: NoisySums, dim: int) -> float:
    """Half of the largest eigenvalue of the noise on a sum of outer products (d, d)."""
    return step.outer * math.sqrt(dim / 2)
