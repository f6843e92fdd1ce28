"""FedAllRep: every representation is uploaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import HeadState, Representations
from fedre_privacy.core.config import section
from fedre_privacy.core.types import Emission, Mixture
from fedre_privacy.protocols.blocks import shared_head
from fedre_privacy.protocols.blocks.local import represent
from fedre_privacy.protocols.blocks.shared_head import HeadTraining
from fedre_privacy.protocols.blocks.state import Client, Task
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes, head_down, labelled_rows

from .base import Protocol, protocols


@protocols.register("fedallrep")
@dataclass(frozen=True, kw_only=True)
class FedAllRep(Protocol):
    """Each client uploads the representation and label of each of its training samples.

    The upper bound of what a server head can learn from, and of what uploads can leak.

    Uploads:    Representations: d values and one label per training sample
    Reference:  Yao et al., FedRE, CVPR 2026, Table 4.
    Deviations: the server's settings are not published; step size 0.01, batch 10 and one pass
                are those of FedRE's server, and the loss is summed over a batch, as in FedRE's
                release. No sample is dropped.
    """

    when_to_use = "the upper end of leakage: every single representation is sent"
    uploads = (Representations,)
    broadcasts = (HeadState,)
    training_only = True
    headline = "post_broadcast"

    server: HeadTraining = section(HeadTraining(reduction="sum"), help="the server's head training")

    check = shared_head.check
    start_server = shared_head.start_server
    broadcast = shared_head.broadcast
    receive = shared_head.receive
    aggregate = shared_head.aggregate

    def traffic(self, sizes: Sizes) -> Exchange:
        return Exchange(labelled_rows(sizes.samples, sizes.dim), head_down(sizes))

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        samples = client.upload_samples(task.setting.training)
        reps = represent(client.model.extractor, samples)
        index = torch.arange(len(reps))
        mixture = Mixture(index, index, torch.ones(len(reps)), num_rows=len(reps))
        return (Emission(Representations(reps, samples.labels), mixture),)
