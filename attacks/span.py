"""Membership inference on updates, whatever the loss: does the update hold this sample's features?

Each row of the gradient of a linear layer's weight is a mix of the features that members feed into
the layer, whatever the loss. So a sample whose features lie in the space of these rows is likely
one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import MODELS, Artifact, GradientState, HeadState
from fedre_privacy.core.channels import LearntChange, Masking, StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.eigenvalues import symmetric_eigen
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.types import Candidates, Knowledge, Observation
from fedre_privacy.models.adapters import Bottleneck

from .base import Attack, Context, SuiteEntry, attacks
from .common.channels import is_masked
from .common.client_messages import asked_of, image_keys
from .common.frozen_modules import BATCH, frozen_copy
from .gradients.model_pairs import SentModels, latest, settle

TINY = 1e-30
FILLING = 30
"""Steps of conjugate gradients by which masked rows are filled in."""
PLACES = 16
"""Places of a map that are read, at most, spread evenly."""


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
    the layer has rows. With `tokens` the score is the mean over this layer and all that see several
    vectors of an image and have fewer rows than columns, each by the mean share of these vectors:
    of a low-rank adapter W + B A that is A, whose change's rows lie in the span of the inputs,
    where those of B lie in the span of A x and tell nothing; of a bottleneck adapter that is its
    first layer, which sees the places of a map. Rows that a mask or pruning left in part are filled
    in by what strangers' features let expect of the rest.

    Shape:      M candidates to scores (M,)
    Needs:      UPLOADS, HEAD (the model as broadcast); AUX_DATA if granted; EXTRACTOR for heads
                Recovers: membership
    Cost:       a pass of candidates and strangers per client and round, a solve (out, out);
                behind masks 60 products (out, in) by (in, strangers) more
    Reference:  Dimitrov et al., SPEAR, NeurIPS 2024, and Petrov et al., DAGER, NeurIPS 2024 (inputs
                lie in the row space of a linear layer's gradient), as a test of membership.
    Deviations: whitened by strangers' features; updates of several steps; rounds added up.
    """

    when_to_use = "membership over several rounds when the client's loss and head are hidden"
    measured_on = ("membership", "adapters")
    consumes = (*MODELS, GradientState, HeadState)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.HEAD})
    needs_for: ClassVar[Mapping[type[Artifact], frozenset[Knowledge]]] = {
        HeadState: frozenset({Knowledge.EXTRACTOR})
    }
    recovers = "membership"
    answers = "membership"
    adapts_to: ClassVar[StepsAt] = {"extractor": (LearntChange,), "updates": (Masking,)}
    simulates: ClassVar[bool] = False
    adds_rounds: ClassVar[bool] = True
    suite = tuple(SuiteEntry(kind, "strong", "membership", 51) for kind in consumes)

    ridge: float = knob(1e-4, help="in units of the mean squared length of features", gt=0)
    floor: float = knob(1e-3, help="in units of the largest eigenvalue of the rows", gt=0)
    aux: int = knob(450, help="strangers' images, at most", ge=2)
    rounds: int = knob(10, help="latest observed rounds used, the attacked one among them", ge=1)
    tokens: bool = knob(
        False,
        help="read linear layers as well that see several vectors of an image, as in transformers "
        "and their low-rank adapters, and the first layers of bottleneck adapters",
        later=True,
    )

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
        names = [widest(exchange, images[:2])]
        if self.tokens:
            names += of_tokens(exchange, images[:2])
        model = frozen_copy(exchange.before, context.device)
        total = torch.zeros(len(mine), dtype=torch.float64)
        for name in names:
            change = _change(exchange, name)
            if not bool(change.isfinite().all()):
                return torch.full((len(mine),), torch.nan, dtype=torch.float64)
            own, known = (
                features(model, name, part, context.device) for part in (asked.images[mine], images)
            )
            known = known[:: max(1, len(known) // self.aux)][: self.aux]
            if is_masked(observation.channel, "updates"):
                change = fill_in(change, known, self.ridge)
            shares = by_rows(own, known, change, self.ridge, self.floor)
            scores = shares.reshape(len(mine), -1).mean(1)
            spread = scores.std() if len(scores) > 1 else torch.zeros(())
            total += (scores - scores.mean()) / spread.clamp(min=1e-12)
        return total / len(names)


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


def fill_in(change: Tensor, known: Tensor, ridge: float) -> Tensor:
    """Rows of a change whose numbers were sent in part, each as a normal vector about its part.

    With S the second moment of strangers' features plus a ridge, K the coordinates of a row d that
    are not 0 and S_K their part of it, the row becomes S[:, K] S_K^-1 d[K], what is expected of a
    mix of features; the inverse is found by conjugate gradients for all rows together.

    Args:
        change: rows (R, P). known: features of strangers (m, P). ridge: a setting of `Span`.
    """
    most = change.abs().max().clamp(min=TINY)
    change, known = (change / most).float(), known.float()
    level = len(known) * ridge * known.square().sum(1).mean().clamp(min=TINY)
    scale = known.square().sum(0) + level
    kept = change != 0

    def moment(rows: Tensor) -> Tensor:
        made: Tensor = (rows @ known.T) @ known + level * rows
        return made

    found, left = torch.zeros_like(change), change
    step = left / scale
    size = (left * step).sum(1, keepdim=True)
    for _ in range(FILLING):
        along = kept * moment(step)
        length = size / (step * along).sum(1, keepdim=True).clamp(min=TINY)
        found, left = found + length * step, left - length * along
        turned = left / scale
        before, size = size, (left * turned).sum(1, keepdim=True)
        step = turned + size / before.clamp(min=TINY) * step
    return most * moment(found).double()


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
    layers, seen = _moved(exchange, images)
    fitting = [n for n in layers if n in seen and seen[n].dim() == 2]
    if not fitting:
        raise IncompatibleError(
            "Attack 'span' reads a linear layer that sees one vector for each image, and the model "
            "has none.",
            next_step="Use --attack alignment.",
        )
    return max(fitting, key=lambda n: min(layers[n].weight.shape))


def of_tokens(exchange: SentModels, images: Tensor) -> list[str]:
    """The changed linear layers that see several vectors of an image and have fewer rows than
    columns; first layers of bottleneck adapters among them."""
    layers, seen = _moved(exchange, images)
    return [
        name
        for name, one in layers.items()
        if name in seen and seen[name].dim() > 2 and one.weight.shape[0] < one.weight.shape[1]
    ]


def _moved(
    exchange: SentModels, images: Tensor
) -> tuple[dict[str, nn.Linear | nn.Conv2d], dict[str, Tensor]]:
    """The linear layers that the upload changed, all where it changed none; what they are fed."""
    after = dict(exchange.after.named_parameters())
    every = {
        name: one
        for name, one in _linear_layers(exchange.before)
        if f"{name}.weight" in after  # a frozen one is not
    }
    moved = {n: m for n, m in every.items() if not torch.equal(m.weight, after[f"{n}.weight"])}
    layers = moved or every
    return layers, _inputs(exchange.before, list(layers), images)


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear | nn.Conv2d]]:
    """Linear layers, and first layers of bottleneck adapters, by name."""
    for name, one in model.named_modules():
        if isinstance(one, nn.Linear):
            yield name, one
        elif isinstance(one, Bottleneck):
            yield f"{name}.down", one.down


def features(model: nn.Module, name: str, images: Tensor, device: torch.device) -> Tensor:
    """What images feed into a layer, with a 1 behind it, (n, in + 1) float64 on the CPU.

    One row for each vector that the layer sees of an image, those of an image together.
    """
    rows = [
        _inputs(model, [name], part.to(device))[name].double().cpu() for part in images.split(BATCH)
    ]
    found = torch.cat(rows).flatten(0, -2)
    return torch.cat([found, torch.ones(len(found), 1, dtype=torch.float64)], 1)


@torch.no_grad()
def _inputs(model: nn.Module, names: list[str], images: Tensor) -> dict[str, Tensor]:
    """What layers are fed, by name; maps (n, C, H, W) as (n, places, C)."""
    seen: dict[str, Tensor] = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda one, given, name=name: seen.__setitem__(name, _vectors(one, given[0]))
        )
        for name in names
    ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _vectors(layer: nn.Module, fed: Tensor) -> Tensor:
    """What a layer is fed, a vector along the last axis; of a map some places."""
    if not isinstance(layer, nn.Conv2d):
        return fed
    places = fed.flatten(2).transpose(1, 2)
    return places[:, :: -(-places.shape[1] // PLACES)]


def _change(exchange: SentModels, name: str) -> Tensor:
    """Weight and bias of a layer before less after, (out, in + 1) float64 on the CPU."""
    return _weight_with_bias(exchange.before, name) - _weight_with_bias(exchange.after, name)


def _weight_with_bias(model: nn.Module, name: str) -> Tensor:
    """Weight and bias of a linear layer side by side, (out, in + 1) float64 on the CPU."""
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    weight = layer.weight.detach().cpu().double().flatten(1)
    bias = torch.zeros(len(weight)).double() if layer.bias is None else layer.bias.detach().cpu()
    return torch.cat([weight, bias.double()[:, None]], 1)
