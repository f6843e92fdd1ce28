"""Named settings: what published tables say of their experiments, and a few convenient ones.

Each file next to this one holds presets of one table: the settings that they have in common, and
what each adds. A preset says only where it differs from the defaults or repeats what is published;
it chooses no protocol unless its table is about one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fedre_privacy.core.nested_values import merge

from ..core.errors import ConfigError

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Preset:
    """A named part of a settings file.

    Args:
        source: the paper and table, or what it is for.
        values: section to its settings.
        file: name of the YAML file, whose comments say what is not published.
    """

    name: str
    source: str
    values: Mapping[str, Any]
    file: str


@cache
def presets() -> dict[str, Preset]:
    """Return all presets by name, those of one file together."""
    found = {}
    reader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # faster, where PyYAML was built with it
    for path in sorted(HERE.glob("*.yaml")):
        content = yaml.load(path.read_text(encoding="utf-8"), reader)
        for name, own in content["presets"].items():
            values = merge(content.get("common", {}), own)
            found[name] = Preset(name, content["source"], values, path.name)
    return found


def preset(name: str) -> Preset:
    """Return one preset.

    Raises:
        ConfigError: no such preset; the nearest names are given, for ``list`` all of them.
    """
    known = presets()
    if name in known:
        return known[name]
    near = list(known) if name == "list" else get_close_matches(name, known, n=4, cutoff=0.3)
    hint = f" {'Presets' if name == 'list' else 'Nearest'}: {', '.join(near)}." if near else ""
    raise ConfigError(
        f"Unknown preset '{name}'.{hint}", next_step="fedre-train --preset list shows them all."
    )
