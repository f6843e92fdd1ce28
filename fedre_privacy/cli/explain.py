"""Descriptions: what a part does, what it needs, and every setting with its unit and range."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from fedre_privacy.attacks.base import RECOVERED, Attack, attacks, can_read, needed_for
from fedre_privacy.core.artifacts import Artifact, EntangledRep
from fedre_privacy.core.config import Knob, knobs
from fedre_privacy.core.registry import Named
from fedre_privacy.core.types import ThreatModel
from fedre_privacy.data.base import datasets
from fedre_privacy.defenses.base import defenses
from fedre_privacy.detectors.base import detectors
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.models.zoo import architectures
from fedre_privacy.partition.base import partitions
from fedre_privacy.play.observe import effective
from fedre_privacy.play.questions.base import questions
from fedre_privacy.play.targets import KINDS
from fedre_privacy.presets import presets
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.runs.folder import COMPLETE
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import (
    ATTACK_SECTIONS,
    TRAIN_SECTIONS,
    AttackSettings,
    TrainSettings,
)
from fedre_privacy.steering.base import steerings
from fedre_privacy.threats.base import threats

from .output import Output

Rows = list[dict[str, str]]

REGISTRIES: tuple[tuple[str, Named[Any]], ...] = (
    ("entanglement schemes", schemes),
    ("defences", defenses),
    ("steerings", steerings),
    ("detectors", detectors),
    ("data sets", datasets),
    ("partitions", partitions),
    ("architectures", architectures),
    ("metrics", metrics),
    ("questions", questions),
)


def explain(training: TrainSettings, settings: AttackSettings | None, output: Output) -> None:
    """Print each chosen part's docstring and settings, then the groups of settings."""
    shown = []
    for title, section, part, documented in _parts(training, settings):
        output.text(f"{title}  ({type(part).__module__}.{type(part).__qualname__})")
        output.text()
        if documented:
            output.text(inspect.getdoc(type(part)) or "")
            if isinstance(part, Attack):
                words = ", ".join(_adapts(type(part))) or "no step of a channel"
                output.text(f"Adapts to:  {words} (of defences that are declared)")
            output.text()
        rows = [_row(section, knob) for knob in knobs(type(part))]
        shown += rows
        hidden = () if any(row["unit"] != "-" for row in rows) else ("unit",)
        if rows:
            output.table([{k: v for k, v in row.items() if k not in hidden} for row in rows])
            output.text()
    output.line("Presets", "--preset NAME sets several at once; --preset list shows them")
    output.final(None, {"settings": shown, "presets": list(presets())})


def _parts(
    training: TrainSettings, settings: AttackSettings | None
) -> Iterator[tuple[str, str, Any, bool]]:
    """Title, section of the settings file, part, and whether its docstring is for users."""
    if settings is not None:
        yield f"attack {settings.attack.name}", "attack", settings.attack, True
    yield f"protocol {training.protocol.name}", "protocol", training.protocol, True
    scheme = training.protocol.scheme()
    if scheme is not None:
        yield f"entanglement scheme {scheme.name}", "protocol.entanglement", scheme, True
    for defense in training.defense:
        place = "defense" if len(training.defense) == 1 else f"defense.{defense.name}"
        yield f"defence {defense.name}", place, defense, True
    for steering in training.steering:
        place = "steering" if len(training.steering) == 1 else f"steering.{steering.name}"
        yield f"steering {steering.name}", place, steering, True
    yield f"data set {training.data.name}", "data", training.data, True
    yield f"partition {training.partition.name}", "partition", training.partition, True
    yield "settings of model", "model", training.model, False
    yield "settings of train", "train", training.train, False
    yield "settings of record", "record", training.record, False
    if settings is not None:
        yield "settings of eval", "eval", settings.evaluation, False
        for name, metric in settings.metrics.items():
            if knobs(type(metric)):
                yield f"metric {name}", f"metrics.{name}", metric, True


def _row(section: str, knob: Knob) -> dict[str, str]:
    return {
        "setting": f"{section}.{knob.name}",
        "default": _shown(knob.default),
        "allowed": knob.bounds or "-",
        "unit": knob.unit or "-",
        "meaning": knob.help,
    }


def _shown(value: Any) -> str:
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
        else f"{key} {_shown(tuple(value) if isinstance(value, list) else value)}"
        for key, value in own.items()
    )


def list_all(output: Output) -> None:
    """Print every plugin with what it reads, needs or sends, and where it comes from."""
    found: dict[str, Rows] = {"attacks": [], "protocols": []}
    broken: list[str] = []
    for entry in attacks.entries():
        if entry.broken:
            broken.append(f"attack {entry.name} ({entry.origin}): {entry.broken}")
            continue
        attack = attacks.get(entry.name)
        found["attacks"].append(
            {
                "attack": entry.name,
                "reads": _reads(attack.consumes),
                "needs": _shortly(sorted(attack.needs), 4),
                "recovers": attack.recovers,
                "adapts to": ", ".join(_adapts(attack)) or "-",
                "from": _from(entry.origin),
            }
        )
    for entry in protocols.entries():
        if entry.broken:
            broken.append(f"protocol {entry.name} ({entry.origin}): {entry.broken}")
            continue
        kinds = protocols.get(entry.name).uploads
        sends = ", ".join(kind.__name__ for kind in kinds) or "nothing"
        found["protocols"].append(
            {"protocol": entry.name, "uploads": sends, "from": _from(entry.origin)}
        )
    found["threat_models"] = [
        {
            "threat model": name,
            "grants": ", ".join(sorted(model.grants)),
            "rounds": model.rounds,
            "who": model.summary,
        }
        for name in threats.names()
        for model in (threats.get(name),)
    ]
    for rows in found.values():
        # what attacks adapt to is long: --explain and the JSON output have it
        output.table([{k: v for k, v in row.items() if k != "adapts to"} for row in rows])
        output.text()
    others: dict[str, list[str]] = {}
    for title, registry in REGISTRIES:
        others[title] = registry.names()
    broken += [
        f"{registry.what} {entry.name} ({entry.origin}): {entry.broken}"
        for registry in (threats, *(registry for _, registry in REGISTRIES))
        for entry in registry.entries()
        if entry.broken
    ]
    others["presets"] = list(presets())
    output.table([{"also": title, "names": ", ".join(names)} for title, names in others.items()])
    if broken:
        output.text()
    for text in broken:
        output.line("BROKEN", text)
    output.final(None, {**found, **others, "broken": broken})


def _adapts(attack: type[Attack]) -> tuple[str, ...]:
    """Steps of declared channels that an attack takes into account, in words, each once."""
    return tuple(dict.fromkeys(k.word for kinds in attack.adapts_to.values() for k in kinds))


def _from(origin: str) -> str:
    return "built in" if origin.startswith("fedre_privacy.") else origin


def _reads(kinds: Sequence[type[Artifact]]) -> str:
    return _shortly([kind.__name__ for kind in kinds], 3)


def _shortly(names: Sequence[str], most: int) -> str:
    """Names in a row; of more than `most` the first ones, and how many more."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])}, {len(names) - most + 1} more"


def list_for(run: Run, threat: ThreatModel, output: Output) -> None:
    """Print which attack can read which target of a run, or why not."""
    protocol = run.settings.protocol
    known = effective(threat, protocol.uploads, run.settings.model)
    rows = [
        {
            "target": target,
            f"uploaded by {protocol.name}": real,
            "attack": name,
            "answers": attacks.get(name).answers,
            "possible": _obstacle(name, kinds, known) or "yes",
        }
        for target, kinds, real in _targets(protocol)
        for name in attacks.names()
        if _asks(name, target, kinds)
    ]
    rounds = run.kept_rounds()
    missing = []
    if run.record["status"] != COMPLETE:
        missing.append(f"training is {run.record['status']}; go on with --resume")
    if not run.settings.record.truth:
        missing.append("no truth was recorded (--no-truth), so no attack can be scored")
    if not rounds:
        missing.append("no extractors were kept")
    output.line("Run", f"{run.name}: {run.record['summary']}")
    active = f"{run.active}: " if run.active else ""
    output.line("Attacker", f"{active}{threat.name} (--threat): {threat.summary}")
    output.line("Rounds", f"{', '.join(map(str, rounds)) or 'none'} can be attacked (--round)")
    for text in missing:
        output.line("Missing", text)
    output.text()
    output.table(rows)
    output.final(
        run.folder, {"threat": threat.name, "rounds": rounds, "missing": missing, "rows": rows}
    )


def _targets(protocol: Protocol) -> list[tuple[str, set[type[Artifact]], str]]:
    """Targets with the artifacts that carry them, and whether the protocol uploads them."""
    sent = set(protocol.uploads)
    out: list[tuple[str, set[type[Artifact]], str]] = [("uploaded", sent, "yes")] if sent else []
    for target, kind in KINDS.items():
        real = "yes" if kind in sent else "no: counterfactual"
        if target == RECOVERED:
            if EntangledRep not in sent:
                continue
            real = "worked out"
        out.append((target, {kind}, real))
    updates = {kind for kind in sent if kind.updates}
    return [*out, ("update", updates, "yes")] if updates else out


def _asks(name: str, target: str, kinds: set[type[Artifact]]) -> bool:
    """Whether an attack is for a target: it reads its artifacts, and answers that question."""
    attack = attacks.get(name)
    reads = [kind for kind in kinds if can_read(attack, kind)]
    if attack.answers == "images":
        return target != "uploaded" and len(reads) == len(kinds)
    return target == "uploaded" and bool(reads)


def _obstacle(name: str, kinds: set[type[Artifact]], threat: ThreatModel) -> str:
    """Say in a few words why an attack cannot be run, or nothing."""
    needed = needed_for(attacks.get(name), kinds)
    lacking = sorted(needed - threat.grants)
    if not lacking:
        return ""
    enough = next((n for n in threats.names() if needed <= threats.get(n).grants), None)
    remedy = f" (--threat {enough})" if enough else ""
    return f"no: needs {', '.join(lacking)}{remedy}"
