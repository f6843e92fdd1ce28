"""The classes behind a change of FedRAL's matrix."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedre_privacy.attacks.matrix import MatrixClasses, two_groups
from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Broadcast, Observation, Upload
from fedre_privacy.threats.base import threats

HELD = [1, 4, 5]
DIM, CLASSES = 64, 10


def seen(held, *, moved=True, broadcast=True):
    """A client with samples of some classes trains A by plain steps; its extractor flattens."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.rand(CLASSES, DIM, generator=rng)

    def draw(labels):
        return (centres[labels] + 0.05 * torch.randn(len(labels), DIM, generator=rng)).clamp(0, 1)

    labels = torch.tensor(held).repeat(12)
    reps, head = draw(labels), torch.randn(CLASSES, DIM, generator=rng)
    matrix = torch.randn(DIM, DIM, generator=rng) / DIM**0.5
    after = matrix.clone().requires_grad_()
    for _ in range(5 if moved else 0):
        loss = F.cross_entropy((reps + reps @ after) @ head.T, labels)
        (slope,) = torch.autograd.grad(loss, after)
        after = (after - 0.01 * slope).detach().requires_grad_()

    def cut(whole):
        return whole.detach().reshape(2, 32, 2, 32).diagonal(dim1=0, dim2=2).permute(2, 0, 1)

    aux_labels = torch.arange(CLASSES).repeat(20)
    upload = Upload(0, 1, (MatrixBlocks(cut(after).contiguous()),))
    sent = (Broadcast(1, (0,), (MatrixBlocks(matrix[None]),)),) if broadcast else ()
    return Observation(
        threat=threats.get("strong"),
        targets=(upload,),
        uploads=(upload,),
        broadcasts=sent,
        extractors={(0, 1): nn.Flatten()},
        image_shape=(1, 8, 8),
        num_classes=CLASSES,
        aux=draw(aux_labels).reshape(-1, 1, 8, 8),
        aux_labels=aux_labels,
    )


@pytest.mark.parametrize("held", [HELD, [0, 9]])
def test_held_classes_lie_in_the_span_of_the_change(held):
    found = MatrixClasses()(seen(held))
    assert (found.support[0] > 0.5).nonzero().flatten().tolist() == held
    assert bool(found.proportions.isnan().all()) and bool(found.sizes.isnan().all())


def test_noise_for_blocks_tells_no_classes():
    def agreement(observation):
        said = set((MatrixClasses()(observation).support[0] > 0.5).nonzero().flatten().tolist())
        return len(said & set(HELD)) / max(len(said | set(HELD)), 1)

    whole = seen(HELD)
    noisy = []
    for seed in range(12):
        blocks = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(seed))
        upload = Upload(0, 1, (MatrixBlocks(blocks),))
        noisy.append(agreement(replace(whole, targets=(upload,), uploads=(upload,))))
    assert agreement(whole) == 1 and sum(noisy) / len(noisy) < 0.5


def test_a_matrix_that_was_never_sent_is_refused():
    with pytest.raises(IncompatibleError, match="No matrix was sent to client 0 in round 1"):
        MatrixClasses()(seen(HELD, broadcast=False))


def test_the_cut_lies_between_two_groups():
    assert float(two_groups(torch.tensor([0.1, 0.9, 0.2, 0.8]))) == pytest.approx(0.5)
