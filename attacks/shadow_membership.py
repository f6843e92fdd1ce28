"""Membership inference without the client's extractor: through copies that the server trained."""

from __future__ import annotations

from dataclasses import dataclass
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
    Bound,
    Channel,
    Masking,
    NoisySteps,
    Smoothing,
    StepsAt,
    usable,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.cores import single_threaded
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.types import Observation

from .base import Attack, Context, SuiteEntry, attacks
from .gradient.head_cases import shares_told
from .inversion.class_means import ClassMeans
from .inversion.rehearsals import (
    Compared,
    Owner,
    Rehearsing,
    class_shares,
    rehearsable,
    rehearsed_models,
)
from .mixtures.copies import Copies, log_odds
from .mixtures.gaussians import SIZES
from .running.channels import row_as_compared, unsmoothed
from .running.driver import Piece, Tick, in_groups
from .running.messages import asked_of

READ = (Representations, Prototypes, EntangledRep, ClassLogits)
UNKNOWN_START: dict[str, Any] = {"unknown_start": True, "settings": {"start": "random"}}
UNSAID = "candidates of classes that are in no upload get the lowest score of their client"


@attacks.register("shadow-membership")
@dataclass(frozen=True, kw_only=True)
class ShadowMembership(Rehearsing, Attack):
    """Score candidates by the odds that an early upload holds them, through copies of the client.

    Copies of the client are trained as `shadow` trains them, with class shares that are counted,
    read off a head, or sought by rehearsals whose prototypes or mixtures are nearest to those
    uploaded. A mean R of representations is then tested for each candidate with log-odds of
    R ~ N(mu + a (g(x) - mu), (s - a^2) S + k N) against R ~ N(mu, s S + k N): a is the
    candidate's weight in R, s the sum of all squared weights, mu and S the mean and the
    within-class covariance of auxiliary images by the copies' mean representation g, and N the
    covariance of what the copies disagree by; k is the value under which R is most likely.
    The numbers of samples of classes follow from shares and the client's size. For prototypes
    copies are moved first, so that their means agree with those uploaded of other classes. A
    mixture is one test, a prototype one for its class, single representations one each, of which
    the odds are added up. Mean outputs of classes (FD) are read as prototypes of what the whole
    model makes, by the logarithms of its softmax.

    Drift makes copies useless after a few rounds, so the first one is attacked unless
    ``eval.round`` says otherwise. With ``start=random`` copies begin with random weights, which
    serves as the control. Clients see nothing of it: the server is passive.

    Shape:      M candidates to scores (M,)
    Needs:      UPLOADS, HEAD, TRAINING, AUX_DATA, ARCHITECTURE, and INITIAL_MODEL with
                ``start=known``; no extractor       Recovers: membership
    Cost:       for each client its local training up to the attacked round `shadows` times, and
                three times `tries` where shares are sought; two eigendecompositions (d, d) for
                each row
    Reference:  this project; tracing of a mean: Dwork et al., Robust traceability from trace
                amounts, FOCS 2015; shadows as in Shokri et al., S&P 2017.
    """

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
        "each": (Bound,),
        "rows": (Bound, Masking),
        "encoding": (Smoothing,),
        "training": (NoisySteps,),
    }

    shadows: int = knob(8, help="copies of each client that are trained", ge=2, le=64)
    tries: int = knob(
        16,
        help="rehearsals of each of three stages that seek a client's class shares, where uploads "
        "do not tell them; 0: shares are drawn",
        ge=0,
    )

    def adapts(self, observation: Observation) -> StepsAt:
        """But for what is done to mean outputs of classes, which is not repeated."""
        outputs = any(isinstance(a, ClassLogits) for u in observation.targets for a in u.artifacts)
        found = super().adapts(observation)
        return {place: kinds for place, kinds in found.items() if place != "rows" or not outputs}

    def run(self, observation: Observation, context: Context) -> MembershipScores:
        rehearsable(observation, random=self.start == "random")
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
            told=shares_told(observation, owner),
            tries=self.tries,
            random=random,
        )
        models = rehearsed_models(
            observation,
            context,
            owner,
            self.shadows,
            shares,
            random=random,
            tick=tick,
        )
        images = torch.cat([observation.aux, asked.images[mine]]).float().to(context.device)
        compared = Compared.by(observation, owner)
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
                found = self._entangled(artifact)
            elif isinstance(artifact, Prototypes | Representations):
                found = self._labelled(artifact)
            else:
                continue
            fits = found.isfinite()
            total, covered = total + torch.where(fits, found, 0.0), covered | fits
        if not bool(covered.any()):
            return torch.full_like(total, torch.nan)
        return torch.where(covered, total, total[covered].min())

    def _entangled(self, artifact: EntangledRep) -> Tensor:
        """Each candidate against the one mixed row; NaN where its class is not in it."""
        encoding = unsmoothed(self.channel, artifact.encoding).double().cpu()
        weights = torch.where(encoding > 0, encoding, 0.0)
        variance = (weights.square() / self.samples).sum(1)
        out = torch.full((len(self.labels),), torch.nan, dtype=torch.float64)
        row = artifact.rep.double().cpu()[None]
        if not bool(row.isfinite().all()) or not float(variance.max()) > 0:
            return out
        made, kept = encoding @ self.known.means, self._kept(row)
        basis = self.known.basis(made, float(variance.median()), kept)
        shift = self._undefended(row, made, kept) - made.mean(0)
        for label in self.labels.unique().tolist():
            mine = self.labels == label
            if float(weights[label]) <= 0:
                continue
            own = (self.reps[:, mine] - self.known.means[:, [label]]).mean(0)
            weight = weights[label] / self.samples[:, label]
            out[mine] = log_odds(basis, shift[:, kept], own[:, kept], weight, variance)[0]
        return out

    def _labelled(self, artifact: Prototypes | Representations) -> Tensor:
        """Each candidate against the rows of its class; NaN where there are none."""
        rows, labels = artifact.rows().double().cpu(), artifact.labels.cpu()
        usable = rows.isfinite().all(1)
        rows, labels = rows[usable], labels[usable]
        out = torch.full((len(self.labels),), torch.nan, dtype=torch.float64)
        if not len(rows):
            return out
        uploaded, kept = ClassMeans.of(rows, labels), self._kept(rows)
        single = isinstance(artifact, Representations)
        for label in self.labels.unique().tolist():
            mine, here = self.labels == label, rows[labels == label]
            if not len(here):
                continue
            samples = torch.ones(1).double() if single else self.samples[:, label]
            made = self.known.means[:, label] + self._shifts(uploaded.without(label))
            basis = self.known.basis(made, float((1 / samples).median()), kept)
            own = (self.reps[:, mine] - self.known.means[:, [label]]).mean(0)
            shift = self._undefended(here, made, kept) - made.mean(0)
            odds = log_odds(basis, shift[:, kept], own[:, kept], 1 / samples, 1 / samples)
            out[mine] = odds.logsumexp(0)
        return out

    def _kept(self, rows: Tensor) -> Tensor:
        """Which numbers of uploaded rows (k, d) a declared mask left (d,) bool."""
        masked = any(isinstance(one, Masking) for one in usable(self.channel.rows))
        return (rows != 0).any(0) if masked else torch.ones(rows.shape[1], dtype=torch.bool)

    def _undefended(self, rows: Tensor, made: Tensor, kept: Tensor) -> Tensor:
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
