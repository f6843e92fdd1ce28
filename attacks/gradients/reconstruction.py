"""From victims to a reconstruction: tiles of one family, each kept when finished."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.gradient_check import unreachable
from fedre_privacy.attacks.common.tiles import CPU_TILE
from fedre_privacy.attacks.common.tiling import Piece, Tick, in_tiles_of, join
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import LocalTrainingFacts, Observation
from fedre_privacy.models.probe import module_error, trial, trial_images

from . import label_counts as label_rules
from .class_means import shares
from .dropout_masks import dropout_layers
from .matching import gradient, plain_autograd
from .victims import (
    Victim,
    architecture_key,
    batch_norms,
    by_statistics,
    check_batch,
    differentiable_copy,
    head_names,
    local_steps,
    mean_gradient,
    victims_of,
)

TRIED = 4
"""Images of the batch on which a model is tried, at most."""
GPU_ROWS = 64
"""Rows (victims times restarts) at once on a GPU unless the attack's chunk says otherwise."""
SMALL_MODEL = 3_000_000
"""Parameters up to which rows share one program on a CPU; larger models run one by one there,
where stacked copies of their weights cost more memory traffic than they save in calls."""


@dataclass(frozen=True, eq=False)
class TileAnswer:
    """What a tile of victims came to; rows are victims.

    Shape: images, prior (v, B, C, H, W); labels (v, B); fit (v,); trace (T, v), trace_steps (T,);
    redrawn, failed (v,): starts begun anew after a NaN, and starts that ended without a number;
    spread (v, B): mean squared distance between two starts, (0,) where there was one, NaN where
    one ended without a number.
    """

    images: Tensor
    prior: Tensor
    labels: Tensor
    fit: Tensor
    spread: Tensor
    trace: Tensor
    trace_steps: Tensor
    redrawn: Tensor
    failed: Tensor


Search = Callable[[Sequence[Victim], Sequence[Tensor | None], Tick], TileAnswer]
"""(victims of one family, their labels (B,) or None where they are sought, tick) to an answer."""


def check(observation: Observation, bn: str) -> list[Victim]:
    """The victims of an observation, each with a model that can take its batch.

    Raises:
        IncompatibleError: see `victims_of` and `check_batch`.
    """
    victims = by_statistics(victims_of(observation), bn)
    for _, members in groupby(sorted(victims, key=_key), key=_key):
        victim = next(members)
        check_batch(
            victim.model,
            victim.statistics,
            observation.images_per_target,
            observation.image_shape,
            observation.num_classes,
        )
        why = unreachable_reason(
            victim.model,
            victim.statistics,
            min(observation.images_per_target, TRIED),
            observation.image_shape,
        )
        if why:
            raise unreachable(
                observation,
                f"Images cannot be sought by the gradient of the model of client {victim.client} "
                f"in round {victim.round}: {why}.",
            )
    return victims


def unreachable_reason(
    model: nn.Module, bn: str, count: int, image_shape: tuple[int, int, int]
) -> str:
    """Why no gradient of a model's gradient reaches its images; empty where one does.

    Args:
        bn: see `differentiable_copy`. count: images of the batch that is tried.
    """
    module = differentiable_copy(model, bn, torch.device("cpu"), torch.float32)
    params, buffers = (
        {name: value.detach() for name, value in held}
        for held in (module.named_parameters(), module.named_buffers())
    )
    images = trial_images(module, image_shape, 2 * count)
    one, other = (part.clone().requires_grad_() for part in images.split(count))

    def made(batch: Tensor) -> list[Tensor]:
        logits = module(batch.detach())
        labels = F.one_hot(logits.argmin(1), logits.shape[1]).to(batch)
        return list(gradient(module, params, buffers, batch, labels).values())

    def reached() -> bool:
        found = made(one)
        match = sum((value.square().sum() for value in found), torch.zeros(()))
        slope = None
        if match.requires_grad:
            (slope,) = torch.autograd.grad(match, one, allow_unused=True)
        if slope is not None and bool(slope.any()):
            return True
        return all(torch.equal(a, b) for a, b in zip(found, made(other), strict=True))

    with sdpa_kernel(SDPBackend.MATH), trial():
        try:
            ends = reached()
        except RuntimeError:  # of torch.func, see `UpdateMatch`
            try:
                with plain_autograd():
                    ends = reached()
            except RuntimeError as error:
                return module_error(error)
    lost = "no gradient reaches the image (it is detached, rounded or compared on its way)"
    return "" if ends else lost


def batch_labels(
    observation: Observation, victims: Sequence[Victim], strategy: str
) -> list[Tensor]:
    """Labels (B,) of each victim in ascending order, by a strategy of `labels.STRATEGIES`.

    For updates by several known steps, `joint` follows the drift of the head (`heads.shares`).
    Where the last layer was not sent, gradients are simulated in its place (`simulated_counts`).
    """
    size, training, found = observation.images_per_target, observation.training, []
    for victim in victims:
        weight, bias = head_names(victim.model, observation.num_classes, observation.image_shape)
        if not {weight, bias or weight} <= set(victim.upload):
            images = probes(observation.aux, observation.image_shape)
            count = simulated_counts(victim, images, size, observation.num_classes)
            found.append(label_rules.as_batch(count))
            continue
        own = dict(victim.model.named_parameters())
        steps = local_steps(training, victim.client) if training and victim.local else 1
        if strategy == "joint" and bias and training and steps > 1:
            share = shares(
                victim.upload[weight],
                victim.upload[bias],
                own[weight].detach(),
                own[bias].detach(),
                training.lr,
                steps,
                least=0.5 / size,
            )
            found.append(label_rules.as_batch(label_rules.round_shares(share * size, size)))
            continue
        scale_free = strategy in label_rules.SCALE_FREE
        sent = victim.upload if scale_free else mean_gradient(victim, training)
        count = label_rules.STRATEGIES[strategy](
            sent[weight],
            sent[bias] if bias else None,
            size,
            own[weight].detach(),
            own[bias].detach() if bias else None,
        )
        found.append(label_rules.as_batch(count))
    return found


def solve(
    observation: Observation,
    context: Context,
    victims: Sequence[Victim],
    labels: Sequence[Tensor | None],
    search: Search,
    *,
    steps: int,
    restarts: int,
    chunk: int | None,
    together: bool = True,
    split: Callable[[Victim], Hashable] = lambda victim: 0,
    note: str = "",
) -> Reconstruction:
    """Attack all victims and put their images in the observation's order, B for each.

    Within a target, images are ordered by the label found for them, which is reported too.

    Args:
        steps, restarts: for progress and for the size of tiles.
        chunk: rows at once on a GPU; None: 64.
        together: whether rows may share a tensor program.
        split: victims of different keys never share one, as those of different families.
        note: what else to say of how it went.
    """
    keys = [(_key(victim), str(split(victim)), victim.client, victim.round) for victim in victims]

    def work(some: list[int], tick: Tick) -> Piece:
        answers = []
        for _, group in groupby(some, key=lambda i: keys[i][:2]):
            members = list(group)
            found = search([victims[i] for i in members], [labels[i] for i in members], tick)
            answers.append(vars(found))
        return join(answers)

    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        small = all(_size(victim) <= SMALL_MODEL for victim in victims)
        found = in_tiles_of(
            work,
            sorted(range(len(victims)), key=lambda i: keys[i]),
            context,
            steps=steps,
            cpu=(CPU_TILE if together and small else 1) // restarts,
            gpu=((chunk or GPU_ROWS) if together else 1) // restarts,
            name="victims",
        )
    size = observation.images_per_target
    by_label = found["labels"].argsort(dim=1, stable=True)
    rows_of = torch.arange(len(victims))[:, None]
    images, spread = found["images"][rows_of, by_label].flatten(0, 1), found["spread"]
    said = ["budget spent", note] if note else ["budget spent"]
    if bool(found["redrawn"].any()):
        said.append(f"{int(found['redrawn'].sum())} starts drawn anew after NaN")
    running = sum(one.statistics == "eval" and bool(batch_norms(one.model)) for one in victims)
    if running:
        said.append(f"BatchNorm by running statistics ({running} of {len(victims)} uploads)")
    masked = sum(one.dropout == "masks" and bool(dropout_layers(one.model)) for one in victims)
    if masked:
        said.append(f"masks of dropout sought ({masked} of {len(victims)} uploads)")
    if bool(found["failed"].any()):
        said.append(f"{int(found['failed'].sum())} of {restarts * len(victims)} starts diverged")
    return Reconstruction.of(
        images,
        found["fit"].repeat_interleave(size),
        prior=found["prior"].clamp(0, 1).flatten(0, 1),
        trace=found["trace"].repeat_interleave(size, dim=1),
        trace_steps=found["trace_steps"],
        stopped_because="; ".join(said),
        labels=found["labels"].sort(dim=1).values.flatten(),
        spread=spread[rows_of, by_label].flatten() if len(spread) else spread,
    )


def one_hot(labels: Sequence[Tensor], num_classes: int, restarts: int) -> Tensor:
    """Label distributions (n, B, K) of victims' labels (B,), repeated for their restarts."""
    stacked = torch.stack(list(labels))
    return F.one_hot(stacked, num_classes).float().repeat_interleave(restarts, 0)


def require_labels(labels: Sequence[Tensor | None]) -> list[Tensor]:
    """The labels, all of which must have been found before."""
    found = [one for one in labels if one is not None]
    if len(found) != len(labels):
        raise ValueError("this search needs labels for every victim")
    return found


def training_of(observation: Observation) -> LocalTrainingFacts:
    """How the clients train.

    Raises:
        IncompatibleError: it was not given.
    """
    if observation.training is None:
        raise IncompatibleError(
            "The observation does not say how clients train (lr, epochs, batch size, sizes), "
            "which this attack needs to re-run it."
        )
    return observation.training


def _key(victim: Victim) -> str:
    whole = len(victim.upload) == len(dict(victim.model.named_parameters()))
    parts = "" if whole else str(list(victim.upload))
    masks = "" if victim.dropout == "off" else victim.dropout
    return f"{architecture_key(victim.model)}{victim.statistics}{parts}{masks}"


def _size(victim: Victim) -> int:
    return sum(value.numel() for value in victim.upload.values())


IMAGES = 16
"""Images whose gradients are simulated for each class, at most."""
NUMBERS = 2_000_000
"""Numbers of an upload that are compared, about: those nearest to the last layer."""
STEPS = 500


def simulated_counts(victim: Victim, images: Tensor, size: int, num_classes: int) -> Tensor:
    """Counts (C,) int64 that sum to `size`, by non-negative least squares.

    The gradient by any layer is a mean over samples of what their outputs pull back, and that
    differs between classes more than between images. So the gradients of some images, all said to
    be of one class, are what that class adds.

    Args:
        images: (n, C, H, W) in [0, 1], of whatever classes.
    """
    module = differentiable_copy(victim.model, "eval", torch.device("cpu"), torch.float32)
    own = {name: value.detach() for name, value in module.named_parameters()}
    names: list[str] = []
    for name in reversed(list(victim.upload)):
        if not names or sum(own[n].numel() for n in (*names, name)) <= NUMBERS:
            names.append(name)
    free = {name: own[name] for name in names}
    held = {**dict(module.named_buffers()), **{n: v for n, v in own.items() if n not in free}}
    wanted = torch.cat([victim.upload[name].float().flatten() for name in names])
    rows = []
    for label in range(num_classes):
        hot = F.one_hot(torch.full((len(images),), label), num_classes).float()
        slopes = gradient(module, free, held, images.clone(), hot)
        rows.append(torch.cat([slopes[name].detach().flatten() for name in names]))
    made = torch.stack(rows)
    products, pull = (made @ made.T).double(), (made @ wanted).double()
    step = 1 / torch.linalg.eigvalsh(products)[-1].clamp(min=1e-30)
    weights = torch.zeros(num_classes, dtype=torch.float64)
    for _ in range(STEPS):
        weights = (weights - step * (products @ weights - pull)).clamp(min=0)
    even = torch.full_like(weights, 1 / num_classes)
    shares = weights / weights.sum() if bool(weights.sum() > 0) else even
    return label_rules.round_shares(shares * size, size)


def probes(images: Tensor | None, shape: tuple[int, int, int]) -> Tensor:
    """Images to simulate gradients of: some of those known, evenly spaced, or noise."""
    if images is None or not len(images):
        return torch.rand((IMAGES, *shape), generator=torch.Generator().manual_seed(0))
    places = torch.linspace(0, len(images) - 1, min(IMAGES, len(images))).round().long()
    return images[places]
