"""What a real run's encodings give away about its scheme is recognised and said, or refused."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredPrototypes
from fedre_privacy.experiments.attack import attack, prepare_attack
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.training import train


@pytest.fixture
def trained(tiny, tmp_path):
    """Train FedRE with some settings, every round's extractors kept."""

    def make(protocol, **sections):
        made = tiny(
            protocol={"name": "fedre", **protocol},
            train={"rounds": 4},
            record={"keep_every": 1},
            **sections,
        )
        return train(made, runs=tmp_path)

    return make


def ask(target="uploaded", name="disentangle", threat="strong"):
    problems: list[str] = []
    settings = resolve_attack(
        {
            "target": target,
            "threat": threat,
            "attack": {"name": name} if isinstance(name, str) else name,
        },
        {},
        problems,
    )
    assert settings is not None, problems
    return settings


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [
    {"entanglement": {"name": "vap"}},
    {"entanglement": {"name": "var"}},
    {"resample": False},
])  # fmt: skip
def test_fixed_weights(trained, protocol):
    run = trained(protocol)
    result = attack(run, ask())
    assert all("the same weights in every round" in note for note in result.outcome.notes)
    assert bool(result.outcome.vectors.isnan().all()) and not result.outcome.lost
    assert "tells none of" in result.verdict() and result.card.verdict.word == "inconclusive"
    with pytest.raises(IncompatibleError) as caught:
        prepare_attack(run, ask("recovered-prototypes", "joint-disentangle"))
    assert "recovered no prototype" in str(caught.value)
    assert "the same weights in every round" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["rsr", "rsp"])
def test_one_hot_encodings(trained, scheme):
    result = attack(trained({"entanglement": {"name": scheme}}), ask())
    assert all("one-hot encodings" in note for note in result.outcome.notes)
    assert bool(result.outcome.vectors.isfinite().all())


@pytest.mark.slow
def test_clients_of_one_class(tmp_path):
    problems: list[str] = []
    values = {
        "data": {"name": "digits", "size": 16, "per_class": 12},
        "partition": {"name": "classes", "classes": 1},
        "protocol": "fedre",
        "model": {"name": "cnn4", "dim": 32},
        "train": {"clients": 10, "rounds": 2, "batch_size": 8},
    }
    settings = resolve_training(values, {}, problems)
    assert settings is not None, problems
    result = attack(train(settings, runs=tmp_path), ask())
    assert all("one class, the upload is its prototype" in note for note in result.outcome.notes)
    assert "more belong to clients of one class" in result.verdict()
    for client, vector in zip(result.outcome.clients, result.outcome.vectors, strict=True):
        own = next(u for u in result.trial.observation.targets if u.client == int(client))
        assert torch.equal(own.artifacts[0].rows()[0], vector)


@pytest.mark.slow
def test_extractors_that_were_not_kept_weaken_the_attack_and_the_verdict(tiny, tmp_path):
    made = tiny(protocol={"name": "fedre"}, train={"rounds": 4}, record={"keep_every": 4})
    run = train(made, runs=tmp_path)
    trial = prepare_attack(run, ask())
    (why,) = trial.weaknesses()
    assert "were not kept (record.keep_every=1)" in why and "without alignment" in why
    assert f"weakened: {why}" in trial.lines()["Attacker"]
    result = attack(run, ask())
    assert result.card.verdict.weakened == (why,) and f"weakened: {why}" in result.verdict()
    assert result.card.verdict.word != "no evidence"


@pytest.mark.slow
def test_an_attack_that_holds_all_that_it_reads_is_not_weakened(trained):
    assert prepare_attack(trained({}), ask()).weaknesses() == ()


@pytest.mark.parametrize("threat", ["fedre-paper", "realistic", "eavesdropper"])
def test_joint_disentangling_needs_the_strong_threat_model(trained, threat):
    with pytest.raises(IncompatibleError, match="needs ALL-EXTRACTORS"):
        prepare_attack(trained({}), ask("recovered-prototypes", "joint-disentangle", threat))


def test_nothing_finite_and_nothing_said_is_lost():
    def answer(vectors, *notes):
        zero = torch.zeros(len(vectors))
        return RecoveredPrototypes(
            vectors, zero.long(), zero.long(), zero.long(), zero.long(), zero, zero, notes
        )

    nothing = torch.full((2, 3), torch.nan)
    assert answer(nothing).lost and not answer(nothing, "client 0: one upload").lost
    assert not answer(torch.cat([nothing, torch.ones(1, 3)])).lost


@pytest.mark.slow
def test_joint_disentangling_is_scored_like_the_two_stages(trained):
    brief = {"name": "joint-disentangle", "steps": 3, "channels": [4], "views": 2}
    result = attack(trained({}), ask("recovered-prototypes", brief))
    assert list(result.trial.groups) == ["target", "true", "actual", "ceiling"]
    assert {row["metric"] for row in result.table()} >= {"PSNR dB", "SSIM"}
    for column in ("floor", "true prototypes"):
        assert all(column in row for row in result.table())
