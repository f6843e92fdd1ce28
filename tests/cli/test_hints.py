"""Every protocol is attacked by default, and what a refusal advises is not refused in turn."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.core.errors import FedreError
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.experiments.default_attack import with_usual_attack
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolution import (
    require_resolved,
    resolve_attack,
    resolve_training,
    target_names,
)
from fedre_privacy.runs.settings import ATTACK_SECTIONS, TrainSettings
from fedre_privacy.runs.training import train
from fedre_privacy.threats.base import threats

NAMES = protocols.names()
TINY = {
    "data": {"size": 16, "per_class": 12},
    "train": {"clients": 3, "rounds": 2},
    "model": {"name": "cnn4", "dim": 64},
}
OPTION = re.compile(
    r"--(target|attack|threat|steering|models|set) ((?:[a-z0-9._=-]+(?:, | or )?)+)"
)


def hinted(text: str) -> Iterator[list[str]]:
    """The options of every command that a refusal advises, one list for each."""
    problem, _, listed = text.partition("Attacks for them: ")
    for question in filter(None, listed.partition("\n")[0].split("; ")):
        for named, said in re.findall(
            r"([a-z-]+)(?: \(([^)]*)\))?(?:, |\.|$)", question.partition(": ")[2]
        ):
            yield ["--attack", named, *re.findall(r"--threat|(?<=--threat )[a-z-]+", said)]
    step = text.splitlines()[-1]
    if "Attacks for them" in step or "--" not in step:
        return
    for way in re.split(r", or (?:use )?(?=--)", step.rstrip(".")):
        options = [
            [[f"--{key}", name] for name in re.split(r", | or ", values.strip(" ,"))]
            for key, values in OPTION.findall(way)
        ]
        for chosen in product(*options):
            yield [word for option in chosen for word in option]


def asked(options: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options as settings: of the training, of the attack."""
    training: dict[str, Any] = {}
    attack: dict[str, Any] = {}
    for key, value in zip(options[::2], options[1::2], strict=True):
        if key == "--set":
            place, _, said = value.partition("=")
            section, _, name = place.partition(".")
            where = attack if section in ATTACK_SECTIONS else training
            where.setdefault(section, {})[name] = {"true": True}.get(said, said)
        elif key == "--models":
            training.setdefault("model", {})["name"] = value
        elif key == "--steering":
            training["steering"] = value
        else:
            attack[key.removeprefix("--")] = value
    return training, attack


def resolved(sections: dict[str, Any]) -> TrainSettings:
    problems: list[str] = []
    return require_resolved(resolve_training(sections, {}, problems), problems)


def check(protocol: str, options: list[str]) -> None:
    """Resolve a command and check it as far as that goes before anything is trained."""
    sections, values = asked(options)
    problems: list[str] = []
    training = resolved({"protocol": protocol, **sections})
    values = with_usual_attack(values, training)
    settings = resolve_attack(values, {}, problems, uploads=training.protocol.uploads)
    assert settings is not None and not problems, problems
    check_ahead(training, settings)


@pytest.mark.parametrize("protocol", [name for name in NAMES if name != "local"])
def test_every_protocol_that_uploads_is_attacked_by_default(protocol: str) -> None:
    check(protocol, [])


@pytest.mark.parametrize(
    "protocol",
    [n if n in ("fedral", "local") else pytest.param(n, marks=pytest.mark.slow) for n in NAMES],
)
def test_what_a_refusal_advises_is_not_refused(protocol: str) -> None:
    tried, refused = 0, []
    for name, threat in product(attacks.names(), ("fedre-paper", "eavesdropper", "no-extractor")):
        try:
            check(protocol, ["--attack", name, "--threat", threat])
        except FedreError as error:
            given = {"--attack": name, "--threat": threat}
            for options in hinted(str(error)):
                tried += 1
                changed = {**given, **dict(zip(options[::2], options[1::2], strict=True))}
                try:
                    check(protocol, [word for pair in changed.items() for word in pair])
                except FedreError as again:
                    refused.append((given, options, str(again)))
    assert tried > 10 and not refused, refused


def in_place(options: list[str], changed: list[str]) -> list[str]:
    """Options with others in place of those of the same name."""
    both = dict(zip(options[::2], options[1::2], strict=True))
    both |= dict(zip(changed[::2], changed[1::2], strict=True))
    return [word for pair in both.items() for word in pair]


@pytest.mark.parametrize("count", [40, pytest.param(1500, marks=pytest.mark.slow)])
def test_what_any_refusal_advises_is_not_refused(count: int) -> None:
    """Protocols, targets, threat models and attacks, put together at random."""
    draw, tried, refused = random.Random(count), 0, []
    for _ in range(count):
        protocol, options = draw.choice(NAMES), []
        for key, names in (("--threat", threats.names()), ("--target", target_names()),
                           ("--attack", attacks.names())):  # fmt: skip
            if name := draw.choice([None, *names]):
                options += [key, name]
        try:
            check(protocol, options)
        except FedreError as error:
            for changed in hinted(str(error)):
                tried += 1
                try:
                    check(protocol, in_place(options, changed))
                except FedreError as again:
                    refused.append((protocol, options, changed, str(again)))
    assert tried > count / 2 and not refused, refused


def test_a_threat_model_that_was_asked_for_is_kept_where_another_attack_does() -> None:
    with pytest.raises(FedreError, match="Use --attack disentangle, or --threat"):
        check("fedre", ["--threat", "frozen-extractor"])
    check("fedre", ["--threat", "frozen-extractor", "--attack", "disentangle"])


def test_hints_are_read_as_they_are_written() -> None:
    """The test above is worth what this finds in the words."""
    text = (
        "Attack 'dip' reads X; the targets are Y. Attacks for them: images: linear (Y, --threat "
        "strong), pixel; labels: labels.\nUse --threat strong, or --attack pixel or dip."
    )
    assert list(hinted(text)) == [
        ["--attack", "linear", "--threat", "strong"], ["--attack", "pixel"],
        ["--attack", "labels"], ["--threat", "strong"], ["--attack", "pixel"], ["--attack", "dip"],
    ]  # fmt: skip
    text = "Ask: --target prototypes, update or entangled (counterfactual) --attack dip."
    assert [options[1] for options in hinted(text)] == ["prototypes", "update", "entangled"]
    assert all(options[2:] == ["--attack", "dip"] for options in hinted(text))
    assert set(threats.names()) >= {"strong"}


@pytest.mark.parametrize("protocol", ["fd", "fedavg", "fedral", "lg-fedavg"])
def test_the_usual_attack_of_an_upload_is_named(protocol: str) -> None:
    problems: list[str] = []
    training = resolve_training({"protocol": protocol}, {}, problems)
    said: list[str] = []
    chosen = with_usual_attack({}, training, report=lambda event: said.append(event.data["text"]))
    name = chosen["attack"]["name"]
    assert len(said) == 1 and said[0].startswith(f"{name}") and "others: " in said[0]
    assert chosen.get("threat") == ("strong" if protocol == "fedral" else None)
    weak = with_usual_attack({"threat": "eavesdropper"}, training)
    assert weak.get("threat") == "eavesdropper"
    assert with_usual_attack({"attack": {"name": "dip"}}, training) == {"attack": {"name": "dip"}}
    assert with_usual_attack({"target": "labels"}, training) == {"target": "labels"}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", NAMES)
def test_what_is_advised_begins_to_run(protocol: str, tmp_path: Path) -> None:
    """As far as a dry run goes: a tiny training, and few repetitions of each loop."""
    sections = {"protocol": {"name": protocol}, **TINY}
    if protocol == "fedmrl":
        sections["protocol"]["small"] = {"dim": 8}
    training = resolved(sections)
    run = train(training, runs=tmp_path)
    ways = [[]] if protocol != "local" else []
    for options in ([], ["--attack", "logits"]):
        try:
            check(protocol, options)
        except FedreError as error:
            given = dict(zip(options[::2], options[1::2], strict=True))
            changes = (dict(zip(way[::2], way[1::2], strict=True)) for way in hinted(str(error)))
            ways += [
                [word for pair in {**given, **own}.items() for word in pair] for own in changes
            ]
    assert ways
    for options in ways:
        _, values = asked(options)
        problems: list[str] = []
        values = with_usual_attack({"eval": {"targets": 2}, **values}, training)
        uploads = training.protocol.uploads
        settings = require_resolved(resolve_attack(values, {}, problems, uploads=uploads), problems)
        trial = prepare_attack(run, settings)
        loops = {name: few for name, few in settings.attack.loops.items()
                 if hasattr(settings.attack, name)}  # fmt: skip
        begun = replace(settings.attack, **loops)(trial.observation, Context(trial.attack_seed))
        assert begun is not None
