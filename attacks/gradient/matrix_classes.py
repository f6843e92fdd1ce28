"""Classes and their shares behind the change of FedRAL's matrix, through a model of the client."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.core.types import Observation, Upload

from ..mixtures.through import class_means
from ..running.modules import frozen, outputs
from .matrices import blocks_before, linear_parts, turned

HELD = 0.01
"""Share in the change from which on a class is held; chosen on CIFAR-10, seeds 0 to 2."""

Model = tuple[nn.Module, nn.Module]
"""An extractor and a head."""


def estimated(
    observation: Observation, context: Context, model_of: Callable[[Upload], Model]
) -> LabelEstimate:
    """Classes and shares of the client of each target.

    Args:
        model_of: the model that stands for the client's during the round.

    Raises:
        IncompatibleError: no labelled auxiliary images, or a model that does not fit the blocks.
    """
    beliefs, shares, notes = [], [], []
    for upload in observation.targets:
        share = _shares(observation, context.device, upload, model_of(upload))
        beliefs.append(share / (share + HELD))
        shares.append(share)
        if not bool(share.isfinite().all()):
            notes.append(f"client {upload.client}: change or model is not finite, or says nothing")
    return LabelEstimate(
        clients=torch.tensor([upload.client for upload in observation.targets]),
        support=torch.stack(beliefs).float(),
        proportions=torch.stack(shares).float(),
        sizes=torch.full((len(beliefs),), torch.nan),
        notes=tuple(notes),
    )


def _shares(observation: Observation, device: torch.device, upload: Upload, model: Model) -> Tensor:
    """Share of each class in the change (C,); NaN where it is not finite or zero."""
    artifact = next(a for a in upload.artifacts if isinstance(a, MatrixBlocks))
    before = blocks_before(observation, upload, artifact).blocks.double()
    sent = artifact.blocks.double()
    aux, labels = observation.aux, observation.aux_labels
    if aux is None or labels is None:
        raise IncompatibleError(
            "Classes behind a matrix are told by auxiliary images with labels; none are given.",
            next_step="Use --threat strong.",
        )
    extractor, head = model
    reps = outputs(frozen(extractor, device), aux.float(), device=device).double()
    if reps.shape[1] != sent.shape[0] * sent.shape[1]:
        raise IncompatibleError(
            f"The extractor of client {upload.client} returns {reps.shape[1]} values; its blocks "
            f"turn {sent.shape[0] * sent.shape[1]}."
        )
    weight, bias = (part.double() for part in linear_parts(head))
    labels, classes = labels.to(torch.int64), torch.arange(observation.num_classes)
    held = torch.bincount(labels, minlength=len(classes)) > 0
    made = [torch.softmax(reps @ turned(weight, part).T + bias, 1) for part in (before, sent)]
    errors = (made[0] + made[1]) / 2 - F.one_hot(labels, len(classes))
    pushes = class_means(errors, labels, classes) @ weight
    return class_shares(before - sent, class_means(reps, labels, classes), pushes, held)


def class_shares(change: Tensor, means: Tensor, pushes: Tensor, allowed: Tensor) -> Tensor:
    """Write blocks of a matrix as a sum over classes with weights of zero or more.

    Args:
        change: the blocks (m, s, s), before minus after.
        means: representation of each class (C, m s).
        pushes: error of each class, through the head (C, m s).
        allowed: classes that may have a weight (C,) bool.

    Returns: weights over their sum (C,); NaN where something is not finite or no weight is
        positive.
    """
    found = means.new_full((len(means),), torch.nan)
    if not bool(change.isfinite().all()) or not bool(allowed.any()):
        return found
    left = means[allowed].reshape(-1, *change.shape[:2]).transpose(0, 1)
    right = pushes[allowed].reshape(-1, *change.shape[:2]).transpose(0, 1)
    gram = ((left @ left.mT) * (right @ right.mT)).sum(0)
    towards = ((left @ change) * right).sum((0, 2))
    if not bool(gram.isfinite().all()) or not bool(gram.trace() > 0):
        return found
    gram = gram + 1e-9 * gram.trace() * torch.eye(len(gram), dtype=gram.dtype)
    root = torch.linalg.cholesky(gram)
    wanted = torch.linalg.solve_triangular(root, towards[:, None], upper=False).squeeze(1)
    weights = torch.from_numpy(
        scipy.optimize.nnls(root.mT.numpy(), np.ascontiguousarray(wanted.numpy()))[0]
    )
    if not bool(weights.sum() > 0):
        return found
    found = torch.zeros_like(found)
    found[allowed] = weights / weights.sum()
    return found
