"""Differentially private local training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import is_one_of
from fedre_privacy.core.channels import Channel, NoisySteps
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.optimisers import SGD, groups_of

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
from .values import TRAINED

PROBE = 3
"""TrainingSamples whose gradients are compared with one-by-one ones before a client trains."""

Loss = Callable[[Tensor, Tensor], Tensor]


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
                "one record is added or removed; batches are Poisson samples that stay secret",
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
        modules = list(modules)
        for module in modules:
            if found := obstacle(module):
                raise IncompatibleError(refusal(who, *found))
        groups = groups_of(modules, lr)
        if not any(group["params"] for group in groups) or not len(samples):
            return 0.0
        from opacus.optimizers import DPOptimizer

        params = [p for group in groups for p in group["params"]]
        for module in modules:  # Opacus unfolds images by strides and needs the usual layout
            module.to(memory_format=torch.contiguous_format).train()
        device = samples.labels.device
        sgd = SGD([dict(one) for one in groups], momentum=momentum, weight_decay=weight_decay)
        optimiser = DPOptimizer(
            sgd,
            noise_multiplier=float(self.noise or 0),
            max_grad_norm=float(self.clip or 0),
            expected_batch_size=min(batch_size, len(samples)),
            loss_reduction="mean",
            generator=_on(device, noise_rng),
        )
        total, seen = torch.zeros((), device=device), 0
        with per_sample_gradients(modules, params) as switch:
            _probe(modules, params, loss, samples, switch, who, float(self.clip or 0))
            drawn = self.batches(len(samples), batch_size, epochs, rng, steps=steps, device=device)
            for index in drawn:
                optimiser.zero_grad(set_to_none=True)
                if absent is not None:
                    index = index[~absent.to(device)[index]]
                if len(index):
                    images, labels = samples.batch(index)
                    value = loss(change(images), labels)
                    value.backward()
                    total += value.detach()
                    seen += 1
                _complete(params, len(index))
                optimiser.pre_step()
                if clip_norm is not None:
                    for group in groups:
                        nn.utils.clip_grad_norm_(group["params"], clip_norm)
                sgd.step()
        for module in modules:
            module.eval()
        return float(total) / max(seen, 1)


@contextmanager
def per_sample_gradients(
    modules: Sequence[nn.Module], params: Sequence[nn.Parameter]
) -> Iterator[Callable[[bool], None]]:
    """Let backward passes leave ``grad_sample`` (b, ...) at every parameter; clean up after.

    Yields:
        A switch that turns the recording off and on.
    """
    from opacus.grad_sample import GradSampleHooks

    hooks = [GradSampleHooks(m, loss_reduction="mean") for m in modules if _trainable_parameters(m)]

    def switch(on: bool) -> None:
        for hook in hooks:
            hook.enable_hooks() if on else hook.disable_hooks()

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            yield switch
    finally:
        for hook in hooks:
            hook.cleanup()
        for param in params:
            for name in ("summed_grad", "grad_sample"):
                if hasattr(param, name):
                    delattr(param, name)
        for module in modules:
            for part in module.modules():
                for name in ("activations", "max_batch_len"):
                    part.__dict__.pop(name, None)


def obstacle(module: nn.Module) -> tuple[str, str] | None:
    """The first layer without per-sample gradients: its name and what it is; None if all have."""
    from opacus.grad_sample import GradSampleHooks

    for name, part in module.named_modules():
        kind = type(part).__name__
        own = [p for p in part.parameters(recurse=False) if p.requires_grad]
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            return name, f"{kind}, which mixes the samples of a batch"
        if own and type(part) not in GradSampleHooks.GRAD_SAMPLERS:
            return name, f"{kind}, for which there are no per-sample gradients"
        if getattr(part, "inplace", False):
            return name, f"{kind} in place, which breaks per-sample gradients"
    return None


def refusal(who: str, layer: str, what: str) -> str:
    """The sentence for a model that cannot be trained so."""
    where = f"layer '{layer}'" if layer else "a module of the protocol"
    remedy = "use models of convolutions, linear layers, GroupNorm or LayerNorm, for example"
    if what.startswith("BatchNorm"):
        remedy = "put GroupNorm in its place with --set model.norm=gn, or use for example"
    return f"Defence 'dp-sgd': {who}, {where} is {what}. Remedy: {remedy} --models cnn4 or cnn5."


def _trainable_parameters(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _on(device: torch.device, rng: torch.Generator) -> torch.Generator:
    """A generator on the device; the CPU one itself where that is the device."""
    if device.type == "cpu":
        return rng
    seed = int(torch.randint(2**62, (1,), generator=rng))
    return torch.Generator(device=device).manual_seed(seed)


def _complete(params: Sequence[nn.Parameter], count: int) -> None:
    """Parameters that the loss did not reach, or that saw an empty batch, have gradient 0."""
    for param in params:
        if getattr(param, "grad_sample", None) is None:
            param.grad_sample = param.new_zeros((count, *param.shape))  # type: ignore[attr-defined]


def _same_alone(
    params: Sequence[nn.Parameter],
    loss: Loss,
    images: Tensor,
    labels: Tensor,
    switch: Callable[[bool], None],
    clip: float,
) -> bool:
    """Whether gradients of samples in one batch are those of each sample alone."""
    count = len(labels)
    for param in params:
        param.grad = None
        param.grad_sample = None  # type: ignore[attr-defined]
    loss(images, labels).backward()
    _complete(params, count)
    # a layer that was used on something else than the batch has another number of gradients
    samples: list[Any] = [p.grad_sample for p in params]  # type: ignore[attr-defined]
    if any(not isinstance(one, Tensor) or len(one) != count for one in samples):
        return False
    together = torch.cat([one.flatten(1) for one in samples], 1)
    scale = max(float(together.norm(dim=1).max()), clip)
    if not math.isfinite(scale):
        return True  # the model has diverged, which the training says itself
    fits = True
    switch(False)
    for row in range(count):
        given = loss(images[row : row + 1], labels[row : row + 1])
        alone = torch.autograd.grad(given, params, materialize_grads=True)
        flat = torch.cat([slope.flatten() for slope in alone])
        fits &= bool((together[row] - flat).norm() <= 1e-4 * scale)
    switch(True)
    return fits


def _probe(
    modules: Sequence[nn.Module],
    params: Sequence[nn.Parameter],
    loss: Loss,
    samples: TrainingSamples,
    switch: Callable[[bool], None],
    who: str,
    clip: float,
) -> None:
    """Compare per-sample gradients of a few samples with those of each alone.

    Raises:
        IncompatibleError: they differ, so the loss is no mean over samples.
    """
    count = min(PROBE, len(samples))
    parts = [part for module in modules for part in module.modules()]
    quiet = [part for part in parts if isinstance(part, nn.modules.dropout._DropoutNd)]
    for part in quiet:
        part.eval()
    images, labels = samples.batch(slice(0, count))
    fits = _same_alone(params, loss, images, labels, switch, clip)
    if not fits:
        # in single precision a unit at the kink of its ReLU may fall on either side: ask again
        try:
            for module in modules:
                module.double()
            fits = _same_alone(params, loss, images.double(), labels, switch, clip)
        except RuntimeError:  # the loss uses something that stayed in single precision
            pass
        finally:
            for module in modules:
                module.float()
    for part in quiet:
        part.train()
    if not fits:
        raise IncompatibleError(
            f"Defence 'dp-sgd': the local loss of {who} couples the samples of a batch: their "
            "gradients are others together than alone, so clipping each would bound nothing.",
            next_step="Choose a protocol whose loss is a mean over samples, such as fedavg, fedre "
            "or fedproto.",
        )
