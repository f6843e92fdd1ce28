"""An attacker whose extractors are some rounds old: what it gets, what is said, what is refused."""

from __future__ import annotations

import json

import pytest
import torch

from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.experiments.attack import attack, prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train

PIXEL = {"name": "pixel", "steps": 3}


@pytest.fixture(scope="module")
def kept(tiny, tmp_path_factory):
    """A run of fedre that kept every round's extractors."""
    settings = tiny(protocol="fedre", train={"rounds": 5}, record={"keep_every": 1})
    return train(settings, runs=tmp_path_factory.mktemp("kept"))


def ask(target="representations", name=None, threat="fedre-paper", **evaluation):
    problems: list[str] = []
    chosen = name or PIXEL
    values = {
        "target": target,
        "threat": threat,
        "attack": {"name": chosen} if isinstance(chosen, str) else chosen,
        "eval": {"targets": 4, "ceiling": 0, **evaluation},
    }
    settings = resolve_attack(values, {}, problems)
    if settings is None or problems:
        raise ConfigError(*problems)
    return settings


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_the_extractor_given_is_that_many_rounds_old(kept):
    fresh = prepare_attack(kept, ask()).observation
    old = prepare_attack(kept, ask(staleness=2)).observation
    assert set(old.extractors) == set(fresh.extractors)
    for client, round in old.extractors:
        assert round == 5 and same(old.extractors[client, 5], kept.model(client, 3).extractor)
        assert not same(old.extractors[client, 5], fresh.extractors[client, 5])
    # what is attacked stays what it was
    assert torch.equal(old.target_rows()[0], fresh.target_rows()[0])


def test_younger_extractors_are_not_held(kept):
    seen = prepare_attack(kept, ask("uploaded", "disentangle", "strong", staleness=2)).observation
    assert {round for _, round in seen.extractors} == {1, 2, 3, 5}
    client = seen.targets[0].client
    assert same(seen.extractors[client, 5], seen.extractors[client, 3])
    assert {u.round for u in seen.uploads} == {1, 2, 3, 4, 5}  # uploads are still read


@pytest.mark.slow
def test_it_is_said_and_recorded(kept):
    result = attack(kept, ask(staleness=1))
    assert result.trial.lines()["Attacker"].endswith("the newest extractor held is 1 round old")
    record = json.loads((result.folder / "record.json").read_text())
    assert record["eval"]["staleness"] == 1
    assert "1 round old" in record["trial"]["Attacker"]
    assert result.folder.name != attack(kept, ask()).folder.name
    assert "newest extractor" not in prepare_attack(kept, ask()).lines()["Attacker"]


@pytest.mark.slow
def test_disentangling_leaves_out_what_it_has_no_extractor_for(kept):
    fresh = attack(kept, ask("uploaded", "disentangle", "strong")).outcome
    old = attack(kept, ask("uploaded", "disentangle", "strong", staleness=2)).outcome
    aligned = [note for note in old.notes if "aligned" in note]
    assert aligned and all("3 rounds" in note for note in aligned)
    assert any("last upload left out" in note for note in old.notes)
    assert any("1 rounds without an extractor" in note for note in old.notes)
    assert int(fresh.rounds_used.max()) == 5 and int(old.rounds_used.max()) == 3


@pytest.mark.slow
def test_recovered_prototypes_of_old_extractors_are_still_targets(kept):
    trial = prepare_attack(kept, ask("recovered-prototypes", None, "strong", staleness=2))
    target = trial.groups["target"].uploads[0]
    assert isinstance(target.artifacts[0], Prototypes) and target.round == 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"staleness": 5}, "round 5 is attacked: the oldest extractor is of round 1"),
        ({"staleness": 2, "threat": "realistic", "name": "labels", "target": "labels"},
         "'realistic' grants no extractor"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(kept, settings, words):
    with pytest.raises(IncompatibleError, match=words):
        prepare_attack(kept, ask(**settings))


@pytest.mark.slow
def test_a_round_that_was_not_kept_is_refused(tiny, tmp_path):
    some = tiny(protocol="fedre", train={"rounds": 5}, record={"keep_every": 2})
    run = train(some, runs=tmp_path)
    with pytest.raises(IncompatibleError) as caught:
        prepare_attack(run, ask(staleness=2))
    text = str(caught.value)
    assert "extractors of round 3 were not kept; kept before round 5: 2, 4" in text
    assert "eval.staleness=3" in text or "eval.staleness=1" in text
    assert "record.keep_every=1" in text
    prepare_attack(run, ask(staleness=1))


def test_uploads_that_are_models_are_never_old(tiny, tmp_path):
    run = train(tiny(protocol="fedavg", record={"keep_every": 1}), runs=tmp_path)
    with pytest.raises(IncompatibleError, match="fedavg uploads whole models"):
        prepare_attack(run, ask(staleness=1))


@pytest.mark.parametrize(
    ("training", "settings", "words"),
    [
        ({"protocol": "fedgh"}, {"staleness": 2}, "round 3 were not kept; kept before round 5: n"),
        ({"protocol": "fedavg"}, {"staleness": 1}, "fedavg uploads whole models"),
        ({"record": {"keep_every": 2}}, {"staleness": 2}, "kept before round 5: 2, 4"),
    ],
)  # fmt: skip
def test_what_the_run_could_not_serve_is_refused_before_training(tiny, training, settings, words):
    ahead = tiny(**{"protocol": "fedre", "train": {"rounds": 5}, **training})
    with pytest.raises(IncompatibleError, match=words):
        check_ahead(ahead, ask(**settings))
    check_ahead(tiny(protocol="fedre", record={"keep_every": 1}), ask(staleness=1))
