"""How images are searched for: settings that `dip` and `pixel` share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.channels import StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.events import silent
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from ..base import attacks
from ..running.driver import stage
from ..running.objectives import OBJECTIVES
from .optimise import COMBINE, LOSSES, Budget, ImagePrior, Start
from .solve import invert

STARTS = ("none", "linear", "decoder")


def knowledge_for(start: str) -> frozenset[Knowledge]:
    """What beginning from a start needs."""
    return frozenset() if start == "none" else attacks.get(start).needs


def adapts_by(start: str, observation: Observation) -> StepsAt:
    """Steps of channels that the attack named `start` takes into account."""
    return {} if start == "none" else attacks.get(start)().adapts(observation)


def pictures_for(start: str, observation: Observation, context: Context) -> Tensor | None:
    """Answers (N, C, H, W) of the attack named `start` with its default settings, or None.

    Its finished pieces are kept beside those of the attack that begins from it.
    """
    if start == "none":
        return None
    quiet = dataclasses.replace(stage(context, f"start-{start}-"), report=silent)
    found = attacks.get(start)().run(observation, quiet)
    if not isinstance(found, Reconstruction):
        raise TypeError(f"attack '{start}' does not answer with images")
    return torch.nan_to_num(found.images, nan=0.5)


@dataclass(frozen=True, kw_only=True)
class ImageSearch:
    """Seek an image by gradient descent on what a prior writes."""

    steps: int = knob(300, help="optimiser steps", ge=1)
    lr: float = knob(0.02, help="Adam step size", gt=0)
    tv: float = knob(10.0, help="weight of total variation (per-pixel mean |dx| + |dy|)", ge=0)
    objective: str = knob("l2rel", help="distance between representations", choices=OBJECTIVES)
    average: float = knob(0.95, help="decay of the running mean of outputs", ge=0, lt=1)
    loss: str = knob("log", help="minimise log D or plain D, plus total variation", choices=LOSSES)
    restarts: int = knob(1, help="independent starts per target", ge=1)
    combine: str = knob("best", help="keep the best restart or average all", choices=COMBINE)
    patience: int = knob(
        0, help="stop a target after so many steps without 0.1 % gain; 0: never", ge=0
    )
    chunk: int | None = knob(
        None, help="targets at once on a GPU; none: as its memory allows", ge=1
    )
    start: str = knob(
        "none", help="answer to begin from: none, or that of another attack", choices=STARTS
    )

    @property
    def budget(self) -> Budget:
        """How it searches."""
        return Budget(
            steps=self.steps,
            lr=self.lr,
            average=self.average,
            tv=self.tv,
            loss=self.loss,
            restarts=self.restarts,
            combine=self.combine,
            patience=self.patience,
        )

    def search(
        self,
        observation: Observation,
        context: Context,
        prior: ImagePrior,
        toward: Callable[[list[Tensor], list[Tensor], Tensor], list[Tensor]],
    ) -> Reconstruction:
        """Seek one image per target row.

        Args:
            toward: brings the prior's parameters to pictures to begin from, see `Start`.
        """
        pictures = pictures_for(self.start, observation, context)
        return invert(
            observation,
            context,
            prior,
            OBJECTIVES[self.objective],
            self.budget,
            chunk=self.chunk,
            start=None if pictures is None else Start(pictures, toward),
        )
