"""FedGH: a global head trained on class prototypes."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import HeadState, Prototypes
from fedre_privacy.core.config import section
from fedre_privacy.protocols.blocks import global_prototypes, shared_head
from fedre_privacy.protocols.blocks.shared_head import HeadTraining
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes, head_down, labelled_rows

from .base import Protocol, protocols


@protocols.register("fedgh")
@dataclass(frozen=True, kw_only=True)
class FedGH(Protocol):
    """Each client uploads the mean representation of each of its classes, with the labels.

    The server trains the shared head on these pairs by cross-entropy and sends it back.

    Uploads:    Prototypes: d values and one label per class present at the client
    Reference:  Yi et al., FedGH, ACM MM 2023.
    Deviations: server step size 0.01, batch 10, one pass, as in the FedRE comparison; a public
                library uses 100 passes (``server.epochs=100``). Prototypes come from an eval-mode
                pass after training.
    """

    when_to_use = "prototypes that train one shared head: FedRE's direct competitor without mixing"
    uploads = (Prototypes,)
    broadcasts = (HeadState,)
    training_only = True
    headline = "post_broadcast"

    server: HeadTraining = section(HeadTraining(), help="the server's head training")

    check = shared_head.check
    start_server = shared_head.start_server
    broadcast = shared_head.broadcast
    receive = shared_head.receive
    upload = global_prototypes.upload
    aggregate = shared_head.aggregate

    def traffic(self, sizes: Sizes) -> Exchange:
        return Exchange(labelled_rows(sizes.pairs, sizes.dim), head_down(sizes))
