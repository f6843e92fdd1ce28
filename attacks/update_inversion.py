"""Inversion of an update by several local steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedre_privacy.core.config import knob
from fedre_privacy.core.types import (
    Knowledge,
    ModelState,
    Observation,
    Reconstruction,
)

from .base import Attack, Context, attacks
from .parts.gradient import labels as label_rules
from .parts.gradient.match import Match, Simulate, gradient
from .parts.gradient.objectives import DISTANCES, SCALE_FREE
from .parts.gradient.search import Tick, signed_adam
from .parts.gradient.solve import (
    Answer,
    batch_labels,
    check,
    choose,
    known,
    one_hot,
    solve,
    training_of,
)
from .parts.gradient.starts import STARTS, draw
from .parts.gradient.unroll import LocalSteps
from .parts.gradient.victims import BN_MODES, Victim, local_steps, steps_per_epoch


@attacks.register("update-inversion")
@dataclass(frozen=True, kw_only=True)
class UpdateInversion(Attack):
    """Recover the images behind an update by re-running the client's local training on candidates.

    Minimises 1 - cos(theta_0 - theta_S(x), D) + tv * TV(x), where theta_S(x) comes from S steps of
    SGD on the candidates and D is parameters before minus after. The optimiser is that of
    ``inverting-gradients``. Where the local steps are more than `unroll`, or the client holds more
    images than are sought, D is matched as the direction of one gradient; the result says so.

    Shape:      parameters after local training, by name; output (N * B, C, H, W), values in
                [0, 1], grouped by target, in the order of the labels found
    Needs:      UPLOADS, TRAINING, and the model that the protocol's own messages hold
                Recovers: inputs
    Cost:       local steps times that of ``inverting-gradients``; memory grows with the local steps
                unless `save_memory`
    Reference:  Geiping et al., Inverting Gradients, NeurIPS 2020, section 6 (unrolled local
                steps); Dimitrov et al., Data leakage in federated averaging, TMLR 2022.
    Deviations: each candidate stays in one batch through all epochs, where a client shuffles;
                momentum and weight decay are not simulated, the cosine absorbs them in part.
    """

    consumes = (ModelState,)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.TRAINING})
    recovers = "inputs"

    steps: int = knob(1000, help="optimiser steps", ge=1)
    lr: float = knob(0.1, help="step size in pixel values", gt=0)
    tv: float = knob(0.02, help="weight of total variation (per-pixel mean |dx| + |dy|)", ge=0)
    objective: str = knob(
        "cosine",
        help="distance between updates; a single gradient always uses a cosine",
        choices=DISTANCES,
    )
    unroll: int = knob(10, help="most local steps re-run; above, one gradient is matched", ge=1)
    save_memory: bool = knob(False, help="recompute local steps in place of keeping them")
    labels: str = knob(
        "joint", help="how labels are read off the update", choices=label_rules.STRATEGIES
    )
    start: str = knob("normal", help="where images begin", choices=STARTS)
    bn: str = knob("batch", help="batch norm: running or batch statistics", choices=BN_MODES)
    restarts: int = knob(1, help="independent starts per target", ge=1)
    chunk: int | None = knob(None, help="starts at once on a GPU; none: 64", ge=1)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        victims = check(observation, self.bn)
        training = training_of(observation)
        size = observation.images_per_target
        shape = (size, *observation.image_shape)
        device, tries = context.device, range(self.restarts)

        def plan(victim: Victim) -> tuple[int, int] | None:
            """Epochs and batches of each to re-run, or None to match one gradient."""
            whole = training.sizes[victim.client] <= size
            if whole and local_steps(training, victim.client) <= self.unroll:
                return training.epochs, steps_per_epoch(training, victim.client)
            return None

        def search(members: Sequence[Victim], given: Sequence[Tensor | None], tick: Tick) -> Answer:
            rounds = plan(members[0])
            simulate: Simulate = gradient
            objective, per_epoch = self.objective, 1
            if rounds is not None:
                epochs, per_epoch = rounds
                simulate = LocalSteps(training.lr, epochs, per_epoch, self.save_memory)
            elif objective not in SCALE_FREE:
                objective = "cosine"
            match = Match(
                [victim for victim in members for _ in tries],
                simulate,
                DISTANCES[objective],
                bn=self.bn,
                device=device,
            )
            start, spare = (
                draw(members, shape, context.seed, self.start, restarts=tries, purpose=purpose)
                for purpose in ("start", "spare")
            )
            found = signed_adam(
                match,
                start.to(device),
                spare.to(device),
                one_hot(known(given), observation.num_classes, self.restarts).to(device),
                steps=self.steps,
                lr=self.lr,
                tv=self.tv,
                restarts=self.restarts,
                tick=tick,
            )
            return choose(found, start, self.restarts)

        plans = [plan(victim) for victim in victims]
        single = sum(one is None for one in plans)
        told = sorted({one[0] * one[1] for one in plans if one is not None})
        notes = []
        if told:
            notes.append(
                f"{len(plans) - single} clients re-run ({', '.join(map(str, told))} steps)"
            )
        if single:
            notes.append(f"{single} clients matched as one gradient")
        return solve(
            observation,
            context,
            victims,
            batch_labels(observation, victims, self.labels),
            search,
            steps=self.steps,
            restarts=self.restarts,
            chunk=self.chunk,
            together=not self.save_memory,
            split=plan,
            note=", ".join(notes),
        )
