"""Search for images by gradient descent, one tile of targets after another: `dip` and `pixel`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context, attacks
from fedre_privacy.attacks.common.channels import objective_as_sent, rows_as_sent
from fedre_privacy.attacks.common.drawn_noise import (
    NOISE_IMAGES,
    weighted_extractors,
    weighted_rows,
    weights_by_owner,
)
from fedre_privacy.attacks.common.frozen_modules import frozen_copy
from fedre_privacy.attacks.common.gradient_check import check_gradients
from fedre_privacy.attacks.common.objectives import OBJECTIVES
from fedre_privacy.attacks.common.tiles import cpu_tile, measured_rows
from fedre_privacy.attacks.common.tiling import Piece, Tick, in_tiles_of, reconstruction, stage
from fedre_privacy.attacks.common.told_masks import objective_of_rest, unmasked_extractors
from fedre_privacy.core.channels import LearntChange, StepsAt, join_steps
from fedre_privacy.core.config import knob
from fedre_privacy.core.cuda_graphs import capture_for
from fedre_privacy.core.events import noted_once, silent
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation

from .gradient_descent import (
    COMBINE,
    LOSSES,
    Budget,
    ImagePrior,
    InitialImages,
    better_of,
    by_owner,
    fit_tile,
)
from .reconstruction import check_extractors, seeds_for, trials

STARTS = ("none", "linear", "decoder")

STUCK = 0.5
"""A search that ends no nearer than this share of where it began is begun anew, once."""


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
class ImageSearch(Attack):
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

    @property
    def required(self) -> frozenset[Knowledge]:
        return super().required | knowledge_for(self.start)

    def adapts(self, observation: Observation) -> StepsAt:
        return join_steps(super().adapts(observation), adapts_by(self.start, observation))

    def prior_for(self, image_shape: tuple[int, int, int], device: torch.device) -> ImagePrior:
        """The way to write images of a shape (C, H, W) on a device."""
        raise TypeError(f"{type(self).__name__} does not define prior_for")

    def toward(
        self,
        prior: ImagePrior,
        parameters: list[Tensor],
        constants: list[Tensor],
        images: Tensor,
    ) -> list[Tensor]:
        """Parameters with which the prior writes about these images (N, C, H, W).

        See `InitialImages`.
        """
        raise TypeError(f"{type(self).__name__} does not define toward")

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        """Seek one image per target row, all rows of a tile at once.

        Targets are ordered by the extractor they belong to, so that a tile passes through few of
        them; results come back in the observation's order.
        """
        device, budget, restarts = context.device, self.budget, self.restarts
        prior = self.prior_for(observation.image_shape, device)
        pictures = pictures_for(self.start, observation, context)
        objective = objective_as_sent(observation, OBJECTIVES[self.objective])
        rows, owners = observation.target_rows()
        rows = rows.float()
        seeds = seeds_for(owners, context.seed, restarts)
        extractors = {
            key: frozen_copy(observation.extractors[key], device)
            for key in sorted(set(owners))
            if key in observation.extractors
        }
        check_extractors(extractors, owners, rows.shape[1], observation.image_shape, device)
        check_gradients(observation, extractors)
        bare = unmasked_extractors(observation, extractors)
        if bare is not None:
            extractors, objective = bare, objective_of_rest(objective)
        learnt = [step for step in observation.channel.extractor if isinstance(step, LearntChange)]
        if any(step.random for step in learnt) and rows_as_sent(observation) is None:
            own = stream(0, "images to draw noise on")  # the attacker may hold no others
            images = torch.rand(NOISE_IMAGES, *observation.image_shape, generator=own)
            with single_threaded(device):
                weights = weights_by_owner(extractors, images.to(device))
            extractors = weighted_extractors(extractors, weights)
            rows = weighted_rows(rows, owners, weights)
        note = noted_once(context.report)

        def rows_of(some: list[int]) -> dict[str, Any]:
            """The targets of some rows, and how images get to representations like them."""
            repeated = [owners[i] for i in some for _ in range(restarts)]
            return {
                "targets": rows[some].to(device),
                "extract": by_owner(extractors, repeated),
                "extract_some": lambda left: by_owner(extractors, [repeated[i] for i in left]),
            }

        def fit(some: list[int], tick: Tick) -> Piece:
            begin = None
            if pictures is not None:
                begin = InitialImages(pictures[some], partial(self.toward, prior))
            own = [seeds[i * restarts + one] for i in some for one in range(restarts)]
            search = partial(
                fit_tile,
                prior,
                objective=objective,
                budget=budget,
                tick=tick,
                start=begin,
                capturer=capture_for(device),
                note=note,
            )
            done = search(**rows_of(some), seeds=own)
            stuck = (~(done.fit <= STUCK * done.trace[0])).nonzero().squeeze(1).tolist()
            if stuck and begin is None:
                firsts = [own[i * restarts + r] for i in stuck for r in range(restarts)]
                anew = [derive(one, "anew") for one in firsts]
                second = search(**rows_of([some[i] for i in stuck]), seeds=anew)
                done = better_of(done, stuck, second)
            return {**vars(done), "steps": torch.tensor(done.steps)}

        chunk = self.chunk
        if chunk is None and device.type != "cpu":
            tried = trials(prior, objective, budget, rows, owners, extractors, device)
            chunk = measured_rows(tried, device)
        found = in_tiles_of(
            fit,
            sorted(range(len(owners)), key=lambda i: owners[i]),
            context,
            steps=budget.steps,
            cpu=cpu_tile(len(owners), restarts),
            gpu=(chunk or 1) // restarts,
        )
        early = int(found["steps"].max()) < budget.steps
        return reconstruction(found, "no further improvement" if early else "budget spent")
