"""What comes back of known mixtures, and what is said where nothing can."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.disentangle import Disentangle
from fedre_privacy.core.artifacts import EntangledRep, HeadState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredPrototypes
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Broadcast, Knowledge, Upload
from fedre_privacy.threats.base import threats

SOLVERS = ("kalman", "ridge", "non-negative", "least-squares", "static")


def relative(found: RecoveredPrototypes, truth: Tensor) -> Tensor:
    return (found.vectors.double() - truth).norm(dim=1) / truth.norm(dim=1)


def test_it_is_registered():
    assert attacks.get("disentangle") is Disentangle and Disentangle.answers == "prototypes"


# --- exact where the prototypes stand still ------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_resampled_weights_give_standing_prototypes_back(solver, watch, prototypes, weights):
    truth, mixed = prototypes(6), weights(12, 6)
    found = Disentangle(solver=solver)(watch({3: (mixed, mixed @ truth)}))
    assert float(relative(found, truth).max()) < 1e-6
    assert found.labels.tolist() == [1, 3, 5, 7, 9, 11] and set(found.clients.tolist()) == {3}
    assert set(found.rounds.tolist()) == {12} and set(found.rounds_used.tolist()) == {12}
    smallest = torch.linalg.svdvals(mixed).min()
    assert torch.allclose(found.s_min.double(), smallest.expand(6), rtol=1e-5)
    assert float(found.expected_error.max()) < 1e-4


def test_as_many_rounds_as_classes_are_enough(watch, prototypes, weights):
    truth, mixed = prototypes(5), weights(5, 5)
    found = Disentangle(solver="least-squares")(watch({0: (mixed, mixed @ truth)}))
    assert float(relative(found, truth).max()) < 1e-6
    assert bool(found.expected_error.isnan().all())  # no residual to judge by


def test_clients_do_not_disturb_each_other(watch, prototypes, weights):
    one, two = prototypes(3, 1), prototypes(4, 2)
    clients = {7: (weights(9, 3), weights(9, 3) @ one), 2: (weights(9, 4), weights(9, 4) @ two)}
    both = Disentangle()(watch(clients))
    assert both.clients.tolist() == [2] * 4 + [7] * 3
    alone = Disentangle()(watch({7: clients[7]}))
    assert torch.equal(both.vectors[4:], alone.vectors)


def test_only_the_latest_rounds_up_to_the_attacked_one(watch, prototypes, weights):
    truth, old, mixed = prototypes(3), prototypes(3, 9), weights(10, 3)
    uploads = torch.cat([mixed[:4] @ old, mixed[4:8] @ truth, mixed[8:] @ old])
    seen = watch({0: (mixed, uploads)})
    seen = replace(seen, targets=(seen.uploads[7],))
    found = Disentangle(rounds=4, solver="least-squares")(seen)
    assert float(relative(found, truth).max()) < 1e-6
    assert set(found.rounds.tolist()) == {8} and set(found.rounds_used.tolist()) == {4}


# --- what is recognised --------------------------------------------------------------------------


def test_a_single_class_is_returned_as_it_is(watch, prototypes):
    uploads = prototypes(1).float() * torch.tensor([[1.0], [2.0], [3.0]])
    found = Disentangle()(watch({0: (torch.ones(3, 1), uploads)}))
    assert torch.equal(found.vectors, uploads[-1:])
    assert found.s_min.tolist() == [1] and found.rounds_used.tolist() == [1]
    assert found.expected_error.tolist() == [0]
    assert "one class" in found.notes[0]
    alone = Disentangle()(watch({0: (torch.ones(1, 1), uploads[-1:])}))
    assert alone.s_min.tolist() == [1] and torch.equal(alone.vectors, uploads[-1:])


def test_one_hot_encodings_hide_nothing(watch, prototypes):
    shown = torch.tensor([0, 2, 1, 2])
    uploads = prototypes(4).float()  # of four rounds
    found = Disentangle()(watch({0: (nn.functional.one_hot(shown).float(), uploads)}))
    assert torch.equal(found.vectors, uploads[[0, 2, 3]])
    assert found.rounds.tolist() == [1, 3, 4]
    assert found.s_min.tolist() == [1] * 3 and found.rounds_used.tolist() == [3] * 3
    assert "one-hot" in found.notes[0]


@pytest.mark.parametrize("solver", ("auto", *SOLVERS))
def test_fixed_weights_cannot_be_told_apart(solver, watch, prototypes, weights):
    truth, mixed = prototypes(4), weights(1, 4).repeat(12, 1)
    seen = watch({0: (mixed, mixed @ truth), 1: (weights(12, 4), weights(12, 4) @ truth)})
    found = Disentangle(solver=solver)(seen)
    fixed = found.clients == 0
    assert bool(found.vectors[fixed].isnan().all() and found.expected_error[fixed].isnan().all())
    assert bool(found.vectors[~fixed].isfinite().all())
    assert "same weights in every round" in found.notes[0] and "client 0" in found.notes[0]


def test_one_upload_cannot_be_told_apart(watch, prototypes, weights):
    found = Disentangle()(watch({0: (weights(1, 4), weights(1, 4) @ prototypes(4))}))
    assert bool(found.vectors.isnan().all()) and "one upload" in found.notes[0]


@pytest.mark.parametrize("solver", SOLVERS)
def test_too_few_rounds_are_said(solver, watch, prototypes, weights):
    truth, mixed = prototypes(8), weights(5, 8)
    found = Disentangle(solver=solver)(watch({0: (mixed, mixed @ truth)}))
    assert "rank 5 for 8 classes" in found.notes[0] and set(found.s_min.tolist()) == {0}
    if solver in ("least-squares", "static"):
        assert bool(found.vectors.isnan().all()) and "nothing is returned" in found.notes[0]
    else:
        assert bool(found.vectors.isfinite().all())
    if solver == "kalman":  # it knows that it does not know
        assert (
            float(found.expected_error.mean()) > 0.5 * float(relative(found, truth).mean()) > 0.05
        )


def test_repeated_weights_lower_the_rank(watch, prototypes, weights):
    mixed = weights(3, 5).repeat(4, 1)
    found = Disentangle(solver="least-squares")(watch({0: (mixed, mixed @ prototypes(5))}))
    assert "rank 3 for 5 classes" in found.notes[0] and bool(found.vectors.isnan().all())


def test_an_upload_that_is_not_finite_is_left_out(watch, prototypes, weights):
    truth, mixed = prototypes(3), weights(8, 3)
    uploads = mixed @ truth
    uploads[2, 5] = torch.nan
    found = Disentangle(solver="least-squares")(watch({0: (mixed, uploads)}))
    assert float(relative(found, truth).max()) < 1e-6 and set(found.rounds_used.tolist()) == {7}


# --- better than the trivial answer, and only because of the uploads -----------------------------


def drifting(truth: Tensor, mixed: Tensor, step: float) -> tuple[Tensor, Tensor]:
    rng = stream(0, "drift")
    uploads = []
    for row in mixed:
        truth = truth + step * torch.randn(truth.shape, generator=rng, dtype=truth.dtype)
        uploads.append(row @ truth)
    return torch.stack(uploads), truth


@pytest.mark.parametrize("solver", SOLVERS)
def test_it_beats_the_trivial_answer(solver, watch, prototypes, weights):
    mixed = weights(30, 6)
    uploads, truth = drifting(prototypes(6), mixed, 0.02)
    found = Disentangle(solver=solver)(watch({0: (mixed, uploads)}))
    trivial = (uploads.mean(0) - truth).norm(dim=1) / truth.norm(dim=1)
    assert float(relative(found, truth).mean()) < 0.6 * float(trivial.mean())


@pytest.mark.parametrize("solver", ["kalman", "ridge"])
def test_noise_for_uploads_falls_to_the_trivial_answer(solver, watch, prototypes, weights):
    truth, mixed = prototypes(6), weights(30, 6)
    rng = stream(0, "noise")
    noise = truth.mean(0) + torch.randn(30, 64, generator=rng, dtype=torch.float64)
    found = Disentangle(solver=solver)(watch({0: (mixed, noise)}))
    centre = truth.mean(0)
    cosine = torch.cosine_similarity(found.vectors.double() - centre, truth - centre, dim=1)
    assert abs(float(cosine.mean())) < 0.1
    trivial = (noise.mean(0) - truth).norm(dim=1) / truth.norm(dim=1)
    assert float(relative(found, truth).mean()) > 0.9 * float(trivial.mean())


def test_the_expected_error_follows_the_true_one(watch, prototypes, weights):
    expected, actual = [], []
    for client, (rounds, step) in enumerate([(40, 0.01), (40, 0.1), (12, 0.03), (8, 0.1), (7, 0)]):
        mixed = weights(rounds, 6, client)
        uploads, truth = drifting(prototypes(6, client), mixed, step)
        found = Disentangle(solver="kalman", clamp=False)(watch({0: (mixed, uploads)}))
        expected.append(found.expected_error.double())
        actual.append(relative(found, truth))
    known, said = torch.cat(actual)[:24], torch.cat(expected)[:24]
    assert float(torch.corrcoef(torch.stack([known.log(), said.log()]))[0, 1]) > 0.9
    assert 0.7 < float((said / known).median()) < 1.4
    assert float(actual[-1].max()) < 1e-3 and float(expected[-1].max()) < 1e-3


def test_answers_are_not_negative_where_uploads_are_not(watch, prototypes, weights):
    mixed = weights(8, 6)
    uploads, _ = drifting(prototypes(6) - 0.5, mixed, 0.1)
    seen = watch({0: (mixed, uploads.abs())})
    assert float(Disentangle(solver="least-squares")(seen).vectors.min()) == 0
    assert float(Disentangle(solver="least-squares", clamp=False)(seen).vectors.min()) < 0
    shifted = watch({0: (mixed, uploads.abs() - 3)})
    assert float(Disentangle(solver="least-squares")(shifted).vectors.min()) < -1


# --- the head as prior ---------------------------------------------------------------------------


def test_the_head_fills_what_few_rounds_leave_open(watch, prototypes, weights):
    directions = torch.randn(40, 64, generator=stream(0, "head"), dtype=torch.float64)
    truth = prototypes(1) + 3 * directions[1:21:2] + 0.1 * prototypes(10)
    mixed = weights(5, 10)
    threat = threats.get("realistic")
    heads = (Broadcast(5, (0,), (HeadState({"bias": torch.ones(40), "weight": directions}),)),)
    seen = watch({0: (mixed, mixed @ truth)}, threat=threat, broadcasts=heads)
    with_head, without = (Disentangle(head_prior=on)(seen) for on in (True, False))
    assert torch.equal(Disentangle()(seen).vectors, with_head.vectors)  # where it is granted
    assert float(relative(with_head, truth).mean()) < 0.1 < float(relative(without, truth).mean())


def test_the_head_prior_needs_the_head(watch, prototypes, weights):
    seen = watch({0: (weights(5, 4), weights(5, 4) @ prototypes(4))})
    with pytest.raises(IncompatibleError, match="needs HEAD; threat model 'eavesdropper'"):
        Disentangle(head_prior=True)(seen)
    with pytest.raises(IncompatibleError, match="no broadcast holds a head"):
        Disentangle(head_prior=True)(replace(seen, threat=threats.get("realistic")))


# --- extractors and auxiliary images -------------------------------------------------------------


class Extractor(nn.Module):
    """A random ReLU layer that has turned by `angle` since round 0."""

    def __init__(self, angle: float) -> None:
        super().__init__()
        first, second = torch.randn(2, 64, 48, generator=stream(1, "layer"))
        self.weight = nn.Parameter(first + angle * second)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.weight).relu()


@pytest.fixture
def trained(watch, weights):
    """Twelve rounds of four classes through an extractor that turns, images of 8 x 8."""
    rng = stream(0, "images")
    basis = torch.randn(20, 64, generator=rng)

    def images(count: int) -> Tensor:
        mixed = (0.5 + 0.1 * torch.randn(count, 20, generator=rng) @ basis).clamp(0, 1)
        return mixed.reshape(-1, 1, 8, 8)

    private, aux, mixed = images(4), images(300), weights(12, 4)
    nets = [Extractor(0.15 * t) for t in range(12)]
    with torch.no_grad():
        reps = torch.stack([net(private) for net in nets]).double()
    uploads = torch.einsum("tn,tnd->td", mixed, reps)
    seen = watch(
        {0: (mixed, uploads)},
        threat=threats.get("strong"),
        aux=aux,
        extractors={(0, t + 1): net for t, net in enumerate(nets)},
    )
    return seen, reps[-1]


def test_alignment_sees_through_drift(trained):
    seen, truth = trained
    aligned = Disentangle()(seen)
    assert aligned.notes == ("client 0: aligned, 12 rounds",)
    for solver in SOLVERS:
        rest = Disentangle(solver=solver)(seen)
        assert relative(aligned, truth).mean() < 0.6 * relative(rest, truth).mean()
    assert float(relative(aligned, truth).mean()) < 0.2
    ratio = aligned.expected_error.double() / relative(aligned, truth)
    assert 0.3 < float(ratio.median()) < 3


def test_class_means_of_auxiliary_images_help_where_rounds_are_few(trained):
    seen, truth = trained
    rng = stream(4, "aux labels")
    labels = torch.tensor([1, 3, 5, 7]).repeat_interleave(75)
    private = seen.aux[:4]  # each class is one picture, its auxiliary images look like it
    aux = (private[labels // 2] + 0.05 * torch.randn(300, 1, 8, 8, generator=rng)).clamp(0, 1)
    mixed = torch.stack([u.artifacts[0].encoding[[1, 3, 5, 7]] for u in seen.uploads])
    with torch.no_grad():
        reps = torch.stack([net(private) for net in seen.extractors.values()]).double()
    uploads = [
        replace(u, artifacts=(EntangledRep(row @ rep, u.artifacts[0].encoding),))
        for u, row, rep in zip(seen.uploads, mixed, reps, strict=True)
    ]
    few = replace(
        seen, aux=aux, aux_labels=labels, uploads=tuple(uploads[-3:]), targets=(uploads[-1],)
    )
    for solver in ("aligned", "kalman", "ridge"):
        common, drawn = (Disentangle(solver=solver, prior=p)(few) for p in ("common", "class-mean"))
        assert "class means as prior" in drawn.notes[-1] and "prior" not in common.notes[-1]
        wrong, right = (float(relative(f, reps[-1]).mean()) for f in (common, drawn))
        assert right < 0.5 * wrong


def test_the_class_mean_prior_needs_an_extractor_and_labelled_images(trained):
    seen, _ = trained
    with pytest.raises(IncompatibleError, match="needs AUX-DATA"):
        Disentangle(prior="class-mean")(replace(seen, threat=threats.get("fedre-paper")))
    with pytest.raises(IncompatibleError, match="needs labels of the auxiliary images"):
        Disentangle(prior="class-mean")(seen)
    labelled = replace(seen, aux_labels=torch.zeros(300, dtype=torch.int64), extractors={})
    with pytest.raises(IncompatibleError, match="extractor of client 0 in round 12; it was not"):
        Disentangle(prior="class-mean", solver="kalman")(labelled)


def test_noise_for_uploads_tells_alignment_nothing(trained):
    seen, truth = trained
    rng = stream(0, "noise uploads")
    noise = [
        replace(u, artifacts=(replace(a, rep=truth.mean(0) + torch.randn(48, generator=rng)),))
        for u in seen.uploads
        for a in u.artifacts
    ]
    found = Disentangle()(replace(seen, uploads=tuple(noise), targets=(noise[-1],)))
    assert "aligned" in found.notes[0]
    centre = truth.mean(0)
    cosine = torch.cosine_similarity(found.vectors.double() - centre, truth - centre, dim=1)
    assert abs(float(cosine.mean())) < 0.15


def test_an_old_extractor_for_the_last_round_is_noticed(trained):
    seen, truth = trained
    held = {k: v for k, v in seen.extractors.items() if k[1] <= 9}
    old = {**held, (0, 12): seen.extractors[0, 9]}
    found = Disentangle()(replace(seen, extractors=old))
    assert "2 rounds without an extractor" in found.notes[0]
    assert "last upload left out" in found.notes[1] and set(found.rounds_used.tolist()) == {9}
    alone = Disentangle()(replace(seen, targets=(seen.uploads[8],), extractors=held))
    assert torch.allclose(found.vectors, alone.vectors)


def test_a_model_that_stands_still_is_not_taken_for_an_old_one(trained):
    seen, _ = trained
    frozen = {k: seen.extractors[0, 1] for k in seen.extractors}
    found = Disentangle()(replace(seen, extractors=frozen))
    assert set(found.rounds_used.tolist()) == {12}


def test_auxiliary_images_unlike_the_private_ones_still_align(trained):
    seen, truth = trained
    noise = torch.rand(seen.aux.shape, generator=stream(0, "noise images"))
    found = Disentangle()(replace(seen, aux=noise))
    rest = Disentangle(solver="kalman")(seen)
    assert relative(found, truth).mean() < 0.8 * relative(rest, truth).mean()


def test_rounds_without_an_extractor_are_left_out(trained):
    seen, _ = trained
    some = {k: v for k, v in seen.extractors.items() if k[1] != 3}
    found = Disentangle()(replace(seen, extractors=some))
    assert "1 rounds without an extractor" in found.notes[0]
    assert set(found.rounds_used.tolist()) == {11}
    only_last = {(0, 12): seen.extractors[0, 12]}
    assert "kalman" in Disentangle()(replace(seen, extractors=only_last)).notes[0]
    with pytest.raises(IncompatibleError, match="extractors of client 0 in round 12 and an earl"):
        Disentangle(solver="aligned")(replace(seen, extractors=only_last))


def test_auto_uses_no_more_than_is_granted(trained):
    seen, _ = trained
    weak = replace(seen, threat=threats.get("realistic"))
    assert "kalman" in Disentangle()(weak).notes[0]
    with pytest.raises(IncompatibleError, match=f"needs {Knowledge.ALL_EXTRACTORS.upper()}"):
        Disentangle(solver="aligned")(weak)


def test_extractors_are_left_as_they_were(trained):
    seen, _ = trained
    seen.extractors[0, 12].train()
    before = [p.clone() for m in seen.extractors.values() for p in m.parameters()]
    Disentangle()(seen)
    after = [p for m in seen.extractors.values() for p in m.parameters()]
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, after, strict=True))
    assert seen.extractors[0, 12].training


def test_a_foreign_extractor_is_refused(trained):
    seen, _ = trained
    wrong = {k: nn.Flatten() for k in seen.extractors}
    with pytest.raises(IncompatibleError, match="returns 64 values; its uploads hold 48"):
        Disentangle()(replace(seen, extractors=wrong))


def test_nothing_to_work_on_is_refused(watch):
    empty = EntangledRep(torch.full((4,), torch.nan), torch.ones(40) / 40)
    upload = Upload(0, 1, (empty,))
    with pytest.raises(IncompatibleError, match="No attacked client has a finite"):
        Disentangle()(replace(watch({}), targets=(upload,), uploads=(upload,)))
