"""The optimisers and the match they minimise."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from fedre_privacy.attacks.gradients.matching import ExtraVariables, UpdateMatch, gradient
from fedre_privacy.attacks.gradients.objectives import DISTANCES, cosine, l2rel, layer_weights
from fedre_privacy.attacks.gradients.search import Descent, align, lbfgs, relative_tv, signed_adam
from fedre_privacy.attacks.gradients.victims import Victim
from fedre_privacy.attacks.update_inversion import LocalSteps
from fedre_privacy.models.families import ModelSettings, build_model

CPU = torch.device("cpu")


def hot(labels):
    return torch.nn.functional.one_hot(labels, 10).float()


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_rows_together_equal_rows_alone(smooth, small, gradient_of, norm, shared):
    people, labels = [], torch.tensor([[1, 2], [3, 4], [5, 6]])
    for k in range(3):
        model = smooth(0 if shared else k, norm=norm)
        sent = gradient_of(model, small[2 * k : 2 * k + 2], labels[k])
        people.append(Victim(k, 1, model, sent, False))
    images = torch.rand(3, 2, 1, 8, 8, dtype=torch.float64)
    how = {"bn": "eval", "bn_weight": 0.1 if norm else 0.0, "device": CPU, "dtype": torch.float64}
    together = UpdateMatch(people, gradient, cosine, **how)
    free = images.clone().requires_grad_()
    value = together(free, hot(labels).double())
    (slope,) = torch.autograd.grad(value.sum(), free)
    for k in range(3):
        alone = images[k : k + 1].clone().requires_grad_()
        one = UpdateMatch(people[k : k + 1], gradient, cosine, **how)(
            alone, hot(labels[k : k + 1]).double()
        )
        torch.testing.assert_close(one[0], value[k], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(
            torch.autograd.grad(one.sum(), alone)[0][0], slope[k], rtol=1e-8, atol=1e-11
        )


@pytest.mark.parametrize("distance", DISTANCES.values())
def test_the_right_images_match(smooth, small, gradient_of, distance):
    model, labels = smooth(), torch.tensor([0, 1])
    sent = gradient_of(model, small[:2], labels)
    match = UpdateMatch(
        [Victim(0, 1, model, sent, False)], gradient, distance, bn="eval", device=CPU
    )
    right = match(small[:2][None], hot(labels)[None])
    wrong = match(small[2:4][None], hot(labels)[None])
    assert float(right) < 1e-5 < 0.01 < float(wrong)


def test_batch_statistics_are_a_setting(smooth, small):
    model, labels = smooth(norm=True), torch.tensor([0, 1])
    twin = smooth(norm=True).train()
    loss = torch.nn.functional.cross_entropy(twin.requires_grad_()(small[:2]), labels)
    names = [name for name, _ in twin.named_parameters()]
    sent = dict(zip(names, torch.autograd.grad(loss, list(twin.parameters())), strict=True))
    value = {
        bn: float(
            UpdateMatch([Victim(0, 1, model, sent, False)], gradient, cosine, bn=bn, device=CPU)(
                small[:2][None], hot(labels)[None]
            )
        )
        for bn in ("eval", "batch")
    }
    assert value["batch"] < 1e-5 < 1e-3 < value["eval"]


class Recomputed(nn.Module):
    """A model that torch.func refuses: it computes its hidden layer again in backward passes."""

    def __init__(self, seed: int, plain: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.hidden, self.head = nn.Linear(64, 12), nn.Linear(12, 10)
        self.plain = plain

    def forward(self, images):
        if self.plain:
            return self.head(self.first(images))
        if images.detach().mean().item() > 2:  # a branch on values, too
            return self.head(images)
        return self.head(checkpoint(self.first, images, use_reentrant=False))

    def first(self, images):
        return torch.sigmoid(self.hidden(images.flatten(1)))


@pytest.mark.parametrize("simulate", [gradient, LocalSteps(0.3, 2, 1)])
@pytest.mark.parametrize("on_path", [False, True])
def test_rows_that_go_one_by_one_come_to_what_they_come_to_together(
    small, gradient_of, simulate, on_path
):
    """Of two models, so that what is computed again must be of the right one."""
    labels, found = torch.tensor([0, 1]), []
    for plain in (True, False):
        models = [Recomputed(seed, plain) for seed in (0, 1)]
        sent = [gradient_of(Recomputed(seed, True), small[:2], labels) for seed in (0, 1)]
        victims = [Victim(k, 1, models[k], sent[k], True) for k in (0, 1)]
        match = UpdateMatch(victims, simulate, l2rel, bn="eval", on_path=on_path, device=CPU)
        images = small[4:8].unflatten(0, (2, 2)).clone().requires_grad_()
        value = match(images, hot(labels)[None].expand(2, -1, -1))
        assert match.one_by_one == (not plain)
        (slope,) = torch.autograd.grad(value.sum(), images)
        found.append((value, slope))
        with torch.no_grad():
            torch.testing.assert_close(match(images, hot(labels)[None].expand(2, -1, -1)), value)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_masking_ignores_what_was_not_sent(smooth, small, gradient_of):
    model, labels = smooth(), torch.tensor([0])
    sent = gradient_of(model, small[:1], labels)
    pruned = {
        name: value * (value.abs() >= value.abs().flatten().median())
        for name, value in sent.items()
    }
    value = [
        float(
            UpdateMatch(
                [Victim(0, 1, model, pruned, False)], gradient, l2rel, bn="eval", masked=masked,
                device=CPU,
            )(small[:1][None], hot(labels)[None])
        )
        for masked in (False, True)
    ]  # fmt: skip
    assert value[1] < 1e-8 < value[0]


def test_the_largest_layers_are_kept():
    wanted = [torch.ones(4), 5 * torch.ones(2), 0.1 * torch.ones(9)]
    assert layer_weights(wanted, 2).tolist() == [1, 1, 0]
    assert layer_weights(wanted, None).tolist() == [1, 1, 1]


@pytest.mark.parametrize("save_memory", [False, True])
@pytest.mark.parametrize("epochs", [1, 4])
def test_the_unroll_is_what_a_client_does(smooth, small, trained, epochs, save_memory):
    model, labels = smooth(), torch.tensor([0, 1, 2])
    after = trained(model, small[:3], labels, 0.3, epochs)
    change = {name: p.detach() - after[name] for name, p in model.named_parameters()}
    steps = LocalSteps(0.3, epochs, 1, save_memory)
    victim = Victim(0, 1, model, change, True)
    match = UpdateMatch([victim], steps, l2rel, bn="eval", device=CPU)
    images = small[:3][None].clone().requires_grad_()
    assert float(match(images, hot(labels)[None]).detach()) < 1e-7
    off = small[5:8][None].clone().requires_grad_()
    (slope,) = torch.autograd.grad(match(off, hot(labels)[None]).sum(), off)
    plain = UpdateMatch([victim], LocalSteps(0.3, epochs, 1), l2rel, bn="eval", device=CPU)
    (other,) = torch.autograd.grad(plain(off, hot(labels)[None]).sum(), off)
    torch.testing.assert_close(slope, other, rtol=1e-4, atol=1e-7)
    assert float(slope.abs().sum()) > 0


def test_a_match_on_the_path_is_taken_at_the_place_that_is_set(smooth, small, trained):
    """At 0 it is that at the start, at 1 that at the end, for rows side by side and alone."""
    model, labels = smooth(), torch.tensor([0, 1, 2])
    after = trained(model, small[:3], labels, 0.3, 4)
    change = {name: p.detach() - after[name] for name, p in model.named_parameters()}
    ended = smooth()
    ended.load_state_dict(after)
    people = [Victim(k, 1, model, change, True) for k in range(2)]
    how = {"bn": "eval", "device": CPU}
    images, hots = small[:3][None].repeat(2, 1, 1, 1, 1), hot(labels)[None].repeat(2, 1, 1)
    ends = [
        UpdateMatch([Victim(0, 1, one, change, True)], gradient, cosine, **how)
        for one in (model, ended)
    ]
    at_ends = torch.cat([end(images[:1], hots[:1]) for end in ends])
    match = UpdateMatch(people, gradient, cosine, on_path=True, **how)
    with torch.no_grad():
        match.place.copy_(torch.tensor([0.0, 1.0]))
    found = match(images, hots)
    torch.testing.assert_close(found, at_ends, rtol=1e-4, atol=1e-6)
    (slope,) = torch.autograd.grad(found.sum(), match.place)
    assert bool((slope != 0).all())
    alone = UpdateMatch(people[:1], gradient, cosine, on_path=True, **how)
    half = smooth()
    half.load_state_dict({k: (v + after[k]) / 2 for k, v in model.named_parameters()})
    middle = UpdateMatch([Victim(0, 1, half, change, True)], gradient, cosine, **how)
    torch.testing.assert_close(
        alone(images[:1], hots[:1]).detach(), middle(images[:1], hots[:1]), rtol=1e-4, atol=1e-6
    )


def test_a_place_moves_beside_the_images_and_stays_in_its_box():
    place = torch.full((2,), 0.5).requires_grad_()
    aim = torch.tensor([0.2, 3.0])

    def match(images, labels):
        return (place - aim).square() + 0 * images.flatten(1).sum(1)

    start = torch.full((2, 1, 1, 4, 4), 0.5)
    beside = [ExtraVariables(place, torch.full((2,), 0.5), 0.1, 0.0, 1.0)]
    labels = torch.zeros(2, 1, 10)
    signed_adam(match, start, start, labels, steps=200, lr=0.1, tv=0.0, beside=beside)
    torch.testing.assert_close(place.detach(), torch.tensor([0.2, 1.0]), atol=0.02, rtol=0)


def test_a_vision_transformer_has_second_derivatives():
    torch.manual_seed(0)
    attention = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

    class Tokens(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cut = torch.nn.Conv2d(1, 16, 4, stride=4)
            self.attention = attention
            self.head = torch.nn.Linear(16, 10)

        def forward(self, images):
            tokens = self.cut(images).flatten(2).transpose(1, 2)
            return self.head(self.attention(tokens).mean(1))

    model = Tokens().eval().requires_grad_(False)
    zeros = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    match = UpdateMatch(
        [Victim(0, 1, model, zeros, False)], gradient, cosine, bn="eval", device=CPU
    )
    images = torch.rand(1, 1, 1, 8, 8).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        (slope,) = torch.autograd.grad(match(images, hot(torch.tensor([[1]]))).sum(), images)
    assert float(slope.abs().sum()) > 0


def test_signed_adam_keeps_its_best_and_stays_in_the_box():
    wanted = torch.tensor([0.3, 0.8]).reshape(2, 1, 1, 1, 1).expand(2, 1, 1, 4, 4)

    def match(images, labels):
        return (images - wanted).square().flatten(1).sum(1)

    start = torch.rand(2, 1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    found = signed_adam(match, start, start, torch.zeros(2, 1, 10), steps=200, lr=0.1, tv=0.0)
    assert torch.allclose(found.images, wanted, atol=1e-2)
    assert torch.equal(found.fit, match(found.images, None))
    assert bool((found.fit <= found.trace.min(0).values).all())
    assert found.images.min() >= 0 and found.images.max() <= 1


def test_without_a_weight_smoothness_weighs_in_proportion_to_the_mismatch():
    """A step of each row is that with a fixed weight of so many times its own match."""
    draw = torch.Generator().manual_seed(0)
    wanted, start = torch.rand(2, 2, 1, 1, 6, 6, generator=draw)
    scale, labels = torch.tensor([0.01, 1.0]), torch.zeros(2, 1, 10)

    def match(images, labels):
        return scale * (images - wanted).square().flatten(1).mean(1)

    def moved(tv, relative=None):
        search = Descent(match, start, start, labels, tv=tv)
        search.turn_to(0, 0.1, relative)
        search.step()
        return search.images.detach()

    for share in (0.4, 0.7, 1.0):
        own, weights = moved(None, relative_tv(share)), relative_tv(share) * match(start, labels)
        for row, weight in enumerate(weights.tolist()):
            assert torch.equal(own[row], moved(weight)[row])
        assert not torch.equal(own[0], moved(float(weights[1]))[0])


def test_the_weight_without_a_number_falls_as_the_search_goes_on():
    def match(images, labels):
        return (images - 0.5).square().flatten(1).sum(1) + 1.0

    start = torch.rand(1, 1, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    found = signed_adam(match, start, start, torch.zeros(1, 1, 10), steps=4, lr=0.0, tv=None)
    weights = (found.trace[:, 0] / match(start, None)).log()
    wanted = torch.tensor([relative_tv(step / 4) for step in range(5)])
    torch.testing.assert_close(weights / weights[0], wanted / wanted[0])
    assert wanted[0] > 5 * wanted[-1]


def test_a_row_that_turns_nan_goes_on_from_its_spare():
    def match(images, labels):
        value = (images - 0.5).square().flatten(1).sum(1)
        return torch.where(images.flatten(1)[:, 0] > 0.99, torch.nan, value)

    start = torch.tensor([1.0, 0.2]).reshape(2, 1, 1, 1, 1).expand(2, 1, 1, 4, 4).clone()
    spare = torch.full_like(start, 0.3)
    labels = torch.zeros(2, 1, 10)
    found = signed_adam(match, start, spare, labels, steps=50, lr=0.1, tv=0.0)
    assert found.redrawn.tolist() == [1, 0]
    assert bool(found.fit.isfinite().all()) and float(found.fit.max()) < 0.01


def test_lbfgs_solves_a_quadratic_and_reports_nan():
    wanted = torch.rand(1, 1, 1, 4, 4, dtype=torch.float64)

    def match(images, labels):
        return (images - wanted).square().flatten(1).sum(1)

    start = torch.zeros_like(wanted)
    labels = torch.zeros(1, 1, 10, dtype=torch.float64)
    found = lbfgs(match, start, labels, labels, steps=20, inner=5, tolerance=1e-12)
    assert float(found.fit) < 1e-12 and torch.allclose(found.images, wanted, atol=1e-5)
    lost = lbfgs(
        lambda images, labels: images.flatten(1).sum(1) * torch.nan,
        start, labels, labels, steps=20, inner=5, tolerance=1e-12,
    )  # fmt: skip
    assert bool(lost.fit.isnan()) and bool(lost.images.isnan().all())
    assert lost.trace.shape == found.trace.shape


def test_restarts_are_aligned_before_they_are_averaged(small):
    shifted = torch.stack([small[0].roll((2, -3), (1, 2)), small[1].roll((-1, 4), (1, 2))])
    assert torch.equal(align(shifted, small[:2]), small[:2])


def test_consensus_pulls_restarts_together():
    def match(images, labels):
        return 0.0 * images.flatten(1).sum(1) + 1.0

    start = torch.rand(4, 1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    spread = {}
    for weight in (0.0, 1.0):

        def leaning(images, labels):  # the best iterate is the last one
            return match(images, labels) + (images - start).square().flatten(1).mean(1) * -1e-6

        found = signed_adam(
            leaning, start, start, torch.zeros(4, 1, 10), steps=80, lr=0.02, tv=0.0,
            consensus=weight, restarts=4,
        )  # fmt: skip
        spread[weight] = float(found.images.std(0).mean())
    assert spread[1.0] < 0.7 * spread[0.0]


@pytest.mark.slow
def test_the_zoo_vit_can_be_attacked():
    torch.manual_seed(0)
    model = build_model(ModelSettings(name="vit-b-32"), 0, (3, 32, 32), 10).eval()
    model.requires_grad_(False)
    zeros = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    match = UpdateMatch(
        [Victim(0, 1, model, zeros, False)], gradient, cosine, bn="eval", device=CPU
    )
    images = torch.rand(1, 1, 3, 32, 32).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        (slope,) = torch.autograd.grad(match(images, hot(torch.tensor([[1]]))).sum(), images)
    assert bool(slope.isfinite().all())
