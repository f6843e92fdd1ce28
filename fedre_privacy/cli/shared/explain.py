"""Descriptions: what a part does, what it needs, and every setting with its unit and range."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from fedre_privacy.attacks.base import RECOVERED, Attack, attacks, can_read, needed_for
from fedre_privacy.benchmarking.suite import recovered_from
from fedre_privacy.cli.lists import adapts, display_default
from fedre_privacy.cli.output import Output
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.config import Knob, knobs
from fedre_privacy.core.errors import ConfigError, nearest
from fedre_privacy.core.types import ThreatModel
from fedre_privacy.experiments.observation import effective
from fedre_privacy.experiments.questions.base import questions_for
from fedre_privacy.experiments.suite import first_stages, hides_its_head, hides_its_loss
from fedre_privacy.experiments.targets import KINDS
from fedre_privacy.presets import presets
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.folder import COMPLETE
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.threats.base import threats_granting


def explain(
    training: TrainSettings, settings: AttackSettings | None, output: Output, word: str = ""
) -> None:
    """Print each chosen part's docstring and settings, then the groups of settings.

    Args:
        word: print only the settings whose name or meaning holds it, in one table.
    """
    parts = list(_parts(training, settings))
    if word:
        rows = [_row(section, knob) for _, section, part, _ in parts for knob in knobs(type(part))]
        _explain_word(rows, word, output)
        return
    every = []
    for title, section, part, documented in parts:
        output.text(f"{title}  ({type(part).__module__}.{type(part).__qualname__})")
        output.text()
        if documented:
            output.text(inspect.getdoc(type(part)) or "")
            if isinstance(part, Attack):
                words = ", ".join(adapts(type(part))) or "no step of a channel"
                output.text(f"Adapts to:  {words} (of defences that are declared)")
            output.text()
        rows = [_row(section, knob) for knob in knobs(type(part))]
        every += rows
        hidden = () if any(row["unit"] != "-" for row in rows) else ("unit",)
        if rows:
            output.table([{k: v for k, v in row.items() if k not in hidden} for row in rows])
            output.text()
    output.line("Presets", "--preset NAME sets several at once; --preset list shows them")
    output.final(None, {"settings": every, "presets": list(presets())})


def _explain_word(rows: list[dict[str, str]], word: str, output: Output) -> None:
    """Print the settings whose name or meaning holds a word.

    Raises:
        ConfigError: there is none.
    """
    found = [r for r in rows if word.lower() in f"{r['setting']} {r['meaning']}".lower()]
    if not found:
        close = nearest(word, [part for row in rows for part in row["setting"].split(".")])
        hint = f" Did you mean '{close}'?" if close else ""
        raise ConfigError(
            f"No setting has '{word}' in its name or meaning.{hint}",
            next_step="Give --explain without a word for all settings.",
        )
    output.table(found)
    output.final(None, {"settings": found})


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
        "default": display_default(knob.default),
        "allowed": knob.bounds or "-",
        "unit": knob.unit or "-",
        "meaning": knob.help,
    }


def list_for(run: Run, threat: ThreatModel, output: Output) -> None:
    """Print which attack can read which target of a run, or why not."""
    protocol = run.settings.protocol
    shares = protocol.shared_model() is not None

    def known(target: str) -> ThreatModel:
        return effective(threat, run.settings, shared=shares and target == RECOVERED)

    rows = [
        {
            "target": target,
            f"uploaded by {protocol.name}": real,
            "attack": name,
            "answers": ", ".join(questions_for(attacks.get(name).answers)),
            "possible": _obstacle(name, kinds, known(target), run.settings) or "yes",
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
            if not sent & set(recovered_from()) or not first_stages(protocol):
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


def _obstacle(
    name: str, kinds: set[type[Artifact]], threat: ThreatModel, training: TrainSettings
) -> str:
    """Say in a few words why an attack cannot be run, or nothing."""
    attack = attacks.get(name)
    if hides_its_loss(training, attack, [kind for kind in kinds if can_read(attack, kind)]):
        return f"no: {training.unseen}"
    if hides_its_head(training.protocol, attack, kinds):
        return f"no: {training.protocol.unseen}"
    needed = needed_for(attack, kinds)
    lacking = sorted(needed - threat.grants)
    if not lacking:
        return ""
    enough = next(iter(threats_granting(needed)), None)
    remedy = f" (--threat {enough})" if enough else ""
    return f"no: needs {', '.join(lacking)}{remedy}"
