"""A folder with a result, its settings, and the words that entries of every kind share."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedre_privacy.active_server.base import steerings
from fedre_privacy.core import files
from fedre_privacy.core.config import knobs, load_yaml
from fedre_privacy.core.manifest import MANIFEST, complete_manifest
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.typed_yaml import check
from fedre_privacy.defenses.base import defenses
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.partition.base import partitions
from fedre_privacy.reports.page_parts import versions
from fedre_privacy.runs.folder import COMPLETE, PARTIAL

from .records import SettingsRecord, Values


@dataclass(frozen=True)
class ResultFolder:
    """A folder with a result.

    Args:
        truth: whether what is private is read.
        split: names data and partition of the run that it belongs to; empty where not known.
    """

    root: Path
    folder: Path
    kind: str
    truth: bool
    split: str = ""

    @property
    def path(self) -> str:
        """Relative to the root, with slashes; its own name where it is the root."""
        path = self.folder.relative_to(self.root).as_posix()
        return self.root.resolve().name if path == "." else path

    def checked(self, name: str, status: str) -> Path:
        """A file of the folder, which is the one that was listed where the work is complete."""
        path = self.folder / name
        if status == COMPLETE:
            complete_manifest(self.folder).check(path)
        return path


def without_root(words: str, place: ResultFolder) -> str:
    """A message without the folders above the root, which are nobody's business."""
    return words.replace(f"{place.root}{os.sep}", "").replace(str(place.root), place.path)


def settings_of(place: ResultFolder, status: str) -> dict[str, Any]:
    """The settings of a run or an attack; where the truth is left out, without those of the data.

    Raises:
        FedreError: no file of settings, or changed.
    """
    path = place.checked("config.yaml", status)
    values = load_yaml(path).values
    check(values, SettingsRecord, path)
    return open_settings(place, values)


def open_settings(place: ResultFolder, settings: Values) -> dict[str, Any]:
    """Settings; where the truth is left out, of the data set its name alone."""
    if place.truth or "data" not in settings:
        return dict(settings)
    return {**settings, "data": {"name": name_of(settings["data"])}}


def name_of(part: object) -> str:
    """The name of a part in settings."""
    return str(part.get("name", "?")) if isinstance(part, Mapping) else str(part or "")


def _part(given: object, registry: Registry[Any]) -> str:
    """A part as on the command line, ``name:key=value,...``, without settings of their defaults."""
    if not isinstance(given, Mapping):
        return str(given or "")
    name = name_of(given)
    usual = (
        {k.name: k.default for k in knobs(registry.get(name))} if name in registry.names() else {}
    )
    more = [
        f"{key}={_part(value, registry) if isinstance(value, Mapping) else value}"
        for key, value in given.items()
        if key != "name" and value is not None and not (key in usual and usual[key] == value)
    ]
    return ":".join([name_of(given), *([",".join(more)] if more else [])])


def facets_of(settings: Values) -> dict[str, str]:
    """What a training is found by."""
    if "protocol" not in settings:
        return {}
    protocol, data = settings["protocol"], settings.get("data")
    scheme = protocol.get("entanglement") if isinstance(protocol, Mapping) else None
    path = data.get("path") if isinstance(data, Mapping) else None
    defences = [_part(one, defenses) for one in settings.get("defense") or ()]
    return {
        "protocol": name_of(protocol),
        "scheme": _part(scheme, schemes),
        "defence": " + ".join(defences) or "none",
        "data": f"{name_of(data)}:{Path(str(path)).stem}" if path else name_of(data),
        "partition": _part(settings.get("partition"), partitions),
        **({"server": _part(s[0], steerings)} if (s := settings.get("steering")) else {}),
    }


def seed_of(settings: Values) -> int | None:
    """The seed of a training, where its settings say one."""
    seed = settings.get("train", {}).get("seed")
    return seed if isinstance(seed, int) else None


def number_text(value: float | None, digits: int = 3) -> str:
    """A number as tables show it; a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def failure_of(status: str, failure: str, place: ResultFolder) -> str:
    """Why work is not complete; empty where it is."""
    if status == COMPLETE:
        return ""
    usual = "It is under way, or was interrupted; --resume goes on."
    return without_root(failure, place) or (
        usual if status == PARTIAL else "no reason was recorded"
    )


def made_with(record: Mapping[str, Any], folder: Path, status: str) -> dict[str, str]:
    """Where and with what it was made."""
    out = {"Device": str(record.get("device", ""))}
    out |= {"Versions": versions(record)} if "versions" in record else {}
    if status == COMPLETE:
        out["Manifest (SHA-256)"] = files.file_sha256(folder / MANIFEST)
    return {name: words for name, words in out.items() if words}


def digest(value: object) -> str:
    """A short name that is equal where values are."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
