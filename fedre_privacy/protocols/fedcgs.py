"""FedCGS: sums of representations, of which the server makes a linear discriminant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import ClassStatistics, HeadState, Prototypes
from fedre_privacy.core.config import knob
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.protocols.blocks import shared_head
from fedre_privacy.protocols.blocks.local import represent
from fedre_privacy.protocols.blocks.prototypes import class_means
from fedre_privacy.protocols.blocks.state import Client, Server, Task, only_artifact
from fedre_privacy.protocols.blocks.traffic import Count, Exchange, Sizes, head_down

from .base import Protocol, protocols

ABSENT = -1e4
"""Bias of a class that no client has."""


@protocols.register("fedcgs")
@dataclass(frozen=True, kw_only=True)
class FedCGS(Protocol):
    """Each client sends sums over its classes and the second moment of all its representations.

    From A_c = sum of f over class c, N_c and B = sum of f f' over everything, added over clients,
    the server has the means m_c = A_c / N_c, m = sum_c A_c / N and the covariance
    S = (B - N m m') / (N - 1), and sends the head w_c = S^-1 m_c,
    b_c = log(N_c / N) - m_c' S^-1 m_c / 2. Nobody trains anything; extractors are public.

    Uploads:    ClassStatistics: d values, a number and a label per class present at the client,
                and d^2 values
    Reference:  Guan, Zhou, Gu, Capture global feature statistics for one-shot federated learning,
                AAAI 2025, equations 3 to 9, and the public code.
    Deviations: sums are sent divided by their numbers, float32 (public code: float64), which says
                the same. Where S is singular its pseudo-inverse stands in; ``ridge`` is added to
                its diagonal (public code: 0); eigenvalues within float32's
                rounding count as 0. Personalisation is left out. ``local=trained`` trains clients'
                models before, which the paper does not.
    """

    when_to_use = "one round over a frozen backbone that shares sums and one second moment"
    uploads = (ClassStatistics,)
    broadcasts = (HeadState,)
    training_only = True
    headline = "post_broadcast"

    ridge: float = knob(0.0, help="added to every variance of the pooled covariance", ge=0)
    local: str = knob(
        "frozen",
        help="clients' models: as they are, or trained locally before every upload",
        choices=("frozen", "trained"),
    )

    check = shared_head.check
    start_server = shared_head.start_server
    broadcast = shared_head.broadcast
    receive = shared_head.receive

    def traffic(self, sizes: Sizes) -> Exchange:
        values = sizes.pairs * sizes.dim + sizes.clients * sizes.dim**2
        return Exchange(Count(values, values, 2 * sizes.pairs), head_down(sizes))

    def trains(self) -> bool:
        return self.local != "frozen"

    def modules(self, client: Client) -> Sequence[nn.Module]:
        return (client.model,) if self.trains() else ()

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        samples = client.upload_samples(task.setting.training)
        reps = represent(client.model.extractor, samples).double()
        classes, known = task.setting.num_classes, samples.host_labels
        made = class_means(reps, samples.labels, classes, on_host=known)
        means = only_artifact((made.artifact,), Prototypes)
        counts = torch.bincount(known)
        moment = reps.T @ reps / len(reps)
        statistics = ClassStatistics(
            means.means.float(), counts[counts > 0], means.labels, {"moment": moment.float()}
        )
        return (Emission(statistics, made.mixture),)

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        classes, dim = task.setting.num_classes, task.setting.dims[0]
        sums = torch.zeros(classes, dim, dtype=torch.float64)
        numbers = torch.zeros(classes, dtype=torch.float64)
        moment = torch.zeros(dim, dim, dtype=torch.float64)
        for sent in (a for u in uploads for a in u.artifacts if isinstance(a, ClassStatistics)):
            counts = sent.counts.double()
            sums.index_add_(0, sent.labels, sent.means.double() * counts[:, None])
            numbers.index_add_(0, sent.labels, counts)
            moment += counts.sum() * sent.spread["moment"].double()
        weight, bias = _discriminant(sums, numbers, moment, self.ridge)
        with torch.no_grad():
            for name, values in (("weight", weight), ("bias", bias)):
                parameter = server.modules["head"].get_parameter(name)
                parameter.copy_(values)


def _discriminant(
    sums: Tensor, numbers: Tensor, moment: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    """Weight (C, d) and bias (C,) of the linear discriminant of sums, numbers and B."""
    total = numbers.sum()
    mean = sums.sum(0) / total
    covariance = (moment - total * torch.outer(mean, mean)) / (total - 1).clamp(min=1)
    covariance += ridge * torch.eye(len(mean), dtype=mean.dtype)
    # what was sent is float32, so smaller eigenvalues are its rounding
    least = len(mean) * torch.finfo(torch.float32).eps
    inverse = torch.linalg.pinv(covariance, rtol=least, hermitian=True)
    means = sums / numbers.clamp(min=1)[:, None]
    weight = means @ inverse
    bias = (numbers / total).log() - (weight * means).sum(1) / 2
    return weight, bias.masked_fill(numbers == 0, ABSENT)
