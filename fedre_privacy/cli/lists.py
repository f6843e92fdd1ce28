"""Lists of parts and presets; those of the built-in parts are kept (`index`), none is imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fedre_privacy.core.registry import NameTable, has_plugins
from fedre_privacy.presets import presets
from fedre_privacy.runs.options import ATTACK_SECTIONS, TRAIN_SECTIONS

from .index import read_index
from .output import Output

ATTACKS = "fedre_privacy.attacks.base"
PROTOCOLS = "fedre_privacy.protocols.base"
THREATS = "fedre_privacy.threats.base"
OTHERS = {
    "entanglement schemes": "fedre_privacy.entanglement.base",
    "defences": "fedre_privacy.defenses.base",
    "steerings": "fedre_privacy.active_server.base",
    "detectors": "fedre_privacy.active_server.detectors.base",
    "shadow attacks": "fedre_privacy.attacks.shadow_attacks.base",
    "data sets": "fedre_privacy.data.base",
    "partitions": "fedre_privacy.partition.base",
    "architectures": "fedre_privacy.models.zoo.base",
    "metrics": "fedre_privacy.eval.metrics.base",
    "questions": "fedre_privacy.experiments.questions.base",
}
"""Modules that make the registries of parts."""
WHEN = "when to use"
HOMES = (ATTACKS, PROTOCOLS, THREATS, *OTHERS.values())


def display_default(value: Any) -> str:
    """Write a default as it would be given to ``--set``."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def list_presets(output: Output) -> int:
    """Print every preset with what it sets, those of one table under their source; return 0."""
    for source, group in groupby(presets().values(), key=lambda preset: preset.source):
        output.text(source)
        output.table([{"preset": one.name, "sets": _flat(one.values)} for one in group])
        output.text()
    output.final(
        None,
        {
            "presets": {
                name: {"source": preset.source, "values": preset.values}
                for name, preset in presets().items()
            }
        },
    )
    return 0


def _flat(values: Mapping[str, Any]) -> str:
    """Settings in short: a part's name first, then what differs from its defaults."""
    words = []
    for section in (*TRAIN_SECTIONS, *ATTACK_SECTIONS):
        if section not in values:
            continue
        given = values[section]
        own = dict(given) if isinstance(given, Mapping) else {"name": given}
        name = own.pop("name", None)
        inner = _flat_settings(own)
        head = f"{section} {name}" if name is not None else section
        words.append(f"{head} ({inner})" if name is not None and inner else f"{head} {inner}")
    return "; ".join(word.strip() for word in words)


def _flat_settings(own: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} ({_flat_settings(value)})"
        if isinstance(value, Mapping)
        else f"{key} {display_default(tuple(value) if isinstance(value, list) else value)}"
        for key, value in own.items()
    )


def list_all(output: Output) -> int:
    """Print when to use each part, what it reads, needs or sends, and its origin; return 0."""
    # what another package brings, or a new file, is known only by importing it
    kept = not _registries_imported() and not has_plugins() and read_index()["files"] == files()
    listed = {**(read_index()["parts"] if kept else registered_parts()), "presets": list(presets())}
    broken = listed.pop("broken")
    # what attacks adapt to and who an attacker is are long: --explain and the JSON output have them
    output.table(_columns(listed["attacks"], ("attack", WHEN)))
    for key, left_out in (
        ("attacks", (WHEN, "adapts to")), ("protocols", ()), ("threat_models", ("who",))
    ):  # fmt: skip
        kept = [name for name in listed[key][0] if name not in left_out]
        output.text()
        output.table(_columns(listed[key], kept))
    for title in OTHERS:
        said = listed[WHEN][title]
        output.text()
        output.table([{title: name, WHEN: said[name]} for name in listed[title]])
    output.text()
    output.table([{"also": "presets", "names": ", ".join(listed["presets"])}])
    if broken:
        output.text()
    for text in broken:
        output.line("BROKEN", text)
    output.final(None, {**listed, "broken": broken})
    return 0


def _columns(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[dict[str, str]]:
    return [{name: row[name] for name in names} for row in rows]


def registry(home: str) -> NameTable[Any]:
    """The registry that a module makes."""
    (found,) = [one for one in vars(importlib.import_module(home)).values() if _is_of(one, home)]
    return found  # type: ignore[no-any-return]


def files() -> list[str]:
    """Files that may register built-in parts, each with the module of its registry."""
    found = []
    for home in HOMES:
        ours, room, *inner = home.split(".")[:-1]
        spec = importlib.util.find_spec(f"{ours}.{room}")
        assert spec is not None and spec.submodule_search_locations is not None
        folder = Path(spec.submodule_search_locations[0], *inner)
        found += [f"{home}: {path.stem}" for path in sorted(folder.glob("*.py"))]
    return found


def _is_of(value: object, home: str) -> bool:
    return isinstance(value, NameTable) and value.package == home.rpartition(".")[0]


def _registries_imported() -> bool:
    """Whether registries are there already, perhaps with parts that were registered by hand."""
    return any(home in sys.modules for home in HOMES)


def registered_parts() -> dict[str, Any]:
    """Everything that a list of all parts shows, beside the presets, from the registries."""
    attacks, protocols, threats = map(registry, (ATTACKS, PROTOCOLS, THREATS))
    others = {title: registry(home) for title, home in OTHERS.items()}
    return {
        "attacks": [
            {
                "attack": entry.name,
                WHEN: _when(attack),
                "reads": _reads(attack.consumes),
                "needs": _shorten_names(sorted(attack.needs), 4),
                "recovers": attack.recovers,
                "adapts to": ", ".join(adapts(attack)) or "-",
                "from": _from(entry.origin),
            }
            for entry in attacks.entries()
            if not entry.broken
            for attack in (attacks.get(entry.name),)
        ],
        "protocols": [
            {
                "protocol": entry.name,
                WHEN: _when(protocol),
                "uploads": ", ".join(kind.__name__ for kind in protocol.uploads) or "nothing",
                "from": _from(entry.origin),
            }
            for entry in protocols.entries()
            if not entry.broken
            for protocol in (protocols.get(entry.name),)
        ],
        "threat_models": [
            {
                "threat model": name,
                WHEN: _when(model),
                "grants": ", ".join(sorted(model.grants)),
                "rounds": model.rounds,
                "who": model.summary,
            }
            for name in threats.names()
            for model in (threats.get(name),)
        ],
        **{title: own.names() for title, own in others.items()},
        WHEN: {
            title: {name: _when(own.get(name)) for name in own.names()}
            for title, own in others.items()
        },
        "broken": [
            f"{own.what} {entry.name} ({entry.origin}): {entry.broken}"
            for own in (attacks, protocols, threats, *others.values())
            for entry in own.entries()
            if entry.broken
        ],
    }


def _when(part: Any) -> str:
    return str(getattr(part, "when_to_use", "")) or "-"


def adapts(attack: Any) -> tuple[str, ...]:
    """Steps of declared channels that an attack takes into account, in words, each once."""
    return tuple(dict.fromkeys(k.word for kinds in attack.adapts_to.values() for k in kinds))


def _from(origin: str) -> str:
    return "built in" if origin.startswith("fedre_privacy.") else origin


def _reads(kinds: Sequence[type]) -> str:
    return _shorten_names([kind.__name__ for kind in kinds], 3)


def _shorten_names(names: Sequence[str], most: int) -> str:
    """Names in a row; of more than `most` the first ones, and how many more."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])}, {len(names) - most + 1} more"
