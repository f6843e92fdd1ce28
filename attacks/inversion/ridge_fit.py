"""One ridge regression, and the latest one of each thread for who asks for it again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.events import Event

from .class_effects import ClassEffects, ClassSums
from .linear_map import (
    PENALTIES,
    LinearMap,
    Sums,
    errors_by_penalty,
    fit_ridge,
    predict_ridge,
    total,
)
from .picture_basis import PictureBasis
from .simulated_uploads import folds_of, views
from .training_pairs import FOLDS, AuxPairs

Made = TypeVar("Made")
Coded = tuple[Tensor, Tensor]
"""Representations (n, d) and their class codes (n, k)."""


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """The sums of each fold of auxiliary images, and the map fitted to all of them.

    Rows are representations with class codes behind them. The map is fitted to what they are beyond
    the means of classes, or codes are left unread, as errs less on held-out images.

    Args:
        held: what penalty and codes are chosen on: images of the first fold as they are.
        asked: the penalty, or None to choose one.
        by_class: of each fold, of images as they are; codes are as long as these.
        may_read: whether codes may be read.
        basis: of whose coordinates the sums are.
    """

    parts: list[Sums]
    held: Sums
    asked: float | None
    by_class: list[ClassSums]
    may_read: bool = True
    basis: PictureBasis = PictureBasis()

    @cached_property
    def classes(self) -> int:
        """Values of a class code."""
        return len(self.by_class[0].count)

    @cached_property
    def everything(self) -> Sums:
        """The sums of all folds."""
        return total(self.parts)

    @cached_property
    def chosen(self) -> tuple[float, bool]:
        """The penalty, and whether codes are read: those that err least on the first fold."""
        penalties = PENALTIES if self.asked is None else (self.asked,)
        kept = total(self.parts[1:])
        found = []
        for read in (False, True) if self.classes and self.may_read else (False,):
            effects = ClassEffects.of(self.by_class[1:]) if read else None
            sums = self._beyond(kept, effects), self._beyond(self.held, effects)
            errors = errors_by_penalty(*sums, penalties)
            if errors is not None:
                best = int(errors.argmin())
                found.append((float(errors[best]), penalties[best], read))
        return min(found)[1:] if found else (penalties[-1], False)

    @cached_property
    def whole(self) -> LinearMap:
        """The map fitted to all folds."""
        return self.map_without(None)

    def checked(
        self,
        sent: tuple[Tensor, Tensor],
        known: tuple[Tensor, Tensor],
        context: Context,
        client: int,
    ) -> RidgeFit:
        """The fit, its codes left unread where they cannot be those of what a client sent.

        Args:
            sent: what was uploaded.
            known: the same of images of the first fold.
        """
        if not self.chosen[1] or ClassEffects.of(self.by_class[1:]).fits(sent, known):
            return self
        text = f"Uploads of client {client} are not like the classes told with them"
        context.report(Event("note", {"text": f"{text}, which are not used."}))
        return replace(self, may_read=False)

    def map_without(self, fold: int | None) -> LinearMap:
        """The map of rows that is fitted to all folds but one."""
        sums, effects = self._but(fold)
        found = fit_ridge(self._beyond(sums, effects), self.chosen[0])
        if effects is not None:
            return self.basis.map_to_pictures(effects.with_map(found.weight))
        unread = found.weight.new_zeros(self.classes, found.weight.shape[1])
        mean = torch.cat([found.rep_mean, unread[:, 0]])
        weight = torch.cat([found.weight, unread])
        return self.basis.map_to_pictures(LinearMap(weight, mean, found.image_mean))

    def answers_without(self, fold: int, rows: Tensor) -> Tensor:
        """Flat images (n, P), not clamped, that the map fitted without a fold makes of rows.

        Where these are few it costs less than the map.
        """
        sums, effects = self._but(fold)
        dim = len(sums.reps) - self.classes
        reps, codes = rows[:, :dim], rows[:, dim:]
        if effects is None:
            made = predict_ridge(self._beyond(sums, None), self.chosen[0], reps)
            return self.basis.pictures(made)
        beyond = effects.beyond(reps, codes)
        made = predict_ridge(effects.removed(sums), self.chosen[0], beyond)
        return self.basis.pictures(made + (codes.double() @ effects.images).float())

    def with_averages(self, pairs: AuxPairs, held: AuxPairs) -> RidgeFit:
        """The fit to simulated averages too, chosen on those of the first fold that are held."""
        both = [part + self._sums(pairs, fold) for fold, part in enumerate(self.parts)]
        return replace(self, parts=both, held=self._sums(held, 0))

    def _sums(self, pairs: AuxPairs, fold: int) -> Sums:
        where = pairs.fold == fold
        flat = pairs.images[where].flatten(1)
        return Sums.of(pairs.rows[where], self.basis.coordinates(flat))

    def _but(self, fold: int | None) -> tuple[Sums, ClassEffects | None]:
        """Sums and class means of all folds but one; no means where codes are left unread."""
        sums = self.everything if fold is None else self.everything.without(self.parts[fold])
        if not self.chosen[1]:
            return sums, None
        rest = [one for number, one in enumerate(self.by_class) if number != fold]
        return sums, ClassEffects.of(rest)

    def _beyond(self, sums: Sums, effects: ClassEffects | None) -> Sums:
        if effects is not None:
            return effects.removed(sums)
        return sums.first(len(sums.reps) - self.classes)


def fit_views(
    reps: list[Tensor], aux: Tensor, penalty: float | None, codes: Tensor | None = None
) -> RidgeFit:
    """The fit to versions of auxiliary images (n, C, H, W) and their representations (n, d).

    Args:
        codes: one-hot classes of the images (n, k); None or k = 0: not told.
    """
    fold = folds_of(len(aux), FOLDS).to(aux.device)
    codes = aux.new_zeros(len(aux), 0) if codes is None else codes
    where = [fold == one for one in range(FOLDS)]
    basis = PictureBasis.of_views(aux, len(reps))
    for number, (r, moved) in enumerate(zip(reps, views(aux, len(reps)), strict=True)):
        rows = torch.cat([r, codes], 1)
        flat = basis.coordinates(moved.flatten(1))
        parts = [(rows[w], flat[w]) for w in where]
        if number == 0:
            sums, held = [Sums.of(*part) for part in parts], Sums.of(*parts[0])
            plain = [ClassSums.of(r[w], codes[w], flat[w]) for w in where]
        else:
            sums = [known.include(*part) for known, part in zip(sums, parts, strict=True)]
    return RidgeFit(sums, held, penalty, plain, basis=basis)


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
