"""From plain values (YAML, options) to checked settings, all problems reported together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import yaml

from fedre_privacy.active_server.base import steerings
from fedre_privacy.attacks.base import RECOVERED, attacks, can_read, needed_for, usual_attacks
from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.config import build, build_plugin, knobs
from fedre_privacy.core.errors import ConfigError, nearest, unknown_name
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.typed_yaml import parse_yaml, short
from fedre_privacy.core.types import ThreatModel
from fedre_privacy.data.base import datasets
from fedre_privacy.defenses.base import defenses
from fedre_privacy.eval.metrics.base import Metric, metrics
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.partition.base import partitions
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.blocks.state import Training
from fedre_privacy.threats.base import threats

from .membership_game import MembershipGame
from .settings import (
    ATTACK_SECTIONS,
    TRAIN_SECTIONS,
    AttackSettings,
    Evaluation,
    RecordSettings,
    TrainSettings,
    Values,
    target_names,
)

T = TypeVar("T")

LISTED = {"defense": "defences", "steering": "steerings"}
"""Sections that are lists of parts, and what these are called."""

SCHEME = "entanglement"
"""The setting of a protocol that takes a scheme."""

TARGET_WORDS = {
    "images": "uploaded", "image": "uploaded", "uploads": "uploaded", "gradient": "update",
    "gradients": "update", "model": "update", "models": "update", "members": "membership",
    "mixtures": "entangled", "features": "representations", "embeddings": "representations",
}  # fmt: skip
"""What else the field calls what is attacked, and the target that it stands for."""

DEFAULTS = {
    "data": "digits",
    "partition": "pra",
    "protocol": "fedre",
    "attack": "dip",
    "via": "disentangle",
    "target": "uploaded",
    "threat": "fedre-paper",
}


def check_sections(values: Values, where: Values, problems: list[str]) -> None:
    """Report sections that do not exist."""
    known = (*TRAIN_SECTIONS, *ATTACK_SECTIONS)
    for key in values:
        if key not in known:
            place = f" ({where[key]})" if key in where else ""
            close = nearest(key, known)
            hint = f" Did you mean '{close}'?" if close else ""
            problems.append(f"Unknown section '{key}'{place}.{hint} Sections: {', '.join(known)}.")


def require_resolved(settings: T | None, problems: Sequence[str], *, see: str = "") -> T:
    """Return settings that were resolved without a problem.

    Args:
        see: command that lists all settings.

    Raises:
        ConfigError: the problems.
    """
    if problems or settings is None:
        step = f"See {see} for every setting." if see else None
        if step and problems and all(map(_names_a_part, problems)):
            step = "See fedre-attack list for every name, and when to use it."
        raise ConfigError(*problems, next_step=step)
    return settings


def _names_a_part(problem: str) -> bool:
    """Whether a problem is an unknown name of a part, and no setting or section."""
    return problem.startswith("Unknown ") and not problem.startswith(
        ("Unknown setting", "Unknown section", "Unknown target")
    )


def resolve_training(
    values: Values, where: Mapping[str, str], problems: list[str]
) -> TrainSettings | None:
    """Build the training settings; problems are appended."""

    parts: dict[str, Any] = {}
    for key, registry in (("data", datasets), ("partition", partitions), ("protocol", protocols)):
        value = values.get(key) or {}
        if isinstance(value, Mapping):
            value = {"name": DEFAULTS[key], **value}
        if key == "protocol":
            value = _without_scheme(value, problems)
        parts[key] = build_plugin(registry, value, at=key, problems=problems, where=where)
    parts["model"] = _group(ModelSettings, "model", values, where, problems)
    parts["train"] = _group(Training, "train", values, where, problems)
    parts["record"] = _group(RecordSettings, "record", values, where, problems)
    parts["defense"] = resolve_list(defenses, "defense", values.get("defense"), where, problems)
    parts["steering"] = resolve_list(steerings, "steering", values.get("steering"), where, problems)
    if any(part is None for part in parts.values()):
        return None
    coins = (
        _group(MembershipGame, "coins", values, where, problems) if values.get("coins") else None
    )
    if coins is None and values.get("coins"):
        return None
    return TrainSettings(**parts, coins=coins)


def _without_scheme(value: Any, problems: list[str]) -> Any:
    """Settings of a protocol; a scheme for one that mixes nothing is a problem and left out."""
    if not isinstance(value, Mapping) or SCHEME not in value:
        return value
    mixing = [
        name for name in protocols.names() if SCHEME in {k.name for k in knobs(protocols.get(name))}
    ]
    if value["name"] not in protocols.names() or value["name"] in mixing:
        return value
    problems.append(
        f"Protocol '{value['name']}' mixes nothing, so it takes no entanglement scheme (--scheme, "
        f"'protocol.{SCHEME}'): schemes are of {', '.join(mixing)}."
    )
    return {key: one for key, one in value.items() if key != SCHEME}


def _group(
    cls: type[T], key: str, values: Values, where: Mapping[str, str], problems: list[str]
) -> T | None:
    section = values.get(key) or {}
    if isinstance(section, Mapping):
        return build(cls, section, at=key, problems=problems, where=where)
    problems.append(f"'{key}' is a group of settings, not {short(section)}.")
    return None


def resolve_list(
    registry: Registry[T], key: str, given: Any, where: Mapping[str, str], problems: list[str]
) -> tuple[T, ...] | None:
    """Build parts of one kind from one or a list of names, ``name:key=value,...`` or settings.

    Args:
        key: of their section of the settings.
    """
    if given in (None, "none"):
        return ()
    several = isinstance(given, list | tuple)
    built = [
        build_plugin(
            registry,
            _written_out(entry) if isinstance(entry, str) else entry,
            at=f"{key}.{number}" if several else key,
            problems=problems,
            where=where,
        )
        for number, entry in enumerate(given if several else [given])
    ]
    made = tuple(part for part in built if part is not None)
    return made if len(made) == len(built) else None


def set_listed(section: str, given: Any, changes: Values) -> list[Any]:
    """Lay settings over parts given before: those of ``--set defense.KEY=VALUE``.

    With several parts a key must say whose it is: ``defense.NAME.KEY`` or ``defense.0.KEY``.

    Args:
        section: the key of their section, ``defense`` or ``steering``.

    Raises:
        ConfigError: a key that belongs to no part, or could belong to several.
    """
    several = list(given) if isinstance(given, list | tuple) else [given]
    made = [_written_out(entry) if isinstance(entry, str) else dict(entry) for entry in several]
    names = [entry.get("name") for entry in made]
    problems = []
    for key, value in changes.items():
        whose = [place for place, name in enumerate(names) if key in (name, str(place))]
        if isinstance(value, Mapping) and len(whose) == 1:
            made[whose[0]].update(value)
        elif len(made) == 1 and not isinstance(value, Mapping):
            made[0][key] = value
        else:
            listed = ", ".join(map(str, names))
            first = f"{section}.0.{key}" if not whose else f"{section}.0.KEY"
            problems.append(
                f"--set {section}.{key}: {len(made)} {LISTED[section]} are given ({listed}), and "
                f"this does not say whose setting it is. Write {first} (for '{names[0]}'), or put "
                f"it behind the name: --{section} NAME:KEY=VALUE."
            )
    if problems:
        raise ConfigError(*problems)
    return made


def _written_out(text: str) -> dict[str, Any]:
    """Turn ``name:key=value,...`` into settings; what is no value is left to be reported."""
    name, _, tail = text.rpartition(":")
    if not name or "=" not in tail:
        return {"name": text}
    out: dict[str, Any] = {"name": name}
    for item in tail.split(","):
        key, _, value = item.partition("=")
        try:
            out[key.strip()], _ = parse_yaml(value)
        except (ValueError, yaml.YAMLError):
            out[key.strip()] = value
    return out


def resolve_attack(
    values: Values,
    where: Mapping[str, str],
    problems: list[str],
    *,
    uploads: Collection[type[Artifact]] = (),
) -> AttackSettings | None:
    """Build the attack settings; problems are appended.

    Args:
        uploads: what the protocol uploads, when known; the attack that is taken where none is
            named reads some of it.
    """
    target = values.get("target") or DEFAULTS["target"]
    known = target_names()
    if target not in known:
        problems.append(unknown_name("target", str(target), known, also=TARGET_WORDS))
    threat, unknown_threat = None, []
    try:
        threat = threats.get(str(values.get("threat") or DEFAULTS["threat"]))
    except ConfigError as error:
        unknown_threat = list(error.problems)
    usual = _usual_attack(str(target), uploads, threat)
    value = values.get("attack") or {}
    value = {"name": usual, **value} if isinstance(value, Mapping) else {"name": value}
    attack = build_plugin(attacks, value, at="attack", problems=problems, where=where)
    if attack is None and value["name"] in known:
        problems.append(f"'{value['name']}' is a target, not an attack (--target, target=).")
    problems.extend(unknown_threat)
    evaluation = _group(Evaluation, "eval", values, where, problems)
    chosen: dict[str, Metric] = {}
    own = values.get("metrics") or {}
    if not (isinstance(own, Mapping) and all(isinstance(v or {}, Mapping) for v in own.values())):
        problems.append(f"'metrics' holds a group of settings per metric, not {short(own)}.")
        own = {}
    for name in evaluation.metrics if evaluation else ():
        metric = build_plugin(
            metrics,
            {**(own.get(name) or {}), "name": name},
            at=f"metrics.{name}",
            problems=problems,
            where=where,
        )
        if metric is not None:
            chosen[name] = metric
    for name in own:
        if evaluation and own[name] and name not in evaluation.metrics:
            problems.append(
                f"'metrics.{name}' has settings, but eval.metrics asks for "
                f"{', '.join(evaluation.metrics)}."
            )
    via = None
    if target == RECOVERED:
        section = values.get("via") or {}
        section = {"name": DEFAULTS["via"], **section} if isinstance(section, Mapping) else section
        via = build_plugin(attacks, section, at="via", problems=problems, where=where)
        if via is not None and via.answers not in ("prototypes", "representations"):
            problems.append(
                f"'via' is '{via.name}', which answers {via.answers}; target '{RECOVERED}' "
                "needs an attack that answers prototypes or representations."
            )
    elif values.get("via"):
        problems.append(f"'via' goes with target '{RECOVERED}'; the target is '{target}'.")
    if target not in known or attack is None or threat is None or evaluation is None:
        return None
    return AttackSettings(str(target), attack, threat, evaluation, chosen, via)


def _usual_attack(
    target: str, uploads: Collection[type[Artifact]], threat: ThreatModel | None
) -> str:
    """The attack for a target where none is named; numbers of samples count as no upload."""
    names = usual_attacks(target)
    grants = threat.grants if threat else frozenset()
    if not names:  # images
        for name in usual_attacks("images"):
            fits = target != "uploaded" or any(can_read(attacks.get(name), k) for k in uploads)
            if fits and attacks.get(name).needs <= grants:
                return name
        return DEFAULTS["attack"]
    sent = [kind for kind in uploads if Role.OPEN not in kind.roles]
    read = {n: {k for k in sent if can_read(attacks.get(n), k)} for n in names}
    able = [n for n in names if read[n]]
    granted = [n for n in able if needed_for(attacks.get(n), read[n]) <= grants]
    return (granted or able or names)[0]
