"""Schemes built on schemes, and one's own, by their names on the command line."""

import dataclasses
from pathlib import Path

import pytest

from fedre_privacy.cli.shared.settings import gather
from fedre_privacy.cli.train import parser
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.runs.resolution import resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train

OWN = '''
from dataclasses import dataclass
import torch
from fedre_privacy.core.config import knob, part
from fedre_privacy.entanglement.base import Entanglement, schemes


class Equal(Entanglement):
    """Equal weights."""

    def sample_weights(self, labels, num_classes, rng):
        return torch.full((len(labels),), 1 / len(labels))


@dataclass(frozen=True, kw_only=True)
class Silent(Entanglement):
    """One client says nothing."""

    who: int = knob(1, help="its number", ge=0)
    base: Entanglement = part(schemes, "rap", help="what the others do")

    def mix(self, draw):
        return None if draw.client == self.who else self.base.mix(draw)
'''
TINY = [
    *("--set", "data.size=16", "--set", "data.per_class=12", "--set", "model.dim=16"),
    *("--partition", "iid", "--clients", "3", "--rounds", "1"),
]
SET = "protocol.entanglement"


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def resolve(*arguments):
    """Settings of a command line, and what is wrong with it."""
    values, where = gather(parser().parse_args(["--protocol", "fedre", *TINY, *arguments]))
    problems: list[str] = []
    return resolve_training(values, where, problems), problems


def scheme_of(*arguments):
    settings, problems = resolve(*arguments)
    assert settings is not None, problems
    return settings.protocol.entanglement


@pytest.mark.parametrize("name", schemes.names())
def test_every_scheme_by_name(name):
    assert scheme_of("--scheme", name) == schemes.get(name)()


def test_a_scheme_in_a_scheme_in_a_scheme():
    made = scheme_of(
        *("--set", f"{SET}.name=quantised", "--set", f"{SET}.levels=5"),
        *("--set", f"{SET}.base.name=slow", "--set", f"{SET}.base.spread=0.2"),
        *("--set", f"{SET}.base.base=mine:Silent"),
    )
    assert (made.name, made.levels) == ("quantised", 5)
    assert (made.base.name, made.base.spread) == ("slow", 0.2)
    assert made.base.base.name == "mine:Silent" and made.base.base.base.name == "rap"


def test_settings_of_a_scheme_given_by_option():
    made = scheme_of("--scheme", "quantised", "--set", f"{SET}.base=rar")
    assert (made.name, made.base.name) == ("quantised", "rar")


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        (f"{SET}.base=rarr", "Unknown entanglement scheme 'rarr'. Did you mean"),
        (f"{SET}.base.spreed=1", "Unknown setting 'protocol.entanglement.base.spreed'"),
        (f"{SET}.base.spread=2", "'protocol.entanglement.base.spread' is 2; it must be >= 0"),
    ],
)
def test_mistakes_deep_inside_are_named(assignment, says):
    base = [] if assignment.startswith(f"{SET}.base=") else ["--set", f"{SET}.base.name=slow"]
    settings, problems = resolve("--set", f"{SET}.name=quantised", *base, "--set", assignment)
    assert settings is None and len(problems) == 1 and problems[0].startswith(says)


def trained(tmp_path, *arguments):
    settings, problems = resolve(*arguments)
    assert settings is not None, problems
    folder = train(settings, runs=tmp_path / "runs").folder
    return Run(folder)  # read again from its files


def test_ones_own_scheme_is_trained_and_attacked(tmp_path, digits):
    run = trained(tmp_path, "--scheme", "mine:Equal")
    assert run.settings.protocol.entanglement.name == "mine:Equal"
    group = TargetSource(run, digits, round=None, seed=0).group("entangled", 10)
    assert not group.counterfactual and len(group) == 3
    (pair,) = group.uploads[0].artifacts
    counts = run.record["class_counts"][0]
    assert pair.encoding.tolist() == pytest.approx([c / sum(counts) for c in counts])


def test_a_client_that_refused_is_no_target(tmp_path, digits):
    run = trained(tmp_path, "--set", f"{SET}.name=mine:Silent", "--set", f"{SET}.base=vap")
    source = TargetSource(run, digits, round=None, seed=0)
    group = source.group("entangled", 10)
    assert [u.client for u in group.uploads] == [0, 2] and not group.counterfactual
    asked = source.group("prototypes", 30)  # what it would leak if it did upload prototypes
    assert asked.counterfactual and {u.client for u in asked.uploads} == {0, 1, 2}


def test_where_all_refuse_there_is_nothing_to_attack(tmp_path, digits):
    run = trained(tmp_path, "--set", f"{SET}.name=min-count", "--set", f"{SET}.min_count=999")
    source = TargetSource(run, digits, round=None, seed=0)
    assert source.uploaded_kind() is None
    with pytest.raises(IncompatibleError, match="no entangled to attack"):
        source.group("entangled", 10)


def test_settings_are_read_back_from_the_run(tmp_path):
    run = trained(tmp_path, "--set", f"{SET}.name=decoy", "--set", f"{SET}.base.name=slow")
    scheme = run.settings.protocol.entanglement
    assert scheme == dataclasses.replace(schemes.get("decoy")(), base=schemes.get("slow")())
