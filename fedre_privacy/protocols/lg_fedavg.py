"""LG-FedAvg: private extractors, an averaged head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedre_privacy.core.artifacts import Counts, HeadState
from fedre_privacy.core.types import Upload
from fedre_privacy.models.split import load_parameters
from fedre_privacy.protocols.blocks import shared_head, whole_model
from fedre_privacy.protocols.blocks.averaging import weighted_mean
from fedre_privacy.protocols.blocks.state import Server, Task, only_artifact
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes, averaged_parameters

from .base import Protocol, protocols


@protocols.register("lg-fedavg")
@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Protocol):
    """Extractors stay at the clients; heads are averaged by sample count.

    Uploads:    HeadState: C (d + 1) parameters; the number of samples once
    Reference:  Liang et al., Think locally, act globally, arXiv 2001.01523, 2020.
    """

    when_to_use = "only heads are sent and averaged; extractors stay at home"
    uploads = (HeadState, Counts)
    broadcasts = (HeadState,)
    training_only = True
    sums = "samples"
    headline = "post_broadcast"

    check = shared_head.check
    start_server = shared_head.start_server
    setup_upload = whole_model.setup_upload
    setup_aggregate = whole_model.setup_aggregate
    broadcast = shared_head.broadcast
    receive = shared_head.receive
    upload = shared_head.upload

    def traffic(self, sizes: Sizes) -> Exchange:
        return averaged_parameters(sizes, sizes.head)

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        states = [only_artifact(upload.artifacts, HeadState).params for upload in uploads]
        mean = weighted_mean(states, whole_model.shares(server, uploads))
        load_parameters(server.modules["head"], mean)
