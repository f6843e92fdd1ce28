"""What an attacker makes of the defences that clients declared, for every kind of attack.

`Observation.defenses` holds mechanisms and settings, never what was drawn. An attack that matches
sends its candidate through the same mechanism before it compares; one that learns from auxiliary
images learns from defended ones; one that solves over rounds expects the declared errors. With no
defence declared every function here changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.core.types import KnownDefense, Observation

from .objectives import Objective

TINY = 1e-30
NOISY = ("gaussian", "laplace")
NOISES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Noise over the spread of prototypes, tried where clients declared noise of unknown ratio."""
LOUDEST_FIRST = (1000.0, 300.0, 100.0, *sorted(NOISES, reverse=True))
"""The same where class means are known: uploads that cannot tell leave those as they are."""
WHOLE = 0.999
"""Of a bound: what is shorter than this was not shortened, unless noise came to it."""
AS_SENT = 1e-6


def declared(observation: Observation, *names: str) -> Iterator[Mapping[str, Any]]:
    """Settings of every declared defence of some names, in order."""
    return (known.settings for known in observation.defenses if known.name in names)


# --- updates and gradients -----------------------------------------------------------------------

Sent = Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
"""(candidate's update, uploaded update), one tensor per parameter, to the candidate as sent."""


def update_as_sent(observation: Observation) -> Sent | None:
    """How a candidate's update would have been sent, given what was; None: as it is.

    Numbers that were pruned or masked away are zero in the upload and not compared; a clipped
    update is compared with a clipped one.
    """
    steps: list[Sent] = []
    for known in observation.defenses:
        if known.name in ("prune", "mask"):
            steps.append(_masked(_factor(known)))
        if known.name in ("clip", *NOISY) and _bounds_uploads(known):
            steps.append(_clipped(_bound(known)))
    if not steps:
        return None

    def sent(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
        out = list(found)
        for step in steps:
            out = step(out, wanted)
        return out

    return sent


def _masked(factor: float) -> Sent:
    def step(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
        return [factor * a * (b != 0) for a, b in zip(found, wanted, strict=True)]

    return step


def _clipped(norm: float) -> Sent:
    def step(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
        length = (torch.stack([a.square().sum() for a in found]).sum() + TINY).sqrt()
        factor = (norm / length).clamp(max=1)
        return [a * factor for a in found]

    return step


# --- rows: representations, prototypes, mixtures -------------------------------------------------


@dataclass(frozen=True)
class Channel:
    """What happens to rows between an extractor and the wire.

    Args:
        defenses: as declared. rows: (m, d) of the upload that they are part of.
    """

    defenses: tuple[KnownDefense, ...]
    rows: Tensor

    def each(self, reps: Tensor) -> Tensor:
        """What is done to each representation (n, d) before means are taken."""
        for known in self.defenses:
            if known.name == "clip" and known.settings.get("where") == "representation":
                reps = clip_rows(reps, float(known.settings["norm"]))
            if known.name in NOISY and known.settings.get("unit") == "record":
                reps = clip_rows(reps, _bound(known))
        return reps

    def drawn(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Rows (n, d) as uploads of their own: bounded, masked, noised and rounded anew."""
        for known in self.defenses:
            if known.name in ("clip", *NOISY) and _bounds_uploads(known):
                rows = clip_rows(rows, _bound(known))
            std = self.noise(known)
            if std:
                rows = rows + std * torch.randn(rows.shape, generator=generator).to(rows)
            if known.name == "mask":
                rows = rows * _factor(known) * (self.rows != 0).any(0).to(rows)
            if known.name == "quantise":
                luck = torch.rand(rows.shape, generator=generator).to(rows)
                rows = _rounded(rows, int(known.settings["bits"]), self.rows, luck)
        return rows

    def matched(self, reps: Tensor, wanted: Tensor) -> Tensor:
        """Representations (n, d) of candidates as they would have been sent, luck aside."""
        reps = self.each(reps)
        for known in self.defenses:
            if known.name in ("clip", *NOISY) and _bounds_uploads(known):
                reps = clip_rows(reps, _bound(known))
            if known.name == "mask":
                reps = reps * _factor(known) * (wanted != 0)
        return reps

    def noise(self, known: KnownDefense) -> float | None:
        """Standard deviation of the noise on a number; None where it is not known.

        For one client it follows from what is public. For one record it depends on the numbers of
        samples behind a row, which the server need not know.
        """
        if known.name not in NOISY or known.settings.get("unit") != "client":
            return None
        count = self.rows.shape[0]
        sensitivity = 2 * _bound(known) * math.sqrt(count)
        if known.name == "gaussian":
            return float(known.settings["noise"]) * sensitivity
        width = sensitivity * math.sqrt(self.rows.numel())
        return math.sqrt(2) * width / float(known.settings["epsilon"])


def channel_of(observation: Observation, client: int, round: int, rows: Tensor) -> Channel | None:
    """The channel that target rows (n, d) came through; None where they did not come as uploaded.

    Prototypes that another attack recovered, and rows that a client never sent, were not defended:
    only rows that stand in an observed upload were.
    """
    if not observation.defenses:
        return None
    for upload in observation.uploads:
        if (upload.client, upload.round) != (client, round):
            continue
        for artifact in upload.artifacts:
            sent = artifact.rows()
            if sent is None or sent.shape[1] != rows.shape[1]:
                continue
            if bool(_among(rows, sent.to(rows)).all()):
                return Channel(observation.defenses, sent)
    return None


def _among(rows: Tensor, sent: Tensor) -> Tensor:
    """Whether each row (n, d) is one of those sent (m, d)."""
    return (rows[:, None] == sent[None]).all(2).any(1)


def objective_as_sent(observation: Observation, objective: Objective) -> Objective:
    """An objective that sends a candidate's representation through the defence before it compares.

    Targets that were not uploaded (recovered or counterfactual ones) are compared as they are.
    """
    uploads = [
        rows
        for upload in observation.uploads
        for artifact in upload.artifacts
        if observation.defenses and (rows := artifact.rows()) is not None
    ]
    if not uploads:
        return objective
    channel = Channel(observation.defenses, uploads[0])
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def real(wanted: Tensor) -> Tensor:
        if id(wanted) not in seen or seen[id(wanted)][0] is not wanted:
            fitting = [sent.to(wanted) for sent in uploads if sent.shape[1] == wanted.shape[1]]
            hits = [_among(wanted, sent) for sent in fitting]
            none = torch.zeros(len(wanted), dtype=torch.bool, device=wanted.device)
            seen[id(wanted)] = (wanted, torch.stack([none, *hits]).any(0))
        return seen[id(wanted)][1]

    def compared(reps: Tensor, wanted: Tensor) -> Tensor:
        sent = torch.where(real(wanted)[:, None], channel.matched(reps, wanted), reps)
        return objective(sent, wanted)

    return compared


def clip_rows(rows: Tensor, norm: float) -> Tensor:
    """Shorten every row (n, d) that is longer than `norm` to that length."""
    lengths = (rows.square().sum(-1, keepdim=True) + TINY).sqrt()
    shorter: Tensor = rows * (norm / lengths).clamp(max=1)
    return shorter


def _rounded(rows: Tensor, bits: int, upload: Tensor, luck: Tensor) -> Tensor:
    """Round at random to the 2^bits levels of an upload."""
    scale, steps = upload.abs().max().to(rows).clamp(min=TINY), 2**bits - 1
    levels = ((rows / scale + 1) / 2 * steps + luck).floor().clamp(0, steps)
    out: Tensor = (levels / steps * 2 - 1) * scale
    return out


# --- several rounds ------------------------------------------------------------------------------


def noise_ratios(observation: Observation) -> tuple[float, ...] | None:
    """Noise over spread of prototypes to be tried by likelihood; None: as without a defence."""
    return NOISES if any(True for _ in declared(observation, *NOISY, "quantise")) else None


def bound_of(observation: Observation) -> float | None:
    """The least length to which clients declared to shorten the vectors they send."""
    bounding = [
        _bound(known)
        for known in observation.defenses
        if known.name in ("clip", *NOISY) and _bounds_uploads(known)
    ]
    return min(bounding, default=None)


def sent_in_part(observation: Observation) -> float | None:
    """What the coordinates that were sent were multiplied by, where others were not; else None."""
    masks = [known for known in observation.defenses if known.name == "mask"]
    return math.prod(_factor(known) for known in masks) if masks else None


def blurred(observation: Observation) -> bool:
    """Whether clients declared noise, so that what is known beforehand weighs in."""
    return any(True for _ in declared(observation, *NOISY))


def said(observation: Observation, encoding: Tensor) -> Tensor:
    """A label encoding (C,) with declared smoothing taken off again."""
    for settings in declared(observation, "label-smoothing"):
        alpha = float(settings["alpha"])
        if alpha < 1:
            encoding = (encoding - alpha / encoding.numel()) / (1 - alpha)
            encoding = torch.where(encoding.abs() < AS_SENT, 0.0, encoding)
    return encoding


def encoding_error(observation: Observation) -> float:
    """Standard deviation of each number of an encoding about the weight that was used.

    Rounding to multiples of 1 / levels leaves about a uniform error of that width.
    """
    return max(
        (12**-0.5 / float(own["levels"]) for own in declared(observation, "quantised")), default=0.0
    )


def total_least_squares(weights: Tensor, uploads: Tensor, error: float) -> tuple[Tensor, Tensor]:
    """Weights and uploads moved to the nearest pair that some prototypes explain.

    R = W P with errors in W of standard deviation `error` and in R of what least squares leaves:
    [W / error, R / rest] has rank n without errors, so the part of rank n is kept. With no more
    rounds than classes nothing is known to be wrong and nothing moves.

    Args:
        weights: (T, n). uploads: (T, d).

    Reference: Golub, Van Loan, An analysis of the total least squares problem, 1980.
    """
    rounds, classes = weights.shape
    if not error or rounds <= classes:
        return weights, uploads
    fit = torch.linalg.pinv(weights) @ uploads
    left = (uploads - weights @ fit).square().sum() / (rounds - classes) / uploads.shape[1]
    explained = error**2 * fit.square().sum() / uploads.shape[1]
    rest = (left - explained).clamp(min=1e-4 * left).sqrt().clamp(min=TINY)
    joint = torch.cat([weights / error, uploads / rest], 1)
    basis = torch.linalg.svd(joint, full_matrices=False).U[:, :classes]
    return basis @ (basis.T @ weights), basis @ (basis.T @ uploads)


# --- settings ------------------------------------------------------------------------------------


def _bound(known: KnownDefense) -> float:
    return float(known.settings["norm" if known.name == "clip" else "clip"])


def _bounds_uploads(known: KnownDefense) -> bool:
    """Whether it shortens what is sent, and not each representation before."""
    own = known.settings
    return own.get("where") == "upload" if known.name == "clip" else own.get("unit") == "client"


def _factor(known: KnownDefense) -> float:
    rescaled = known.name == "mask" and known.settings.get("rescale")
    return 1 / float(known.settings["keep"]) if rescaled else 1.0
