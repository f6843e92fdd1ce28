"""Local training re-run on candidate images, differentiable from end to end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .match import Named, called, gradient, soft_cross_entropy


@dataclass(frozen=True)
class LocalSteps:
    """Plain SGD as a client does it; calling it gives parameters before minus after.

    Args:
        lr: step size.
        epochs: passes over the candidates.
        per_epoch: batches of a pass; candidate i is in batch i modulo this number, in every pass,
            since the client's order is not known.
        save_memory: recompute each step in the backward pass in place of keeping it; not under
            vmap.
    """

    lr: float
    epochs: int
    per_epoch: int
    save_memory: bool = False

    def __call__(
        self, module: nn.Module, params: Named, buffers: Named, images: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        names = list(params)

        def step(batch: Tensor, targets: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            at = dict(zip(names, values, strict=True))
            if not self.save_memory:
                slopes = gradient(module, at, buffers, batch, targets)
                return tuple(at[name] - self.lr * slopes[name] for name in names)
            free = [v if v.requires_grad else v.detach().requires_grad_() for v in values]
            made = called(module, dict(zip(names, free, strict=True)), buffers, batch)
            slopes_ = torch.autograd.grad(
                soft_cross_entropy(made, targets), free, create_graph=True
            )
            return tuple(v - self.lr * s for v, s in zip(values, slopes_, strict=True))

        values = tuple(params.values())
        for _ in range(self.epochs):
            for part in range(self.per_epoch):
                batch, targets = images[part :: self.per_epoch], labels[part :: self.per_epoch]
                if self.save_memory:
                    values = checkpoint(step, batch, targets, *values, use_reentrant=False)
                else:
                    values = step(batch, targets, *values)
        return {name: params[name] - after for name, after in zip(names, values, strict=True)}
