"""Arrays and tensors of images and labels, as people hold them: checked and converted here only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import IncompatibleError
from ..core.units import first_few, plural

USUAL = (1, 3)
"""Numbers of channels by which the order of axes is told."""

NEEDED = "Needed: uint8 0..255, or floats in [0, 1]"
NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
SLACK = 1e-6
"""What a normalisation that was undone in float32 may leave outside [0, 1]."""

MANY_CLASSES, SPARSE = 1000, 10
"""Labels are ids, and numbered anew, where they reach beyond so many, and so many times the number
of different ones."""


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images whose layout and range are known.

    Args:
        values: (n, C, H, W), uint8 0..255 or floats in [0, 1].
        notes: what was decided that the array itself does not say, a sentence each.
    """

    values: npt.NDArray[Any]
    notes: tuple[str, ...] = ()

    def bytes(self) -> Tensor:
        """The images as uint8 (n, C, H, W); floats are rounded to the nearest of 256 levels."""
        if self.values.dtype == np.uint8:
            return torch.from_numpy(self.values)
        return torch.from_numpy(np.rint(self.values * 255).astype(np.uint8))

    def floats(self) -> Tensor:
        """The images as float32 (n, C, H, W) in [0, 1]."""
        made = torch.from_numpy(self.values.astype(np.float32))
        return made / 255 if self.values.dtype == np.uint8 else made


def read_pixels(
    given: Any,
    what: str,
    *,
    shape: tuple[int, int, int] | None = None,
    channels: tuple[int, ...] | None = None,
    option: str = "",
) -> Pixels:
    """Check an array or a tensor of images; find the order of its axes and its range.

    Args:
        given: (n, C, H, W), (n, H, W, C) or (n, H, W); uint8 0..255, floats of any width in
            [0, 1], or True and False.
        what: its name, for messages.
        shape: (C, H, W) that is needed, which settles the order of axes; None: any.
        channels: numbers of channels that are taken; None: any.
        option: how the user says what the shape is, where there is a way.

    Raises:
        IncompatibleError: another shape, an order of axes that cannot be told, another type,
            values outside the range, with the likely cause, or uint8 that never exceeds 1.
    """
    tensor = isinstance(given, Tensor)
    settle = f"Say what it is with {option}." if option else f"Reorder the axes of {what}."
    array = _array(given, what)
    size = array.shape
    if array.ndim == 3:
        if size == shape:
            raise _shape_error(what, size, "it is one image", f"Give {what}[None].")
        if shape is None and 3 in (size[0], size[2]):
            why = "it may be one colour image or several grey ones"
            raise _shape_error(what, size, why, f"If it is one, give {what}[None]. {settle}")
        array, last = array[:, None], False
        if shape is not None and array.shape[1:] != shape:
            raise _other_shape(what, size, shape)
    elif array.ndim == 4:
        last = _channels_last(size, what, shape, channels, settle)
    else:
        raise _shape_error(what, size, "no axis has 1 or 3 channels", f"Reshape {what}.")
    if last:
        array = array.transpose(0, 3, 1, 2)
    if array.size == 0:
        raise IncompatibleError(f"{what} has shape {size}: it holds no pixels.")
    moved = f"{what} {size} was read with channels last, as images {array.shape[1:]} (C, H, W)."
    return Pixels(_in_range(np.ascontiguousarray(array), what), (moved,) if last and tensor else ())


def _array(given: Any, what: str) -> npt.NDArray[Any]:
    if isinstance(given, str | Path):
        raise IncompatibleError(
            f"{what} is a path, '{given}'. Needed: images, as an array or a tensor.",
            next_step="Read them: fedre_privacy.load_images(path, size).",
        )
    try:
        if isinstance(given, Tensor):
            narrow = given.is_floating_point() and given.dtype not in NUMPY_FLOATS
            array: npt.NDArray[Any] = (given.float() if narrow else given).numpy(force=True)
            return array
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:  # a ragged list, a sparse tensor
        raise IncompatibleError(
            f"{what} is no array of images: {' '.join(str(error).split()).rstrip('.')}. {NEEDED}."
        ) from None


def _channels_last(
    size: tuple[int, ...],
    what: str,
    shape: tuple[int, int, int] | None,
    channels: tuple[int, ...] | None,
    settle: str,
) -> bool:
    """Whether (n, a, b, c) is (n, H, W, C)."""
    first, middle, last = size[1:]
    if shape is not None:
        if size[1:] == shape:
            return False
        if (last, first, middle) == shape:
            return True
        raise _other_shape(what, size, shape)
    if first in USUAL and last in USUAL:
        raise _shape_error(what, size, "channels may be the second or the last axis", settle)
    if channels is not None and first not in channels and last not in channels:
        alpha = "If the fourth channel is alpha, leave it out." if 4 in (first, last) else settle
        raise _shape_error(what, size, "no axis has 1 or 3 channels", alpha)
    if first in USUAL:
        return False
    if last in USUAL:
        return channels is not None or middle != last  # (n, 64, 1, 1) has 64 channels
    return first == middle > last


def _other_shape(
    what: str, size: tuple[int, ...], shape: tuple[int, int, int]
) -> IncompatibleError:
    needed = ", ".join(map(str, shape))
    return IncompatibleError(f"{what}: images are {size}; needed is (n, {needed}).")


def _shape_error(what: str, size: tuple[int, ...], why: str, step: str) -> IncompatibleError:
    return IncompatibleError(
        f"{what} has shape {size}: {why}. Needed: (N, C, H, W) or (N, H, W, C) with 1 or 3 "
        "channels, or (N, H, W) for grey images.",
        next_step=step,
    )


def _in_range(array: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    """The array as uint8, or as floats in [0, 1] of the width that it has."""
    if array.dtype.kind == "b":
        return array.astype(np.float32)
    if array.dtype.kind not in "uif":
        raise IncompatibleError(f"{what} holds {array.dtype}. {NEEDED}.")
    low, high = float(array.min()), float(array.max())
    if array.dtype == np.uint8:
        if high > 1:
            return array
        raise IncompatibleError(
            f"{what} is uint8 with values {low:g}..{high:g}: looks like [0, 1] floats cast to "
            "uint8, or they are bytes of images that are almost black; which of the two is not "
            f"told. {NEEDED}.",
            next_step=f"Where 0 and 1 are black and white, give {what} as floats; where floats "
            "were cast to uint8, give them as they were before.",
        )
    if array.dtype.kind != "f":
        step = f"If they are 0..255, give {what}.astype('uint8'), of a tensor {what}.byte()."
        if high > 255:
            step = "Divide them by the largest value possible, for example 4095 of 12 bits."
        raise IncompatibleError(
            f"{what} holds {array.dtype} with values {low:g}..{high:g}. {NEEDED}.", next_step=step
        )
    if not (low >= -SLACK and high <= 1 + SLACK) or 0 < high < 1.01 / 255:
        looks, remedy = _likely_normalisation(low, high)
        raise IncompatibleError(
            f"{what}: images range from {low:.4g} to {high:.4g}: {looks}. {NEEDED}; models "
            "normalise inside.",
            next_step=f"{remedy} before giving {what}.",
        )
    clipped: npt.NDArray[Any] = array.clip(0, 1)
    return clipped


def _likely_normalisation(low: float, high: float) -> tuple[str, str]:
    if not (np.isfinite(low) and np.isfinite(high)):
        return "not all are finite numbers", "Find and mend the NaN or infinite pixels"
    if low >= 0 and high <= 1:
        return "looks like bytes that were divided by 255 twice", "Multiply by 255"
    if low >= 0 and high > 2 and high <= 255:
        return "looks like 0-255 floats", "Divide by 255"
    if low >= 0 and high > 255:
        return "looks like more than 8 bits", "Divide by the largest value possible"
    if low > -0.3 and high < 1.3:
        return "looks like resizing that overshoots", "Clip to [0, 1]"
    if low >= -1.001 and high <= 1.001:
        return "looks like mean 0.5 / std 0.5", "Undo it (x * 0.5 + 0.5)"
    return (
        "looks standardised (mean subtracted, divided by std)",
        "Undo it (x * std + mean, per channel)",
    )


def as_labels(array: npt.NDArray[Any], what: str, *, count: int) -> Tensor:
    """Check an array of labels and turn it into int64 (count,).

    Args:
        array: integers >= 0, (count,) or (count, 1).
        what: its name, for messages.

    Raises:
        IncompatibleError: another shape, length or type, or negative labels.
    """
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (count,) or array.dtype.kind not in "ui":
        one_hot = array.ndim == 2 and len(array) == count
        raise IncompatibleError(
            f"{what} is {array.dtype} of shape {array.shape}. Needed: one class number per image, "
            f"integers of shape ({count},).",
            next_step=f"If it is one-hot, save {what}.argmax(1)." if one_hot else None,
        )
    labels = array.astype(np.int64)
    if count and labels.min() < 0:
        raise IncompatibleError(f"{what} holds the label {labels.min()}. Needed: labels >= 0.")
    return torch.from_numpy(labels)


def class_numbers(labels: Tensor) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Number labels without names as classes.

    Labels are kept as they are, up to the largest one, unless most numbers below it would be
    classes without images: then they are ids, and get numbers from 0 in their own order.

    Args:
        labels: int64 (n,), 0 or more.

    Returns:
        Labels 0..C-1, the names of the C classes, and notes.
    """
    found = labels.unique()
    count = int(found[-1]) + 1
    if count > MANY_CLASSES and count > SPARSE * len(found):
        names = tuple(str(label) for label in found.tolist())
        note = (
            f"{plural(len(names), 'class')}: the labels are ids up to {names[-1]} and were "
            "numbered from 0 in their order."
        )
        return torch.searchsorted(found, labels), names, (note,)
    names = tuple(str(label) for label in range(count))
    return labels, names, ()


def absent_classes(labels: Tensor, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Note classes that have a number and no image."""
    present = set(labels.unique().tolist())
    absent = [name for number, name in enumerate(classes) if number not in present]
    told = (
        f"{len(absent)} of {plural(len(classes), 'class')} have no image: {first_few(absent, 5)}."
    )
    return (told,) if absent else ()
