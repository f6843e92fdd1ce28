"""Line-ups: who is in them, and what perfect, blind and tied answers score."""

import math

import pytest
import torch

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.types import Mixture, Truth
from fedre_privacy.eval import PublicImages, draw_galleries, evaluate, identify
from fedre_privacy.eval.matching import assign_images

SIZES = [1, 3, 40, 2, 17, 1, 8, 30]


def everything(truth, public):
    return torch.cat([truth.images, public.images]), torch.cat([truth.labels, public.labels])


def test_a_gallery_holds_one_image_of_the_support_and_no_other(make_truth, public):
    truth = make_truth(SIZES)
    galleries = draw_galleries(truth, public, size=20)
    for i, row in enumerate(galleries.index):
        support = set(truth.mixture.support(i).tolist())
        assert int(row[0]) in support
        assert not support & set(row[1:].tolist())
        assert len(set(row.tolist())) == 20


def test_distractors_are_of_the_same_class_while_they_last(make_truth, public):
    truth = make_truth(SIZES)
    _, labels = everything(truth, public)
    few = draw_galleries(truth, public, size=20)
    assert (labels[few.index] == labels[few.index[:, :1]]).all()
    assert few.same_class.tolist() == [19] * len(SIZES)

    many = draw_galleries(truth, public, size=100)
    for i, row in enumerate(many.index):
        label = labels[row[0]]
        outside = torch.ones(len(labels), dtype=torch.bool)
        outside[truth.mixture.support(i)] = False
        available = int((labels[outside] == label).sum())
        counts = torch.bincount(labels[row[1:]], minlength=4)
        assert counts[label] == min(available, 99) == many.same_class[i]
        rest = counts[torch.arange(4) != label]
        assert rest.sum() == 99 - counts[label] and rest.max() - rest.min() <= 1


def test_draws_depend_on_seed_and_target_alone(make_truth, public):
    truth = make_truth(SIZES)
    once, again = (draw_galleries(truth, public, size=30, seed=4) for _ in range(2))
    assert torch.equal(once.index, again.index)
    assert not torch.equal(once.index, draw_galleries(truth, public, size=30, seed=5).index)
    fewer = Truth(
        truth.images, truth.labels, truth.clients, truth.mixture.select(torch.arange(3)),
        truth.target_clients[:3], truth.target_labels[:3],
    )  # fmt: skip
    assert torch.equal(draw_galleries(fewer, public, size=30, seed=4).index, once.index[:3])


def test_exact_copies_are_always_found(make_truth, public):
    truth = make_truth(SIZES)
    galleries = draw_galleries(truth, public, size=50)
    found = identify(truth.images[galleries.index[:, 0]], galleries, truth, public)
    assert found.hit1.tolist() == found.hit5.tolist() == found.rr.tolist() == [1.0] * len(SIZES)
    alike = [1 + same for same in galleries.same_class.tolist()]
    assert found.guess1.tolist() == pytest.approx([1 / n for n in alike])
    assert found.guess5.tolist() == pytest.approx([min(5 / n, 1) for n in alike])
    harmonic = [sum(1 / r for r in range(1, n + 1)) / n for n in alike]
    assert found.guess_rr.tolist() == pytest.approx(harmonic)


def test_noise_is_found_at_chance():
    count, size = 1000, 20
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(count, 1, 4, 4, generator=rng)
    index = torch.arange(count)
    truth = Truth(
        images, torch.zeros(count, dtype=torch.int64), index % 7,
        Mixture(index, index, torch.ones(count), count), index % 7,
        torch.zeros(count, dtype=torch.int64),
    )  # fmt: skip
    public = PublicImages(torch.rand(300, 1, 4, 4, generator=rng), torch.zeros(300))
    galleries = draw_galleries(truth, public, size=size)
    found = identify(torch.rand(count, 1, 4, 4, generator=rng), galleries, truth, public)
    for hits, chance in ((found.hit1, 1 / size), (found.hit5, 5 / size)):
        spread = math.sqrt(chance * (1 - chance) / count)
        assert abs(hits.mean().item() - chance) < 4 * spread
    assert found.rr.mean().item() == pytest.approx(found.guess_rr[0].item(), abs=0.03)


def test_equal_distances_count_as_a_random_order(public, make_truth):
    truth = make_truth([1] * 4)
    flat = Truth(
        torch.zeros_like(truth.images), truth.labels, truth.clients, truth.mixture,
        truth.target_clients, truth.target_labels,
    )  # fmt: skip
    same = PublicImages(torch.zeros_like(public.images), public.labels)
    galleries = draw_galleries(flat, same, size=10)
    found = identify(torch.rand(4, 1, 12, 12), galleries, flat, same)
    assert found.hit1.tolist() == pytest.approx([0.1] * 4)
    assert found.hit5.tolist() == pytest.approx([0.5] * 4)
    assert found.rr.tolist() == pytest.approx(found.guess_rr.tolist())


def test_diverged_answers_stand_last(make_truth, public):
    truth = make_truth(SIZES)
    galleries = draw_galleries(truth, public, size=10)
    answers = truth.images[galleries.index[:, 0]].clone()
    answers[2] = float("nan")
    found = identify(answers, galleries, truth, public)
    assert found.hit1.tolist() == [0.0 if i == 2 else 1.0 for i in range(len(SIZES))]
    assert found.hit5[2] == 0 and found.rr[2] == pytest.approx(1 / 10)


def test_a_short_pool_gives_smaller_galleries(make_truth):
    truth = make_truth([2, 3], clients=2)
    public = PublicImages(torch.rand(1, 1, 12, 12), torch.zeros(1, dtype=torch.int64))
    galleries = draw_galleries(truth, public, size=100)
    assert galleries.sizes.tolist() == [1 + 3 + 1, 1 + 2 + 1]
    found = identify(torch.rand(2, 1, 12, 12), galleries, truth, public)
    assert found.guess1.tolist() == pytest.approx(
        [1 / (1 + same) for same in galleries.same_class.tolist()]
    )
    assert found.hit5[1] == 1.0


def test_one_image_is_no_gallery(make_truth, public):
    with pytest.raises(ConfigError, match="at least 2"):
        draw_galleries(make_truth([1, 1]), public, size=1)


def batches(count, each, classes, seed=0):
    """Uploads of `each` images of noise, each asked for as many answers."""
    rng = torch.Generator().manual_seed(seed)
    total = count * each
    images = torch.rand(total, 1, 4, 4, generator=rng)
    labels = torch.randint(classes, (total,), generator=rng)
    row = torch.arange(total).repeat_interleave(each)
    sample = torch.arange(total).reshape(count, each).repeat_interleave(each, dim=0).flatten()
    owners = torch.arange(count).repeat_interleave(each)
    mixture = Mixture(row, sample, torch.full((len(row),), 1 / each), total)
    truth = Truth(images, labels, owners, mixture, owners, torch.full((total,), -1))
    public = PublicImages(
        torch.rand(2000, 1, 4, 4, generator=rng), torch.randint(classes, (2000,), generator=rng)
    )
    return truth, public, torch.rand(total, 1, 4, 4, generator=rng)


def test_a_batch_is_found_in_whatever_order_it_was_answered():
    truth, public, _ = batches(12, 4, classes=3)
    backwards = truth.images.reshape(12, 4, 1, 4, 4).flip(1).reshape(48, 1, 4, 4)
    own = assign_images(backwards, truth)
    galleries = draw_galleries(truth, public, size=100, assigned=own)
    found = identify(backwards, galleries, truth, public)
    assert found.hit1.tolist() == [1.0] * 48 and torch.equal(galleries.index[:, 0], own)
    assert found.guess1.tolist() == pytest.approx([4 / 100] * 48)
    drawn = identify(backwards, draw_galleries(truth, public, size=100), truth, public)
    assert drawn.hit1.mean() < 0.5  # what was drawn before it was answered is another of the batch


@pytest.mark.parametrize(("each", "classes"), [(2, 1), (8, 1), (8, 4), (16, 4)])
def test_noise_finds_no_more_of_a_batch_than_a_guess_may(each, classes):
    truth, public, noise = batches(1600 // each, each, classes)
    galleries = draw_galleries(truth, public, size=50, assigned=assign_images(noise, truth))
    found = identify(noise, galleries, truth, public)
    guess = found.guess1.mean().item()
    assert guess == pytest.approx(each / 50)
    assert found.hit1.mean().item() < guess + 4 * math.sqrt(guess * (1 - guess) / 1600)
    assert found.rr.mean() < found.guess_rr.mean() + 0.03


def test_of_more_images_than_half_a_gallery_nothing_is_asked():
    truth, public, _ = batches(2, 30, classes=1)
    own = assign_images(truth.images, truth)
    galleries = draw_galleries(truth, public, size=50, assigned=own)
    found = identify(truth.images, galleries, truth, public)
    assert found.hit1.isnan().all() and found.guess1.isnan().all()
    larger = draw_galleries(truth, public, size=60, assigned=own)
    assert larger.chosen_from.tolist() == [30] * 60
    assert identify(truth.images, larger, truth, public).hit1.tolist() == [1.0] * 60


def test_a_line_up_that_is_too_small_names_the_one_that_would_do(make_rec, usual):
    truth, public, _ = batches(6, 30, classes=2)
    answers, psnr = make_rec(truth.images), {"psnr": usual["psnr"]}
    small = evaluate(answers, truth, public, metrics=psnr, rule="assigned", gallery=50)
    assert small.get("hit1").value is None and small.get("hit1").n == 0
    assert small.get("hit1").over_text() == "not asked: 30 images need --set eval.gallery=60"
    assert "found" not in str(small.verdict)
    whole = evaluate(answers, truth, public, metrics=psnr, rule="assigned", gallery=60)
    assert whole.get("hit1").value == pytest.approx(1)
