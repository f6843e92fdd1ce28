"""What every attack promises, whatever it answers, and every question; on recorded tiny runs.

A new attack is tested by being registered. One with slow defaults adds short settings here.
"""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedre_privacy.attacks.base import Attack, Context, attacks, can_read
from fedre_privacy.core.answers import typed
from fedre_privacy.core.artifacts import GradientState
from fedre_privacy.core.config import build_plugin, knobs, plain_plugin
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Outcome
from fedre_privacy.core.types import Knowledge, Observation, Upload
from fedre_privacy.play.attack import prepare_attack
from fedre_privacy.play.fit import check_ahead
from fedre_privacy.play.questions.base import questions
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolving import resolve_attack
from fedre_privacy.runs.settings import AttackSettings, target_names
from fedre_privacy.threats.base import threats

settings_of = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["settings_of"]
BRIEF: dict[str, dict[str, Any]] = {
    "decoder": {"updates": 4, "width": 4},
    "diffusion": {"updates": 4, "width": 4, "samples": 2},
    "ensemble-kalman": {"members": 20, "steps": 2, "views": 1},
    "dip": {"channels": (4, 4), "depth": 4},
    "dlg": {"inner": 2},
    "idlg": {"inner": 2},
    "joint-disentangle": {"channels": (4, 4)},
    "spear": {"by": "linear", "tries": 2048},
}
"""Settings beside ``steps``, of which every attack gets few."""
ELSEWHERE = {"analytic"}
"""Reads networks that no built-in architecture is; tested for itself."""
NAMES = attacks.names()
RUN = sorted(set(NAMES) - ELSEWHERE)
LONG = {"decoder", "dlg", "idlg", "shadow"}
"""Asked twice in the slow tests only."""
EVAL = {"targets": 3, "ceiling": 0, "per_update": 1, "candidates": 6, "gallery": 4, "public": 60}


def asked(name: str, threat: str = "") -> tuple[str, AttackSettings]:
    """A protocol that an attack can be run on, and how it is asked, by ``strong`` if that does."""
    needed = attacks.get(name)().required
    able = [one for one in ("strong", *threats.names()) if needed <= threats.get(one).grants]
    threat, steered = threat or able[0], attacks.get(name).steered[:1]
    steps = {"steps": 3} if "steps" in {knob.name for knob in knobs(attacks.get(name))} else {}
    for protocol in protocols.names():
        for target in ("uploaded", "update"):
            problems: list[str] = []
            settings = resolve_attack(
                {
                    "attack": {"name": name, **steps, **BRIEF.get(name, {})},
                    "target": target, "threat": threat, "eval": EVAL,
                }, {}, problems,
            )  # fmt: skip
            assert settings is not None, problems
            try:
                check_ahead(settings_of(protocol, steering=list(steered)), settings)
            except IncompatibleError:
                continue
            if target == "update" and attacks.get(name).answers != "images":
                continue
            return protocol, settings
    raise AssertionError(f"no protocol uploads what {name} reads")


@pytest.mark.parametrize("name", NAMES)
def test_declarations(name):
    attack = attacks.get(name)
    made = attack()
    assert attack.name == name and attack.__doc__ and attack.consumes and attack.recovers
    assert Knowledge.UPLOADS in attack.needs and attack.answers in questions.names()
    assert all(kind in attack.consumes for kind in attack.needs_for)
    for entry in attack.suite:
        assert can_read(attack, entry.reads) or entry.target == "recovered-prototypes"
        assert entry.target in target_names() and entry.threat in threats.names()
        if entry.via:
            assert attacks.get(entry.via).answers == "prototypes"
    problems: list[str] = []
    assert build_plugin(attacks, plain_plugin(made), at="attack", problems=problems) == made


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in RUN]
)
def test_the_same_observation_gives_the_same_answer_and_stays_as_it_was(name, trained):
    protocol, settings = asked(name)
    trial = prepare_attack(trained(protocol, *settings.attack.steered[:1]), settings)
    seen = trial.observation
    sent = [a for u in (*seen.targets, *seen.uploads) for a in u.artifacts]
    before = [t.clone() for a in sent for t in a.tensors().values()]
    torch.manual_seed(7)
    first = settings.attack(seen, Context(seed=3))
    torch.manual_seed(8)  # global randomness changes nothing
    second = settings.attack(seen, Context(seed=3))
    assert isinstance(first, questions.get(settings.attack.answers)().outcome())
    assert first.problems(seen) == [] and not first.lost
    same_types, problems = typed(first, seen)
    assert problems == []
    for key, tensor in first.save()[0].items():
        assert same_types.save()[0][key].dtype == tensor.dtype  # nothing of ours is converted
        other = second.save()[0][key]
        assert torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(other)), key
    after = [t for a in sent for t in a.tensors().values()]
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert same(type(first).load(*first.save()), first)
    assert trial.lines()["Unknown"] and questions.get(settings.attack.answers)().score(trial, first)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow) if n in LONG else n
        for n in NAMES
        if attacks.get(n).answers == "images"
    ],
)
def test_what_an_attack_shows_before_fitting_does_not_change_with_the_upload(name, trained):
    if name in ELSEWHERE:
        attack, seen = attacks.get(name)(), linear_first()
    else:
        protocol, settings = asked(name)
        steered = settings.attack.steered[:1]
        attack, seen = settings.attack, prepare_attack(trained(protocol, *steered), settings)
        seen = seen.observation
    if "restarts" in {knob.name for knob in knobs(type(attack))}:
        attack = replace(attack, restarts=2)
    other = with_other_values(seen)
    first, second = (one.targets[0].artifacts[0].tensors() for one in (seen, other))
    assert any(not torch.equal(first[key], second[key]) for key in first)
    own, others = (attack(one, Context(seed=3)) for one in (seen, other))
    assert torch.equal(own.prior, others.prior)


def with_other_values(seen: Observation) -> Observation:
    """The same observation of uploads whose numbers stand in another order."""

    def changed(upload: Upload) -> Upload:
        artifacts = []
        for artifact in upload.artifacts:
            held = artifact.tensors()
            turned = {
                key: value.flatten().flip(0).reshape(value.shape)
                if value.is_floating_point() and "encoding" not in key
                else value
                for key, value in held.items()
            }
            artifacts.append(type(artifact).from_tensors(turned))
        return replace(upload, artifacts=tuple(artifacts))

    targets, uploads = (tuple(map(changed, some)) for some in (seen.targets, seen.uploads))
    return replace(seen, targets=targets, uploads=uploads)


def linear_first() -> Observation:
    """The gradient of one image by a network that begins with a linear layer."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    image = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    loss = nn.functional.cross_entropy(model(image), torch.tensor([1]))
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    sent = {name: slope for (name, _), slope in zip(model.named_parameters(), slopes, strict=True)}
    uploads = (Upload(0, 1, (GradientState(sent),)),)
    return Observation(
        threat=threats.get("strong"), targets=uploads, uploads=uploads, broadcasts=(),
        extractors={}, image_shape=(1, 8, 8), num_classes=4, models={(0, 1): model.eval()},
        images_per_target=1,
    )  # fmt: skip


def same(one: Outcome, other: Outcome) -> bool:
    pairs = [(one.save()[0][key], tensor) for key, tensor in other.save()[0].items()]
    equal = all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in pairs)
    return equal and one.save()[1] == other.save()[1]


LACKING = [
    (name, threat)
    for name in NAMES
    for threat in threats.names()
    if attacks.get(name)().required - threats.get(threat).grants
]


@pytest.mark.parametrize(("name", "threat"), LACKING)
def test_missing_knowledge_is_refused(name, threat, observe):
    attack: Attack = attacks.get(name)()
    lacking = attack.required - threats.get(threat).grants
    seen = observe([torch.ones(1, 4)], {(0, 1): torch.nn.Flatten()}, threat=threat)
    with pytest.raises(IncompatibleError) as caught:
        attack(seen)
    assert all(f"needs {knowledge.upper()}" in str(caught.value) for knowledge in lacking)


@pytest.mark.parametrize("name", questions.names())
def test_a_question_says_what_is_answered_and_somebody_answers_it(name):
    question = questions.get(name)()
    assert question.name == name and type(question).__doc__
    assert issubclass(question.outcome(), Outcome) and question.outcome() is not Outcome
    wanted = question.answered_by or name
    assert wanted in {attacks.get(attack).answers for attack in NAMES}


@pytest.mark.parametrize("name", threats.names())
def test_a_threat_model_says_who_it_is_and_lets_some_attack_run(name):
    threat = threats.get(name)
    assert threat.name == name and threat.summary and threat.rounds in ("last", "all")
    assert Knowledge.UPLOADS in threat.grants
    assert any(attacks.get(attack).needs <= threat.grants for attack in NAMES)
