"""The closed-form decoder, its statistics, and what is simulated for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.inversion.linear_map import (
    PENALTIES,
    Sums,
    errors_by_penalty,
    fit_ridge,
    predict_ridge,
    total,
)
from fedre_privacy.attacks.inversion.simulated_uploads import (
    MOST_AVERAGED,
    MOST_VIEWS,
    blend_weights,
    prototype_weights,
    views,
)
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.core.artifacts import Counts, EntangledRep, Prototypes
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Upload
from fedre_privacy.data.base import datasets


def psnr_db(images, truth):
    mse = (images - truth).square().flatten(1).mean(1)
    return float((-10 * mse.clamp(min=1e-12).log10()).mean())


@pytest.fixture(scope="module")
def many():
    """400 digits, shuffled: ten to be found, the rest auxiliary."""
    data = datasets.get("digits")(size=16, per_class=40).load()
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    return data.images[order].float() / 255, data.labels[order]


@pytest.fixture
def problem(many, observe, rotation):
    images, labels = many
    nets = {(0, 1): rotation(0), (2, 1): rotation(1)}
    reps = [net(images[5 * i : 5 * i + 5]) for i, net in enumerate(nets.values())]
    seen = observe(reps, nets, threat="strong")
    return replace(seen, aux=images[10:], aux_labels=labels[10:])


def mixed(problem, artifacts, **changes):
    targets = tuple(
        Upload(u.client, u.round, (a,)) for u, a in zip(problem.targets, artifacts, strict=True)
    )
    return replace(problem, targets=targets, **changes)


def test_an_invertible_linear_extractor_is_inverted_exactly(problem, many):
    assert len(problem.aux) >= problem.target_rows()[0].shape[1]
    found = LinearDecoder()(problem)
    assert psnr_db(found.images, many[0][:10]) > 40
    assert psnr_db(found.prior, many[0][:10]) < 20
    assert bool((found.fit < 1e-3 * found.trace[0]).all())


def test_a_large_penalty_answers_the_mean_image(problem):
    found = LinearDecoder(penalty=1e9, views=1)(problem)
    assert torch.allclose(found.images, problem.aux.mean(0).expand(10, -1, -1, -1), atol=1e-4)


def test_a_weaker_threat_model_is_refused(problem):
    with pytest.raises(IncompatibleError, match="needs AUX-DATA"):
        LinearDecoder()(
            replace(
                problem, threat=replace(problem.threat, grants=LinearDecoder.needs - {"aux-data"})
            )
        )


def test_too_few_auxiliary_images_are_refused(problem):
    with pytest.raises(IncompatibleError, match="at least 8 auxiliary images; 3 were given"):
        LinearDecoder()(replace(problem, aux=problem.aux[:3], aux_labels=None))


def test_rows_of_other_clients_change_nothing(problem):
    both = LinearDecoder(views=2)(problem)
    for part in (slice(0, 1), slice(1, 2)):
        alone = LinearDecoder(views=2)(replace(problem, targets=problem.targets[part]))
        assert torch.equal(alone.images, both.images[part.start * 5 : part.start * 5 + 5])


def test_prototypes_are_answered_by_the_mean_image(problem, many):
    images = problem.aux[problem.aux_labels == 3]
    reps = [net(images).mean(0, keepdim=True) for net in problem.extractors.values()]
    found = LinearDecoder()(mixed(problem, [Prototypes(r, torch.tensor([3])) for r in reps]))
    assert psnr_db(found.images, images.mean(0).expand_as(found.images)) > 30


def test_mixtures_are_learnt_from_mixtures(problem):
    # A nonlinear, noisy extractor: the map for single images does not fit averages.
    encoding = torch.zeros(10)
    encoding[[1, 4, 7]] = torch.tensor([0.5, 0.3, 0.2])

    class Bent(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, images):
            return torch.relu(self.inner(images))[:, :64]

    nets = {owner: Bent(net) for owner, net in problem.extractors.items()}
    means = [problem.aux[problem.aux_labels == c][:20] for c in (1, 4, 7)]
    wanted = sum(w * m.mean(0) for w, m in zip((0.5, 0.3, 0.2), means, strict=True))
    made = [
        EntangledRep(
            sum(w * net(m).mean(0) for w, m in zip((0.5, 0.3, 0.2), means, strict=True)), encoding
        )
        for net in nets.values()
    ]
    seen = mixed(problem, made, extractors=nets)
    matched, plain = (LinearDecoder(match_targets=m)(seen) for m in (True, False))
    truth = wanted.expand_as(matched.images)
    assert psnr_db(matched.images, truth) > psnr_db(plain.images, truth) + 1
    assert psnr_db(matched.images, truth) > 25


def test_uploaded_counts_are_used(problem):
    images = problem.aux[problem.aux_labels == 3][:1]
    made = [Prototypes(n(images), torch.tensor([3])) for n in problem.extractors.values()]
    seen = mixed(problem, made)
    ones = tuple(
        Upload(u.client, u.round, (*u.artifacts, Counts(torch.tensor([1])))) for u in seen.targets
    )
    told, untold = LinearDecoder()(replace(seen, uploads=ones)), LinearDecoder()(seen)
    assert not torch.equal(told.images, untold.images)


def test_a_seed_decides_simulations(problem):
    made = [Prototypes(u.artifacts[0].reps[:1], torch.tensor([3])) for u in problem.targets]
    seen = mixed(problem, made)
    first = LinearDecoder(views=1)(seen, Context(seed=1))
    assert torch.equal(LinearDecoder(views=1)(seen, Context(seed=1)).images, first.images)
    assert not torch.equal(LinearDecoder(views=1)(seen, Context(seed=2)).images, first.images)


# --- sums ----------------------------------------------------------------------------------------


def test_sums_give_the_ridge_solution_and_the_held_out_error():
    draw = torch.Generator().manual_seed(0)
    reps = torch.randn(60, 5, generator=draw).double() + 3
    images = reps @ torch.randn(5, 7, generator=draw).double()
    images += torch.randn(60, 7, generator=draw) + 1
    kept, held = Sums.of(reps[:40], images[:40]), Sums.of(reps[40:], images[40:])
    centred, wanted = reps[:40] - reps[:40].mean(0), images[:40] - images[:40].mean(0)
    scatter = centred.T @ centred
    errors = []
    for penalty in PENALTIES:
        ridge = penalty * scatter.diagonal().mean() * torch.eye(5)
        weight = torch.linalg.solve(scatter + ridge, centred.T @ wanted)
        made = fit_ridge(
            total([Sums.of(reps[:9], images[:9]), Sums.of(reps[9:40], images[9:40])]), penalty
        )
        assert torch.allclose(made.weight, weight.float(), atol=1e-5)
        errors.append((made(reps[40:].float()) - images[40:]).square().sum())
    assert torch.allclose(
        errors_by_penalty(kept, held).float(), torch.stack(errors).float(), rtol=1e-3
    )
    assert 0 < int(torch.stack(errors).argmin()) < len(PENALTIES) - 1


def test_answers_without_the_map_are_those_of_the_map_fitted_without_a_part():
    draw = torch.Generator().manual_seed(0)
    reps, images = torch.randn(90, 7, generator=draw), torch.rand(90, 12, generator=draw)
    first, second = Sums.of(reps[:30], images[:30]), Sums.of(reps[30:], images[30:])
    way = fit_ridge(second, 0.1)
    assert torch.allclose(predict_ridge(second, 0.1, reps[:30]), way(reps[:30]), atol=1e-6)
    rest = total([first, second]).without(first)
    assert rest.count == 60
    assert torch.allclose(predict_ridge(rest, 0.1, reps[:30]), way(reps[:30]), atol=1e-6)
    broken = Sums.of(reps / torch.tensor([0.0] + 6 * [1.0]), images)
    assert bool(fit_ridge(broken, 0.1).weight.isnan().all())
    assert bool(predict_ridge(broken, 0.1, reps).isnan().all())


def test_a_representation_without_spread_answers_the_mean():
    images = torch.rand(9, 4)
    made = fit_ridge(Sums.of(torch.ones(9, 3), images), 0.1)
    assert torch.allclose(made(torch.ones(2, 3)), images.mean(0), atol=1e-5)


# --- simulated -----------------------------------------------------------------------------------


def test_views_are_distinct_and_begin_with_the_image():
    image = torch.rand(2, 3, 16, 20)
    made = list(views(image, MOST_VIEWS))
    assert torch.equal(made[0], image) and torch.equal(made[1], image.flip(3))
    assert all(v.shape == image.shape for v in made)
    assert torch.equal(made[2][..., :-1, :], image[..., 1:, :])
    assert len({tuple(v.flatten().tolist()) for v in made}) == MOST_VIEWS


def test_simulated_means_take_members_of_one_class():
    labels = torch.arange(60) % 3
    members = torch.arange(60) < 45
    draw = torch.Generator().manual_seed(0)
    weights = prototype_weights(labels, members, 200, None, draw)
    assert torch.allclose(weights.sum(1), torch.ones(200))
    assert not weights[:, 45:].any()
    by_class = torch.stack([weights[:, labels == c].sum(1) for c in range(3)], 1)
    assert torch.allclose(by_class.amax(1), torch.ones(200))
    assert int((weights > 0).sum(1).min()) == 1 and 1 / weights.max(1).values.min() > 3
    one = prototype_weights(labels, members, 50, torch.tensor([1]), draw)
    assert bool(((one > 0).sum(1) == 1).all())
    huge = prototype_weights(labels, members, 5, torch.tensor([10**6]), draw)
    assert float(huge[huge > 0].min()) >= 1 / MOST_AVERAGED - 1e-6


def test_simulated_mixtures_have_the_uploaded_encoding():
    labels = torch.arange(60) % 3
    encoding = torch.tensor([0.25, 0.0, 0.75, 0.0])
    draw = torch.Generator().manual_seed(0)
    weights = blend_weights(encoding, labels, torch.ones(60, dtype=torch.bool), 40, draw)
    for label in range(3):
        share = weights[:, labels == label].sum(1)
        assert torch.allclose(share, encoding[label].expand(40), atol=1e-6)
    absent = blend_weights(torch.tensor([0, 0, 0, 1.0]), labels, labels == 1, 10, draw)
    assert torch.allclose(absent[:, labels == 1].sum(1), torch.ones(10))
