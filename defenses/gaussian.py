"""Gaussian noise on what is sent, with exact accounting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, is_one_of
from fedre_privacy.core.channels import Channel
from fedre_privacy.core.config import knob, plain_plugin
from fedre_privacy.core.errors import ConfigError

from .accounting import multiplier_of
from .base import (
    CLIENT,
    RECORD,
    Defense,
    FederationFacts,
    PrivacyCost,
    Release,
    Sending,
    defenses,
    uses,
)
from .noise import (
    PUBLIC,
    check_noise,
    missing_clip,
    noise_channel,
    noisy,
    roles_with_sensitivity,
    sensitivities,
)
from .values import BOUNDED, clip_rows, clip_to_norm


@defenses.register("gaussian")
@dataclass(frozen=True, kw_only=True)
class Gaussian(Defense):
    """Bound what is sent to a length S and add normal noise of standard deviation z * Delta.

    For ``unit=client`` vectors or the update are bounded as they are sent, and Delta = 2 S sqrt(m)
    for m vectors (2 S for one, and for an update): it hides everything that the values say about a
    client, whatever its data and however they were trained on. For ``unit=record`` each
    representation is bounded before means are taken, and Delta = 2 S w for a vector in which one
    record has at most the weight w (2 S / n_c for a prototype, 2 S max w for an entangled one,
    2 S for a single representation). That hides one record in the noisy step only: the extractor
    was trained on the same record, so there is a guarantee only together with dp-sgd.

    Acts on:    vectors (representations, prototypes, entangled, class outputs) and updates
    Channel:    unit=client: a bound, and noise of a size that follows from what is public;
                unit=record: a bound of each representation, and noise of unknown size
    Guarantee:  unit=client: (epsilon, delta) for one client against the server, all rounds
                together, by Gaussian DP, exact. unit=record: only with dp-sgd
    Leaves:     labels, label encodings, counts, and who takes part when
    Reference:  Balle, Wang, Improving the Gaussian mechanism, ICML 2018; Dong, Roth, Su, Gaussian
                differential privacy, JRSS-B 2022.
    Deviations: noise is made in floating point from the run's seed, for experiments that can be
                repeated: whoever knows the seed knows the noise.
    """

    when_to_use = "a differential privacy guarantee for what is sent, of vectors or updates"
    acts_on = BOUNDED
    adds_noise = True

    clip: float | None = knob(None, help="length S to which is bounded; needed", gt=0)
    noise: float | None = knob(
        None, help="noise multiplier z: standard deviation over sensitivity; or give epsilon", ge=0
    )
    epsilon: float | None = knob(
        None, help="epsilon of the whole run, from which the noise is worked out (unit=client)"
    )
    delta: float = knob(1e-5, help="delta at which epsilon is stated", gt=0, lt=1)
    unit: str = knob(CLIENT, help="whose data are hidden", choices=(CLIENT, RECORD))

    def __post_init__(self) -> None:
        problems = [missing_clip(self.name)] if self.clip is None else []
        if (self.noise is None) == (self.epsilon is None):
            problems.append(
                "Defence 'gaussian' needs one of noise (the multiplier z) and epsilon (of the "
                "whole run), for example gaussian:clip=1,epsilon=8."
            )
        if self.noise == 0:
            problems.append(
                "Defence 'gaussian' with noise 0 adds nothing and has no privacy to state. Give a "
                "positive noise, or use the defence 'clip' to bound lengths alone."
            )
        if self.epsilon is not None and self.epsilon <= 0:
            problems.append(
                f"Defence 'gaussian' was given epsilon {self.epsilon:g}; it must be > 0."
            )
        if self.epsilon is not None and self.unit == RECORD:
            problems.append(
                "Defence 'gaussian' cannot work out its noise from epsilon for unit=record, where "
                "dp-sgd spends privacy as well. Give noise instead."
            )
        if problems:
            raise ConfigError(*problems)

    def check(self, facts: FederationFacts) -> list[str]:
        return check_noise(self, self.unit, self.delta, facts)

    def multiplier(self, kinds: tuple[type[Artifact], ...], rounds: int) -> float:
        """The noise multiplier z: as given, or that which spends epsilon in so many rounds."""
        if self.noise is not None:
            return self.noise
        return multiplier_of(float(self.epsilon or 0), self.delta, max(uses(kinds, rounds), 1))

    def represent(self) -> Callable[[Tensor], Tensor] | None:
        return partial(clip_rows, norm=float(self.clip or 0)) if self.unit == RECORD else None

    def defend(self, artifact: Artifact, sending: Sending, rng: torch.Generator) -> Artifact:
        if not is_one_of(type(artifact), roles_with_sensitivity(self.unit)):
            return artifact
        bound = float(self.clip or 0)
        if self.unit == CLIENT:
            artifact = clip_to_norm(artifact, bound, sending)
        z = self.multiplier(sending.kinds, sending.rounds)
        scales = z * sensitivities(artifact, bound, self.unit, sending)
        return noisy(artifact, scales, lambda shape: torch.randn(shape, generator=rng))

    def cost(self, facts: FederationFacts) -> PrivacyCost:
        z = self.multiplier(facts.kinds, facts.rounds)
        kinds = tuple(
            k for k in facts.kinds_with_values if is_one_of(k, roles_with_sensitivity(self.unit))
        )
        return PrivacyCost(
            unit=self.unit,
            delta=self.delta,
            releases=tuple((Release(z, 1.0, uses(kinds, n)),) for n in facts.participations),
            pure=(0.0,) * facts.clients,
            covers=kinds,
            assumptions=PUBLIC,
        )

    def public(self, facts: FederationFacts) -> dict[str, Any]:
        return {**plain_plugin(self), "noise": self.multiplier(facts.kinds, facts.rounds)}

    def channel(self, facts: FederationFacts) -> Channel:
        z = self.multiplier(facts.kinds, facts.rounds)
        return noise_channel(self.unit, float(self.clip or 0), z, normal=True)
