"""What clients declared to do to the rows of one upload, and how it is undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.channels import (
    Channel,
    ClippingStep,
    Masking,
    Noise,
    RandomRounding,
    usable,
)

from .channels import WHOLE, bounded_each, is_masked, noise_std, row_as_compared

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


def row_gains(
    channel: Channel, rows: Tensor, kept: Tensor, expected: Tensor, uploads: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None]:
    """What bounds and masks multiplied rows of different uploads by, (n, 1), and noise then.

    Args:
        rows: (n, d). kept: (n, d), whether a coordinate was sent.
        expected: (n, d), about what they would be without any step.
        uploads: (m, d) each, in which the rows stood.

    Returns:
        The factors; the variance (n,) of a number, mean over those sent, after that is undone,
        None where clients declared no noise or rounding of a known size.
    """
    gains, variances = [], []
    for row, own, about, upload in zip(rows, kept, expected, uploads, strict=True):
        steps = RowSteps(channel, upload, own)
        _, gain, variance = steps.undo(row[None], about[None], single=False)
        gains.append(gain)
        variances += [] if variance is None else [variance.mean()]
    return torch.cat(gains), torch.stack(variances) if variances else None
