"""Maps from representations to images learnt on rehearsed clients, in place of their extractors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.artifacts import Artifact, Counts, Prototypes, Representations
from fedre_privacy.core.config import knob
from fedre_privacy.core.cores import single_threaded
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.core.types import Observation, Upload

from ..running.channels import bounded_each, rows_sent_anew, unsmoothed, upload_behind
from ..running.driver import Piece, Tick, in_groups, reconstruction
from ..running.modules import frozen, outputs
from ..running.objectives import l2rel
from .ensemble import FINEST, Waves, moved
from .linear_map import PENALTIES, Sums, errors_by_penalty, fit, total
from .map_jobs import LEAST_AUX
from .simulate import SHIFTS, folds_of, views

FOLDS = 4
CONCENTRATION = 0.5
"""Of the Dirichlet distribution that a shadow's class shares are drawn from where no upload tells
how many images a class has."""

Owner = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Shadows:
    """How many copies of a client are trained, and how maps are fitted to them."""

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
    moves: int = knob(
        2, help="times that candidates are moved, see `ensemble-kalman`; 0: the linear answer", ge=0
    )
    members: int = knob(1000, help="candidates of each target, at most", ge=2 * FOLDS)


@dataclass(frozen=True)
class _Rows:
    """Targets of one client and round: their numbers, vectors (n, d) and classes (-1: none)."""

    numbers: list[int]
    reps: list[Tensor]
    classes: list[int]


@dataclass(frozen=True)
class _Means:
    """Vectors of a client's classes (m, d), as it uploaded them, and the classes (m,)."""

    vectors: Tensor
    classes: Tensor

    def without(self, label: int) -> _Means:
        """Those of other classes, as far as they are finite."""
        keep = (self.classes != label) & self.vectors.isfinite().all(1)
        return _Means(self.vectors[keep], self.classes[keep])


def rehearsed_answers(
    observation: Observation, context: Context, how: Shadows, *, random: bool
) -> Reconstruction:
    """Answer every target by maps fitted to rehearsed clients.

    Args:
        random: begin with random weights in place of the initial model.

    Raises:
        IncompatibleError: too few auxiliary images, or nothing to rehearse with.
    """
    rehearsable(observation, random=random)
    found = _by_owner(observation)
    groups = {f"client-{k:06d}-{r:06d}": torch.tensor(found[k, r].numbers) for k, r in found}
    owners = dict(zip(groups, found, strict=True))
    with single_threaded(context.device) as cores:

        def answer(name: str, tick: Tick) -> Piece:
            return _client(
                observation, context, owners[name], found[owners[name]], how, random, tick
            )

        answers = in_groups(answer, groups, context, steps=how.shadows, cores=cores)
    return reconstruction(answers, "rehearsal done")


def rehearsable(observation: Observation, *, random: bool) -> None:
    """Refuse an observation of which no client can be rehearsed.

    Raises:
        IncompatibleError: it says what is absent, and the next command.
    """
    count = 0 if observation.aux is None else len(observation.aux)
    if count < LEAST_AUX or observation.aux_labels is None:
        raise IncompatibleError(
            f"A rehearsal trains on at least {LEAST_AUX} auxiliary images with labels; {count} "
            "were given.",
            next_step="Use a data set with more held-out images.",
        )
    if observation.rehearse is None or observation.training is None:
        raise IncompatibleError(
            "Nothing is known of how these clients train, so they cannot be rehearsed.",
            next_step="Attack a run that was trained here: fedre-attack RUN --threat public-init.",
        )
    clients = {upload.client for upload in observation.targets}
    unknown = sorted(clients - {client for client, _ in observation.initial})
    if unknown and not random:
        raise IncompatibleError(
            f"The initial models of clients {', '.join(map(str, unknown[:8]))} are not known.",
            next_step="Use --threat public-init, or random ones: --threat no-extractor --set "
            "attack.start=random.",
        )


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
    how: Shadows,
    random: bool,
    tick: Tick,
) -> Piece:
    """Rehearse one client and answer its targets."""
    assert observation.aux is not None and observation.aux_labels is not None
    device = context.device
    aux = observation.aux.float().to(device)
    labels = observation.aux_labels.cpu()
    reps = torch.stack(rows.reps).to(device)
    models = _rehearsed(observation, context, owner, how, random, tick)
    extractors = [model.get_submodule("extractor") for model in models]
    sent = _sent_by(observation, owner)
    upload = upload_behind(observation, *owner, reps.cpu())
    draws = stream(context.seed, "defended shadows", client=owner[0], round=owner[1])
    fold = folds_of(len(aux), FOLDS).to(device)

    def bounded(extract: nn.Module, images: Tensor) -> Tensor:
        made = outputs(extract, images)
        return made if upload is None else bounded_each(observation.channel, made)

    def sent_anew(made: Tensor) -> Tensor:
        return made if upload is None else rows_sent_anew(observation.channel, made, upload, draws)

    def represent(shifts: Sequence[Tensor], shadow: Tensor, images: Tensor) -> Tensor:
        made = images.new_empty(len(images), reps.shape[1])
        for number, (extract, shift) in enumerate(zip(extractors, shifts, strict=True)):
            made[shadow == number] = sent_anew(bounded(extract, images[shadow == number])) + shift
        return made

    pictures = list(islice(views(aux, 2 * how.views), 0, None, 2))
    sums: list[list[Sums]] = []  # of each shadow and fold
    means: list[_Means] = []
    seen: list[list[Tensor]] = []  # representations of each shadow and view
    for extract in extractors:
        clean = [bounded(extract, moved) for moved in pictures]
        means.append(_class_means(clean[0], labels))
        seen.append([sent_anew(made) for made in clean])
        pairs = list(zip(seen[-1], pictures, strict=True))
        sums.append(
            [
                total([Sums.of(r[fold == one], x[fold == one].flatten(1)) for r, x in pairs])
                for one in range(FOLDS)
            ]
        )
    known = _class_vectors(sent, rows)
    waves = Waves(observation.image_shape, FINEST, device)
    answers = torch.empty(len(reps), *aux.shape[1:], device=device)
    prior, spread, fits = (
        torch.empty_like(answers),
        reps.new_empty(len(reps)),
        reps.new_empty(len(reps)),
    )
    for label in sorted(set(rows.classes)):
        where = torch.tensor([one == label for one in rows.classes], device=device)
        others = known.without(label) if label >= 0 and how.recentre else None
        shifts = [_shift(mean, others).to(device) for mean in means]
        moved_sums = [
            [part.moved(shift) for part in own] for own, shift in zip(sums, shifts, strict=True)
        ]
        penalty = how.penalty or _penalty(moved_sums)
        shape = (-1, *aux.shape[1:])
        whole = fit(total([part for own in moved_sums for part in own]), penalty)
        answers[where] = whole(reps[where]).reshape(shape).clamp(0, 1)
        if how.moves:
            errors, shadow = _errors(moved_sums, seen, shifts, pictures, fold, penalty)
            chosen = torch.randperm(len(shadow), generator=draws)[: how.members].to(device)
            through = partial(represent, shifts, shadow[chosen])
            for target in where.nonzero().flatten().tolist():
                members = answers[target] + errors[chosen]
                for _ in range(how.moves):
                    parts = shadow[chosen] % FOLDS
                    members = moved(members, through, reps[target], waves, parts)
                answers[target] = members.mean(0).clamp(0, 1)
        prior[where] = whole.image_mean.reshape(1, *aux.shape[1:]).clamp(0, 1)
        alone = torch.stack(
            [fit(total(own), penalty)(reps[where]).clamp(0, 1) for own in moved_sums]
        )
        spread[where] = (alone[:, None] - alone[None]).square().mean((0, 1, 3))
        fits[where] = torch.stack(
            [
                l2rel(outputs(extract, answers[where]) + shift, reps[where])
                for extract, shift in zip(extractors, shifts, strict=True)
            ]
        ).mean(0)
    lost = ~answers.isfinite().flatten(1).all(1)
    answers[lost], fits[lost] = torch.nan, torch.nan
    return {
        "images": answers.cpu(),
        "prior": prior.cpu(),
        "fit": fits.cpu(),
        "trace": fits[None].cpu(),
        "spread": spread.cpu(),
    }


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
        kept = [
            part
            for other, parts in enumerate(sums)
            if other != number
            for one, part in enumerate(parts)
            if one != held
        ]
        way, where = fit(total(kept), penalty), fold == held
        for reps, images in zip(own, pictures, strict=True):
            made = way(reps[where] + shifts[number]).reshape(-1, *images.shape[1:])
            errors.append(images[where] - made.clamp(0, 1))
            shadow.append(torch.full((len(made),), number, device=images.device))
    return torch.cat(errors), torch.cat(shadow)


def _rehearsed(
    observation: Observation,
    context: Context,
    owner: Owner,
    how: Shadows,
    random: bool,
    tick: Tick,
) -> list[nn.Module]:
    """Copies of a client that were trained on auxiliary images, as they are after the round."""
    assert observation.aux is not None and observation.aux_labels is not None
    assert observation.training is not None and observation.rehearse is not None
    client, round = owner
    rounds = sorted({u.round for u in observation.uploads if u.client == client} - {0} | {round})
    rounds = [one for one in rounds if one <= round]
    sent = _sent_by(observation, owner)
    made = []
    for number in range(how.shadows):
        rng = stream(context.seed, "shadow", client=client, round=round, index=number)
        seed = derive(context.seed, "rehearsal", client=client, round=round, index=number)
        index = _drawn(observation, sent, observation.training.sizes[client], rng)
        start = (
            observation.rehearse.blank(client, seed) if random else observation.initial[client, 0]
        )
        after = observation.rehearse(
            client,
            frozen(start, context.device),
            observation.aux[index],
            observation.aux_labels[index],
            rounds,
            seed,
        )
        made.append(frozen(after[round], context.device))
        tick(number, torch.full((1,), torch.nan))
    return made


def _drawn(
    observation: Observation, sent: Sequence[Artifact], size: int, rng: torch.Generator
) -> Tensor:
    """Numbers of auxiliary images (size,) that stand in for a client's own."""
    assert observation.aux_labels is not None
    labels = observation.aux_labels.cpu()
    share = classes_drawn(observation, sent, rng)
    classes = torch.multinomial(share, size, replacement=True, generator=rng)
    picked = torch.rand(size, generator=rng)
    out = torch.empty(size, dtype=torch.int64)
    for label in classes.unique().tolist():
        pool, where = (labels == label).nonzero().flatten(), classes == label
        out[where] = pool[(picked[where] * len(pool)).long()]
    return out


def classes_drawn(
    observation: Observation, sent: Sequence[Artifact], rng: torch.Generator
) -> Tensor:
    """Weights of classes (C,) for a client: of those that its uploads name, as counted or drawn.

    Classes without an auxiliary image weigh nothing.
    """
    assert observation.aux_labels is not None
    labels = observation.aux_labels.cpu()
    share = torch.zeros(observation.num_classes, dtype=torch.float64)
    counted = [a for a in sent if isinstance(a, Counts)]
    for artifact in sent:
        encodings = artifact.encodings(observation.num_classes)
        if encodings is None:
            continue
        for encoding in encodings:
            share[unsmoothed(observation.channel, encoding) > 0] = 1
    held = share.nonzero().flatten()
    if len(counted) == 1 and len(counted[0].values) == len(held):
        share[held] = counted[0].values.double()
    elif len(held):
        gamma = torch._standard_gamma(
            torch.full((len(held),), CONCENTRATION, dtype=torch.float64), generator=rng
        )
        share[held] = gamma.clamp(min=1e-12)
    else:
        share += 1.0
    share[torch.bincount(labels, minlength=len(share))[: len(share)] == 0] = 0
    if not float(share.sum()):
        share = torch.bincount(labels, minlength=len(share)).double()
    return share


def _sent_by(observation: Observation, owner: Owner) -> list[Artifact]:
    """What the client uploaded in the round; where that is not known, the targets."""
    for uploads in (observation.uploads, observation.targets):
        found: list[Upload] = [u for u in uploads if (u.client, u.round) == owner]
        if found:
            return [artifact for upload in found for artifact in upload.artifacts]
    return []


def _class_vectors(sent: Sequence[Artifact], rows: _Rows) -> _Means:
    """What a client's uploads tell of the means of its classes, else what its targets tell."""
    vectors, classes = [], []
    for artifact in sent:
        found = artifact.rows()
        if found is not None and isinstance(artifact, Prototypes | Representations):
            vectors += list(found.float())
            classes += artifact.labels.tolist()
    if not vectors:
        vectors, classes = rows.reps, rows.classes
    return _class_means(torch.stack(list(vectors)), torch.tensor(classes))


def _class_means(reps: Tensor, labels: Tensor) -> _Means:
    """The mean of the representations (n, d) of each class there is."""
    reps = reps.cpu()
    present = labels.unique()
    return _Means(torch.stack([reps[labels == one].mean(0) for one in present]), present)


def _shift(shadow: _Means, others: _Means | None) -> Tensor:
    """What is added to a shadow's representations (d,) so that both have these class means."""
    none = torch.zeros(shadow.vectors.shape[1])
    if others is None:
        return none
    differences = [
        vector - shadow.vectors[shadow.classes == label][0]
        for vector, label in zip(others.vectors, others.classes, strict=True)
        if bool((shadow.classes == label).any())
    ]
    return torch.stack(differences).mean(0) if differences else none


def _penalty(sums: Sequence[Sequence[Sums]]) -> float:
    """The penalty that errs least on held-out images of a held-out shadow, each held out once."""
    errors = []
    for held, own in enumerate(sums):
        fold = held % FOLDS
        kept = [
            part
            for number, other in enumerate(sums)
            if number != held
            for one, part in enumerate(other)
            if one != fold
        ]
        errors.append(errors_by_penalty(total(kept), own[fold]))
    finite = [one for one in errors if one is not None]
    if not finite:
        return PENALTIES[-1]
    return PENALTIES[int(torch.stack(finite).sum(0).argmin())]
