"""Attacks whose confidence can be made a probability."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedre_privacy.core.config import knob
from fedre_privacy.core.cores import single_threaded
from fedre_privacy.core.events import silent
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.core.types import Knowledge, Observation

from ..base import Attack, Context
from ..running.driver import stage
from .features import features
from .logistic import fit
from .victims import LEAST, LINEUP, counts_of, found, imitable, victims

HELP = (
    "auxiliary images attacked in the same way, so that confidence becomes the probability of "
    f"being found among {LINEUP}; 0: a ranking"
)


@dataclass(frozen=True, kw_only=True)
class Calibrated(Attack):
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

    def believed(
        self, observation: Observation, answers: Reconstruction, context: Context
    ) -> Reconstruction:
        """The answers with the probability of each, or ranked where it cannot be had."""
        ranked = super().believed(observation, answers, context)
        if len(answers.confidence) or not self.victims or not imitable(observation):
            return ranked
        assert observation.aux is not None and observation.aux_labels is not None
        rng = stream(context.seed, "victims")
        made = victims(observation, self.victims, rng, context.device)
        if made is None:
            return ranked
        seed = derive(context.seed, "attack on victims")
        apart = replace(stage(context, "victims-"), seed=seed, report=silent)
        tried = self.run(made.observation, apart)
        assert isinstance(tried, Reconstruction)
        rest, labels = made.observation.aux, made.observation.aux_labels
        assert rest is not None and labels is not None
        with single_threaded(context.device):  # sums do not depend on the number of threads
            known = features(made.observation, tried, rest, labels, made.counts, context.device)
            told = known.isfinite().all(1)
            real = told & ~made.strangers
            if int(real.sum()) < LEAST:
                return ranked
            right = found(tried.images, made.supports, observation.aux, observation.aux_labels, rng)
            counts = counts_of(observation)
            asked = features(observation, answers, rest, labels, counts, context.device)
            sure = fit(known[told], right[told], made.strangers[told])(asked).float()
        share = f"{100 * float(right[real].mean()):.0f} % of {int(real.sum())}"
        return replace(
            ranked,
            confidence=sure,
            calibrated=f"the probability of being found among {LINEUP}, learnt from auxiliary "
            f"images attacked in the same way ({share} found)",
        )
