"""Which classes a client holds, from the change of FedRAL's shared matrix."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.core.artifacts import Artifact, MatrixBlocks
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.core.types import Knowledge, Observation, Upload

from .base import Attack, Context, SuiteEntry, attacks
from .common.frozen_modules import frozen_copy, outputs
from .gradients.matrix_heads import blocks_before, linear_parts, turned_weight
from .mixtures.aux_features import class_means

HELD = 0.01
"""Share in the change from which on a class is held; chosen on CIFAR-10, seeds 0 to 2."""

Model = tuple[nn.Module, nn.Module]
"""An extractor and a head."""

AFTER = (
    "models before the round were not kept: those after it, which tell less, stand for them; train "
    "with record.keep_every=1"
)


@dataclass(frozen=True, kw_only=True)
class MatrixShares:
    """Classes and shares by the change of a matrix and a model, which the attacks choose."""

    consumes: ClassVar[tuple[type[Artifact], ...]] = (MatrixBlocks,)
    recovers = "labels"
    answers = "labels"

    @abstractmethod
    def model_of(self, observation: Observation, upload: Upload) -> Model:
        """The model that stands for the client's during the round.

        Raises:
            IncompatibleError: none is known.
        """

    def run(self, observation: Observation, context: Context) -> LabelEstimate:
        beliefs, shares, notes = [], [], []
        for upload in observation.targets:
            model = self.model_of(observation, upload)
            share = _shares(observation, context.device, upload, model)
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


@attacks.register("matrix")
@dataclass(frozen=True, kw_only=True)
class MatrixClasses(MatrixShares, Attack):
    """Tell a client's classes and their shares from the change of FedRAL's matrix.

    With logits W (r + r A) + b every sample adds r^T (e W) to the gradient of A, e being its
    softmax less its one-hot label. Public images of a class through the client's model say what
    that is in the mean; the change is written as a sum of these, with a weight of zero or more for
    each class (least squares). The weights over their sum are the shares, and a class with more
    than a trace of them is held. The model is that before the round where it is held too, which
    tells more; else that after it.

    Shape:      diagonal blocks (m, d / m, d / m) before and after; output one row per client:
                beliefs and shares (K, C). A class without public images is not held.
    Needs:      UPLOADS, HEAD (the broadcast matrix), EXTRACTOR, HEADS, AUX_DATA
                Recovers: class support and shares
    Cost:       one pass of public images per client
    Reference:  the property test for FedRAL's matrix (Yi et al.); this package's own.
    Deviations: none known. Images are sought by `head`, which reads the same change.
    """

    when_to_use = (
        "labels from FedRAL's matrix blocks, with the client's model and public images held"
    )
    measured_on = ("gradients",)
    needs = frozenset(
        {
            Knowledge.UPLOADS,
            Knowledge.HEAD,
            Knowledge.EXTRACTOR,
            Knowledge.HEADS,
            Knowledge.AUX_DATA,
        }
    )
    usual_for = {"labels": 2}
    suite = (SuiteEntry(MatrixBlocks, "strong", place=60),)

    def run(self, observation: Observation, context: Context) -> LabelEstimate:
        found = super().run(observation, context)
        later = {_before(upload) for upload in observation.targets if upload.round > 1}
        if later <= set(observation.heads):
            return found
        return replace(found, notes=(*found.notes, AFTER))

    def model_of(self, observation: Observation, upload: Upload) -> Model:
        for owner in (_before(upload), (upload.client, upload.round)):
            if owner in observation.extractors and owner in observation.heads:
                return observation.extractors[owner], observation.heads[owner]
        raise IncompatibleError(
            f"Attack 'matrix' needs extractor and head of client {upload.client} in round "
            f"{upload.round}.",
            next_step="Use --threat strong, and a round whose models were kept.",
        )


@attacks.register("initial-matrix")
@dataclass(frozen=True, kw_only=True)
class InitialMatrix(MatrixShares, Attack):
    """Tell a client's classes and shares from the first round's change of FedRAL's matrix.

    As `matrix`, through the weights that the client began with in place of its own model. They are
    known wherever a seed is public or the server ships the first model. The steps of the first
    round begin there.

    Shape:      diagonal blocks (m, d / m, d / m) before and after; output one row per client:
                beliefs and shares (K, C). A class without public images is not held.
    Needs:      UPLOADS, HEAD (the broadcast matrix), AUX_DATA, ARCHITECTURE, INITIAL_MODEL
                Recovers: class support and shares
    Cost:       one pass of public images per client
    Reference:  the property test for FedRAL's matrix (Yi et al.); this package's own.
    Deviations: none known.
    """

    when_to_use = (
        "labels from FedRAL's matrix, when the server knows only the weights clients began with"
    )
    measured_on = ("gradients",)
    needs = frozenset(
        {
            Knowledge.UPLOADS,
            Knowledge.HEAD,
            Knowledge.AUX_DATA,
            Knowledge.ARCHITECTURE,
            Knowledge.INITIAL_MODEL,
        }
    )
    earliest = True
    first_alone = True
    usual_for = {"labels": 3}
    suite = (SuiteEntry(MatrixBlocks, "public-init", place=60),)

    def model_of(self, observation: Observation, upload: Upload) -> Model:
        if upload.round != 1:
            raise IncompatibleError(
                f"Attack 'initial-matrix' reads the first round; round {upload.round} is attacked.",
                next_step="Leave eval.round out.",
            )
        model = observation.initial.get((upload.client, 0))
        if model is None:
            raise IncompatibleError(
                f"The initial model of client {upload.client} is not known.",
                next_step="Use --threat public-init, or the client's own models: --threat strong "
                "--attack matrix.",
            )
        return model.get_submodule("extractor"), model.get_submodule("head")


def _before(upload: Upload) -> tuple[int, int]:
    """The client, and the round before."""
    return upload.client, upload.round - 1


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
    reps = outputs(frozen_copy(extractor, device), aux.float(), device=device).double()
    if reps.shape[1] != sent.shape[0] * sent.shape[1]:
        raise IncompatibleError(
            f"The extractor of client {upload.client} returns {reps.shape[1]} values; its blocks "
            f"turn {sent.shape[0] * sent.shape[1]}."
        )
    weight, bias = (part.double() for part in linear_parts(head))
    labels, classes = labels.to(torch.int64), torch.arange(observation.num_classes)
    held = torch.bincount(labels, minlength=len(classes)) > 0
    made = [
        torch.softmax(reps @ turned_weight(weight, part).T + bias, 1) for part in (before, sent)
    ]
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
