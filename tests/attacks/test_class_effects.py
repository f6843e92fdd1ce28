"""Classes told with targets: what linear maps make of them, and when they are not believed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.inversion.class_effects import ClassEffects, ClassSums
from fedre_privacy.attacks.inversion.linear_map import errors_by_penalty, fit_ridge
from fedre_privacy.attacks.inversion.ridge_fit import RidgeFit, fit_views
from fedre_privacy.attacks.inversion.training_pairs import FOLDS, AuxPairs
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.core.artifacts import Representations
from fedre_privacy.data.base import datasets


def psnr_db(images, truth):
    mse = (images - truth).square().flatten(1).mean(1)
    return float((-10 * mse.clamp(min=1e-12).log10()).mean())


def one_hot(labels):
    return torch.nn.functional.one_hot(labels, 10).float()


@pytest.fixture(scope="module")
def digits():
    data = datasets.get("digits")(size=16, per_class=40).load()
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    return data.images[order].float() / 255, data.labels[order]


@pytest.fixture
def told(digits, observe, rotation):
    """Ten digits with their labels, of two clients, and noise of five times their spread."""
    images, labels = digits
    nets = {(0, 1): rotation(0), (2, 1): rotation(1)}
    draw = torch.Generator().manual_seed(1)

    def make(noise=0.0, labels=labels):
        sent = []
        for number, net in enumerate(nets.values()):
            reps = net(images[5 * number : 5 * number + 5])
            reps = reps + noise * reps.std() * torch.randn(reps.shape, generator=draw)
            sent.append(Representations(reps, labels[5 * number : 5 * number + 5]))
        seen = observe([a.reps for a in sent], nets, threat="strong", artifacts=sent)
        return replace(seen, aux=images[10:], aux_labels=digits[1][10:])

    return make


def class_means(seen, labels):
    return torch.stack([seen.aux[seen.aux_labels == label].mean(0) for label in labels])


# --- the attack ----------------------------------------------------------------------------------


class Half(torch.nn.Module):
    """An extractor that leaves a little of the image, and noise that no image explains."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        seen = self.inner(images)[:, :40]
        return (37 * seen).sin() + 0.05 * seen


def test_where_representations_tell_little_the_class_mean_is_not_lost(told, digits):
    truth, labels = digits[0][:10], digits[1][:10]
    seen = told()
    nets = {owner: Half(net) for owner, net in seen.extractors.items()}
    sent = [
        replace(u, artifacts=(Representations(net(part), u.artifacts[0].labels),))
        for u, net, part in zip(seen.targets, nets.values(), truth.split(5), strict=True)
    ]
    seen = replace(seen, extractors=nets, targets=tuple(sent), uploads=tuple(sent))
    by_class = psnr_db(class_means(seen, labels), truth)
    assert by_class > psnr_db(seen.aux.mean(0).expand_as(truth), truth) + 2
    assert psnr_db(LinearDecoder(victims=0)(seen).images, truth) > by_class - 0.4
    untold = replace(seen, aux_labels=None)
    assert psnr_db(LinearDecoder(victims=0)(untold).images, truth) < by_class - 1


def test_noise_for_an_upload_tells_no_more_than_its_class(told, digits):
    truth, labels, draw = digits[0][:10], digits[1][:10], torch.Generator().manual_seed(5)
    seen = told()
    sent = [
        replace(
            u,
            artifacts=(
                Representations(a.reps[torch.randperm(5, generator=draw)].roll(1, 1), a.labels),
            ),
        )
        for u in seen.targets
        for a in u.artifacts
    ]
    seen = replace(seen, targets=tuple(sent), uploads=tuple(sent))
    found = LinearDecoder(victims=0)(seen).images
    assert psnr_db(found, truth) < psnr_db(class_means(seen, labels), truth) + 0.3


def test_a_large_penalty_answers_the_mean_of_the_class(told, digits):
    seen = told()
    found = LinearDecoder(penalty=1e9, victims=0)(seen)
    nearest = torch.cdist(found.images.flatten(1), class_means(seen, range(10)).flatten(1)).argmin(
        1
    )
    assert nearest.tolist() == digits[1][:10].tolist()
    assert psnr_db(found.images, class_means(seen, digits[1][:10])) > 25


def test_classes_that_uploads_are_not_like_are_not_used_and_that_is_said(told, digits):
    false = told(labels=(digits[1] + 3) % 10)
    said = []
    found = LinearDecoder(victims=0)(false, Context(report=said.append))
    notes = sorted(event.data["text"] for event in said if event.name == "note")
    assert len(notes) == 2 and "client 0 are not like the classes told with them" in notes[0]
    untold = LinearDecoder(victims=0)(replace(false, aux_labels=None))
    assert torch.allclose(found.images, untold.images, atol=1e-5)
    said.clear()
    LinearDecoder(victims=0)(told(), Context(report=said.append))
    assert not [event for event in said if event.name == "note"]


def test_classes_are_believed_where_noise_hides_them(told):
    said = []
    LinearDecoder(victims=0)(told(noise=5.0), Context(report=said.append))
    assert not [event for event in said if event.name == "note"]


# --- fits ----------------------------------------------------------------------------------------


def drawn(count=240, dim=6, pixels=9, apart=1.0):
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 10
    images = apart * torch.randn(10, pixels, generator=draw)[labels]
    images = images + torch.randn(count, pixels, generator=draw)
    reps = images @ torch.randn(pixels, dim, generator=draw)
    reps = reps + torch.randn(10, dim, generator=draw)[labels]
    return reps, one_hot(labels), images.reshape(count, 1, 3, 3)


def test_sums_give_the_regression_on_what_is_beyond_class_means():
    reps, codes, images = drawn()
    fit = fit_views([reps], images, None, codes)
    assert fit.chosen[1]
    effects, flat = ClassEffects.of(fit.by_class), images.flatten(1).double()
    r, x = reps.double() - codes.double() @ effects.reps, flat - codes.double() @ effects.images
    ridge = fit.chosen[0] * (r.T @ r).diagonal().mean() * torch.eye(6)
    weight = torch.linalg.solve(r.T @ r + ridge, r.T @ x)
    wanted = codes.double() @ effects.images + r @ weight
    made = fit.whole(torch.cat([reps, codes], 1))
    assert torch.allclose(made, wanted.float(), atol=1e-4)
    change = torch.randn(3, 6, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(fit.whole.change(change), change @ weight.float(), atol=1e-4)


def test_a_map_without_a_fold_has_not_seen_it_and_answers_alike_in_both_ways():
    reps, codes, images = drawn()
    fit = fit_views([reps], images, None, codes)
    where = torch.arange(len(reps)) % FOLDS == 2
    rows = torch.cat([reps, codes], 1)
    way = fit.map_without(2)
    assert torch.allclose(fit.answers_without(2, rows[where]), way(rows[where]), atol=1e-4)
    changed = images.clone()
    changed[where] = 0
    again = replace(fit_views([reps], changed, fit.chosen[0], codes), held=fit.held)
    assert torch.allclose(again.map_without(2)(rows[where]), way(rows[where]), atol=1e-4)


def test_held_out_errors_are_those_of_the_map():
    reps, codes, images = drawn()
    fit = fit_views([reps], images, 0.1, codes)
    effects = ClassEffects.of(fit.by_class[1:])
    kept = fit.everything.without(fit.parts[0])
    told = errors_by_penalty(effects.removed(kept), effects.removed(fit.held), (0.1,))
    way = effects.with_map(fit_ridge(effects.removed(kept), 0.1).weight)
    where = torch.arange(len(reps)) % FOLDS == 0
    made = way(torch.cat([reps, codes], 1)[where])
    assert float(told) == pytest.approx(
        float((made - images[where].flatten(1)).square().sum()), rel=1e-4
    )


def test_codes_are_left_unread_where_classes_tell_nothing():
    reps, codes, images = drawn()
    mixed = codes[torch.randperm(len(codes), generator=torch.Generator().manual_seed(1))]
    fit = fit_views([reps], images, None, mixed)
    plain = fit_views([reps], images, None)
    assert isinstance(fit, RidgeFit) and not fit.chosen[1]
    rows = torch.cat([reps, mixed], 1)
    assert torch.allclose(fit.whole(rows), plain.whole(reps), atol=1e-5)
    assert torch.allclose(fit.answers_without(1, rows), plain.answers_without(1, reps), atol=1e-5)


def test_classes_that_differ_little_count_little():
    counts = []
    for apart in (3.0, 0.3, 0.0):
        reps, codes, images = drawn(apart=apart)
        sums = ClassSums.of(reps, codes, images.flatten(1))
        counts.append(float(sums.pseudo_count))
    assert counts[0] == pytest.approx(1 / 9, rel=0.4)
    assert counts[1] == pytest.approx(1 / 0.09, rel=0.6) and counts[2] > 50
    effects = ClassEffects.of([sums])
    assert float((effects.images - images.flatten(1).mean(0)).abs().max()) < 0.2


def test_a_class_without_images_has_the_mean_of_all():
    reps, codes, images = drawn()
    few = codes[:, :9].sum(1) > 0
    effects = ClassEffects.of([ClassSums.of(reps[few], codes[few], images[few].flatten(1))])
    assert torch.allclose(effects.images[9].float(), images[few].flatten(1).mean(0), atol=1e-5)
    assert torch.allclose(effects.reps[9].float(), reps[few].mean(0), atol=1e-5)


@pytest.mark.parametrize("apart", [0.0, 3.0])
def test_few_pictures_of_many_pixels_are_fitted_by_their_coordinates(apart, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    codes = one_hot(torch.arange(20) % 10)
    images = torch.randn(20, 576, generator=draw)
    images += codes @ (apart * torch.randn(10, 576, generator=draw))
    images = images.reshape(20, 1, 24, 24)
    reps = [torch.randn(20, 6, generator=draw) for _ in range(3)]
    shares = torch.rand(40, 20, generator=draw).softmax(1)
    averages = AuxPairs(
        shares @ reps[0],
        shares @ codes,
        (shares @ images.flatten(1)).reshape(-1, 1, 24, 24),
        torch.arange(40) % FOLDS,
        torch.zeros(40, dtype=torch.bool),
    )

    def fitted():
        return fit_views(reps, images, None, codes).with_averages(averages, averages)

    short, rows = fitted(), averages.rows[averages.fold == 1]
    assert short.basis.directions.shape == (576, 60)
    monkeypatch.setattr("fedre_privacy.attacks.inversion.picture_basis.MOST", 0)
    plain = fitted()
    assert plain.basis.directions is None and short.chosen == plain.chosen
    assert short.chosen[1] == (apart > 0)
    assert torch.allclose(short.whole(rows), plain.whole(rows), atol=1e-5)
    assert torch.allclose(short.map_without(1)(rows), plain.map_without(1)(rows), atol=1e-5)
    answers = short.answers_without(1, rows)
    assert answers.dtype == torch.float32
    assert torch.allclose(answers, plain.answers_without(1, rows), atol=1e-5)
