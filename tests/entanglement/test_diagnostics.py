"""Predicted leakage: singular values by hand, known laws, and what least squares then recovers."""

import math
import statistics

import pytest
import torch

from fedre_privacy.core.rng import stream
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.entanglement.diagnostics import weight_matrix_diagnostics

LABELS = torch.arange(10).repeat_interleave(30)


def predict(name, labels=LABELS, rounds=40, seed=0, resample=True, **settings):
    scheme = schemes.get(name)(**settings)
    return weight_matrix_diagnostics(scheme, labels, 20, rounds, seed, resample=resample)


def test_the_numbers_are_those_of_the_uploads(draw):
    scheme, reps = schemes.get("rap")(), torch.eye(300)
    rows = [
        scheme(reps, draw(LABELS, num_classes=20, dim=300, round=t)).artifact.encoding[:10]
        for t in range(1, 41)
    ]
    values = torch.linalg.svdvals(torch.stack(rows).double())
    found = predict("rap")
    assert (found.uploads, found.classes, found.rank) == (40, 10, 10)
    assert found.s_min == pytest.approx(float(values[-1]))
    assert found.condition == pytest.approx(float(values[0] / values[-1]))
    assert found.encoding_error < 1e-7 and found.recovery_error < 1e-5


def test_random_weights_follow_the_known_law():
    """s_min is about (0.577 / n) (sqrt T - sqrt n)."""
    for rounds in (40, 100):
        measured = statistics.median(predict("rap", rounds=rounds, seed=s).s_min for s in range(9))
        assert measured == pytest.approx(0.0577 * (rounds**0.5 - 10**0.5), rel=0.25)


def test_s_min_of_slow_weights_is_proportional_to_the_spread():
    spreads = (0.01, 0.05, 0.1, 0.2, 0.5)
    for seed in range(3):
        found = [predict("slow", spread=s, seed=seed).s_min / s for s in spreads]
        assert max(found) / min(found) < 1.1
        assert found[0] == pytest.approx(predict("rap", seed=seed).s_min, rel=0.1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("vap", {}), ("var", {}), ("slow", {"spread": 0.0}), ("rap", {"resample": False})],
)
def test_weights_that_do_not_vary_determine_nothing(name, settings):
    found = predict(name, **settings)
    assert (found.rank, found.s_min, found.condition) == (1, 0.0, math.inf)
    # any one vector of ten dimensions is recovered at best: 1 - w w' / |w|^2 has norm sqrt(9)
    assert found.recovery_error == pytest.approx(math.sqrt(0.9), abs=1e-6)


def test_too_few_rounds_determine_nothing():
    found = predict("rap", rounds=9)
    assert (found.rank, found.s_min) == (9, 0.0) and 0 < found.recovery_error < 1


def test_schemes_that_do_not_mix():
    found = predict("rsp")
    missed = (10 - found.classes) / 10  # classes that were never drawn
    assert found.recovery_error == pytest.approx(math.sqrt(missed), abs=1e-9)
    assert found.samples_mixed == 30
    counts = found.s_min**2  # one-hot rows: s_min^2 is how often the rarest class came
    assert counts == pytest.approx(round(counts))
    assert predict("rsr").samples_mixed == 1 and predict("var").samples_mixed == pytest.approx(300)
    assert predict("decoy").samples_mixed == pytest.approx(predict("rap").samples_mixed)


def test_fewer_classes_an_upload_are_easier_to_tell_apart():
    found = [predict("m-of-n", m=m).s_min for m in (10, 5, 3, 2)]
    assert found == sorted(found) and found[-1] > 2 * found[0]


def test_coarser_encodings_are_solved_worse():
    found = [predict("quantised", levels=b) for b in (4, 8, 16, 64)]
    errors = [f.recovery_error for f in found]
    assert errors == sorted(errors, reverse=True) and errors[0] > 0.4 and errors[-1] < 0.1
    assert all(f.encoding_error < 1 / b for f, b in zip(found, (4, 8, 16, 64), strict=True))


def test_what_is_left_out_is_not_recovered():
    labels = torch.cat([LABELS, torch.tensor([12, 12, 13, 14, 14, 14])])
    found = predict("min-count", labels)
    assert found.classes == 10 and found.recovery_error == pytest.approx(
        math.sqrt(3 / 13), abs=0.01
    )


def test_no_upload_at_all():
    found = predict("refuse-single", torch.full((9,), 3))
    assert (found.uploads, found.rank, found.s_min, found.recovery_error) == (0, 0, 0.0, 1.0)
    alone = predict("rap", torch.full((9,), 3))
    assert (alone.classes, alone.condition) == (1, pytest.approx(1)) and alone.recovery_error < 1e-6


@pytest.mark.parametrize(
    ("name", "settings", "within"),
    [("rap", {}, 0.05), ("vap", {}, 0.05), ("quantised", {"levels": 8}, 0.25)],
)
def test_the_predicted_error_is_met_by_least_squares(draw, name, settings, within):
    scheme, rng = schemes.get(name)(**settings), stream(0, "prototypes")
    means = torch.randn(10, 4000, generator=rng, dtype=torch.float64)
    reps = means.repeat_interleave(30, dim=0)
    sent = [
        scheme(reps, draw(LABELS, num_classes=20, dim=4000, round=t)).artifact for t in range(1, 41)
    ]
    encodings = torch.stack([e.encoding for e in sent]).double()[:, :10]
    solved = torch.linalg.pinv(encodings, rtol=1e-6) @ torch.stack([e.rep for e in sent])
    error = float((solved - means).norm() / means.norm())
    assert error == pytest.approx(
        predict(name, **settings).recovery_error, abs=within * max(error, 0.02)
    )


def test_it_is_pure():
    before = torch.random.get_rng_state()
    assert predict("rap", seed=3) == predict("rap", seed=3) != predict("rap", seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
