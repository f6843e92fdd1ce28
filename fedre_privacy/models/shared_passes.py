"""What modules make of images, computed once for each module of an attack."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .frozen_backbone import FrozenBackbone

KEPT_BYTES = 1 << 30
"""Representations that an attack keeps in memory; what comes beyond them is computed again."""
PLAIN = (bool, int, float, str, type(None))
OF_ANY_MODULE = frozenset(vars(nn.Module()))
"""Attributes that every module has; those that compute something are read in other ways."""


class SharedPasses:
    """Representations (n, d) of versions of auxiliary images (n, C, H, W), by extractor.

    Families of targets, several attacked clients with one public extractor and a calibration that
    attacks with a part of the images find here what was computed before. It is presumed that an
    image's representation does not depend on the images beside it.
    """

    def __init__(self, whole: SharedPasses | None = None, rows: Tensor | None = None) -> None:
        self._whole, self._rows = whole, rows
        self._kept: dict[str, list[Tensor]] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def part(self, rows: Tensor) -> SharedPasses:
        """The passes of an attack whose auxiliary images are some rows (m,) of these."""
        return SharedPasses(self, rows)

    def of(self, name: str, count: int, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Representations of the first `count` versions through an extractor; not to be changed.

        Args:
            name: `extractor_name` of the extractor.
            make: computes them; called by one thread at a time for each extractor.
        """
        with self._lock:
            turn = self._turns.setdefault(name, threading.Lock())
        with turn:
            found = self._find(name, count)
            if found is None:
                found = make()
                self._keep(name, found)
        return found

    def _find(self, name: str, count: int) -> list[Tensor] | None:
        kept = self._kept.get(name, [])
        if len(kept) >= count:
            return kept[:count]
        if self._whole is None or self._rows is None:
            return None
        found = self._whole._find(name, count)
        return None if found is None else [one[self._rows.to(one.device)] for one in found]

    def _keep(self, name: str, found: list[Tensor]) -> None:
        with self._lock:
            others = [one for key, kept in self._kept.items() if key != name for one in kept]
            if sum(one.nbytes for one in [*others, *found]) <= KEPT_BYTES:
                self._kept[name] = found


def extractor_name(owner: tuple[int, int], extract: nn.Module) -> str:
    """A name that two extractors share only where they compute the same.

    It is a hash of their classes, settings and state; or that of the client and the round, where a
    module has hooks or attributes that are no plain values.

    Args:
        owner: (client, round).
    """
    digest = hashlib.sha256()
    for path, one in extract.named_modules():
        own = {key: value for key, value in vars(one).items() if key not in OF_ANY_MODULE}
        if isinstance(one, FrozenBackbone):
            own["shared"] = one.shared.identity
        hooked = any(value for key, value in vars(one).items() if key.endswith("_hooks"))
        if hooked or not all(map(_is_plain, own.values())):
            return f"client {owner[0]} round {owner[1]}"
        kind = type(one)  # by its address too: two scripts may give different classes one name
        said = f"{kind.__module__}.{kind.__qualname__} {id(kind)} {sorted(own.items())!r}"
        digest.update(f"|{path}|{said}".encode())
    for name, tensor in [*extract.named_parameters(), *extract.named_buffers()]:
        digest.update(f"|{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)
