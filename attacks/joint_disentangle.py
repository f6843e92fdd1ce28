"""Images from a client's uploads of several rounds, each seen through its round's extractor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Channel, Smoothing, StepsAt, join_steps, without
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation, Upload

from .base import Attack, Context, attacks
from .common.channels import ROWS_COMPARED, least_bound, mask_factor, row_as_compared
from .common.client_messages import messages_of
from .common.tiling import join, reconstruction, stage
from .dip import DeepImagePrior
from .mixtures.alignment_checks import not_kept
from .mixtures.aux_features import aux_reps, has_lagging_round
from .mixtures.mixing import Kind, Mixing, mixings
from .mixtures.round_alignment import align, images_of, solve_aligned


@attacks.register("joint-disentangle")
@dataclass(frozen=True, kw_only=True)
class JointDisentangle(Attack):
    """Fit one image to what a prototype was in several rounds at once.

    A client's data stand still while its extractor moves, so every round is another view of the
    same images. The client's entangled uploads are solved in the feature space of several rounds
    (`disentangle`, solver aligned, each of these rounds in turn the one that the others are
    carried to); then one image x per client and class is sought, as the output of a deep image
    prior, that minimises

        log mean_s D(g_s(x), p_s) + tv TV(x)

    over these rounds s, D the squared distance relative to the client's prototypes of the round.
    Prototypes that a protocol uploads itself are matched without being solved; targets seen in one
    round only are inverted as `dip` inverts them. Declared defences of each round are repeated
    before an image is matched; mixtures that were shortened, and vectors of which a part was not
    sent, are matched in their own round only.

    Shape:      uploads (d,), encodings (C,) of T rounds; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR, ALL_EXTRACTORS, AUX_DATA          Recovers: inputs
    Cost:       `views` extractor passes per step where dip makes one, and `disentangle` `views`
                times over, its factorisations shared
    Reference:  Ulyanov et al., Deep Image Prior, CVPR 2018 (the prior); the uploads: FedRE,
                CVPR 2026, Section 3. The attack is this package's own.
    Deviations: classes of many images are matched by one image, whose representation their mean
                need not have; the mixtures are solved before images are sought, not with them.
    """

    when_to_use = (
        "images behind single-image classes seen in several rounds, with all extractors held"
    )
    measured_on = ("disentangling",)
    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset(
        {
            Knowledge.UPLOADS,
            Knowledge.EXTRACTOR,
            Knowledge.ALL_EXTRACTORS,
            Knowledge.AUX_DATA,
        }
    )
    recovers = "inputs"
    differentiates = True
    adapts_to = join_steps(ROWS_COMPARED, {"encoding": (Smoothing,)})

    views: int = knob(
        4, help="rounds of the later half that an image is matched in", unit="rounds", ge=1
    )
    steps: int = knob(300, help="optimiser steps", ge=1)
    lr: float = knob(0.02, help="Adam step size", gt=0)
    tv: float = knob(10.0, help="weight of total variation (per-pixel mean |dx| + |dy|)", ge=0)
    channels: tuple[int, ...] = knob(
        (16, 32), help="width of each scale; scales below 2 pixels are left out", ge=1
    )
    align_penalty: float | None = knob(
        None, help="penalty of the maps between rounds; none: by images left out", gt=0
    )
    aux_limit: int = knob(500, help="auxiliary images used at most", unit="images", ge=10)

    def adapts(self, observation: Observation) -> StepsAt:
        """Of prototypes worked out of mixtures, too, by what is seen of them in other rounds."""
        if any(_worked_out(observation, upload) for upload in observation.targets):
            return self.adapts_to
        return without(super().adapts(observation), "encoding")

    def weakened(self, observation: Observation) -> tuple[str, ...]:
        """Rounds in which images are not matched."""
        attacked = {upload.client for upload in _real(observation).targets}
        sent = {
            (upload.client, upload.round)
            for upload in observation.uploads
            if upload.client in attacked
            and any(
                isinstance(artifact, Prototypes | EntangledRep) for artifact in upload.artifacts
            )
        }
        lost = not_kept(observation, sent)
        return (f"{lost}, so images are matched in fewer rounds",) if lost else ()

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        if observation.aux is None or len(observation.aux) < 2:
            raise IncompatibleError(
                "Attack 'joint-disentangle' needs two auxiliary images at least; given: "
                f"{0 if observation.aux is None else len(observation.aux)}.",
                next_step="Give more data, or use --attack dip.",
            )
        fit = DeepImagePrior(steps=self.steps, lr=self.lr, tv=self.tv, channels=self.channels)
        jobs = self._jobs(observation, context)
        found, numbers = [], []
        for views, (rows, seen) in sorted(jobs.items()):
            found.append(fit.run(seen, stage(context, f"views-{views}-")))
            numbers += rows
        pieces = [one.save()[0] for one in found]
        return reconstruction(join(pieces, torch.tensor(numbers)), found[0].stopped_because)

    def _jobs(
        self, observation: Observation, context: Context
    ) -> dict[int, tuple[list[int], Observation]]:
        """What is fitted together: number of views to target rows and what is observed of them."""
        seen = self._observed_prototypes(_real(observation), context)
        rows: dict[int, list[int]] = {}
        targets: dict[int, list[Upload]] = {}
        nets: dict[int, dict[tuple[int, int], nn.Module]] = {}
        first = 0
        for upload in observation.targets:
            owner = upload.client, upload.round
            for artifact in upload.artifacts:
                vectors = artifact.rows()
                if vectors is None:
                    continue
                many = _several(upload, artifact, seen.get(upload.client))
                index = torch.arange(len(vectors))
                plain = index if many is None else index[~many.known]
                if many is not None:
                    views = len(many.rounds)
                    rows.setdefault(views, []).extend((first + index[many.known]).tolist())
                    targets.setdefault(views, []).append(
                        replace(upload, artifacts=(many.artifact,))
                    )
                    nets.setdefault(views, {})[owner] = _Views(
                        [observation.extractors[upload.client, r] for r in many.rounds],
                        many.scales,
                        observation.channel,
                    )
                if len(plain):
                    rows.setdefault(1, []).extend((first + plain).tolist())
                    kept = replace(upload, artifacts=(artifact.take(plain),))
                    targets.setdefault(1, []).append(kept)
                    nets.setdefault(1, {})[owner] = observation.extractors[owner]
                first += len(vectors)
        return {
            views: (
                rows[views],
                replace(observation, targets=tuple(targets[views]), extractors=nets[views]),
            )
            for views in rows
        }

    def _observed_prototypes(
        self, observation: Observation, context: Context
    ) -> dict[int, PrototypeViews]:
        """Prototypes of several rounds, by client: what defences leave of them."""
        if mask_factor(observation.channel) is not None:
            return {}
        seen = prototype_views(
            observation,
            context,
            rounds=self.views,
            aux_limit=self.aux_limit,
            align_penalty=self.align_penalty,
        )
        if least_bound(observation.channel.rows) is not None:
            for mixing in mixings(observation):
                if mixing.kind is Kind.MIXED:
                    seen.pop(mixing.client, None)
        return seen


def _real(observation: Observation) -> Observation:
    """The same without what the protocol does not send."""
    sent = tuple(u for u in observation.targets if not u.counterfactual)
    return replace(observation, targets=sent)


def _worked_out(observation: Observation, target: Upload) -> bool:
    """Whether a target holds prototypes that its client's mixtures were solved for."""
    mixed = any(
        isinstance(artifact, EntangledRep)
        for upload in observation.uploads
        if upload.client == target.client
        for artifact in upload.artifacts
    )
    recovered = any(isinstance(artifact, Prototypes) for artifact in target.artifacts)
    return mixed and recovered and not target.counterfactual


@dataclass(frozen=True, eq=False)
class _Several:
    """Rows of a target that were seen in several rounds, as one long row each."""

    rounds: list[int]
    scales: list[float]
    known: Tensor
    artifact: Prototypes


def _several(upload: Upload, artifact: object, seen: PrototypeViews | None) -> _Several | None:
    if (
        not isinstance(artifact, Prototypes)
        or upload.counterfactual
        or seen is None
        or len(seen.rounds) < 2
    ):
        return None
    found = [seen.of(int(label)) for label in artifact.labels]
    known = torch.tensor([one is not None for one in found])
    if not bool(known.any()):
        return None
    vectors = torch.stack([one for one in found if one is not None])
    if vectors.shape[2] != artifact.means.shape[1]:
        return None
    # every round weighs the same, whatever the size of its representations
    scales = vectors.square().sum(2).mean(0).clamp(min=1e-12).rsqrt()
    long = (vectors * scales[:, None]).flatten(1).float()
    return _Several(seen.rounds, scales.tolist(), known, Prototypes(long, artifact.labels[known]))


class _Views(nn.Module):
    """Images through several extractors as they would be sent, scaled and side by side."""

    def __init__(
        self, extractors: Sequence[nn.Module], scales: Sequence[float], channel: Channel
    ) -> None:
        super().__init__()
        self.extractors = nn.ModuleList(extractors)
        self.scales, self.channel = list(scales), channel

    def forward(self, images: Tensor) -> Tensor:
        views = []
        for extractor, scale in zip(self.extractors, self.scales, strict=True):
            reps = extractor(images)
            views.append(row_as_compared(self.channel, reps, torch.ones_like(reps)) * scale)
        return torch.cat(views, 1)


@dataclass(frozen=True, eq=False)
class PrototypeViews:
    """One client's prototypes in several rounds, ascending.

    Shape: rounds (S,); classes (n,), ascending; vectors (S, n, d) float64, each in the feature
        space of its round; NaN where a class was not seen in a round.
    """

    rounds: list[int]
    classes: Tensor
    vectors: Tensor

    def of(self, label: int) -> Tensor | None:
        """Vectors (S, d) of a class, or None unless it was seen in every round."""
        at = (self.classes == label).nonzero().squeeze(1)
        if not len(at):
            return None
        found = self.vectors[:, int(at)]
        return found if bool(found.isfinite().all()) else None


def prototype_views(
    observation: Observation,
    context: Context,
    *,
    rounds: int,
    aux_limit: int,
    align_penalty: float | None = None,
) -> dict[int, PrototypeViews]:
    """See each attacked client's prototypes in several rounds, by client.

    Prototypes that were uploaded are taken as they are, and so is the upload of a client with one
    class. Entangled uploads are carried to each of the rounds in turn and solved there. One-hot
    encodings and fixed weights give nothing.

    Args:
        rounds: at most so many of those whose extractor is held, see `spread`.
        aux_limit, align_penalty: as in `disentangle`.
    """
    found = {}
    for mixing in mixings(observation):
        held = _known_extractors(observation, mixing.client, mixing.rounds.tolist())
        mixing = mixing.take(held)
        if len(mixing.rounds) < 2:
            continue
        if mixing.kind is Kind.SINGLE:
            places = spread(len(mixing.rounds), rounds)
            found[mixing.client] = PrototypeViews(
                mixing.rounds[places].tolist(), mixing.classes, mixing.uploads[places][:, None]
            )
        elif mixing.kind is Kind.MIXED:
            found[mixing.client] = _solve_round(
                observation, context, mixing, rounds, aux_limit, align_penalty
            )
    for client, made in _uploaded_prototypes(observation, rounds).items():
        found.setdefault(client, made)
    return found


def spread(count: int, wanted: int) -> list[int]:
    """Positions of at most `wanted` of `count` rounds, the last among them.

    They are spread evenly over the later half, where the extractor has learned something and
    rounds on both sides tell of a round; over more where the half is too short.

    >>> spread(40, 4), spread(5, 4), spread(3, 8)
    ([20, 26, 33, 39], [1, 2, 3, 4], [0, 1, 2])
    """
    if wanted >= count:
        return list(range(count))
    if wanted == 1:
        return [count - 1]
    first = min(count // 2, count - wanted)
    return [first + round(i * (count - 1 - first) / (wanted - 1)) for i in range(wanted)]


def _known_extractors(observation: Observation, client: int, rounds: list[int]) -> Tensor:
    have = [i for i, r in enumerate(rounds) if (client, r) in observation.extractors]
    return torch.tensor(have, dtype=torch.int64)


def _solve_round(
    observation: Observation,
    context: Context,
    mixing: Mixing,
    rounds: int,
    aux_limit: int,
    penalty: float | None,
) -> PrototypeViews:
    reps = aux_reps(
        observation,
        context.device,
        mixing.client,
        mixing.rounds.tolist(),
        length=mixing.uploads.shape[1],
        limit=aux_limit,
    )
    if has_lagging_round(reps):
        mixing, reps = mixing.take(torch.arange(len(reps) - 1)), reps[:-1]
    images = [images_of(r) for r in reps]
    places = spread(len(images), rounds)
    not_negative = bool((mixing.uploads >= 0).all())
    vectors = []
    for at in places:
        carried = align(images, mixing.uploads, penalty, at=at)
        answer = solve_aligned(mixing.weights, carried, carried.uploads).vectors
        vectors.append(answer.clamp(min=0) if not_negative else answer)
    return PrototypeViews(mixing.rounds[places].tolist(), mixing.classes, torch.stack(vectors))


def _uploaded_prototypes(observation: Observation, rounds: int) -> dict[int, PrototypeViews]:
    """Prototypes that clients uploaded themselves."""
    real = {(u.client, u.round) for u in observation.uploads}
    found = {}
    for client, by_kind in messages_of(observation).items():
        sent = [
            (round, artifact)
            for round, artifact in by_kind.get(Prototypes, [])
            if isinstance(artifact, Prototypes)
            and (client, round) in observation.extractors
            and (client, round) in real
        ]
        sent = [sent[i] for i in spread(len(sent), rounds)] if len(sent) > 1 else []
        if not sent:
            continue
        classes = torch.cat([a.labels for _, a in sent]).unique()
        shape = (len(sent), len(classes), sent[0][1].means.shape[1])
        vectors = torch.full(shape, torch.nan, dtype=torch.float64)
        for place, (_, artifact) in enumerate(sent):
            vectors[place, torch.searchsorted(classes, artifact.labels)] = artifact.means.double()
        found[client] = PrototypeViews([round for round, _ in sent], classes, vectors)
    return found
