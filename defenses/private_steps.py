"""What private training shares: steps on clipped gradients of samples with noise, by Opacus."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.optimisers import SGD, groups_of

from .base import TrainingSamples

PROBE = 3
"""TrainingSamples whose gradients are compared with one-by-one ones before a client trains."""

Loss = Callable[[Tensor, Tensor], Tensor]
Correlate = Callable[[Sequence[Tensor], torch.Generator], list[Tensor]]
"""The normal noise of a step for parameters of these shapes, given a stream of random numbers."""


def train_privately(
    modules: Iterable[nn.Module],
    loss: Loss,
    samples: TrainingSamples,
    batches: Iterable[Tensor],
    *,
    clip: float,
    noise: float,
    divisor: int,
    lr: float | Sequence[float],
    noise_rng: torch.Generator,
    who: str,
    correlate: Correlate | None = None,
    defense: str = "dp-sgd",
    clip_norm: float | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    change: Callable[[Tensor], Tensor] = lambda images: images,
    absent: Tensor | None = None,
) -> float:
    """Take steps on clipped per-sample gradients with noise on their sum; return the mean loss.

    Args:
        batches: sample numbers (b,) of each step; b may be 0.
        clip, noise: length C of a sample's gradient, and z; the noise on the sum is z C times a
            normal number.
        divisor: of the noisy sum; the same whoever is in the batch.
        correlate: makes the normal numbers; None: independent ones.
        defense: named where something is refused. Others as of `DPSGD.fit`.

    Raises:
        IncompatibleError: a module, or the loss, that has no per-sample gradients.
    """
    modules = list(modules)
    for module in modules:
        if found := obstacle(module):
            raise IncompatibleError(refusal(who, *found, defense))
    groups = groups_of(modules, lr)
    if not any(group["params"] for group in groups) or not len(samples):
        return 0.0
    from opacus.optimizers import DPOptimizer

    params = [p for group in groups for p in group["params"]]
    for module in modules:  # Opacus unfolds images by strides and needs the usual layout
        module.to(memory_format=torch.contiguous_format).train()
    device = samples.labels.device
    sgd = SGD([dict(one) for one in groups], momentum=momentum, weight_decay=weight_decay)
    generator = _on(device, noise_rng)
    optimiser = DPOptimizer(
        sgd,
        noise_multiplier=noise if correlate is None else 0.0,
        max_grad_norm=clip,
        expected_batch_size=divisor,
        loss_reduction="mean",
        generator=generator,
    )
    total, seen = torch.zeros((), device=device), 0
    with per_sample_gradients(modules, params) as switch:
        _probe(modules, params, loss, samples, switch, who, clip, defense)
        for index in batches:
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
            if correlate is not None:
                for param, each in zip(params, correlate(params, generator), strict=True):
                    assert param.grad is not None
                    param.grad.add_(each, alpha=noise * clip / divisor)
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


def refusal(who: str, layer: str, what: str, defense: str = "dp-sgd") -> str:
    """The sentence for a model that cannot be trained so."""
    where = f"layer '{layer}'" if layer else "a module of the protocol"
    remedy = "use models of convolutions, linear layers, GroupNorm or LayerNorm, for example"
    if what.startswith("BatchNorm"):
        remedy = "put GroupNorm in its place with --set model.norm=gn, or use for example"
    return f"Defence '{defense}': {who}, {where} is {what}. Remedy: {remedy} --models cnn4 or cnn5."


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
    defense: str,
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
            f"Defence '{defense}': the local loss of {who} couples the samples of a batch: their "
            "gradients are others together than alone, so clipping each would bound nothing.",
            next_step="Choose a protocol whose loss is a mean over samples, such as fedavg, fedre "
            "or fedproto.",
        )
