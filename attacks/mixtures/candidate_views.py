"""Candidates beside the rows of an upload, in units of the spread of representations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.attacks.common.channels import bounded_each
from fedre_privacy.attacks.common.row_steps import RowSteps
from fedre_privacy.core.channels import NOTHING

from .class_statistics import ClassStatistics, class_statistics


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
