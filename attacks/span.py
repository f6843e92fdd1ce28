"""Membership inference on updates, whatever the loss: does the update hold this sample's features?

Each row of the gradient of a linear layer's weight is a mix of the features that members feed into
the layer, whatever the loss. So a sample whose features lie in the space of these rows is likely
one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import MODELS, Artifact, GradientState, HeadState
from fedre_privacy.core.config import knob
from fedre_privacy.core.eigenvalues import symmetric_eigen
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.types import Candidates, Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.client_messages import asked_of, image_keys
from .common.frozen_modules import BATCH, frozen_copy
from .gradients.model_pairs import SentModels, latest, settle


@attacks.register("span")
@dataclass(frozen=True, kw_only=True)
class Span(Attack):
    """Score candidates by how far their features lie in the rows of an update, round by round.

    With D the change of the weight and bias of the model's widest linear layer (out, in + 1), f the
    features of a candidate at the received model with a 1 behind them, and S the second moment of
    strangers' features plus `ridge`, the score is
    (D w)^T (D S^-1 D^T + `floor` l I)^-1 (D w) / f^T w, with w = S^-1 f and l the largest
    eigenvalue of D S^-1 D^T: the share of f that the rows of D explain where strangers' features
    count as spread evenly, and rows of small gradients as much as rows of large ones. Scores of a
    client are brought to mean 0 and spread 1 in each round, and rounds are added up. It needs no
    loss, head or projector of the client, and tells little once a client has many more samples than
    the layer has rows.

    Shape:      M candidates to scores (M,)
    Needs:      UPLOADS, HEAD (the model as broadcast); AUX_DATA if granted; EXTRACTOR for heads
                Recovers: membership
    Cost:       a pass of candidates and strangers per client and round, a solve (out, out)
    Reference:  Dimitrov et al., SPEAR, NeurIPS 2024, and Petrov et al., DAGER, NeurIPS 2024 (inputs
                lie in the row space of a linear layer's gradient), as a test of membership.
    Deviations: whitened by strangers' features; updates of several steps; rounds added up.
    """

    consumes = (*MODELS, GradientState, HeadState)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.HEAD})
    needs_for: ClassVar[Mapping[type[Artifact], frozenset[Knowledge]]] = {
        HeadState: frozenset({Knowledge.EXTRACTOR})
    }
    recovers = "membership"
    answers = "membership"
    simulates: ClassVar[bool] = False
    adds_rounds: ClassVar[bool] = True
    suite = tuple(SuiteEntry(kind, "strong", "membership", 51) for kind in consumes)

    ridge: float = knob(1e-4, help="in units of the mean squared length of features", gt=0)
    floor: float = knob(1e-3, help="in units of the largest eigenvalue of the rows", gt=0)
    aux: int = knob(450, help="strangers' images, at most", ge=2)
    rounds: int = knob(10, help="latest observed rounds used, the attacked one among them", ge=1)

    def run(self, observation: Observation, context: Context) -> MembershipScores:
        asked = asked_of(observation)
        total = torch.zeros(len(asked), dtype=torch.float64)
        read: dict[int, int] = {}
        for found in latest(observation, self.rounds):
            for client, exchange in found.items():
                mine = (asked.clients == client).nonzero().squeeze(1)
                if len(mine):
                    total[mine] += self._round(observation, context, asked, mine, exchange)
                    read[client] = read.get(client, 0) + 1
        known = torch.isin(asked.clients, torch.tensor(sorted(read), dtype=torch.int64))
        notes = [f"rounds read: {', '.join(map(str, sorted(set(read.values()))))}"]
        if not bool(known.all()):
            absent = sorted(set(asked.clients[~known].tolist()))
            notes.append(f"candidates of clients {absent}, whose uploads are not attacked, are NaN")
        return MembershipScores(torch.where(known, total, torch.nan).float(), tuple(notes))

    def _round(
        self,
        observation: Observation,
        context: Context,
        asked: Candidates,
        mine: Tensor,
        exchange: SentModels,
    ) -> Tensor:
        """Scores of one client's candidates by one upload, mean 0 and spread 1."""
        images = strangers(observation, asked, mine, self.aux)
        exchange = settle(exchange, asked.images)
        name = widest(exchange, images[:2])
        change = _weight_with_bias(exchange.before, name) - _weight_with_bias(exchange.after, name)
        if not bool(change.isfinite().all()):
            return torch.full((len(mine),), torch.nan, dtype=torch.float64)
        model = frozen_copy(exchange.before, context.device)
        own, known = (
            features(model, name, part, context.device) for part in (asked.images[mine], images)
        )
        scores = by_rows(own, known, change, self.ridge, self.floor)
        spread = scores.std() if len(scores) > 1 else torch.zeros(())
        return (scores - scores.mean()) / spread.clamp(min=1e-12)


def by_rows(own: Tensor, known: Tensor, change: Tensor, ridge: float, floor: float) -> Tensor:
    """The share of features that the rows of a change explain, (n,) float64; see `Span`.

    Args:
        own: features of candidates (n, P). known: of strangers (m, P). change: rows (R, P).
        ridge, floor: settings of `Span`.
    """
    own, known, change = own.double(), known.double(), change.double()
    kernel = known @ known.T
    level = ridge * kernel.diagonal().mean().clamp(min=1e-30)
    kernel = kernel + len(known) * level * torch.eye(len(known)).to(kernel)

    def white(rows: Tensor) -> Tensor:
        """S^-1 of each row, up to a factor that all have."""
        told: Tensor = torch.linalg.solve(kernel, known @ rows.T)
        return rows - told.T @ known

    along = white(own)
    held = change @ white(change).T
    most = symmetric_eigen(held)[0][-1].clamp(min=1e-30)
    dots = along @ change.T
    held = held + floor * most * torch.eye(len(held)).to(held)
    explained = (dots * torch.linalg.solve(held, dots.T).T).sum(1)
    shares: Tensor = explained / (own * along).sum(1).clamp(min=1e-30)
    return shares


def strangers(observation: Observation, asked: Candidates, mine: Tensor, most: int) -> Tensor:
    """Images of nobody in question: auxiliary ones, then candidates of other clients, (m, ...).

    Raises:
        IncompatibleError: there are fewer than two.
    """
    keys = image_keys(asked.images)
    others = asked.images[~torch.isin(keys, keys[mine])]
    parts = [others] if observation.aux is None else [observation.aux, others]
    found = torch.cat(parts)[:most]
    if len(found) < 2:
        raise IncompatibleError(
            "Features are whitened by those of strangers' images, and there are none.",
            next_step="Use --threat strong, or ask about several clients.",
        )
    return found


def widest(exchange: SentModels, images: Tensor) -> str:
    """The linear layer with the most rows or columns, whichever are fewer, that sees one row each.

    A layer that the upload left as it was is taken where it changed none.

    Raises:
        IncompatibleError: there is none.
    """
    model, after = exchange.before, exchange.after.state_dict()
    every: dict[str, nn.Linear] = {
        n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)
    }
    moved = {n: m for n, m in every.items() if not torch.equal(m.weight, after[f"{n}.weight"])}
    layers = moved or every
    seen = _inputs(model, list(layers), images)
    fitting = [n for n in layers if n in seen and seen[n].dim() == 2]
    if not fitting:
        raise IncompatibleError(
            "Attack 'span' reads a linear layer that sees one vector for each image, and the model "
            "has none.",
            next_step="Use --attack alignment.",
        )
    return max(fitting, key=lambda n: min(layers[n].weight.shape))


def features(model: nn.Module, name: str, images: Tensor, device: torch.device) -> Tensor:
    """What images feed into a layer, with a 1 behind it, (n, in + 1) float64 on the CPU."""
    rows = [
        _inputs(model, [name], part.to(device))[name].double().cpu() for part in images.split(BATCH)
    ]
    found = torch.cat(rows)
    return torch.cat([found, torch.ones(len(found), 1, dtype=torch.float64)], 1)


@torch.no_grad()
def _inputs(model: nn.Module, names: list[str], images: Tensor) -> dict[str, Tensor]:
    """What layers are fed, by name."""
    seen: dict[str, Tensor] = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: seen.__setitem__(name, given[0])
        )
        for name in names
    ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _weight_with_bias(model: nn.Module, name: str) -> Tensor:
    """Weight and bias of a linear layer side by side, (out, in + 1) float64 on the CPU."""
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    weight = layer.weight.detach().cpu().double()
    bias = torch.zeros(len(weight)).double() if layer.bias is None else layer.bias.detach().cpu()
    return torch.cat([weight, bias.double()[:, None]], 1)
