"""FedRAL's matrix blocks as the change of a head, and what `head` makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.attacks.gradients.class_means import classes_pulled, shrink_to_public
from fedre_privacy.attacks.gradients.matrix_heads import head_rows, implied_bias, turned_weight
from fedre_privacy.attacks.head import HeadUpdate
from fedre_privacy.attacks.loss_membership import LossMembership
from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import (
    Broadcast,
    Candidates,
    LocalTrainingFacts,
    Observation,
    Upload,
)
from fedre_privacy.protocols.fedral import diagonal_blocks
from fedre_privacy.threats.base import threats

DIM, CLASSES, BLOCKS = 64, 10, 2
HELD = {1: 20, 4: 1, 5: 12}
LR = 0.05


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def centres() -> Tensor:
    return torch.rand(CLASSES, DIM, generator=rng(9))


def draw(labels: Tensor, seed: int) -> Tensor:
    noise = torch.randn(len(labels), DIM, generator=rng(seed))
    return (centres()[labels] + 0.15 * noise).clamp(0, 1)


def model() -> tuple[nn.Linear, Tensor]:
    """A head that is right about the centres, and a matrix."""
    head = nn.Linear(DIM, CLASSES)
    with torch.no_grad():
        wanted = torch.eye(CLASSES) * 3
        head.weight.copy_((torch.linalg.pinv(centres() - centres().mean(0)) @ wanted).T)
        head.weight.add_(0.05 * torch.randn(CLASSES, DIM, generator=rng(3)))
        head.bias.zero_()
    return head.requires_grad_(False), torch.randn(DIM, DIM, generator=rng(4)) / DIM


def trained(reps: Tensor, labels: Tensor, head: nn.Linear, matrix: Tensor, steps: int) -> Tensor:
    moved = matrix.clone()
    for _ in range(steps):
        moved.requires_grad_()
        loss = F.cross_entropy(head(reps + reps @ moved), labels)
        (slope,) = torch.autograd.grad(loss, moved)
        moved = (moved - LR * slope).detach()
    return moved


def seen(steps: int = 1, *, blocks: int = BLOCKS, threat: str = "strong") -> Observation:
    """A client of 33 samples, one of them the only one of its class."""
    labels = torch.cat([torch.full((n,), c) for c, n in HELD.items()])
    reps, (head, matrix) = draw(labels, 1), model()
    after = trained(reps, labels, head, matrix, steps)
    upload = Upload(0, 1, (MatrixBlocks(diagonal_blocks(after, blocks)),))
    aux_labels = torch.arange(CLASSES).repeat(30)
    return Observation(
        threat=threats.get(threat),
        targets=(upload,),
        uploads=(upload,),
        broadcasts=(Broadcast(1, (0,), (MatrixBlocks(matrix[None]),)),),
        extractors={(0, 1): nn.Flatten()},
        heads={(0, 1): head},
        image_shape=(1, 8, 8),
        num_classes=CLASSES,
        aux=draw(aux_labels, 2).reshape(-1, 1, 8, 8),
        aux_labels=aux_labels,
        training=LocalTrainingFacts(lr=LR, epochs=steps, batch_size=33, sizes={0: 33}),
    )


def true_means() -> Tensor:
    labels = torch.cat([torch.full((n,), c) for c, n in HELD.items()])
    reps = draw(labels, 1)
    return torch.stack([reps[labels == c].mean(0) for c in HELD])


def cosine(found: Tensor, true: Tensor) -> Tensor:
    centre = true.mean(0)
    return F.cosine_similarity(found - centre, true - centre)


def answered(observation: Observation, **settings: object) -> Tensor:
    """The answers for the classes held, (3, d); zeros where there is none."""
    found = HeadUpdate(**settings)(observation)
    rows = torch.zeros(len(HELD), DIM)
    for i, label in enumerate(HELD):
        mine = found.vectors[found.labels == label]
        rows[i] = mine[0] if len(mine) else 0
    return rows


def test_one_step_gives_the_rows_of_a_head_exactly():
    labels = torch.cat([torch.full((n,), c) for c, n in HELD.items()])
    reps, (head, matrix) = draw(labels, 1), model()
    change = matrix - trained(reps, labels, head, matrix, 1)
    errors = head(reps + reps @ matrix).softmax(1) - F.one_hot(labels, CLASSES)
    wanted = LR * (errors / len(reps)).T @ reps
    rows, left = head_rows(diagonal_blocks(change, BLOCKS), head.weight)
    assert float((rows - wanted).norm() / wanted.norm()) < 1e-5
    assert left < 1e-5
    assert classes_pulled(rows, left).nonzero().flatten().tolist() == list(HELD)


def test_blocks_in_another_order_or_of_another_head_tell_no_rows():
    labels = torch.cat([torch.full((n,), c) for c, n in HELD.items()])
    reps, (head, matrix) = draw(labels, 1), model()
    blocks = diagonal_blocks(matrix - trained(reps, labels, head, matrix, 1), BLOCKS)
    assert head_rows(blocks.flip(0), head.weight)[1] > 0.3
    other = torch.randn(CLASSES, DIM, generator=rng(8))
    assert head_rows(blocks, other)[1] > 0.3


def test_the_bias_is_read_off_what_rows_have_in_common():
    common = torch.rand(DIM, generator=rng(5)).double()
    across = torch.randn(CLASSES, DIM, generator=rng(6)).double()
    across -= (across @ common)[:, None] * common / common.square().sum()
    wanted = torch.randn(CLASSES, generator=rng(7)).double()
    found = implied_bias(wanted[:, None] * common + across, common)
    torch.testing.assert_close(found, wanted)


def test_a_turned_head_answers_as_the_client_does():
    reps, (head, matrix) = draw(torch.arange(CLASSES), 1), model()
    blocks = diagonal_blocks(matrix, BLOCKS)
    whole = torch.block_diag(*blocks)
    found = reps.double() @ turned_weight(head.weight, blocks).T
    torch.testing.assert_close(found.float(), (reps + reps @ whole) @ head.weight.T)


def test_answers_lean_to_public_means_as_far_as_the_class_is_known():
    means, public = torch.zeros(3, 2), torch.ones(3, 2)
    found = shrink_to_public(means, public, torch.tensor([0.0, 0.25, 1.0]))
    assert found.tolist() == [[0, 0], [0.25, 0.25], [1, 1]]


@pytest.mark.parametrize("steps", [1, 4])
def test_prototypes_of_blocks_beat_public_means_where_there_is_one_image(steps):
    observation, true = seen(steps), true_means()
    found = cosine(answered(observation), true)
    reps = observation.aux.flatten(1)
    public = torch.stack([reps[observation.aux_labels == c].mean(0) for c in HELD])
    floor = cosine(public, true)
    single = list(HELD).index(4)
    assert float(found[single]) > float(floor[single]) + 0.05
    assert float(found.min()) > 0.8


def test_noise_for_blocks_tells_nothing_that_public_images_do_not():
    whole, true = seen(), true_means()
    single, found = list(HELD).index(4), []
    for seed in range(8):
        blocks = MatrixBlocks(
            torch.randn(BLOCKS, DIM // BLOCKS, DIM // BLOCKS, generator=rng(seed))
        )
        upload = Upload(0, 1, (blocks,))
        noise = replace(whole, targets=(upload,), uploads=(upload,))
        found.append(float(cosine(answered(noise, conditional=False), true)[single]))
    assert sum(found) / len(found) < float(cosine(answered(whole), true)[single]) - 0.3


@pytest.mark.parametrize("method", ["simulate", "ratio"])
def test_what_needs_a_bias_is_refused(method):
    with pytest.raises(IncompatibleError, match="needs the change of a bias") as refusal:
        HeadUpdate(method=method)(seen())
    assert "attack.method=combined" in str(refusal.value)


def test_missing_knowledge_is_named():
    with pytest.raises(IncompatibleError, match="needs HEADS to read MatrixBlocks"):
        HeadUpdate()(seen(threat="fedre-paper"))
    with pytest.raises(IncompatibleError, match="The head of client 0 in round 1 was not given"):
        HeadUpdate()(replace(seen(), heads={}))
    with pytest.raises(IncompatibleError, match="Blocks of 8 columns"):
        HeadUpdate()(seen(blocks=8))
    with pytest.raises(IncompatibleError, match="No matrix was sent"):
        HeadUpdate()(replace(seen(), broadcasts=()))


def test_without_public_images_the_centre_is_found():
    blind = replace(seen(), aux=None, aux_labels=None)
    assert float(cosine(answered(blind), true_means()).mean()) > 0.5


def test_members_have_the_lower_loss_behind_the_matrix():
    """A member whose label no other image shares is learned by heart."""
    reps, (head, matrix) = draw(torch.arange(CLASSES), 1), model()
    members = torch.arange(CLASSES).roll(3)  # wrong labels: only training makes them likely
    after = matrix.clone()
    for _ in range(30):
        after = trained(reps, members, head, after, 10)
    upload = Upload(0, 1, (MatrixBlocks(diagonal_blocks(after, 1)),))
    images = torch.cat([reps, draw(torch.arange(CLASSES), 50)]).reshape(-1, 1, 8, 8)
    labels, who = members.repeat(2), torch.zeros(2 * CLASSES, dtype=torch.int64)
    world = replace(
        seen(), targets=(upload,), uploads=(upload,), candidates=Candidates(images, labels, who)
    )
    scores = LossMembership()(world).scores
    assert scores[:CLASSES].median() > scores[CLASSES:].median()
    before = LossMembership(score="difference")(world).scores
    assert bool((before > 0).all())  # all became likelier, by the matrix alone
    with pytest.raises(IncompatibleError, match="a matrix alone computes no loss"):
        LossMembership()(replace(world, heads={}))
