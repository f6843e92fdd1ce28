"""Coins decide who trains: fair, independent, the same whatever the order of worlds."""

import dataclasses

import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.partition.base import partitions
from fedre_privacy.runs.initial_state import build_clients
from fedre_privacy.runs.membership_game import (
    CANARIES,
    COIN,
    NULL,
    PAIR,
    MembershipGame,
    deal_samples,
    draw_coins,
    draw_slots,
)
from fedre_privacy.runs.preparation import absent_of, prepare, shared_out
from fedre_privacy.runs.resolution import require_resolved, resolve_attack
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def parts(tiny):
    settings = dataclasses.replace(tiny(protocol="fedavg"), partition=partitions.get("iid")())
    data = settings.data.load()
    return settings, data, shared_out(settings, data)


@pytest.mark.parametrize("game", [COIN, PAIR, NULL])
def test_slots_are_samples_of_the_clients_own_pool(parts, game):
    _, data, shares = parts
    slots = draw_slots(shares, data.labels, MembershipGame(game=game))
    for client in range(3):
        pool = {*shares.train[client].tolist(), *shares.test[client].tolist()}
        mine = slots.clients == client
        used = [*slots.one[mine].tolist(), *slots.other[mine & (slots.other >= 0)].tolist()]
        rest = [*slots.always[client].tolist(), *slots.apart[client].tolist()]
        assert len(set(used)) == len(used) and not set(used) & set(rest)
        assert {*used, *rest} == pool
        held_out = {*shares.test[client].tolist()}
        assert set(used) & held_out and set(used) - held_out  # both shares of the pool
    if game == PAIR:
        assert torch.equal(data.labels[slots.one], data.labels[slots.other])
    else:
        assert bool((slots.other == -1).all())


def test_coins_are_fair_and_independent_and_no_world_shares_its_seed(parts):
    settings, data, shares = parts
    slots = draw_slots(shares, data.labels, MembershipGame())
    heads = torch.stack(
        [draw_coins(shares, len(slots), MembershipGame(world=w)) for w in range(200)]
    )
    share = heads.double().mean(0)
    assert float(heads.double().mean()) == pytest.approx(0.5, abs=0.02)
    assert float((share - 0.5).abs().max()) < 5 * 0.5 / 200**0.5
    signs = heads.double() * 2 - 1
    apart = (signs.T @ signs / 200).fill_diagonal_(0)
    assert float(apart.abs().max()) < 6 / 200**0.5
    worlds = [settings.in_world(MembershipGame(world=w)) for w in range(50)]
    assert len({w.train.seed for w in worlds} | {settings.train.seed}) == 51
    assert len({w.run_name for w in worlds} | {settings.run_name}) == 51
    assert {w.partition.seed for w in worlds} == {settings.train.seed}
    other = dataclasses.replace(worlds[3], coins=MembershipGame(world=3, seed=1))
    assert other.run_name != worlds[3].run_name  # coins are part of the name


def test_a_world_trains_on_heads_alone_and_tests_on_those_apart(parts):
    settings, data, shares = parts
    world = settings.in_world(MembershipGame(world=5))
    slots = draw_slots(shares, data.labels, world.coins)
    heads = draw_coins(shares, len(slots), world.coins)
    prepared = prepare(world, CPU)
    for client in range(3):
        mine = slots.one[(slots.clients == client) & heads]
        assert sorted(mine.tolist()) == prepared.split.train[client].tolist()
        assert prepared.split.test[client].tolist() == slots.apart[client].tolist()
    assert sum(map(sum, prepared.setting.class_counts)) == int(heads.sum())


def test_pairs_leave_every_count_as_it_is(parts):
    settings, _, _ = parts
    counts = {
        prepare(settings.in_world(MembershipGame(world=w, game=PAIR)), CPU).setting.class_counts
        for w in range(4)
    }
    assert len(counts) == 1


PRIVATE = {"protocol": "fedavg", "defense": "dp-sgd:clip=1,noise=1"}


def test_the_absent_are_counted_and_told_to_nobody_but_private_training(tiny):
    settings = dataclasses.replace(tiny(**PRIVATE), partition=partitions.get("iid")())
    worlds = [settings.in_world(MembershipGame(world=w, game=NULL)) for w in range(3)]
    made = [prepare(world, CPU) for world in worlds]
    assert len({one.setting.class_counts for one in made}) == 1
    assert len({one.split.sha256_train for one in made}) == 1
    assert len({one.absent for one in made}) == 3
    data = settings.data.load()
    shares = shared_out(worlds[0], data)
    slots = draw_slots(shares, data.labels, worlds[0].coins)
    heads = draw_coins(shares, len(slots), worlds[0].coins)
    assert made[0].absent == set(slots.one[~heads].tolist()) == absent_of(worlds[0], data)
    for client, own in zip(build_clients(worlds[0], made[0]), made[0].split.train, strict=True):
        assert client.absent.tolist() == [number in made[0].absent for number in own.tolist()]
        assert len(client.train) == len(own)


def test_no_upload_is_made_of_the_absent(tiny, tmp_path):
    settings = dataclasses.replace(tiny(**PRIVATE), partition=partitions.get("iid")())
    run = train(settings.in_world(MembershipGame(game=NULL)), runs=tmp_path)
    absent = absent_of(run.settings, run.settings.data.load())
    assert absent
    train_on, _ = run.split_indices()
    for (client, _), mixture in run.mixtures(2).items():
        seen = set(train_on[client][mixture.sample].tolist())
        assert seen and not seen & absent


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"protocol": "fedavg"}, "trains without it"),
        ({"protocol": "fedgh", "defense": "dp-sgd:clip=1,noise=1"}, "uses samples elsewhere"),
        ({"protocol": "fedala", "defense": "dp-sgd:clip=1,noise=1"}, "uses samples elsewhere"),
    ],
)
def test_an_absent_sample_needs_private_training_alone(tiny, given, said):
    with pytest.raises(IncompatibleError, match=said):
        prepare(tiny(**given).in_world(MembershipGame(game=NULL)), CPU)


def test_slots_may_be_limited_and_the_others_train_in_every_world(parts):
    _, data, shares = parts
    slots = draw_slots(shares, data.labels, MembershipGame(slots=4))
    assert torch.bincount(slots.clients).tolist() == [4, 4, 4]
    heads = draw_coins(shares, len(slots), MembershipGame(slots=4))
    train_on = deal_samples(slots, heads).train
    assert all(
        set(a.tolist()) <= set(t.tolist()) for a, t in zip(slots.always, train_on, strict=True)
    )


def test_a_world_is_a_run_that_says_which_one(parts, tmp_path):
    settings, _, _ = parts
    world = settings.in_world(MembershipGame(world=2, slots=10))
    run = train(world, runs=tmp_path)
    assert Run(run.folder).settings == world
    assert "coins" not in settings.plain()  # names of runs without coins stay


def test_a_client_without_a_training_sample_is_refused(parts):
    _, data, shares = parts
    slots = draw_slots(shares, data.labels, MembershipGame())
    with pytest.raises(IncompatibleError, match="trains on nothing"):
        deal_samples(slots, torch.zeros(len(slots), dtype=torch.bool))


@pytest.mark.parametrize("canary", CANARIES)
def test_a_run_with_canaries_is_attacked_on_the_images_that_it_trained_on(parts, tmp_path, canary):
    settings, _, _ = parts
    with_coins = dataclasses.replace(settings, coins=MembershipGame(game=PAIR, canary=canary))
    run = train(with_coins, runs=tmp_path)
    problems: list[str] = []
    asked = {"target": "update", "attack": {"name": "analytic"}, "eval": {"targets": 2}}
    trial = prepare_attack(run, require_resolved(resolve_attack(asked, {}, problems), problems))
    assert trial.lines()["Target"]
