"""Which coordinates clients sent, where declared noise or rounding came over their mask.

What was not sent holds noise of a known size and nothing else. Numbers of an upload are taken to be
of two kinds, such noise and something longer, and those of the first kind are set to 0 again.
Attacks read masks from what is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedre_privacy.core.artifact_schema import Content, Role
from fedre_privacy.core.artifacts import Artifact, is_one_of
from fedre_privacy.core.channels import Masking, Noise, RandomRounding, Value, usable
from fedre_privacy.core.types import Observation, Upload

from .channels import noise_std

SAID = {Content.LABEL, Content.LABEL_ENCODING, Content.COUNT}
STEPS = 100
TINY = 1e-12
SURE = 10.0
"""Log-likelihood that one mask for all rows must gain over a mask for each."""
DOUBTFUL = 0.2
"""Mean chance of a mistake on a coordinate above which nothing is set to 0."""


def with_masks_shown(observation: Observation) -> Observation:
    """The observation with what noise or rounding made of coordinates that were not sent set to 0.

    Rows of targets are changed as those of the uploads that hold them. Rows that stand in no upload
    are left as they are, and so is everything where no mask was declared, where nothing came over
    it, and where the server sees sums over clients.
    """
    channel = observation.channel
    if channel.round or not _over_masks(usable(channel, "rows")):
        return observation
    shown: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}

    def whole(upload: Upload, artifact: Artifact) -> Artifact:
        rows = _vectors(artifact)
        if rows is None:
            return artifact
        kept = sent_coordinates(channel.rows, rows)
        shown.setdefault((upload.client, upload.round), []).append((rows, kept))
        return _with_rows(artifact, rows * kept)

    def part(target: Upload, artifact: Artifact) -> Artifact:
        rows = _vectors(artifact)
        if rows is None:
            return artifact
        for sent, kept in shown.get((target.client, target.round), []):
            if sent.shape[1] == rows.shape[1]:
                same = (rows[:, None] == sent.to(rows)[None]).all(2)
                if bool(same.any(1).all()):
                    return _with_rows(artifact, rows * kept[same.int().argmax(1)].to(rows))
        return artifact

    uploads = [
        replace(one, artifacts=tuple(whole(one, artifact) for artifact in one.artifacts))
        for one in observation.uploads
    ]
    targets = [
        replace(one, artifacts=tuple(part(one, artifact) for artifact in one.artifacts))
        for one in observation.targets
    ]
    return replace(observation, uploads=tuple(uploads), targets=tuple(targets))


def sent_coordinates(steps: Sequence[Value], rows: Tensor) -> Tensor:
    """Which numbers of the rows (m, d) of an upload hold more than noise, (m, d) bool.

    Rows may lose the same coordinates or each its own; the likelier is taken. All are said to hold
    something where noise drowns what was sent.

    Args:
        steps: what was done to rows, in order, a mask among them.
    """
    kept = torch.ones_like(rows, dtype=torch.bool)
    finite = rows.isfinite().all(1)
    read = rows[finite].double()
    if not len(read):
        return kept
    variance = _variance_of_nothing(steps, rows)
    if variance <= 0:
        return kept
    own, without = _more_than_noise(read.square(), variance, shared=False)
    one, likelihood = _more_than_noise(read.square(), variance, shared=True)
    chance = one if likelihood > without + SURE else own
    told = chance > 0.5
    if bool(told.any()) and float(torch.minimum(chance, 1 - chance).mean()) < DOUBTFUL:
        kept[finite] = told
    return kept


def _over_masks(steps: Sequence[Value]) -> list[Noise | RandomRounding]:
    """Noise and rounding that come after the first mask."""
    first = next((n for n, step in enumerate(steps) if isinstance(step, Masking)), len(steps))
    return [step for step in steps[first:] if isinstance(step, Noise | RandomRounding)]


def _variance_of_nothing(steps: Sequence[Value], rows: Tensor) -> float:
    """Variance of a number that was not sent."""
    variance = 0.0
    for step in _over_masks(steps):
        if isinstance(step, Noise):
            variance += noise_std(step, rows) ** 2
        else:
            most = float(rows.nan_to_num(0.0, 0.0, 0.0).abs().max())
            width = 2 * most / (step.levels - 1)
            between = (step.levels - 1) / 2 % 1  # where 0 lies between two levels
            variance += width**2 * (1 / 6 if variance else between * (1 - between))
    return variance


def _more_than_noise(power: Tensor, variance: float, *, shared: bool) -> tuple[Tensor, float]:
    """Chance (m, d) that numbers were sent, and the log-likelihood of all, by EM.

    Of what was sent a part is noise too, since many features are 0.

    Args:
        power: squares (m, d) of numbers. variance: of noise.
        shared: all rows lose the same coordinates.
    """
    share, part = (0.5 if shared else 1.0), 0.5
    longer = max(2 * float(power.mean()) - variance, 1.1 * variance)
    silent = -0.5 * (math.log(variance) + power / variance)
    for _ in range(STEPS):
        noise = silent + _log(1 - part)
        more = -0.5 * (math.log(longer) + power / longer) + _log(part)
        either = torch.logaddexp(noise, more)
        filled = either.sum(0) + _log(share)
        empty = silent.sum(0) + _log(1 - share)
        column = torch.sigmoid(filled - empty) if shared else torch.ones_like(filled)
        single = column * torch.sigmoid(more - noise)
        share = float(column.mean())
        part = float(single.sum() / (len(power) * column.sum()).clamp(min=TINY))
        longer = max(float((single * power).sum() / single.sum().clamp(min=TINY)), variance)
    if shared:
        return column.expand_as(power), float(torch.logaddexp(filled, empty).sum())
    return single, float(either.sum())


def _log(value: float) -> float:
    return math.log(max(value, TINY))


def _vectors(artifact: Artifact) -> Tensor | None:
    """The vectors of an artifact that holds one tensor of them, None of others."""
    if not is_one_of(type(artifact), (Role.VECTORS,)):
        return None
    return artifact.rows() if len(_values(artifact)) == 1 else None


def _values(artifact: Artifact) -> list[str]:
    """Names of tensors that are neither labels nor counts."""
    return [name for name, content in artifact.content().items() if content not in SAID]


def _with_rows(artifact: Artifact, rows: Tensor) -> Artifact:
    """The artifact with other vectors in place of `Artifact.rows`."""
    (name,), old = _values(artifact), artifact.tensors()
    return type(artifact).from_tensors({**old, name: rows.reshape(old[name].shape).to(old[name])})
