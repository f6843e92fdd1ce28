"""Auxiliary images in the place of targets, so that answers can be checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.channels import (
    bounded_each,
    rows_resent,
    undo_smoothing,
    upload_behind,
)
from fedre_privacy.attacks.common.frozen_modules import frozen_copy, representations_of
from fedre_privacy.attacks.inversion.simulated_uploads import (
    MOST_AVERAGED,
    blend_weights,
    mean_weights,
    sizes_drawn,
    views,
)
from fedre_privacy.core.artifacts import (
    Artifact,
    Counts,
    EntangledRep,
    Prototypes,
    Representations,
)
from fedre_privacy.core.types import Observation, Upload

LEAST_AUX = 40
"""Auxiliary images below which none is spared."""
LEAST = 20
"""Victims below which nothing is learnt."""
STRANGERS = 10
"""So many victims have one stranger beside them."""
LINEUP = 100
"""Images in a line-up, if there are so many."""
LINEUPS = 5
"""Line-ups of each answer."""
COPIES = 5
"""Copies of each image of the class in a line-up: itself, and moved ones."""
IN_CACHE = 1 << 15
"""Values compared at once; more would leave the cache."""
CONCENTRATION = 0.5
"""Of the Dirichlet distribution of class shares, where no upload counts a class."""


@dataclass(frozen=True, eq=False)
class Victims:
    """An observation whose targets were made of auxiliary images.

    Args:
        observation: the targets, and the auxiliary images that none of them was made of.
        supports: numbers of the images, among all auxiliary ones, behind each target.
        counts: (N,) how many they are, where uploads tell that of the targets imitated; else NaN.
        strangers: (N,) bool: rows whose numbers were put in random order, so that no image made
            them. An answer to them is wrong, and the attacker has to see that.
        rest: numbers of the images that no target was made of, among all auxiliary ones.
    """

    observation: Observation
    supports: Sequence[Tensor]
    counts: Tensor
    strangers: Tensor
    rest: Tensor


def imitable(observation: Observation) -> bool:
    """Whether auxiliary images can take the place of the targets."""
    aux, labels = observation.aux, observation.aux_labels
    if aux is None or labels is None or len(aux) < LEAST_AUX or observation.images_per_target:
        return False
    if any(_is_recovered_target(observation, target) for target in observation.targets):
        return False
    artifacts = [artifact for target in observation.targets for artifact in target.artifacts]
    held = {(target.client, target.round) for target in observation.targets}
    return held <= set(observation.extractors) and all(
        isinstance(artifact, Representations | Prototypes | EntangledRep) for artifact in artifacts
    )


def _is_recovered_target(observation: Observation, target: Upload) -> bool:
    """Whether another attack worked a target out; its errors are not those of an upload."""
    sent = {(u.client, u.round, type(a)) for u in observation.uploads for a in u.artifacts}
    own = {(target.client, target.round, type(a)) for a in target.artifacts}
    return not target.counterfactual and not own <= sent


def victims(
    observation: Observation, wanted: int, rng: torch.Generator, context: Context
) -> Victims | None:
    """Make victims of half of the auxiliary images, each in imitation of a target.

    A victim has the extractor, the kind, the class and the declared defences of its target, and as
    many images as its target is known or likely to have.

    Args:
        observation: one that is `imitable`.
        wanted: number of victims, about; none is imitated twice where that costs a map of its own.
        context: of the attack on the true targets: its device, and its passes.

    Returns:
        None where fewer than `LEAST` can be made.
    """
    assert observation.aux is not None and observation.aux_labels is not None
    order = torch.randperm(len(observation.aux), generator=rng)
    mine, rest = order[: len(order) // 2], order[len(order) // 2 :]
    labels = observation.aux_labels.cpu().long()
    owners = [(u, a) for u in observation.targets for a in u.artifacts]
    rows = torch.tensor([_rows_of(artifact) for _, artifact in owners])
    picked = torch.randperm(int(rows.sum()), generator=rng).repeat(-(-wanted // int(rows.sum())))
    ends = rows.cumsum(0)
    made: list[Upload] = []
    supports: list[Tensor] = []
    counts: list[Tensor] = []
    strangers: list[Tensor] = []
    for place, (upload, artifact) in enumerate(owners):
        first = int(ends[place] - rows[place])
        here = (picked[:wanted] >= first) & (picked[:wanted] < int(ends[place]))
        imitated = picked[:wanted][here] - first
        if isinstance(artifact, EntangledRep):
            imitated = imitated[:1]
        if not len(imitated):
            continue
        known = _image_counts(observation, upload, artifact, imitated)
        classes = classes_of(artifact)[imitated]
        weights = _weights(observation, upload, artifact, classes, known, labels[mine], rng)
        sent = _simulate_upload(observation, upload, artifact, weights, mine, rng, context)
        more = 0 if isinstance(artifact, EntangledRep) else max(1, len(sent) // STRANGERS)
        again = torch.cat([torch.arange(len(sent)), torch.arange(more)])
        sent, weights, known, classes = (t[again] for t in (sent, weights, known, classes))
        strange = torch.arange(len(again)) >= len(again) - more
        sent[strange] = _shuffle_rows(sent[strange], rng)
        made.append(replace(upload, artifacts=(_as(artifact, sent, classes),)))
        supports += [mine[row.nonzero().flatten()] for row in weights]
        counts.append(known)
        strangers.append(strange)
    if sum(int((~one).sum()) for one in strangers) < LEAST:
        return None
    true = tuple(upload for upload in made if not upload.counterfactual)
    seen = replace(
        observation,
        targets=tuple(made),
        uploads=(*observation.uploads, *true),
        aux=observation.aux[rest],
        aux_labels=observation.aux_labels[rest],
    )
    return Victims(seen, supports, torch.cat(counts), torch.cat(strangers), rest)


def identification_rate(
    answers: Tensor, supports: Sequence[Tensor], aux: Tensor, labels: Tensor, rng: torch.Generator
) -> Tensor:
    """Share of line-ups in which an answer (n, C, H, W) finds an image that made it, (n,).

    The evaluator's line-up has one image that entered the target, and others that did not, of its
    class first. A class has few auxiliary images, so copies of them moved by a pixel or two stand
    in for more, or the line-ups would be too easy.

    Args:
        supports: numbers of the images behind each answer.
    """
    copies = torch.stack(list(islice(views(aux, 2 * COPIES), 0, None, 2))).flatten(2)
    rows = max(1, IN_CACHE // copies.shape[2])
    out = []
    for answer, support in zip(answers.flatten(1), supports, strict=True):
        gap = torch.cat([(part - answer).square().sum(2) for part in copies.split(rows, 1)], 1)
        outside = torch.ones(len(aux), dtype=torch.bool)
        outside[support] = False
        hits = 0.0
        for _ in range(LINEUPS):
            original = int(support[torch.randint(len(support), (1,), generator=rng)])
            others = outside.nonzero().flatten()
            others = others[torch.randperm(len(others), generator=rng)]
            alike = labels[others] == labels[original]
            rivals = torch.cat([gap[:, others[alike]].flatten(), gap[0, others[~alike]]])
            hits += float(gap[0, original] < rivals[: LINEUP - 1].min())
        out.append(hits / LINEUPS)
    return torch.tensor(out)


def counts_of(observation: Observation) -> Tensor:
    """How many images made each target (N,), where the uploads tell; NaN elsewhere."""
    return torch.cat(
        [
            _image_counts(observation, upload, artifact, torch.arange(_rows_of(artifact)))
            for upload in observation.targets
            for artifact in upload.artifacts
        ]
    )


def classes_of(artifact: Artifact) -> Tensor:
    """The class of each row of an artifact, -1 where it mixes several."""
    if isinstance(artifact, Representations | Prototypes):
        return artifact.labels.long()
    return torch.full((_rows_of(artifact),), -1)


def _rows_of(artifact: Artifact) -> int:
    rows = artifact.rows()
    return 0 if rows is None else len(rows)


def _image_counts(
    observation: Observation, target: Upload, artifact: Artifact, rows: Tensor
) -> Tensor:
    """Images behind some rows of a target: 1, or as the client's own upload counts them."""
    if isinstance(artifact, Representations):
        return torch.ones(len(rows))
    told: dict[int, float] = {}
    for upload in observation.uploads:
        if (upload.client, upload.round) != (target.client, target.round):
            continue
        counts = [a.values for a in upload.artifacts if isinstance(a, Counts)]
        sent = [a.labels for a in upload.artifacts if isinstance(a, Prototypes)]
        if len(counts) == len(sent) == 1 and len(counts[0]) == len(sent[0]):
            told = dict(zip(sent[0].tolist(), counts[0].float().tolist(), strict=True))
    return torch.tensor([told.get(int(label), torch.nan) for label in classes_of(artifact)[rows]])


def _weights(
    observation: Observation,
    upload: Upload,
    artifact: Artifact,
    classes: Tensor,
    known: Tensor,
    labels: Tensor,
    rng: torch.Generator,
) -> Tensor:
    """Weights (n, m) of auxiliary images with these labels (m,) in victims of classes (n,)."""
    everyone = torch.ones(len(labels), dtype=torch.bool)
    if isinstance(artifact, EntangledRep):
        encoding = undo_smoothing(observation.channel, artifact.encoding)
        return blend_weights(encoding, labels, everyone, len(classes), rng)
    sizes = known
    if bool(known.isnan().any()):
        drawn = _draw_counts(observation, upload, artifact, len(classes), rng)
        sizes = torch.where(known.isnan(), drawn, known)
    return mean_weights(labels, everyone, classes, sizes.clamp(1, MOST_AVERAGED), rng)


def _draw_counts(
    observation: Observation, target: Upload, artifact: Artifact, count: int, rng: torch.Generator
) -> Tensor:
    """Numbers of images that prototypes of a client may have (count,).

    Shares of its classes are drawn, where it is known how many images it has in all.
    """
    training = observation.training
    if training is None or target.client not in training.sizes:
        return sizes_drawn(count, None, rng)
    held = [
        _rows_of(one)
        for upload in observation.uploads
        if (upload.client, upload.round) == (target.client, target.round)
        for one in upload.artifacts
        if isinstance(one, Prototypes)
    ]
    classes = max([_rows_of(artifact), *held])
    alpha = torch.full((count, classes), CONCENTRATION, dtype=torch.float64)
    shares = torch._standard_gamma(alpha, generator=rng).clamp(min=1e-12)
    one = shares[:, 0] / shares.sum(1)
    return (one * training.sizes[target.client]).round().clamp(min=1).float()


def _simulate_upload(
    observation: Observation,
    upload: Upload,
    artifact: Artifact,
    weights: Tensor,
    mine: Tensor,
    rng: torch.Generator,
    context: Context,
) -> Tensor:
    """What the client would send of means with these weights, (n, d)."""
    assert observation.aux is not None
    owner = (upload.client, upload.round)
    extract = frozen_copy(observation.extractors[owner], context.device)
    reps = representations_of(context.passes, owner, extract, observation.aux, context.device)[mine]
    rows = artifact.rows()
    assert rows is not None
    behind = upload_behind(observation, upload.client, upload.round, rows)
    if behind is None:
        return weights @ reps
    channel = observation.channel
    return rows_resent(channel, weights @ bounded_each(channel, reps), behind, rng)


def _shuffle_rows(rows: Tensor, rng: torch.Generator) -> Tensor:
    """Rows (n, d), the numbers of each in random order."""
    order = torch.rand(rows.shape, generator=rng).argsort(1)
    return rows.gather(1, order)


def _as(artifact: Artifact, rows: Tensor, classes: Tensor) -> Artifact:
    """Rows as an artifact of the kind of another."""
    if isinstance(artifact, Representations):
        return Representations(rows, classes)
    if isinstance(artifact, Prototypes):
        return Prototypes(rows, classes)
    assert isinstance(artifact, EntangledRep)
    return EntangledRep(rows[0], artifact.encoding)
