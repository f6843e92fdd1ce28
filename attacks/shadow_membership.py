"""Membership inference without the client's extractor: through copies that the server trained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import (
    Artifact,
    ClassLogits,
    EntangledRep,
    Prototypes,
    Representations,
)
from fedre_privacy.core.channels import (
    Channel,
    ClippingStep,
    CorrelatedSteps,
    LearntChange,
    Masking,
    NoisySteps,
    RandomChange,
    Smoothing,
    StepsAt,
    TrainingTerm,
    usable,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.eigenvalues import symmetric_eigen
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.channels import row_as_compared, undo_smoothing
from .common.client_messages import asked_of
from .common.tiling import Piece, Tick, in_groups
from .gradients.head_uploads import class_shares_of
from .inversion.class_means import ClassMeans
from .inversion.shadow_models import (
    Owner,
    ShadowModelAttack,
    UploadComparison,
    class_shares,
    require_shadow_models,
    train_shadow_models,
)
from .mixtures.class_statistics import NOISE, SIZES

READ = (Representations, Prototypes, EntangledRep, ClassLogits)
UNKNOWN_START: dict[str, Any] = {"unknown_start": True, "settings": {"start": "random"}}
UNSAID = "candidates of classes that are in no upload get the lowest score of their client"


@attacks.register("shadow-membership")
@dataclass(frozen=True, kw_only=True)
class ShadowMembership(ShadowModelAttack, Attack):
    """Score candidates by the odds that an early upload holds them, through copies of the client.

    Copies of the client are trained as `shadow` trains them. A mean R of representations is tested
    for each candidate with log-odds of R ~ N(mu + a (g(x) - mu), (s - a^2) S + k N) against
    R ~ N(mu, s S + k N): a is the candidate's weight in R, s the sum of all squared weights, mu and
    S the mean and the within-class covariance of auxiliary images by the copies' mean
    representation g, and N the covariance of what the copies disagree by; k is the value under
    which R is most likely. For prototypes copies are moved first, so that their means agree with
    those uploaded of other classes. A mixture is one test, a prototype one for its class, single
    representations one each, of which the odds are added up. Mean outputs of classes (FD) are read
    as prototypes of what the whole model makes, by the logarithms of its softmax.

    The first round is attacked, see `shadow`. With ``start=random`` copies begin with random
    weights, which serves as the control.

    Shape:      M candidates to scores (M,)
    Needs:      UPLOADS, HEAD, TRAINING, AUX_DATA, ARCHITECTURE, and INITIAL_MODEL with
                ``start=known``; no extractor       Recovers: membership
    Cost:       for each client its local training up to the attacked round `shadows` times, and
                three times `tries` where shares are sought; two eigendecompositions (d, d) for
                each row
    Reference:  this project; tracing of a mean: Dwork et al., Robust traceability from trace
                amounts, FOCS 2015; shadows as in Shokri et al., S&P 2017.
    """

    when_to_use = "membership in vectors of the first round when no client model is held"
    measured_on = ("no_extractor",)
    loops = {"shadows": 4, "tries": 2}
    consumes = READ
    recovers = "membership"
    answers = "membership"
    usual_for = {"membership": 2, "source": 2}
    earliest = True
    suite = (
        *(SuiteEntry(kind, "public-init", "membership", 55) for kind in READ),
        *(SuiteEntry(kind, "no-extractor", "membership", 55, **UNKNOWN_START) for kind in READ),
    )
    adapts_to = {  # noqa: RUF012 (frozen: nothing changes it)
        "each": (ClippingStep,),
        "rows": (ClippingStep, Masking),
        "encoding": (Smoothing,),
        "training": (NoisySteps, CorrelatedSteps, TrainingTerm),
        "extractor": (LearntChange, RandomChange),
    }

    shadows: int = knob(8, help="copies of each client that are trained", ge=2, le=64)
    tries: int = knob(
        16,
        help="shadow models of each of three stages that seek a client's class shares, where "
        "uploads do not tell them; 0: shares are drawn",
        ge=0,
    )

    def adapts(self, observation: Observation) -> StepsAt:
        """But for what is done to mean outputs of classes, which is not repeated."""
        outputs = any(isinstance(a, ClassLogits) for u in observation.targets for a in u.artifacts)
        found = super().adapts(observation)
        return {place: kinds for place, kinds in found.items() if place != "rows" or not outputs}

    def run(self, observation: Observation, context: Context) -> MembershipScores:
        require_shadow_models(observation, random=self.start == "random")
        asked = asked_of(observation)
        owners: dict[str, Owner] = {}
        groups: dict[str, Tensor] = {}
        for client in sorted({upload.client for upload in observation.targets}):
            mine = (asked.clients == client).nonzero().squeeze(1)
            if len(mine):
                round = max(u.round for u in observation.targets if u.client == client)
                owners[f"client-{client:06d}"] = (client, round)
                groups[f"client-{client:06d}"] = mine
        scores = torch.full((len(asked),), torch.nan, dtype=torch.float64)
        if not groups:
            return MembershipScores(scores.float(), ("no candidate's client is attacked",))
        with single_threaded(context.device) as cores:

            def answer(name: str, tick: Tick) -> Piece:
                found = self._client(observation, context, owners[name], groups[name], tick)
                return {"scores": found, "trace": torch.full((1, len(found)), torch.nan)}

            found = in_groups(answer, groups, context, steps=self.shadows, cores=cores)
        scores[torch.cat(list(groups.values())).sort().values] = found["scores"]
        notes = [UNSAID]
        absent = sorted(set(asked.clients.tolist()) - {owner[0] for owner in owners.values()})
        if absent:
            notes.append(f"candidates of clients {absent}, whose uploads are not attacked, are NaN")
        return MembershipScores(scores.float(), tuple(notes))

    def _client(
        self,
        observation: Observation,
        context: Context,
        owner: Owner,
        mine: Tensor,
        tick: Tick,
    ) -> Tensor:
        """Scores (m,) of one client's candidates."""
        assert observation.aux is not None and observation.aux_labels is not None
        asked, random = asked_of(observation), self.start == "random"
        shares = class_shares(
            observation,
            context,
            owner,
            told=class_shares_of(observation, owner),
            tries=self.tries,
            random=random,
        )
        models = train_shadow_models(
            observation,
            context,
            owner,
            self.shadows,
            shares,
            random=random,
            tick=tick,
        )
        images = torch.cat([observation.aux, asked.images[mine]]).float().to(context.device)
        compared = UploadComparison.by(observation, owner)
        reps = torch.stack([compared.made(model, images).double() for model in models]).cpu()
        known = Copies(
            reps[:, : len(observation.aux)], observation.aux_labels.cpu(), observation.num_classes
        )
        scene = _Scene(
            known,
            reps[:, len(observation.aux) :],
            asked.labels[mine].cpu(),
            self._samples(observation, owner, shares),
            compared.channel,
        )
        return scene.scores(compared.sent)

    def _samples(self, observation: Observation, owner: Owner, shares: Tensor | None) -> Tensor:
        """Samples of each class, a row for each possibility (G, C)."""
        if shares is None:
            return torch.tensor(SIZES).double()[:, None].expand(-1, observation.num_classes)
        assert observation.training is not None
        size = observation.training.sizes[owner[0]]
        return (size * shares / shares.sum(1, keepdim=True)).clamp(min=1)


@dataclass(frozen=True, eq=False)
class _Scene:
    """Candidates of one client as its copies see them.

    Shape: reps (M, m, d) of candidates, labels (m,), samples (G, C); channel: what rows went
    through.
    """

    known: Copies
    reps: Tensor
    labels: Tensor
    samples: Tensor
    channel: Channel

    def scores(self, sent: list[Artifact]) -> Tensor:
        """Log-odds (m,) by all that the client uploaded."""
        total = torch.zeros(len(self.labels), dtype=torch.float64)
        covered = torch.zeros(len(self.labels), dtype=torch.bool)
        for artifact in sent:
            if isinstance(artifact, EntangledRep):
                found = self._score_mixed_row(artifact)
            elif isinstance(artifact, Prototypes | Representations):
                found = self._score_labelled(artifact)
            else:
                continue
            fits = found.isfinite()
            total, covered = total + torch.where(fits, found, 0.0), covered | fits
        if not bool(covered.any()):
            return torch.full_like(total, torch.nan)
        return torch.where(covered, total, total[covered].min())

    def _score_mixed_row(self, artifact: EntangledRep) -> Tensor:
        """Each candidate against the one mixed row; NaN where its class is not in it."""
        encoding = undo_smoothing(self.channel, artifact.encoding).double().cpu()
        weights = torch.where(encoding > 0, encoding, 0.0)
        variance = (weights.square() / self.samples).sum(1)
        out = torch.full((len(self.labels),), torch.nan, dtype=torch.float64)
        row = artifact.rep.double().cpu()[None]
        if not bool(row.isfinite().all()) or not float(variance.max()) > 0:
            return out
        made, kept = encoding @ self.known.means, self._kept_coordinates(row)
        basis = self.known.basis(made, float(variance.median()), kept)
        shift = self._undo_defences(row, made, kept) - made.mean(0)
        for label in self.labels.unique().tolist():
            mine = self.labels == label
            if float(weights[label]) <= 0:
                continue
            own = (self.reps[:, mine] - self.known.means[:, [label]]).mean(0)
            weight = weights[label] / self.samples[:, label]
            out[mine] = log_odds(basis, shift[:, kept], own[:, kept], weight, variance)[0]
        return out

    def _score_labelled(self, artifact: Prototypes | Representations) -> Tensor:
        """Each candidate against the rows of its class; NaN where there are none."""
        rows, labels = artifact.rows().double().cpu(), artifact.labels.cpu()
        usable = rows.isfinite().all(1)
        rows, labels = rows[usable], labels[usable]
        out = torch.full((len(self.labels),), torch.nan, dtype=torch.float64)
        if not len(rows):
            return out
        uploaded, kept = ClassMeans.of(rows, labels), self._kept_coordinates(rows)
        single = isinstance(artifact, Representations)
        for label in self.labels.unique().tolist():
            mine, here = self.labels == label, rows[labels == label]
            if not len(here):
                continue
            samples = torch.ones(1).double() if single else self.samples[:, label]
            made = self.known.means[:, label] + self._shifts(uploaded.without(label))
            basis = self.known.basis(made, float((1 / samples).median()), kept)
            own = (self.reps[:, mine] - self.known.means[:, [label]]).mean(0)
            shift = self._undo_defences(here, made, kept) - made.mean(0)
            odds = log_odds(basis, shift[:, kept], own[:, kept], 1 / samples, 1 / samples)
            out[mine] = odds.logsumexp(0)
        return out

    def _kept_coordinates(self, rows: Tensor) -> Tensor:
        """Which numbers of uploaded rows (k, d) a declared mask left (d,) bool."""
        masked = any(isinstance(one, Masking) for one in usable(self.channel, "rows"))
        return (rows != 0).any(0) if masked else torch.ones(rows.shape[1], dtype=torch.bool)

    def _undo_defences(self, rows: Tensor, made: Tensor, kept: Tensor) -> Tensor:
        """Uploaded rows (k, d) as long as they were before declared bounds and masks.

        They are divided by how much these shorten the mean of what copies make of them (M, d).
        """
        middle = made.mean(0, keepdim=True)
        sent = row_as_compared(self.channel, middle, kept.to(middle)[None])
        gain = sent[:, kept].norm() / middle[:, kept].norm().clamp(min=1e-30)
        return rows / gain if float(gain) > 0 else rows

    def _shifts(self, others: ClassMeans) -> Tensor:
        """How far each copy is moved (M, d), so that its class means agree with others."""
        present = self.known.labels.unique()
        return torch.stack(
            [ClassMeans(one[present], present).towards(others) for one in self.known.means]
        )


EVEN = 0.02
"""Added to what copies disagree by: this times the mean variance of representations."""
EXCESS = (1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4)
"""Tried values of k: how much further a client may lie from copies than they do from each other."""


@dataclass(frozen=True, eq=False)
class Copies:
    """Representations (M, n, d) float64 of the same images by M copies, and labels (n,)."""

    reps: Tensor
    labels: Tensor
    num_classes: int

    @cached_property
    def means(self) -> Tensor:
        """Class means of each copy (M, C, d); classes without an image get the mean of all."""
        hot = torch.nn.functional.one_hot(self.labels.long(), self.num_classes).double()
        counts = hot.sum(0)[:, None]
        found = hot.T @ self.reps / counts.clamp(min=1)
        return torch.where(counts > 0, found, self.reps.mean(1, keepdim=True))

    @cached_property
    def _covariances(self) -> tuple[Tensor, Tensor]:
        """Within classes, and of what copies disagree by on single images beyond their class."""
        inner = self.reps - self.means[:, self.labels.long()]
        middle = inner.mean(0)
        apart = (inner - middle).flatten(0, 1)
        freedom = max(1, len(middle) - len(self.labels.unique()))
        between = freedom * max(1, len(self.reps) - 1)
        return middle.T @ middle / freedom, apart.T @ apart / between

    def basis(self, rows: Tensor, size: float, kept: Tensor) -> Basis:
        """Coordinates in which images of a class, and copies, vary independently.

        Args:
            rows: the mean of the upload, as each copy makes it (M, d).
            size: sum of squared weights of its samples; so much of what copies disagree by on
                single images counts as well.
            kept: which numbers of a representation count (d,) bool.
        """
        within, single = (found[kept][:, kept] for found in self._covariances)
        apart = (rows - rows.mean(0))[:, kept]
        noise = apart.T @ apart / max(1, len(rows) - 1) + size * single
        even = noise.diagonal().mean() + EVEN * within.diagonal().mean().clamp(min=1e-12)
        noise = noise + even * torch.eye(len(noise)).to(noise)
        factor: Tensor = torch.linalg.cholesky(noise)
        half: Tensor = torch.linalg.solve_triangular(factor, within, upper=False)
        white: Tensor = torch.linalg.solve_triangular(factor, half.T, upper=False)
        spread, turn = symmetric_eigen(white)
        return Basis(torch.linalg.solve_triangular(factor.T, turn, upper=True), spread.clamp(min=0))


@dataclass(frozen=True, eq=False)
class Basis:
    """Coordinates z @ turn of deviations z (n, d): what copies disagree by has variance 1 in each.

    Shape: turn (d, d); spread (d,), the variance within classes.
    """

    turn: Tensor
    spread: Tensor


def log_odds(
    basis: Basis, shifts: Tensor, candidates: Tensor, weight: Tensor, variance: Tensor
) -> Tensor:
    """Log-odds that each candidate is part of each upload, (k, m).

    What the model leaves unexplained is estimated from the uploads alone, as the value of `EXCESS`
    under which they are most likely.

    Args:
        shifts: R - mu of uploads (k, d). candidates: g(x) - mu (m, d).
        weight: a, one for each of the equally likely possibilities (G,). variance: s (G,).
    """
    shifts, candidates = shifts @ basis.turn, candidates @ basis.turn
    left = torch.maximum(variance - weight.square(), NOISE * variance)
    found = []
    for excess in EXCESS:
        without = variance[:, None] * basis.spread + excess
        found.append((float(_outside(shifts, without).logsumexp(0).sum()), excess))
    excess = max(found)[1]
    without = variance[:, None] * basis.spread + excess
    within = left[:, None] * basis.spread + excess
    member = torch.stack(
        [
            -0.5 * (v.log().sum() + _gaps(shifts, candidates, a, v))
            for a, v in zip(weight, within, strict=True)
        ]
    )
    return member.logsumexp(0) - _outside(shifts, without).logsumexp(0)[:, None]


def _outside(shifts: Tensor, variances: Tensor) -> Tensor:
    """Log-densities (G, k) of deviations (k, d) under variances (G, d), up to a constant."""
    gaps = (1 / variances) @ shifts.square().T
    return -0.5 * (variances.log().sum(1, keepdim=True) + gaps)


def _gaps(shifts: Tensor, candidates: Tensor, weight: Tensor, variances: Tensor) -> Tensor:
    """Sum over coordinates of (shift - weight * candidate)^2 / variance, (k, m)."""
    scaled = shifts / variances
    own = (scaled * shifts).sum(1)[:, None]
    cross = scaled @ candidates.T
    square = (candidates.square() / variances).sum(1)
    gaps: Tensor = own - 2 * weight * cross + weight.square() * square
    return gaps
