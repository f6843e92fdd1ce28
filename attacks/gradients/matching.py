"""The match of candidate batches to uploads: one number per row, all rows in one tensor program.

A row is one start of one victim. Rows run under `torch.func.vmap`; a single row runs without, and
so do rows of a module that torch.func refuses, one after another.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedre_privacy.attacks.common.channels import Sent

from .dropout_masks import place_masks
from .objectives import Distance, layer_weights
from .victims import Victim, batch_norms, differentiable_copy, stack_parameters

Named = Mapping[str, Tensor]
Simulate = Callable[[nn.Module, Named, Named, Tensor, Tensor], dict[str, Tensor]]
"""(module, parameters, buffers, images (B, C, H, W), labels (B, K)) to what a client would send."""

MIDDLE = 0.5
"""Share of the way from before to after local training at which a match on the path begins."""
PLACE_RATE = 0.1
"""Step of a place on the path, in [0, 1], for each unit of the step of a pixel."""
MASK_RATE = 1.0
"""Step of a mask of dropout, in [0, 1 / (1 - p)], for each unit of the step of a pixel."""
UPSTREAM_RATE = 2.0
"""Step of an upstream gradient, which begins as N(0, 1), for each unit of the step of a pixel."""


@dataclass(frozen=True, eq=False)
class ExtraVariables:
    """Numbers that a match reads and that are sought beside the images, in their place.

    Args:
        values: of each row (n, ...), a leaf.
        spare: what a row that is started anew begins with, (n, ...).
        rate: how far they move in a step, for each unit by which pixels do.
        least, most: limits.
    """

    values: Tensor
    spare: Tensor
    rate: float
    least: float = -math.inf
    most: float = math.inf


def soft_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy with label distributions; logits, labels (B, K)."""
    return -(labels * F.log_softmax(logits, dim=1)).sum(1).mean()


def gradient(
    module: nn.Module, params: Named, buffers: Named, images: Tensor, labels: Tensor
) -> dict[str, Tensor]:
    """The gradient of one batch, by parameter name, itself differentiable."""

    def loss(at: Named) -> Tensor:
        return soft_cross_entropy(functional_call_rows(module, at, buffers, images), labels)

    return slopes(loss, params)


_PLAINLY: ContextVar[bool] = ContextVar("plainly", default=False)


@contextmanager
def plain_autograd() -> Iterator[None]:
    """Take gradients by plain autograd here, row by row, of modules that torch.func refuses.

    It refuses checkpointing and, under vmap, branches on values.
    """
    token = _PLAINLY.set(True)
    try:
        yield
    finally:
        _PLAINLY.reset(token)


def functional_call_rows(
    module: nn.Module, params: Named, buffers: Named, images: Tensor
) -> Tensor:
    """What a module with other parameters and buffers makes of images."""
    if not _PLAINLY.get():
        made: Tensor = functional_call(module, (dict(params), dict(buffers)), images)
        return made
    held, given = (*module.named_parameters(), *module.named_buffers()), {**params, **buffers}
    twin = copy.deepcopy(module, {id(old): given[name] for name, old in held if name in given})
    made = twin(images)  # what is checkpointed is computed again when this call is long over
    return made


def slopes(loss: Callable[[Named], Tensor], at: Named) -> dict[str, Tensor]:
    """The gradient of a loss by each of some tensors, by name, itself differentiable."""
    if not _PLAINLY.get():
        found: dict[str, Tensor] = grad(loss)(dict(at))
        return found
    free = {n: v if v.requires_grad else v.detach().requires_grad_() for n, v in at.items()}
    with torch.enable_grad():
        value = loss(free)
    made = torch.autograd.grad(
        value, list(free.values()), create_graph=True, allow_unused=True, materialize_grads=True
    )
    return dict(zip(free, made, strict=True))


class UpdateMatch:
    """How well candidate batches explain the uploads of the rows of a tile.

    Args:
        victims: one per row; of one family, the same parameters sent. Repeat a victim for its
            restarts. Parameters that were not sent stay as they are.
        simulate: what a client sends when it holds given images and labels.
        distance: from what is simulated to what was uploaded.
        bn: see `differentiable_copy`.
        bn_weight: weight of the distance between batch statistics and the model's running ones.
        keep: compare only so many parameters, those of largest norm in the upload; None: all.
        masked: compare only coordinates that are not zero in the upload.
        sent: what the declared channel makes of an update; None: nothing.
        on_path: simulate not at the parameters before local training but between those before and
            those after; where, is learnt beside the images (`place`).
        upstream: in place of labels, what `simulate` is given (n, B, d); sought beside the images,
            with another to start anew from.
        dropout: shape (S, B, C, H, W) of the passes that a simulation makes; each has masks of
            dropout of its own, which are sought beside the images. None: dropout is off.
        device, dtype: where and in which precision.
    """

    def __init__(
        self,
        victims: Sequence[Victim],
        simulate: Simulate,
        distance: Distance,
        *,
        bn: str,
        bn_weight: float = 0.0,
        keep: int | None = None,
        masked: bool = False,
        sent: Sent | None = None,
        on_path: bool = False,
        upstream: tuple[Tensor, Tensor] | None = None,
        dropout: tuple[int, ...] | None = None,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        first = victims[0]
        self.module = differentiable_copy(first.model, bn, device, dtype)
        self.simulate, self.distance = simulate, distance
        self.bn_weight, self.masked, self.sent = bn_weight, masked, sent
        still = {name for name, _ in self.module.named_parameters() if name not in first.upload}
        kept_buffers = {name for name, _ in self.module.named_buffers()} | still

        def moved(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {
                name: value.detach().to(device, dtype if value.is_floating_point() else None)
                for name, value in values.items()
            }

        unique = {id(victim): victim for victim in victims}
        held = {key: moved(dict(v.model.named_parameters())) for key, v in unique.items()}
        params = {key: _of(of, of.keys() - still) for key, of in held.items()}
        every = {
            key: {**moved(dict(v.model.named_buffers())), **_of(held[key], still)}
            for key, v in unique.items()
        }
        wanted = {key: moved(v.upload) for key, v in unique.items()}
        rows = [id(victim) for victim in victims]
        self.params, shared_params = stack_parameters([params[key] for key in rows])
        buffers, shared_buffers = stack_parameters([every[key] for key in rows])
        self.buffers = {name: value for name, value in buffers.items() if name in kept_buffers}
        self.wanted, shared_wanted = stack_parameters([wanted[key] for key in rows])
        self.weights = torch.stack(
            [layer_weights(list(wanted[key].values()), keep) for key in rows]
        )
        self.norms = sorted(batch_norms(first.model)) if bn_weight else []
        self.running = {
            f"{layer}.{kind}": buffers[f"{layer}.running_{kind}"]
            for layer in self.norms
            for kind in ("mean", "var")
        }
        self.one_by_one = False
        """Whether rows go one after another, since torch.func refuses the module."""
        self.place: Tensor | None = None
        """Share of the way from before to after local training at which each row is simulated (n,)
        in [0, 1]. None: all at the start."""
        self.beside: list[ExtraVariables] = []
        """What a search may move beside the images."""
        if on_path:
            self.place = torch.full((len(rows),), MIDDLE, dtype=dtype, device=device)
            self.place.requires_grad_()
            middle = torch.full_like(self.place, MIDDLE, requires_grad=False)
            self.beside.append(ExtraVariables(self.place, middle, PLACE_RATE, 0.0, 1.0))
        self.upstream: Tensor | None = None
        if upstream is not None:
            first_ones, spare = (one.to(device, dtype) for one in upstream)
            self.upstream = first_ones.clone().requires_grad_()
            self.beside.append(ExtraVariables(self.upstream, spare, UPSTREAM_RATE))
        self.masks: dict[str, Tensor] = {}
        placed = {} if dropout is None else place_masks(self.module, dropout[1:])
        for name, layer in placed.items():
            passes = () if dropout is None or dropout[0] == 1 else dropout[:1]
            spare = layer.mask.expand(len(rows), *passes, *layer.mask.shape)
            self.masks[name] = spare.clone().requires_grad_()
            self.beside.append(ExtraVariables(self.masks[name], spare, MASK_RATE, 0.0, layer.most))
        self.dims = (
            None if shared_params else 0,
            None if shared_buffers or not self.buffers else 0,
            None if shared_wanted else 0,
            0,
            None if shared_buffers or not self.running else 0,
            None if self.place is None else 0,
            0 if self.masks else None,
            0,
            0,
        )

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Rows' distances (n,) from images (n, B, C, H, W) and label distributions (n, B, K)."""
        labels = labels if self.upstream is None else self.upstream
        held: tuple[Any, ...] = (
            self.params,
            self.buffers,
            self.wanted,
            self.weights,
            self.running,
            self.place,
            self.masks,
            images,
            labels,
        )
        if not self.one_by_one:
            try:
                return self._together(held)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:  # of torch.func; what the module cannot do fails again below
                self.one_by_one = True
        with plain_autograd():
            return torch.stack([self._row(*self._pick_row(held, i)) for i in range(len(images))])

    def _together(self, held: tuple[Any, ...]) -> Tensor:
        """Rows' distances (n,) in one program."""
        if len(held[-1]) == 1:
            return self._row(*self._pick_row(held, 0))[None]
        out: Tensor = vmap(self._row, in_dims=self.dims)(*held)
        return out

    def _pick_row(self, held: tuple[Any, ...], row: int) -> list[Any]:
        """What one row reads."""
        return [
            part if dim is None else _of_row(part, row)
            for part, dim in zip(held, self.dims, strict=True)
        ]

    def _row(
        self,
        params: Named,
        buffers: Named,
        wanted: Named,
        weights: Tensor,
        running: Named,
        place: Tensor | None,
        masks: Named,
        images: Tensor,
        labels: Tensor,
    ) -> Tensor:
        at = params
        if place is not None:
            moved = {name: params[name] - place * wanted[name] for name in wanted}
            at = {**params, **moved}
        buffers = {**buffers, **masks}
        made = self.simulate(self.module, at, buffers, images, labels)
        found, target = [made[name] for name in wanted], list(wanted.values())
        if self.masked:
            found = [a * (b != 0) for a, b in zip(found, target, strict=True)]
        if self.sent is not None:
            found = self.sent(found, target)
        value = self.distance(found, target, weights)
        if self.norms:
            value = value + self.bn_weight * self._statistics(params, buffers, running, images)
        return value

    def _statistics(self, params: Named, buffers: Named, running: Named, images: Tensor) -> Tensor:
        """Mean over layers of how far batch statistics are from running ones."""
        seen: dict[str, Tensor] = {}
        layers = dict(self.module.named_modules())

        def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                seen[name] = inputs[0]

            return hook

        handles = [layers[name].register_forward_pre_hook(watch(name)) for name in self.norms]
        try:
            functional_call_rows(self.module, params, buffers, images)
        finally:
            for handle in handles:
                handle.remove()
        gaps = []
        for name, value in seen.items():
            axes = [0, *range(2, value.dim())]
            variance, mean = torch.var_mean(value, dim=axes, correction=0)
            gaps.append((mean - running[f"{name}.mean"]).square().mean())
            gaps.append((variance - running[f"{name}.var"]).square().mean())
        return torch.stack(gaps).mean()


def _of(named: Named, names: Collection[str]) -> dict[str, Tensor]:
    return {name: value for name, value in named.items() if name in names}


def _of_row(part: Any, row: int) -> Any:
    """A row of a tensor, or of every tensor of a mapping."""
    return part[row] if isinstance(part, Tensor) else {name: v[row] for name, v in part.items()}
