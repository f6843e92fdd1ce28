"""A page for each attack, from what the attack declares, and the list that leads to them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from part_text import cell, described, settings_of

from fedre_privacy.attacks.base import Attack, attacks, can_read
from fedre_privacy.cli.lists import adapts
from fedre_privacy.core.types import Knowledge
from fedre_privacy.experiments.compatibility import passes
from fedre_privacy.experiments.questions.base import questions_for
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolution import DEFAULTS, resolve_attack, resolve_training
from fedre_privacy.threats.base import threats, threats_granting

ROOT = Path(__file__).parents[2]
FOLDER = "reference/attacks"
LIST = "reference/attacks.md"
FIRST = ("fedgh", "fedavg", "fedsgd", "fedre", "lg-fedavg")
"""Protocols of commands where several would do."""


def built_in() -> dict[str, type[Attack]]:
    """The attacks of this package by their names."""
    own = {name: attacks.get(name) for name in attacks.names()}
    return {n: one for n, one in own.items() if one.__module__.startswith("fedre_privacy.")}


def command(name: str) -> str:
    """A command that runs an attack on a protocol which uploads what it reads, if there is one."""
    attack = attacks.get(name)
    if attack.particular:
        return f"fedre-attack --uploads DIR --network PKG:FN --image-shape CxHxW --attack {name}"
    for protocol in sorted(protocols.names(), key=lambda one: _place(attack, one)):
        values: dict[str, Any] = {"protocol": {"name": protocol}}
        values |= {"steering": {"name": attack.steered[0]}} if attack.steered else {}
        training = resolve_training(values, {}, [])
        for threat in _threats(attack):
            asked = {"attack": {"name": name}, "threat": threat}
            uploads = training.protocol.uploads if training else ()
            settings = resolve_attack(asked, {}, [], uploads=uploads)
            if training and settings and passes(training, settings):
                words = ["fedre-attack", "--protocol", protocol, "--attack", name]
                words += ["--steering", attack.steered[0]] if attack.steered else []
                words += ["--threat", threat] if threat != DEFAULTS["threat"] else []
                return " ".join(words)
    return f"fedre-attack RUN --attack {name}"


def _place(attack: type[Attack], protocol: str) -> tuple[int, int]:
    """Where a protocol stands: parameters by what the attack reads first, then the usual ones."""
    sent = protocols.get(protocol).uploads
    first = [
        at for at, kind in enumerate(attack.consumes) if kind in sent and can_read(attack, kind)
    ]
    of_parameters = bool(first) and attack.consumes[first[0]].updates
    usual = FIRST.index(protocol) if protocol in FIRST else len(FIRST)
    return (first[0] if of_parameters else 0, usual)


def _threats(attack: type[Attack]) -> list[str]:
    """Threat models to try: those of the attack's suite, the default, then weak to strong."""
    weak_first = sorted(threats.names(), key=lambda name: len(threats.get(name).grants))
    named = [entry.threat for entry in attack.suite]
    return list(dict.fromkeys([*named, str(DEFAULTS["threat"]), *weak_first]))


def facts(attack: type[Attack]) -> Iterator[str]:
    """What an attack reads, answers and needs, as rows of a table."""
    yield "| what | this attack |"
    yield "|---|---|"
    yield f"| reads | {', '.join(f'`{kind.__name__}`' for kind in attack.consumes)} |"
    yield f"| answers | {', '.join(f'`{one}`' for one in questions_for(attack.answers))} |"
    yield f"| needs to know | {_knowledge(attack.needs)} |"
    for kind, more in attack.needs_for.items():
        yield f"| to read `{kind.__name__}` | {_knowledge(more)} as well |"
    granting = ", ".join(f"`{name}`" for name in threats_granting(attack.needs)) or "none"
    yield f"| [threat models](../../threat_models.md) that grant it | {granting} |"
    if attack.steered:
        way = ", ".join(f"`--steering {one}`" for one in attack.steered)
        yield f"| server | [active](../../active_servers.md): {way} |"
    if attack.assumes:
        yield f"| takes for granted | {cell(attack.assumes)} |"
    rounds = "the first recorded" if attack.earliest else "the last recorded"
    yield f"| attacks the round | {rounds}, unless `eval.round` names one |"
    if attack.differentiates:
        yield "| differentiates | the client's module, by the image |"
    if adapts(attack):
        yield f"| adapts to defences that are declared | {', '.join(adapts(attack))} |"
    if attack.usual_for:
        usual = ", ".join(f"`--target {target}`" for target in attack.usual_for)
        yield f"| among the usual ones for | {usual} |"


def _knowledge(needed: frozenset[Knowledge]) -> str:
    return ", ".join(f"`{one}`" for one in sorted(needed))


def page(name: str, attack: type[Attack]) -> str:
    """The text of an attack's page."""
    lines = [f"# {name}", "", f"**When to use it:** {cell(attack.when_to_use)}.", ""]
    lines += [*described(inspect.getdoc(attack) or ""), ""]
    lines += ["## What it takes", "", *facts(attack), ""]
    lines += ["## Command", "", "```", command(name), "```", ""]
    lines += ["## Options", "", "Given as `--set attack.SETTING=VALUE`.", ""]
    lines += [*(settings_of(attack) or ["It has no settings."]), ""]
    lines += ["## Measured", "", measured(attack), ""]
    lines += [f"In Python: `{attack.__module__}.{attack.__qualname__}`"]
    return "\n".join(lines)


def measured(attack: type[Attack]) -> str:
    """Links to the pages of results that an attack names."""
    links = [f"[{_title(one)}](../../results/{one}.md)" for one in attack.measured_on]
    return "\n".join(f"* {link}" for link in links) or "No page of results has it by itself."


def _title(result: str) -> str:
    """The first heading of a page of results."""
    text = (ROOT / "results" / f"{result}.md").read_text(encoding="utf-8")
    return text.split("\n", 1)[0].removeprefix("# ")


def list_page() -> str:
    """The text of the page that lists all attacks by the question that they answer."""
    lines = ["# Attacks", "", "Names are what `--attack` takes; each has a page.", ""]
    own = built_in()
    for question in dict.fromkeys(sorted(one.answers for one in own.values())):
        lines += [f"## {question}", "", "| attack | when to use it | reads |", "|---|---|---|"]
        for name, attack in own.items():
            if attack.answers == question:
                kinds = ", ".join(kind.__name__ for kind in attack.consumes)
                when = cell(attack.when_to_use)
                lines.append(f"| [{name}](attacks/{name}.md) | {when} | {kinds} |")
        lines.append("")
    return "\n".join(lines)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages below their list in the menu."""
    (reference,) = [part["Reference"] for part in config.nav or [] if "Reference" in part]
    (at,) = [i for i, part in enumerate(reference) if part.get("Attacks") == LIST]
    pages = [{name: f"{FOLDER}/{name}.md"} for name in built_in()]
    reference[at] = {"Attacks": [{"All attacks": LIST}, *pages]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the list and the pages."""
    files.append(File.generated(config, LIST, content=list_page()))
    for name, attack in built_in().items():
        text = page(name, attack)
        files.append(File.generated(config, f"{FOLDER}/{name}.md", content=text))
    return files
