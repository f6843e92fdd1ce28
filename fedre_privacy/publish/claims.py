"""A claim: made from the folder of a finished attack, and read from a stranger's file.

What a claim says of itself beside its settings (names, seeds, the command) follows from the
settings. It is there for readers, and a file in which the two differ is refused. No setting is
resolved here and nothing is imported.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedre_privacy.core.errors import MissingInputError
from fedre_privacy.core.manifest import Manifest
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.core.schema import short
from fedre_privacy.eval.measures import GROUPS, TABLE, Measure, group_name
from fedre_privacy.runs.settings import ATTACK_SECTIONS, TRAIN_SECTIONS

from .format import Claim, Claimed, Numbers, Seeds, What, digest, read, refused

Values = Mapping[str, Any]

NEEDED = ("data", "partition", "model", "protocol", "train", "record", "target", "attack",
          "threat", "eval", "metrics")  # fmt: skip
"""Sections of settings that every claim holds."""

_SEPARATOR = re.compile(r"[/\\:]|^\.+$|^~")


def read_claim(path: Path) -> Claim:
    """Read a claim, which agrees with itself.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: it is no claim, or was changed.
    """
    if not path.is_file():
        raise MissingInputError(
            f"No claim at {path}.",
            next_step="Make one of a finished attack: fedre-benchmark claim RUN/attacks/NAME.",
        )
    found = read(path)
    if not isinstance(found, Claim):
        raise refused(path, "is a verification, and no claim")
    agree(found, path)
    return found


def agree(claim: Claim, path: Path) -> None:
    """Refuse a claim whose names, seeds or command are not those of its settings.

    Raises:
        DamagedInputError: they are not, or the settings are none.
    """
    settings = claim.settings
    known = (*TRAIN_SECTIONS, *ATTACK_SECTIONS)
    strange = [key for key in settings if key not in known]
    absent = [key for key in NEEDED if key not in settings]
    if strange or absent:
        wrong = f"unknown sections {short(strange)}" if strange else f"no section '{absent[0]}'"
        raise refused(path, f"has settings with {wrong}")
    try:
        told: dict[str, object] = {
            "what": what_of(settings),
            "seeds": seeds_of(settings),
            "command": command_of(settings, claim.plugins),
        }
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise refused(path, f"has settings that name no parts: {short(str(error))}") from None
    data_path = settings["data"].get("path")
    if data_path is not None and (
        not isinstance(data_path, str) or _SEPARATOR.search(data_path) or not data_path
    ):
        raise refused(
            path, f"names {short(data_path)} as the file of its data; a claim names no folders"
        )
    for key, value in told.items():
        if getattr(claim, key) != value:
            raise refused(path, f"says other {key} than its settings do")
    seen = [(one.key, one.group) for one in claim.measures]
    if len(set(seen)) < len(seen):
        raise refused(path, "claims a measure twice")


def what_of(settings: Values) -> What:
    """The names of the parts in settings."""
    protocol, via = settings["protocol"], settings.get("via")
    scheme = protocol.get("entanglement")
    names = {
        "protocol": protocol["name"],
        "scheme": None if scheme is None else scheme["name"],
        "defenses": [one["name"] for one in settings.get("defense", ())],
        "steerings": [one["name"] for one in settings.get("steering", ())],
        "dataset": settings["data"]["name"],
        "partition": settings["partition"]["name"],
        "target": settings["target"],
        "attack": settings["attack"]["name"],
        "via": None if via is None else via["name"],
        "threat": settings["threat"],
        "attacker": settings["eval"]["attacker"],
    }
    return msgspec.convert(names, What)


def seeds_of(settings: Values) -> Seeds:
    """The seeds in settings."""
    told = {
        "training": settings["train"]["seed"],
        "partition": settings["partition"].get("seed"),
        "evaluation": settings["eval"]["seed"],
    }
    return msgspec.convert(told, Seeds)


def command_of(settings: Values, plugins: list[str]) -> str:
    """The command that trains and attacks by complete settings, whatever the defaults are."""
    words = ["fedre-attack"]
    for key, section in settings.items():
        words += ["--set", shlex.quote(f"{key}={json.dumps(section)}")]
    return " ".join(words) + plugin_words(plugins)


def portable(settings: Values) -> dict[str, Any]:
    """Settings without the folder of a data file, which is nobody's business."""
    data = settings.get("data")
    path = data.get("path") if isinstance(data, Mapping) else None
    if not isinstance(path, str):
        return dict(settings)
    return {**settings, "data": {**(data or {}), "path": Path(path).name}}


def uploads_hash(manifest: Manifest) -> str:
    """A hash of the recorded uploads and models of a run, which hold no time and no place."""
    listed = {
        name: entry.sha256
        for name, entry in manifest.entries.items()
        if name.startswith(("uploads/", "models/")) and name.endswith(".safetensors")
    }
    return digest(listed)


def claimed_of(measure: Measure) -> dict[str, Any] | None:
    """A measure as it is claimed; None for what no table shows and what has no value."""
    if measure.value is None or not measure.is_in(TABLE):
        return None
    words = ("key", "group", "title", "unit", "percent", "digits", "against", "floor_name")
    return {**{key: getattr(measure, key) for key in words}, "numbers": numbers_of(measure)}


def numbers_of(measure: Measure) -> dict[str, Any]:
    """The numbers of a measure that has a value."""
    return {key: getattr(measure, key) for key in Numbers.__struct_fields__}


def measure_of(claimed: Claimed, numbers: Numbers) -> Measure:
    """Numbers under the words of a claim, to be printed as every measure is."""
    return Measure(
        key=claimed.key, group=claimed.group, title=claimed.title, unit=claimed.unit,
        percent=claimed.percent, digits=claimed.digits, against=claimed.against,
        floor_name=claimed.floor_name, value=numbers.value, interval=numbers.interval,
        sd=numbers.sd, floor=numbers.floor, over=numbers.over, n=numbers.n,
        over_interval=numbers.over_interval,
        higher_is_more_leakage=numbers.higher_is_more_leakage,
    )  # fmt: skip


def leading(claim: Claim) -> Claimed:
    """The measure that a claim is ranked by: the first of all targets that stands over a floor."""
    whole = [one for one in claim.measures if not one.group]
    return next((one for one in whole if one.numbers.over is not None), claim.measures[0])


def targets_of(group: str) -> str:
    """A group of targets in words: by the images behind them, or what stands beside them."""
    sizes = {key for key, *_ in GROUPS}
    return group_name(group) if group in sizes or not group else group
