"""Laplace noise on what is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, is_one_of
from fedre_privacy.core.channels import Channel
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import ConfigError

from .base import CLIENT, RECORD, Defense, FederationFacts, PrivacyCost, Sending, defenses, uses
from .noise import (
    PUBLIC,
    check_noise,
    missing_clip,
    noise_channel,
    noisy,
    roles_with_sensitivity,
    sensitivities,
)
from .values import BOUNDED, clip_rows, clip_to_norm, values_of


@defenses.register("laplace")
@dataclass(frozen=True, kw_only=True)
class Laplace(Defense):
    """Bound what is sent to a Euclidean length S and add Laplace noise of scale Delta_1 / epsilon.

    Delta_1 is at most sqrt(d) times the Euclidean sensitivity of gaussian, with d the numbers that
    change together; so the noise grows with the length of what is sent, and gaussian needs far
    less of it for long vectors.

    Acts on:    vectors (representations, prototypes, entangled, class outputs) and updates
    Channel:    as for gaussian; attackers are told the size of the noise and not its law
    Guarantee:  unit=client: epsilon times the uploads of the whole run, delta 0, for one client
                against the server. unit=record: only with dp-sgd
    Leaves:     labels, label encodings, counts, and who takes part when
    Reference:  Dwork et al., Calibrating noise to sensitivity, TCC 2006.
    Deviations: as for gaussian.
    """

    when_to_use = (
        "pure differential privacy (delta 0) of short vectors; long ones need far more noise"
    )
    acts_on = BOUNDED
    adds_noise = True

    clip: float | None = knob(None, help="Euclidean length S to which is bounded; needed", gt=0)
    epsilon: float = knob(1.0, help="epsilon of one upload; a run spends it every round")
    unit: str = knob(CLIENT, help="whose data are hidden", choices=(CLIENT, RECORD))

    def __post_init__(self) -> None:
        problems = [missing_clip(self.name)] if self.clip is None else []
        if self.epsilon <= 0:
            problems.append(
                f"Defence 'laplace' was given epsilon {self.epsilon:g}; it must be > 0."
            )
        if problems:
            raise ConfigError(*problems)

    def check(self, facts: FederationFacts) -> list[str]:
        return check_noise(self, self.unit, 0.0, facts)

    def represent(self) -> Callable[[Tensor], Tensor] | None:
        return partial(clip_rows, norm=float(self.clip or 0)) if self.unit == RECORD else None

    def defend(self, artifact: Artifact, sending: Sending, rng: torch.Generator) -> Artifact:
        if not is_one_of(type(artifact), roles_with_sensitivity(self.unit)):
            return artifact
        bound = float(self.clip or 0)
        if self.unit == CLIENT:
            artifact = clip_to_norm(artifact, bound, sending)
        numel = sum(value.numel() for value in values_of(artifact).values())
        scales = sensitivities(artifact, bound, self.unit, sending)
        together = numel if self.unit == CLIENT else numel // len(scales)
        scales = scales * together**0.5 / self.epsilon

        def draw(shape: torch.Size) -> Tensor:
            uniform = torch.rand(shape, generator=rng, dtype=torch.float64)
            centred = uniform.clamp(min=1e-16) - 0.5
            return (-centred.sign() * torch.log1p(-2 * centred.abs())).float()

        return noisy(artifact, scales, draw)

    def cost(self, facts: FederationFacts) -> PrivacyCost:
        kinds = tuple(
            k for k in facts.kinds_with_values if is_one_of(k, roles_with_sensitivity(self.unit))
        )
        return PrivacyCost(
            unit=self.unit,
            delta=0.0,
            releases=((),) * facts.clients,
            pure=tuple(self.epsilon * uses(kinds, n) for n in facts.participations),
            covers=kinds,
            assumptions=PUBLIC,
        )

    def channel(self, facts: FederationFacts) -> Channel:
        # a Laplace variable of scale b has the standard deviation sqrt(2) b
        multiplier = math.sqrt(2) / self.epsilon
        return noise_channel(self.unit, float(self.clip or 0), multiplier, per_number=True)
