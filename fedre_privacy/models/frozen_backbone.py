"""A backbone that nobody trains, shared by all models that have it; features are computed once."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping, Sequence

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from .image_origin import ImageOrigin, origin_of

CHUNK = 8
"""Images in one pass; a constant, so that a feature does not depend on what it is asked with."""

MOST_BYTES = 1 << 30
"""Room for features in memory; what does not fit is computed again."""

KEYS, DRAWN_BELOW = 4, 1 << 24
"""Numbers that stand for an image, and the bound of their weights: the sums are exact in float64
up to 400 million pixels, and two images share all four with a chance of 2^-96."""


class FeatureTable:
    """Features by the image that they are of.

    Args:
        length: values of a feature.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._rows: dict[bytes, int] = {}
        self._features = torch.empty(0, length, device="cpu")
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    def rows_of(self, keys: Sequence[bytes | None]) -> Tensor:
        """Where each image's feature is (n,) int64, -1 for those that are not here."""
        rows = [-1 if key is None else self._rows.get(key, -1) for key in keys]
        return torch.tensor(rows, dtype=torch.int64, device="cpu")

    def take(self, rows: Tensor) -> Tensor:
        """Features (n, length) float32, on the CPU."""
        return self._features.index_select(0, rows)

    def add(self, keys: Sequence[bytes], features: Tensor) -> None:
        """Keep features (n, length), as many as there is room for."""
        with self._lock:
            used = len(self._rows)
            room = MOST_BYTES // (4 * self.length) - used
            fresh = {key: i for i, key in enumerate(keys) if key not in self._rows}
            chosen = list(fresh.items())[: max(room, 0)]
            if not chosen:
                return
            needed = used + len(chosen)
            if needed > len(self._features):
                grown = torch.empty(max(needed, 2 * used), self.length, device="cpu")
                grown[:used] = self._features[:used]
                self._features = grown
            index = torch.tensor([i for _, i in chosen], device=features.device)
            self._features[used:needed] = features[index].float().cpu()
            self._rows.update({key: used + n for n, (key, _) in enumerate(chosen)})


class SharedBackbone:
    """One backbone with its features, of which copies of models hold the same one.

    Args:
        network: in evaluation mode, frozen: images in [0, 1] (n, C, H, W) to features (n, length).
        identity: names its weights, its architecture and the size that images are brought to.
    """

    def __init__(self, network: nn.Module, length: int, identity: str) -> None:
        self.identity, self.length = identity, length
        self.table = FeatureTable(length)
        self._pools: MutableMapping[Tensor, tuple[int, Tensor]] = WeakTensorKeyDictionary()
        self._network = network.eval().requires_grad_(False).to(memory_format=torch.channels_last)
        self._placed: dict[tuple[torch.device, torch.dtype], nn.Module] = {}

    def __deepcopy__(self, memo: object) -> SharedBackbone:
        return self

    def compute(self, images: Tensor) -> Tensor:
        """Features of images (n, C, H, W) anew, in one pass, with their gradient by the images."""
        place = (images.device, images.dtype)
        if place not in self._placed:
            import copy

            self._placed[place] = copy.deepcopy(self._network).to(*place)
        features: Tensor = self._placed[place](images)
        return features

    @torch.no_grad()
    def features_of(self, images: Tensor) -> Tensor:
        """Features of images; those of stored images (whole pixel values) are computed once.

        Shape: (n, C, H, W) to (n, length).
        """
        origin = origin_of(images)
        rows = None if origin is None else self._rows_by_origin(origin)
        if rows is not None:
            return self.table.take(rows).to(images)
        keys = image_keys(images)
        rows = self.table.rows_of(keys)
        absent = (rows < 0).nonzero().squeeze(1).tolist()
        if absent:
            with torch.autocast(images.device.type, enabled=False):  # kept for all who ask later
                made = torch.cat([self.compute(images[part]) for part in _in_chunks(absent)])
            stored = [n for n, i in enumerate(absent) if keys[i] is not None]
            self.table.add([key for i in absent if (key := keys[i]) is not None], made[stored])
        if origin is not None:
            known = self.table.rows_of(keys) if absent else rows
            self._pools[origin.pool][1][_on_cpu(origin.rows)] = known
        if 0 < len(absent) == len(images):
            return made
        found = self.table.take(rows.clamp(min=0)).to(images)
        if absent:
            found[absent] = made
        return found

    def _rows_by_origin(self, origin: ImageOrigin) -> Tensor | None:
        """Where in the table the features of these images are; None where not all are known yet."""
        pool = origin.pool
        version, known = self._pools.get(pool, (-1, None))
        if known is None or version != pool._version:
            known = torch.full((len(pool),), -1, device="cpu")
            self._pools[pool] = pool._version, known
        rows = known[_on_cpu(origin.rows)]
        return None if bool((rows < 0).any()) else rows


class FrozenBackbone(nn.Module):
    """A shared backbone as a part of a model: no parameter, no buffer, the same in training mode.

    Its weights are public, so they are in no state, no upload and no checkpoint. A copy of the
    model has the same backbone. On which device it computes follows from the images.

    Shape: images in [0, 1] (n, C, H, W) to features (n, shared.length).
    """

    def __init__(self, shared: SharedBackbone) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, images: Tensor) -> Tensor:
        sought = torch.is_grad_enabled() and images.requires_grad
        if sought or images.is_meta or _in_transform() or _has_tangent(images):
            return self.shared.compute(images)
        return self.shared.features_of(images)

    def extra_repr(self) -> str:
        """Weights, architecture and size, in the printed model."""
        return self.shared.identity


def frozen_backbones(module: nn.Module) -> list[SharedBackbone]:
    """The shared backbones of a module, each once."""
    found = [part.shared for part in module.modules() if isinstance(part, FrozenBackbone)]
    return list({id(one): one for one in found}.values())


def image_keys(images: Tensor) -> list[bytes | None]:
    """What stands for each image; None where its pixels are not n / 255 for whole n.

    Args:
        images: (n, C, H, W).
    """
    if images.dtype != torch.float32:
        return [None] * len(images)
    pixels = (images * 255).round_()
    whole = (pixels / 255 == images).flatten(1).all(1)
    flat = pixels.flatten(1).double()
    numbers = (flat @ _key_weights(flat.shape[1]).to(flat.device)).cpu().numpy()
    return [
        row.tobytes() if good else None for row, good in zip(numbers, whole.tolist(), strict=True)
    ]


_KEY_WEIGHTS: dict[int, Tensor] = {}


def _key_weights(pixels: int) -> Tensor:
    """Whole numbers (pixels, KEYS) in float64, the same for all."""
    if pixels not in _KEY_WEIGHTS:
        rng = torch.Generator().manual_seed(pixels)
        drawn = torch.randint(DRAWN_BELOW, (pixels, KEYS), generator=rng, device="cpu")
        _KEY_WEIGHTS[pixels] = drawn.double()
    return _KEY_WEIGHTS[pixels]


def _on_cpu(rows: Tensor | slice) -> Tensor | slice:
    return rows.cpu() if isinstance(rows, Tensor) else rows


def _in_chunks(numbers: Sequence[int]) -> list[list[int]]:
    return [list(numbers[at : at + CHUNK]) for at in range(0, len(numbers), CHUNK)]


def _has_tangent(images: Tensor) -> bool:
    """Whether a derivative along a direction is wanted, under which gradients may be off."""
    return forward_ad.unpack_dual(images).tangent is not None


def _in_transform() -> bool:
    """Whether a transform of torch.func is at work, under which values cannot be looked at."""
    peek: Callable[[], object | None] = torch._C._functorch.peek_interpreter_stack
    return peek() is not None
