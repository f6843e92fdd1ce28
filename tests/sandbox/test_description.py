"""The module of somebody else's attack is imported where attacks run, and nowhere else."""

import dataclasses
import importlib
import sys

import pytest

import fedre_privacy as fp
from fedre_privacy.attacks.base import attacks
from fedre_privacy.core.config import knobs, plain
from fedre_privacy.core.errors import ConfigError, FedreError, IncompatibleError
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.sandbox import bubblewrap as sandbox
from fedre_privacy.sandbox.client import describe_attack

APART = "process" if sandbox.refusal() else "strict"
HEAD = """
from dataclasses import dataclass
import torch
from fedre_privacy.attacks.base import Attack, attacks
from fedre_privacy.attacks.pixel import PixelInversion
from fedre_privacy.core.artifacts import EntangledRep, Prototypes
from fedre_privacy.core.config import knob, part
from fedre_privacy.core.outcomes import MembershipScores, Reconstruction
from fedre_privacy.core.types import Knowledge
"""

CHEAT = """
from fedre_privacy.experiments.questions.membership import MembershipQuestion

def cheated(self, trial, outcome):
    raise SystemExit("the evaluator ran an attack's code")

MembershipQuestion.score = cheated
"""

ZEROS = (
    HEAD
    + """
@dataclass(frozen=True, kw_only=True)
class Zeros(Attack):
    '''Answer nothing. Needs: UPLOADS    Recovers: membership    Cost: none    Reference: none'''

    consumes = (Prototypes,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers, answers = "membership", "membership"
    loops = {"steps": 3}

    steps: int = knob(7, help="of nothing", unit="steps", ge=1, le=9)
    names: tuple[str, ...] = knob(("a", "b"), help="two names")
    rate: float | None = knob(None, help="a rate", gt=0)
    kind: str = knob("x", help="x or y", choices=("x", "y"))
    by: Attack = part(attacks, "linear", help="another attack")

    def run(self, observation, context):
        zeros = torch.zeros(len(observation.candidates))
        return MembershipScores(zeros, (f"{self.steps} {self.names} {self.by.name}",))
"""
)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of one's own; forget it afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    describe_attack.cache_clear()

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    small = {"data.size": 16, "data.per_class": 12, "model.dim": 16, "train.batch_size": 8}
    return fp.train(
        "fedgh", clients=4, rounds=2, set=small, runs=tmp_path_factory.mktemp("d") / "runs"
    )


def resolved(values):
    problems = []
    return resolve_attack(values, {}, problems), problems


def test_what_a_module_does_when_it_is_imported_does_not_reach_the_evaluator(run, module):
    module("importer", ZEROS + CHEAT)
    result = fp.attack(run, "importer:Zeros", target="membership", isolation=APART)
    assert "importer" not in sys.modules
    assert result.card.get("auc").value == 0.5 and result.card.verdict.word != "leaks"
    assert result.outcome.notes == ("7 ('a', 'b') linear",)


def test_settings_are_those_of_the_class(run, module):
    module("importer", ZEROS)
    name = "importer:Zeros"
    fp.attack(run, name, target="membership", isolation=APART)  # typed, so that files may name it
    kind = describe_attack(name)
    assert {one.name: one.bounds for one in knobs(kind)} == {
        "steps": ">= 1 and <= 9", "names": "", "rate": "> 0", "kind": "one of x, y",
        "by": "one of " + ", ".join(attacks.names()),
    }  # fmt: skip
    chosen = {"name": name, "steps": 4, "names": "c", "rate": 0.5, "by": {"name": "dip"}}
    settings, problems = resolved({"attack": chosen, "target": "membership"})
    assert not problems and settings.attack.steps == 4 and settings.attack.by.name == "dip"
    told = plain(settings.attack)
    assert (told["names"], told["rate"], told["kind"]) == (["c"], 0.5, "x")
    assert dataclasses.replace(settings.attack, steps=2).steps == 2
    for wrong in ({"steps": 10}, {"rate": 0}, {"kind": "z"}, {"stepps": 1}, {"by": "dipp"}):
        found, problems = resolved({"attack": {"name": name, **wrong}, "target": "membership"})
        assert found is None and len(problems) == 1, wrong


def test_what_is_asked_for_is_run_there_with_its_settings(run, module):
    module("importer", ZEROS)
    result = fp.attack(
        run, {"name": "importer:Zeros", "steps": 4, "names": ["c"]}, target="membership",
        isolation="same-process",
    )  # fmt: skip
    assert result.outcome.notes == ("4 ('c',) linear",)  # trusted: it was imported


def test_attacks_that_inherit_from_ours_are_told_by_what_they_change(run, module):
    text = """
@dataclass(frozen=True, kw_only=True)
class Short(PixelInversion):
    '''Two steps. Needs: EXTRACTOR    Recovers: inputs    Cost: little    Reference: none'''
    steps: int = knob(2, help="optimiser steps", unit="steps", ge=1)
"""
    module("shorter", HEAD + text)
    result = fp.attack(run, "shorter:Short", target="prototypes", targets=4, isolation=APART)
    assert "shorter" not in sys.modules and result.trial.settings.attack.steps == 2
    assert result.card.n == 4


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("class Other: pass", ConfigError, "is no attack"),
        ("", ConfigError, "Unknown class 'Own'"),
        ("raise OSError('broken')", IncompatibleError, "cannot be imported: OSError: broken"),
        ("import os; os._exit(3)", IncompatibleError, "ended without an answer"),
        ("@dataclass(frozen=True)\nclass Own(PixelInversion):\n"
         "  def weakened(self, seen): return ()", IncompatibleError, "overrides weakened"),
        ("class Mine(Prototypes): kind = 'mine'\n@dataclass(frozen=True)\n"
         "class Own(PixelInversion):\n  consumes = (Mine,)", IncompatibleError, "of its own"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_refused(run, module, text, error, words):
    name = "Other" if "Other" in text else "Own"
    module("refused", HEAD + text)
    with pytest.raises(FedreError, match=words) as caught:
        fp.attack(run, f"refused:{name}", target="prototypes")
    assert isinstance(caught.value, error)
    assert "refused" not in sys.modules


def test_a_module_that_was_named_is_trusted_and_imported(run, module):
    text = """
@dataclass(frozen=True, kw_only=True)
class Own(PixelInversion):
    '''Weak. Needs: EXTRACTOR    Recovers: inputs    Cost: little    Reference: none'''
    steps: int = knob(2, help="optimiser steps", unit="steps", ge=1)
    def weakened(self, observation):
        return ("it takes two steps",)
"""
    module("trusted", HEAD + text)
    importlib.import_module("trusted")
    result = fp.attack(run, "trusted:Own", target="prototypes", targets=4)
    assert result.card.verdict.weakened == ("it takes two steps",)
