"""Copies of modules for code that may change what it is given."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import lru_cache

from torch import nn

Key = tuple[int, int]
COPIES = 32
"""Copies kept in memory; others are made again when they are asked for."""


class FrozenCopies(Mapping[Key, nn.Module]):
    """Copies of modules by (client, round), in evaluation mode and without gradients of parameters.

    A copy is made when it is first asked for, so that whatever is done to it (training mode,
    running statistics, parameters) the module itself stays as it is.
    """

    def __init__(self, modules: Mapping[Key, nn.Module]) -> None:
        self._modules = modules

        @lru_cache(maxsize=COPIES)
        def made(key: Key) -> nn.Module:
            return copy.deepcopy(modules[key]).eval().requires_grad_(False)

        self._made = made

    def __getitem__(self, key: Key) -> nn.Module:
        return self._made(key)

    def __contains__(self, key: object) -> bool:  # the inherited one would make the copy
        return key in self._modules

    def __iter__(self) -> Iterator[Key]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)
