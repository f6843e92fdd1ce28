"""Membership inference on updates and gradients: does the update point along this sample's slope?

An update is nearly a sum of the gradients of the samples that made it. Gradients of samples are
alike, so that what they share hides what tells them apart; it is taken out by the covariance of
gradients, in the form of inner products, so that nothing of the size of a model is inverted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import MODELS, Artifact, GradientState, HeadState
from fedre_privacy.core.channels import LearntChange, Noise, StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, attacks
from .common.client_messages import asked_of
from .common.frozen_modules import frozen_copy
from .gradients.model_pairs import SentModels, exchanges, settle

KINDS = (*MODELS, GradientState, HeadState)
NEEDS_FOR: Mapping[type[Artifact], frozenset[Knowledge]] = {
    HeadState: frozenset({Knowledge.EXTRACTOR})
}


@attacks.register("alignment")
@dataclass(frozen=True, kw_only=True)
class Alignment(Attack):
    """Score candidates by their gradient along the update, whitened by strangers' gradients.

    With a the parameters received less those uploaded, g the gradient of a candidate's loss at the
    received model, and A the gradients of auxiliary images (without any, of the candidates of other
    clients), the score is g a - g A (A A + n l I)^-1 A a: the part of g a that strangers do not
    explain.

    Shape:      M candidates to scores (M,)
    Needs:      UPLOADS, HEAD (the model as broadcast); AUX_DATA if granted; EXTRACTOR for heads
                Recovers: membership
    Cost:       a gradient of every candidate and `aux` images per client, (n, parameters) float32
    Reference:  Li et al., Effective passive membership inference attacks in federated learning
                against overparameterized models, ICLR 2023 (cosine of update and gradient).
    Deviations: whitened, in kernel form; trailing parameters only in a large model.
    """

    when_to_use = (
        "membership in models or updates by candidates' gradients, where "
        "the loss alone shows little"
    )
    measured_on = ("membership",)
    consumes = KINDS
    needs = frozenset({Knowledge.UPLOADS, Knowledge.HEAD})
    needs_for = NEEDS_FOR
    recovers = "membership"
    answers = "membership"
    usual_for = {"source": 3}
    adapts_to: ClassVar[StepsAt] = {"extractor": (LearntChange,)}

    ridge: float = knob(1e-3, help="l, in units of the mean squared length of a gradient", gt=0)
    aux: int = knob(450, help="strangers' images, at most", ge=2)
    parameters: int = knob(
        1_000_000, help="parameters compared, those of the last layers, at most", ge=1
    )

    def run(self, observation: Observation, context: Context) -> MembershipScores:
        asked = asked_of(observation)

        def score(client: int, mine: Tensor, slopes: Slopes) -> Tensor:
            images, labels = observation.aux, observation.aux_labels
            if images is None or labels is None:
                others = (asked.clients != client).nonzero().squeeze(1)
                images, labels = asked.images[others], asked.labels[others]
            if len(images) < 2:
                raise IncompatibleError(
                    "Gradients are whitened by those of strangers' images, and there are none.",
                    next_step="Use --threat strong, or ask about several clients.",
                )
            own = slopes(asked.images[mine], asked.labels[mine])
            known = slopes(images[: self.aux], labels[: self.aux])
            return by_strangers(own, known, slopes.along, self.ridge)

        return _score_candidates(observation, context, self.parameters, score, "strangers' images")


@attacks.register("own-list-alignment")
@dataclass(frozen=True, kw_only=True)
class OwnListAlignment(Attack):
    """Score a client's candidates together, as the weights that explain its update best.

    An auditor's game: the list of candidates must hold all that the client trained on, which is
    nearly solved for the subset that made the update. With K the inner products of the candidates'
    gradients and a scaled to their sum the weights are
    (K + (ridge + 4 sigma^2) I)^-1 (G a - K 1/2): coins have variance 1/4, and sigma is the declared
    noise on a number of the update.

    Shape:      M candidates to scores (M,)
    Needs:      UPLOADS, HEAD (the model as broadcast); EXTRACTOR for heads   Recovers: membership
    Cost:       a gradient of every candidate of a client, (n, parameters) float32, a solve (n, n)
    Reference:  as of `Alignment`; ridge regression of the update on the gradients of a list.
    Deviations: none.
    """

    when_to_use = (
        "the worst case of an audit: the list holds everything that a client may have trained on"
    )
    measured_on = ("membership",)
    consumes = KINDS
    needs = frozenset({Knowledge.UPLOADS, Knowledge.HEAD})
    needs_for = NEEDS_FOR
    recovers = "membership"
    answers = "membership"
    adapts_to: ClassVar[StepsAt] = {"extractor": (LearntChange,), "updates": (Noise,)}
    assumes: ClassVar[str] = "AUDITOR: a list with all that the client may have trained on"

    ridge: float = knob(1e-2, help="in units of the mean squared length of a gradient", gt=0)
    parameters: int = knob(
        1_000_000, help="parameters compared, those of the last layers, at most", ge=1
    )

    def run(self, observation: Observation, context: Context) -> MembershipScores:
        asked = asked_of(observation)
        steps = [one for one in observation.channel.updates if isinstance(one, Noise)]

        def score(client: int, mine: Tensor, slopes: Slopes) -> Tensor:
            own = slopes(asked.images[mine], asked.labels[mine])
            noise = sum(one.std**2 * (slopes.sent if one.per_number else 1) for one in steps)
            return by_own_list(own, slopes.along, self.ridge, noise**0.5)

        return _score_candidates(observation, context, self.parameters, score, self.assumes)


def by_strangers(own: Tensor, known: Tensor, along: Tensor, ridge: float) -> Tensor:
    """What strangers' gradients leave unexplained of g a, (n,) float64.

    Args:
        own: gradients of candidates (n, P). known: of strangers (m, P). along: a (P,).
        ridge: in units of the mean squared length of strangers' gradients.
    """
    kernel = (known @ known.T).double()
    level = kernel.diagonal().mean().clamp(min=1e-30)
    kernel = kernel + len(known) * ridge * level * torch.eye(len(known)).to(kernel)
    told: Tensor = torch.linalg.solve(kernel, (known @ along).double())
    return (own @ along).double() - (own @ known.T).double() @ told


def by_own_list(own: Tensor, along: Tensor, ridge: float, noise: float = 0.0) -> Tensor:
    """Weights of the candidates of a list in an update, less one half, (n,) float64.

    The update is scaled so that the sum of all gradients explains it with weight one half.

    Args:
        own: gradients of candidates (n, P). along: a (P,).
        ridge: in units of their mean squared length.
        noise: standard deviation of the noise on a number of a.
    """
    kernel = (own @ own.T).double()
    level = kernel.diagonal().mean().clamp(min=1e-30)
    dots, half = (own @ along).double(), kernel.sum(1) / 2
    scale = dots.sum() / half.sum().clamp(min=1e-30)
    if float(scale) <= 0:  # it points away from the sum: only the direction is known
        scale, half = along.double().norm() / level.sqrt(), torch.zeros_like(half)
    ridge_here = ridge * level + 4 * (noise / scale) ** 2
    kernel = kernel + ridge_here * torch.eye(len(own)).to(kernel)
    weights: Tensor = torch.linalg.solve(kernel, dots / scale - half)
    return weights


class Slopes:
    """Gradients of samples at the model before an upload, and the upload's direction."""

    def __init__(self, exchange: SentModels, most: int, device: torch.device) -> None:
        self.device = device
        self.model: nn.Module = frozen_copy(exchange.before, device)
        after = dict(exchange.after.named_parameters())
        moved = {
            name: (value.detach().cpu() - after[name].detach().cpu())
            for name, value in exchange.before.named_parameters()
        }
        self.sent = sum(change.numel() for change in moved.values())
        self.names: list[str] = []
        total = 0
        for name in reversed([n for n, change in moved.items() if bool(change.any())]):
            total += moved[name].numel()
            if self.names and total > most:
                break
            self.names.append(name)
        parts = [moved[name].flatten() for name in self.names]
        self.along = torch.cat(parts) if parts else torch.zeros(0)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Gradients of the cross-entropy of each sample, (n, P) float32 on the CPU."""
        tried = dict(self.model.named_parameters())
        params = [tried[name].requires_grad_(True) for name in self.names]
        out = torch.empty(len(images), len(self.along))
        for row, image, label in zip(out, images.to(self.device), labels.long(), strict=True):
            logits = self.model(image[None])
            loss = nn.functional.cross_entropy(logits, label[None].to(self.device))
            slope = torch.autograd.grad(loss, params)
            row.copy_(torch.cat([part.flatten() for part in slope]))
        return out


def _score_candidates(
    observation: Observation,
    context: Context,
    parameters: int,
    score: Callable[[int, Tensor, Slopes], Tensor],
    words: str,
) -> MembershipScores:
    """Scores of all candidates, client by client."""
    asked = asked_of(observation)
    scores = torch.full((len(asked),), torch.nan, dtype=torch.float64)
    found = exchanges(observation)
    with single_threaded(context.device):  # sums do not depend on the number of threads
        for client, exchange in found.items():
            mine = (asked.clients == client).nonzero().squeeze(1)
            if not len(mine):
                continue
            slopes = Slopes(settle(exchange, asked.images), parameters, context.device)
            scores[mine] = score(client, mine, slopes) if len(slopes.along) else 0.0
    notes = [words]
    absent = sorted(set(asked.clients.tolist()) - set(found))
    if absent:
        notes.append(f"candidates of clients {absent}, whose uploads are not attacked, are NaN")
    return MembershipScores(scores.float(), tuple(notes))
