"""The attacks that a benchmark runs on a protocol unless it is told which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedre_privacy.attacks.base import RECOVERED, Attack, SuiteEntry, attacks
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.errors import ConfigError, unknown_name
from fedre_privacy.experiments.suite import entries_for
from fedre_privacy.runs.plain_settings import plain_value
from fedre_privacy.runs.settings import TrainSettings, target_names

Values = Mapping[str, Any]

PAPER = "fedre-paper"


def default_suite(training: TrainSettings, *, targets: int | None = None) -> list[Values]:
    """Attacks for a protocol's uploads, as the attacks themselves declare (`Attack.suite`).

    The strongest attack on images decides the place on the frontier: an optimiser that needs the
    extractor alone, a linear map, a diffusion model and candidates moved together, which need
    public images, and of whole models also the update itself.

    Args:
        targets: targets per attack; None keeps the default.
    """
    chosen: list[Values] = []
    for name, entry in entries_for(training):
        values = _values(name, entry)
        if values not in chosen:
            chosen.append(values)
    return [_with_targets(values, targets) for values in chosen]


def recovered_from() -> tuple[type[Artifact], ...]:
    """Kinds of uploads out of which a benchmark recovers prototypes, which it then attacks."""
    entries = [entry for name in attacks.names() for entry in attacks.get(name).suite]
    return tuple({entry.reads: None for entry in entries if entry.target == RECOVERED})


def _values(name: str, entry: SuiteEntry) -> Values:
    values: dict[str, Any] = {
        "attack": {"name": name, **entry.settings},
        "target": entry.target,
        "threat": entry.threat,
    }
    if entry.via:
        values["via"] = {"name": entry.via}
    if entry.fewest_first:
        values["eval"] = {"fewest_first": True}
    return values


def named_suite(names: Sequence[str | Attack], *, targets: int | None = None) -> list[Values]:
    """Attacks given as ``attack``, ``attack@target``, ``attack@target@threat`` or as objects.

    What is left out is as in the attack's first use that fits (`Attack.suite`): `linear` is
    ``linear@uploaded@strong``. Without such a use the target is what is uploaded, and the threat
    model the paper's.

    Raises:
        ConfigError: an unknown attack or target.
    """
    out = []
    for name in names:
        if not isinstance(name, str):
            own = {"attack": plain_value(name), "target": "uploaded", "threat": PAPER}
            out.append(_with_targets(own, targets))
            continue
        attack, _, rest = name.partition("@")
        target, _, threat = rest.partition("@")
        if target and target not in target_names():
            raise ConfigError(unknown_name("target", target, target_names()))
        uses = (*attacks.get(attack).suite, SuiteEntry(Artifact, PAPER))
        usual = next((use for use in uses if use.target == target), uses[0])
        chosen = {"target": target or usual.target, "threat": threat or usual.threat}
        out.append(_with_targets({"attack": {"name": attack}, **chosen}, targets))
    return out


def _with_targets(entry: Values, targets: int | None) -> Values:
    if targets is None:
        return dict(entry)
    return {**entry, "eval": {**entry.get("eval", {}), "targets": targets}}
