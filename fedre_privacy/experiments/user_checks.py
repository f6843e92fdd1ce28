"""What a user hands over, checked before any step is taken: modules, images, labels, vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.units import plural

Shape = tuple[int, int, int]
Labels = Tensor | Sequence[int]


def shape_text(shape: Shape) -> str:
    """(3, 32, 32) as ``3x32x32``."""
    return "x".join(map(str, shape))


@torch.no_grad()
def output_width(module: nn.Module, image_shape: Shape, *, what: str, option: str) -> int:
    """Length of what a module returns for an image, (n, C, H, W) to (n, length).

    Args:
        what: what the module is called in a message, ``extractor``.

    Raises:
        IncompatibleError: it fails on images of this size, or returns anything but a matrix.
    """
    shape = shape_text(image_shape)
    try:
        out = module(torch.zeros(2, *image_shape))
    except Exception as error:
        raise IncompatibleError(
            f"The {what} fails on images {shape}: {' '.join(str(error).split())}",
            next_step=f"Give the size that it takes: {option}.",
        ) from None
    if isinstance(out, Tensor) and out.dim() == 2 and len(out) == 2:
        return out.shape[1]
    if isinstance(out, Tensor):
        found, step = f"{tuple(out.shape)}", "Flatten it: nn.Sequential(module, nn.Flatten())."
    else:
        found = f"a {type(out).__name__}"
        step = "Wrap it in a module whose forward returns the one tensor that was recorded."
    raise IncompatibleError(
        f"The {what} returns {found} for two images {shape}; needed is a tensor (2, d).",
        next_step=step,
    )


def as_labels(values: Labels, what: str) -> Tensor:
    """Classes (n,) as whole numbers from 0.

    Raises:
        IncompatibleError: they are something else.
    """
    try:
        made = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise IncompatibleError(f"{what} are whole numbers from 0 (n,); got others.") from None
    if made.dim() != 1 or made.is_floating_point() or not bool((made >= 0).all()):
        raise IncompatibleError(f"{what} are whole numbers from 0 (n,); got {tuple(made.shape)}.")
    return made.long()


def as_finite(value: Any, what: str) -> Tensor:
    """A float32 tensor on the CPU.

    Raises:
        IncompatibleError: it holds NaN or infinity.
    """
    made = torch.as_tensor(value).detach().to("cpu", torch.float32)
    bad = int((~made.isfinite()).sum())
    if bad:
        raise IncompatibleError(
            f"{what} holds {plural(bad, 'value')} that {'is' if bad == 1 else 'are'} NaN or "
            "infinite.",
            next_step="Leave those rows out, or compute it again in float32.",
        )
    return made


def as_rows(values: Any, what: str) -> Tensor:
    """Representation vectors (n, d).

    Raises:
        IncompatibleError: another shape, or not finite.
    """
    rows = as_finite(values, what)
    if rows.dim() != 2 or not len(rows):
        step = f"Give {what}.flatten(1), and a module that flattens: nn.Sequential(module, "
        raise IncompatibleError(
            f"{what} has shape {tuple(rows.shape)}; needed is (n, d), n at least 1.",
            next_step=f"{step}nn.Flatten())." if rows.dim() > 2 else "Give one row per target.",
        )
    return rows


def check_classes(width: int, given: Mapping[str, Tensor | None]) -> None:
    """Refuse a module that is no classifier over the labels that are given.

    Args:
        width: number of its outputs. given: labels (n,) by what they are called.

    Raises:
        IncompatibleError: it has a single output, or a label is beyond them.
    """
    if width < 2:
        raise IncompatibleError(
            "The module returns one number for each image; a gradient is of the cross-entropy of "
            "logits, one for each class.",
            next_step="Give a module that returns a logit for each of 2 or more classes.",
        )
    problems = [
        f"{name} hold class {int(labels.max())}; the module has {width} outputs, for classes 0 to "
        f"{width - 1}."
        for name, labels in given.items()
        if labels is not None and len(labels) and int(labels.max()) >= width
    ]
    if problems:
        raise IncompatibleError(*problems, next_step="Number the classes as the module does.")
