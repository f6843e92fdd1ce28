"""Which classes a client holds, from its first change of a shared matrix, without its model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fedre_privacy.core.artifacts import MatrixBlocks
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.core.types import Knowledge, Observation, Upload

from .base import Attack, Context, SuiteEntry, attacks
from .gradient.matrix_classes import Model, estimated


@attacks.register("initial-matrix")
@dataclass(frozen=True, kw_only=True)
class InitialMatrix(Attack):
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

    consumes = (MatrixBlocks,)
    needs = frozenset(
        {
            Knowledge.UPLOADS,
            Knowledge.HEAD,
            Knowledge.AUX_DATA,
            Knowledge.ARCHITECTURE,
            Knowledge.INITIAL_MODEL,
        }
    )
    recovers = "labels"
    answers = "labels"
    usual_for = {"labels": 3}
    earliest = True
    first_alone = True
    suite = (SuiteEntry(MatrixBlocks, "public-init", place=60),)

    def run(self, observation: Observation, context: Context) -> LabelEstimate:
        return estimated(observation, context, partial(_model_of, observation))


def _model_of(observation: Observation, upload: Upload) -> Model:
    """The model that the client began with.

    Raises:
        IncompatibleError: it is not known, or the client has trained since.
    """
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
