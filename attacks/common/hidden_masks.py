"""Which numbers clients sent, where declared noise or rounding came over their mask.

What was not sent holds noise of a known size and nothing else. Numbers of an upload are taken to be
of two kinds, such noise and something longer, and those of the first kind are set to 0 again, or to
what the client had received. Attacks read masks from what is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.core.artifact_schema import Content, Role
from fedre_privacy.core.artifacts import Artifact, is_one_of
from fedre_privacy.core.channels import Channel, Masking, Noise, RandomRounding, Value, usable
from fedre_privacy.core.types import Observation, Upload

from .channels import noise_std
from .client_messages import received_by

SAID = {Content.LABEL, Content.LABEL_ENCODING, Content.COUNT}
STEPS = 100
LOOKED_AT = 20_000
"""Numbers of an update from which the two kinds are learnt, at most."""
TINY = 1e-12
SURE = 10.0
"""Log-likelihood that one mask for all rows must gain over a mask for each."""
DOUBTFUL = 0.2
"""Mean chance of a mistake on a number above which nothing is set to 0."""


def with_masks_shown(observation: Observation) -> Observation:
    """The observation with what noise or rounding made of numbers that were not sent taken away.

    Rows of targets are changed as those of the uploads that hold them. Rows that stand in no upload
    are left as they are, and so is everything where no mask was declared, where nothing came over
    it, and where the server sees sums over clients.
    """
    channel = observation.channel
    over = {place: _over_masks(usable(channel, place)) for place in ("rows", "updates")}
    if channel.round or not any(over.values()):
        return observation
    shown: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}

    def whole(upload: Upload, artifact: Artifact) -> Artifact:
        rows = _vectors(artifact)
        if rows is not None and over["rows"]:
            kept = sent_numbers(channel.rows, rows)
            shown.setdefault((upload.client, upload.round), []).append((rows, kept))
            return _with_rows(artifact, rows * kept)
        if over["updates"]:
            return _update_shown(observation, channel, upload, artifact)
        return artifact

    def part(target: Upload, artifact: Artifact) -> Artifact:
        rows = _vectors(artifact)
        for sent, kept in shown.get((target.client, target.round), []):
            if rows is not None and sent.shape[1] == rows.shape[1]:
                same = (rows[:, None] == sent.to(rows)[None]).all(2)
                if bool(same.any(1).all()):
                    return _with_rows(artifact, rows * kept[same.int().argmax(1)].to(rows))
        if over["updates"]:
            return _update_shown(observation, channel, target, artifact)
        return artifact

    uploads = _each(observation.uploads, whole)
    return replace(observation, uploads=uploads, targets=_each(observation.targets, part))


def sent_numbers(steps: Sequence[Value], rows: Tensor) -> Tensor:
    """Which numbers of the rows (m, d) of an upload hold more than noise, (m, d) bool.

    Rows may lose the same coordinates or each its own; the likelier is taken. All are said to hold
    something where noise drowns what was sent.

    Args:
        steps: what was done to rows, in order, a mask among them.
    """
    kept = torch.ones_like(rows, dtype=torch.bool)
    finite = rows.isfinite().all(1)
    power = rows[finite].double().square()
    if not len(power):
        return kept
    variance = _variance_of_nothing(steps, rows)
    if variance <= 0:
        return kept
    own, one = (_more_than_noise(power, variance, shared=shared) for shared in (False, True))
    found = one if one.likelihood > own.likelihood + SURE else own
    if found.told:
        kept[finite] = found.chance > 0.5
    return kept


def _update_shown(
    observation: Observation, channel: Channel, upload: Upload, artifact: Artifact
) -> Artifact:
    """An artifact of parameters or gradients with numbers that were not sent as received, or 0."""
    if not is_one_of(type(artifact), (Role.TRAINED,)):
        return artifact
    sent = {n: t for n, t in artifact.tensors().items() if t.is_floating_point()}
    before = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    if is_one_of(type(artifact), (Role.STARTED_FROM,)):
        messages = received_by(observation, upload.client).get(upload.round, ())
        received = [one.tensors() for one in messages if type(one) is type(artifact)]
        if len(received) != 1 or not sent.keys() <= received[0].keys():
            return artifact
        before = {name: received[0][name].to(tensor) for name, tensor in sent.items()}
    power = torch.cat([(t - before[n]).flatten().double().square() for n, t in sent.items()])
    looked = power[:: -(-len(power) // LOOKED_AT)][None]
    variance = _variance_of_nothing(channel.updates, power[None])
    if variance <= 0 or not bool(power.isfinite().all()):
        return artifact
    found = _more_than_noise(looked, variance, shared=False)
    if not found.told:
        return artifact
    kept = (power > found.limit).split([tensor.numel() for tensor in sent.values()])
    shown = {
        name: torch.where(own.reshape(tensor.shape), tensor, before[name])
        for (name, tensor), own in zip(sent.items(), kept, strict=True)
    }
    return type(artifact).from_tensors({**artifact.tensors(), **shown})


def _each(
    uploads: Sequence[Upload], change: Callable[[Upload, Artifact], Artifact]
) -> tuple[Upload, ...]:
    return tuple(
        replace(one, artifacts=tuple(change(one, artifact) for artifact in one.artifacts))
        for one in uploads
    )


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


@dataclass(frozen=True, eq=False)
class _Split:
    """Numbers of two kinds.

    Args:
        chance: that a number was sent, (m, d). likelihood: log-likelihood of all.
        limit: square above which a number alone was rather sent than not.
    """

    chance: Tensor
    likelihood: float
    limit: float

    @property
    def told(self) -> bool:
        """Whether they can be told apart."""
        doubt = float(torch.minimum(self.chance, 1 - self.chance).mean())
        return doubt < DOUBTFUL and bool((self.chance > 0.5).any())


def _more_than_noise(power: Tensor, variance: float, *, shared: bool) -> _Split:
    """Tell noise from what is longer, by EM.

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
        limit = 2 * (_log(1 - part) - _log(part)) + math.log(longer / variance)
        limit /= max(1 / variance - 1 / longer, TINY / variance)
        share = float(column.mean())
        part = float(single.sum() / (len(power) * column.sum()).clamp(min=TINY))
        longer = max(float((single * power).sum() / single.sum().clamp(min=TINY)), variance)
    if shared:
        likelihood = float(torch.logaddexp(filled, empty).sum())
        return _Split(column.expand_as(power), likelihood, limit)
    return _Split(single, float(either.sum()), limit)


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
