"""Floors: what each answers, and that the mismatched control never cheats."""

import dataclasses
import math

import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Mixture, Truth
from fedre_privacy.eval import FLOORS, PublicImages, floor_answers
from fedre_privacy.eval.floors import cross_fit, mismatches, worst_of
from fedre_privacy.eval.intervals import cluster_means
from fedre_privacy.eval.metrics.mse import squared_error

SIZES = [1, 3, 10, 2, 17, 1, 8, 3, 4, 2, 1, 1]


def collect(rec, truth, public, **kwargs):
    found = {}
    for name, answers in floor_answers(rec, truth, public, **kwargs):
        found.setdefault(name, []).append(answers)
    return found


def test_what_each_floor_answers(make_truth, make_rec, public):
    truth = make_truth(SIZES)
    images = torch.rand(len(SIZES), 1, 12, 12)
    prior = torch.rand(len(SIZES), 1, 12, 12)
    found = collect(make_rec(images, prior=prior), truth, public, draws=4)
    assert list(found) == list(FLOORS)
    assert {name: len(draws) for name, draws in found.items() if len(draws) > 1} == {
        "random-image": 4, "random-same-class": 4, "mismatched": 4,
    }  # fmt: skip
    assert all(a.shape == images.shape for draws in found.values() for a in draws)
    assert (found["grey"][0] == 0.5).all()
    assert torch.allclose(found["mean-colour"][0], public.images.mean())
    assert torch.allclose(found["mean-image"][0][3], public.images.mean(dim=0))
    for i, label in enumerate(truth.target_labels.tolist()):
        expected = public.images[public.labels == label].mean(dim=0)
        assert torch.allclose(found["class-mean-image"][0][i], expected, atol=1e-6)
        for draw in found["random-same-class"]:
            source = (public.images == draw[i]).flatten(1).all(dim=1).nonzero()
            assert public.labels[source[0]].item() == label
    assert torch.equal(found["prior-only"][0], prior)


def test_targets_of_mixed_or_unseen_class_get_the_mean_image(make_truth, make_rec, public):
    truth = make_truth(SIZES)
    truth.target_labels[:2] = torch.tensor([-1, 77])
    found = collect(make_rec(torch.rand(len(SIZES), 1, 12, 12)), truth, public)
    mean = public.images.mean(dim=0)
    assert torch.allclose(found["class-mean-image"][0][:2], mean.expand(2, -1, -1, -1))
    assert not torch.allclose(found["class-mean-image"][0][2], mean)


def test_random_floors_are_seeded(make_truth, make_rec, public):
    truth, rec = make_truth(SIZES), make_rec(torch.rand(len(SIZES), 1, 12, 12))
    once, again, other = (collect(rec, truth, public, seed=s) for s in (1, 1, 2))
    for name in ("random-image", "random-same-class", "mismatched"):
        assert torch.equal(torch.stack(once[name]), torch.stack(again[name]))
        assert not torch.equal(torch.stack(once[name]), torch.stack(other[name]))


def test_constant_mean_colour_scores_the_variance_of_the_data():
    """Fixture 8 of the attack notes: PSNR of the mean MSE is -10 log10(var)."""
    images = torch.rand(50, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images = images * torch.tensor([0.3, 0.9, 0.6]).reshape(1, 3, 1, 1)
    colour = images.mean(dim=(0, 2, 3), keepdim=True).expand(images.shape)
    variance = images.double().var(dim=(0, 2, 3), correction=0).mean().item()
    psnr = -10 * math.log10(squared_error(colour, images).mean().item())
    assert psnr == pytest.approx(-10 * math.log10(variance), abs=1e-4)


def test_a_mismatch_is_never_the_target_itself_nor_shares_an_image(make_truth):
    truth = make_truth(SIZES, clients=4)
    donors = mismatches(truth, torch.zeros(len(SIZES), dtype=torch.bool), draws=6, seed=0)
    for draw in donors:
        assert sorted(draw.tolist()) == list(range(len(SIZES))), "every answer is used once"
        assert (draw != torch.arange(len(SIZES))).all()
        assert (truth.target_clients[draw] != truth.target_clients).all()
    assert len({tuple(draw.tolist()) for draw in donors}) > 1


def test_one_client_still_avoids_shared_images():
    """Targets 0-2 mix the same images; 3-5 others: only the two halves may lend to each other."""
    row, sample = torch.arange(6).repeat_interleave(2), torch.tensor([0, 1] * 3 + [2, 3] * 3)
    truth = Truth(
        torch.rand(4, 1, 4, 4), torch.zeros(4), torch.zeros(4),
        Mixture(row, sample, torch.full((12,), 0.5), 6), torch.zeros(6), torch.full((6,), -1),
    )  # fmt: skip
    for draw in mismatches(truth, torch.zeros(6, dtype=torch.bool), draws=4):
        assert all((i < 3) != (j < 3) for i, j in enumerate(draw.tolist()))
        assert sorted(draw.tolist()) == list(range(6)), "every answer is used once"


def test_uneven_halves_borrow_twice_and_lonely_targets_not_at_all():
    row, sample = torch.arange(4), torch.tensor([0, 0, 0, 1])
    truth = Truth(
        torch.rand(2, 1, 4, 4), torch.zeros(2), torch.zeros(2),
        Mixture(row, sample, torch.ones(4), 4), torch.zeros(4), torch.zeros(4),
    )  # fmt: skip
    none = torch.zeros(4, dtype=torch.bool)
    for draw in mismatches(truth, none, draws=3):
        assert draw[:3].tolist() == [3, 3, 3] and draw[3] < 3
    all_alike = Truth(
        truth.images, truth.labels, truth.clients,
        Mixture(row, torch.zeros(4, dtype=torch.int64), torch.ones(4), 4),
        truth.target_clients, truth.target_labels,
    )  # fmt: skip
    assert (mismatches(all_alike, none) == -1).all()


def test_diverged_targets_borrow_but_do_not_lend(make_truth):
    truth = make_truth(SIZES)
    bad = torch.zeros(len(SIZES), dtype=torch.bool)
    bad[[0, 5]] = True
    for draw in mismatches(truth, bad):
        assert not set(draw.tolist()) & {-1, 0, 5}
        assert (truth.target_clients[draw] != truth.target_clients).all()
        assert sorted(draw[~bad].tolist()) == (~bad).nonzero().flatten().tolist()
    assert (mismatches(truth, torch.ones_like(bad)) == -1).all()
    assert (mismatches(make_truth([1]), torch.zeros(1, dtype=torch.bool)) == -1).all()


def test_giving_up_takes_no_floor_away(make_truth, make_rec, public):
    truth = make_truth(SIZES)
    images, prior = torch.rand(2, len(SIZES), 1, 12, 12)
    images[3], prior[3] = float("nan"), float("nan")
    found = collect(make_rec(images, prior=prior), truth, public)
    assert list(found) == list(FLOORS)
    assert all(a.isfinite().all() for draws in found.values() for a in draws)
    assert (found["prior-only"][0][3] == 0).all()


# --- which floor is reported ----------------------------------------------------------------------


@pytest.mark.slow
def test_equally_good_floors_are_not_flattered_by_the_choice():
    """Eight floors of the same worth on 24 targets of ten clients: truth chooses .5 dB too much."""
    rng = torch.Generator().manual_seed(0)
    clients = torch.arange(24) % 10
    chosen, fitted = [], []
    for _ in range(2000):
        floors = {
            str(i): 15 + 1.7 * torch.randn(24, generator=rng, dtype=torch.float64) for i in range(8)
        }
        chosen.append(max(float(values.mean()) for values in floors.values()) - 15)
        fitted.append(float(cross_fit(floors, clients, higher_leaks=True).values.mean()) - 15)
    assert sum(chosen) / 2000 == pytest.approx(0.5, abs=0.05)
    assert sum(fitted) / 2000 == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("count", [5, 10])
@pytest.mark.slow
def test_an_attack_that_equals_the_floors_is_not_found_better(count):
    """Nor worse: choosing the floor on the attacked targets would hide what little there is."""
    rng = torch.Generator().manual_seed(count)
    clients = torch.arange(24) % count
    gaps, errors = [], []
    everything = torch.ones(24, dtype=torch.bool)
    for _ in range(1000):
        effects = 1.5 * torch.randn(9, count, generator=rng, dtype=torch.float64)
        values = effects[:, clients] + torch.randn(9, 24, generator=rng, dtype=torch.float64)
        floors = {str(i): own for i, own in enumerate(values[:8])}
        found = cross_fit(floors, clients, higher_leaks=True)
        gaps.append(values[8] - found.values)
        errors.append(found.jackknife(values[8], everything) ** 0.5)
    estimate = cluster_means(torch.stack(gaps, dim=1), clients)
    low, high = estimate.interval()
    assert float((low > 0).double().mean()) > 0.035  # without the choice in the error
    wide = dataclasses.replace(estimate, error=torch.maximum(estimate.error, torch.tensor(errors)))
    low, high = wide.interval()
    assert float((low > 0).double().mean()) <= 0.03 and float((high < 0).double().mean()) <= 0.03
    assert float(estimate.mean.mean()) == pytest.approx(0, abs=0.1)


def test_a_choice_that_never_changes_adds_no_error():
    rng = torch.Generator().manual_seed(0)
    clients, attack = torch.arange(20) % 5, torch.randn(20, generator=rng).double()
    floor = torch.randn(20, generator=rng).double()
    one = cross_fit({"good": floor, "bad": floor - 9}, clients, higher_leaks=True)
    known = cluster_means((attack - floor)[:, None], clients)
    variance = one.jackknife(attack, torch.ones(20, dtype=torch.bool))
    assert variance == pytest.approx(float(known.error) ** 2)


def test_a_clearly_best_floor_is_chosen_for_everybody():
    clients = torch.arange(12) % 4
    rng = torch.Generator().manual_seed(0)
    good, bad = 20 + torch.randn(12, generator=rng), 10 + torch.randn(12, generator=rng)
    found = cross_fit({"bad": bad, "good": good}, clients, higher_leaks=True)
    assert found.counts() == {"good": 12} and found.name == "good"
    assert torch.equal(found.values, good.double())
    assert cross_fit({"bad": bad, "good": good}, clients, higher_leaks=False).name == "bad"


def test_a_clients_own_targets_do_not_choose_its_floor():
    clients = torch.tensor([0, 0, 0, 1, 2])
    a = torch.tensor([50.0, 50, 50, 10, 10])
    b = torch.tensor([10.0, 10, 10, 11, 11])
    found = cross_fit({"a": a, "b": b}, clients, higher_leaks=True)
    assert [found.names[i] for i in found.which] == ["b", "b", "b", "a", "a"]
    assert found.counts() == {"b": 3, "a": 2} and found.name == "b"
    moved = cross_fit({"a": a + 0 * b, "b": b}, clients, higher_leaks=True)
    assert torch.equal(moved.which, found.which)


def test_one_client_leaves_out_target_by_target_and_one_target_has_no_other():
    a, b = torch.tensor([1.0, 5, 1, 1]), torch.tensor([2.0, 2, 2, 2])
    same = torch.zeros(4, dtype=torch.int64)
    found = cross_fit({"a": a, "b": b}, same, higher_leaks=True)
    assert [found.names[i] for i in found.which] == ["a", "b", "a", "a"]
    single = cross_fit({"a": a[:1], "b": b[:1]}, same[:1], higher_leaks=True)
    assert single.name == "b" and single.values.tolist() == [2.0]


def test_floors_with_holes_and_ties():
    hole, flat = torch.tensor([9.0, float("nan"), 9]), torch.tensor([2.0, 2, 2])
    clients = torch.arange(3)
    found = cross_fit({"hole": hole, "one": flat, "two": flat.clone()}, clients, higher_leaks=True)
    assert found.counts() == {"one": 3}
    none = cross_fit({"hole": hole}, clients, higher_leaks=True)
    assert none.name is None and none.values.isnan().all()


def test_the_worst_of_several_scores():
    a, b = torch.tensor([3.0, float("nan"), 1.0]), torch.tensor([2.0, 5.0, 4.0])
    assert worst_of([a, b], higher_leaks=True).tolist() == [2.0, 5.0, 1.0]
    assert worst_of([a, b], higher_leaks=False).tolist() == [3.0, 5.0, 4.0]


def test_groups_of_a_large_set_are_deranged_too(make_truth, monkeypatch):
    from fedre_privacy.eval import floors

    monkeypatch.setattr(floors, "_GROUP", 10)
    truth = make_truth([1] * 47)
    draw = mismatches(truth, torch.zeros(47, dtype=torch.bool), draws=1)[0]
    assert sorted(draw.tolist()) == list(range(47)) and (draw != torch.arange(47)).all()


def test_public_images_need_labels():
    with pytest.raises(IncompatibleError, match=r"\(3, 1, 4, 4\) with 2 labels"):
        PublicImages(torch.rand(3, 1, 4, 4), torch.zeros(2))
    with pytest.raises(IncompatibleError, match="m >= 1"):
        PublicImages(torch.rand(0, 1, 4, 4), torch.zeros(0))
