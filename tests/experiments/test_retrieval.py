"""Retrieval end to end: line-ups, what the attacker gets, floors, and uploads that tell nothing."""

from dataclasses import replace

import pytest
import torch

import fedre_privacy as fp
from fedre_privacy.attacks.base import Context
from fedre_privacy.core.artifacts import Representations
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.outcomes import CandidateScores
from fedre_privacy.core.types import Upload
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.runs.resolution import resolve_attack

EVAL = {"targets": 24, "gallery": 6}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    small = {"data.size": 16, "data.per_class": 120, "partition.alpha": 1.0}
    folder = tmp_path_factory.mktemp("retrieval")
    return fp.train("fedgh", clients=6, rounds=1, set=small, runs=folder)


def asked(run, target="representations", threat="strong", **more):
    problems: list[str] = []
    values = {
        "attack": "nearest-candidate", "target": target, "threat": threat, "eval": EVAL | more,
    }  # fmt: skip
    settings = resolve_attack(values, {}, problems)
    if settings is None or problems:
        raise ConfigError(*problems)
    return prepare_attack(run, settings)


@pytest.fixture(scope="module")
def trial(run):
    return asked(run)


def answered(trial, observation=None):
    found = trial.settings.attack(observation or trial.observation, Context(1))
    return trial.score(found)


def with_rows(trial, change):
    """The observation with other rows in its uploads."""
    rows, owners = trial.observation.target_rows()
    moved = change(rows)
    targets = []
    for upload in trial.observation.targets:
        mine = [i for i, (client, _) in enumerate(owners) if client == upload.client]
        labels = torch.cat([a.tensors()["labels"] for a in upload.artifacts])
        targets.append(Upload(upload.client, upload.round, (Representations(moved[mine], labels),)))
    return replace(trial.observation, targets=tuple(targets))


def test_line_ups_are_of_the_originals_class(trial):
    truth, asked = trial.truth, trial.observation.candidates
    assert truth.index.shape == (24, 6) and bool((asked.clients == -1).all())
    originals = truth.index[:, 0]
    assert torch.equal(asked.labels[originals], truth.target_labels)
    same = asked.labels[truth.index] == truth.target_labels[:, None]
    assert bool(same.all()) and torch.equal(asked.labels[truth.stand_in], truth.target_labels)
    assert not bool(truth.pool[originals].any())
    for row, other in zip(truth.index, truth.stand_in, strict=True):
        assert len(set(row.tolist()) | {int(other)}) == 7
    assert int(torch.bincount(asked.labels[truth.pool]).min()) >= 5
    assert not bool((originals.sort().values == torch.arange(24)).all())


def test_a_representation_settles_which_image_it_is_of(trial):
    card = answered(trial)
    assert card.get("retrieved1").value == 1 and card.get("retrieved1").floor == pytest.approx(
        1 / 6
    )
    assert card.get("present").value == 1 and card.verdict.word == "leaks"
    told = card.get("class_found")
    assert told.value > 0.7 and told.floor < 0.5


def test_noise_and_other_uploads_are_at_the_floor(trial):
    rng = torch.Generator().manual_seed(3)
    for change in (
        lambda rows: rows.mean(0) + rows.std(0) * torch.randn(rows.shape, generator=rng),
        lambda rows: rows.roll(7, 0),
    ):
        card = answered(trial, with_rows(trial, change))
        assert card.get("retrieved1").value < 0.35 and card.verdict.word != "leaks"
        assert card.get("class_found").value < 0.5


def test_prototypes_are_a_question_of_degree(run):
    card = answered(asked(run, "retrieval", targets=60))
    found = card.get("retrieved1", "2-30")
    assert 0.3 < found.value < 1 and found.floor == pytest.approx(1 / 6) and found.n > 10


def test_the_command_line_asks_it_with_its_usual_attack(run, tmp_path):
    result = fp.attack(run, target="retrieval", set={"eval.targets": 6, "eval.gallery": 10})
    assert result.trial.settings.attack.name == "nearest-candidate"
    assert "of the originals first among 10" in result.verdict()
    assert "an original of each of 6 targets among 10 images" in result.trial.lines()["Unknown"]
    assert (result.folder / "figure.png").is_file()
    assert len(result.frame()) == 6


def cheats():
    yield "index", lambda seen: -torch.arange(len(seen.candidates)).double()
    yield "sum", lambda seen: seen.candidates.images.double().flatten(1).sum(1)
    yield "bits", lambda seen: seen.candidates.images.double().flatten(1).sum(1) * 255 % 1
    yield (
        "memory",
        lambda seen: torch.tensor([float(image.data_ptr()) for image in seen.candidates.images]),
    )


@pytest.fixture(scope="module")
def games(run):
    return [asked(run, seed=seed, targets=40) for seed in range(3)]


@pytest.mark.parametrize("name, rule", list(cheats()))
def test_the_list_of_candidates_tells_nothing(games, name, rule):
    right = guess = 0.0
    for trial in games:
        scores = rule(trial.observation).expand(40, -1)
        for sign in (1, -1):
            found = trial.score(CandidateScores(sign * scores, ())).get("retrieved1")
            right, guess = right + found.value / 6, guess + found.floor / 6
    assert 0 < right < guess + 0.08
