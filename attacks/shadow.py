"""Inversion without the client's extractor: shadow models from a known start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import (
    Artifact,
    EntangledRep,
    HeadState,
    Prototypes,
    Representations,
)
from fedre_privacy.core.channels import (
    CorrelatedSteps,
    NoisySteps,
    Smoothing,
    TrainingTerm,
    join_steps,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Observation

from .base import RECOVERED, Attack, Context, SuiteEntry, attacks
from .common.channels import ROWS_REPEATED, bounded_each, rows_resent, upload_behind
from .common.frozen_modules import drawn_outputs, outputs
from .common.objectives import l2rel
from .common.tiling import Piece, Tick, in_groups, reconstruction
from .gradients.head_uploads import class_shares_of
from .inversion.class_means import ClassMeans
from .inversion.kalman_update import FINEST, DctBands, kalman_update, without_fold
from .inversion.linear_map import PENALTIES, Sums, errors_by_penalty, fit_ridge, total
from .inversion.shadow_models import (
    Owner,
    ShadowModelAttack,
    class_shares,
    require_shadow_models,
    train_shadow_models,
    upload_of,
)
from .inversion.simulated_uploads import SHIFTS, folds_of, views

FOLDS = 4


@dataclass(frozen=True)
class _Rows:
    """Targets of one client and round: their numbers, vectors (n, d) and classes (-1: none)."""

    numbers: list[int]
    reps: list[Tensor]
    classes: list[int]


def shadow_answers(
    observation: Observation, context: Context, how: Shadow, told: Mapping[Owner, Tensor | None]
) -> Reconstruction:
    """Answer every target by maps fitted to shadow models.

    Args:
        told: class shares of a client (C,), where its uploads do not count them.

    Raises:
        IncompatibleError: too few auxiliary images, or nothing is known of how clients train.
    """
    random = how.start == "random"
    require_shadow_models(observation, random=random)
    found = _by_owner(observation)
    groups = {f"client-{k:06d}-{r:06d}": torch.tensor(found[k, r].numbers) for k, r in found}
    owners = dict(zip(groups, found, strict=True))
    with single_threaded(context.device) as cores:

        def answer(name: str, tick: Tick) -> Piece:
            own = owners[name]
            shares = class_shares(
                observation, context, own, told=told[own], tries=how.tries, random=random
            )
            models = train_shadow_models(
                observation, context, own, how.shadows, shares, random=random, tick=tick
            )
            return _client(observation, context, own, found[own], how, models)

        answers = in_groups(answer, groups, context, steps=how.shadows, cores=cores)
    return reconstruction(answers, "rehearsal done")


def _by_owner(observation: Observation) -> dict[Owner, _Rows]:
    found: dict[Owner, _Rows] = {}
    number = 0
    for upload in observation.targets:
        for artifact in upload.artifacts:
            rows = artifact.rows()
            if rows is None:
                continue
            own = found.setdefault((upload.client, upload.round), _Rows([], [], []))
            own.numbers.extend(range(number, number + len(rows)))
            own.reps.extend(rows.float())
            own.classes.extend(_classes_of(artifact, len(rows)))
            number += len(rows)
    return {owner: found[owner] for owner in sorted(found)}


def _classes_of(artifact: Artifact, count: int) -> list[int]:
    if isinstance(artifact, Prototypes | Representations):
        return [int(label) for label in artifact.labels]
    return [-1] * count


def _client(
    observation: Observation,
    context: Context,
    owner: Owner,
    rows: _Rows,
    how: Shadow,
    models: Sequence[nn.Module],
) -> Piece:
    """Answer the targets of one client, of which these are copies."""
    team = _team(observation, context, owner, rows, how, models)
    known = ClassMeans.uploaded(upload_of(observation, owner))
    if known is None:
        known = ClassMeans.of(torch.stack(rows.reps), torch.tensor(rows.classes))
    pieces: dict[str, Tensor] = {}
    for label in sorted(set(rows.classes)):
        where = torch.tensor([one == label for one in rows.classes])
        others = known.without(label) if label >= 0 and how.recentre else None
        reps = torch.stack(rows.reps)[where].to(context.device)
        for name, found in team.answers(reps, others).items():
            whole = pieces.setdefault(name, found.new_empty(len(where), *found.shape[1:]))
            whole[where] = found
    lost = ~pieces["images"].isfinite().flatten(1).all(1)
    pieces["images"][lost], pieces["fit"][lost] = torch.nan, torch.nan
    return {**pieces, "trace": pieces["fit"][None]}


@dataclass(frozen=True, eq=False)
class _ShadowGroup:
    """Copies of one client, and what they make of the auxiliary images.

    Args:
        extractors: one of each copy.
        pictures: views of the auxiliary images, each (n, C, H, W).
        fold: of each image (n,).
        means: class means of each copy.
        seen: representations (n, d) of each copy and view.
        sums: of each copy and fold.
        bounded: what a copy makes of images, as far as the client's defences do not draw.
        sent_anew: the same with a draw of what they do.
        draws: generator of what is drawn here.
        waves: as coarse as candidates are told apart.
    """

    how: Shadow
    extractors: Sequence[nn.Module]
    pictures: Sequence[Tensor]
    fold: Tensor
    means: Sequence[ClassMeans]
    seen: Sequence[Sequence[Tensor]]
    sums: Sequence[Sequence[Sums]]
    bounded: Callable[[nn.Module, Tensor], Tensor]
    sent_anew: Callable[[Tensor], Tensor]
    draws: torch.Generator
    waves: DctBands

    def answers(self, reps: Tensor, others: ClassMeans | None) -> dict[str, Tensor]:
        """Images, priors, fits and spreads for targets of one class, on the CPU.

        Args:
            reps: representations (n, d).
            others: what the client uploaded of its other classes; None: copies are not moved.
        """
        shape = (-1, *self.pictures[0].shape[1:])
        shifts = [mean.towards(others).to(reps) for mean in self.means]
        moved_sums = [
            [part.moved(shift) for part in own]
            for own, shift in zip(self.sums, shifts, strict=True)
        ]
        penalty = self.how.penalty or _penalty(moved_sums)
        whole = fit_ridge(total([part for own in moved_sums for part in own]), penalty)
        images = whole(reps).reshape(shape).clamp(0, 1)
        if self.how.moves:
            images = self._moved(images, reps, shifts, moved_sums, penalty)
        alone = torch.stack(
            [fit_ridge(total(own), penalty)(reps).clamp(0, 1) for own in moved_sums]
        )
        fits = torch.stack(
            [
                l2rel(outputs(extract, images) + shift, reps)
                for extract, shift in zip(self.extractors, shifts, strict=True)
            ]
        )
        return {
            "images": images.cpu(),
            "prior": whole.image_mean.reshape(shape).clamp(0, 1).expand_as(images).cpu(),
            "fit": fits.mean(0).cpu(),
            "spread": (alone[:, None] - alone[None]).square().mean((0, 1, 3)).cpu(),
        }

    def _moved(
        self,
        images: Tensor,
        reps: Tensor,
        shifts: Sequence[Tensor],
        sums: Sequence[Sequence[Sums]],
        penalty: float,
    ) -> Tensor:
        """Means of candidates about linear answers, after they were moved towards the targets."""
        errors, shadow = _errors(sums, self.seen, shifts, self.pictures, self.fold, penalty)
        chosen = torch.randperm(len(shadow), generator=self.draws)[: self.how.members]
        chosen = chosen.to(images.device)
        through = partial(self._represent, shifts, shadow[chosen])
        changes = partial(without_fold, fold=shadow[chosen] % FOLDS)
        found = torch.empty_like(images)
        for target, (start, sought) in enumerate(zip(images, reps, strict=True)):
            members = start + errors[chosen]
            for _ in range(self.how.moves):
                members = kalman_update(members, through, sought, self.waves, changes)
            found[target] = members.mean(0).clamp(0, 1)
        return found

    def _represent(self, shifts: Sequence[Tensor], shadow: Tensor, images: Tensor) -> Tensor:
        """Representations (n, d) of images, each through a copy of its own."""
        made = images.new_empty(len(images), len(shifts[0]))
        for number, (extract, shift) in enumerate(zip(self.extractors, shifts, strict=True)):
            own = shadow == number
            made[own] = self.sent_anew(self.bounded(extract, images[own])) + shift
        return made


def _team(
    observation: Observation,
    context: Context,
    owner: Owner,
    rows: _Rows,
    how: Shadow,
    models: Sequence[nn.Module],
) -> _ShadowGroup:
    """What copies of a client make of the auxiliary images, under the defences declared."""
    assert observation.aux is not None and observation.aux_labels is not None
    aux = observation.aux.float().to(context.device)
    upload = upload_behind(observation, *owner, torch.stack(rows.reps))
    draws = stream(context.seed, "defended shadows", client=owner[0], round=owner[1])
    fold = folds_of(len(aux), FOLDS).to(context.device)

    def bounded(extract: nn.Module, images: Tensor) -> Tensor:
        made = drawn_outputs(extract, images, draws)
        return made if upload is None else bounded_each(observation.channel, made)

    def sent_anew(made: Tensor) -> Tensor:
        return made if upload is None else rows_resent(observation.channel, made, upload, draws)

    extractors = [model.get_submodule("extractor") for model in models]
    pictures = list(islice(views(aux, 2 * how.views), 0, None, 2))
    sums: list[list[Sums]] = []
    means: list[ClassMeans] = []
    seen: list[list[Tensor]] = []
    for extract in extractors:
        clean = [bounded(extract, moved) for moved in pictures]
        means.append(ClassMeans.of(clean[0], observation.aux_labels))
        seen.append([sent_anew(made) for made in clean])
        pairs = list(zip(seen[-1], pictures, strict=True))
        sums.append(
            [
                total([Sums.of(r[fold == one], x[fold == one].flatten(1)) for r, x in pairs])
                for one in range(FOLDS)
            ]
        )
    waves = DctBands(observation.image_shape, FINEST, context.device)
    return _ShadowGroup(
        how, extractors, pictures, fold, means, seen, sums, bounded, sent_anew, draws, waves
    )


def _errors(
    sums: Sequence[Sequence[Sums]],
    seen: Sequence[Sequence[Tensor]],
    shifts: Sequence[Tensor],
    pictures: Sequence[Tensor],
    fold: Tensor,
    penalty: float,
) -> tuple[Tensor, Tensor]:
    """Errors of linear answers (m, C, H, W), each of a map that saw neither shadow nor image.

    Returns:
        The errors, and the shadow of each (m,). Every image stands for one shadow alone.
    """
    errors, shadow = [], []
    for number, own in enumerate(seen):
        held = number % FOLDS
        way, where = fit_ridge(_total_without(sums, number, held), penalty), fold == held
        for reps, images in zip(own, pictures, strict=True):
            made = way(reps[where] + shifts[number]).reshape(-1, *images.shape[1:])
            errors.append(images[where] - made.clamp(0, 1))
            shadow.append(torch.full((len(made),), number, device=images.device))
    return torch.cat(errors), torch.cat(shadow)


def _total_without(sums: Sequence[Sequence[Sums]], shadow: int, fold: int) -> Sums:
    """The sums of all shadows but one over all folds of images but one."""
    others = [parts for number, parts in enumerate(sums) if number != shadow]
    return total([part for parts in others for one, part in enumerate(parts) if one != fold])


def _penalty(sums: Sequence[Sequence[Sums]]) -> float:
    """The penalty that errs least on held-out images of a held-out shadow, each held out once."""
    errors = []
    for held, own in enumerate(sums):
        fold = held % FOLDS
        errors.append(errors_by_penalty(_total_without(sums, held, fold), own[fold]))
    finite = [one for one in errors if one is not None]
    if not finite:
        return PENALTIES[-1]
    return PENALTIES[int(torch.stack(finite).sum(0).argmin())]


UNKNOWN_START: dict[str, Any] = {
    "place": 35,
    "unknown_start": True,
    "settings": {"start": "random"},
}


@attacks.register("shadow")
@dataclass(frozen=True, kw_only=True)
class Shadow(ShadowModelAttack, Attack):
    """Recover images from early uploads through copies of the client that the server trained.

    Where clients of one architecture begin with weights that the server knows, it trains a few
    copies ("shadows") of a client on auxiliary images of the client's classes, for the client's
    number of steps and with the broadcasts of these rounds. One ridge regression from their
    representations to pixels is applied to the upload, after each shadow was moved so that its
    means of the client's *other* classes agree with the prototypes uploaded of them; its penalty
    is chosen on held-out images of a held-out shadow. Candidates about that answer are then moved
    as `ensemble-kalman` moves them, each through a shadow of its own; the answer is their mean.

    Class shares are counted where labels of single samples or counts are uploaded, read off the
    change of a head where one is, and sought where prototypes are: by `tries` draws, then twice as
    many about the best of them. Elsewhere each shadow draws its own.

    Drift makes shadows useless after a few rounds, so the first one is attacked unless
    ``eval.round`` says otherwise. With ``start=random``, what remains where the start is not known
    (``model.init=private``), it tells nothing and serves as the control. The server is passive.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, HEAD, TRAINING, AUX_DATA, ARCHITECTURE, and INITIAL_MODEL with
                ``start=known``; no extractor       Recovers: inputs
    Cost:       for each client its local training up to the attacked round `shadows` times, and
                three times `tries` where shares are sought; `views` forward passes over the
                auxiliary images, and d^2 (d + C H W) multiplications for each client and class;
                for each target `moves` times `members` passes of a shadow
    Reference:  this project; shadows as in Shokri et al., Membership inference attacks against
                machine learning models, S&P 2017; ridge regression: Hoerl and Kennard,
                1970; for the candidates see `ensemble-kalman`.
    """

    when_to_use = (
        "vectors of the first round when no client model is held, only the starting weights"
    )
    measured_on = ("no_extractor",)
    consumes = (Representations, Prototypes, EntangledRep)
    recovers = "inputs"
    earliest = True
    suite = (
        SuiteEntry(Representations, "public-init", place=35),
        SuiteEntry(Prototypes, "public-init", place=35, fewest_first=True),
        SuiteEntry(HeadState, "public-init", RECOVERED, 35, "head", fewest_first=True),
        SuiteEntry(Representations, "no-extractor", **UNKNOWN_START),
        SuiteEntry(Prototypes, "no-extractor", fewest_first=True, **UNKNOWN_START),
    )
    adapts_to = join_steps(
        ROWS_REPEATED,
        {"training": (NoisySteps, CorrelatedSteps, TrainingTerm), "encoding": (Smoothing,)},
    )

    shadows: int = knob(4, help="copies of each client that are trained", ge=2, le=32)
    views: int = knob(
        5,
        help="versions of each auxiliary image: itself, then shifted ones",
        ge=1,
        le=len(SHIFTS),
    )
    penalty: float | None = knob(
        None,
        help="ridge penalty; none: chosen on held-out images of a held-out shadow",
        unit="mean eigenvalues of the representations' scatter",
        gt=0,
    )
    recentre: bool = knob(
        True,
        help="move each shadow by the prototypes that the client uploaded of other classes",
    )
    tries: int = knob(
        16,
        help="shadow models of each of three stages that seek a client's class shares, where it "
        "uploads prototypes and no counts; 0: shares are drawn",
        ge=0,
    )
    moves: int = knob(
        2, help="times that candidates are moved, see `ensemble-kalman`; 0: the linear answer", ge=0
    )
    members: int = knob(1000, help="candidates of each target, at most", ge=2 * FOLDS)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        owners = {(upload.client, upload.round) for upload in observation.targets}
        told = {owner: class_shares_of(observation, owner) for owner in sorted(owners)}
        return shadow_answers(observation, context, self, told)
