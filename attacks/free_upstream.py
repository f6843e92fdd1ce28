"""Inversion of an update whose loss nobody else can compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import UPDATES, LowRankChange, LowRankModel, SmallModelState
from fedre_privacy.core.channels import StepsAt
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.channels import UPDATES_COMPARED, update_as_sent
from .gradients.matching import Named, UpdateMatch, functional_call_rows, slopes
from .gradients.objectives import cosine
from .gradients.reconstruction import check
from .gradients.signed_search import SignedSearch, signed_search, without_bounds
from .gradients.victims import Victim

EXTRACTOR = "extractor."
"""How names of the extractor's parameters begin in a whole model."""


@attacks.register("free-upstream")
@dataclass(frozen=True, kw_only=True)
class FreeUpstream(SignedSearch, Attack):
    """Recover the images behind an update without knowing the loss that the client trained on.

    Whatever the loss, its gradient by the extractor's parameters w is sum_i J_w(x_i)^T u_i, with
    u_i its gradient by the representation of image i. So the images are sought together with free
    vectors u_i: minimises 1 - cos(sum_i J_w(x_i)^T u_i, D) + tv * TV(x), over the extractor's
    parameters alone; D is the gradient, or parameters before minus after. After local training
    the gradient is taken at a point between the models before and after, which is sought as well.
    So it needs neither head, projector nor teacher of the client, nor its number of steps. Labels
    are not told.

    Shape:      parameters by name; output (N * B, C, H, W), values in [0, 1], grouped by target
    Needs:      UPLOADS, and the model that the protocol's own messages hold; AUX_DATA with
                ``prior=public``    Recovers: inputs
    Cost:       that of ``inverting-gradients``; B times d more unknowns
    Reference:  Zhu, Liu and Han, Deep leakage from gradients, NeurIPS 2019, for labels that are
                sought with the images, of which free upstream gradients are the general case; Zhu
                et al., Surrogate model extension, ICML 2023, for the point on the path. The
                combination is this package's own.
    Deviations: u moves by Adam on signs as pixels do, twice as far, from N(0, 1).
    """

    when_to_use = (
        "updates whose loss is hidden (personal heads, teachers); otherwise "
        "a matched loss is better"
    )
    measured_on = ("gradients",)
    consumes = UPDATES
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "inputs"
    differentiates = True
    simulates: ClassVar[bool] = False
    adapts_to = UPDATES_COMPARED
    earliest = True
    suite = tuple(
        SuiteEntry(kind, "fedre-paper", "update", 40)
        for kind in (SmallModelState, LowRankModel, LowRankChange)
    )

    def adapts(self, observation: Observation) -> StepsAt:
        return without_bounds(super().adapts(observation), "cosine")

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        victims = [_extractor_alone(victim) for victim in check(observation, self.bn)]
        count = observation.images_per_target

        def upstream(rows: Sequence[Victim], purpose: str) -> Tensor:
            """Starts (n, B, d) of the vectors of each row."""
            shape = (count, _width(rows[0].model, observation.image_shape))
            return torch.stack(
                [
                    torch.randn(
                        shape,
                        generator=stream(
                            context.seed,
                            f"upstream {purpose}",
                            client=victim.client,
                            round=victim.round,
                            index=i % self.restarts,
                        ),
                    )
                    for i, victim in enumerate(rows)
                ]
            )

        def match(rows: Sequence[Victim]) -> UpdateMatch:
            return UpdateMatch(
                rows,
                pulled_back,
                cosine,
                bn=rows[0].statistics,
                sent=update_as_sent(observation.channel, directions=True),
                on_path=rows[0].local,
                upstream=(upstream(rows, "start"), upstream(rows, "spare")),
                device=context.device,
            )

        found = signed_search(
            observation,
            context,
            victims,
            self,
            match,
            labels=[torch.zeros(count, dtype=torch.int64)] * len(victims),
            split=lambda victim: victim.local,
            note="upstream gradients sought beside the images",
        )
        return replace(found, labels=torch.zeros(0, dtype=torch.int64))


def pulled_back(
    module: nn.Module, params: Named, buffers: Named, images: Tensor, upstream: Tensor
) -> dict[str, Tensor]:
    """What gradients (B, d) by representations come to by the extractor's parameters, by name."""
    extractor: nn.Module = module.extractor  # type: ignore[assignment]
    own, held = (
        {n.removeprefix(EXTRACTOR): v for n, v in named.items() if n.startswith(EXTRACTOR)}
        for named in (params, buffers)
    )

    def product(at: Named) -> Tensor:
        return (upstream * functional_call_rows(extractor, at, held, images)).sum()

    return {f"{EXTRACTOR}{name}": value for name, value in slopes(product, own).items()}


def _extractor_alone(victim: Victim) -> Victim:
    """A victim of whose upload only the extractor's parameters are compared."""
    inside = {n: v for n, v in victim.upload.items() if n.startswith(EXTRACTOR)}
    if not inside or not isinstance(getattr(victim.model, "extractor", None), nn.Module):
        raise IncompatibleError(
            "Attack 'free-upstream' compares the parameters of a model's `extractor`; the model of "
            f"client {victim.client} in round {victim.round} has none of this name.",
            next_step="Give a model in two parts, as fedre_privacy.models.SplitModel, or use "
            "--attack update-inversion.",
        )
    return replace(victim, upload=inside)


@torch.no_grad()
def _width(model: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Length of a representation."""
    reps: Tensor = model.extractor(torch.zeros(1, *image_shape))  # type: ignore[operator]
    return reps.shape[1]
