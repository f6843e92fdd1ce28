"""Label inference on uploads whose labels are known."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.common.client_messages import messages_of
from fedre_privacy.attacks.gradients.head_labels import head_of
from fedre_privacy.attacks.labels import unmix
from fedre_privacy.attacks.mixtures.label_encodings import common_divisor, effective_number
from fedre_privacy.core.artifacts import (
    ClassLogits,
    Counts,
    EntangledRep,
    GradientState,
    HeadState,
    LowRankChange,
    LowRankModel,
    MatrixBlocks,
    ModelState,
    Prototypes,
    Representations,
    SmallModelState,
)
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Broadcast, LocalTrainingFacts, Observation, Upload
from fedre_privacy.entanglement.base import Draw, schemes
from fedre_privacy.threats.base import threats

CLASSES = 6
LABELS = torch.tensor([0] * 25 + [2] * 10 + [3] * 4 + [5])
COUNTS = torch.bincount(LABELS, minlength=CLASSES)
HELD = [True, False, True, True, False, True]


def watch(
    uploads: list[Upload],
    *,
    threat: str = "realistic",
    broadcasts: list[Broadcast] | None = None,
    targets: list[Upload] | None = None,
    classes: int = CLASSES,
    **extra,
) -> Observation:
    """An observation whose targets are the last round's uploads."""
    last = max(upload.round for upload in uploads)
    return Observation(
        threat=threats.get(threat),
        targets=tuple(targets or [u for u in uploads if u.round == last]),
        uploads=tuple(uploads),
        broadcasts=tuple(broadcasts or ()),
        extractors={},
        image_shape=(1, 4, 4),
        num_classes=classes,
        **extra,
    )


def infer(observation: Observation, **settings) -> LabelEstimate:
    return attacks.get("labels")(**settings)(observation)


def entangled(
    name: str, rounds: int, labels: Tensor = LABELS, *, seed: int = 0, dim: int = 4, **settings
) -> list[Upload]:
    scheme = schemes.get(name)(**settings)
    reps = torch.zeros(len(labels), dim)
    sent = []
    for t in range(1, rounds + 1):
        draw = Draw(
            labels=labels, num_classes=CLASSES, dim=dim, seed=seed, secret=seed, client=0, round=t
        )
        emission = scheme(reps, draw)
        if emission is not None:
            sent.append(Upload(0, t, (emission.artifact,)))
    return sent


def held(found: LabelEstimate) -> list[bool]:
    return (found.support[0] > 0.5).tolist()


def shares(labels: Tensor = LABELS) -> Tensor:
    return torch.bincount(labels, minlength=CLASSES) / len(labels)


# --- labels and counts that are sent ---------------------------------------------------------


@pytest.mark.parametrize("kind", [Prototypes, ClassLogits])
def test_labels_of_classes_give_the_support_and_nothing_else(kind):
    found = infer(watch([Upload(0, 1, (kind(torch.ones(4, 6), torch.tensor([0, 2, 3, 5])),))]))
    assert found.support[0].tolist() == [1, 0, 1, 1, 0, 1]
    assert found.proportions.isnan().all() and found.sizes.isnan().all()


def test_labels_of_samples_give_everything():
    found = infer(watch([Upload(0, 1, (Representations(torch.ones(len(LABELS), 3), LABELS),))]))
    assert held(found) == HELD and float(found.sizes[0]) == len(LABELS)
    assert torch.equal(found.proportions[0], shares())


def test_a_few_rows_of_an_upload_are_read_from_the_whole_of_it():
    whole = Representations(torch.ones(len(LABELS), 3), LABELS)
    part = Upload(0, 1, (whole.take(torch.tensor([0, 30])),))
    found = infer(watch([Upload(0, 1, (whole,))], targets=[part]))
    assert float(found.sizes[0]) == len(LABELS)


def test_a_target_that_was_never_sent_stands_for_itself():
    guess = Upload(0, 1, (Prototypes(torch.ones(1, 3), torch.tensor([4])),), counterfactual=True)
    sent = Upload(0, 1, (HeadState({"bias": torch.zeros(CLASSES)}),))
    kinds = messages_of(watch([sent], targets=[guess]))[0]
    assert set(kinds) == {Prototypes, HeadState}
    assert held(infer(watch([sent], targets=[guess]))) == [False] * 4 + [True, False]


@pytest.mark.parametrize(
    ("values", "size", "told"), [([40], 40.0, False), ([25, 0, 10, 4, 0, 1], 40.0, True)]
)
def test_counts_are_read_as_they_are(values, size, told):
    head = HeadState({"bias": torch.zeros(CLASSES)})
    sent = [Upload(0, 0, (Counts(torch.tensor(values)),)), Upload(0, 3, (head,))]
    found = infer(watch(sent))
    assert float(found.sizes[0]) == size
    assert bool(found.proportions.isfinite().all()) is told
    if told:
        assert torch.equal(found.proportions[0], shares()) and held(found) == HELD


def test_clients_come_in_order_and_unattacked_ones_not_at_all():
    def made(client: int) -> Upload:
        return Upload(client, 1, (Prototypes(torch.ones(1, 3), torch.tensor([client])),))

    found = infer(watch([made(k) for k in range(4)], targets=[made(3), made(1)]))
    assert found.clients.tolist() == [1, 3]
    assert found.support.argmax(1).tolist() == [1, 3]


# --- entangled representations -----------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 30])
def test_var_gives_everything_exactly(rounds):
    found = infer(watch(entangled("var", rounds)))
    assert held(found) == HELD and "read as VAR" in found.notes[0]
    assert torch.equal(found.proportions[0], shares())
    assert float(found.sizes[0]) == len(LABELS)


def test_var_with_a_common_factor_gives_shares_and_a_divisor():
    found = infer(watch(entangled("var", 2, LABELS.repeat(3))))
    assert torch.equal(found.proportions[0], shares()) and float(found.sizes[0]) == len(LABELS)
    assert "multiple" in found.notes[0]


@pytest.mark.parametrize(("name", "rounds"), [("vap", 1), ("vap", 9), ("rap", 1), ("rap", 12)])
def test_weights_per_class_give_the_support_only(name, rounds):
    found = infer(watch(entangled(name, rounds)))
    assert held(found) == HELD
    assert found.proportions.isnan().all() and found.sizes.isnan().all()
    expected = {"vap": "read as VAP", "rap": "read as RAP"}
    assert expected[name] in found.notes[0]


@pytest.mark.parametrize("seed", range(5))
def test_rap_is_never_taken_for_rar(seed):
    found = infer(watch(entangled("rap", 40, seed=seed)))
    assert "read as RAP (" in found.notes[0] and found.proportions.isnan().all()


@pytest.mark.parametrize("seed", range(5))
def test_rar_gives_shares_and_size(seed):
    labels = torch.tensor([0] * 200 + [2] * 100 + [3] * 60 + [5] * 40)
    found = infer(watch(entangled("rar", 200, labels, seed=seed)))
    assert "read as RAR" in found.notes[0] and held(found) == HELD
    assert float((found.proportions[0] - shares(labels)).abs().sum()) < 0.01
    assert abs(float(found.sizes[0]) - 400) / 400 < 0.2


def test_rar_with_equal_classes_is_told_by_its_spread():
    labels = torch.arange(4).repeat_interleave(50)
    found = infer(watch(entangled("rar", 20, labels)))
    assert "spread of about" in found.notes[0]
    assert float((found.proportions[0, :4] - 0.25).abs().max()) < 0.02


def test_rar_from_one_round_is_read_if_the_scheme_is_given():
    found = infer(watch(entangled("rar", 1)))
    assert found.proportions.isnan().all() and "RAP or RAR" in found.notes[0]
    told = infer(watch(entangled("rar", 1)), scheme="rar")
    assert float((told.proportions[0] - shares()).abs().sum()) < 0.2 and told.sizes.isnan().all()


@pytest.mark.parametrize(("law", "name"), [("gaussian", "abs"), ("laplace", "abs")])
def test_other_laws_need_their_own_spread(law, name):
    labels = torch.tensor([0] * 200 + [2] * 100)
    sent = watch(entangled("rar", 200, labels, weights=law, positive=name))
    assert abs(float(infer(sent, weights=law).sizes[0]) - 300) < 60
    assert abs(float(infer(sent).sizes[0]) - 300) > 60


def test_rsr_finds_classes_and_shares_in_time():
    found = infer(watch(entangled("rsr", 300)))
    assert "read as RSR" in found.notes[0] and held(found) == HELD
    assert float((found.proportions[0] - shares()).abs().sum()) < 0.15
    first = infer(watch(entangled("rsr", 1)))
    assert int((first.support[0] == 1).sum()) == 1 and float(first.support[0].min()) > 0
    assert held(first).count(True) == 1 and first.proportions.isnan().all()


def test_rsp_finds_classes_but_no_shares():
    found = infer(watch(entangled("rsp", 40)))
    assert held(found) == HELD and found.proportions.isnan().all()
    assert float(found.support[0, 1]) < 0.01  # unseen for 40 rounds


def test_one_class_in_every_round_is_a_single_class():
    found = infer(watch(entangled("rap", 10, torch.zeros(5).long())))
    assert found.proportions[0].tolist() == [1, 0, 0, 0, 0, 0]
    assert infer(watch(entangled("rap", 2, torch.zeros(5).long()))).proportions.isnan().all()


def test_noise_for_encodings_is_nobodys_histogram():
    drawn = torch.rand(30, CLASSES, generator=stream(1, "noise"))
    drawn = drawn / drawn.sum(1, keepdim=True)
    sent = [Upload(0, t + 1, (EntangledRep(torch.zeros(3), row),)) for t, row in enumerate(drawn)]
    found = infer(watch(sent))
    assert found.proportions.isnan().all() and found.sizes.isnan().all()
    bad = [Upload(0, 1, (EntangledRep(torch.zeros(3), torch.full((CLASSES,), torch.nan)),))]
    assert infer(watch(bad)).support.isnan().all()


def test_a_common_divisor_is_no_accident():
    assert common_divisor(torch.tensor([0.25, 0.75])) == 4
    assert common_divisor((COUNTS / COUNTS.sum()).float()) == 40
    accidents = sum(
        common_divisor(torch.rand(3, generator=stream(i, "x")).softmax(0)) > 0 for i in range(200)
    )
    assert accidents <= 6


def test_the_number_behind_a_spread():
    weights = torch.rand(4000, 50, generator=stream(0, "w"), dtype=torch.float64)
    encodings = (weights / weights.sum(1, keepdim=True)).reshape(4000, 5, 10).sum(2)
    assert effective_number(encodings, 1 / 3) == pytest.approx(50, rel=0.1)
    assert effective_number(encodings[:1].expand(4, -1), 1 / 3) == math.inf


# --- changes of heads ----------------------------------------------------------------------------


def train(model: nn.Linear, x: Tensor, y: Tensor, *, steps: int, lr: float) -> None:
    for _ in range(steps):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad


def head_before_and_after(*, steps: int, zeros: bool, lr: float = 0.5, labels: Tensor = LABELS):
    rng = stream(3, "head")
    centres = torch.rand(CLASSES, 20, generator=rng)
    x = centres[labels] + 0.3 * torch.rand(len(labels), 20, generator=rng)
    model = nn.utils.skip_init(nn.Linear, 20, CLASSES)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.1 * torch.randn(p.shape, generator=rng) * (0 if zeros else 1))
    before = {k: v.detach().clone() for k, v in model.named_parameters()}
    train(model, x, labels, steps=steps, lr=lr)
    return before, {k: v.detach().clone() for k, v in model.named_parameters()}


def as_head(params: dict[str, Tensor], kind):
    prefix = "" if kind is HeadState else "head."
    return kind({prefix + name: value for name, value in params.items()})


def one_step(batch: int = len(LABELS), sizes: int = len(LABELS)) -> LocalTrainingFacts:
    return LocalTrainingFacts(lr=0.5, epochs=1, batch_size=batch, sizes={0: sizes})


@pytest.mark.parametrize("kind", [HeadState, ModelState])
@pytest.mark.parametrize("labels", [LABELS, torch.tensor([4]), torch.tensor([1, 1, 1, 0, 5, 5])])
def test_a_head_of_zeros_gives_exact_counts(kind, labels):
    before, after = head_before_and_after(steps=1, zeros=True, labels=labels)
    sent = [Upload(0, 7, (as_head(after, kind),))]
    received = [Broadcast(7, (0,), (as_head(before, kind),))]
    known = one_step(len(labels), len(labels))
    found = infer(watch(sent, broadcasts=received, training=known))
    assert torch.allclose(found.proportions[0], shares(labels), atol=1e-6)
    assert held(found) == (torch.bincount(labels, minlength=CLASSES) > 0).tolist()
    assert found.sizes.isnan().all()  # known from TRAINING, so no inference


def test_a_gradient_at_a_head_of_zeros_gives_exact_counts():
    before, after = head_before_and_after(steps=1, zeros=True, lr=1.0)
    gradient = {f"head.{k}": before[k] - after[k] for k in before}
    sent = [Upload(0, 2, (GradientState(gradient),))]
    received = [Broadcast(2, (0,), (as_head(before, ModelState),))]
    found = infer(watch(sent, broadcasts=received, training=one_step()))
    assert torch.allclose(found.proportions[0], shares(), atol=1e-6)


def test_an_untrained_head_gives_shares_nearly():
    before, after = head_before_and_after(steps=1, zeros=False)
    sent, received = [Upload(0, 1, (as_head(after, HeadState),))], as_head(before, HeadState)
    found = infer(watch(sent, broadcasts=[Broadcast(1, (0,), (received,))], training=one_step()))
    assert float((found.proportions[0] - shares()).abs().sum()) < 0.4
    assert held(found)[0] and held(found)[2]


def test_a_trained_head_gives_only_the_classes_that_rose():
    before, after = head_before_and_after(steps=3, zeros=False)
    sent = [Upload(0, 9, (as_head(after, HeadState),))]
    received = [Broadcast(9, (0,), (as_head(before, HeadState),))]
    for training in (None, one_step()):
        found = infer(watch(sent, broadcasts=received, training=training))
        assert found.proportions.isnan().all()
        claimed = held(found)
        assert any(claimed) and not any(c and not h for c, h in zip(claimed, HELD, strict=True))


def test_measured_responses_give_shares_of_a_trained_model():
    before, after = head_before_and_after(steps=30, zeros=True, lr=0.1)
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("head", nn.Linear(20, CLASSES))
    with torch.no_grad():
        for name, value in after.items():
            getattr(model.head, name).copy_(value)
    rng = stream(3, "head")
    centres = torch.rand(CLASSES, 20, generator=rng)
    aux_labels = torch.arange(CLASSES).repeat(50)
    noise = torch.rand(len(aux_labels), 20, generator=stream(5, "aux"))
    aux = (centres[aux_labels] + 0.3 * noise).reshape(-1, 1, 4, 5)
    start = {f"head.{k}": v for k, v in after.items()}
    own = centres[LABELS] + 0.3 * torch.rand(len(LABELS), 20, generator=stream(6, "own"))
    train(model.head, own, LABELS, steps=1, lr=0.5)
    end = {f"head.{k}": v.detach().clone() for k, v in model.head.named_parameters()}
    for name, value in after.items():
        with torch.no_grad():
            getattr(model.head, name).copy_(value)
    watched = watch(
        [Upload(0, 5, (ModelState(end),))],
        broadcasts=[Broadcast(5, (0,), (ModelState(start),))],
        training=one_step(),
        aux=aux,
        aux_labels=aux_labels,
        models={(0, 5): model},
    )
    found = infer(dataclasses.replace(watched, image_shape=(1, 4, 5)))
    assert float((found.proportions[0] - shares()).abs().sum()) < 0.15


def test_without_a_broadcast_a_head_says_nothing():
    _, after = head_before_and_after(steps=1, zeros=True)
    found = infer(watch([Upload(0, 7, (as_head(after, HeadState),))], training=one_step()))
    assert found.support.isnan().all() and found.proportions.isnan().all()
    assert "needs HEAD" in found.notes[0]


def test_low_rank_and_small_models_give_the_classes_that_rose():
    before, after = head_before_and_after(steps=1, zeros=True)
    update = {f"head.{k}.dense": after[k] - before[k] for k in after}
    low = infer(watch([Upload(0, 1, (LowRankChange(update),))]))
    received = [Broadcast(1, (0,), (as_head(before, SmallModelState),))]
    sent = [Upload(0, 1, (as_head(after, SmallModelState),))]
    small = infer(watch(sent, broadcasts=received, training=one_step()))
    dense = [
        LowRankModel({f"head.{k}.dense": v for k, v in head.items()}) for head in (before, after)
    ]
    received = [Broadcast(2, (0,), (dense[0],))]
    whole = infer(watch([Upload(0, 2, (dense[1],))], broadcasts=received, training=one_step()))
    for found in (low, small, whole):
        assert held(found)[0] and not held(found)[1] and not held(found)[4]
        assert found.proportions.isnan().all()


def test_noise_for_a_head_change_is_at_its_floor():
    hits = []
    for seed in range(40):
        noise = {"bias": torch.randn(CLASSES, generator=stream(seed, "noise"))}
        sent = [Upload(0, 9, (HeadState(noise),))]
        before = HeadState({"bias": torch.zeros(CLASSES) + 1e-9})
        found = infer(watch(sent, broadcasts=[Broadcast(9, (0,), (before,))]))
        hits += [c == h for c, h in zip(held(found), HELD, strict=True)]
    assert 0.4 < sum(hits) / len(hits) < 0.6


def test_the_head_is_found_by_name():
    weight, bias = torch.ones(CLASSES, 3), torch.ones(CLASSES)
    named = {"backbone.0.bias": 2 * bias, "head.bias": bias, "head.weight": weight, "z.bias": bias}
    found = head_of(named, CLASSES)
    assert found[0] is not None and torch.equal(found[0].float(), weight)
    assert found[1] is not None and torch.equal(found[1].float(), bias)
    assert head_of({"backbone.0.bias": bias}, CLASSES) == (None, None)


# --- hidden encodings -----------------------------------------------------------------------------


def collapsed(shown: Tensor, seed: int = 0) -> tuple[list[Upload], list[Broadcast]]:
    """Mixes of prototypes m + a W_c with encodings that lie."""
    rng = stream(seed, "collapsed")
    weight, offset = torch.randn(CLASSES, 32, generator=rng), torch.rand(32, generator=rng)
    uploads, broadcasts = [], []
    for t in (1, 2, 3):
        noise = 0.2 * torch.randn(len(shown), 32, generator=rng)
        rows = shown @ (offset + 2 * weight) + noise
        lie = torch.full((CLASSES,), 1 / CLASSES)
        uploads += [Upload(k, t, (EntangledRep(row, lie),)) for k, row in enumerate(rows)]
        head = HeadState({"weight": weight, "bias": torch.zeros(CLASSES)})
        broadcasts.append(Broadcast(t, tuple(range(len(shown))), (head,)))
    return uploads, broadcasts


SHOWN = torch.tensor(
    [[0.5, 0.5, 0, 0, 0, 0], [0, 0.3, 0.7, 0, 0, 0], [0, 0, 0, 0.2, 0.2, 0.6], [1.0, 0, 0, 0, 0, 0]]
)


def test_hidden_encodings_are_unmixed():
    uploads, broadcasts = collapsed(SHOWN)
    found = infer(watch(uploads, broadcasts=broadcasts), ignore_encoding=True)
    assert torch.equal(found.support > 0.5, SHOWN > 0)
    assert found.proportions.isnan().all()
    told = infer(watch(uploads, broadcasts=broadcasts), ignore_encoding=True, scheme="var")
    assert float((told.proportions - SHOWN).abs().max()) < 0.1
    plain = infer(watch(uploads, broadcasts=broadcasts))
    assert bool((plain.support == 1).all())  # the encodings lie


def test_unmixing_is_exact_without_noise():
    weight = torch.randn(CLASSES, 32, generator=stream(0, "w")).double()
    rows = 3.0 + SHOWN.double() @ (weight - weight.mean(0))
    assert torch.allclose(unmix(rows, weight, ridge=1e-9), SHOWN.double(), atol=1e-5)


def test_unmixing_needs_the_head():
    uploads, _ = collapsed(SHOWN)
    with pytest.raises(IncompatibleError, match="needs HEAD"):
        infer(watch(uploads, threat="eavesdropper"), ignore_encoding=True)
    found = infer(watch(uploads), ignore_encoding=True)
    assert found.support.isnan().all() and "no broadcast head" in found.notes[0]


# --- refusals -------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_refused():
    with pytest.raises(IncompatibleError, match="the targets are MatrixBlocks"):
        infer(watch([Upload(0, 1, (MatrixBlocks(torch.ones(1, 2, 2)),))]))


def test_same_question_same_answer_in_any_order():
    sent = entangled("rar", 30)
    first, second = infer(watch(sent)), infer(watch(sent[::-1]))
    for name, tensor in first.save()[0].items():
        assert torch.equal(tensor.nan_to_num(-1), second.save()[0][name].nan_to_num(-1))
