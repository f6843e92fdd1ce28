"""Which stored images a batch was read from, so that what is known of them is found by row."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True, eq=False)
class ImageOrigin:
    """Rows of a pool, each pixel of which is divided by 255.

    Args:
        pool: uint8 (N, C, H, W). rows: what the pool was indexed with.
    """

    pool: Tensor
    rows: Tensor | slice


_ORIGINS: MutableMapping[Tensor, tuple[tuple[int, ...], ImageOrigin]] = WeakTensorKeyDictionary()
"""By the very tensor, with its version and that of its rows: what was written to has no origin."""


def note_origin(images: Tensor, origin: ImageOrigin) -> None:
    """Remember where images (n, C, H, W) were read from, as long as this tensor exists."""
    if not any(tensor.is_inference() for tensor in _tensors(images, origin)):  # without versions
        _ORIGINS[images] = _versions(images, origin), origin


def origin_of(images: Tensor) -> ImageOrigin | None:
    """Where exactly these images were read from; None for any other or changed tensor."""
    if images not in _ORIGINS:
        return None
    versions, origin = _ORIGINS[images]
    return origin if versions == _versions(images, origin) else None


def _tensors(images: Tensor, origin: ImageOrigin) -> list[Tensor]:
    return [images] if isinstance(origin.rows, slice) else [images, origin.rows]


def _versions(images: Tensor, origin: ImageOrigin) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in _tensors(images, origin))
