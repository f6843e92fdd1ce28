"""Canaries inside a federation: what overfitting shows, and that lost coins show nothing."""

import dataclasses
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from fedre_privacy.auditing import local_steps as inside
from fedre_privacy.auditing.claims import CONSISTENT, NO_CLAIM, REFUTED
from fedre_privacy.auditing.local_steps import audit_inside
from fedre_privacy.auditing.noise_families import Twice, epsilon_of_curve
from fedre_privacy.auditing.recorded_run import audit_run, plan_audit
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.gdp import gdp_epsilon
from fedre_privacy.core.tradeoff import GaussianCurve, PairsCurve
from fedre_privacy.defenses.dp_sgd import DPSGD
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.runs.membership_game import (
    COIN,
    NULL,
    PAIR,
    MembershipGame,
    draw_slots,
    plant_canaries,
)
from fedre_privacy.runs.preparation import shared_out
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train

tiny = runpy.run_path(str(Path(__file__).parent.parent / "experiments" / "conftest.py"))["resolve"]
FEW = {
    "protocol": "fedavg", "data": {"size": 16, "per_class": 40}, "partition": {"alpha": 100},
    "train": {"clients": 2, "rounds": 4, "epochs": 6, "batch_size": 8, "lr": 0.1},
}  # fmt: skip


def world(coins: MembershipGame, **more):
    return tiny({**FEW, **more}).in_world(coins)


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory):
    settings = world(MembershipGame(game=PAIR, canary="mislabelled"))
    return train(settings, runs=tmp_path_factory.mktemp("inside"))


@pytest.mark.slow
def test_an_overfitted_federation_shows_epsilon_and_says_how_much_it_could(overfitted):
    done = audit_run(overfitted, inside=True)
    found = done.found
    assert found.verdict == NO_CLAIM and found.promised is None
    assert found.right / found.trials > 0.8 and 0.5 < found.shown < found.ceiling
    assert "could have shown" in done.verdict() and "none: what is shown" in done.lines()["Claim"]
    assert done.record()["claim"] is None and (done.folder / "epsilon.png").is_file()


def test_coins_that_are_lost_show_nothing(overfitted, monkeypatch):
    real = inside.draw_coins
    monkeypatch.setattr(inside, "draw_coins", lambda *given: real(*given)[torch.randperm(
        real(*given).numel(), generator=torch.Generator().manual_seed(0))])  # fmt: skip
    found = audit_run(overfitted, inside=True).found
    assert found.shown < 0.3 and found.right / found.trials < 0.7


@pytest.mark.slow
def test_private_training_is_consistent_with_its_claim(tmp_path):
    few = {**FEW["train"], "epochs": 1}
    settings = world(
        MembershipGame(game=PAIR, canary="mislabelled"), train=few,
        defense="dp-sgd:clip=1,epsilon=4,delta=1e-3",
    )  # fmt: skip
    found = audit_run(train(settings, runs=tmp_path), inside=True).found
    assert found.verdict == CONSISTENT and found.shown < found.promised
    assert found.promised > found.claim.epsilon  # of a record replaced, not removed


NEARLY_NONE = "dp-sgd:clip=50,noise=0.0002"


@pytest.mark.slow
def test_a_record_added_or_removed_is_told_where_noise_is_nearly_none(tmp_path, monkeypatch):
    more = {
        "train": {**FEW["train"], "epochs": 12, "lr": 0.3},
        "data": {"size": 16, "per_class": 14},
    }
    settings = world(MembershipGame(game=NULL, canary="noise"), **more, defense=NEARLY_NONE)
    run = train(settings, runs=tmp_path)
    found = audit_run(run, inside=True).found
    assert found.right / found.trials > 0.8 and 1 < found.shown <= found.ceiling
    assert "added or removed" in found.game and found.verdict == CONSISTENT
    promises = dataclasses.replace(run.settings, defense=(DPSGD(clip=50, epsilon=1.0),))
    claim = plan_audit(promises, inside=True).claim  # noise that was all but left out
    assert audit_inside(run, claim).verdict == REFUTED
    asked = {"target": "membership", "attack": "loss-membership", "threat": "realistic"}
    with pytest.raises(IncompatibleError, match="are no members"):
        prepare_attack(run, resolve_attack(asked, {}, []))

    real = inside.draw_coins
    monkeypatch.setattr(inside, "draw_coins", lambda *given: real(*given).flip(0))
    lost = audit_run(run, inside=True).found
    assert lost.shown < 0.3 and lost.right / lost.trials < 0.7


@pytest.mark.slow
def test_private_training_keeps_its_promise_for_a_record_added_or_removed(tmp_path):
    few = {"train": {**FEW["train"], "epochs": 1}, "data": {**FEW["data"], "per_class": 20}}
    settings = world(
        MembershipGame(game=NULL, canary="mislabelled"), **few,
        defense="dp-sgd:clip=1,epsilon=4,delta=1e-3",
    )  # fmt: skip
    run = train(settings, runs=tmp_path)
    found = audit_run(run, inside=True).found
    assert found.verdict == CONSISTENT and found.shown < found.promised
    assert found.promised == pytest.approx(found.claim.epsilon, rel=0.05)


def test_what_cannot_be_audited_inside_is_refused_before_training(overfitted):
    for settings, said in (
        (tiny(FEW), "trained without coins"), (world(MembershipGame(game=COIN)), "move the counts"),
    ):  # fmt: skip
        with pytest.raises(IncompatibleError, match=said):
            inside.coins_of(settings)
    with pytest.raises(IncompatibleError, match="cannot test a claim for a client"):
        audit_run(overfitted, unit="client", inside=True)
    with pytest.raises(IncompatibleError, match="no claim for one record to audit"):
        audit_run(overfitted, unit="record", inside=True)
    with pytest.raises(ConfigError, match="alpha"):
        audit_run(overfitted, inside=True, alpha=2.0)


def test_replacing_a_record_is_removing_one_and_adding_one():
    twice = Twice(GaussianCurve(0.6))
    for kappa in (0.01, 0.3):
        assert twice.most(kappa) == pytest.approx(GaussianCurve(1.2).most(kappa))
        assert twice.least(twice.most(kappa)) == pytest.approx(kappa)
    assert twice.cap == pytest.approx(GaussianCurve(1.2).cap, abs=2e-3)
    assert epsilon_of_curve(twice, 1e-5) == pytest.approx(gdp_epsilon(1.2, 1e-5), abs=0.01)
    assert epsilon_of_curve(PairsCurve(((2.0, 0.0),)), 1e-5) == pytest.approx(2.0, abs=0.01)


def test_the_scaled_logit_has_its_known_values():
    class Fixed(torch.nn.Module):
        def forward(self, images):
            p = torch.tensor([0.9, 0.5, 0.01])
            return torch.stack([p, 1 - p], 1).log()

    found = inside.scaled_logit(Fixed(), torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64))
    assert found.numpy() == pytest.approx(np.array([2.1972, 0.0, -4.5951]), abs=1e-3)


@pytest.mark.parametrize("canary", ["natural", "mislabelled", "noise"])
def test_canaries_keep_counts_and_move_nothing_but_slots(canary):
    settings = world(MembershipGame(game=PAIR, slots=6, canary=canary))
    data = settings.data.load()
    slots = draw_slots(shared_out(settings, data), data.labels, settings.coins)
    made = plant_canaries(data, slots, settings.coins)
    touched = torch.cat([slots.one, slots.other])
    assert torch.equal(made.labels[slots.one], made.labels[slots.other])
    changed = (made.labels != data.labels) | (made.images != data.images).flatten(1).any(1)
    assert set(changed.nonzero()[:, 0].tolist()) == (
        set() if canary == "natural" else set(touched.tolist())
    )
    other = dataclasses.replace(settings.coins, world=7)
    assert torch.equal(plant_canaries(data, slots, other).images, made.images)
