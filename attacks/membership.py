"""Membership inference: was this sample among those that a client's upload was made of?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import (
    Artifact,
    ClassLogits,
    Counts,
    EntangledRep,
    Prototypes,
    Representations,
)
from fedre_privacy.core.channels import (
    ClippingStep,
    LearntChange,
    Masking,
    Noise,
    RandomChange,
    RandomRounding,
    Smoothing,
    StepsAt,
    without,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.channels import (
    is_masked,
    is_noisy,
    upload_behind,
    without_mixes,
    without_rounding,
)
from .common.class_outputs import rounds_side_by_side
from .common.client_messages import Sent, asked_of, image_keys, messages_of
from .common.drawn_noise import noise_covariance
from .common.frozen_modules import frozen_copy, outputs
from .common.row_steps import RowSteps
from .mixtures.candidate_views import Scene, View
from .mixtures.class_statistics import SIZES
from .mixtures.joint_test import alikeness
from .mixtures.membership_scores import READERS, TOGETHER

SCORES = ("auto", "tracing", "likelihood-ratio")
REFERENCES = ("auto", "aux", "others", "joint")


@attacks.register("membership")
@dataclass(frozen=True, kw_only=True)
class MembershipInference(Attack):
    """Score candidates by how far an upload leans towards their representation.

    A mean of n representations lies 1/n of the way to each of them. With mu and S the mean and
    the within-class covariance of representations, `tracing_score` scores a candidate by
    (g(x) - mu)^T S^-1 (R - mu), and `likelihood-ratio` by the log-odds of
    R ~ N(mu + a (g(x) - mu), (s - a^2) S) against R ~ N(mu, s S), where a is the candidate's
    weight in R and s the sum of squared weights; numbers of samples that are not known are
    averaged over. For an entangled upload mu is the mix of class means, a = w_y / n_y and
    s = sum w_c^2 / n_c. Prototypes and mixtures of all rounds whose extractor is held are tested
    together by one normal law, see `over_rounds`. Of single representations the score is minus the
    log-distance to the nearest of the candidate's class. mu and S come from `reference`: auxiliary
    images if granted, else the candidates asked about other clients; ``joint`` takes the client's
    own candidates, a stronger trial, since a list that holds all members of a class is nearly
    solved for the subset whose mean was uploaded. Representations are shortened as clients declare.
    What they draw and declared noise count as spread that no candidate explains, and rows are taken
    to have been shortened as the mean of their class would be; coordinates that a mask removed are
    left out. Noisy and masked rounds are added up. Rounding at random counts as noise on single
    representations, and not on means, where that gained nothing.
    Mean outputs of classes are read as prototypes, with the outputs of the client's whole models of
    all rounds, side by side, in place of g.

    Shape:      M candidates to scores (M,)
    Needs:      UPLOADS, EXTRACTOR; AUX_DATA, ALL_EXTRACTORS if granted   Recovers: membership
    Cost:       one extractor pass over candidates and auxiliary images per client and round, and
                an eigendecomposition (d, d)
    Reference:  Dwork et al., Robust traceability from trace amounts, FOCS 2015 (tracing a mean);
                Homer et al., PLoS Genetics 2008.
    Deviations: whitened by the within-class covariance; uploads mixed over classes and rounds.
    """

    when_to_use = "membership in vectors: representations, prototypes, mixtures or mean outputs"
    measured_on = ("membership",)
    consumes = (Representations, Prototypes, EntangledRep, ClassLogits)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR})
    needs_for: ClassVar = {ClassLogits: frozenset({Knowledge.HEADS})}
    recovers = "membership"
    answers = "membership"
    usual_for = {"membership": 1, "source": 1}
    adapts_to: ClassVar[StepsAt] = {
        "extractor": (LearntChange, RandomChange),
        "each": (ClippingStep,),
        "rows": (ClippingStep, Masking, Noise, RandomRounding),
        "encoding": (Smoothing,),
    }
    suite = tuple(SuiteEntry(kind, "strong", place=50) for kind in consumes)

    score: str = knob("auto", help="auto: likelihood-ratio", choices=SCORES)
    samples_per_class: int | None = knob(
        None, help="samples of each class at a client; none: as counted or unknown", ge=1
    )
    reference: str = knob(
        "auto",
        help="images behind mu and S: auxiliary, candidates of other clients, or the client's own "
        "candidates (joint); auto: the first of these that is there",
        choices=REFERENCES,
    )
    rounds: int = knob(20, help="latest observed rounds used, of those with an extractor", ge=1)
    rounds_together: bool = knob(
        True,
        help="prototypes and mixtures of several rounds: one test of all, or the sum of one of "
        "each",
        later=True,
    )
    aux: int = knob(2000, help="reference images used, at most", ge=2)

    def adapts(self, observation: Observation) -> StepsAt:
        """Mean outputs of classes are read as they are sent, means and mixtures as rounded."""
        found = without_mixes(super().adapts(observation), observation.channel)
        sent = {type(artifact) for target in observation.targets for artifact in target.artifacts}
        if sent <= {ClassLogits}:
            return without(found, "rows")
        if Representations not in sent:
            return {**found, "rows": tuple(k for k in found["rows"] if k is not RandomRounding)}
        return found

    def run(self, observation: Observation, context: Context) -> MembershipScores:
        candidates = asked_of(observation)
        scores = torch.full((len(candidates),), torch.nan, dtype=torch.float64)
        notes = []
        sizes = _class_counts(observation)
        for client, kinds in messages_of(observation).items():
            mine = (candidates.clients == client).nonzero().squeeze(1)
            if not len(mine):
                continue
            found, note = self._client(observation, context, client, mine, kinds, sizes.get(client))
            scores[mine] = found
            notes.append(f"client {client}: {note}")
        absent = sorted(set(candidates.clients.tolist()) - {u.client for u in observation.targets})
        if absent:
            notes.append(f"candidates of clients {absent}, whose uploads are not attacked, are NaN")
        return MembershipScores(scores.float(), tuple(notes))

    def _client(
        self,
        observation: Observation,
        context: Context,
        client: int,
        mine: Tensor,
        kinds: dict[type[Artifact], list[Sent]],
        counted: Tensor | None,
    ) -> tuple[Tensor, str]:
        """Scores (m,) of one client's candidates, all rounds and uploads added up."""
        candidates = asked_of(observation)
        targeted = {type(a) for u in observation.targets if u.client == client for a in u.artifacts}
        sent = [message for kind in self.consumes if kind in targeted for message in kinds[kind]]
        held = sorted(
            {r for r, artifact in sent if _model_is_known(observation, client, r, artifact)}
        )
        held = held[-self.rounds :]
        if not held:
            raise IncompatibleError(
                f"No extractor of client {client} was given for any round of its uploads.",
                next_step="Train with --set record.keep_every=1, or attack the last round.",
            )
        labels = candidates.labels[mine]
        samples = self._samples(counted, observation.num_classes)
        reference = self._reference(observation, context, client, mine)
        total = torch.zeros(len(mine), dtype=torch.float64)
        covered = torch.zeros(len(mine), dtype=torch.bool)
        together: dict[type[Artifact], list[tuple[Artifact, View]]] = {}
        counts = Counter(type(artifact) for r, artifact in sent if r in held)
        alone = is_noisy(observation.channel) or is_masked(observation.channel, "rows")
        joint = self.rounds_together and not self._traces and not alone
        tables = [(r, a) for r, a in sent if r in held and isinstance(a, ClassLogits)]
        if tables:
            rows, models = rounds_side_by_side(observation, client, tables)
            net = frozen_copy(models, context.device)
            scene = self._scene(observation, context, net, (client, held[-1]), mine, reference)
            total = READERS[Prototypes](rows, scene.plain(), samples, self._traces)
            covered = total.isfinite()
            total = torch.where(covered, total, 0.0)
        for round in held:
            others = [a for r, a in sent if r == round and not isinstance(a, ClassLogits)]
            if not others:
                continue
            net = frozen_copy(observation.extractors[client, round], context.device)
            scene = self._scene(observation, context, net, (client, round), mine, reference)
            for artifact in others:
                row = _first_row(artifact)
                upload = upload_behind(observation, client, round, row)
                single = isinstance(artifact, Representations)
                channel = observation.channel
                if not single:  # to count rounding of means as noise gained nothing
                    channel = without_rounding(channel)
                view = scene.view(RowSteps.of(channel, row, upload), single)
                if joint and type(artifact) in TOGETHER and counts[type(artifact)] > 1:
                    together.setdefault(type(artifact), []).append((artifact, view))
                    continue
                found = READERS[type(artifact)](artifact, view, samples, self._traces)
                fits = found.isfinite()
                total = total + torch.where(fits, found, 0.0)
                covered |= fits
        for kind, rounds in together.items():
            alike = alikeness(torch.stack([view.strangers for _, view in rounds]))
            found = TOGETHER[kind](rounds, samples, alike)
            fits = found.isfinite()
            total = total + torch.where(fits, found, 0.0)
            covered |= fits
        out = torch.where(covered, total, torch.nan)
        note = f"{len(held)} rounds used{' together' if together else ''}; {reference.note}"
        if bool(covered.any()) and not bool(covered.all()):
            out = torch.where(covered, total, total[covered].min())
            classes = sorted(set(labels[~covered].tolist()))
            note += f"; classes {classes} are not in its uploads and get its lowest score"
        return out, note

    @property
    def _traces(self) -> bool:
        return self.score == "tracing"

    def _samples(self, counted: Tensor | None, num_classes: int) -> Tensor:
        """Samples of each class: one known row, or a row per size considered, (G, C)."""
        if self.samples_per_class is not None:
            return torch.full((1, num_classes), float(self.samples_per_class)).double()
        if counted is not None:
            return counted.clamp(min=1)[None]
        return torch.tensor(SIZES).double()[:, None].expand(-1, num_classes)

    def _reference(
        self, observation: Observation, context: Context, client: int, mine: Tensor
    ) -> _Reference:
        """Images behind the class statistics of one client."""
        candidates = asked_of(observation)
        kind = self.reference
        if kind == "auto":
            kind = "aux" if observation.aux is not None else "others"
        if kind == "aux":
            if observation.aux is None:
                raise IncompatibleError(
                    "attack.reference=aux needs AUX_DATA; threat model "
                    f"'{observation.threat.name}' does not grant it.",
                    next_step="Use --threat strong, or --set attack.reference=others.",
                )
            aux, labels = observation.aux[: self.aux], observation.aux_labels
            if labels is None:
                note = "one mean for all classes: auxiliary images without labels"
                return _Reference(aux, torch.zeros(len(aux), dtype=torch.int64), note)
            return _Reference(aux, labels[: self.aux], "class statistics of auxiliary images")
        if kind == "others":
            keys = image_keys(candidates.images)
            order = torch.randperm(
                len(candidates), generator=stream(context.seed, "reference", client=client)
            )
            order = order[~torch.isin(keys[order], keys[mine])][: self.aux]
            if len(order) > 1:
                note = "class statistics of the candidates of other clients"
                return _Reference(candidates.images[order], candidates.labels[order], note)
        note = "class statistics of its own candidates together: a stronger trial than one by one"
        return _Reference(candidates.images[mine], candidates.labels[mine], note)

    def _scene(
        self,
        observation: Observation,
        context: Context,
        net: nn.Module,
        owner: tuple[int, int],
        mine: Tensor,
        reference: _Reference,
    ) -> Scene:
        candidates = asked_of(observation)
        images = torch.cat([candidates.images[mine], reference.images])
        reps = outputs(net, images, device=context.device)
        noise = noise_covariance(owner, net, reference.images, context.device)
        return Scene(
            reps[: len(mine)], candidates.labels[mine], reps[len(mine) :],
            reference.labels.long(), observation.num_classes, noise,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Reference:
    """Images whose representations give the class statistics, and what they are, in words."""

    images: Tensor
    labels: Tensor
    note: str


def _first_row(artifact: Artifact) -> Tensor:
    """The first finite row (1, d), by which its upload is told; none (0, d) if none is."""
    rows = artifact.rows()
    assert rows is not None
    return rows[rows.isfinite().all(1)][:1]


def _model_is_known(observation: Observation, client: int, round: int, artifact: Artifact) -> bool:
    """Whether what made an artifact is known: the extractor, or the whole model."""
    whole = not isinstance(artifact, ClassLogits) or (client, round) in observation.heads
    return (client, round) in observation.extractors and whole


def _class_counts(observation: Observation) -> dict[int, Tensor]:
    """Samples of each class (C,) of clients that sent them."""
    found = {}
    for upload in observation.uploads:
        for artifact in upload.artifacts:
            if isinstance(artifact, Counts) and artifact.values.numel() == observation.num_classes:
                found[upload.client] = artifact.values.double().flatten()
    return found
