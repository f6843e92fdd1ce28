"""What a module does with images, tried on two of them before anything is computed with it.

A module that others wrote may rely on the layout of its images in memory, change them in place,
return other numbers each time, or let no gradient through. One trial each tells.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Shape = tuple[int, ...]

APART = 1e-3
"""Largest difference, relative to the largest value, that two layouts may make by rounding."""
NOT_THEIRS = {"torch", "contextlib", "functools", __name__.partition(".")[0]}
"""Packages whose lines are not those of a module that somebody brought."""


class OwnCopy:
    """A hook before `forward`: the module works on a contiguous copy of its images."""

    def __call__(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            one.clone(memory_format=torch.contiguous_format) if isinstance(one, Tensor) else one
            for one in given
        )


def settle(module: nn.Module, image_shape: Shape) -> nn.Module:
    """Give a module a copy of its images (`OwnCopy`) where it needs one; returns the module.

    It does where it changes its images in place, or fails or returns other numbers once its
    convolutions are computed channels last or its images lie otherwise in memory. Such a module
    stays in its own layout, see `in_own_layout`. A module that fails on images as they are, is
    left alone.
    """
    if not in_own_layout(module) and needs_copy(module, image_shape):
        give_copy(module)
    return module


def give_copy(module: nn.Module) -> None:
    """Let a module work on contiguous copies of its images, in its own layout."""
    module.register_forward_pre_hook(OwnCopy())


def in_own_layout(module: nn.Module) -> bool:
    """Whether a module, or a part of it, must not be moved to another layout."""
    return any(
        isinstance(hook, OwnCopy)
        for part in module.modules()
        for hook in part._forward_pre_hooks.values()
    )


def channels_last(module: nn.Module) -> nn.Module:
    """Move convolutions to the layout that is faster on a CPU, where the module bears it."""
    if not in_own_layout(module):
        module.to(memory_format=torch.channels_last)
    return module


@torch.no_grad()
def needs_copy(module: nn.Module, image_shape: Shape) -> bool:
    """Whether a module needs a contiguous copy of its images, see `settle`."""
    images = trial_images(module, image_shape)
    given = images.clone()
    with trial():
        try:
            wanted = copy.deepcopy(module).eval()(given)
        except Exception:  # whoever computes with it refuses it
            return False
        if given._version or not torch.equal(given, images):  # written, if only as it was
            return True
        try:
            moved = copy.deepcopy(module).eval().to(memory_format=torch.channels_last)
            layouts = [  # as attacks hand images over: one by one, channels last, pixel by pixel
                images.clone(),
                images.clone(memory_format=torch.channels_last),
                images.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
            ]
            return not all(_alike(moved(laid), wanted) for laid in layouts)
        except Exception:
            return True


def trial_images(module: nn.Module, image_shape: Shape, count: int = 2) -> Tensor:
    """Images of noise in [0, 1] (count, C, H, W), the same for all, where the module is."""
    first = next((t for t in (*module.parameters(), *module.buffers())), torch.zeros(()))
    made = torch.rand((count, *image_shape), generator=torch.Generator().manual_seed(0))
    return made.to(first.device)


@torch.no_grad()
def is_random(module: nn.Module, image_shape: Shape) -> bool:
    """Whether a module in evaluation mode returns other numbers for the same images."""
    images = trial_images(module, image_shape)
    with trial():
        twin = copy.deepcopy(module).eval()
        return not _alike(twin(images.clone()), twin(images.clone()), 0.0)


def without_gradient(module: nn.Module, image_shape: Shape, *, twice: bool = False) -> str:
    """Why no gradient of a module's output reaches its images; empty where one does.

    A module that returns the same for all images is not blamed.

        image_shape: (C, H, W).
        twice: whether gradients of this gradient are needed too.
    """
    images = trial_images(module, image_shape).requires_grad_()
    kernels = sdpa_kernel(SDPBackend.MATH) if twice else nullcontext()  # others have no second
    try:
        with torch.enable_grad(), trial(), kernels:
            made = module(images)
            if not made.requires_grad:
                return (
                    "its output carries none (it is detached, computed under torch.no_grad or in "
                    "NumPy, or made of whole numbers as by argmax and argsort)"
                )
            weight = torch.rand(made.shape, generator=torch.Generator().manual_seed(1)).to(made)
            (made * weight).sum().backward(retain_graph=twice)
            if twice:
                weight.requires_grad_()
                (back,) = torch.autograd.grad(made, images, weight, create_graph=True)
                torch.autograd.grad(back.sum(), weight, allow_unused=True)
    except RuntimeError as error:
        return module_error(error)
    responds = not torch.equal(made[0], made[1])
    if responds and (images.grad is None or not bool(images.grad.any())):
        return "it is zero everywhere (the images are detached, rounded or compared on their way)"
    return ""


def module_error(error: BaseException) -> str:
    """What an error says, in a line, and the line of a user's module that it came from."""
    said = " ".join(str(error).split()) or type(error).__name__
    said = said if len(said) <= 200 else f"{said[:200]} ..."
    place, at = "", error.__traceback__
    while at is not None:
        if at.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in NOT_THEIRS:
            place = f" ({Path(at.tb_frame.f_code.co_filename).name}, line {at.tb_lineno})"
        at = at.tb_next
    return said + place


def logit_layer(module: nn.Module, image_shape: Shape, classes: int) -> str | None:
    """Name of the weight (classes, d) whose layer puts out the logits.

    The gradient of such a weight by one image is the gradient by the logits times the layer's
    input, and so has one direction; that of no other weight has it, whatever the order in which
    they were declared. Where a trial tells nothing, as of a network that diverged or is dead, it is
    the weight that was declared last.

    Args:
        module: in evaluation mode, images (n, C, H, W) to logits (n, classes).

    Returns:
        The name; None where the weights of this shape are shown to be of other layers.
    """
    twin = copy.deepcopy(module).requires_grad_(True)
    own = {n: p for n, p in twin.named_parameters() if p.dim() == 2 and len(p) == classes}
    if not own:
        return None
    with torch.enable_grad(), trial():
        logits = twin(trial_images(twin, image_shape, 1))
        unlikely = logits[0].argmin()  # whose loss is never flat
        loss = nn.functional.cross_entropy(logits, unlikely[None])
        found = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
    by_logit = torch.softmax(logits.detach()[0], 0)
    by_logit[unlikely] -= 1
    by_logit /= by_logit.norm()
    slopes = {n: s for n, s in zip(own, found, strict=True) if s is not None and bool(s.any())}
    for name, slope in reversed(slopes.items()):
        rest = slope - torch.outer(by_logit, by_logit @ slope)
        if not float(rest.norm()) > APART * float(slope.norm()):
            return name
    return None if slopes else next(reversed(own), None)


def _alike(one: Any, other: Any, apart: float = APART) -> bool:
    """Whether two outputs are equal up to rounding; those that are no tensors count as equal."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return True
    scale = float(other.detach().float().nan_to_num().abs().max()) if other.numel() else 0.0
    return one.shape == other.shape and torch.allclose(
        one.float(), other.float(), rtol=0, atol=apart * scale, equal_nan=True
    )


@contextmanager
def trial() -> Iterator[None]:
    """A trial leaves the stream of random numbers as it was, and warns nobody."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
