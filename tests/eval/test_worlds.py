"""Rates of alarms over worlds: known normals, chance, refused rates, and risk of records."""

import math

import numpy as np
import pytest
import scipy
import torch

from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.eval.shadow_scores import (
    DISCOVERIES,
    blind_scores,
    chance,
    check_rates,
    evaluate_shadow_membership,
    fewest_exposed,
    most_of_mu,
    record_risk,
)

RATES = (0.01, 0.001)


def worlds(count=20, slots=400, shift=1.0, seed=0, shared=0.0):
    """Scores of normal members and others; worlds may differ by a common factor on the shift."""
    rng = stream(seed, "worlds")
    coins = torch.rand(count, slots, generator=rng) < 0.5
    strength = shift + shared * torch.randn(count, 1, generator=rng).double()
    scores = torch.randn(count, slots, generator=rng).double() + coins * strength
    return scores, coins, torch.arange(slots) % 4, torch.arange(slots) // 4 % 5


@pytest.mark.parametrize(
    ("shift", "area", "one", "tenth"),
    [(0.5, 0.638, 0.034, 0.005), (1.0, 0.760, 0.092, 0.018), (2.0, 0.921, 0.372, 0.138)],
)
def test_normal_scores_have_their_printed_rates_inside_the_intervals(shift, area, one, tenth):
    scores, coins, clients, labels = worlds(40, 600, shift)
    found = evaluate_shadow_membership(scores, coins, clients, labels, rates=RATES)
    assert found.auc == pytest.approx(area, abs=0.01)
    assert found.auc_interval[0] < found.auc < found.auc_interval[1]
    assert found.auc_within == pytest.approx(area, abs=0.01)
    for rate, truth in zip(found.rates, (one, tenth), strict=True):
        assert rate.interval is not None and rate.interval[0] < truth < rate.interval[1]


def test_worlds_that_differ_widen_the_interval_beyond_clopper_pearson():
    alike, apart = worlds(12, 400), worlds(12, 400, shared=1.0)
    narrow = evaluate_shadow_membership(*alike, rates=RATES).rates[0].interval
    wide = evaluate_shadow_membership(*apart, rates=RATES).rates[0].interval
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])


def test_scores_without_knowledge_lie_within_the_interval_of_chance():
    inside = 0
    for seed in range(50):
        scores, coins, clients, labels = worlds(6, 100, 0.0, seed)
        low, high = chance(coins, RATES).auc_interval
        found = evaluate_shadow_membership(scores, coins, clients, labels, rates=RATES, draws=10)
        inside += low < found.auc < high
    assert 43 <= inside <= 50


def test_a_rate_that_too_few_others_can_show_has_a_reason():
    scores, coins, clients, labels = worlds(4, 100)
    one, tenth = evaluate_shadow_membership(
        scores, coins, clients, labels, rates=RATES, draws=50
    ).rates
    assert one.tpr is not None and one.note == ""
    assert tenth.tpr is None and "needs 1,000" in tenth.note


def test_a_rate_that_cannot_be_had_is_refused_with_the_one_that_can():
    check_rates((0.01,), 4, 50)
    with pytest.raises(ConfigError, match=r"needs 1,000 non-members.*down to 0\.01 can") as caught:
        check_rates(RATES, 4, 50)
    assert "--worlds 40" in str(caught.value.next_step)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        check_rates((1.5,), 4, 50)


def test_bad_shapes_and_one_sided_worlds_are_refused():
    scores, coins, clients, labels = worlds(4, 50)
    with pytest.raises(IncompatibleError, match="must be"):
        evaluate_shadow_membership(scores[:, :-1], coins, clients, labels, rates=RATES)
    with pytest.raises(IncompatibleError, match="no member"):
        evaluate_shadow_membership(scores, coins & False, clients, labels, rates=RATES)


@pytest.mark.parametrize(
    ("epsilon_mu", "one", "tenth"),
    [
        (0.268, 0.020, 0.0024),
        (0.502, 0.034, 0.0048),
        (0.925, 0.081, 0.0152),
        (1.666, 0.255, 0.0772),
    ],
)
def test_what_no_attack_can_exceed_has_its_printed_values(epsilon_mu, one, tenth):
    area, caps = most_of_mu(epsilon_mu, RATES)
    assert caps == pytest.approx((one, tenth), abs=6e-4)
    assert area == pytest.approx(0.5 * math.erfc(-epsilon_mu / 2), abs=1e-9)


def test_an_exposed_record_is_named_and_the_others_are_not():
    scores, coins, clients, _ = worlds(40, 100, 0.0)
    scores[:, 7] += 9.0 * (coins[:, 7].double() - 0.5)
    first, *rest = record_risk({"one": scores}, coins, clients)
    assert first.slot == 7 and first.right >= 39 and first.exposed
    assert first.interval[0] > 0.8
    assert sum(one.exposed for one in rest) <= 1
    assert len(rest) == 99


@pytest.mark.parametrize(("count", "records", "attacks"), [(4, 20, 1), (6, 20, 2), (9, 20, 2)])
def test_so_many_records_told_in_every_world_are_named_and_one_less_is_not(count, records, attacks):
    fewest = fewest_exposed(count, records, attacks)
    for told in {fewest, max(fewest - 1, 0)}:
        p = np.full(records, 1.0)
        p[:told] = attacks * 0.5**count
        named = (scipy.stats.false_discovery_control(p) <= DISCOVERIES).sum()
        assert named == (told if told == fewest else 0)
    assert fewest_exposed(4, 240, 2) > 240  # none can be


def test_a_record_is_named_by_the_attack_that_tells_it_and_the_choice_is_paid_for():
    weak, coins, clients, _ = worlds(10, 60, 0.0)
    strong = weak.clone()
    strong[:, 3] = 9.0 * (coins[:, 3].double() - 0.5)
    weak[:, 5] = 9.0 * (coins[:, 5].double() - 0.5)
    both = {one.slot: one for one in record_risk({"w": weak, "s": strong}, coins, clients)}
    alone = {one.slot: one for one in record_risk({"s": strong}, coins, clients)}
    assert (both[3].attack, both[5].attack) == ("s", "w")
    assert both[3].right == alone[3].right and both[3].interval[0] < alone[3].interval[0]


def test_names_of_many_useless_attacks_are_rarely_wrong():
    named = 0
    for seed in range(20):
        scores, coins, clients, _ = worlds(12, 60, 0.0)
        many = {
            str(k): torch.rand(coins.shape, generator=stream(seed, "useless", index=k))
            for k in range(4)
        }
        named += any(one.exposed for one in record_risk(many, coins, clients))
    assert named <= 5  # 10 % of 20 are expected at most


def test_the_blind_rule_is_at_chance_unless_members_look_different():
    rng = stream(0, "pixels")
    images = torch.rand(200, 1, 6, 6, generator=rng)
    labels, clients = torch.arange(200) % 3, torch.arange(200) % 4
    coins = torch.rand(10, 200, generator=rng) < 0.5
    fair = blind_scores(images, labels, clients, coins)
    found = evaluate_shadow_membership(fair, coins, clients, labels, rates=(0.01,), draws=50)
    low, high = chance(coins, (0.01,)).auc_interval
    assert low - 0.02 < found.auc < high + 0.02
    brighter = (images.mean((1, 2, 3)) > images.mean()).expand(10, -1)
    told = blind_scores(images, labels, clients, brighter)
    assert (
        evaluate_shadow_membership(told, brighter, clients, labels, rates=(0.01,), draws=50).auc
        > 0.9
    )
