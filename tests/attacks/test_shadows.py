"""LiRA, RMIA and their kin on known normals, beside plain formulas written out here."""

import math

import pytest
import torch
from torch import Tensor

from fedre_privacy.attacks.shadow_attacks.base import ShadowSignals, confidence, shadow_attacks
from fedre_privacy.attacks.shadow_attacks.cross_client import above_others
from fedre_privacy.attacks.shadow_attacks.lira import OFFLINE, ONLINE, SHRUNK, lira
from fedre_privacy.attacks.shadow_attacks.rmia import reference, robust
from fedre_privacy.attacks.shadow_attacks.stacked import Stacked, features
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.eval.membership import auc
from fedre_privacy.eval.roc import tpr_at


def normals(worlds: int, slots: int, shift: Tensor, seed: int = 0, spread: float = 10.0):
    """Signals (W, n) of slots whose means differ widely, and their coins."""
    rng = stream(seed, "normals")
    coins = torch.rand(worlds, slots, generator=rng) < 0.5
    means = spread * torch.randn(slots, generator=rng).double()
    noise = torch.randn(worlds, slots, generator=rng).double()
    return means + coins * shift + noise, coins


def over_worlds(score, signals: Tensor, coins: Tensor) -> Tensor:
    """Leave one world out at a time."""
    out = []
    for world in range(len(signals)):
        others = torch.arange(len(signals)) != world
        out.append(score(signals[world], signals[others], coins[others]))
    return torch.stack(out)


def mean_auc(scores: Tensor, coins: Tensor) -> float:
    return sum(auc(s, c) for s, c in zip(scores, coins, strict=True)) / len(scores)


def low(scores: Tensor, coins: Tensor, rate: float = 0.01) -> float:
    found = tpr_at(scores[coins], scores[~coins], rate)
    assert found is not None
    return found.tpr


def plain_lira(signal: Tensor, shadows: Tensor, coins: Tensor) -> Tensor:
    """Algorithm 1 of the paper, a slot after the other, with one variance for all slots."""
    found, left_in, left_out = [], [], []
    moments = []
    for slot in range(len(signal)):
        inside = [float(x) for x, b in zip(shadows[:, slot], coins[:, slot], strict=True) if b]
        outside = [float(x) for x, b in zip(shadows[:, slot], coins[:, slot], strict=True) if not b]
        mean_in = sum(inside) / len(inside) if inside else math.nan
        mean_out = sum(outside) / len(outside) if outside else math.nan
        left_in += [x - mean_in for x in inside]
        left_out += [x - mean_out for x in outside]
        moments.append((mean_in, mean_out))
    var_in = sum(x * x for x in left_in) / len(left_in)
    var_out = sum(x * x for x in left_out) / len(left_out)
    for slot, (mean_in, mean_out) in enumerate(moments):
        x = float(signal[slot])
        near = -((x - mean_in) ** 2) / (2 * var_in) - math.log(var_in) / 2
        far = -((x - mean_out) ** 2) / (2 * var_out) - math.log(var_out) / 2
        found.append(0.0 if math.isnan(near - far) else near - far)
    return torch.tensor(found)


def test_the_confidence_has_its_printed_values_and_stays_finite():
    p = torch.tensor([0.9, 0.5, 0.01]).double()
    logits = torch.stack([p.log(), (1 - p).log()], 1)
    found = confidence(logits, torch.zeros(3))
    assert found.tolist() == pytest.approx([2.1972, 0, -4.5951], abs=1e-4)
    extreme = torch.tensor([[800.0, 0, 0], [-800.0, 0, 0]])
    assert bool(confidence(extreme, torch.zeros(2)).isfinite().all())


def test_lira_reaches_the_plain_formulas():
    for shift in (0.5, 1.0):
        signals, coins = normals(16, 500, torch.tensor(shift))
        plain = over_worlds(plain_lira, signals, coins)
        online = over_worlds(lambda *a: lira(*a, ONLINE), signals, coins)
        assert mean_auc(online, coins) >= mean_auc(plain, coins) - 0.002
        ours = over_worlds(lira, signals, coins)
        assert mean_auc(ours, coins) >= mean_auc(plain, coins)
        members = int(coins.sum())  # a tie is two members in four thousand
        assert low(ours, coins) >= low(plain, coins) - 2.5 / members


def test_shrinking_wins_where_shifts_are_alike_and_where_they_are_not():
    """AUC of the dossier: common shift .5 sd, and shifts N(1, 1), 16 worlds, 500 slots."""
    signals, coins = normals(16, 500, torch.tensor(0.5))
    found = {
        variant: mean_auc(over_worlds(lambda *a, v=variant: lira(*a, v), signals, coins), coins)
        for variant in (ONLINE, OFFLINE, SHRUNK)
    }
    assert 0.56 < found[ONLINE] < 0.61 and 0.61 < found[OFFLINE] < 0.64
    assert found[SHRUNK] >= max(found[ONLINE], found[OFFLINE]) - 0.001
    shifts = 1 + torch.randn(500, generator=stream(1, "shifts"))
    signals, coins = normals(16, 500, shifts.double())
    found = {
        variant: mean_auc(over_worlds(lambda *a, v=variant: lira(*a, v), signals, coins), coins)
        for variant in (ONLINE, OFFLINE, SHRUNK)
    }
    assert found[SHRUNK] >= max(found[ONLINE], found[OFFLINE]) - 0.002
    assert 0.74 < found[SHRUNK] < 0.79


def test_the_variance_is_about_each_slots_own_mean():
    """Slots ten standard deviations apart: a raw pooled variance would be a hundred times wrong."""
    signals, coins = normals(16, 500, torch.tensor(1.0), spread=10.0)
    score = lira(signals[0], signals[1:], coins[1:], OFFLINE)
    assert float(score[~coins[0]].std()) == pytest.approx(1.0, rel=0.12)


def test_without_a_difference_every_variant_is_at_chance():
    signals, coins = normals(12, 400, torch.tensor(0.0))
    for variant in (ONLINE, OFFLINE, SHRUNK):
        found = mean_auc(over_worlds(lambda *a, v=variant: lira(*a, v), signals, coins), coins)
        assert found == pytest.approx(0.5, abs=0.02), variant


def test_a_slot_that_no_shadow_has_is_scored_nevertheless():
    signals, coins = normals(8, 50, torch.tensor(2.0))
    coins[1:, 0], coins[1:, 1] = False, True
    for variant in (ONLINE, OFFLINE, SHRUNK):
        assert bool(lira(signals[0], signals[1:], coins[1:], variant).isfinite().all()), variant


def test_many_shadows_have_variances_of_their_own():
    rng = stream(0, "own")
    spread = torch.rand(300, generator=rng).double() * 3 + 0.2
    signals, coins = normals(90, 300, torch.tensor(0.0))
    signals = signals * spread + coins  # the same shift, seen well in some slots only
    few = over_worlds(lambda s, x, b: lira(s, x[:40], b[:40], ONLINE), signals[:20], coins[:20])
    many = torch.stack([lira(signals[w], signals[20:], coins[20:], ONLINE) for w in range(15)])
    assert low(many, coins[:15]) > low(few, coins[:20]) + 0.02


def test_rmia_has_its_printed_values():
    models = torch.tensor([[0.4], [0.4]]).double()
    p = reference(models, torch.zeros(2, 1, dtype=torch.bool), "offline", 0.33)
    assert float(p) == pytest.approx(0.601, abs=1e-3)
    assert 0.8 / float(p) == pytest.approx(1.3311, abs=1e-3)


def test_rmia_is_the_plain_count():
    rng = stream(0, "rmia")
    ratios, others = torch.rand(40, generator=rng).double(), torch.rand(90, generator=rng).double()
    labels, kin = torch.randint(2, (40,), generator=rng), torch.randint(2, (90,), generator=rng)
    found = robust(ratios, others, labels, kin, gamma=1.2)
    for x in range(40):
        pool = [float(z) for z, y in zip(others, kin, strict=True) if y == labels[x]]
        plain = sum(float(ratios[x]) / z > 1.2 for z in pool)
        assert int(float(found[x]) * (len(pool) + 1)) == plain  # the rest orders ties
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    with pytest.raises(IncompatibleError, match="other clients"):
        robust(ratios, others[:0], labels, kin[:0], gamma=1.0)


def view(worlds: int = 12, slots: int = 120, clients: int = 4, drop: float = 2.0):
    """Worlds of signals, and the view of each: members are more confident under their client."""
    rng = stream(0, "view")
    coins = torch.rand(worlds, slots, generator=rng) < 0.5
    owner = torch.arange(slots) % clients
    hard = torch.randn(slots, generator=rng).double()
    sent = hard + 0.5 * torch.randn(worlds, 3, clients, slots, generator=rng).double()
    member = torch.nn.functional.one_hot(owner, clients).T * coins[:, None].double() * drop
    sent = sent + member[:, None]
    labels = torch.randint(3, (slots,), generator=rng)

    def one(world: int) -> ShadowSignals:
        others = torch.arange(worlds) != world
        before = hard.expand(3, -1)
        return ShadowSignals(sent[world], before, sent[others], coins[others], owner, labels)

    return coins, [one(world) for world in range(worlds)]


def test_every_attack_finds_members_in_a_view_and_nothing_where_there_is_nothing():
    for name in shadow_attacks.names():
        attack = shadow_attacks.get(name)()
        coins, views = view()
        found = torch.stack([attack.score(one) for one in views])
        assert found.shape == coins.shape and bool(found.isfinite().all()), name
        assert mean_auc(found, coins) > 0.75, name
        coins, views = view(drop=0.0)
        nothing = torch.stack([attack.score(one) for one in views])
        assert mean_auc(nothing, coins) == pytest.approx(0.5, abs=0.05), name


def test_other_clients_stand_for_models_without_the_slot():
    sent = torch.tensor([[[3.0, 0.0], [1.0, 1.0], [0.0, 5.0], [2.0, 0.0]]]).double()
    found = above_others(sent, torch.tensor([0, 2]))
    for slot, client in enumerate((0, 2)):
        others = torch.stack([sent[0, j, slot] for j in range(4) if j != client])
        z = (sent[0, client, slot] - others.mean()) / others.std()
        assert float(found[slot]) == pytest.approx(float(torch.special.ndtr(z)))


def scored_worlds(worlds: int = 8, slots: int = 200, tells: float = 1.0):
    """Two scores of slots of very different difficulty, each of which tells something of its own.

    No signal of a model: what protocols that upload vectors give.
    """
    rng = stream(3, "scored worlds")
    coins = torch.rand(worlds, slots, generator=rng) < 0.5
    hard = 2.0 * torch.randn(2, slots, generator=rng).double()
    noise = torch.randn(worlds, 2, slots, generator=rng).double()
    scores = hard + noise + tells * coins[:, None].double()
    owner = torch.arange(slots) % 4
    labels = torch.randint(3, (slots,), generator=rng)
    none = torch.zeros(worlds, 0, 4, slots, dtype=torch.float64)

    def one(world: int, coins: Tensor = coins) -> ShadowSignals:
        others = torch.arange(worlds) != world
        return ShadowSignals(
            none[world], none[world, :, 0], none[others], coins[others], owner, labels,
            scores[world], scores[others],
        )  # fmt: skip

    return coins, scores, one


def test_a_stack_of_two_scores_beats_both_and_is_at_chance_where_neither_tells():
    coins, scores, one = scored_worlds()
    stack = torch.stack([Stacked().score(one(world)) for world in range(len(coins))])
    best = max(mean_auc(scores[:, kind], coins) for kind in range(2))
    assert mean_auc(stack, coins) > best + 0.1
    coins, scores, one = scored_worlds(tells=0.0)
    stack = torch.stack([Stacked().score(one(world)) for world in range(len(coins))])
    assert mean_auc(stack, coins) == pytest.approx(0.5, abs=0.03)


def test_weights_of_a_stack_are_never_learnt_on_the_slots_that_they_score():
    coins, _, one = scored_worlds()
    same = Stacked().score(one(0))
    odd = torch.arange(coins.shape[1]) % 2 == 1
    other = coins.clone()
    other[:, 1] = ~other[:, 1]  # an odd slot's coins in every shadow world
    found = Stacked().score(one(0, other))
    untouched = odd & (torch.arange(len(odd)) != 1)
    own = one(0).clients[1]
    apart = untouched & (one(0).clients != own)  # its client's features are scaled together
    assert torch.allclose(found[apart], same[apart], atol=1e-6)
    assert not torch.allclose(found[~odd], same[~odd], atol=1e-6)


def test_features_take_out_what_a_slot_scores_in_worlds_without_it():
    own = torch.tensor([[1.0, 4.0, 2.0, 9.0]]).double()
    shadows = torch.tensor([[[0.0, 4.0, 2.0, 1.0]], [[2.0, 0.0, torch.nan, 3.0]]]).double()
    coins = torch.tensor([[True, False, False, True], [False, False, True, True]])
    clients = torch.tensor([0, 0, 0, 0])
    found = features(own, shadows, coins, clients, torch.tensor([0, 0, 1, 1]))
    plain = [
        own[0],
        own[0] - torch.tensor([1.0, 2.0, 2.0, 2.0]).double(),
        own[0] - torch.tensor([2.0, 2.0, 2.0, 2.0]).double(),  # the last trained everywhere
    ]
    for kind, row in enumerate(plain):
        wanted = (row - row.mean()) / row.std(correction=0)
        assert torch.allclose(found[:, kind], wanted)
        pairs = wanted.view(2, 2)
        assert torch.allclose(found[:, 3 + kind].view(2, 2), pairs - pairs.mean(1, keepdim=True))


def test_a_stack_of_nothing_is_refused_and_missing_scores_count_as_the_mean():
    _, _, one = scored_worlds()
    view = one(0)
    empty = torch.zeros(0, 0, dtype=torch.float64)
    bare = ShadowSignals(
        view.sent, view.before, view.shadows, view.coins, view.clients, view.labels, empty
    )
    with pytest.raises(IncompatibleError, match="nothing to stack"):
        Stacked().score(bare)
    view.scores[0, :5] = torch.nan
    assert bool(Stacked().score(view).isfinite().all())
