"""What declared channels do to an attacker's own vectors, updates and encodings.

`Observation.channel` holds what clients declared, never what was drawn. An attack that matches
sends its candidate through the same steps before it compares; one that learns from auxiliary
images learns from defended ones; one that solves over rounds expects the declared errors. With
nothing declared every function here changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedre_privacy.core.channels import (
    NOTHING,
    Channel,
    ClippingStep,
    LearntChange,
    Masking,
    Noise,
    RandomChange,
    RandomRounding,
    Rounding,
    Smoothing,
    StepsAt,
    UnknownNoise,
    Value,
    usable,
)
from fedre_privacy.core.types import Observation

from .objectives import Objective

TINY = 1e-30
NOISES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Noise over the spread of prototypes, tried where clients declared noise of unknown ratio."""
LOUDEST_FIRST = (1000.0, 300.0, 100.0, *sorted(NOISES, reverse=True))
"""The same where class means are known: uploads that cannot tell leave those as they are."""
WHOLE = 0.999
"""Of a bound: what is shorter than this was not shortened, unless noise came to it."""
AS_SENT = 1e-6


# --- updates and gradients -----------------------------------------------------------------------

UPDATES_COMPARED: StepsAt = {"updates": (ClippingStep, Masking)}
"""What `update_as_sent` takes into account."""
TRAINING_REPEATED: StepsAt = {"extractor": (LearntChange,), **UPDATES_COMPARED}
"""The same, and what is computed again with a client's model."""

Sent = Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
"""(candidate's update, uploaded update), one tensor per parameter, to the candidate as sent."""


def update_as_sent(channel: Channel, *, directions: bool = False) -> Sent | None:
    """How a candidate's update would have been sent, given what was; None: as it is.

    Numbers that were pruned or masked away are zero in the upload and not compared; a shortened
    update is compared with a shortened one.

    Args:
        directions: only directions are compared, which bounds do not change: leave bounds out.
    """
    kinds = (Masking,) if directions else (ClippingStep, Masking)
    steps = [step for step in usable(channel, "updates") if isinstance(step, kinds)]
    if not steps:
        return None

    def sent(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
        out = list(found)
        for step in steps:
            out = (
                _apply_clipping(out, step.norm)
                if isinstance(step, ClippingStep)
                else _apply_mask(out, wanted, step)
            )
        return out

    return sent


def _apply_mask(found: Sequence[Tensor], wanted: Sequence[Tensor], step: Masking) -> list[Tensor]:
    return [step.factor * a * (b != 0) for a, b in zip(found, wanted, strict=True)]


def _apply_clipping(found: Sequence[Tensor], norm: float) -> list[Tensor]:
    length = (torch.stack([a.square().sum() for a in found]).sum() + TINY).sqrt()
    factor = (norm / length).clamp(max=1)
    return [a * factor for a in found]


# --- rows: representations, prototypes, mixtures -------------------------------------------------

ROWS_COMPARED: StepsAt = {
    "extractor": (LearntChange,),
    "each": (ClippingStep,),
    "rows": (ClippingStep, Masking),
}
"""What `row_as_compared` takes into account, and extractors that make learnt changes."""
ROWS_REPEATED: StepsAt = {
    "extractor": (LearntChange, RandomChange),
    "each": (ClippingStep,),
    "rows": (ClippingStep, Masking, Noise, RandomRounding),
}
"""What `bounded_each` and `rows_resent` take into account, and `drawn_outputs` of extractors."""


def without_mixes(steps: StepsAt, channel: Channel) -> StepsAt:
    """Kinds of steps that are allowed for where a random change counts as noise.

    Where other images enter it does not, and what was mixed is read as it is.
    """
    if any(isinstance(step, RandomChange) and step.mixes for step in channel.extractor):
        return {
            place: tuple(kind for kind in kinds if kind is not RandomChange)
            for place, kinds in steps.items()
        }
    return steps


def without_rounding(channel: Channel) -> Channel:
    """The same, but rows are not rounded."""
    rows = tuple(step for step in channel.rows if not isinstance(step, RandomRounding))
    return replace(channel, rows=rows)


def bounded_each(channel: Channel, reps: Tensor) -> Tensor:
    """Representations (n, d) after what is done to each of them before means are taken."""
    for step in channel.each:
        reps = clip_rows(reps, step.norm)
    return reps


def rows_resent(
    channel: Channel, rows: Tensor, upload: Tensor, generator: torch.Generator
) -> Tensor:
    """Rows (n, d) as uploads of their own: bounded, masked, noised and rounded with fresh draws.

    Noise of unknown size is left out.

    Args:
        upload: (m, d), the upload whose number of rows, mask and scale are taken.
    """
    for step in usable(channel, "rows"):
        if isinstance(step, ClippingStep):
            rows = clip_rows(rows, step.norm)
        elif isinstance(step, Noise):
            std = noise_std(step, upload)
            if std:
                rows = rows + std * torch.randn(rows.shape, generator=generator).to(rows)
        elif isinstance(step, Masking):
            rows = rows * step.factor * (upload != 0).any(0).to(rows)
        elif isinstance(step, RandomRounding):
            drawn = torch.rand(rows.shape, generator=generator).to(rows)
            rows = _apply_rounding(rows, step.levels, upload, drawn)
    return rows * (upload != 0).any(0).to(rows) if is_masked(channel, "rows") else rows


def row_as_compared(channel: Channel, reps: Tensor, wanted: Tensor) -> Tensor:
    """Representations (n, d) of candidates as they would have been sent, but for random errors.

    Args:
        wanted: (n, d), the uploaded rows; where they are 0 nothing was sent.
    """
    reps = bounded_each(channel, reps)
    for step in usable(channel, "rows"):
        if isinstance(step, ClippingStep):
            reps = clip_rows(reps, step.norm)
        elif isinstance(step, Masking):
            reps = reps * step.factor * (wanted != 0)
    return reps


def noise_std(step: Noise, upload: Tensor) -> float:
    """Standard deviation of the noise on a number of an upload (m, d)."""
    std = step.std
    if step.per_row:
        std *= math.sqrt(upload.shape[0])
    if step.per_number:
        std *= math.sqrt(upload.numel())
    return std


def upload_behind(observation: Observation, client: int, round: int, rows: Tensor) -> Tensor | None:
    """The uploaded rows (m, d) among which target rows (n, d) stand.

    Prototypes that another attack recovered, and rows that a client never sent, were not defended:
    for them it is None, and so it is where nothing was declared.
    """
    if observation.channel == NOTHING:
        return None
    for upload in observation.uploads:
        if (upload.client, upload.round) != (client, round):
            continue
        for artifact in upload.artifacts:
            sent = artifact.rows()
            if sent is None or sent.shape[1] != rows.shape[1]:
                continue
            if bool(_among(rows, sent.to(rows)).all()):
                return sent
    return None


def _among(rows: Tensor, sent: Tensor) -> Tensor:
    """Whether each row (n, d) is one of those sent (m, d)."""
    return (rows[:, None] == sent[None]).all(2).any(1)


def rows_as_sent(observation: Observation) -> Callable[[Tensor, Tensor], Tensor] | None:
    """How a candidate's representations (n, d) would have been sent, given the targets (n, d).

    Targets that were not uploaded (recovered or counterfactual ones) are left as they are. None:
    nothing is declared, and all are.
    """
    channel = observation.channel
    uploads = [
        rows
        for upload in observation.uploads
        for artifact in upload.artifacts
        if (rows := artifact.rows()) is not None
    ]
    if not uploads or not (channel.each or channel.rows):
        return None
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def real(wanted: Tensor) -> Tensor:
        if id(wanted) not in seen or seen[id(wanted)][0] is not wanted:
            fitting = [sent.to(wanted) for sent in uploads if sent.shape[1] == wanted.shape[1]]
            hits = [_among(wanted, sent) for sent in fitting]
            none = torch.zeros(len(wanted), dtype=torch.bool, device=wanted.device)
            seen[id(wanted)] = (wanted, torch.stack([none, *hits]).any(0))
        return seen[id(wanted)][1]

    def sent(reps: Tensor, wanted: Tensor) -> Tensor:
        return torch.where(real(wanted)[:, None], row_as_compared(channel, reps, wanted), reps)

    return sent


def objective_as_sent(observation: Observation, objective: Objective) -> Objective:
    """An objective that sends a candidate's representation through the channel before it compares.

    Targets that were not uploaded are compared as they are.
    """
    sent = rows_as_sent(observation)
    if sent is None:
        return objective
    return lambda reps, wanted: objective(sent(reps, wanted), wanted)


def clip_rows(rows: Tensor, norm: float) -> Tensor:
    """Shorten every row (n, d) that is longer than `norm` to that length."""
    lengths = (rows.square().sum(-1, keepdim=True) + TINY).sqrt()
    shorter: Tensor = rows * (norm / lengths).clamp(max=1)
    return shorter


def _apply_rounding(rows: Tensor, levels: int, upload: Tensor, drawn: Tensor) -> Tensor:
    """Round at random to the levels of an upload."""
    scale, steps = upload.abs().max().to(rows).clamp(min=TINY), levels - 1
    places = ((rows / scale + 1) / 2 * steps + drawn).floor().clamp(0, steps)
    out: Tensor = (places / steps * 2 - 1) * scale
    return out


# --- what attacks over several rounds ask --------------------------------------------------------


def least_bound(steps: Sequence[Value]) -> float | None:
    """The least length to which clients declared to shorten what they send."""
    return min((step.norm for step in steps if isinstance(step, ClippingStep)), default=None)


def mask_factor(channel: Channel) -> float | None:
    """What those coordinates of rows that were sent were multiplied by; None without a mask."""
    factors = [step.factor for step in usable(channel, "rows") if isinstance(step, Masking)]
    return math.prod(factors) if factors else None


def is_masked(channel: Channel, place: str) -> bool:
    """Whether what is 0 was not sent, by what clients declared of rows or updates."""
    return any(isinstance(step, Masking) for step in usable(channel, place))


def is_noisy(channel: Channel) -> bool:
    """Whether clients declared noise or rounding of rows: what is known beforehand weighs in."""
    noisy = any(isinstance(step, Noise | UnknownNoise | RandomRounding) for step in channel.rows)
    return noisy or any(step.random for step in channel.extractor)


def noise_ratios(channel: Channel) -> tuple[float, ...] | None:
    """Noise over spread of prototypes to be tried by likelihood; None: as without a defence."""
    return NOISES if is_noisy(channel) else None


# --- label encodings -----------------------------------------------------------------------------


def undo_smoothing(channel: Channel, encoding: Tensor) -> Tensor:
    """A label encoding (C,) with declared smoothing taken off again."""
    for step in channel.encoding:
        if isinstance(step, Smoothing) and step.alpha < 1:
            encoding = (encoding - step.alpha / encoding.numel()) / (1 - step.alpha)
            encoding = torch.where(encoding.abs() < AS_SENT, 0.0, encoding)
    return encoding


def encoding_error(channel: Channel) -> float:
    """Standard deviation of each number of an encoding about the weight that was used.

    Rounding to multiples of 1 / levels leaves about a uniform error of that width.
    """
    levels = [step.levels for step in channel.encoding if isinstance(step, Rounding)]
    return max((12**-0.5 / float(one) for one in levels), default=0.0)
