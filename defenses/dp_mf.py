"""Private local training with noise that is correlated from step to step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import is_one_of
from fedre_privacy.core.channels import Channel, CorrelatedSteps
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.gdp import gdp_mu

from .base import (
    RECORD,
    Defense,
    FederationFacts,
    PrivacyCost,
    Release,
    Trainer,
    TrainingSamples,
    defenses,
)
from .noise import check_delta
from .private_steps import Correlate, Loss, obstacle, refusal, train_privately
from .values import TRAINED


@defenses.register("dp-mf")
@dataclass(frozen=True, kw_only=True)
class DPMF(Defense):
    """Train locally on clipped per-sample gradients with banded matrix factorisation noise.

    The batches of a round are the same in every epoch: a random order of the client's n samples,
    cut into b = n // B batches of B, so that a sample is in every b-th step. Gradients are
    shortened to the length C and summed; the sum of step t gets noise z C g_t and is divided by B,
    where g_t = v_t - c_1 g_(t-1) - ... - c_(p-1) g_(t-p+1) for independent normal v and
    c_i = binom(2 i, i) / 4^i, the square root of the matrix of running sums. Most of a step's noise
    is taken back by the steps after it. A round is a Gaussian mechanism of noise multiplier
    z / sqrt(k (1 + c_1^2 + ... + c_(p-1)^2)) where a sample is in k steps, whatever is seen of its
    single steps; rounds add up. No chance of being left out is claimed, so batches need not stay
    secret.

    Acts on:    local training
    Channel:    noisy training with correlated noise
    Guarantee:  (epsilon, delta) for adding or removing one record, where absence leaves its place
                in its batch empty; for what is sent of the trained parameters, all rounds
                together. Prototypes and entangled representations as with dp-sgd
    Leaves:     labels, label encodings and counts as sent; recorded losses and accuracies
    Reference:  Choquette-Choo et al., Multi-epoch matrix factorization mechanisms, ICML 2023 (noise
                and minimum separation); Kalinin, Lampert, Banded square root matrix factorization,
                NeurIPS 2024 (coefficients, sensitivity); Denisov et al., NeurIPS 2022.
    Deviations: noise starts afresh in every round, so that a round that is repeated after a kill
                needs nothing of those before it. The samples that no batch holds (n mod B) change
                from round to round.
    """

    when_to_use = "as dp-sgd, where a client takes many steps a round or its batches are no secret"

    noise: float | None = knob(None, help="noise multiplier z; or give epsilon", gt=0)
    clip: float | None = knob(None, help="largest length C of a sample's gradient; needed", gt=0)
    delta: float = knob(1e-5, help="delta at which epsilon is stated", gt=0, lt=1)
    bands: int | None = knob(
        None, help="coefficients p that are used (default: as many as a sample waits steps)", ge=1
    )
    epsilon: float | None = knob(
        None,
        help="what the client that spends most may spend over the whole run, from which the noise "
        "is worked out",
        gt=0,
    )

    def __post_init__(self) -> None:
        problems = []
        if self.clip is None:
            problems.append(
                "Defence 'dp-mf' needs clip, the gradient length, for example dp-mf:noise=1,clip=1."
            )
        if (self.noise is None) == (self.epsilon is None):
            problems.append(
                "Defence 'dp-mf' needs one of noise (the multiplier z) and epsilon (of the whole "
                "run), for example dp-mf:epsilon=8,clip=1."
            )
        if problems:
            raise ConfigError(*problems)

    def check(self, facts: FederationFacts) -> list[str]:
        problems = check_delta(self.name, self.delta, RECORD, facts)
        models = map(facts.model, range(facts.clients)) if facts.model else ()
        for client, model in enumerate(models):
            if found := obstacle(model):
                problems.append(refusal(f"client {client}", *found, self.name))
        return problems

    def settled(self, facts: FederationFacts) -> Defense:
        if self.epsilon is None:
            return self
        most = max(
            (
                self._length(sum(counts), facts) * math.sqrt(rounds)
                for counts, rounds in zip(facts.class_counts, facts.participations, strict=True)
            ),
            default=0.0,
        )
        return replace(self, noise=max(most, 1e-9) / gdp_mu(self.epsilon, self.delta), epsilon=None)

    def trainer(self) -> Trainer:
        return self

    def channel(self, facts: FederationFacts) -> Channel:
        waits = [_waits(sum(counts), facts.batch_size) for counts in facts.class_counts]
        found = coefficients(self._bands(max(waits, default=1)))
        steps = CorrelatedSteps(float(self.clip or 0), float(self.noise or 0), found)
        return Channel(training=(steps,))

    def cost(self, facts: FederationFacts) -> PrivacyCost:
        releases = []
        for counts, rounds in zip(facts.class_counts, facts.participations, strict=True):
            length = self._length(sum(counts), facts)
            used = rounds if length else 0
            releases.append((Release(float(self.noise or 0) / (length or 1.0), 1.0, used),))
        return PrivacyCost(
            unit=RECORD,
            delta=self.delta,
            releases=tuple(releases),
            pure=(0.0,) * facts.clients,
            covers=tuple(
                k for k in facts.kinds_with_values if is_one_of(k, (*TRAINED, Role.PACKED))
            ),
            assumptions=(
                "one record is added or removed, and its place in its batch stays empty",
                "the noise is secret (here it comes from the run's seed) and exact (here floating "
                "point)",
            ),
            replaces=False,
        )

    def batches(
        self,
        count: int,
        batch_size: int,
        epochs: int,
        rng: torch.Generator,
        *,
        steps: int | None = None,
        device: torch.device | None = None,
    ) -> Iterator[Tensor]:
        """Batches (B,) of one random order, in every epoch the same."""
        size = min(batch_size, count)
        each = count // size if size else 0
        number = epochs * each
        order = torch.randperm(count, generator=rng)
        for step in range(number if steps is None else min(number, steps)):
            first = step % each * size
            yield order[first : first + size].to(device)

    def fit(
        self,
        modules: Iterable[nn.Module],
        loss: Loss,
        samples: TrainingSamples,
        *,
        epochs: int,
        batch_size: int,
        rng: torch.Generator,
        steps: int | None = None,
        **given: Any,
    ) -> float:
        """Train modules together in place and return the mean loss.

        Args:
            given: as of `DPSGD.fit`, and handed to `train_privately`.

        Raises:
            IncompatibleError: a module, or the loss, that has no per-sample gradients.
        """
        count, device = len(samples), samples.labels.device
        bands = self._bands(_waits(count, batch_size))
        return train_privately(
            modules, loss, samples,
            self.batches(count, batch_size, epochs, rng, steps=steps, device=device),
            clip=float(self.clip or 0), noise=float(self.noise or 0),
            divisor=min(batch_size, count), correlate=correlated(coefficients(bands)),
            defense=self.name, **given,
        )  # fmt: skip

    def _bands(self, waits: int) -> int:
        return waits if self.bands is None else min(self.bands, waits)

    def _length(self, size: int, facts: FederationFacts) -> float:
        """Sensitivity of a round of a client, in units of C."""
        waits = _waits(size, facts.batch_size)
        steps = facts.epochs * waits if size else 0
        if facts.local_steps is not None:
            steps = min(steps, facts.local_steps)
        return sensitivity(coefficients(self._bands(waits)), waits, steps)


def _waits(size: int, batch_size: int) -> int:
    """After how many steps a sample is in a batch again."""
    return max(1, size // max(1, min(batch_size, size)))


def coefficients(bands: int) -> tuple[float, ...]:
    """First coefficients of the square root of the matrix of running sums: 1, 1/2, 3/8, ..."""
    found = [1.0]
    for i in range(1, bands):
        found.append(found[-1] * (2 * i - 1) / (2 * i))
    return tuple(found)


def sensitivity(coefficients: Sequence[float], waits: int, steps: int) -> float:
    """Length of what a sample of gradient length 1 moves before independent noise is added.

    Its columns do not overlap, as a sample waits for at least as many steps as there are
    coefficients; those that begin first are the longest.

    Args:
        waits: steps from one use of a sample to the next. steps: of a round.
    """
    squares = 0.0
    for first in range(0, steps, waits):
        squares += sum(c * c for c in coefficients[: steps - first])
    return math.sqrt(squares)


def correlated(coefficients: Sequence[float]) -> Correlate:
    """Noise that takes part of itself back; it keeps that of as many steps as coefficients."""
    past: deque[list[Tensor]] = deque(maxlen=len(coefficients) - 1)

    def draw(params: Sequence[Tensor], rng: torch.Generator) -> list[Tensor]:
        made = [torch.randn(p.shape, generator=rng, device=p.device, dtype=p.dtype) for p in params]
        for factor, before in zip(coefficients[1:], past, strict=False):
            torch._foreach_add_(made, before, alpha=-factor)
        past.appendleft(made)
        return made

    return draw
