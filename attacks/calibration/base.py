"""Attacks whose confidence can be made a probability."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context
from fedre_privacy.attacks.common.frozen_modules import frozen_copy, outputs, representations_of
from fedre_privacy.attacks.common.tiling import stage
from fedre_privacy.attacks.inversion.auxiliary_images import Resolution
from fedre_privacy.core.config import knob
from fedre_privacy.core.events import silent
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation

from .simulated_targets import (
    LEAST,
    LINEUP,
    classes_of,
    counts_of,
    identification_rate,
    imitable,
    victims,
)

HELP = (
    "auxiliary images attacked in the same way, so that confidence becomes the probability of "
    f"being found among {LINEUP}; 0: a ranking"
)


@dataclass(frozen=True, kw_only=True)
class CalibratedAttack(Attack):
    """An attack on representations that also attacks what it knows the truth of.

    Half of the auxiliary images are kept out. Some of them, and means of some of them, are pushed
    through the attacked extractors and attacked with the same settings. Whether such an answer
    finds its image in a line-up can be checked, and a logistic regression on what can be told
    without truth (`features`) says how likely that is for the targets.
    """

    victims: int = knob(0, help=HELP, ge=0, later=True)

    @property
    def required(self) -> frozenset[Knowledge]:
        return super().required | ({Knowledge.AUX_DATA} if self.victims else set())

    def with_confidence(
        self, observation: Observation, answers: Reconstruction, context: Context
    ) -> Reconstruction:
        """The answers with the probability of each, or ranked where it cannot be had."""
        ranked = super().with_confidence(observation, answers, context)
        if len(answers.confidence) or not self.victims or not imitable(observation):
            return ranked
        assert observation.aux is not None and observation.aux_labels is not None
        rng = stream(context.seed, "victims")
        made = victims(observation, self.victims, rng, context)
        if made is None:
            return ranked
        seed = derive(context.seed, "attack on victims")
        passes = context.passes.part(made.rest)
        apart = replace(stage(context, "victims-"), seed=seed, report=silent, passes=passes)
        tried = self.run(made.observation, apart)
        assert isinstance(tried, Reconstruction)
        rest, labels = made.observation.aux, made.observation.aux_labels
        assert rest is not None and labels is not None
        with single_threaded(context.device):  # sums do not depend on the number of threads
            known = features(made.observation, tried, rest, labels, made.counts, apart)
            told = known.isfinite().all(1)
            real = told & ~made.strangers
            if int(real.sum()) < LEAST:
                return ranked
            small = Resolution.of(observation.image_shape)
            right = identification_rate(
                small.reduce(tried.images),
                made.supports,
                small.reduce(observation.aux),
                observation.aux_labels,
                rng,
            )
            counts = counts_of(observation)
            asked = features(observation, answers, rest, labels, counts, apart)
            sure = fit_logistic(known[told], right[told], made.strangers[told])(asked).float()
        share = f"{100 * float(right[real].mean()):.0f} % of {int(real.sum())}"
        return replace(
            ranked,
            confidence=sure,
            calibrated=f"the probability of being found among {LINEUP}, learnt from auxiliary "
            f"images attacked in the same way ({share} found)",
        )


SPREAD_FROM = 3
"""Auxiliary images of a class from which its spread is taken; else that of all."""
SMALLEST, LARGEST = 1e-12, 1e12


def features(
    observation: Observation,
    answers: Reconstruction,
    aux: Tensor,
    labels: Tensor,
    counts: Tensor,
    context: Context,
) -> Tensor:
    """Three numbers for each target (N, 3), NaN where there is no answer.

    With a the squared distance from target r to the representation of its answer, they are the
    logarithms of a / |r|^2; of b / a, b the squared distance to the nearest representation of an
    auxiliary image or of the answer to another target of the client; and of the squared distance
    from r to the mean of its class over the variance of that class, which is about one over the
    number of images behind r. Where that number is known it is taken.

    Args:
        aux, labels: auxiliary images that no target was made of.
        counts: (N,) images behind each target; NaN where that is not known.
        context: of an attack with these images: its device, and its passes over them.
    """
    device = context.device
    rows, owners = observation.target_rows()
    classes = torch.cat([classes_of(a) for u in observation.targets for a in u.artifacts])
    out = torch.full((len(rows), 3), torch.nan, dtype=torch.float64)
    for owner in dict.fromkeys(owners):
        where = torch.tensor([i for i, other in enumerate(owners) if other == owner])
        extract = frozen_copy(observation.extractors[owner], device)
        sought = rows[where].double()
        own = outputs(extract, answers.images[where].float(), device=device).double()
        public = representations_of(context.passes, owner, extract, aux, device).double()
        apart = torch.cdist(sought, own).square()
        mine = apart.diagonal().clone()
        rivals = torch.cat(
            [apart.fill_diagonal_(torch.inf), torch.cdist(sought, public).square()], 1
        )
        rivals = rivals.nan_to_num(torch.inf).amin(1)
        out[where, 0] = _log(mine / sought.square().sum(1).clamp(min=SMALLEST))
        out[where, 1] = _log(rivals / mine.clamp(min=SMALLEST))
        for place, row in zip(where.tolist(), sought, strict=True):
            alike = public[labels == classes[place]]
            alike = alike if len(alike) >= SPREAD_FROM else public
            mean = alike.mean(0)
            variance = (alike - mean).square().sum(1).mean().clamp(min=SMALLEST)
            out[place, 2] = _log((row - mean).square().sum() / variance)
    out[:, 2] = torch.where(counts.isnan(), out[:, 2], -counts.double().log())
    lost = answers.diverged.bool() | ~answers.images.isfinite().flatten(1).all(1)
    out[lost | ~out.isfinite().all(1)] = torch.nan
    return out


def _log(values: Tensor) -> Tensor:
    return values.clamp(SMALLEST, LARGEST).log()


PENALTY = 1.0
"""On the squared weights of standardised features, half of it added to the loss."""
STEPS = 50
LEAST_SCALE = 0.01
"""Smallest unit of a feature. They are logarithms, of which a hundredth tells nothing."""


@dataclass(frozen=True, eq=False)
class Logistic:
    """P(right) = sigmoid(weight . z + bias), z the standardised features (F,).

    Features are cut to the range that they were fitted on: nothing is known beyond it.
    """

    centre: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Probabilities (n,) of rows (n, F)."""
        inside = features.double().maximum(self.low).minimum(self.high)
        return ((inside - self.centre) / self.scale @ self.weight + self.bias).sigmoid()


def fit_logistic(features: Tensor, right: Tensor, strange: Tensor | None = None) -> Logistic:
    """Fit by Newton's method.

    Half a right and half a wrong row at the mean of all are added, so that an answer exists where
    all rows are right, or none. Strange rows, which are wrong, count as one row together: they
    tell in which direction wrong answers lie, and not how many there are.

    Args:
        features: (n, F) finite. right: (n,) from 0 to 1. strange: (n,) bool; none: none is.
    """
    features, right = features.double(), right.double()
    if strange is None:
        strange = torch.zeros(len(right), dtype=torch.bool)
    right = right.masked_fill(strange, 0)
    centre = features[~strange].mean(0)
    scale = features[~strange].std(0, correction=0).clamp(min=LEAST_SCALE)
    size = features.shape[1]
    rows = torch.cat([(features - centre) / scale, features.new_zeros(2, size)])
    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    wanted = torch.cat([right, right.new_tensor([0.0, 1.0])])
    weight = torch.where(strange, 1 / max(1, int(strange.sum())), 1.0).double()
    counted = torch.cat([weight, right.new_tensor([0.5, 0.5])])
    ridge = rows.new_tensor([PENALTY] * size + [0.0]).diag()
    found = rows.new_zeros(size + 1)
    for _ in range(STEPS):
        said = (rows @ found).sigmoid()
        slope = rows.T @ (counted * (said - wanted)) + ridge @ found
        bend = (rows * (counted * said * (1 - said))[:, None]).T @ rows + ridge
        bend.diagonal().add_(1e-9)
        step = torch.linalg.solve(bend, slope)
        found = found - step / max(1.0, float(step.abs().max()) / 2)
        if float(step.abs().max()) < 1e-9:
            break
    return Logistic(centre, scale, features.amin(0), features.amax(0), found[:-1], found[-1])
