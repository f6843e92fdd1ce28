"""Inversion of an update by several local steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedre_privacy.core.artifacts import MODELS
from fedre_privacy.core.channels import StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.channels import TRAINING_REPEATED, update_as_sent
from .gradients.dropout_masks import buffers_of_pass
from .gradients.explained_share import updates_explained
from .gradients.matching import (
    Named,
    Simulate,
    UpdateMatch,
    functional_call_rows,
    gradient,
    soft_cross_entropy,
)
from .gradients.objectives import DISTANCES, SCALE_FREE
from .gradients.reconstruction import batch_labels, check, training_of
from .gradients.signed_search import KnownLoss, SignedSearch, signed_search, without_bounds
from .gradients.victims import Victim, local_steps, steps_per_epoch


@attacks.register("update-inversion")
@dataclass(frozen=True, kw_only=True)
class UpdateInversion(SignedSearch, KnownLoss, Attack):
    """Recover the images behind an update by re-running the client's local training on candidates.

    Minimises 1 - cos(theta_0 - theta_S(x), D) + tv * TV(x), where theta_S(x) comes from S steps of
    SGD on the candidates and D is parameters before minus after. The optimiser is that of
    ``inverting-gradients``, and so is the weight where `tv` is none. Where the local steps are
    more than `unroll`, or the client holds more images than are sought, D is matched as the
    direction of one gradient at theta_0 - a D, with a in [0, 1] sought beside the images. With
    ``dropout=masks`` every step that is re-run has masks of its own, and one gradient has one.

    Shape:      parameters after local training, by name; output (N * B, C, H, W), values in
                [0, 1], grouped by target, in the order of the labels found
    Needs:      UPLOADS, TRAINING, and the model that the protocol's own messages hold; AUX_DATA
                with ``prior=public``    Recovers: inputs
    Cost:       local steps times that of ``inverting-gradients``; memory grows with the local steps
                unless `save_memory`
    Reference:  Geiping et al., Inverting Gradients, NeurIPS 2020, section 6 (unrolled local
                steps); Dimitrov et al., Data leakage in federated averaging, TMLR 2022; Zhu et al.,
                Surrogate model extension, ICML 2023 (one gradient on the path).
    Deviations: a moves by Adam on signs from 1/2 and its step falls with that of the images; each
                candidate stays in one batch through all epochs, where a client shuffles; momentum
                and weight decay are not simulated, the cosine absorbs them in part.
    """

    when_to_use = (
        "models or changes after local training with a known loss; the usual attack on FedAvg"
    )
    measured_on = ("gradients",)
    consumes = MODELS
    needs = frozenset({Knowledge.UPLOADS, Knowledge.TRAINING})
    recovers = "inputs"
    differentiates = True
    adapts_to = TRAINING_REPEATED
    earliest = True
    suite = tuple(SuiteEntry(kind, "fedre-paper", "update", 40) for kind in consumes)

    unroll: int = knob(10, help="most local steps re-run; above, one gradient is matched", ge=1)
    at: str = knob(
        "path",
        help="where one gradient is matched: at a point learnt between the models before and after "
        "local training, or at the start",
        choices=("path", "start"),
    )
    save_memory: bool = knob(False, help="recompute local steps in place of keeping them")

    def adapts(self, observation: Observation) -> StepsAt:
        return without_bounds(super().adapts(observation), self.objective)

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        if self.dropout != "off":  # which ones is no part of the answer
            return None
        training = training_of(observation)

        def simulate(victim: Victim) -> Simulate:
            rounds = self._plan(observation, victim)
            return gradient if rounds is None else LocalSteps(training.lr, *rounds)

        return updates_explained(observation, images, labels, bn=self.bn, simulate=simulate)

    def _plan(self, observation: Observation, victim: Victim) -> tuple[int, int] | None:
        """Epochs and batches of each to re-run, or None to match one gradient."""
        training = training_of(observation)
        whole = training.sizes[victim.client] <= observation.images_per_target
        if whole and local_steps(training, victim.client) <= self.unroll:
            return training.epochs, steps_per_epoch(training, victim.client)
        return None

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        victims = check(observation, self.bn)
        training = training_of(observation)
        plan = partial(self._plan, observation)

        def several(victim: Victim) -> bool:
            return victim.local and local_steps(training, victim.client) > 1

        def match(rows: Sequence[Victim]) -> UpdateMatch:
            rounds = plan(rows[0])
            epochs, per_epoch = rounds or (1, 1)
            batch = -(-observation.images_per_target // per_epoch)
            passes = (epochs * per_epoch, batch, *observation.image_shape)
            simulate: Simulate = gradient
            objective = self.objective
            if rounds is not None:
                simulate = LocalSteps(training.lr, *rounds, self.save_memory)
            elif objective not in SCALE_FREE:
                objective = "cosine"
            return UpdateMatch(
                rows,
                simulate,
                DISTANCES[objective],
                bn=rows[0].statistics,
                sent=update_as_sent(observation.channel, directions=objective in SCALE_FREE),
                on_path=rounds is None and several(rows[0]) and self.at == "path",
                dropout=passes if rows[0].dropout == "masks" else None,
                device=context.device,
            )

        plans = [plan(victim) for victim in victims]
        single = sum(one is None for one in plans)
        told = sorted({one[0] * one[1] for one in plans if one is not None})
        notes = []
        if told:
            notes.append(
                f"{len(plans) - single} clients re-run ({', '.join(map(str, told))} steps)"
            )
        if single:
            where = " on the path" if self.at == "path" else ""
            notes.append(f"{single} clients matched as one gradient{where}")
        return signed_search(
            observation,
            context,
            victims,
            self,
            match,
            labels=batch_labels(observation, victims, self.labels),
            dropout=self.dropout,
            together=not self.save_memory,
            split=plan,
            note=", ".join(notes),
        )


@dataclass(frozen=True)
class LocalSteps:
    """Plain SGD as a client does it; calling it gives parameters before minus after.

    Args:
        per_epoch: batches of a pass; candidate i is in batch i modulo this number, in every pass,
            since the client's order is not known.
        save_memory: recompute each step in the backward pass in place of keeping it; not under
            vmap.
    """

    lr: float
    epochs: int
    per_epoch: int
    save_memory: bool = False

    def __call__(
        self, module: nn.Module, params: Named, buffers: Named, images: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        names = list(params)

        def step(
            number: int, batch: Tensor, targets: Tensor, *values: Tensor
        ) -> tuple[Tensor, ...]:
            at, held = (
                dict(zip(names, values, strict=True)),
                buffers_of_pass(module, buffers, number),
            )
            if not self.save_memory:
                slopes = gradient(module, at, held, batch, targets)
                return tuple(at[name] - self.lr * slopes[name] for name in names)
            free = [v if v.requires_grad else v.detach().requires_grad_() for v in values]
            made = functional_call_rows(module, dict(zip(names, free, strict=True)), held, batch)
            slopes_ = torch.autograd.grad(
                soft_cross_entropy(made, targets), free, create_graph=True
            )
            return tuple(v - self.lr * s for v, s in zip(values, slopes_, strict=True))

        values = tuple(params.values())
        for epoch in range(self.epochs):
            for part in range(self.per_epoch):
                number = epoch * self.per_epoch + part
                batch, targets = images[part :: self.per_epoch], labels[part :: self.per_epoch]
                if self.save_memory:
                    values = checkpoint(step, number, batch, targets, *values, use_reentrant=False)
                else:
                    values = step(number, batch, targets, *values)
        return {name: params[name] - after for name, after in zip(names, values, strict=True)}
