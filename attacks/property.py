"""Properties of a client's images, told from its upload by shadow models with and without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from fedre_privacy.core.artifacts import (
    Artifact,
    ClassLogits,
    EntangledRep,
    GradientState,
    HeadState,
    LowRankChange,
    LowRankModel,
    MatrixBlocks,
    ModelState,
    Prototypes,
    Representations,
    SmallModelState,
)
from fedre_privacy.core.channels import (
    ClippingStep,
    CorrelatedSteps,
    LearntChange,
    Masking,
    Noise,
    NoisySteps,
    RandomChange,
    RandomRounding,
    Rounding,
    Smoothing,
    TrainingTerm,
    UnknownNoise,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import PropertyScores
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Observation, Property
from fedre_privacy.core.units import plural

from .base import Attack, Context, attacks
from .common.frozen_modules import frozen_copy
from .common.tiling import cached
from .common.upload_features import Blocks, Scale, blocks_of, class_counts_of
from .gradients.victims import architecture_key
from .inversion.shadow_models import ShadowModelAttack, classes_drawn, require_shadow_models

LEAST_SHADOWS = 40
"""Shadow models of the clients of one architecture, at least."""
FOLDS = 5
WIDEST = 0.5
"""How far from its limit a share is drawn, at most, with the property and without it."""
VALUES = (ClippingStep, Masking, Noise, UnknownNoise, RandomRounding)


@attacks.register("property")
@dataclass(frozen=True, kw_only=True)
class PropertyInference(ShadowModelAttack, Attack):
    """Tell from an upload what share of a client's images is of one class, or dark, and so on.

    The server trains shadow models of each client on auxiliary images from the weights that it
    began with, with the broadcasts of these rounds, with and without each property. From the
    uploads of all shadow models of clients of one architecture a logistic regression learns which
    share of the images counts; the penalty is that which does best on clients left out. Where
    uploads tell how many samples each class has, shares of classes are read off. The server is
    passive.

    Shape:      K clients and P properties; scores (K, P), above 0.5 where the share found lies
                above the property's limit
    Needs:      UPLOADS, HEAD, TRAINING, AUX_DATA, ARCHITECTURE, and INITIAL_MODEL with
                ``start=known``; no extractor       Recovers: properties
    Cost:       `shadows` shadow models of a client up to the attacked round
    Reference:  Ganju et al., Property inference attacks on fully connected neural networks using
                permutation invariant representations, CCS 2018; Melis et al., Exploiting
                unintended feature leakage in collaborative learning, S&P 2019.
    Deviations: shares are learnt and not only yes or no; vectors of classes are averaged over the
                classes after each class's mean over all shadow models is taken out; tensors of more
                than 1,024 numbers are sketched to 256 random projections.
    """

    when_to_use = (
        "what share of a client's images is of one class, or dark, with public images to train on"
    )
    measured_on = ("properties",)
    loops = {"shadows": 10}
    consumes = (
        Representations,
        Prototypes,
        ClassLogits,
        EntangledRep,
        GradientState,
        ModelState,
        HeadState,
        SmallModelState,
        LowRankModel,
        LowRankChange,
        MatrixBlocks,
    )
    recovers = "properties"
    answers = "property"
    usual_for = {"property": 1}
    earliest = True
    adapts_to = {  # noqa: RUF012 (frozen: nothing changes it)
        "each": (ClippingStep,),
        "rows": VALUES,
        "updates": VALUES,
        "encoding": (Smoothing, Rounding),
        "training": (NoisySteps, CorrelatedSteps, TrainingTerm),
        "extractor": (LearntChange, RandomChange),
    }

    shadows: int = knob(200, help="shadow models in all, dealt out to the clients", ge=10)

    def run(self, observation: Observation, context: Context) -> PropertyScores:
        require_shadow_models(observation, random=self.start == "random")
        if not observation.properties:
            raise IncompatibleError(
                "The attack was given no property to ask about.",
                next_step="Give Observation.properties.",
            )
        clients = sorted({upload.client for upload in observation.targets})
        round = max(upload.round for upload in observation.targets)
        scores = torch.empty(len(clients), len(observation.properties), dtype=torch.float64)
        notes = []
        with single_threaded(context.device):  # one after another: protocols draw as they like
            for members in _alike(observation, clients).values():
                count = max(LEAST_SHADOWS, self.shadows * len(members) // len(clients))
                team = _ClientShadows(
                    observation, context, round, members, count, self.start == "random"
                )
                scores[[clients.index(k) for k in members]] = team.scores()
                notes.append(f"{plural(count, 'shadow model')} of {plural(len(members), 'client')}")
        return PropertyScores(torch.tensor(clients), scores, tuple(notes))


def _alike(observation: Observation, clients: Sequence[int]) -> Mapping[str, list[int]]:
    """Clients whose uploads can be compared: those of one architecture."""
    assert observation.rehearse is not None
    found: dict[str, list[int]] = defaultdict(list)
    for client in clients:
        found[architecture_key(observation.rehearse.blank(client, 0))].append(client)
    return found


@dataclass(frozen=True, eq=False)
class _ClientShadows:
    """Clients of one architecture, and their shadow models."""

    observation: Observation
    context: Context
    round: int
    clients: list[int]
    count: int
    random: bool

    @cached_property
    def masks(self) -> Tensor:
        """Which auxiliary images count for each property (m, P)."""
        aux, labels = self.observation.aux, self.observation.aux_labels
        assert aux is not None and labels is not None
        counted = [one.counts(aux, labels.cpu()) for one in self.observation.properties]
        return torch.stack(counted, dim=1)

    def scores(self) -> Tensor:
        """Of each client and property (K, P)."""
        made, shares, owners = [], [], []
        for place, client in enumerate(self.clients):
            number = self.count // len(self.clients) + (place < self.count % len(self.clients))
            if not number:
                continue
            name = f"rehearsed-{client:06d}-{self.round:06d}"
            piece = dict(cached(self.context, name, partial(self._shadow_uploads, client, number)))
            shares.append(piece.pop("shares"))
            owners.append(torch.full((number,), place))
            made += [{name: rows[i] for name, rows in piece.items()} for i in range(number)]
        scale, owner = Scale(made), torch.cat(owners)
        alone = len(owner.unique()) < 2  # then shadow models are left out, and not clients
        groups = (torch.arange(len(owner)) if alone else owner) % FOLDS
        sent = [self._blocks(self._upload_of(client), client) for client in self.clients]
        found = fitted_shares(scale(made), torch.cat(shares), groups, scale(sent))
        for row, client in enumerate(self.clients):
            told = self._class_shares(client)
            for column, asked in enumerate(self.observation.properties):
                if told is not None and asked.label >= 0 and not asked.darker:
                    found[row, column] = told[asked.label]
        above = torch.tensor([one.above for one in self.observation.properties]).double()
        return (found.clamp(1e-9, 1 - 1e-9).logit() - above.logit()).sigmoid()

    def _upload_of(self, client: int) -> list[Artifact]:
        """What a client uploaded in the round that is attacked."""
        whose = (client, self.round)
        uploads = [u for u in self.observation.targets if (u.client, u.round) == whose]
        return [artifact for upload in uploads for artifact in upload.artifacts]

    def _class_shares(self, client: int) -> Tensor | None:
        """Shares of a client's classes (C,), where its uploads of this round or once tell them."""
        uploads = self.observation.uploads
        once = [a for u in uploads if (u.client, u.round) == (client, 0) for a in u.artifacts]
        whole = [
            a for u in uploads if (u.client, u.round) == (client, self.round) for a in u.artifacts
        ]
        seen = self.observation
        counts = class_counts_of(
            [*(whole or self._upload_of(client)), *once], seen.num_classes, seen.channel
        )
        return None if counts is None else counts / counts.sum()

    def _blocks(self, sent: Sequence[Artifact], client: int) -> Blocks:
        model = self.observation.models.get((client, self.round))
        shapes = {} if model is None else {n: p.shape for n, p in model.named_parameters()}
        read = [a for a in sent if isinstance(a, PropertyInference.consumes)]
        return blocks_of(read, self.observation.num_classes, shapes)

    def _shadow_uploads(self, client: int, number: int) -> dict[str, Tensor]:
        """Blocks of the uploads of a client's shadow models, and the share that counts in each."""
        seen, device = self.observation, self.context.device
        assert seen.aux is not None and seen.aux_labels is not None
        assert seen.training is not None and seen.rehearse is not None
        rounds = sorted({u.round for u in seen.uploads if u.client == client} - {0} | {self.round})
        made, shares = [], []
        for one in range(number):
            where = {"client": client, "round": self.round, "index": one}
            seed = derive(self.context.seed, "property rehearsal", **where)
            rng = stream(self.context.seed, "property shadow", **where)
            index = self._draw_images(client, seen.training.sizes[client], rng)
            start = seen.rehearse.blank(client, seed) if self.random else seen.initial[client, 0]
            sent = seen.rehearse.uploads(
                client,
                frozen_copy(start, device),
                seen.aux[index],
                seen.aux_labels[index],
                [r for r in rounds if r <= self.round],
                seed,
            )
            made.append(self._blocks(sent[self.round], client))
            shares.append(self.masks[index].double().mean(0))
        blocks = {name: torch.stack([one[name] for one in made]) for name in made[0]}
        return {**blocks, "shares": torch.stack(shares)}

    def _draw_images(self, client: int, size: int, rng: torch.Generator) -> Tensor:
        """Numbers of auxiliary images (size,), with or without each property at random.

        Of the properties of classes one is drawn, since they exclude each other.
        """
        seen = self.observation
        assert seen.aux_labels is not None
        labels, told = seen.aux_labels.cpu(), self._class_shares(client)
        share = classes_drawn(seen, self._upload_of(client), rng) if told is None else told
        share = share * (torch.bincount(labels, minlength=len(share)) > 0)
        weight = (share / torch.bincount(labels, minlength=len(share)).clamp(min=1))[labels]
        if not float(weight.sum()):
            weight = torch.ones(len(labels), dtype=torch.float64)
        tilted = [i for i, one in enumerate(seen.properties) if one.label < 0]
        classes = [
            i
            for i, one in enumerate(seen.properties)
            if one.label >= 0 and told is None and float(share[one.label]) > 0
        ]
        if classes:
            tilted.append(classes[int(torch.randint(len(classes), (1,), generator=rng))])
        for number in tilted:
            wanted = _draw_share(seen.properties[number], rng)
            weight = _tilt_weights(weight, self.masks[:, number], wanted)
        return torch.multinomial(weight, size, replacement=True, generator=rng)


def _draw_share(asked: Property, rng: torch.Generator) -> float:
    """A share above the limit of a property, or below it, as likely."""
    far, side = (float(one) for one in torch.rand(2, generator=rng, dtype=torch.float64))
    if side < 0.5:
        return asked.above + far * min(WIDEST, 1 - asked.above)
    return asked.above - far * min(WIDEST, asked.above)


def _tilt_weights(weight: Tensor, mask: Tensor, share: float) -> Tensor:
    """Weights of images (m,) under which those of a mask have a share, if both kinds are there."""
    inside, outside = weight * mask, weight * ~mask
    if not float(inside.sum()) or not float(outside.sum()):
        return weight
    return share * inside / inside.sum() + (1 - share) * outside / outside.sum()


PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
KEPT = 64
"""Principal components of the features that are kept."""
ROUNDS = 15
"""Newton steps."""


def fitted_shares(known: Tensor, shares: Tensor, groups: Tensor, asked: Tensor) -> Tensor:
    """Fit shares (n, P) in [0, 1] to features (n, D) and return those of others (m, P).

    The cross-entropy with the shares is least, plus a ridge penalty on all but the constant, which
    is the one that does best on examples of groups (n,) left out.
    """
    basis = torch.linalg.svd(known, full_matrices=False).Vh[:KEPT].T
    rows, sought = _with_one(known @ basis), _with_one(asked @ basis)
    folds = groups.unique()
    losses = []
    for penalty in PENALTIES:
        total = torch.zeros(shares.shape[1], dtype=torch.float64)
        for fold in folds:
            out = groups == fold
            logits = rows[out] @ _weights(rows[~out], shares[~out], penalty)
            total += (F.softplus(logits) - shares[out] * logits).sum(0)
        losses.append(total)
    best = torch.stack(losses).argmin(0)
    found = torch.empty(len(asked), shares.shape[1], dtype=torch.float64)
    for number in best.unique().tolist():
        here = best == number
        found[:, here] = sought @ _weights(rows, shares[:, here], PENALTIES[number])
    return found.sigmoid()


def _with_one(rows: Tensor) -> Tensor:
    return F.pad(rows, (0, 1), value=1.0)


def _weights(rows: Tensor, shares: Tensor, penalty: float) -> Tensor:
    """Weights (D, P) by Newton's method."""
    width = rows.shape[1]
    ridge = torch.full((width,), penalty, dtype=torch.float64)
    ridge[-1] = 1e-3
    weights = torch.zeros(width, shares.shape[1], dtype=torch.float64)
    for _ in range(ROUNDS):
        found = (rows @ weights).sigmoid()
        slope = rows.T @ (found - shares) + ridge[:, None] * weights
        curve = (found * (1 - found)).T[:, :, None] * rows
        bend = rows.T @ curve + ridge.diag()
        weights = weights - torch.linalg.solve(bend, slope.T[:, :, None])[:, :, 0].T
    return weights
