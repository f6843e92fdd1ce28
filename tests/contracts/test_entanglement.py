"""Schemes on top of each other, the published ones by hand, and their random weights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedre_privacy.core.config import build_plugin, plain_plugin
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.entanglement import rap
from fedre_privacy.entanglement.base import (
    DISTRIBUTIONS,
    POSITIVE,
    Entanglement,
    positive_weights,
    schemes,
    spread_over_classes,
)
from fedre_privacy.testing import scheme_checks
from fedre_privacy.testing.scheme_checks import CLASSES, LABELS, draw_of, some_reps

NAMES = schemes.names()
PLAIN = ["rap", "rar", "rsp", "rsr", "var", "vap"]
PER_SAMPLE = {"rar", "rsr"}
"""Schemes that draw for every sample, so that the order of samples matters."""
OWN = "my_schemes:TopHeavy"
CASES = [
    *({"name": name} for name in NAMES),
    {"name": "quantised", "base": {"name": "min-count", "min_count": 2, "base": "decoy"}},
    {"name": "slow", "base": {"name": "decoy", "vectors": "private"}},
    {"name": "refuse-single", "base": {"name": "m-of-n", "m": 2, "base": OWN}},
    {"name": OWN},
]
"""Schemes as they are, and on top of each other."""


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
        allow_module_paths(OWN)
        scheme = build_plugin(schemes, case, at="protocol.entanglement", problems=problems)
        assert scheme is not None and problems == []
        return scheme

    return build


@pytest.fixture(params=CASES, ids=title)
def scheme(request, make) -> Entanglement:
    return make(request.param)


@pytest.mark.parametrize("check", scheme_checks.CHECKS, ids=lambda check: check.__name__)
def test_schemes_keep_the_promises_on_top_of_each_other(scheme, check):
    check(scheme)


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
    draw = draw_of(LABELS["uneven classes"], seed=9)
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
    part, _ = mix("rap", LABELS["uneven classes"], seed=2)
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
    labels = LABELS["uneven classes"]
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
