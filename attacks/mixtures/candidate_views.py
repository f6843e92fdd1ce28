"""Candidates beside the rows of an upload, in units of the spread of representations.

Declared steps on rows are taken into account here: coordinates that a mask removed are left out,
shortened rows are lengthened again, and declared noise is told as a variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.attacks.common.channels import (
    WHOLE,
    bounded_each,
    is_masked,
    noise_std,
    row_as_compared,
)
from fedre_privacy.core.channels import (
    NOTHING,
    Channel,
    ClippingStep,
    Masking,
    Noise,
    RandomRounding,
    usable,
)

from .class_statistics import ClassStatistics, class_statistics

TINY = 1e-12


@dataclass(frozen=True, eq=False)
class RowSteps:
    """What clients declared to do to the rows of one upload.

    Shape: sent (m, d), all rows of the upload; kept (d,), whether a coordinate was sent.
    """

    channel: Channel
    sent: Tensor
    kept: Tensor

    @classmethod
    def of(cls, channel: Channel, rows: Tensor, upload: Tensor | None) -> RowSteps:
        """Steps on rows (n, d) of this upload (m, d); none where they stood in no upload."""
        kept = torch.ones(rows.shape[1], dtype=torch.bool, device=rows.device)
        if upload is None:
            return cls(Channel(each=channel.each), rows, kept)
        if is_masked(channel, "rows"):
            finite = upload[upload.isfinite().all(1)]
            seen = (finite != 0).any(0)
            kept = seen if bool(seen.any()) else kept
        return cls(channel, upload, kept)

    def of_images(self, reps: Tensor, single: bool) -> Tensor:
        """Coordinates (n, k) of representations (n, d) that are sent, each bounded as declared.

        Args:
            single: they are sent as they are, and not as means: rows are bounded and masked too.
        """
        if not single:
            return bounded_each(self.channel, reps)[:, self.kept]
        return row_as_compared(self.channel, reps, self.kept[None])[:, self.kept]

    def undo(
        self, rows: Tensor, expected: Tensor, single: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows as if nothing but noise and a mask had come to them.

        Args:
            rows: (n, d), and about what they would be without any step, (n, d) or (1, d).
            single: they are compared with what `of_images` makes of single images.

        Returns:
            Rows (n, k); what a row was multiplied by, (n, 1); the variance of noise and of rounding
            on numbers after that is undone, (n, k), None without.
        """
        steps = usable(self.channel, "rows")
        noisy = any(isinstance(step, Noise | RandomRounding) for step in steps)
        gain = torch.ones(len(rows), 1).to(rows)
        variance = torch.zeros_like(rows)
        for place, step in enumerate(steps):
            factor = torch.ones_like(gain)
            if isinstance(step, Noise):
                variance = variance + noise_std(step, self.sent) ** 2
            elif isinstance(step, RandomRounding):
                variance = variance + self._rounding(step, expected)
            elif isinstance(step, ClippingStep) and not single:
                factor = (step.norm / expected.norm(dim=1, keepdim=True).clamp(min=TINY)).clamp(
                    max=1
                )
                if not noisy and place == len(steps) - 1:
                    whole = rows.norm(dim=1, keepdim=True) < WHOLE * step.norm
                    factor = torch.where(whole, 1.0, factor)
            elif isinstance(step, Masking) and not single:
                factor = factor * step.factor
                expected = expected * self.kept
            expected = expected * factor
            gain, variance = gain * factor, variance * factor.square()
        variance = variance[:, self.kept] / gain.square()
        return rows[:, self.kept] / gain, gain, variance if noisy else None

    def _rounding(self, step: RandomRounding, expected: Tensor) -> Tensor:
        """Variance (n, d) of rounding at random about these values: that at them, or the usual."""
        most = self.sent[self.sent.isfinite().all(1)].abs().max().clamp(min=TINY)
        width = 2 * most.double() / (step.levels - 1)
        share = (expected + most) / width % 1
        return width.square() * (share * (1 - share)).clamp(min=1 / 6)


@dataclass(frozen=True, eq=False)
class View:
    """Candidates as an extractor shows them, beside the statistics of reference images.

    Shape: means (C, d), of classes before steps on rows; reps (m, k), labels (m,); known (n, k),
    reference images and their classes known_labels (n,).
    """

    steps: RowSteps
    single: bool
    means: Tensor
    reps: Tensor
    labels: Tensor
    known: Tensor
    known_labels: Tensor
    statistics: ClassStatistics

    @property
    def white(self) -> Tensor:
        """Whitened deviations (m, k) of candidates from the means of their classes."""
        return self.statistics.white(self.reps, self.statistics.means[self.labels])

    @property
    def strangers(self) -> Tensor:
        """The same (n, k) of reference images, in the coordinates of representations."""
        centres = self.statistics.means[self.known_labels]
        return self.statistics.whiten_symmetrically(self.known, centres)

    def only(self, mine: Tensor) -> View:
        """Some of the candidates."""
        return replace(self, reps=self.reps[mine], labels=self.labels[mine])

    def undo(self, rows: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `RowSteps.undo`; the variance (n, k) is one along each whitened direction.

        Args:
            centres: what rows (n, d) are about, (n, d) or (1, d).
        """
        made, gain, variance = self.steps.undo(rows.double(), centres, self.single)
        if variance is None:
            return made, gain, None
        return made, gain, variance @ self.statistics.whiten.square()


@dataclass(frozen=True, eq=False)
class Scene:
    """What an extractor makes of candidates and of reference images, before any step.

    Shape: reps (m, d), labels (m,); known (n, d), known_labels (n,), int64; noise (d, d), what
    clients draw, None: nothing.
    """

    reps: Tensor
    labels: Tensor
    known: Tensor
    known_labels: Tensor
    num_classes: int
    noise: Tensor | None

    def view(self, steps: RowSteps, single: bool) -> View:
        """Candidates beside rows to which these steps were done."""
        whole = bounded_each(steps.channel, self.known).double()
        hot = torch.nn.functional.one_hot(self.known_labels, self.num_classes).double()
        counts = hot.sum(0)[:, None]
        means = torch.where(counts > 0, hot.T @ whole / counts.clamp(min=1), whole.mean(0))
        known = steps.of_images(self.known, single)
        noise = None if self.noise is None else self.noise[steps.kept][:, steps.kept]
        found = class_statistics(known, self.known_labels, self.num_classes, noise)
        reps = steps.of_images(self.reps, single).double()
        return View(steps, single, means, reps, self.labels, known, self.known_labels, found)

    def plain(self) -> View:
        """Candidates beside rows that no step was done to."""
        return self.view(RowSteps.of(NOTHING, self.reps, None), single=False)
