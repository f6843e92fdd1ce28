"""Classes behind FedRAL's first blocks on a real training, without any model of the client."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.training import train


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    problems: list[str] = []
    values = {
        "data": {"name": "digits", "size": 16, "per_class": 60},
        "partition": {"name": "pra", "alpha": 0.1},
        "protocol": {"name": "fedral"},
        "train": {"rounds": 2, "clients": 5, "seed": 1},
    }
    training = resolve_training(values, {}, problems)
    asked = {"target": "labels", "threat": "public-init"}
    settings = resolve_attack(asked, {}, problems, uploads=(MatrixBlocks,))
    assert training is not None and settings is not None and not problems, problems
    return prepare_attack(train(training, runs=tmp_path_factory.mktemp("runs")), settings)


def answered(trial, observation):
    return trial.settings.attack(observation, Context(trial.attack_seed))


def noised(observation, seed):
    """The same observation, with noise of the same spread in place of every change."""
    rng = torch.Generator().manual_seed(seed)
    (first,) = (sent for sent in observation.broadcasts if sent.round == 1)
    (before,) = (one for one in first.artifacts if isinstance(one, MatrixBlocks))

    def blurred(upload):
        (sent,) = upload.artifacts
        start = before.fitted(sent).blocks
        noise = torch.randn(start.shape, generator=rng) * (sent.blocks - start).std()
        return dataclasses.replace(upload, artifacts=(MatrixBlocks(start + noise),))

    return dataclasses.replace(observation, targets=tuple(map(blurred, observation.targets)))


def test_classes_are_told_without_any_model_and_not_from_noise(trial):
    seen = trial.observation
    assert trial.round == 1 and not seen.extractors and not seen.heads and not seen.models
    found = answered(trial, seen)
    support, shares = trial.score(found).get("jaccard"), trial.score(found).get("l1")
    assert support.over > 0.3 and shares.over > 0.8
    noise = [trial.score(answered(trial, noised(seen, seed))) for seed in range(4)]
    assert sum(card.get("jaccard").over for card in noise) / 4 < 0.05
    assert sum(card.get("l1").over for card in noise) / 4 < 0.2
    rolled = dataclasses.replace(
        found, support=found.support.roll(1, 0), proportions=found.proportions.roll(1, 0)
    )
    assert trial.score(rolled).get("jaccard").value < support.value - 0.3
