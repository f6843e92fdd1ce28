"""Odds of candidates through copies that disagree, on Gaussian representations."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.attacks.shadow_membership import Basis, Copies, log_odds
from fedre_privacy.core.rng import stream
from fedre_privacy.eval.membership import auc

DIM, CLASSES, COPIES = 24, 3, 6
ALL = torch.ones(DIM, dtype=torch.bool)
CENTRES = torch.randn(CLASSES, DIM, generator=stream(0, "centres")).double()


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(seed, "normal")).double()


def copies(apart: float, seed: int = 1, n: int = 300) -> Copies:
    """Public images of three classes by copies that each moved every image alike."""
    labels = torch.arange(n) % CLASSES
    reps = CENTRES[labels] + normal(n, DIM, seed=seed)
    moved = apart * normal(COPIES, 1, DIM, seed=seed + 1)
    return Copies(reps + moved, labels, CLASSES)


def test_odds_have_the_value_of_the_two_normal_laws():
    basis = Basis(torch.eye(2).double(), torch.tensor([4.0, 1.0]).double())
    shift, candidate = torch.tensor([[1.0, -0.5]]), torch.tensor([[2.0, 1.0]])
    a, s = 0.5, 0.75
    found = log_odds(
        basis,
        shift.double(),
        candidate.double(),
        torch.tensor([a]).double(),
        torch.tensor([s]).double(),
    )
    inside = torch.distributions.Normal(
        a * candidate[0], (torch.tensor([4.0, 1.0]) * (s - a * a) + 1).sqrt()
    )
    outside = torch.distributions.Normal(0.0, (torch.tensor([4.0, 1.0]) * s + 1).sqrt())
    wanted = inside.log_prob(shift[0]).sum() - outside.log_prob(shift[0]).sum()
    assert float(found) == pytest.approx(float(wanted), abs=1e-5)


def test_possible_sizes_are_averaged_over():
    basis = Basis(torch.eye(2).double(), torch.ones(2).double())
    shift, candidate = torch.tensor([[1.0, 1.0]]).double(), torch.ones(1, 2).double()
    weights, sizes = torch.tensor([1.0, 0.1]).double(), torch.tensor([1.0, 0.1]).double()
    both = log_odds(basis, shift, candidate, weights, sizes)
    alone = [log_odds(basis, shift, candidate, weights[[i]], sizes[[i]]) for i in (0, 1)]
    assert min(map(float, alone)) < float(both) < max(map(float, alone))


def test_coordinates_make_disagreement_even():
    known = copies(0.5)
    rows = torch.tensor([0.2, 0.8, 0.0]).double() @ known.means
    basis = known.basis(rows, 0.1, ALL)
    inner = (known.reps - known.means[:, known.labels]).mean(0)
    assert torch.allclose((inner @ basis.turn).var(0), basis.spread, rtol=0.05)
    turned = (rows - rows.mean(0)) @ basis.turn
    assert float(turned.var(0).max()) < 1 < float((rows - rows.mean(0)).var(0).max() / 0.02)
    assert torch.allclose(known.means[:, 0], known.reps[:, known.labels == 0].mean(1))


def asked(size: int, distance: float, seed: int, *, noise: bool = False) -> float:
    """AUC of members against others of a mixture of two classes, `distance` from its copies."""
    known = copies(0.3, seed)
    own = [CENTRES[c] + normal(size, DIM, seed=seed + 7 + c) for c in (0, 1)]
    offset = distance * normal(DIM, seed=seed + 5)
    weights = torch.tensor([0.6, 0.4, 0.0]).double()
    row = 0.6 * own[0].mean(0) + 0.4 * own[1].mean(0) + offset
    if noise:
        row = row.mean() + row.std() * normal(DIM, seed=seed + 9)
    others = CENTRES[0] + normal(100, DIM, seed=seed + 11)
    candidates = torch.cat([own[0], others])
    rows = weights @ known.means
    variance = (weights.square() / size).sum()[None]
    odds = log_odds(
        known.basis(rows, float(variance), ALL),
        (row - rows.mean(0))[None],
        candidates - known.means[:, 0].mean(0),
        weights[:1] / size,
        variance,
    )
    return auc(odds[0], torch.arange(len(candidates)) < size)


def mean_auc(size: int, distance: float, **more: bool) -> float:
    return sum(asked(size, distance, 100 * s, **more) for s in range(1, 9)) / 8


def test_members_of_a_mixture_are_told_and_more_of_them_less():
    assert mean_auc(1, 0.0) > 0.99
    assert mean_auc(1, 0.3) > 0.95
    assert 0.6 < mean_auc(20, 0.0) < mean_auc(4, 0.0)


def test_noise_in_place_of_the_upload_tells_nothing():
    assert abs(mean_auc(4, 0.0, noise=True) - 0.5) < 0.12


def test_a_client_far_from_its_copies_is_not_over_read():
    """Odds shrink towards zero where copies are off, and stay finite."""
    known = copies(0.3)
    basis = known.basis(known.means[:, 0], 0.1, ALL)
    one = torch.ones(1).double()
    near = log_odds(basis, normal(1, DIM, seed=3), normal(1, DIM, seed=4), one / 10, one / 10)
    far = log_odds(basis, 300 * normal(1, DIM, seed=3), normal(1, DIM, seed=4), one / 10, one / 10)
    assert far.isfinite().all() and float(far.abs()) < 30
    assert near.isfinite().all()
