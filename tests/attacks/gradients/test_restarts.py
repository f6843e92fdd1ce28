"""Several starts: paired image by image, averaged or the best kept, and how far they are apart."""

import pytest
import torch

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.gradients.restarts import best_start_order, choose
from fedre_privacy.attacks.gradients.search import SearchResult
from fedre_privacy.core.artifacts import GradientState


def test_images_of_one_label_are_paired_with_those_of_the_best_start():
    draws = torch.Generator().manual_seed(0)
    best = torch.rand((2, 4, 1, 5, 5), generator=draws)
    labels = torch.tensor([[0, 1, 1, 1], [2, 2, 3, 3]])
    order = torch.tensor([[0, 3, 1, 2], [1, 0, 3, 2]])
    moved = best[torch.arange(2)[:, None], order] + 0.01
    images = torch.stack([moved, best], 1).flatten(0, 1)
    kinds = torch.stack([labels, labels], 1).flatten(0, 1)
    found = best_start_order(images, kinds, torch.tensor([2.0, 1.0, 5.0, 0.5]), 2)
    assert torch.equal(found[:, 1], best)
    torch.testing.assert_close(found[:, 0], best + 0.01)


def test_images_of_two_labels_are_never_paired():
    one, two = torch.zeros(1, 2, 1, 3, 3), torch.zeros(1, 2, 1, 3, 3)
    one[0, 1] = two[0, 0] = 1  # the nearest has the other label
    labels = torch.tensor([[0, 1], [0, 1]])
    found = best_start_order(torch.cat([one, two]), labels, torch.tensor([1.0, 2.0]), 2)
    assert torch.equal(found[0], torch.cat([one, two]))


def test_a_start_that_ended_without_a_number_is_left_out():
    images = torch.rand(3, 1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    images[1] = torch.nan
    fit = torch.tensor([2.0, torch.nan, 1.0])
    found = best_start_order(images, torch.zeros(3, 1, dtype=torch.int64), fit, 3)
    assert found[0, 1].isnan().all() and torch.equal(found[0, 0], images[0])


@pytest.mark.parametrize("size", [1, 3])
def test_the_mean_of_starts_is_nearer_than_one_and_tells_their_spread(
    size, smooth, small, small_labels, gradient_of, watch
):
    model = smooth()
    pairs = list(zip(small[:6].split(size), small_labels[:6].split(size), strict=True))
    sent = [GradientState(gradient_of(model, x, y)) for x, y in pairs]
    observation = watch(sent, model, size=size)

    def answer(**how):
        return attacks.get("inverting-gradients")(steps=40, bn="eval", **how)(observation)

    single, mean, best = answer(), answer(restarts=4), answer(restarts=4, combine="best")
    assert len(single.spread) == 0 and torch.equal(mean.spread, best.spread)
    assert mean.spread.shape == (6,) and (mean.spread > 0).all()
    assert (mean.fit - best.fit).abs().max() > 0  # the objective is that of the answer
    one, averaged, kept = (
        float((found.images - small[:6]).square().mean()) for found in (single, mean, best)
    )
    assert averaged < 0.8 * one and averaged < 1.1 * kept


def test_a_start_that_got_nowhere_is_not_averaged():
    """Three starts of one victim: two ended near each other, one with an objective far above."""
    images = torch.stack([torch.full((1, 1, 4, 4), value) for value in (0.4, 0.6, 0.0)])
    found = SearchResult(
        images=images,
        labels=torch.ones(3, 1, 1),
        fit=torch.tensor([1.0, 1.9, 2.1]),
        trace=torch.zeros(1, 3),
        trace_steps=torch.zeros(1),
        redrawn=torch.zeros(3, dtype=torch.int64),
    )
    answer = choose(found, images, 3, lambda mean: mean.flatten(1).sum(1))
    torch.testing.assert_close(answer.images, torch.full((1, 1, 1, 4, 4), 0.5))
    assert float(answer.fit) == 8  # what is weighed is the mean
    kept = choose(found, images, 3)
    torch.testing.assert_close(kept.images, torch.full((1, 1, 1, 4, 4), 0.4))
    assert float(kept.fit) == 1 and torch.equal(kept.spread, answer.spread)
