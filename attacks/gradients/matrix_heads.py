"""The change of FedRAL's square matrix, read as what it says about the rows of a head.

With logits W (r + r A) + b every sample adds r^T (e W) to the gradient of A, e being its softmax
less its one-hot label. Divided by the head, the change is that of a linear head on r:
Q = sum e^T r, row c pulled towards the representations of class c and away from the others'.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.common.client_messages import received_by
from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Observation, Upload


def blocks_before(observation: Observation, upload: Upload, sent: MatrixBlocks) -> MatrixBlocks:
    """The blocks that a client started the round from, as many as it sent.

    Raises:
        IncompatibleError: the broadcast of the round was not recorded.
    """
    for artifact in received_by(observation, upload.client).get(upload.round, ()):
        if isinstance(artifact, MatrixBlocks):
            return artifact.fitted(sent)
    raise IncompatibleError(
        f"No matrix was sent to client {upload.client} in round {upload.round}, so its change is "
        "not known.",
        next_step="Attack a round whose broadcast was recorded.",
    )


def head_rows(change: Tensor, weight: Tensor) -> tuple[Tensor, float]:
    """The change of a head's weight that says the same as a change of the matrix.

    Exact for one step from a head of full rank, as long as a block has as many columns as there
    are classes; over several steps the head moves, and an average of its ends stands for it.

    Args:
        change: blocks before minus after, or their gradient (m, d / m, d / m).
        weight: of the client's head (C, d).

    Returns: rows (C, d), float64, and the share of the change that no rows explain, in [0, 1];
        0 after one step.
    """
    blocks, size = change.shape[:2]
    parts = weight.double().reshape(len(weight), blocks, size).transpose(0, 1)
    change = change.double()
    rows = change @ torch.linalg.pinv(parts)
    left = (change - rows @ parts).norm() / change.norm().clamp(min=1e-30)
    return rows.permute(2, 0, 1).reshape(len(weight), blocks * size), float(left)


def implied_bias(rows: Tensor, common: Tensor) -> Tensor:
    """What the bias of a head would have moved by (C,): the matrix has none.

    Every sample moves row c by e_c times its representation; the part of that along what the
    representations have in common (d,) is e_c for each, if they differ across it.
    """
    found: Tensor = rows @ common / common.square().sum().clamp(min=1e-30)
    return found


def turned_weight(weight: Tensor, blocks: Tensor) -> Tensor:
    """The weight (C, d), float64, of a head that answers to r as the given one does to r + r A.

    Args:
        weight: (C, d). blocks: of A, (m, d / m, d / m).
    """
    weight = weight.double()
    found: Tensor = weight + weight @ torch.block_diag(*blocks.double()).T
    return found


def linear_parts(head: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight (C, d) and bias (C,) of a head.

    Raises:
        IncompatibleError: it is not one linear layer with a bias.
    """
    parts = {name: value.detach() for name, value in head.named_parameters()}
    if set(parts) != {"weight", "bias"} or parts["weight"].dim() != 2:
        raise IncompatibleError(
            f"The head holds {', '.join(sorted(parts)) or 'no parameters'}; matrix blocks are read "
            "through a head of one linear layer with a bias."
        )
    return parts["weight"], parts["bias"]
