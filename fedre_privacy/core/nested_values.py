"""Settings laid over each other; lists of presets need no more than this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one nested mapping over another; scalars and lists are replaced whole.

    A plugin given by name alone keeps its name when settings of it are laid over.
    """
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(old, str) and isinstance(value, Mapping) and "name" not in value:
            old = {"name": old}
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        out[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return out
