"""Confidence as a probability: victims made of auxiliary images, and what is learnt from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedre_privacy.attacks.base import Context, confidence_of, mismatch
from fedre_privacy.attacks.calibration.base import features, fit_logistic
from fedre_privacy.attacks.calibration.simulated_targets import (
    LINEUP,
    counts_of,
    identification_rate,
    imitable,
    victims,
)
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.linear import LinearDecoder
from fedre_privacy.core.artifacts import Counts, EntangledRep, Prototypes, Representations
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import LocalTrainingFacts, Upload
from fedre_privacy.data.base import datasets
from fedre_privacy.threats.base import threats

CPU = torch.device("cpu")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def many():
    """400 digits, shuffled: forty behind targets, the rest auxiliary."""
    data = datasets.get("digits")(size=16, per_class=40).load()
    order = torch.randperm(400, generator=rng())
    return data.images[order].float() / 255, data.labels[order]


@pytest.fixture
def singles(many, observe, rotation):
    images, labels = many
    nets = {(0, 1): rotation(0), (2, 1): rotation(1)}
    sent = [
        Representations(net(images[20 * i : 20 * i + 20]), labels[20 * i : 20 * i + 20])
        for i, net in enumerate(nets.values())
    ]
    seen = observe([], nets, threat="strong", artifacts=sent)
    return replace(seen, aux=images[40:], aux_labels=labels[40:])


def prototypes(singles, *, counts=None):
    """Two targets of each client, with or without numbers of images beside them."""
    uploads = []
    for upload in singles.targets:
        rows = upload.artifacts[0].rows()
        sent = (Prototypes(rows[:2], torch.tensor([3, 5])),)
        more = () if counts is None else (Counts(torch.tensor(counts)),)
        uploads.append(replace(upload, artifacts=sent + more))
    kept = tuple(replace(u, artifacts=u.artifacts[:1]) for u in uploads)
    return replace(singles, targets=kept, uploads=tuple(uploads))


def answers(images):
    count = len(images)
    return Reconstruction(
        images=images,
        prior=torch.zeros_like(images),
        fit=torch.zeros(count),
        trace=torch.zeros(1, count),
        trace_steps=torch.zeros(1),
        stopped_because="done",
        diverged=torch.zeros(count, dtype=torch.bool),
    )


def test_the_regression_is_that_of_a_known_library():
    from sklearn.linear_model import LogisticRegression

    rows = torch.randn(60, 3, generator=rng(), dtype=torch.float64) * torch.tensor([1.0, 5, 0.1])
    right = (rows[:, 0] + torch.randn(60, generator=rng(1)) > 0).double()
    model = fit_logistic(rows, right)
    scaled = (rows - rows.mean(0)) / rows.std(0, correction=0)
    table = np.concatenate([scaled.numpy(), np.zeros((2, 3))])
    wanted = np.concatenate([right.numpy(), [0, 1]])
    weight = np.concatenate([np.ones(60), [0.5, 0.5]])
    known = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000)
    known.fit(table, wanted, sample_weight=weight)
    expected = known.predict_proba(scaled.numpy())[:, 1]
    assert np.allclose(model(rows).numpy(), expected, atol=1e-5)


def test_where_all_are_right_or_none_the_share_is_said_and_nothing_beyond_the_range():
    rows = torch.randn(50, 2, generator=rng())
    assert bool((fit_logistic(rows, torch.ones(50))(rows) > 0.95).all())
    assert bool((fit_logistic(rows, torch.zeros(50))(rows) < 0.05).all())
    model = fit_logistic(rows, (rows[:, 0] > 0).float())
    assert torch.equal(model(torch.full((1, 2), 1e6)), model(rows.amax(0, keepdim=True)))
    assert model(torch.full((1, 2), torch.nan)).isnan().all()


def test_what_is_the_same_in_all_victims_does_not_decide():
    rows = torch.cat([torch.full((40, 1), -27.6), torch.full((4, 1), -1.0)])
    strange = torch.arange(44) >= 40
    model = fit_logistic(rows, (~strange).float(), strange)
    assert float(model(torch.tensor([[-25.0]]))) > 0.9  # no error of rounding is a wrong answer
    assert float(model(torch.tensor([[-1.0]]))) < 0.5


def test_victims_are_of_auxiliary_images_that_the_attack_does_not_get(singles):
    made = victims(singles, 60, rng(), Context())
    assert made is not None and len(made.supports) == made.observation.image_count() == 66
    assert int(made.strangers.sum()) == 6
    used = torch.cat(list(made.supports)).unique()
    spared = singles.aux[used].flatten(1)
    left = made.observation.aux.flatten(1)
    assert not bool((left[:, None] == spared[None]).all(2).any())
    assert len(left) + len(spared) <= len(singles.aux)
    for upload, artifact in ((u, a) for u in made.observation.targets for a in u.artifacts):
        reps = singles.extractors[upload.client, upload.round](singles.aux)
        labels = [int(label) for label in artifact.labels]
        gap, rows = torch.cdist(artifact.rows(), reps).min(1)
        assert singles.aux_labels[rows][:30].tolist() == labels[:30]
        assert float(gap[:30].max()) < 0.05 and float(gap[30:].min()) > 1
    again = victims(singles, 60, rng(), Context())
    assert torch.equal(again.observation.target_rows()[0], made.observation.target_rows()[0])


def test_prototypes_are_imitated_with_as_many_images_as_are_known_or_likely(singles):
    seen = prototypes(singles, counts=[1, 7])
    assert counts_of(seen).tolist() == [1, 7, 1, 7]
    made = victims(seen, 40, rng(), Context())
    behind = [len(support) for support in made.supports]
    assert made.counts[~made.strangers].tolist().count(1) == 20
    assert behind.count(1) >= 20 and max(behind) <= 7
    untold = prototypes(singles)
    assert bool(counts_of(untold).isnan().all())
    sizes = {0: 20, 2: 20}
    few = replace(untold, training=LocalTrainingFacts(0.1, 1, 10, sizes))
    behind = [len(support) for support in victims(few, 200, rng(), Context()).supports]
    assert max(behind) <= 20 and 10 < behind.count(1) < 80


def test_what_cannot_be_imitated_stays_a_ranking(singles):
    assert imitable(singles) and imitable(prototypes(singles))
    assert not imitable(replace(singles, aux=None))
    assert not imitable(replace(singles, aux_labels=None))
    assert not imitable(replace(singles, aux=singles.aux[:30], aux_labels=singles.aux_labels[:30]))
    assert not imitable(replace(singles, extractors={}))
    recovered = replace(prototypes(singles), uploads=())
    assert not imitable(recovered)
    assert imitable(
        replace(
            recovered, targets=tuple(replace(u, counterfactual=True) for u in recovered.targets)
        )
    )
    mixed = EntangledRep(singles.target_rows()[0][0], torch.full((10,), 0.1))
    alone = tuple(Upload(u.client, u.round, (mixed,)) for u in singles.targets)
    assert victims(replace(singles, targets=alone, uploads=alone), 100, rng(), Context()) is None


def test_line_ups_are_won_by_the_right_image_alone(many):
    images, labels = many
    supports = [torch.tensor([i]) for i in range(30)]
    assert identification_rate(images[:30], supports, images, labels, rng()).tolist() == [1.0] * 30
    others = identification_rate(images[30:60], supports, images, labels, rng())
    assert float(others.mean()) <= 0.1
    of_two = [torch.tensor([i, i + 100]) for i in range(30)]
    half = identification_rate(images[:30], of_two, images, labels, rng())
    assert 0.3 < float(half.mean()) < 0.7


def test_features_are_higher_where_an_answer_explains_its_target(singles, many):
    images, labels = many
    counts = counts_of(singles)
    right = features(singles, answers(images[:40]), *many_aux(singles), counts, Context())
    wrong = features(
        singles, answers(images[:40].roll(1, 0)), *many_aux(singles), counts, Context()
    )
    assert float(right[:, 0].max()) < float(wrong[:, 0].min())
    assert float(right[:, 1].min()) > float(wrong[:, 1].max())
    assert bool((right[:, 2] == 0).all())  # one image each is known
    untold = torch.full_like(counts, torch.nan)
    spread = features(singles, answers(images[:40]), *many_aux(singles), untold, Context())[:, 2]
    assert -1 < float(spread.median()) < 1
    lost = images[:40].clone()
    lost[3] = torch.nan
    nothing = features(singles, answers(lost), *many_aux(singles), counts, Context())
    assert nothing.isnan().any(1).nonzero().flatten().tolist() == [3]


def many_aux(seen):
    return seen.aux, seen.aux_labels


def test_linear_says_how_likely_its_answers_are_found(singles):
    context = Context(seed=3)
    said = LinearDecoder()(singles, context)
    assert f"found among {LINEUP}" in said.calibrated
    assert bool((said.confidence >= 0).all() and (said.confidence <= 1).all())
    assert float(said.confidence.mean()) > 0.8  # an extractor that loses nothing
    ranked = LinearDecoder(victims=0)(singles, context)
    assert not ranked.calibrated and torch.equal(ranked.images, said.images)
    assert torch.equal(ranked.confidence, confidence_of(singles, ranked, CPU))
    assert torch.equal(said.confidence, LinearDecoder()(singles, context).confidence)
    blind = LinearDecoder()(replace(singles, aux_labels=None), context)
    assert not blind.calibrated


def test_noise_in_place_of_uploads_is_not_believed(singles):
    rows, _ = singles.target_rows()
    drawn = torch.randn(rows.shape, generator=rng())
    drawn = drawn / drawn.norm(dim=1, keepdim=True) * rows.norm(dim=1, keepdim=True)
    noise = tuple(
        replace(u, artifacts=(Representations(part, u.artifacts[0].labels),))
        for u, part in zip(singles.targets, drawn.split(20), strict=True)
    )
    said = LinearDecoder()(replace(singles, targets=noise, uploads=noise), Context(seed=3))
    assert said.calibrated
    ranked = LinearDecoder()(singles, Context(seed=3))
    assert float(said.confidence.mean()) < float(ranked.confidence.mean()) - 0.5


def test_victims_need_auxiliary_images():
    asked = DeepImagePrior(victims=50)
    said = mismatch(asked, threats.get("fedre-paper"), {Prototypes})
    assert len(said) == 1 and "needs AUX-DATA" in said[0]
    assert mismatch(asked, threats.get("strong"), {Prototypes}) == []
    assert mismatch(DeepImagePrior(), threats.get("fedre-paper"), {Prototypes}) == []
