"""Differentially private local training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import is_one_of
from fedre_privacy.core.channels import Channel, NoisySteps
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import ConfigError

from .accounting import ACCOUNTANTS, epsilon_of, least_noise
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
from .private_steps import Loss, obstacle, refusal, train_privately
from .values import TRAINED


@defenses.register("dp-sgd")
@dataclass(frozen=True, kw_only=True)
class DPSGD(Defense):
    """Train locally on clipped per-sample gradients with normal noise, by Opacus.

    Every step takes each of a client's n samples with chance B / n (Poisson sampling; steps a
    round: epochs times the whole part of n / B, as without it), shortens each gradient, of all
    trained modules together, to the length C, adds noise of standard deviation z C to the sum and
    divides it by B. Before a client trains, gradients of its first samples are compared with those
    of each sample alone: a loss that couples the samples of a batch, for which clipping bounds
    nothing, is refused.

    Acts on:    local training
    Channel:    noisy training
    Guarantee:  (epsilon, delta) for adding or removing one record, for what is sent of the trained
                parameters, all rounds together. Where prototypes or entangled representations are
                sent, the data are used again: only together with gaussian or laplace,
                ``unit=record``, whose releases are then added to the account
    Leaves:     labels, label encodings and counts as sent; recorded losses and accuracies
    Reference:  Abadi et al., Deep learning with differential privacy, CCS 2016.
    Deviations: the protocol's own limit on gradient norms applies to the noisy gradient. Uploads'
                noise is counted at the sensitivity of replacing a record, an upper bound.
    """

    when_to_use = (
        "a differential privacy guarantee for single training images, whatever is uploaded"
    )

    noise: float | None = knob(None, help="noise multiplier z; or give epsilon", ge=0)
    clip: float | None = knob(None, help="largest length C of a sample's gradient; needed", gt=0)
    delta: float = knob(1e-5, help="delta at which epsilon is stated", gt=0, lt=1)
    accountant: str = knob("prv", help="how steps are added up", choices=ACCOUNTANTS)
    epsilon: float | None = knob(
        None,
        help="what steps of the client that spends most may spend over the whole run (RDP bound), "
        "from which the noise is worked out; noise on uploads spends more beside it",
        later=True,
    )

    def __post_init__(self) -> None:
        problems = []
        if self.clip is None:
            problems.append(
                "Defence 'dp-sgd' needs clip, the gradient length, for example "
                "dp-sgd:noise=1,clip=1."
            )
        if (self.noise is None) == (self.epsilon is None):
            problems.append(
                "Defence 'dp-sgd' needs one of noise (the multiplier z) and epsilon (of all "
                "steps), for example dp-sgd:epsilon=8,clip=1."
            )
        if self.epsilon is not None and self.epsilon <= 0:
            problems.append(f"Defence 'dp-sgd' was given epsilon {self.epsilon:g}; it must be > 0.")
        if self.noise == 0:
            problems.append(
                "Defence 'dp-sgd' with noise 0 has no privacy to state. Give a positive noise."
            )
        if problems:
            raise ConfigError(*problems)

    def check(self, facts: FederationFacts) -> list[str]:
        problems = check_delta(self.name, self.delta, RECORD, facts)
        models = map(facts.model, range(facts.clients)) if facts.model else ()
        for client, model in enumerate(models):
            if found := obstacle(model):
                problems.append(refusal(f"client {client}", *found))
        return problems

    def settled(self, facts: FederationFacts) -> Defense:
        if self.epsilon is None:
            return self

        def within(noise: float) -> bool:
            cost = replace(self, noise=noise, epsilon=None).cost(facts)
            spent = {epsilon_of(own, self.delta, "rdp") for own in set(cost.releases)}
            return max(spent, default=0.0) <= float(self.epsilon or 0)

        return replace(self, noise=least_noise(within), epsilon=None)

    def trainer(self) -> Trainer:
        return self

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(training=(NoisySteps(float(self.clip or 0), float(self.noise or 0)),))

    def cost(self, facts: FederationFacts) -> PrivacyCost:
        releases = []
        for counts, rounds in zip(facts.class_counts, facts.participations, strict=True):
            size = sum(counts)
            batch = min(facts.batch_size, size)
            steps = facts.epochs * (size // batch) if batch else 0
            if facts.local_steps is not None:
                steps = min(steps, facts.local_steps)
            rate = batch / size if size else 1.0
            releases.append((Release(float(self.noise or 0), rate, steps * rounds),))
        return PrivacyCost(
            unit=RECORD,
            delta=self.delta,
            releases=tuple(releases),
            pure=(0.0,) * facts.clients,
            covers=tuple(
                k for k in facts.kinds_with_values if is_one_of(k, (*TRAINED, Role.PACKED))
            ),
            assumptions=(
                "one record is added or removed; the number of samples, of which rates, steps and "
                "divisors are made, stays; batches are Poisson samples that stay secret",
                "the noise is secret (here it comes from the run's seed) and exact (here floating "
                "point)",
            ),
            accountant=self.accountant,
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
        """Poisson samples of each step; they may be empty."""
        size = min(batch_size, count)
        number = epochs * (count // size) if size else 0
        for _ in range(number if steps is None else min(number, steps)):
            taken = torch.rand(count, generator=rng, dtype=torch.float64) < size / count
            yield taken.nonzero().squeeze(1).to(device)

    def fit(
        self,
        modules: Iterable[nn.Module],
        loss: Loss,
        samples: TrainingSamples,
        *,
        epochs: int,
        batch_size: int,
        lr: float | Sequence[float],
        rng: torch.Generator,
        noise_rng: torch.Generator,
        who: str,
        clip_norm: float | None = None,
        steps: int | None = None,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        change: Callable[[Tensor], Tensor] = lambda images: images,
        absent: Tensor | None = None,
    ) -> float:
        """Train modules together in place and return the mean loss, as `blocks.local.fit` does.

        Args:
            noise_rng: CPU stream of the noise. who: client and protocol, for messages.
            momentum, weight_decay: applied to the noisy gradient, which costs no privacy.
            change: of a batch's images before the loss, each apart from the others.
            absent: (n,) bool, samples that are counted and drawn like the others, and then left
                out of the batch.

        Raises:
            IncompatibleError: a module, or the loss, that has no per-sample gradients.
        """
        return train_privately(
            modules, loss, samples,
            self.batches(
                len(samples), batch_size, epochs, rng, steps=steps, device=samples.labels.device
            ),
            clip=float(self.clip or 0), noise=float(self.noise or 0),
            divisor=min(batch_size, len(samples)), lr=lr, noise_rng=noise_rng, who=who,
            clip_norm=clip_norm, momentum=momentum, weight_decay=weight_decay, change=change,
            absent=absent,
        )  # fmt: skip
