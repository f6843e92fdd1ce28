"""Defences of class statistics: sums and back, exact sensitivity, what is dropped and undone."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize

from fedre_privacy.attacks.statistics.decomposition import take_apart
from fedre_privacy.attacks.statistics_membership import outside_of
from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.channels import LeastCount, NoisySums, Shrinkage
from fedre_privacy.core.class_sums import shrunk, spread_of, statistics_of, sums_of
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.gdp import gdp_epsilon
from fedre_privacy.core.triangles import pack
from fedre_privacy.core.types import Emission, Mixture
from fedre_privacy.defenses.apply import apply_defenses
from fedre_privacy.defenses.base import FederationFacts, Sending, defenses
from fedre_privacy.defenses.statement import check_all, state
from fedre_privacy.defenses.statistics_noise import SENSITIVITY, noise_of
from fedre_privacy.protocols.base import protocols

FORMS = ("full", "diagonal", "spherical", "tied", "moment")


def statistics(reps, labels, form, kind=torch.float32):
    """Class statistics of samples (n, d), by definition, and which sample is in which row."""
    held = labels.unique()
    own = [reps[labels == label].double() for label in held]
    means = torch.stack([rows.mean(0) for rows in own])
    each = [(rows - rows.mean(0)).T @ (rows - rows.mean(0)) / len(rows) for rows in own]
    counts = torch.tensor([len(rows) for rows in own])
    spread = {
        "full": torch.stack(each),
        "diagonal": torch.stack([one.diagonal() for one in each]),
        "spherical": torch.stack([one.diagonal().mean() for one in each]),
        "tied": sum(n * one for n, one in zip(counts, each, strict=True)) / len(reps),
        "moment": reps.double().T @ reps.double() / len(reps),
    }[form]
    sent = ClassStatistics(means.to(kind), counts, held, {form: spread.to(kind)})
    row = torch.searchsorted(held, labels)
    return sent, Mixture(row, torch.arange(len(labels)), 1 / counts[row].float(), len(held))


def relu(count, dim=96, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=rng).clamp(min=0)


def sending(mixture, **more):
    return Sending("fedpft", 0, 1, 1, (ClassStatistics,), (4, 4), mixture=mixture, **more)


def facts(**changes):
    values = {
        "protocol": "fedpft", "kinds": (ClassStatistics,), "class_counts": ((40, 4),) * 3,
        "participations": (1,) * 3, "rounds": 1, "training_only": True, "trains": False, **changes,
    }  # fmt: skip
    return FederationFacts(**values)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("form", FORMS)
def test_statistics_and_sums_are_the_same(form):
    labels = torch.tensor([0, 0, 2, 2, 2, 5])
    reps = torch.randn(6, 7, generator=rng())
    sent, _ = statistics(reps, labels, form, torch.float64)
    sums = sums_of(sent)
    torch.testing.assert_close(sums.sums[1], reps[2:5].double().sum(0))
    whole = reps.double() if form in ("tied", "moment") else reps[2:5].double()
    outer = whole.T @ whole
    found = sums.outer if form in ("tied", "moment") else sums.outer[1]
    wanted = {"diagonal": outer.diagonal(), "spherical": outer.trace()}.get(form, outer)
    torch.testing.assert_close(found, wanted)
    again = statistics_of(sums, sent)
    for name, values in sent.tensors().items():
        torch.testing.assert_close(again.tensors()[name], values)
    if form == "full":
        packed = replace(sent, spread={form: pack(sent.spread[form])})
        torch.testing.assert_close(statistics_of(sums, packed).spread[form], packed.spread[form])


def moved(form, before, after):
    """How far the noisy numbers lie apart, over their noise at z = 1, between two data sets."""
    one, other = (sums_of(statistics(r, y, form, torch.float64)[0]) for r, y in (before, after))
    step, dim = noise_of(1.0, 1.0, 0), before[0].shape[1]
    outer = (one.outer - other.outer) / step.outer
    if outer.dim() > 1 and outer.shape[-1] == outer.shape[-2] == dim and form != "diagonal":
        upper = torch.triu(torch.full((dim, dim), 2.0), 1) + torch.eye(dim)
        outer = outer * upper.sqrt()  # of a value off the diagonal the noise is 1 / root 2
    parts = ((one.counts - other.counts) / step.count, (one.sums - other.sums) / step.sums, outer)
    return math.sqrt(sum(float(part.square().sum()) for part in parts))


@pytest.mark.parametrize("form", FORMS)
def test_the_worst_neighbours_that_a_search_finds_are_as_far_apart_as_stated(form):
    """Noise of z = 1 is SENSITIVITY in the units of the release: no pair is further than 1."""
    dim, base = 2, torch.nn.functional.normalize(torch.randn(2, 2, generator=rng(2)))

    def pair(values, other_class):
        x, y = torch.tensor(values, dtype=torch.float64).reshape(2, dim)
        x, y = (v / max(1.0, float(v.norm())) for v in (x, y))
        labels = torch.tensor([0, 1, 0])
        after = labels.clone()
        after[2] = int(other_class)
        return moved(
            form, (torch.cat([base.double(), x[None]]), labels),
            (torch.cat([base.double(), y[None]]), after),
        )  # fmt: skip

    worst = {}
    for other in (False, True):
        found = []
        for seed in range(2):
            start = torch.randn(2 * dim, generator=rng(seed), dtype=torch.float64).numpy()
            search = minimize(
                lambda v, other=other: -pair(v, other), start, method="Nelder-Mead",
                options={"maxiter": 150, "xatol": 1e-5, "fatol": 1e-7},
            )  # fmt: skip
            found.append(-search.fun)
        worst[other] = max(found)
    assert max(worst.values()) <= 1 + 1e-9, worst
    assert max(worst.values()) > 0.999, worst
    if form in ("full", "tied", "moment"):
        assert worst[False] > 0.999, "x and y of one class at 120 degrees"


def test_a_known_worst_pair_is_at_120_degrees():
    x, y = torch.tensor([1.0, 0.0]), torch.tensor([-0.5, math.sqrt(3) / 2])
    apart = (x - y).square().sum() + (torch.outer(x, x) - torch.outer(y, y)).square().sum()
    assert float(apart) == pytest.approx(4.5) and SENSITIVITY**2 == pytest.approx(4.5)


def test_what_protocols_add_to_variances_is_within_the_noise():
    dim = 1280
    ones = torch.ones(dim, dtype=torch.float64)
    part = torch.outer(ones, ones) / dim + 1e-6 * torch.eye(dim, dtype=torch.float64)
    assert 1.0 < float(part.norm()) <= noise_of(1 / SENSITIVITY, 1.0, dim).outer


@pytest.mark.parametrize("form", ["full", "diagonal", "moment"])
def test_the_noise_on_sums_has_the_stated_size(form):
    reps, labels = relu(40, 12), torch.tensor([0] * 30 + [1] * 10)
    sent, mixture = statistics(reps, labels, form)
    noisy = defenses.get("statistics-noise")(clip=2.0, noise=0.3, repair=False)
    clean, step = sums_of(sent), noise_of(0.3, 2.0, 12)
    drawn = [sums_of(noisy.defend(sent, sending(mixture), rng(s))) for s in range(200)]
    sums = torch.stack([one.sums - clean.sums for one in drawn])
    outer = torch.stack([one.outer - clean.outer for one in drawn])
    counts = torch.stack([one.counts - clean.counts for one in drawn])
    assert sums.std().item() == pytest.approx(step.sums, rel=0.05)
    assert counts.std().item() == pytest.approx(math.hypot(step.count, 12**-0.5), rel=0.2)
    if form == "diagonal":
        assert outer.std().item() == pytest.approx(step.outer, rel=0.05)
    else:
        diagonal = outer.diagonal(dim1=-2, dim2=-1)
        assert diagonal.std().item() == pytest.approx(step.outer, rel=0.07)
        above = outer[..., 0, 1:]
        assert above.std().item() == pytest.approx(step.outer / math.sqrt(2), rel=0.07)


def test_repaired_covariances_are_none_that_noise_alone_could_make():
    reps, labels = relu(60, 40), torch.tensor([0] * 60)
    for form in FORMS:
        sent, mixture = statistics(reps, labels, form)
        made = defenses.get("statistics-noise")(clip=7.0, noise=1.0).defend(
            sent, sending(mixture), rng()
        )
        assert made.problems() == []
        _, values = spread_of(made)
        if values.dim() > 1 and form != "diagonal":
            least = torch.linalg.eigvalsh(values.reshape(-1, 40, 40)).min()
            assert float(least) > -1e-4
            assert form == "moment" or not values.any(), "no direction is beyond this noise"


def test_a_guarantee_for_a_record_needs_no_private_training_where_nothing_is_trained():
    noisy = defenses.get("statistics-noise")(clip=1.0, noise=2.0)
    (found,) = state([noisy], facts()).guarantees
    assert found.unit == "record" and found.epsilon == pytest.approx(gdp_epsilon(0.5, 1e-5))
    (twice,) = state([noisy], facts(rounds=4, participations=(4,) * 3)).guarantees
    assert twice.epsilon == pytest.approx(gdp_epsilon(1.0, 1e-5))
    trained = state([noisy], facts(trains=True))
    assert not trained.guarantees and "add dp-sgd" in trained.reasons[0]
    by_epsilon = defenses.get("statistics-noise")(clip=1.0, epsilon=3.0)
    (found,) = state([by_epsilon], facts(rounds=2, participations=(2,) * 3)).guarantees
    assert found.epsilon == pytest.approx(3.0, abs=1e-3)


def test_what_the_noise_cannot_be_calibrated_for_is_refused():
    noisy = defenses.get("statistics-noise")(clip=1.0, noise=2.0)
    for own, said in (({"components": 3}, "components=1"), ({}, "precision=float32")):
        why = protocols.get("fedpft")(**own).inexact()
        (problem,) = noisy.check(facts(inexact=why))
        assert said in problem
    assert not noisy.check(facts(inexact=protocols.get("fedpft")(precision="float32").inexact()))
    assert not protocols.get("fedcgs")().inexact()
    by_epsilon = defenses.get("statistics-noise")(clip=1.0, epsilon=3.0)
    assert "train on the same samples" in by_epsilon.check(facts(trains=True))[0]
    shrink = defenses.get("shrink-covariance")()
    assert "must come before" in check_all([shrink, noisy], facts())[0]
    assert not check_all([noisy, shrink], facts())
    for given in ({}, {"clip": 1.0}, {"clip": 1.0, "noise": 1.0, "epsilon": 1.0}):
        with pytest.raises(ConfigError, match="statistics-noise"):
            defenses.get("statistics-noise")(**given)
    sent, mixture = statistics(relu(4), torch.tensor([0, 0, 1, 1]), "full")
    twice = replace(mixture, sample=torch.tensor([0, 1, 0, 3]))
    with pytest.raises(IncompatibleError, match="entered several rows"):
        noisy.defend(sent, sending(twice), rng())
    with pytest.raises(IncompatibleError, match="collected those"):
        apply_defenses([noisy], Emission(sent, mixture), sending(mixture), number=0, passes=0)


# --- shrinkage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("towards", ["identity", "diagonal"])
@pytest.mark.parametrize("form", FORMS)
def test_shrinkage_is_what_it_says_and_is_undone_exactly(form, towards):
    sent, mixture = statistics(relu(8, 10), torch.tensor([0] * 4 + [1] * 4), form, torch.float64)
    defense = defenses.get("shrink-covariance")(share=0.7, towards=towards)
    made = defense.defend(sent, sending(mixture), rng())
    before, after = spread_of(sent)[1], spread_of(made)[1]
    if form in ("full", "tied", "moment"):
        variances = before.diagonal(dim1=-2, dim2=-1)
        if towards == "identity":
            variances = variances.mean(-1, keepdim=True).expand_as(variances)
        torch.testing.assert_close(after, 0.3 * before + 0.7 * torch.diag_embed(variances))
    back = shrunk(made, -0.7 / 0.3, towards)
    torch.testing.assert_close(spread_of(back)[1], before)


def found_of(reps, labels, sent, steps):
    """Representations that are found to 1 %."""
    answers = take_apart(sent, 3, tries=20, most=64, steps=steps)
    hits = 0
    for answer in answers:
        own = reps[labels == answer.label].double()
        if len(answer.vectors):
            apart = torch.cdist(own, torch.from_numpy(answer.vectors)).amin(1)
            hits += int((apart < 0.01 * own.norm(dim=1)).sum())
    return hits


def test_who_knows_the_shrinkage_has_every_representation_again():
    reps, labels = relu(9, 160, seed=4), torch.tensor([0] * 4 + [1] * 5)
    sent, mixture = statistics(reps, labels, "full")
    defense = defenses.get("shrink-covariance")(share=0.8, towards="diagonal")
    made = defense.defend(sent, sending(mixture), rng())
    steps = defense.channel(facts()).statistics
    assert steps == (Shrinkage(0.8, "diagonal"),)
    assert found_of(reps, labels, made, steps) == 9
    assert found_of(reps, labels, made, ()) < 3
    whole = defenses.get("shrink-covariance")(share=1.0, towards="diagonal")
    gone = whole.defend(sent, sending(mixture), rng())
    assert found_of(reps, labels, gone, whole.channel(facts()).statistics) < 3


def test_knowing_the_noise_certifies_what_holds_under_it():
    reps, labels = relu(4, 160, seed=4), torch.tensor([0] * 4)
    sent, mixture = statistics(reps, labels, "full")
    noisy = defenses.get("statistics-noise")(clip=10.0, noise=1e-7)
    made = noisy.defend(sent, sending(mixture), rng())
    steps = noisy.channel(facts()).statistics
    assert isinstance(steps[0], NoisySums) and found_of(reps, labels, made, steps) == 4
    loud = replace(noisy, noise=1e-3)
    made = loud.defend(sent, sending(mixture), rng())
    assert found_of(reps, labels, made, loud.channel(facts()).statistics) == 0
    for one in take_apart(made, 3, tries=20, most=64, steps=loud.channel(facts()).statistics):
        assert not one.certified.any()


# --- minimum count -------------------------------------------------------------------------------


def test_small_classes_are_not_sent_and_their_samples_stay_with_the_evaluator():
    labels = torch.tensor([0, 0, 1, 1, 1, 1, 2])
    least = defenses.get("minimum-count")(count=3)
    for form in FORMS:
        sent, mixture = statistics(relu(7, 10), labels, form)
        made = apply_defenses([least], Emission(sent, mixture), sending(mixture), number=0)
        assert made.artifact.labels.tolist() == [1] and made.artifact.problems() == []
        assert made.mixture.sample.tolist() == [2, 3, 4, 5] and made.mixture.num_rows == 1
        if form in ("tied", "moment"):
            assert torch.equal(made.artifact.spread[form], sent.spread[form])
    none = defenses.get("minimum-count")(count=5)
    assert apply_defenses([none], Emission(sent, mixture), sending(mixture), number=0) is None
    assert "largest class of a client has 40" in replace(none, count=41).check(facts())[0]
    assert not least.check(facts())


def test_a_second_moment_says_how_many_were_left_out_and_who():
    """The naive attacker takes the samples for those of the classes that were sent."""
    reps, labels = relu(9, 160, seed=6), torch.tensor([0] * 4 + [1] * 3 + [2] * 2)
    sent, mixture = statistics(reps, labels, "moment")
    least = defenses.get("minimum-count")(count=3)
    (rows, held) = (least.kept(sent), least.channel(facts()).statistics)
    assert held == (LeastCount(3),)
    made = sent.take(rows)
    assert found_of(reps, labels, made, held) == 7
    assert found_of(reps, labels, made, ()) < 4
    inside = outside_of(made, reps.double(), labels, held).shares
    outside = outside_of(made, relu(9, 160, seed=7).double(), labels, held).shares
    assert float(inside.max()) < 1e-6 < 0.1 < float(outside.min())
    blind = outside_of(made, reps.double(), labels).shares
    assert bool((blind[labels == 2] == 1).all())
