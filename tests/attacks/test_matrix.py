"""The classes behind a change of FedRAL's matrix."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedre_privacy.attacks.matrix import InitialMatrix, MatrixClasses, class_shares
from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Broadcast, Observation, Upload
from fedre_privacy.threats.base import threats

HELD = [1, 4, 5]
DIM, CLASSES = 64, 10


def head_of(weight):
    head = nn.Linear(*reversed(weight.shape))
    head.weight.data, head.bias.data = weight, torch.zeros(len(weight))
    return head


def seen(counts, *, blocks=2, moved=True, broadcast=True):
    """A client with so many samples of each class trains A; its extractor flattens."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.rand(CLASSES, DIM, generator=rng)

    def draw(labels):
        return (centres[labels] + 0.02 * torch.randn(len(labels), DIM, generator=rng)).clamp(0, 1)

    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor(counts))
    reps, weight = draw(labels), torch.randn(CLASSES, DIM, generator=rng)
    matrix = torch.randn(DIM, DIM, generator=rng) / DIM**0.5
    mask = torch.block_diag(*[torch.ones(DIM // blocks, DIM // blocks)] * blocks)
    matrix = matrix * mask
    after = matrix.clone().requires_grad_()
    for _ in range(5 if moved else 0):
        loss = F.cross_entropy((reps + reps @ after) @ weight.T, labels)
        (slope,) = torch.autograd.grad(loss, after)
        after = (after - 0.0001 * slope * mask).detach().requires_grad_()

    def cut(whole):
        size = DIM // blocks
        parts = whole.detach().reshape(blocks, size, blocks, size)
        return parts.diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()

    aux_labels = torch.arange(CLASSES).repeat(20)
    upload = Upload(0, 1, (MatrixBlocks(cut(after)),))
    sent = (Broadcast(1, (0,), (MatrixBlocks(cut(matrix)),)),) if broadcast else ()
    return Observation(
        threat=threats.get("strong"),
        targets=(upload,),
        uploads=(upload,),
        broadcasts=sent,
        extractors={(0, 1): nn.Flatten()},
        heads={(0, 1): head_of(weight)},
        image_shape=(1, 8, 8),
        num_classes=CLASSES,
        aux=draw(aux_labels).reshape(-1, 1, 8, 8),
        aux_labels=aux_labels,
    )


def holding(classes):
    return [12 if c in classes else 0 for c in range(CLASSES)]


def said(observation):
    return (MatrixClasses()(observation).support[0] > 0.5).nonzero().flatten().tolist()


@pytest.mark.parametrize("blocks", [1, 2, 8])
@pytest.mark.parametrize("held", [HELD, [0, 9]])
def test_held_classes_explain_the_change(held, blocks):
    """Eight blocks have eight columns each, fewer than there are classes."""
    assert said(seen(holding(held), blocks=blocks)) == held


def test_shares_are_those_of_the_samples():
    counts = [0, 30, 0, 0, 10, 20, 0, 0, 0, 0]
    found = MatrixClasses()(seen(counts))
    torch.testing.assert_close(found.proportions[0], torch.tensor(counts) / 60.0, atol=0.03, rtol=0)
    assert bool(found.sizes.isnan().all())


def test_noise_for_blocks_tells_no_classes():
    def agreement(observation):
        claimed = set(said(observation))
        return len(claimed & set(HELD)) / max(len(claimed | set(HELD)), 1)

    whole = seen(holding(HELD))
    noisy = []
    for seed in range(12):
        blocks = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(seed))
        upload = Upload(0, 1, (MatrixBlocks(blocks),))
        noisy.append(agreement(replace(whole, targets=(upload,), uploads=(upload,))))
    assert agreement(whole) == 1 and sum(noisy) / len(noisy) < 0.5


def test_nothing_is_said_of_a_change_that_says_nothing():
    found = MatrixClasses()(seen(holding(HELD), moved=False))
    assert bool(found.support.isnan().all()) and "says nothing" in found.notes[0]
    broken = seen(holding(HELD))
    blocks = broken.targets[0].artifacts[0].blocks.clone()
    blocks[0, 0, 0] = torch.inf
    upload = Upload(0, 1, (MatrixBlocks(blocks),))
    found = MatrixClasses()(replace(broken, targets=(upload,), uploads=(upload,)))
    assert bool(found.support.isnan().all()) and len(found.notes) == 1


def test_a_class_without_public_images_is_not_held():
    whole = seen(holding(HELD))
    kept = whole.aux_labels != 4
    found = MatrixClasses()(replace(whole, aux=whole.aux[kept], aux_labels=whole.aux_labels[kept]))
    assert float(found.proportions[0, 4]) == 0


def test_what_is_missing_is_said():
    with pytest.raises(IncompatibleError, match="No matrix was sent to client 0 in round 1"):
        MatrixClasses()(seen(holding(HELD), broadcast=False))
    with pytest.raises(IncompatibleError, match="needs extractor and head of client 0 in round 1"):
        MatrixClasses()(replace(seen(holding(HELD)), heads={}))


def without_models(observation, round=1):
    """What a server sees that knows the model before the first round and no other."""
    upload = replace(observation.targets[0], round=round)
    model = nn.Sequential()
    model.add_module("extractor", observation.extractors[0, 1])
    model.add_module("head", observation.heads[0, 1])
    return replace(
        observation,
        threat=threats.get("public-init"),
        targets=(upload,),
        uploads=(upload,),
        broadcasts=(replace(observation.broadcasts[0], round=round),),
        initial={(0, 0): model},
        extractors={},
        heads={},
    )


def test_the_model_before_the_round_is_read_where_it_is_held():
    whole = seen(holding(HELD))
    other = head_of(torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(9)))
    flat, before = nn.Flatten(), whole.heads[0, 1]
    both = replace(
        whole, extractors={(0, 0): flat, (0, 1): flat}, heads={(0, 0): before, (0, 1): other}
    )
    assert said(both) == HELD
    assert said(replace(both, heads={(0, 1): other})) != HELD
    upload, sent = replace(whole.targets[0], round=2), replace(whole.broadcasts[0], round=2)
    later = replace(
        whole,
        targets=(upload,),
        uploads=(upload,),
        broadcasts=(sent,),
        extractors={(0, 2): flat},
        heads={(0, 2): before},
    )
    assert "before the round were not kept" in MatrixClasses()(later).notes[0]
    assert not MatrixClasses()(both).notes


def test_the_initial_model_tells_classes_without_the_clients_own():
    whole = seen(holding(HELD))
    found = InitialMatrix()(without_models(whole))
    assert found.proportions.equal(MatrixClasses()(whole).proportions)


def test_the_initial_model_is_asked_about_the_first_round_alone():
    with pytest.raises(IncompatibleError, match="reads the first round; round 2 is attacked"):
        InitialMatrix()(without_models(seen(holding(HELD)), round=2))
    with pytest.raises(IncompatibleError, match="initial model of client 0 is not known"):
        InitialMatrix()(replace(without_models(seen(holding(HELD))), initial={}))


def test_images_of_another_length_are_one_error():
    whole = seen(holding(HELD))
    short = nn.Sequential(nn.Flatten(), nn.Linear(DIM, 32))
    with pytest.raises(IncompatibleError, match="returns 32 values; its blocks turn 64"):
        MatrixClasses()(replace(whole, extractors={(0, 1): short}))


def test_weights_of_a_known_sum_are_found():
    rng = torch.Generator().manual_seed(1)
    means, pushes = torch.rand(2, 4, 6, generator=rng, dtype=torch.float64)
    true = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    left, right = means.reshape(4, 2, 3), pushes.reshape(4, 2, 3)
    change = torch.einsum("k,kmi,kmj->mij", true, left, right)
    everyone = torch.ones(4, dtype=torch.bool)
    torch.testing.assert_close(
        class_shares(3 * change, means, pushes, everyone), true, atol=1e-6, rtol=0
    )
    assert bool(class_shares(-change.abs(), means, pushes, everyone).isnan().all())
    for nothing in (torch.zeros_like(pushes), torch.full_like(pushes, torch.inf)):
        assert bool(class_shares(change, means, nothing, everyone).isnan().all())
