"""Each attack on tiny clients: right where theory says so, at the floor when fed noise."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from fedre_privacy.attacks.base import Context, attacks, readers
from fedre_privacy.attacks.gradients import signed_search as signed
from fedre_privacy.attacks.gradients.victims import by_statistics, victims_of
from fedre_privacy.core.artifacts import GradientState, HeadState, ModelState, Representations
from fedre_privacy.core.channels import Channel, ClippingStep
from fedre_privacy.core.errors import DivergedError, IncompatibleError
from fedre_privacy.core.types import Broadcast, KnownDefense, LocalTrainingFacts, Upload
from fedre_privacy.models.split import SplitModel
from fedre_privacy.threats.base import threats

IMAGE_ATTACKS = {
    "dlg": {"steps": 20, "restarts": 2, "tolerance": 1e-6, "bn": "eval"},
    "idlg": {"steps": 20, "restarts": 2, "tolerance": 1e-6, "bn": "eval"},
    "inverting-gradients": {"steps": 200, "bn": "eval"},
    "analytic": {},
}


def model_for(name, smooth, dense):
    return dense() if name == "analytic" else smooth()


def floor(small, wanted, psnr):
    return psnr(small.mean(0).expand_as(wanted), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGE_ATTACKS)
def test_images_are_recovered_from_gradients_and_not_from_noise(
    name, smooth, dense, small, small_labels, gradient_of, watch, psnr
):
    model = model_for(name, smooth, dense)
    attack = attacks.get(name)(**IMAGE_ATTACKS[name])
    count = 1 if "dlg" in name else 3
    sent = [gradient_of(model, small[k : k + 1], small_labels[k : k + 1]) for k in range(count)]
    base = floor(small, small[:count], psnr)
    found = attack(watch([GradientState(g) for g in sent], model))
    assert found.images.shape == (count, 1, 8, 8)
    assert psnr(found.images, small[:count]) > base + 6
    rng = torch.Generator().manual_seed(0)
    noise = [
        GradientState({k: v.std() * torch.randn(v.shape, generator=rng) for k, v in g.items()})
        for g in sent
    ]
    lost = attack(watch(noise, model))
    assert psnr(lost.images, small[:count]) < base + 1


@pytest.fixture(scope="module")
def half_trained(digits):
    """A small net with pooling, 16x16 digits, and its state before and after brief training."""
    images, labels = digits.images.float() / 255, digits.labels[: len(digits.images)].long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        model = SplitModel(backbone, nn.Identity(), dim=256, num_classes=10)
        fresh = copy.deepcopy(model).eval()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(30):
            rows = torch.randint(20, 120, (32,))
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimiser.step()
    model.eval()
    right = (model(images[:20]).argmax(1) == labels[:20]).float().mean()
    assert float(right) > 0.4  # untrained: 0.1
    return {"untrained": fresh, "trained": model}, images, labels


@pytest.mark.parametrize("state", ["untrained", "trained"])
@pytest.mark.slow
def test_one_default_of_smoothness_suits_untrained_and_trained_networks(
    state, half_trained, gradient_of, watch, psnr
):
    """At least as good as the better of two fixed weights, less 2 dB."""
    models, images, labels = half_trained
    model = models[state].requires_grad_(False)
    sent = [
        GradientState(gradient_of(model, images[k : k + 1], labels[k : k + 1])) for k in range(4)
    ]
    seen = watch(sent, model, shape=(1, 16, 16))
    score = {
        tv: psnr(
            attacks.get("inverting-gradients")(steps=150, bn="eval", tv=tv)(seen).images,
            images[:4],
        )
        for tv in (None, 0.02, 0.4)
    }
    assert score[None] > max(score[0.02], score[0.4]) - 2
    assert score[None] > psnr(images.mean(0).expand_as(images[:4]), images[:4]) + 8


@pytest.mark.slow
@pytest.mark.parametrize("state", ["untrained", "trained"])
def test_public_images_tell_what_images_are_like(state, half_trained, gradient_of, watch, psnr):
    """A batch comes nearer, others at the client do not, and noise stays at the floor."""
    models, images, labels = half_trained
    model = models[state].requires_grad_(False)
    wanted, order = images[:4], labels[:4].argsort(stable=True)
    sent = [GradientState(gradient_of(model, wanted, labels[:4]))]
    rng = torch.Generator().manual_seed(0)
    noise = [
        GradientState(
            {k: v.std() * torch.randn(v.shape, generator=rng) for k, v in sent[0].params.items()}
        )
    ]

    def answered(sent, **how):
        seen = watch(sent, model, size=4, shape=(1, 16, 16), threat="strong")
        seen = replace(seen, aux=images[20:], aux_labels=labels[20:])
        attack = attacks.get("inverting-gradients")(steps=100, bn="eval", **how)
        return psnr(attack(seen).images, wanted[order])

    base = psnr(images[20:].mean(0).expand_as(wanted), wanted)
    public = answered(sent, prior="public")
    assert public > answered(sent) + 0.5
    assert public > base + 1
    assert answered(noise, prior="public") < base + 1


@pytest.mark.parametrize("name", ["idlg", "inverting-gradients"])
def test_the_same_seed_gives_the_same_images_whoever_else_is_attacked(
    name, smooth, small, small_labels, gradient_of, watch
):
    model = smooth()
    how = {**IMAGE_ATTACKS[name], "steps": 3, "restarts": 2}
    sent = [
        GradientState(gradient_of(model, small[k : k + 1], small_labels[k : k + 1]))
        for k in range(3)
    ]
    attack = attacks.get(name)(**how)
    one, two = (attack(watch(sent, model)).images for _ in range(2))
    assert torch.equal(one, two)
    back = attack(watch(sent[::-1], model, clients=[2, 1, 0])).images
    torch.testing.assert_close(back.flip(0), one)
    other = attack(watch(sent, model), Context(seed=1)).images
    assert not torch.allclose(other, one)


class Refuses:
    """A capture that refuses a step."""

    def capture(self, step):
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("name", ["inverting-gradients", "update-inversion"])
def test_steps_that_cannot_be_captured_run_one_by_one_and_say_so_once(
    name, smooth, small, small_labels, gradient_of, trained, watch, monkeypatch
):
    model, pairs = smooth(), list(zip(small[:9, None], small_labels[:9, None], strict=True))
    if name == "inverting-gradients":
        sent = [GradientState(gradient_of(model, x, y)) for x, y in pairs]
    else:
        sent = [ModelState(trained(model, x, y, 0.1, 2)) for x, y in pairs]
    training = LocalTrainingFacts(0.1, 2, 1, dict.fromkeys(range(9), 1))
    attack, seen = attacks.get(name)(steps=3, bn="eval"), watch(sent, model, training=training)
    plain, notes = attack(seen), []
    monkeypatch.setattr(signed, "capture_for", lambda device: Refuses())
    context = Context(report=lambda event: event.name == "note" and notes.append(event.data))
    found = attack(seen, context)  # two tiles
    assert torch.equal(found.images, plain.images) and torch.equal(found.trace, plain.trace)
    assert len(notes) == 1 and "not permitted" in notes[0]["text"]


@pytest.mark.parametrize("name", IMAGE_ATTACKS)
def test_an_upload_of_nan_is_marked_and_leaves_the_others_alone(
    name, smooth, dense, small, small_labels, gradient_of, watch
):
    model = model_for(name, smooth, dense)
    good = gradient_of(model, small[:1], small_labels[:1])
    bad = {key: value * torch.nan for key, value in good.items()}
    how = {k: (3 if k == "steps" else v) for k, v in IMAGE_ATTACKS[name].items()}
    found = attacks.get(name)(**how)(watch([GradientState(good), GradientState(bad)], model))
    assert found.diverged.tolist() == [False, True]
    with pytest.raises(DivergedError):
        attacks.get(name)(**how)(watch([GradientState(bad)], model))


@pytest.mark.parametrize("name", [*IMAGE_ATTACKS, "update-inversion"])
def test_a_missing_model_is_refused(name, small, smooth, gradient_of, watch):
    sent = gradient_of(smooth(), small[:1], torch.tensor([0]))
    artifact = ModelState(sent) if name == "update-inversion" else GradientState(sent)
    training = LocalTrainingFacts(0.1, 1, 1, {0: 1})
    with pytest.raises(IncompatibleError, match="No model of client 0 in round 1"):
        attacks.get(name)()(watch([artifact], None, training=training))


def test_another_architecture_is_refused(small, smooth, dense, gradient_of, watch):
    sent = gradient_of(smooth(), small[:1], torch.tensor([0]))
    with pytest.raises(IncompatibleError, match="disagree on .* parameters"):
        attacks.get("dlg")()(watch([GradientState(sent)], dense()))


@pytest.mark.parametrize("name", ["update-inversion", "head"])
def test_missing_knowledge_is_refused(name, smooth, watch):
    model = smooth()
    params = {key: value.detach() for key, value in model.named_parameters()}
    with pytest.raises(IncompatibleError, match="needs TRAINING"):
        attacks.get(name)()(watch([ModelState(params)], model, threat="eavesdropper"))


def test_public_images_have_to_be_granted(smooth, small, small_labels, gradient_of, watch):
    sent = [GradientState(gradient_of(smooth(), small[:1], small_labels[:1]))]
    with pytest.raises(IncompatibleError, match="needs AUX-DATA"):
        attacks.get("inverting-gradients")(prior="public")(watch(sent, smooth()))


def test_uploads_name_their_attacks():
    assert {"dlg", "idlg", "inverting-gradients", "analytic", "head"} <= set(
        readers([GradientState])
    )
    assert {"update-inversion", "inverting-gradients", "head"} <= set(readers([ModelState]))
    assert "head" in readers([HeadState]) and "head" not in readers([Representations])
    assert attacks.get("head").answers == "prototypes"


# --- analytic ------------------------------------------------------------------------------------


def test_a_linear_first_layer_gives_single_images_exactly(dense, small, gradient_of, watch):
    model = dense()
    sent = [gradient_of(model, small[k : k + 1], torch.tensor([k])) for k in range(4)]
    found = attacks.get("analytic")()(watch([GradientState(g) for g in sent], model))
    assert float((found.images - small[:4]).abs().max()) < 1e-5


def test_a_batch_with_rows_of_its_own_for_each_image_is_exact(dense, small, gradient_of, watch):
    model = dense(width=32)
    layer = model.extractor.backbone[1]
    with torch.no_grad():  # eight rows fire for one image each
        layer.weight.copy_(torch.randn(32, 64, generator=torch.Generator().manual_seed(0)))
        pre = 2 * small[:4].flatten(1) - 1
        drive = torch.linalg.lstsq(pre, torch.eye(4)).solution.T  # (4, 64)
        scales = 1 + 0.1 * torch.arange(8.0).repeat_interleave(4)[:, None]
        layer.weight.copy_(drive.repeat(8, 1) * scales)
        layer.bias.fill_(-0.5)
    sent = gradient_of(model, small[:4], torch.tensor([0, 1, 2, 3]))
    found = attacks.get("analytic")()(watch([GradientState(sent)], model, size=4))
    gaps = (found.images[:, None] - small[None, :4]).abs().flatten(2).amax(2)
    assert float(gaps.amin(0).max()) < 1e-3
    assert bool((found.fit == 0).all()) and "4 of 4" in found.stopped_because


def test_a_convolution_first_is_refused(smooth, small, gradient_of, watch):
    sent = gradient_of(smooth(), small[:1], torch.tensor([0]))
    with pytest.raises(IncompatibleError, match="is Conv2d"):
        attacks.get("analytic")()(watch([GradientState(sent)], smooth()))


# --- batches, batch norm, updates ----------------------------------------------------------------


def best_order(found, wanted):
    error = (found[:, None] - wanted[None]).square().flatten(2).mean(2)
    rows, columns = linear_sum_assignment(error.numpy())
    return found[rows], wanted[columns]


def test_a_batch_is_recovered_in_the_order_of_its_labels(
    smooth, small, small_labels, gradient_of, watch, psnr
):
    model, batch = smooth(), torch.tensor([3, 1])
    sent = GradientState(gradient_of(model, small[batch], small_labels[batch]))
    found = attacks.get("idlg")(steps=60, bn="eval")(watch([sent], model, size=2))
    assert psnr(found.images, small[batch.sort().values]) > floor(small, small[batch], psnr) + 6


@pytest.mark.slow
def test_a_batch_norm_client_in_training_mode(smooth, small, small_labels, watch, psnr):
    model = smooth(norm=True)
    twin = smooth(norm=True).train().requires_grad_()
    loss = torch.nn.functional.cross_entropy(twin(small[:2]), small_labels[:2])
    names = [name for name, _ in twin.named_parameters()]
    slopes = torch.autograd.grad(loss, list(twin.parameters()))
    sent = GradientState(dict(zip(names, slopes, strict=True)))
    fits = {
        bn: attacks.get("inverting-gradients")(steps=150, tv=0.0, bn=bn)(
            watch([sent], model, size=2)
        ).fit[0]
        for bn in ("eval", "batch")
    }
    assert fits["batch"] < 0.3 * fits["eval"]


def test_running_statistics_in_an_upload_tell_by_which_its_client_normalised(smooth, small, watch):
    model = smooth(norm=True)
    held = {name: value.clone() for name, value in model.state_dict().items()}
    moved = {n: v + 0.1 if n.endswith("running_mean") else v for n, v in held.items()}
    whole = {name: held[name] for name, _ in model.named_parameters()}
    seen = watch([ModelState(one) for one in (held, moved, whole)], model)
    victims = victims_of(seen)
    assert [victim.unmoved for victim in victims] == [True, False, None]
    for bn, wanted in (
        ("auto", ["eval", "batch", "batch"]), ("batch", ["batch"] * 3), ("eval", ["eval"] * 3),
    ):  # fmt: skip
        assert [victim.statistics for victim in by_statistics(victims, bn)] == wanted
    found = attacks.get("inverting-gradients")(steps=2, labels="rowmin")(seen)
    assert "running statistics (1 of 3 uploads)" in found.stopped_because


@pytest.mark.parametrize(("epochs", "size", "batch_size"), [(1, 1, 1), (4, 1, 1), (3, 2, 8)])
@pytest.mark.slow
def test_updates_are_inverted_by_running_the_client_again(
    smooth, small, small_labels, trained, watch, psnr, epochs, size, batch_size
):
    model, training = smooth(), LocalTrainingFacts(0.1, epochs, batch_size, {0: size})
    after = trained(model, small[:size], small_labels[:size], 0.1, epochs)
    attack = attacks.get("update-inversion")(steps=200, tv=1e-4, bn="eval")
    found = attack(watch([ModelState(after)], model, size=size, training=training))
    ours, wanted = best_order(found.images, small[:size])
    assert psnr(ours, wanted) > floor(small, small[:size], psnr) + 5
    assert f"1 clients re-run ({epochs} steps)" in found.stopped_because


def test_too_many_local_steps_are_matched_as_one_gradient(
    smooth, small, small_labels, trained, watch
):
    model = smooth()
    after = trained(model, small[:1], small_labels[:1], 0.1, 5)
    training = LocalTrainingFacts(0.1, 5, 1, {0: 1})
    attack = attacks.get("update-inversion")(steps=5, unroll=4, bn="eval", objective="l2rel")
    found = attack(watch([ModelState(after)], model, training=training))
    assert "1 clients matched as one gradient" in found.stopped_because
    assert float(found.fit[0]) <= 2.1  # a cosine, whatever was asked for


@pytest.mark.slow
def test_a_gradient_on_the_path_explains_many_steps_better_than_one_at_the_start(
    smooth, small, small_labels, trained, watch, psnr
):
    """It needs no number of steps, and noise in place of the update gives the floor."""
    model, clients = smooth(), range(3)
    rows = [slice(2 * k, 2 * k + 2) for k in clients]
    sent = [trained(model, small[row], small_labels[row], 0.1, 5) for row in rows]
    told = LocalTrainingFacts(0.1, 5, 2, dict.fromkeys(clients, 2))
    wrong = replace(told, lr=0.3, epochs=40)

    def score(artifacts, training, **how):
        attack = attacks.get("update-inversion")(steps=150, bn="eval", unroll=1, **how)
        found = attack(watch(artifacts, model, size=2, training=training))
        pairs = [
            best_order(part, small[row])
            for part, row in zip(found.images.split(2), rows, strict=True)
        ]
        ours, wanted = (torch.cat(part) for part in zip(*pairs, strict=True))
        return psnr(ours, wanted) - floor(small, wanted, psnr), float(found.fit.mean())

    updates = [ModelState(one) for one in sent]
    path, start = score(updates, told), score(updates, told, at="start")
    assert path[1] < 0.5 * start[1]
    assert path[0] > start[0] + 5 and path[0] > 4
    assert score(updates, wrong, labels="rowmin") == score(updates, told, labels="rowmin")
    rng = torch.Generator().manual_seed(0)
    own = dict(model.named_parameters())
    noise = [
        {k: own[k].detach() + (v - own[k]).std() * torch.randn(v.shape, generator=rng)
         for k, v in one.items()}
        for one in sent
    ]  # fmt: skip
    assert score([ModelState(one) for one in noise], told)[0] < 1


def test_magnitudes_of_updates_are_not_compared(smooth, small, small_labels, trained, watch):
    model = smooth()
    after = trained(model, small[:1], small_labels[:1], 0.1, 2)
    training = LocalTrainingFacts(0.1, 2, 1, {0: 1})
    with pytest.raises(IncompatibleError, match="compares magnitudes"):
        attacks.get("inverting-gradients")(objective="l2rel", bn="eval")(
            watch([ModelState(after)], model, training=training)
        )


# --- heads ---------------------------------------------------------------------------------------


def local_head(reps, labels, lr, steps, seed=0):
    torch.manual_seed(seed)
    head = torch.nn.Linear(reps.shape[1], 10)
    before = {name: p.detach().clone() for name, p in head.named_parameters()}
    optimiser = torch.optim.SGD(head.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(head(reps), labels).backward()
        optimiser.step()
    return before, {name: p.detach().clone() for name, p in head.named_parameters()}


def observed_head(watch, before, after, lr, steps, size, **more):
    return watch(
        [HeadState(after)],
        None,
        training=LocalTrainingFacts(lr, steps, size, {0: size}),
        broadcasts=(Broadcast(1, (0,), (HeadState(before),)),),
        size=0,
        **more,
    )


def four_classes():
    """Representations (60, 64) of the first four of ten classes, labels, class means, a stream."""
    rng = torch.Generator().manual_seed(1)
    centres = torch.rand(10, 64, generator=rng) * (torch.rand(10, 64, generator=rng) < 0.4)
    labels = torch.arange(4).repeat(15)
    reps = (centres[labels] + 0.1 * torch.randn(60, 64, generator=rng)).clamp(min=0)
    means = torch.stack([reps[labels == c].mean(0) for c in range(4)])
    return reps, labels, means, rng


def centred_cosine(found, means):
    """Mean cosine of found and true means of the first four classes, about the true mean."""
    rows = [list(found.labels).index(c) if c in found.labels else 0 for c in range(4)]
    gap = torch.nn.functional.cosine_similarity(
        found.vectors[rows] - means.mean(0), means - means.mean(0)
    )
    return float(gap.mean())


@pytest.mark.parametrize("method", ["combined", "simulate", "ratio"])
def test_the_head_of_a_client_with_one_sample_gives_its_representation(watch, method):
    reps = torch.rand(1, 32, generator=torch.Generator().manual_seed(0))
    before, after = local_head(reps, torch.tensor([4]), 0.1, 1)
    found = attacks.get("head")(method=method)(observed_head(watch, before, after, 0.1, 1, 1))
    assert found.labels.tolist() == [4]
    cosine = torch.nn.functional.cosine_similarity(found.vectors, reps)
    assert float(cosine) > 0.999


def test_a_head_tells_class_means_and_a_random_one_does_not(watch):
    reps, labels, means, rng = four_classes()
    before, after = local_head(reps, labels, 0.1, 10)
    noise = {key: torch.randn(value.shape, generator=rng) for key, value in after.items()}
    scores = []
    for sent in (after, noise):
        found = attacks.get("head")()(observed_head(watch, before, sent, 0.1, 10, 60))
        scores.append(centred_cosine(found, means))
        if sent is after:
            assert found.labels.tolist() == [0, 1, 2, 3]
    assert scores[0] > 0.9 and scores[1] < 0.5


@pytest.mark.slow
def test_a_shortened_change_of_a_head_is_lengthened_again(watch):
    reps, labels, means, rng = four_classes()
    before, after = local_head(reps, labels, 0.1, 10)
    short = {name: before[name] + (after[name] - before[name]) / 6 for name in before}
    length = torch.cat([(short[name] - before[name]).flatten() for name in before]).norm()
    clip = KnownDefense("clip", {}, Channel(updates=(ClippingStep(float(length)),)))
    naive = observed_head(watch, before, short, 0.1, 10, 60)
    simulate = attacks.get("head")(method="simulate")
    told = simulate(replace(naive, defenses=(clip,)))
    assert told.labels.tolist() == [0, 1, 2, 3]
    assert "lengthened 5.66 times" in told.notes[0]
    assert float((told.vectors - means).norm() / means.norm()) < 0.25
    blind = simulate(naive)
    assert len(blind.labels) > 4  # of a short change every class seems to be held
    assert centred_cosine(told, means) > 0.9
    noise = {name: torch.randn(value.shape, generator=rng) for name, value in before.items()}
    nothing = observed_head(watch, before, noise, 0.1, 10, 60)
    for attack in (simulate, attacks.get("head")()):
        lost = attack(replace(nothing, defenses=(clip,)))
        assert centred_cosine(lost, means) < 0.5
    whole = attacks.get("head")()(observed_head(watch, before, after, 0.1, 10, 60))
    same = attacks.get("head")()(naive)  # directions do not depend on how long a change is
    assert same.labels.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(same.vectors, whole.vectors, rtol=1e-3, atol=1e-3)


def test_public_images_tell_what_all_classes_have_in_common(watch):
    """Of a client with every class a head tells differences only."""
    rng = torch.Generator().manual_seed(1)
    centres = 0.5 + torch.rand(10, 64, generator=rng) * (torch.rand(10, 64, generator=rng) < 0.4)
    labels = torch.arange(10).repeat(15)
    spread = 0.1 * torch.randn(150, 64, generator=rng)
    reps = (centres[labels] + spread).clamp(min=0)
    means = torch.stack([reps[labels == c].mean(0) for c in range(10)])
    public = (centres + 0.2 * torch.randn(10, 64, generator=rng)).clamp(min=0)
    before, after = local_head(reps, labels, 0.1, 10)
    seen = observed_head(watch, before, after, 0.1, 10, 150)
    seen = replace(
        seen, threat=threats.get("strong"), extractors={(0, 1): torch.nn.Flatten()},
        aux=public.reshape(10, 1, 8, 8),
        aux_labels=torch.arange(10),
    )  # fmt: skip
    found, moved = (
        attacks.get("head")(method="simulate", centre=c)(seen) for c in ("found", "public")
    )
    gaps = [float((one.vectors - means).norm() / means.norm()) for one in (found, moved)]
    assert found.labels.tolist() == list(range(10)) and gaps[1] < 0.6 * gaps[0]
    own, same = found.vectors - found.vectors.mean(0), moved.vectors - moved.vectors.mean(0)
    torch.testing.assert_close(own, same, rtol=1e-3, atol=1e-3)
    default, public, alone = (
        attacks.get("head")(centre=c)(seen) for c in ("auto", "public", "found")
    )
    assert torch.equal(default.vectors, public.vectors)  # what is known is used
    gaps = [float((one.vectors - means).norm() / means.norm()) for one in (alone, default)]
    assert gaps[1] < 0.3 * gaps[0]
    with pytest.raises(IncompatibleError, match="labels of the auxiliary"):
        attacks.get("head")(centre="public")(replace(seen, aux_labels=None))


def three_rounds(watch, client=0):
    """A client that trains the broadcast head on a few of its samples in each of three rounds."""
    reps, labels, means, rng = four_classes()
    uploads, broadcasts = [], []
    for number in (1, 2, 3):
        batch = torch.randperm(60, generator=rng)[:12]
        before, after = local_head(reps[batch], labels[batch], 0.1, 5, seed=number)
        uploads.append(Upload(client, number, (HeadState(after),)))
        broadcasts.append(Broadcast(number, (client,), (HeadState(before),)))
    seen = watch(
        [HeadState(after)], None, training=LocalTrainingFacts(0.1, 5, 12, {0: 60, 1: 60}), size=0
    )
    seen = replace(
        seen, targets=tuple(uploads[-1:]), uploads=tuple(uploads), broadcasts=tuple(broadcasts)
    )
    return seen, means


def test_heads_of_several_rounds_tell_more_than_one(watch):
    seen, means = three_rounds(watch)
    one, three = (attacks.get("head")(rounds=r)(seen) for r in (1, 3))
    assert three.labels.tolist() == [0, 1, 2, 3]
    assert 1 - centred_cosine(three, means) < 0.7 * (1 - centred_cosine(one, means))
    assert one.rounds_used.tolist() == [1] * 4 and three.rounds_used.tolist() == [3] * 4
    last = replace(seen, uploads=seen.targets)
    torch.testing.assert_close(attacks.get("head")()(last).vectors, one.vectors)
    untold = replace(seen, broadcasts=seen.broadcasts[-1:])  # rounds whose start is not known
    torch.testing.assert_close(attacks.get("head")()(untold).vectors, one.vectors)


def test_rounds_of_other_clients_and_broken_ones_are_not_used(watch):
    seen, _ = three_rounds(watch)
    told = attacks.get("head")()(seen)
    other, _ = three_rounds(watch, client=1)
    lost = {
        name: torch.full_like(v, torch.nan)
        for name, v in seen.uploads[0].artifacts[0].params.items()
    }
    more = replace(
        seen,
        uploads=(*other.uploads, *seen.uploads),
        broadcasts=(*seen.broadcasts, *other.broadcasts),
    )
    torch.testing.assert_close(attacks.get("head")()(more).vectors, told.vectors)
    broken = replace(seen, uploads=(Upload(0, 1, (HeadState(lost),)), *seen.uploads[1:]))
    torch.testing.assert_close(
        attacks.get("head")()(broken).vectors, attacks.get("head")(rounds=2)(seen).vectors
    )


def test_a_head_without_a_start_is_refused(watch):
    before, after = local_head(torch.rand(2, 8), torch.tensor([0, 1]), 0.1, 1)
    seen = watch([HeadState(after)], None, training=LocalTrainingFacts(0.1, 1, 2, {0: 2}), size=0)
    with pytest.raises(IncompatibleError, match="never broadcast"):
        attacks.get("head")()(seen)


def test_a_gradient_tells_the_representation_of_its_only_image(
    smooth, small, small_labels, gradient_of, watch
):
    model = smooth()
    sent = gradient_of(model, small[:1], small_labels[:1])
    seen = watch([GradientState(sent)], model, training=LocalTrainingFacts(0.1, 1, 1, {0: 1}))
    found = attacks.get("head")(method="ratio")(seen)
    assert found.labels.tolist() == small_labels[:1].tolist()
    torch.testing.assert_close(found.vectors, model.extractor(small[:1]), rtol=1e-3, atol=1e-4)


CLASSES_HELD = ((0, 1, 2), (3, 4), (5, 6, 7, 8), (9, 1), (2, 6, 8))
"""Of five clients; of the first class each holds 12 digits, of every next one half as many."""


def trained_on_digits(dense, small, small_labels, trained, watch):
    """Heads after real training of whole models, and true means and classes of each client."""
    model, sent, sizes, truth = dense(width=64), [], {}, []
    for client, classes in enumerate(CLASSES_HELD):
        rows = torch.cat(
            [(small_labels == c).nonzero().squeeze(1)[: 12 >> k] for k, c in enumerate(classes)]
        )
        after = trained(model, small[rows], small_labels[rows], 0.1, 4)
        sent.append(ModelState(after))
        sizes[client] = len(rows)
        extractor = {k[10:]: v for k, v in after.items() if k.startswith("extractor.")}
        reps = torch.func.functional_call(model.extractor, extractor, (small[rows],))
        means = torch.stack([reps[small_labels[rows] == c].mean(0) for c in classes])
        truth.append((means.detach(), list(classes)))
    training = LocalTrainingFacts(0.1, 4, 64, sizes)
    return watch(sent, model, training=training, size=0), truth


def per_class(found, truth):
    """Centred cosine of each true mean; 0 where there is no answer. And which have one."""
    scores, answered = [], []
    for client, (means, classes) in enumerate(truth):
        for mean, c in zip(means, classes, strict=True):
            row = ((found.clients == client) & (found.labels == c)).nonzero().flatten()
            answered.append(len(row) == 1)
            gap = found.vectors[row] - means.mean(0) if answered[-1] else torch.zeros(1, len(mean))
            scores.append(torch.nn.functional.cosine_similarity(gap, mean[None] - means.mean(0)))
    return torch.cat(scores), torch.tensor(answered)


@pytest.mark.slow
def test_the_default_tells_more_than_either_part_after_real_training(
    dense, small, small_labels, trained, watch
):
    seen, truth = trained_on_digits(dense, small, small_labels, trained, watch)
    best, said = per_class(attacks.get("head")()(seen), truth)
    assert bool(said.all())  # rare classes, too
    for method in ("simulate", "ratio"):
        scores, answered = per_class(attacks.get("head")(method=method)(seen), truth)
        assert float(best.mean()) > float(scores.mean()) + 0.1, method
        assert float(best[answered].mean()) > float(scores[answered].mean()) + 0.05, method
    rng = torch.Generator().manual_seed(0)
    noise = [
        ModelState({k: torch.randn(v.shape, generator=rng) for k, v in sent.params.items()})
        for upload in seen.targets
        for sent in upload.artifacts
        if isinstance(sent, ModelState)
    ]
    blank = watch(noise, dense(width=64), training=seen.training, size=0)
    assert abs(float(per_class(attacks.get("head")()(blank), truth)[0].mean())) < 0.2
    assert float(best.mean()) > 0.8
