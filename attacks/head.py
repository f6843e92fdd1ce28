"""Class prototypes from the change of a head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import MODELS, Artifact, GradientState, HeadState, MatrixBlocks
from fedre_privacy.core.channels import ClippingStep, LearntChange, StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredPrototypes
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.channels import least_bound
from .common.frozen_modules import outputs
from .gradients.class_means import (
    absent_input,
    classes_pulled,
    combine_pulls,
    pulls,
    ratio,
    shrink_to_public,
    simulate_and_match,
)
from .gradients.head_uploads import LEAST_SHARE, MOST_REPLAYED, HeadCase, earlier_cases, head_cases
from .gradients.matrix_heads import implied_bias
from .inversion.shadow_models import class_shares, require_shadow_models, train_shadow_models
from .mixtures.aux_features import aux_reps, class_means

METHODS = ("combined", "simulate", "ratio")
CENTRES = ("auto", "found", "public", "rehearsed")
NEEDED: Mapping[str, frozenset[Knowledge]] = {
    "public": frozenset({Knowledge.EXTRACTOR, Knowledge.AUX_DATA}),
    "rehearsed": frozenset(
        {Knowledge.HEAD, Knowledge.AUX_DATA, Knowledge.ARCHITECTURE, Knowledge.INITIAL_MODEL}
    ),
}
"""What a centre needs to be known."""
STRETCHES = tuple(2 ** (half / 2) for half in range(13))
"""By what a change that was perhaps shortened before it was sent is tried to be lengthened."""
EXPLAINED = 1e-2
"""A match that counts as explained. The less of a change is left, the more classes explain it: of
those that explain it the longest is taken, which holds the fewest classes."""

SHADOW_MODELS = 4
"""Copies of a client that are trained where its extractor is not known."""

RECOGNISED = 0.01
"""Mean output for a class from which on a client is taken to hold it, where its head's change is
not exact; chosen on the tuning part of `benchmarks/heads.py`."""


@attacks.register("head")
@dataclass(frozen=True, kw_only=True)
class HeadUpdate(Attack):
    """Recover class prototypes from a head (or what holds one) and the one before.

    Local training moves row c of a linear head towards the representations of class c and away
    from those it mistakes for c. `ratio` divides the change of each weight row by that of its
    bias; `simulate` seeks the representations under which the known number of steps would have
    moved the known head to the uploaded one. `combined` takes the direction of `ratio`, averaged
    over the latest observed rounds, about what classes have in common, and one length for all
    differences (see `length` and `centre`); of a gradient it is `simulate`. Where clients declare
    that they shorten what they send, `simulate` keeps the longest of changes up to 64 times as long
    that local training explains. FedRAL's matrix blocks, divided by the client's head, are such a
    change without its bias, which is taken from what the representations have in common.

    Shape:      head (C, d) and (C,) before and after; output one row (d,) per client and class
    Needs:      UPLOADS, TRAINING; of heads alone, the broadcast that the client started from; of
                matrix blocks that, and HEADS            Recovers: prototypes
    Cost:       milliseconds; `simulate` and copies of clients seconds; no extractor in the loop
    Reference:  Phong et al., 2017, for the ratio; the other two are this package's own.
    Deviations: representations are held still during the local epochs; all samples of a class share
                one representation; `simulate` replays the local steps as at most `replay` steps on
                all samples at once. Of a client that holds every class, what prototypes have in
                common is not found (see `centre`).
    """

    when_to_use = (
        "uploads that hold a classifier head: class prototypes, before an attack on images"
    )
    measured_on = ("gradients", "active_servers")
    consumes = (HeadState, *MODELS, GradientState, MatrixBlocks)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.TRAINING})
    needs_for: ClassVar[Mapping[type[Artifact], frozenset[Knowledge]]] = {
        MatrixBlocks: frozenset({Knowledge.HEAD, Knowledge.HEADS})
    }
    recovers = "prototypes"
    answers = "prototypes"
    adapts_to: ClassVar[StepsAt] = {
        "extractor": (LearntChange,), "updates": (ClippingStep,),
    }  # fmt: skip
    suite = (
        *(SuiteEntry(kind, "fedre-paper", place=10) for kind in (HeadState, *MODELS)),
        SuiteEntry(MatrixBlocks, "strong", place=10),
    )

    method: str = knob("combined", help="how class means are found", choices=METHODS)
    rounds: int = knob(
        3, help="combined: latest observed rounds whose directions are averaged", ge=1, later=True
    )
    length: float = knob(
        1.0, help="combined: a difference from what classes have in common, over its length", gt=0
    )
    steps: int = knob(200, help="simulate: Adam steps", ge=1)
    lr: float = knob(0.03, help="simulate: Adam step size, relative to a representation", gt=0)
    replay: int = knob(
        MOST_REPLAYED, help="most local steps simulated; fewer, larger ones above", ge=1
    )
    nonnegative: bool = knob(True, help="representations have no negative entry (ReLU)")
    least: float = knob(
        LEAST_SHARE,
        help="share of samples below which a class counts as absent after several steps",
        ge=0,
    )
    free_share: bool = knob(True, help="adjust the class shares together with the means")
    centre: str = knob(
        "auto",
        help="what a client's class means have in common: as found, or that of auxiliary images of "
        "the same classes, which also give `combined` the length of differences; public: through "
        "the client's extractor (needs EXTRACTOR, AUX_DATA); rehearsed: through copies of the "
        "client trained on them (needs AUX_DATA, ARCHITECTURE, INITIAL_MODEL, HEAD); auto: of "
        "trained heads the first of public, rehearsed and found that is possible",
        choices=CENTRES,
    )
    conditional: bool = knob(
        True,
        help="combined, public centre: lean towards the public mean of a class by how well the "
        "client's model knows it",
    )

    @property
    def required(self) -> frozenset[Knowledge]:
        return self.needs | NEEDED.get(self.centre, frozenset())

    def adapts(self, observation: Observation) -> StepsAt:
        """Bounds by `simulate`, which is what `combined` does with gradients.

        Learnt changes by public images, which are not used with those.
        """
        gradients = any(
            isinstance(a, GradientState) for u in observation.targets for a in u.artifacts
        )
        simulates = self.method == "simulate" or (self.method == "combined" and gradients)
        told = observation.extractors or (observation.rehearse is not None and observation.initial)
        asked = self.centre == "auto" and observation.aux_labels is not None and bool(told)
        public = not gradients and (asked or self.centre not in ("auto", "found"))
        left = {"extractor": public, "updates": simulates}
        return {place: kinds for place, kinds in super().adapts(observation).items() if left[place]}

    def weakened(self, observation: Observation) -> tuple[str, ...]:
        """Class means that are centred without public images where these are granted."""
        granted = Knowledge.AUX_DATA in observation.threat.grants
        if self.centre != "auto" or not granted:
            return ()
        if observation.aux is None or observation.aux_labels is None:
            return ("no public images with labels, so what class means have in common is a guess",)
        return ()

    def run(self, observation: Observation, context: Context) -> RecoveredPrototypes:
        cases, notes = head_cases(observation)
        stretches = (1.0,) if least_bound(observation.channel.updates) is None else STRETCHES
        rows: list[tuple[HeadCase, Tensor, Tensor]] = []
        used: list[int] = []
        for case in cases:
            earlier: list[HeadCase] = []
            public = self._public(case, observation, context)
            case = case if case.bias_sent else self._with_bias(case, public)
            by_rows = self.method == "combined" and case.trained
            if by_rows:
                earlier = earlier_cases(observation, case, self.rounds - 1)
                means, classes = self._combine_pulls(case, public, earlier, notes)
            elif self.method == "ratio":
                means, classes = ratio(case.change_weight, case.change_bias)
            else:
                means, classes = self._simulate(case, stretches, context, notes)
            if public is not None and not by_rows and len(classes):
                means = means - means.mean(0) + public.means[classes].mean(0).to(means)
                means = means.clamp(min=0) if self.nonnegative else means
            rows.append((case, means, classes))
            used.append(1 + len(earlier))
        count = torch.tensor([len(classes) for _, _, classes in rows])
        return RecoveredPrototypes(
            vectors=torch.cat([means for _, means, _ in rows]),
            clients=torch.tensor([case.client for case, _, _ in rows]).repeat_interleave(count),
            labels=torch.cat([classes for _, _, classes in rows]),
            rounds=torch.tensor([case.round for case, _, _ in rows]).repeat_interleave(count),
            rounds_used=torch.tensor(used).repeat_interleave(count),
            s_min=torch.full((int(count.sum()),), torch.nan),
            expected_error=torch.full((int(count.sum()),), torch.nan),
            notes=tuple(notes),
        )

    def _public(self, case: HeadCase, observation: Observation, context: Context) -> _Public | None:
        """Public images of each class through the client's model, or None."""
        source = self._source(case, observation)
        if source == "found":
            return None
        if observation.aux_labels is None:
            raise IncompatibleError(
                f"'attack.centre={source}' needs labels of the auxiliary images."
            )
        if source == "rehearsed":
            return self._shadow_class_means(case, observation, context)
        (reps,) = aux_reps(
            observation, context.device, case.client, [case.round], length=case.weight.shape[1],
            limit=len(observation.aux_labels),
        )  # fmt: skip
        return _public_means(case, observation, [reps])

    def _source(self, case: HeadCase, observation: Observation) -> str:
        """Where what class means have in common is taken from, one of `CENTRES` but auto."""
        if self.centre != "auto":
            return self.centre
        if not case.trained or observation.aux is None or observation.aux_labels is None:
            return "found"
        if (case.client, case.round) in observation.extractors:
            return "public"
        startable = observation.rehearse is not None and (case.client, 0) in observation.initial
        return "rehearsed" if startable else "found"

    def _shadow_class_means(
        self, case: HeadCase, observation: Observation, context: Context
    ) -> _Public:
        """Public images of each class through copies of the client that were trained on them."""
        assert observation.aux is not None
        require_shadow_models(observation, random=False)
        aux = observation.aux.float().to(context.device)
        owner = (case.client, case.round)
        shares = class_shares(observation, context, owner, told=self._share(case).double())
        copies = train_shadow_models(observation, context, owner, SHADOW_MODELS, shares)
        reps = [outputs(one.get_submodule("extractor"), aux).cpu() for one in copies]
        return _public_means(case, observation, reps)

    def _with_bias(self, case: HeadCase, public: _Public | None) -> HeadCase:
        """The same, with what the bias would have moved by had there been one."""
        if self.method != "combined":
            raise IncompatibleError(
                f"'attack.method={self.method}' needs the change of a bias, which matrix blocks do "
                "not have.",
                next_step="Use --set attack.method=combined.",
            )
        rows = case.change_weight
        if public is not None:
            common = public.means.to(rows).mean(0)
        else:
            present = classes_pulled(rows, case.error)
            common = absent_input(rows, case.change_bias, present, case.lr * case.steps)
        return replace(case, change_bias=implied_bias(rows, common))

    def _combine_pulls(
        self,
        case: HeadCase,
        public: _Public | None,
        earlier: Sequence[HeadCase],
        notes: list[str],
    ) -> tuple[Tensor, Tensor]:
        """Class means (n, d) and their classes (n,), see `heads.combined`."""
        weight, bias = case.change_weight.double(), case.change_bias.double()
        present = self._present(case, public)
        if not bool(weight.any()):
            notes.append(f"client {case.client}, round {case.round}: the head did not change")
        before = []
        for one in earlier:
            one = one if one.bias_sent else self._with_bias(one, public)
            held = self._present(one, public)
            parts = one.change_weight.double(), one.change_bias.double()
            before.append((pulls(*parts, held, one.lr * one.steps), held))
        means, classes = combine_pulls(
            weight,
            bias,
            present,
            case.lr * case.steps,
            length=self.length,
            public=None if public is None else public.means,
            earlier=before,
        )
        if public is not None and self.conditional:
            means = shrink_to_public(means, public.means[classes], public.known_as[classes])
        return means.to(case.weight.dtype), classes

    def _present(self, case: HeadCase, public: _Public | None) -> Tensor:
        """Classes to answer for (C,) bool."""
        if not bool(case.change_weight.any()):
            return torch.zeros(len(case.weight), dtype=torch.bool)
        if not case.bias_sent and public is not None:
            return public.known_as > RECOGNISED
        if self.nonnegative:
            return classes_pulled(case.change_weight.double(), case.error)
        return self._share(case) > 0

    def _share(self, case: HeadCase) -> Tensor:
        """Estimated share of each class (C,), zero where it counts as absent."""
        return case.shares(self.least, self.replay)

    def _simulate(
        self, case: HeadCase, stretches: Sequence[float], context: Context, notes: list[str]
    ) -> tuple[Tensor, Tensor]:
        """Class means (n, d) and their classes (n,), under the longest change explained."""
        replayed = min(case.steps, self.replay)
        noise = torch.randn(
            case.weight.shape,
            generator=stream(context.seed, "head", client=case.client, round=case.round),
        )
        device, count = context.device, len(stretches)
        tried = [case.with_longer_change(factor) for factor in stretches]
        share = torch.stack([self._share(one) for one in tried])
        means, _, match = simulate_and_match(
            torch.stack([one.change_weight for one in tried]).to(device),
            torch.stack([one.change_bias for one in tried]).to(device),
            share.to(device),
            case.weight.expand(count, -1, -1).to(device),
            case.bias.expand(count, -1).to(device),
            torch.full((count,), case.lr * case.steps / replayed, device=device),
            replayed=replayed,
            steps=self.steps,
            lr=self.lr,
            nonnegative=self.nonnegative,
            free_share=self.free_share,
            noise=noise.expand(count, -1, -1).to(device),
        )
        match = match.nan_to_num(nan=math.inf)
        explained = match <= torch.clamp(1.1 * match.min(), min=EXPLAINED)
        best = int(explained.nonzero()[-1]) if bool(explained.any()) else 0
        longer = f" lengthened {stretches[best]:.3g} times" if count > 1 else ""
        notes.append(
            f"client {case.client}, round {case.round}: {case.steps} local steps replayed as "
            f"{replayed}{longer}, match {float(match[best]):.1e}"
        )
        classes = (share[best] > 0).nonzero().flatten()
        return means[best].cpu()[classes], classes


@dataclass(frozen=True, eq=False)
class _Public:
    """What public images say of each class through a client's model.

    Args:
        means: of their representations (C, d), float64.
        known_as: mean output for their own class (C,) in [0, 1]; 0 where there are none.
    """

    means: Tensor
    known_as: Tensor


def _public_means(case: HeadCase, observation: Observation, views: Sequence[Tensor]) -> _Public:
    """Of representations (n, d) of all auxiliary images, through one extractor or several."""
    assert observation.aux_labels is not None
    labels, classes = observation.aux_labels, torch.arange(observation.num_classes)
    means, known_as = [], []
    for reps in views:
        sure = case.outputs(reps).gather(1, labels[:, None].to(torch.int64))
        means.append(class_means(reps, labels, classes))
        known_as.append(class_means(sure, labels, classes).squeeze(1))
    absent = torch.bincount(labels, minlength=len(classes)) == 0
    told = torch.stack(known_as).mean(0).masked_fill(absent, 0.0)
    return _Public(torch.stack(means).mean(0), told)
