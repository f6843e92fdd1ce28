"""Worlds from end to end: leakage above the floor, chance without it, the same numbers again."""

import dataclasses

import pytest
import torch

from fedre_privacy.attacks.shadow_attacks.base import ShadowSignals
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.eval.shadow_scores import chance, evaluate_shadow_membership
from fedre_privacy.experiments.membership_result import (
    BLIND,
    CHANCE,
    MODEL,
    MembershipResult,
    claimed_mu,
)
from fedre_privacy.experiments.shadow_federations import (
    leave_one_out,
    plan_shadow_federations,
    run_shadow_federations,
    shadow_attack,
)
from fedre_privacy.partition.base import partitions
from fedre_privacy.runs.membership_game import MembershipGame
from fedre_privacy.sandbox.client import SAME

WORLDS = 5


def even(tiny, protocol, **sections):
    made = tiny(protocol=protocol, **sections)
    return dataclasses.replace(made, partition=partitions.get("iid")())


@pytest.fixture(scope="module")
def played(tiny, tmp_path_factory):
    """Five worlds of three clients that overfit about sixteen digits each."""
    settings = even(tiny, "fedavg", train={"rounds": 3, "epochs": 16, "lr": 0.1})
    plan = plan_shadow_federations(settings, worlds=WORLDS, rounds=1)
    return run_shadow_federations(plan, runs=tmp_path_factory.mktemp("worlds"), isolation=SAME)


@pytest.mark.slow
def test_members_are_told_well_above_the_floor_that_sees_no_upload(played):
    done = MembershipResult(played)
    floor = done.floors[BLIND]
    for name in ("loss", "lira", "rmia", "stacked", "own-list-alignment"):
        assert done.scores[name].auc_interval[0] > floor.auc + 0.05, name
    assert done.scores["alignment"].auc > floor.auc
    assert done.scores["span"].auc_interval[0] > floor.auc + 0.2
    assert MODEL not in done.floors  # the attacker is granted no model
    low, high = done.floors[CHANCE].auc_interval
    assert low - 0.05 < floor.auc < high + 0.05


@pytest.mark.slow
def test_with_the_coins_of_other_worlds_everything_is_at_chance(played):
    wrong = played.coins.roll(1, 0)
    low, high = chance(wrong, (0.1,)).auc_interval
    for name, scores in played.scores.items():
        found = evaluate_shadow_membership(
            scores, wrong, played.slots.clients, played.slots.labels, rates=(0.1,), draws=20
        )
        assert low - 0.06 < found.auc < high + 0.06, name


@pytest.mark.slow
def test_a_view_holds_no_coin_of_its_world_and_no_seed(played):
    assert [field.name for field in dataclasses.fields(ShadowSignals)] == [
        "sent", "before", "shadows", "coins", "clients", "labels", "scores", "shadow_scores",
    ]  # fmt: skip
    kept = [
        {"sent": torch.randn(2, 3, 8).double(), "before": torch.randn(2, 8).double()}
        for _ in range(6)
    ]
    slots = dataclasses.replace(
        played.slots, clients=torch.arange(8) % 3, labels=torch.arange(8) % 2
    )
    coins = torch.rand(6, 8) < 0.5
    other = coins.clone()
    other[2] = ~other[2]
    attack = shadow_attack("lira")
    same = leave_one_out(attack, kept, coins, slots)[2]
    assert torch.equal(same, leave_one_out(attack, kept, other, slots)[2])


@pytest.mark.slow
def test_a_world_that_is_lost_comes_back_the_same_and_the_others_are_not_trained(played):
    path = played.folder / "w0003.safetensors"
    before = path.read_bytes()
    times = {p.name: p.stat().st_mtime_ns for p in played.folder.glob("w*.safetensors")}
    path.unlink()
    notes = []
    again = run_shadow_federations(
        played.plan, runs=played.folder.parent, isolation=SAME, report=notes.append
    )
    assert path.read_bytes() == before
    assert all(
        (played.folder / name).stat().st_mtime_ns == t
        for name, t in times.items()
        if name != path.name
    )
    assert all(torch.equal(again.scores[name], s) for name, s in played.scores.items())
    assert any("to go" in event.data.get("text", "") for event in notes)
    assert not list(played.folder.glob("fedavg-*"))  # runs of worlds are removed


@pytest.mark.slow
def test_the_result_says_what_was_played_and_writes_it(played):
    done = MembershipResult(played)
    done.write()
    table = {row["attack"]: row for row in done.table()}
    assert "no attack can exceed (claim)" not in table
    assert "no defence claims anything" in done.lines()["Claim"]
    assert "AUDITOR" in table["own-list-alignment"]["knows"]
    assert "needs 1,000" in table["lira"]["TPR at 0.1 % FPR"]
    assert done.primary == max(done.plain, key=lambda name: done.scores[name].auc)
    assert len(done.exposed()) == 10
    assert done.plain == ["alignment", "span"]
    (other,) = set(done.plain) - {done.primary}
    assert f"{done.primary} has an AUC of" in done.verdict() and f", {other} " in done.verdict()
    assert {row["by"] for row in done.exposed()} <= set(done.plain)
    names = {path.name for path in played.folder.iterdir()}
    assert {"record.json", "guesses.csv", "roc.png", "exposed.png"} <= names


def test_a_gaussian_claim_for_a_client_bounds_every_attack_on_its_models(tiny):
    claimed = even(tiny, "fedavg", defense=["gaussian:clip=1,noise=2"])
    mu, _ = claimed_mu(plan_shadow_federations(claimed, worlds=5))
    assert mu == pytest.approx(2**0.5 / 2)
    held = even(tiny, "fedgh", defense=["gaussian:clip=1,noise=2"])
    mu, why = claimed_mu(plan_shadow_federations(held, worlds=5))
    assert mu is None and "holds extractors" in why


@pytest.mark.parametrize(
    ("protocol", "options", "error", "said"),
    [
        ("fedavg", {"worlds": 3}, ConfigError, "lira needs 4"),
        ("fedavg", {"worlds": 1}, ConfigError, "at least 2"),
        ("fedavg", {"worlds": 5, "rates": (0.001,)}, ConfigError, "needs 1,000 non-members"),
        ("fedavg", {"worlds": 5, "chosen": ["liar"]}, ConfigError, "lira"),
        ("fedavg", {"worlds": 5, "chosen": ["rmia:gamma=0"]}, ConfigError, "gamma"),
        ("fedgh", {"worlds": 5, "chosen": ["lira"]}, IncompatibleError, "reads"),
        ("local", {"worlds": 5}, IncompatibleError, "uploads"),
        ("fedmrl", {"worlds": 5, "chosen": ["lira"]}, IncompatibleError, "fedmrl"),
        (
            "fedavg",
            {"worlds": 5, "coins": MembershipGame(game="null")},
            IncompatibleError,
            "trains without",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_before_a_world_is_trained(
    tiny, protocol, options, error, said
):
    with pytest.raises(error, match=said):
        plan_shadow_federations(even(tiny, protocol), **options)


@pytest.mark.parametrize(("worlds", "chosen"), [(3, []), (4, ["stacked"])])
def test_scores_of_vectors_are_stacked_where_worlds_are_enough(tiny, worlds, chosen):
    assert list(plan_shadow_federations(even(tiny, "fedgh"), worlds=worlds).chosen) == chosen
    if not chosen:
        with pytest.raises(ConfigError, match="stacked needs 3"):
            plan_shadow_federations(even(tiny, "fedgh"), worlds=worlds, chosen=["stacked"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "attack", "least"),
    [
        ("fedproto", "membership", 0.70),
        ("fedproto", "stacked", 0.70),
        ("fedre", "membership", 0.60),
        ("fedsgd", "own-list-alignment", 0.55),
        ("lg-fedavg", "alignment", 0.52),
        ("fedkd", "lira", 0.52),
        ("fedmrl", "span", 0.85),
        ("lg-fedavg", "span", 0.60),
        ("fd", "membership", 0.60),
        ("fedallrep", "membership", 0.99),
        ("fedral", "rmia", 0.65),
    ],
)
def test_other_uploads_tell_members_too(tiny, tmp_path, protocol, attack, least):
    small = {"small": {"dim": 16}} if protocol == "fedmrl" else {}
    longer = {"train": {"rounds": 3, "epochs": 16, "lr": 0.1}} if protocol == "fedral" else {}
    settings = even(tiny, {"name": protocol, **small}, **longer)
    plan = plan_shadow_federations(settings, worlds=5, rounds=2, coins=MembershipGame(apart=0.4))
    done = MembershipResult(run_shadow_federations(plan, runs=tmp_path, isolation=SAME))
    assert done.scores[attack].auc > least
    held = protocol in ("fedproto", "fedre", "lg-fedavg", "fd", "fedral", "fedallrep")
    assert (MODEL in done.floors) == held == ("granted model alone" in done.verdict())


@pytest.mark.slow
def test_a_sample_that_only_counts_is_told_from_one_that_trains(tiny, tmp_path):
    more = {"train": {"rounds": 3, "epochs": 8, "lr": 0.2}}
    settings = even(tiny, "fedavg", defense=["dp-sgd:clip=20,noise=0.0005"], **more)
    plan = plan_shadow_federations(
        settings, worlds=4, rounds=1, chosen=["loss"], coins=MembershipGame(game="null")
    )
    done = MembershipResult(run_shadow_federations(plan, runs=tmp_path, isolation=SAME))
    assert done.scores["span"].auc > 0.58 and abs(done.floors[BLIND].auc - 0.5) < 0.1
