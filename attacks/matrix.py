"""Which classes a client holds, from a shared square matrix that its training changed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.core.types import Knowledge, Observation, Upload

from .base import Attack, Context, SuiteEntry, attacks
from .gradient.matrices import blocks_before
from .running.modules import outputs


@attacks.register("matrix")
@dataclass(frozen=True, kw_only=True)
class MatrixClasses(Attack):
    """Tell a client's classes from the change of the matrix that turns its representations.

    With logits head(r + r A) every sample adds the outer product of its representation and a
    vector of head rows to the gradient of A; so the columns of the change lie in the span of the
    client's representations. Class means of auxiliary images, centred, are projected on that span;
    classes that lie in it are said to be held. The cut is where the shares of all classes fall
    into two groups, so that a client of every class is misread.

    Shape:      diagonal blocks (m, d / m, d / m) before and after; output one row of beliefs
                per client
    Needs:      UPLOADS, HEAD (the broadcast matrix), EXTRACTOR, AUX_DATA    Recovers: class support
    Cost:       one singular value decomposition per block
    Reference:  the property test for FedRAL's matrix (Yi et al.); this package's own.
    Deviations: none known. Images are sought by `head`, which reads the same change.
    """

    consumes = (MatrixBlocks,)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.HEAD, Knowledge.EXTRACTOR, Knowledge.AUX_DATA})
    recovers = "labels"
    answers = "labels"
    suite = (SuiteEntry(MatrixBlocks, "strong", place=60),)

    least: float = knob(
        0.01, help="singular values below this share of the largest are left out", gt=0, lt=1
    )

    def run(self, observation: Observation, context: Context) -> LabelEstimate:
        beliefs, notes = [], []
        for upload in observation.targets:
            share = self._shares(upload, observation)
            cut = two_groups(share)
            beliefs.append(share / (share + cut))
            notes.append(f"client {upload.client}: cut at {float(cut):.3f} of a class mean")
        support = torch.stack(beliefs).float()
        return LabelEstimate(
            clients=torch.tensor([upload.client for upload in observation.targets]),
            support=support,
            proportions=torch.full_like(support, torch.nan),
            sizes=torch.full((len(support),), torch.nan),
            notes=tuple(notes),
        )

    def _shares(self, upload: Upload, observation: Observation) -> Tensor:
        """How much of each centred class mean lies in the span of the change, (C,) in [0, 1].

        NaN for a change that is not finite.
        """
        uploaded = next(a for a in upload.artifacts if isinstance(a, MatrixBlocks))
        sent = uploaded.blocks.double()
        change = blocks_before(observation, upload, uploaded).blocks.double() - sent
        means = _class_means(upload, observation)
        if not bool(change.isfinite().all()):
            return means.new_full((len(means),), torch.nan)
        spans, strengths, _ = torch.linalg.svd(change, full_matrices=False)
        kept = strengths > self.least * strengths[:, :1]
        parts = means.reshape(len(means), *sent.shape[:2]).transpose(0, 1)
        inside = (parts @ spans).square() * kept[:, None]
        share: Tensor = inside.sum((0, 2)) / parts.square().sum((0, 2)).clamp(min=1e-30)
        return share


def two_groups(values: Tensor) -> Tensor:
    """The middle between two groups of numbers (n,), split so that they vary least inside."""
    ordered = values.sort().values
    if len(ordered) < 2 or not bool(ordered.isfinite().all()):
        return ordered.new_tensor(0.5)
    spreads = torch.stack(
        [
            ordered[:k].var(correction=0) * k + ordered[k:].var(correction=0) * (len(ordered) - k)
            for k in range(1, len(ordered))
        ]
    )
    k = int(spreads.argmin()) + 1
    return (ordered[:k].mean() + ordered[k:].mean()) / 2


def _class_means(upload: Upload, observation: Observation) -> Tensor:
    """Means (C, d) of auxiliary representations of each class, less their mean; 0 where none."""
    extractor = observation.extractors.get((upload.client, upload.round))
    if extractor is None or observation.aux is None or observation.aux_labels is None:
        raise IncompatibleError(
            f"Attack 'matrix' needs the extractor of client {upload.client} in round "
            f"{upload.round}, and auxiliary images with labels.",
            next_step="Use --threat strong, and a round whose extractors were kept.",
        )
    reps = outputs(extractor, observation.aux).double()
    labels = observation.aux_labels.to(reps.device)
    sums = reps.new_zeros(observation.num_classes, reps.shape[1]).index_add(0, labels, reps)
    counts = torch.bincount(labels, minlength=observation.num_classes)
    means = sums / counts.clamp(min=1)[:, None]
    centred = means - means[counts > 0].mean(0)
    return torch.where(counts[:, None] > 0, centred, 0.0).cpu()
