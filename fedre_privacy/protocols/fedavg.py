"""FedAvg: one global model, averaged."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import Counts, ModelState
from fedre_privacy.core.config import knob
from fedre_privacy.protocols.blocks import whole_model
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes, averaged_parameters

from .base import Protocol, protocols


@protocols.register("fedavg")
@dataclass(frozen=True, kw_only=True)
class FedAvg(Protocol):
    """Each client trains the global model and uploads it; the server averages by sample count.

    Uploads:    ModelState: all parameters; the number of samples once
    Reference:  McMahan et al., Communication-efficient learning of deep networks from decentralized
                data, AISTATS 2017.
    Deviations: BatchNorm statistics are neither sent nor averaged, as in the public libraries
                (``buffers`` does both, and they are counted).
    """

    when_to_use = "the baseline: one architecture, whole models are sent"
    uploads = (ModelState, Counts)
    broadcasts = (ModelState,)
    training_only = True
    sums = "samples"
    headline = "post_broadcast"

    buffers: bool = knob(False, help="average and send BatchNorm's running statistics as well")

    check = whole_model.check
    sends_buffers = whole_model.sends_buffers
    start_server = whole_model.start_server
    setup_upload = whole_model.setup_upload
    setup_aggregate = whole_model.setup_aggregate
    broadcast = whole_model.broadcast
    receive = whole_model.receive
    upload = whole_model.upload
    aggregate = whole_model.aggregate

    def traffic(self, sizes: Sizes) -> Exchange:
        return averaged_parameters(sizes, sizes.model)
