"""Which classes a client holds, from a shared square matrix that its training changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch.nn import functional as F

from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.core.types import Knowledge, Observation, Upload

from .base import Attack, Context, SuiteEntry, attacks
from .gradient.matrices import blocks_before, linear_parts, turned
from .mixtures.through import aux_reps, class_means

HELD = 0.007
"""Share in the change from which on a class is taken to be held; chosen on the tuning part of
`benchmarks/heads.py`."""


@attacks.register("matrix")
@dataclass(frozen=True, kw_only=True)
class MatrixClasses(Attack):
    """Tell a client's classes and their shares from the change of FedRAL's matrix.

    With logits W (r + r A) + b every sample adds r^T (e W) to the gradient of A, e being its
    softmax less its one-hot label. Public images of a class through the client's model say what
    that is in the mean; the change is written as a sum of these, with a weight of zero or more for
    each class (least squares). The weights over their sum are the shares, and a class with more
    than a trace of them is held.

    Shape:      diagonal blocks (m, d / m, d / m) before and after; output one row per client:
                beliefs and shares (K, C). A class without public images is not held.
    Needs:      UPLOADS, HEAD (the broadcast matrix), EXTRACTOR, HEADS, AUX_DATA
                Recovers: class support and shares
    Cost:       one pass of public images per client
    Reference:  the property test for FedRAL's matrix (Yi et al.); this package's own.
    Deviations: none known. Images are sought by `head`, which reads the same change.
    """

    consumes = (MatrixBlocks,)
    needs = frozenset(
        {
            Knowledge.UPLOADS,
            Knowledge.HEAD,
            Knowledge.EXTRACTOR,
            Knowledge.HEADS,
            Knowledge.AUX_DATA,
        }
    )
    recovers = "labels"
    answers = "labels"
    suite = (SuiteEntry(MatrixBlocks, "strong", place=60),)

    def run(self, observation: Observation, context: Context) -> LabelEstimate:
        beliefs, shares, notes = [], [], []
        for upload in observation.targets:
            share = self._shares(upload, observation, context)
            beliefs.append(share / (share + HELD))
            shares.append(share)
            if not bool(share.isfinite().all()):
                notes.append(
                    f"client {upload.client}: change or model is not finite, or says nothing"
                )
        return LabelEstimate(
            clients=torch.tensor([upload.client for upload in observation.targets]),
            support=torch.stack(beliefs).float(),
            proportions=torch.stack(shares).float(),
            sizes=torch.full((len(beliefs),), torch.nan),
            notes=tuple(notes),
        )

    def _shares(self, upload: Upload, observation: Observation, context: Context) -> Tensor:
        """Share of each class in the change (C,); NaN where it is not finite or zero."""
        artifact = next(a for a in upload.artifacts if isinstance(a, MatrixBlocks))
        before = blocks_before(observation, upload, artifact).blocks.double()
        sent = artifact.blocks.double()
        key = (upload.client, upload.round)
        labels = observation.aux_labels
        if key not in observation.extractors or key not in observation.heads or labels is None:
            raise IncompatibleError(
                f"Attack 'matrix' needs extractor and head of client {upload.client} in round "
                f"{upload.round}, and auxiliary images with labels.",
                next_step="Use --threat strong, and a round whose models were kept.",
            )
        weight, bias = (part.double() for part in linear_parts(observation.heads[key]))
        classes = torch.arange(observation.num_classes)
        blocks, size = sent.shape[:2]
        (reps,) = aux_reps(
            observation, context.device, upload.client, [upload.round], length=blocks * size,
            limit=len(labels),
        )  # fmt: skip
        labels = labels.to(torch.int64)
        held = torch.bincount(labels, minlength=len(classes)) > 0
        outputs = [
            torch.softmax(reps.double() @ turned(weight, part).T + bias, 1)
            for part in (before, sent)
        ]
        errors = (outputs[0] + outputs[1]) / 2 - F.one_hot(labels, len(classes))
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
