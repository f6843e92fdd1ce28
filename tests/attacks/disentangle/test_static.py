"""Prototypes of frozen extractors: solved without a model, and certified where a round is spare."""

from __future__ import annotations

import pytest
import torch

from fedre_privacy.attacks.disentangle import Disentangle
from fedre_privacy.attacks.mixtures.static_prototypes import static_prototypes
from fedre_privacy.core.rng import stream
from fedre_privacy.threats.base import threats, threats_granting

FROZEN = {"threat": threats.get("frozen-extractor")}


def relative(found, truth):
    return (found.vectors.double() - truth).norm(dim=1) / truth.norm(dim=1)


def noise(*shape):
    return torch.randn(shape, generator=stream(5, "noise"), dtype=torch.float64)


def test_rounds_equal_to_classes_give_all_and_one_more_certifies_them(watch, prototypes, weights):
    truth, mixed = prototypes(6), weights(7, 6)
    sent = (mixed @ truth).float()  # as uploads are
    exact = Disentangle()(watch({0: (mixed[:6], sent[:6])}, **FROZEN))
    assert float(relative(exact, truth).max()) < 1e-5
    assert not bool(exact.certified.any()) and "nothing checks" in exact.notes[0]
    checked = Disentangle()(watch({0: (mixed, sent)}, **FROZEN))
    assert float(relative(checked, truth).max()) < 1e-5 and bool(checked.certified.all())
    fewer = Disentangle()(watch({0: (mixed[:5], sent[:5])}, **FROZEN))
    assert "filled by the prior" in fewer.notes[0] and not bool(fewer.certified.any())
    assert float(relative(fewer, truth).max()) > 0.1
    unknown = Disentangle()(watch({0: (mixed, sent)}))
    assert "kalman" in unknown.notes[0] and "static" in checked.notes[0]


def test_certificates_are_for_none_where_prototypes_move_or_uploads_are_noise(
    watch, prototypes, weights
):
    truth, mixed = prototypes(5), weights(8, 5)
    seen = {
        "drift": torch.stack(
            [row @ (truth + 0.2 * t * noise(5, 64)) for t, row in enumerate(mixed)]
        ),
        "noise": 1 + noise(8, 64),
        "another client": weights(8, 5, 9) @ prototypes(5, 9),
    }
    for uploads in seen.values():
        found = Disentangle()(watch({0: (mixed, uploads)}, **FROZEN))
        assert not bool(found.certified.any()) and float(relative(found, truth).min()) > 0.1


def test_one_hot_weights_certify_the_classes_that_were_seen_twice(watch, prototypes):
    truth = prototypes(3)
    shown = torch.eye(3, dtype=torch.float64)[[0, 1, 0, 2, 0, 1]]
    found = Disentangle()(watch({0: (shown, shown @ truth)}, **FROZEN))
    assert float(relative(found, truth).max()) < 1e-6
    assert found.certified.tolist() == [True, True, False]
    # single samples of a class differ: their mean is the answer, and no certificate
    samples = shown @ truth + noise(6, 64)
    found = Disentangle()(watch({0: (shown, samples)}, **FROZEN))
    mean = samples[shown[:, 0] > 0].mean(0)
    assert float((found.vectors[0] - mean).norm() / mean.norm()) < 0.5
    assert not bool(found.certified.any())


@pytest.mark.parametrize("rows", [1, 7])
def test_the_same_weights_in_each_round_are_one_equation(rows, watch, prototypes, weights):
    truth, mixed = prototypes(4), weights(1, 4).repeat(rows, 1)
    found = Disentangle()(watch({0: (mixed, mixed @ truth)}, **FROZEN))
    assert bool(found.vectors.isnan().all()) and not bool(found.certified.any())
    assert "cannot be told apart" in found.notes[0]


def test_noise_is_found_and_the_answer_better_than_least_squares(prototypes, weights):
    truth, mixed = prototypes(6), weights(8, 6)
    uploads = mixed @ truth + 0.2 * noise(8, 64)
    found = static_prototypes(mixed, uploads, torch.arange(8))
    plain = torch.linalg.pinv(mixed) @ uploads
    assert float((found.vectors - truth).norm()) < 0.8 * float((plain - truth).norm())
    assert float(found.relative_error.min()) > 0.05


def test_no_hint_names_a_threat_model_that_asks_for_a_frozen_extractor():
    assert not {"frozen-extractor", "public-backbone"} & set(threats_granting(set()))
