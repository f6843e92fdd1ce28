"""Single representations out of class statistics, their certificate, and what is left open."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedre_privacy.attacks.statistics.decomposition import take_apart
from fedre_privacy.attacks.statistics.spans import class_spans
from fedre_privacy.attacks.statistics_membership import outside_of, scores_by_statistics
from fedre_privacy.attacks.unpool import Unpool
from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.triangles import pack, unpack
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.eval.representation_scores import match_answers
from fedre_privacy.threats.base import threats

D = 160


def features(count, seed=0, dim=D):
    """What a ReLU leaves of random numbers, (n, d): half is zero."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=rng, dtype=torch.float64).clamp(min=0)


def covariance(reps):
    return (reps - reps.mean(0)).T @ (reps - reps.mean(0)) / len(reps)


def full(*classes, kind=torch.float32, change=lambda matrix: matrix):
    return ClassStatistics(
        torch.stack([own.mean(0) for own in classes]).to(kind),
        torch.tensor([len(own) for own in classes]),
        torch.arange(len(classes)),
        {"full": torch.stack([pack(change(covariance(own))) for own in classes]).to(kind)},
    )


def pooled(form, *classes):
    total = sum(map(len, classes))
    matrix = sum(len(own) * covariance(own) for own in classes) / total
    if form == "moment":
        every = torch.cat(classes)
        matrix = every.T @ every / total
    return ClassStatistics(
        torch.stack([own.mean(0) for own in classes]),
        torch.tensor([len(own) for own in classes]),
        torch.arange(len(classes)),
        {form: matrix},
    )


def observed(*sent):
    uploads = tuple(Upload(client, 1, (one,)) for client, one in enumerate(sent))
    return Observation(
        threat=replace(threats.get("realistic")), targets=uploads, uploads=uploads, broadcasts=(),
        extractors={}, image_shape=(1, 8, 8), num_classes=10,
    )  # fmt: skip


def errors(truth, answer):
    """Relative error of each true representation to its answer, inf without one."""
    vectors = torch.from_numpy(answer.vectors)
    keys = torch.zeros(len(truth), dtype=torch.int64)
    matched = match_answers(truth, keys, vectors, torch.zeros(len(vectors), dtype=torch.int64))
    out = torch.full((len(truth),), torch.inf, dtype=torch.float64)
    held = matched >= 0
    out[held] = (vectors[matched[held]] - truth[held]).norm(dim=1) / truth[held].norm(dim=1)
    return out


def solve(sent, **more):
    return take_apart(sent, 5, **{"tries": 20, "most": 64, **more})


@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("kind, near", [(torch.float32, 1e-5), (torch.float16, 0.01)])
def test_every_representation_comes_back_with_a_certificate(count, kind, near):
    reps = features(count, seed=count)
    (answer,) = solve(full(reps, kind=kind))
    assert float(errors(reps, answer).max()) < near
    assert answer.certified.all() and (answer.expected_error < 0.01).all()
    assert float((reps - reps.mean(0)).norm(dim=1).min()) > 0.3 * float(reps.norm(dim=1).min())


@pytest.mark.parametrize("change", [
    lambda c: c * 4 / 3,  # divided by n - 1
    lambda c: 0.8 * c + 0.2 * c.trace() / D * torch.eye(D, dtype=c.dtype),  # Ledoit, Wolf
    lambda c: c + 1e-3 * torch.eye(D, dtype=c.dtype),
])  # fmt: skip
def test_other_divisors_and_shrinkage_are_seen_through(change):
    reps = features(4, seed=1)
    (answer,) = solve(full(reps, change=change))
    assert float(errors(reps, answer).max()) < 1e-4 and answer.certified.all()


def test_noise_is_tolerated_and_no_longer_certified():
    reps, rng = features(3, seed=2), torch.Generator().manual_seed(0)
    noise = torch.randn(D, D, generator=rng, dtype=torch.float64)
    sent = full(reps, change=lambda c: c + 1e-2 * (noise + noise.T))
    (answer,) = solve(sent)
    assert float(errors(reps, answer).max()) < 0.1
    nearest = torch.cdist(torch.from_numpy(answer.vectors), reps).min(1)
    far = nearest.values / reps[nearest.indices].norm(dim=1) > 0.01
    assert bool(far.any())
    assert not (answer.certified & far.numpy()).any()


@pytest.mark.parametrize("form", ["tied", "moment"])
def test_one_covariance_of_all_classes_gives_all_away(form):
    classes = [features(n, seed=n) for n in (1, 2, 4, 3)]
    answers = solve(pooled(form, *classes))
    for own, answer in zip(classes, answers, strict=True):
        assert float(errors(own, answer).max()) < 1e-4 and answer.certified.all()


def test_diagonal_and_spherical_covariances_give_single_images_alone():
    reps = features(5, seed=3)
    for form, values in (("diagonal", torch.zeros(2, D)), ("spherical", torch.ones(2))):
        means = torch.stack([reps[0], reps[1:].mean(0)]).float()
        sent = ClassStatistics(means, torch.tensor([1, 4]), torch.tensor([0, 1]), {form: values})
        one, several = solve(sent)
        assert float(errors(reps[:1], one).max()) < 1e-5 and one.certified.all()
        assert not len(several.vectors) and "leaves their signs open" in several.note


def test_noise_in_place_of_statistics_gives_nothing():
    rng = torch.Generator().manual_seed(6)
    for count in (2, 3, 6):
        rows = torch.randn(count - 1, D, generator=rng, dtype=torch.float64)
        sent = full(features(count, seed=9), change=lambda c, rows=rows: rows.T @ rows)
        (answer,) = solve(sent)
        assert not answer.certified.any(), count
        assert count == 2 or not len(answer.vectors)


def test_another_clients_statistics_give_others_representations():
    mine, others = features(4, seed=1), features(4, seed=11)
    (answer,) = solve(full(others))
    found, trivial = errors(mine, answer), (mine - mine.mean(0)).norm(dim=1) / mine.norm(dim=1)
    assert bool((found > trivial).all())


@pytest.mark.parametrize(("count", "noise"), [(1.0, 0.1), (1.04, 0.0)])
def test_a_single_image_under_noise_or_with_others_is_not_certified(count, noise):
    rng = torch.Generator().manual_seed(3)
    mean = features(1, seed=3) + noise * torch.randn(1, D, generator=rng, dtype=torch.float64)
    sent = ClassStatistics(
        mean.float(), torch.tensor([count]), torch.tensor([0]), {"diagonal": torch.zeros(1, D)}
    )
    (answer,) = solve(sent)
    assert len(answer.vectors) == 1 and not answer.certified.any()


@pytest.mark.parametrize("form", ["diagonal", "moment"])
def test_the_one_image_of_a_class_is_a_member(form):
    classes = [features(1, seed=5), features(5, seed=6)]
    others = features(6, seed=7)
    if form == "moment":
        sent = pooled(form, *classes)
    else:
        variances = torch.stack([own.var(0, unbiased=False) for own in classes]).float()
        sent = ClassStatistics(
            torch.stack([own.mean(0) for own in classes]).float(), torch.tensor([1, 5]),
            torch.tensor([0, 1]), {form: variances},
        )  # fmt: skip
    labels = torch.tensor([0, 1, 1, 1, 1, 1])
    members = outside_of(sent, torch.cat(classes), labels).shares
    strangers = outside_of(sent, others, labels).shares
    assert float(members.max()) < 1e-3 < float(strangers.min())


def test_signed_representations_of_three_are_left_open():
    rng = torch.Generator().manual_seed(1)
    signed = torch.randn(3, D, generator=rng, dtype=torch.float64)
    (answer,) = solve(full(signed))
    assert not len(answer.vectors) and "any rotation in 2 dimensions" in answer.note
    (two,) = solve(full(signed[:2]))
    assert float(errors(signed[:2], two).max()) < 1e-4, "two are given by mean and covariance"
    assert not two.certified.any(), "nothing says by what the covariance was divided"


def test_what_is_left_open_is_said():
    reps = features(9, seed=1)
    (large,) = solve(full(reps), most=8)
    assert "more than the 8 tried" in large.note
    (whole,) = solve(full(features(30, seed=1, dim=16)))
    assert "full rank" in whole.note
    parts = ClassStatistics(
        reps[:1].float(), torch.tensor([2.4]), torch.tensor([3]), {"diagonal": torch.ones(1, D)}
    )
    assert "no whole number" in solve(parts)[0].note
    pair = pooled("tied", features(40, seed=1), features(40, seed=2))
    assert "78 dimensions" in solve(pair)[0].note


def test_the_span_holds_the_representations_on_its_sphere():
    reps = features(5, seed=4)
    span = class_spans(reps.mean(0).numpy(), covariance(reps).numpy(), 5)[0]
    points = np.linalg.lstsq(span.rows.T, (reps.numpy() - span.mean).T, rcond=None)[0].T
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), span.radius, rtol=1e-6)
    np.testing.assert_allclose((points @ points.T)[0, 1:], -1 / 5, rtol=1e-6)


def test_the_attack_answers_each_client_by_itself_and_refuses_what_it_cannot_read():
    first, second = full(features(3, seed=1), features(1, seed=2)), full(features(2, seed=3))
    both, alone = Unpool()(observed(first, second)), Unpool()(observed(first))
    assert both.clients.tolist() == [0] * 4 + [1] * 2 and both.labels.tolist() == [0, 0, 0, 1, 0, 0]
    assert torch.equal(both.vectors[:4], alone.vectors)
    bad = ClassStatistics(first.means, first.counts, first.labels, {"full": first.means})
    assert any("has shape" in note for note in Unpool()(observed(bad, second)).notes)
    with pytest.raises(IncompatibleError, match="can be read"):
        Unpool()(observed(bad))


def test_shapes_of_statistics_are_checked():
    good = full(features(3), features(2))
    assert good.problems() == []
    matrices = unpack(good.spread["full"], D)
    assert replace(good, spread={"full": matrices}).problems() == []
    twisted = matrices.clone()
    twisted[0, 0, 1] += 100
    for spread, said in (
        ({"full": twisted}, "not symmetric"),
        ({"full": matrices[:1]}, "has shape"),
        ({"diagonal": -torch.ones(2, D)}, "below 0"),
        ({"half": torch.ones(2)}, "one of full"),
        ({}, "nothing"),
    ):
        assert said in replace(good, spread=spread).problems()[0]
    assert "not finite" in replace(good, spread={"full": matrices / 0}).problems()[0]
    taken = good.take(torch.tensor([1]))
    assert taken.labels.tolist() == [1] and taken.problems() == []


def area(members, others):
    """Share of pairs (a member, another) in which the member's share outside is the smaller."""
    return float((members[:, None] < others[None]).double().mean()) + 0.5 * float(
        (members[:, None] == others[None]).double().mean()
    )


@pytest.mark.parametrize("tails", ["heavy", "light"])
def test_inside_of_a_box_members_are_those_that_made_it_so_wide(tails):
    """Where values far out are rare it is the other way round; both beat the box alone."""
    rng = torch.Generator().manual_seed(8)
    own, others, elsewhere = torch.randn(3, 32, 256, generator=rng, dtype=torch.float64)
    if tails == "heavy":
        own, others, elsewhere = (x * x.abs() ** 0.5 for x in (own, others, elsewhere))
    candidates, labels = torch.cat([own, others]), torch.zeros(64, dtype=torch.int64)

    def found(behind):
        sent = ClassStatistics(
            behind.mean(0)[None].float(), torch.tensor([32]), torch.tensor([0]),
            {"diagonal": covariance(behind).diagonal()[None].float()},
        )  # fmt: skip
        scores, _ = scores_by_statistics(sent, candidates, labels)
        return sent, area(-scores[:32], -scores[32:])

    sent, ordered = found(own)
    shares = outside_of(sent, candidates, labels).shares.clamp(min=1e-12)
    assert ordered > area(shares[:32], shares[32:]) + 0.05
    assert ordered > 0.7
    assert 0.35 < found(elsewhere)[1] < 0.65, "statistics of others tell nothing"


@pytest.mark.parametrize("form", ["full", "tied", "moment", "diagonal"])
def test_statistics_tell_members_from_others(form):
    classes = [features(n, seed=n) for n in (12, 20)]
    sent = full(*classes) if form in ("full", "diagonal") else pooled(form, *classes)
    if form == "diagonal":
        variances = torch.stack([covariance(own).diagonal() for own in classes])
        sent = replace(sent, spread={form: variances})
    labels = torch.tensor([0] * 12 + [1] * 20)
    others = features(32, seed=99)
    found = outside_of(sent, torch.cat(classes), labels)
    inside, said = found.shares, found.says
    outside = outside_of(sent, others, labels).shares
    assert area(inside, outside) > (0.8 if form == "diagonal" else 0.99), said
    mixed = features(32, seed=77)
    elsewhere = outside_of(full(mixed[:12], mixed[12:]), torch.cat(classes), labels).shares
    again = outside_of(full(mixed[:12], mixed[12:]), others, labels).shares
    assert 0.3 < area(elsewhere, again) < 0.7, "statistics of others tell nothing"
