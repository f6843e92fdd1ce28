"""Which classes a client holds, from a shared square matrix that its training changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.core.types import Knowledge, Observation, Upload

from .base import Attack, Context, SuiteEntry, attacks
from .gradient.matrix_classes import Model, estimated

AFTER = (
    "models before the round were not kept: those after it, which tell less, stand for them; train "
    "with record.keep_every=1"
)


@attacks.register("matrix")
@dataclass(frozen=True, kw_only=True)
class MatrixClasses(Attack):
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
    usual_for = {"labels": 2}
    suite = (SuiteEntry(MatrixBlocks, "strong", place=60),)

    def run(self, observation: Observation, context: Context) -> LabelEstimate:
        found = estimated(observation, context, partial(_model_of, observation))
        later = {_before(upload) for upload in observation.targets if upload.round > 1}
        if later <= set(observation.heads):
            return found
        return replace(found, notes=(*found.notes, AFTER))


def _before(upload: Upload) -> tuple[int, int]:
    """The client, and the round before."""
    return upload.client, upload.round - 1


def _model_of(observation: Observation, upload: Upload) -> Model:
    """The client's model before the round where it is held, else that after it.

    Raises:
        IncompatibleError: neither is held.
    """
    for owner in (_before(upload), (upload.client, upload.round)):
        if owner in observation.extractors and owner in observation.heads:
            return observation.extractors[owner], observation.heads[owner]
    raise IncompatibleError(
        f"Attack 'matrix' needs extractor and head of client {upload.client} in round "
        f"{upload.round}.",
        next_step="Use --threat strong, and a round whose models were kept.",
    )
