"""One ridge regression, and the latest one of each thread for who asks for it again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from torch import Tensor

from .linear_map import LinearMap, Sums, choose_penalty, fit_ridge, total
from .simulated_uploads import folds_of, views
from .training_pairs import FOLDS

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """The sums of each fold of auxiliary images, and the map fitted to all of them.

    Args:
        held: what the penalty is chosen on: pairs of the first fold.
        asked: the penalty, or None to choose one.
    """

    parts: list[Sums]
    held: Sums
    asked: float | None

    @cached_property
    def everything(self) -> Sums:
        """The sums of all folds."""
        return total(self.parts)

    @cached_property
    def penalty(self) -> float:
        """The penalty asked for, or that with the least error on the first fold."""
        if self.asked is not None:
            return self.asked
        return choose_penalty(total(self.parts[1:]), self.held)

    @cached_property
    def whole(self) -> LinearMap:
        """The map fitted to all folds."""
        return fit_ridge(self.everything, self.penalty)

    def with_means(self, means: list[Sums]) -> RidgeFit:
        """The fit to these and to simulated means of each fold, on which a penalty is chosen."""
        both = [single + mean for single, mean in zip(self.parts, means, strict=True)]
        return RidgeFit(both, means[0], self.asked)


def fit_views(reps: list[Tensor], aux: Tensor, penalty: float | None) -> RidgeFit:
    """The fit to versions of auxiliary images (n, C, H, W) and their representations (n, d)."""
    fold = folds_of(len(aux), FOLDS).to(aux.device)
    sums: list[Sums] = []
    for number, (r, moved) in enumerate(zip(reps, views(aux, len(reps)), strict=True)):
        parts = [(r[fold == one], moved[fold == one].flatten(1)) for one in range(FOLDS)]
        if number == 0:
            sums = [Sums.of(*part) for part in parts]
        else:
            sums = [known.include(*part) for known, part in zip(sums, parts, strict=True)]
    return RidgeFit(sums, sums[0], penalty)


class Latest(Generic[Made]):
    """What a thread made last, under its name: neighbours in the order of work need the same."""

    def __init__(self) -> None:
        self._own = threading.local()

    def of(self, name: str, make: Callable[[], Made]) -> Made:
        """What was made under this name if it is the latest, or what is made now."""
        if getattr(self._own, "name", None) != name:
            self._own.name = self._own.made = None  # gives its memory up before more is taken
            self._own.made = make()
            self._own.name = name
        made: Made = self._own.made
        return made
