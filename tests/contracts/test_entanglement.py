"""What every entanglement scheme promises; a new one is tested by being registered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedre_privacy.core.config import build_plugin, knobs, plain_plugin
from fedre_privacy.core.registry import typed
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.core.types import Emission
from fedre_privacy.entanglement import rap
from fedre_privacy.entanglement.base import (
    DISTRIBUTIONS,
    POSITIVE,
    Draw,
    Entanglement,
    by_class,
    positive_weights,
    schemes,
    spread_over_classes,
)

CLASSES, DIM = 6, 7
LABELS = {
    "uneven": torch.tensor([0, 3, 3, 3, 5, 0, 3, 5, 5, 5, 3]),
    "one class": torch.full((4,), 2),
    "one sample": torch.tensor([4]),
    "last class only once": torch.tensor([0, 0, 0, 5]),
    "all classes": torch.arange(CLASSES).repeat(3),
}
NAMES = schemes.names()
PLAIN = ["rap", "rar", "rsp", "rsr", "var", "vap"]
BUILT_ON_OTHERS = [
    name for name in NAMES if any(knob.name == "base" for knob in knobs(schemes.get(name)))
]
PER_SAMPLE = {"rar", "rsr"}
"""Schemes that draw for every sample, so that the order of samples matters."""
OWN = "my_schemes:TopHeavy"
CASES = [
    *({"name": name} for name in NAMES),
    *({"name": name, "base": base} for name in BUILT_ON_OTHERS for base in ("rar", "rsr", "vap")),
    {"name": "quantised", "base": {"name": "min-count", "min_count": 2, "base": "decoy"}},
    {"name": "slow", "base": {"name": "decoy", "vectors": "private"}},
    {"name": "refuse-single", "base": {"name": "m-of-n", "m": 2, "base": OWN}},
    {"name": OWN},
]


def title(case) -> str:
    base = case.get("base")
    return case["name"] + (f" of {title(base) if isinstance(base, dict) else base}" if base else "")


def innermost(case) -> str:
    base = case.get("base")
    return innermost(base) if isinstance(base, dict) else base or case["name"]


@pytest.fixture(params=list(LABELS))
def labels(request) -> Tensor:
    return LABELS[request.param]


@pytest.fixture
def make(tmp_path, monkeypatch, repo):
    """Build a scheme as the command line does, one of its own file included."""
    text = (repo / "docs" / "add_your_own.md").read_text()
    (example,) = [b for b in re.findall(r"```python\n(.*?)```", text, re.S) if "TopHeavy" in b]
    Path(tmp_path, "my_schemes.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)

    def build(case) -> Entanglement:
        problems: list[str] = []
        typed(OWN)
        scheme = build_plugin(schemes, case, at="protocol.entanglement", problems=problems)
        assert scheme is not None and problems == []
        return scheme

    return build


@pytest.fixture(params=CASES, ids=title)
def scheme(request, make) -> Entanglement:
    return make(request.param)


def some_reps(labels: Tensor, seed: int = 0) -> Tensor:
    return torch.randn(len(labels), DIM, generator=stream(seed, "reps"))


def draw_of(labels: Tensor, seed: int = 0, client: int = 2, round: int = 5) -> Draw:
    return Draw(
        labels=labels,
        num_classes=CLASSES,
        dim=DIM,
        seed=seed,
        secret=seed,
        client=client,
        round=round,
    )


def same(one: Emission | None, other: Emission | None) -> bool:
    if one is None or other is None:
        return one is other
    pairs = [(one.artifact.tensors()[n], t) for n, t in other.artifact.tensors().items()]
    pairs += [(one.mixture.weight, other.mixture.weight)]
    pairs += [(one.mixture.sample, other.mixture.sample)]
    return all(torch.equal(a, b) for a, b in pairs)


class TestEveryScheme:
    def test_weights_are_a_distribution_or_leave_room_for_decoys(self, scheme, labels):
        mix = scheme.mix(draw_of(labels))
        if mix is None:
            return
        assert mix.weights.shape == (len(labels),) and mix.weights.dtype == torch.float64
        assert bool((mix.weights >= 0).all())
        total = float(mix.weights.sum())
        assert 0 < total < 1 if mix.decoy is not None else abs(total - 1) < 1e-12

    def test_upload_is_the_explicit_sum(self, scheme, labels):
        reps, draw = some_reps(labels), draw_of(labels)
        mix, emission = scheme.mix(draw), scheme(reps, draw)
        if mix is None:
            assert emission is None
            return
        mixed = torch.zeros(DIM, dtype=torch.float64)
        for weight, rep in zip(mix.weights.tolist(), reps, strict=True):
            mixed = mixed + weight * rep.double()
        if mix.decoy is not None:
            mixed = mixed + mix.decoy * reps.double().mean(0).square().sum().sqrt()
        upload = emission.artifact
        assert upload.rep.dtype == upload.encoding.dtype == torch.float32
        assert torch.allclose(upload.rep.double(), mixed, atol=1e-6, rtol=0)

    def test_encoding_lies_on_the_simplex(self, scheme, labels):
        draw = draw_of(labels)
        emission, mix = scheme(some_reps(labels), draw), scheme.mix(draw)
        if emission is None:
            return
        encoding = emission.artifact.encoding
        assert encoding.shape == (CLASSES,) and bool((encoding >= 0).all())
        assert float(encoding.sum()) == pytest.approx(1, abs=1e-6)
        true = by_class(mix.weights, draw).float()
        held = torch.bincount(labels, minlength=CLASSES) > 0
        if not all(layer.exact for layer in scheme.layers()):
            return
        if mix.decoy is None:
            assert not encoding[~held].any()
        # what is said about the samples is true
        assert torch.allclose(encoding[held], true[held], atol=1e-6, rtol=0)
        decoys = float(encoding[~held].sum())
        assert float(true.sum()) == pytest.approx(1 - decoys, abs=1e-6)

    def test_the_recorded_mixture_is_the_used_one(self, scheme, labels):
        reps, draw = some_reps(labels), draw_of(labels)
        mix, emission = scheme.mix(draw), scheme(reps, draw)
        if emission is None:
            return
        mixture = emission.mixture
        assert mixture.num_rows == 1 and set(mixture.row.tolist()) == {0}
        dense = torch.zeros(len(labels), dtype=torch.float64)
        dense[mixture.sample] = mixture.weight.double()
        assert torch.allclose(dense, mix.weights, atol=1e-7, rtol=0)
        assert mixture.support(0).tolist() == mix.weights.nonzero().squeeze(1).tolist()
        if mix.decoy is None:
            assert torch.allclose(mixture.mean(reps)[0], emission.artifact.rep, atol=1e-6, rtol=0)

    def test_same_draw_same_bytes(self, scheme, labels):
        reps, draw = some_reps(labels), draw_of(labels)
        before = torch.random.get_rng_state()
        first = scheme(reps, draw)
        torch.rand(3)
        torch.random.set_rng_state(before)
        second = scheme(reps, draw)
        assert torch.equal(torch.random.get_rng_state(), before)  # no global randomness
        assert same(first, second)

    def test_inputs_are_left_alone(self, scheme, labels):
        reps, given = some_reps(labels), labels.clone()
        scheme(reps, draw_of(given))
        assert torch.equal(reps, some_reps(labels)) and torch.equal(given, labels)


@pytest.mark.parametrize("case", [c for c in CASES if innermost(c) not in PER_SAMPLE], ids=title)
def test_the_order_of_samples_does_not_matter(make, case, labels):
    scheme, order = make(case), torch.randperm(len(labels), generator=stream(8, "order"))
    one, other = scheme.mix(draw_of(labels)), scheme.mix(draw_of(labels[order]))
    if one is None:
        assert other is None
        return
    assert torch.allclose(one.weights[order], other.weights, atol=1e-15)
    assert torch.allclose(one.encoding, other.encoding, atol=1e-15)


@pytest.mark.parametrize("case", CASES, ids=title)
def test_settings_survive_the_settings_file(make, case):
    scheme = make(case)
    assert make(plain_plugin(scheme)) == scheme


@pytest.mark.parametrize("name", ["rap", "rar", "rsr", "rsp", "slow", "m-of-n", "decoy"])
def test_random_schemes_change_with_seed_client_and_round(name):
    scheme, labels = schemes.get(name)(), torch.arange(CLASSES).repeat(30)
    for changed in ("seed", "client", "round"):
        drawn = {
            tuple(scheme.mix(draw_of(labels, **{changed: value})).weights.tolist())
            for value in range(6)
        }
        assert len(drawn) > 1, changed


def test_streams_of_a_draw():
    draw = draw_of(LABELS["uneven"], seed=9)
    first = {
        "round": draw.rng(),
        "purpose": draw.rng("decoy"),
        "run": draw.of_run().rng(),
        "shared": draw.shared_rng("decoy"),
    }
    assert len({g.initial_seed() for g in first.values()}) == 4
    assert draw.rng().initial_seed() == derive(9, "entangle", client=2, round=5)
    assert draw.of_run().rng().initial_seed() == derive(9, "entangle", client=2)
    other = draw_of(LABELS["one class"], seed=9, client=4, round=1)
    assert other.shared_rng("x").initial_seed() == draw.shared_rng("x").initial_seed()


# --- the published schemes ---------------------------------------------------------------------


def prototypes(reps: Tensor, labels: Tensor) -> dict[int, Tensor]:
    return {int(c): reps[labels == c].mean(0) for c in labels.unique()}


def mix(name: str, labels: Tensor, seed: int = 0, **settings: str):
    reps = some_reps(labels)
    emission = schemes.get(name)(**settings)(reps, draw_of(labels, seed))
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
    drawn = positive_weights(
        CLASSES, draw_of(labels, 4).rng(), distribution="uniform", positive="abs"
    )
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


@pytest.mark.parametrize("name", PLAIN)
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
    from fedre_privacy.entanglement import base

    monkeypatch.setattr(base, "_draw", lambda n, *_: torch.zeros(n, dtype=torch.float64))
    assert draw("gaussian", "abs", count=4).tolist() == [1, 1, 1, 1]


def test_spread_over_classes_by_hand():
    labels = torch.tensor([1, 0, 1, 3])
    weights = spread_over_classes(torch.tensor([0.1, 0.3, 0.5, 0.1]), labels)
    assert weights.tolist() == pytest.approx([0.3, 0.2, 0.3, 0.2])
