"""Local training and passes over a client's data, shared by every protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice

import torch
from torch import Tensor, nn

from fedre_privacy.core.optimisers import SGD, groups_of
from fedre_privacy.models.norm import running_norms, take_statistics

from .state import Samples

EVAL_BATCH = 256
"""Images per forward pass without gradients; a constant, so results do not depend on memory."""

Pass = Callable[[nn.Module, Samples], Tensor | None]
"""Makes a module's outputs (n, d) for samples in its own way; None where it cannot."""

_own_pass: ContextVar[Pass | None] = ContextVar("own_pass", default=None)


def batches(
    count: int,
    batch_size: int,
    epochs: int,
    rng: torch.Generator,
    *,
    shuffle: bool = True,
    device: torch.device | None = None,
) -> Iterator[Tensor]:
    """Sample numbers of each batch of local training.

    Args:
        count: samples to train on; fewer than a batch are one batch of all of them.
        rng: CPU stream for the order, drawn from once an epoch.
        shuffle: draw a new order every epoch, or go through the samples as they are stored.
        device: where the numbers go; none: the CPU.

    Yields:
        (min(batch_size, count),) int64; the last short batch of an epoch is dropped.
    """
    size = min(batch_size, count)
    for _ in range(epochs):
        order = torch.randperm(count, generator=rng) if shuffle else torch.arange(count)
        order = order.to(device)
        for start in range(0, count - size + 1, size):
            yield order[start : start + size]


def train_locally(
    modules: Iterable[nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor],
    samples: Samples,
    *,
    epochs: int,
    batch_size: int,
    lr: float | Sequence[float],
    rng: torch.Generator,
    clip_norm: float | None = None,
    shuffle: bool = True,
    steps: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    change: Callable[[Tensor], Tensor] = lambda images: images,
) -> float:
    """Train modules together by SGD on one scalar loss and return its mean.

    Batches are those of `batches`. After it, every parameter's ``grad`` is that of the last batch.
    Modules without a parameter to train are left alone, and the loss is 0.

    Args:
        lr: one step size, or one for each module.
        clip_norm: largest gradient norm of each module, or None.
        loss: batch images (b, C, H, W) in [0, 1] and labels (b,) to a scalar.
        rng: CPU stream for the order of samples.
        shuffle: see `batches`. steps: stop after so many batches; none: after `epochs`.
        momentum, weight_decay: of SGD, as in `torch.optim.SGD`.
        change: what a batch's images (b, C, H, W) go through before the loss.
    """
    modules = list(modules)
    groups = groups_of(modules, lr)
    if not any(group["params"] for group in groups):
        return 0.0
    optimiser = SGD([dict(one) for one in groups], momentum=momentum, weight_decay=weight_decay)
    for module in modules:
        module.train()
    device = samples.labels.device
    total, done = torch.zeros((), device=device), 0
    chosen = batches(len(samples), batch_size, epochs, rng, shuffle=shuffle, device=device)
    for index in islice(chosen, steps):
        images, labels = samples.batch(index)
        value = loss(change(images), labels)
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        if clip_norm is not None:
            for group in groups:
                nn.utils.clip_grad_norm_(group["params"], clip_norm)
        optimiser.step()
        total += value.detach()
        done += 1
    for module in modules:
        module.eval()
    return float(total) / max(done, 1)


def recompute_statistics(modules: Iterable[nn.Module], samples: Samples) -> None:
    """Take BatchNorm's running statistics of modules anew from a client's images.

    All at once, or in equal parts of at most `EVAL_BATCH`.
    """
    for module in modules:
        if running_norms(module):
            numbers = torch.arange(len(samples), device=samples.labels.device)
            parts = numbers.tensor_split(-(-len(samples) // EVAL_BATCH))
            take_statistics(module, (samples.batch(part)[0] for part in parts))


@contextmanager
def passes_by(own: Pass) -> Iterator[None]:
    """Let `represent` take what `own` makes of a module and samples, in a block."""
    token = _own_pass.set(own)
    try:
        yield
    finally:
        _own_pass.reset(token)


@torch.no_grad()
def represent(extractor: nn.Module, samples: Samples) -> Tensor:
    """Representations (n, d) of all samples in order, in eval mode, none dropped."""
    extractor.eval()
    own = _own_pass.get()
    found = None if own is None else own(extractor, samples)
    if found is not None:
        return found
    pieces = []
    for start in range(0, len(samples), EVAL_BATCH):
        images, _ = samples.batch(slice(start, start + EVAL_BATCH))
        pieces.append(extractor(images))
    return torch.cat(pieces)


@torch.no_grad()
def outputs_of(model: nn.Module, samples: Samples) -> Tensor:
    """Logits (n, C) of all samples in order, in eval mode."""
    return represent(model, samples)


@torch.no_grad()
def count_correct(logits: Callable[[Tensor], Tensor], samples: Samples) -> int:
    """Number of samples whose largest logit is the true class."""
    correct = torch.zeros((), dtype=torch.int64, device=samples.labels.device)
    for start in range(0, len(samples), EVAL_BATCH):
        images, labels = samples.batch(slice(start, start + EVAL_BATCH))
        correct += (logits(images).argmax(1) == labels).sum()
    return int(correct)
