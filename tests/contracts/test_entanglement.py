"""What every entanglement scheme promises; a new one is tested by being registered."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedre_privacy.core.rng import stream
from fedre_privacy.entanglement import rap
from fedre_privacy.entanglement.base import schemes, spread_over_classes
from fedre_privacy.entanglement.weights import DISTRIBUTIONS, POSITIVE, positive_weights

CLASSES, DIM = 6, 7
LABELS = {
    "uneven": torch.tensor([0, 3, 3, 3, 5, 0, 3, 5, 5, 5, 3]),
    "one class": torch.full((4,), 2),
    "one sample": torch.tensor([4]),
    "last class only once": torch.tensor([0, 0, 0, 5]),
    "all classes": torch.arange(CLASSES).repeat(3),
}
NAMES = schemes.names()


def some_reps(labels: Tensor, seed: int = 0) -> Tensor:
    return torch.randn(len(labels), DIM, generator=stream(seed, "reps"))


@pytest.fixture(params=list(LABELS))
def labels(request) -> Tensor:
    return LABELS[request.param]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", NAMES)
class TestEveryScheme:
    def test_weights_are_a_distribution_over_samples(self, name, seed, labels):
        weights = schemes.get(name)().sample_weights(labels, CLASSES, stream(seed, "w"))
        assert weights.shape == (len(labels),) and weights.dtype == torch.float64
        assert bool((weights >= 0).all())
        assert abs(float(weights.sum()) - 1) < 1e-12

    def test_upload_is_the_explicit_sum(self, name, seed, labels):
        scheme, reps = schemes.get(name)(), some_reps(labels)
        weights = scheme.sample_weights(labels, CLASSES, stream(seed, "w")).tolist()
        upload = scheme(reps, labels, CLASSES, stream(seed, "w")).artifact
        mixed = torch.zeros(DIM, dtype=torch.float64)
        encoding = torch.zeros(CLASSES, dtype=torch.float64)
        for weight, rep, label in zip(weights, reps, labels.tolist(), strict=True):
            mixed = mixed + weight * rep.double()
            encoding[label] = encoding[label] + weight
        assert upload.rep.dtype == upload.encoding.dtype == torch.float32
        assert torch.allclose(upload.rep.double(), mixed, atol=1e-6, rtol=0)
        assert torch.allclose(upload.encoding.double(), encoding, atol=1e-6, rtol=0)

    def test_encoding_lies_on_the_simplex_of_present_classes(self, name, seed, labels):
        upload = schemes.get(name)()(some_reps(labels), labels, CLASSES, stream(seed, "w")).artifact
        assert upload.encoding.shape == (CLASSES,)
        assert bool((upload.encoding >= 0).all())
        assert float(upload.encoding.sum()) == pytest.approx(1, abs=1e-6)
        present = {int(c) for c in labels}
        assert set(upload.encoding.nonzero().squeeze(1).tolist()) <= present

    def test_the_recorded_mixture_is_the_used_one(self, name, seed, labels):
        scheme, reps = schemes.get(name)(), some_reps(labels)
        weights = scheme.sample_weights(labels, CLASSES, stream(seed, "w"))
        emission = scheme(reps, labels, CLASSES, stream(seed, "w"))
        mixture = emission.mixture
        assert mixture.num_rows == 1 and set(mixture.row.tolist()) == {0}
        dense = torch.zeros(len(labels), dtype=torch.float64)
        dense[mixture.sample] = mixture.weight.double()
        assert torch.allclose(dense, weights, atol=1e-7, rtol=0)
        assert mixture.support(0).tolist() == weights.nonzero().squeeze(1).tolist()
        assert torch.allclose(mixture.mean(reps)[0], emission.artifact.rep, atol=1e-6, rtol=0)

    def test_same_stream_same_bytes(self, name, seed, labels):
        scheme, reps = schemes.get(name)(), some_reps(labels)
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        first = scheme(reps, labels, CLASSES, stream(seed, "w"))
        torch.rand(3)
        torch.random.set_rng_state(before)
        second = scheme(reps, labels, CLASSES, stream(seed, "w"))
        assert torch.equal(torch.random.get_rng_state(), before)  # no global randomness
        for tensor, other in zip(
            first.artifact.tensors().values(), second.artifact.tensors().values(), strict=True
        ):
            assert torch.equal(tensor, other)
        assert torch.equal(first.mixture.weight, second.mixture.weight)

    def test_inputs_are_left_alone(self, name, seed, labels):
        reps, given = some_reps(labels), labels.clone()
        schemes.get(name)()(reps, given, CLASSES, stream(seed, "w"))
        assert torch.equal(reps, some_reps(labels)) and torch.equal(given, labels)


@pytest.mark.parametrize("name", ["rap", "rar", "rsr", "rsp"])
def test_random_schemes_change_with_the_stream(name):
    scheme, labels = schemes.get(name)(), LABELS["all classes"]
    drawn = {
        tuple(scheme.sample_weights(labels, CLASSES, stream(s, "w")).tolist()) for s in range(20)
    }
    assert len(drawn) > 3


# --- what each scheme is -----------------------------------------------------------------------


def prototypes(reps: Tensor, labels: Tensor) -> dict[int, Tensor]:
    return {int(c): reps[labels == c].mean(0) for c in labels.unique()}


def mix(name: str, labels: Tensor, seed: int = 0, **settings: str):
    reps = some_reps(labels)
    emission = schemes.get(name)(**settings)(reps, labels, CLASSES, stream(seed, "w"))
    return emission.artifact, reps


def test_vap_is_the_mean_of_the_prototypes(labels):
    upload, reps = mix("vap", labels)
    means = prototypes(reps, labels)
    assert torch.allclose(upload.rep, torch.stack(list(means.values())).mean(0), atol=1e-6)
    for c in range(CLASSES):
        share = 1 / len(means) if c in means else 0
        assert float(upload.encoding[c]) == pytest.approx(share, abs=1e-7)


def test_rap_weighs_prototypes_with_the_drawn_weights(labels):
    upload, reps = mix("rap", labels, seed=4)
    drawn = positive_weights(CLASSES, stream(4, "w"), distribution="uniform", positive="abs")
    means = prototypes(reps, labels)
    total = sum(float(drawn[c]) for c in means)
    expected = sum(float(drawn[c]) / total * mean for c, mean in means.items())
    assert torch.allclose(upload.rep, expected, atol=1e-6)


def test_rap_with_equal_weights_is_vap(labels, monkeypatch):
    monkeypatch.setattr(rap, "positive_weights", lambda n, *_, **__: torch.ones(n).double() * 0.3)
    same, _ = mix("rap", labels)
    upload, _ = mix("vap", labels)
    assert torch.allclose(same.rep, upload.rep, atol=1e-7)
    assert torch.allclose(same.encoding, upload.encoding, atol=1e-7)


def test_rap_weights_stay_with_their_class_when_another_is_missing():
    full, _ = mix("rap", LABELS["all classes"], seed=2)
    part, _ = mix("rap", LABELS["uneven"], seed=2)
    present = [0, 3, 5]
    kept = full.encoding[present] / full.encoding[present].sum()
    assert torch.allclose(part.encoding[present], kept, atol=1e-6)


@pytest.mark.parametrize("name", ["rap", "vap", "rsp"])
def test_a_single_class_uploads_its_prototype(name):
    labels = LABELS["one class"]
    upload, reps = mix(name, labels)
    assert torch.allclose(upload.rep, reps.mean(0), atol=1e-7, rtol=1e-6)
    assert upload.encoding.tolist() == [0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_a_single_sample_uploads_itself(name):
    upload, reps = mix(name, LABELS["one sample"])
    assert torch.equal(upload.rep, reps[0])


def test_var_uploads_the_class_histogram(labels):
    upload, reps = mix("var", labels)
    histogram = torch.bincount(labels, minlength=CLASSES) / len(labels)
    assert torch.allclose(upload.encoding, histogram, atol=1e-7)
    assert torch.allclose(upload.rep, reps.mean(0), atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_rsr_uploads_one_representation_unmixed(labels, seed):
    upload, reps = mix("rsr", labels, seed)
    (chosen,) = [i for i in range(len(reps)) if torch.equal(reps[i], upload.rep)]
    assert upload.encoding.argmax() == labels[chosen] and float(upload.encoding.max()) == 1


def test_rsr_reaches_every_sample_and_rsp_every_class():
    labels = LABELS["uneven"]
    samples = {int(schemes.get("rsr")().sample_weights(labels, CLASSES, stream(s, "w")).argmax())
               for s in range(200)}  # fmt: skip
    classes = {int(mix("rsp", labels, s)[0].encoding.argmax()) for s in range(40)}
    assert samples == set(range(len(labels))) and classes == {0, 3, 5}


@pytest.mark.parametrize("seed", range(5))
def test_rsp_uploads_one_prototype(labels, seed):
    upload, reps = mix("rsp", labels, seed)
    chosen = int(upload.encoding.argmax())
    assert float(upload.encoding[chosen]) == pytest.approx(1)
    assert torch.allclose(upload.rep, prototypes(reps, labels)[chosen], atol=1e-6)


@pytest.mark.parametrize("name", ["rap", "rar"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("positive", POSITIVE)
def test_every_distribution_keeps_the_promises(name, distribution, positive, labels):
    scheme = schemes.get(name)(weights=distribution, positive=positive)
    weights = scheme.sample_weights(labels, CLASSES, stream(3, "w"))
    assert bool((weights >= 0).all()) and abs(float(weights.sum()) - 1) < 1e-12


# --- random weights ----------------------------------------------------------------------------


def draw(distribution: str, positive: str, count: int = 20000, seed: int = 0) -> Tensor:
    return positive_weights(
        count, stream(seed, "draw"), distribution=distribution, positive=positive
    )


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("positive", POSITIVE)
def test_positive_weights(distribution, positive):
    weights = draw(distribution, positive)
    assert weights.shape == (20000,) and weights.dtype == torch.float64
    assert bool(weights.isfinite().all()) and bool((weights > 0).all())
    assert torch.equal(weights, draw(distribution, positive))
    assert not torch.equal(weights, draw(distribution, positive, seed=1))
    assert draw(distribution, positive, count=1).shape == (1,)


@pytest.mark.parametrize("positive", ["abs", "redraw"])
@pytest.mark.parametrize(
    ("distribution", "mean", "square"),
    [("uniform", 0.5, 1 / 3), ("gaussian", (2 / torch.pi) ** 0.5, 1), ("laplace", 1, 2)],
)
def test_moments_of_the_positive_half(distribution, mean, square, positive):
    weights = draw(distribution, positive)
    assert float(weights.mean()) == pytest.approx(mean, rel=0.03)
    assert float(weights.square().mean()) == pytest.approx(square, rel=0.06)


def test_clamp_and_softmax():
    for distribution, low in (("uniform", 0), ("gaussian", 0.5), ("laplace", 0.5)):
        clamped = draw(distribution, "clamp")
        assert float((clamped == 1e-6).double().mean()) == pytest.approx(low, abs=0.02)
        assert float(draw(distribution, "softmax").sum()) == pytest.approx(1)


def test_a_vanishing_total_falls_back_to_equal_weights(monkeypatch):
    from fedre_privacy.entanglement import weights

    monkeypatch.setattr(weights, "_draw", lambda n, *_: torch.zeros(n, dtype=torch.float64))
    assert draw("gaussian", "abs", count=4).tolist() == [1, 1, 1, 1]


def test_spread_over_classes_by_hand():
    labels = torch.tensor([1, 0, 1, 3])
    weights = spread_over_classes(torch.tensor([0.1, 0.3, 0.5, 0.1]), labels)
    assert weights.tolist() == pytest.approx([0.3, 0.2, 0.3, 0.2])
