"""What noise defences share: sensitivities, checks, and the noise itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import Artifact, is_one_of
from fedre_privacy.core.channels import Channel, ClippingStep, Noise, UnknownNoise

from .base import CLIENT, Defense, FederationFacts, Sending
from .values import BOUNDED, COLLECTED, VECTORS, num_rows, record_weights, values_of, with_values

A = TypeVar("A", bound=Artifact)

PUBLIC = (
    "the bound on lengths was not chosen by looking at the data",
    "the noise is secret (here it comes from the run's seed) and exact (here floating point)",
)


def roles_with_sensitivity(unit: str) -> tuple[Role, ...]:
    """Roles of the kinds whose sensitivity is known for a unit."""
    return BOUNDED if unit == CLIENT else COLLECTED


def sensitivities(artifact: Artifact, bound: float, unit: str, sending: Sending) -> Tensor:
    """L2 sensitivity by which each row's noise is scaled: (rows,) float64, or (1,) for an update.

    Replacing all data of a client moves m bounded vectors by 2 S sqrt(m) together. Replacing one
    record moves the only vector that it enters by 2 S times its weight there.
    """
    if unit == CLIENT:
        rows = num_rows(artifact)
        return torch.full((rows,), 2 * bound * rows**0.5, dtype=torch.float64)
    return 2 * bound * record_weights(sending.mixture, sending)


def noisy(artifact: A, scales: Tensor, draw: Callable[[torch.Size], Tensor]) -> A:
    """Add noise of a shape's standard law, scaled row by row (rows,) or as a whole (1,).

    Nothing is lost by adding it to parameters instead of to their update.
    """
    out = {}
    for name, value in values_of(artifact).items():
        scale = scales.to(value).reshape(-1, 1)
        each = draw(value.shape)
        if is_one_of(type(artifact), VECTORS):
            out[name] = value + (scale * each.reshape(len(scale), -1)).reshape(value.shape)
        else:
            out[name] = value + scale.reshape(()) * each
    return with_values(artifact, out)


def noise_channel(
    unit: str, bound: float, multiplier: float, *, per_number: bool = False, normal: bool = False
) -> Channel:
    """What a noise defence tells attackers: its bound, and its noise where a server can know it.

    For one client the sensitivity follows from what is public. For one record it depends on the
    numbers of samples behind a row, which the server need not know.

    Args:
        multiplier: standard deviation on a number over the L2 sensitivity of the upload.
        per_number: the standard deviation grows with the square root of what is sent.
        normal: its law is the normal one.
    """
    if unit != CLIENT:
        return Channel(each=(ClippingStep(bound),), rows=(UnknownNoise(),))
    std = 2 * bound * multiplier
    return Channel(
        rows=(ClippingStep(bound), Noise(std, True, per_number, normal)),
        updates=(ClippingStep(bound), Noise(std, False, per_number, normal)),
    )


def missing_clip(name: str) -> str:
    """The sentence for noise without a bound."""
    return (
        f"Defence '{name}' needs clip, the length to which is bounded what is sent: without a "
        f"bound no noise hides anybody. For example {name}:clip=1."
    )


def check_noise(defense: Defense, unit: str, delta: float, facts: FederationFacts) -> list[str]:
    """Every reason why a noise defence cannot be used."""
    problems = []
    kinds = roles_with_sensitivity(unit)
    sent = ", ".join(kind.__name__ for kind in facts.kinds_with_values) or "nothing"
    if not any(is_one_of(kind, kinds) for kind in facts.kinds_with_values):
        remedy = "Use dp-sgd for what is trained." if unit != CLIENT else "Choose another protocol."
        problems.append(
            f"Defence '{defense.name}' with unit={unit} has nothing to add noise to: protocol "
            f"'{facts.protocol}' sends {sent}. {remedy}"
        )
    unknown = [kind.__name__ for kind in facts.kinds_with_values if not is_one_of(kind, BOUNDED)]
    if unit == CLIENT and unknown and len(unknown) < len(facts.kinds_with_values):
        problems.append(
            f"Defence '{defense.name}' cannot bound {', '.join(unknown)}, which protocol "
            f"'{facts.protocol}' sends as well."
        )
    if facts.buffers:
        problems.append(
            f"Defence '{defense.name}' would add noise to BatchNorm's running variances, which "
            "must stay positive. Set protocol.buffers=false."
        )
    return problems + check_delta(defense.name, delta, unit, facts)


def check_delta(name: str, delta: float, unit: str, facts: FederationFacts) -> list[str]:
    """A delta of 1/n or more allows to publish somebody's data outright."""
    if unit == CLIENT:
        count, what = facts.clients, "clients"
    else:
        count, what = max(map(sum, facts.class_counts)), "records of the largest client"
    if delta < 1 / max(count, 1):
        return []
    return [
        f"Defence '{name}' has delta {delta:g}, but with {count} {what} it must be below "
        f"1/{count} = {1 / count:.2g}: at that, publishing one of them outright would pass."
    ]
