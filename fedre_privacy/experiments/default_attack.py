"""The attack on what a protocol uploads where none is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedre_privacy.attacks.base import can_read
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.settings import AttackSettings, TrainSettings

from .compatibility import usual_ones
from .questions.base import question_of


def with_usual_attack(
    values: Mapping[str, Any], training: TrainSettings | None, *, report: Report = silent
) -> dict[str, Any]:
    """Settings of an attack with the leading one of the upload's suite, where none is named.

    So it is where what was uploaded is attacked and the usual attack on images reads none of it.
    The attack passes what every attack has to; where none of the suite does with the default
    threat model, and none is named, it comes with its own. That it was chosen is reported (event
    ``attack.usual``).

    Args:
        values: sections of settings; problems in them are left to be found.
        training: that is attacked, if it resolved.
    """
    if training is None or values.get("attack") or values.get("target") not in (None, "uploaded"):
        return dict(values)
    problems: list[str] = []
    asked = resolve_attack(values, {}, problems, uploads=training.protocol.uploads)
    if asked is None or problems or not training.protocol.uploads:
        return dict(values)
    kinds = question_of(asked).kinds(training.protocol, asked)
    if all(can_read(asked.attack, kind) for kind in kinds):
        return dict(values)
    found = list(usual_ones(training, asked))
    if not found or (values.get("threat") and found[0].threat != asked.threat):
        return dict(values)
    first, *others = found
    chosen: dict[str, Any] = {"attack": {"name": first.attack.name}}
    names = ", ".join(sorted(k.__name__ for k in kinds))
    said = f"{_default_note(first, asked)} (the usual one for {names}"
    if first.threat != asked.threat:
        chosen["threat"] = first.threat.name
    beside = [_default_note(one, asked) for one in others]
    said += f"; others: {', '.join(beside)})" if beside else ")"
    report(Event("attack.usual", {"attack": first.attack.name, "text": said}))
    return {**values, **chosen}


def _default_note(one: AttackSettings, asked: AttackSettings) -> str:
    more = "" if one.threat == asked.threat else f" with --threat {one.threat.name}"
    return f"{one.attack.name}{more}"
