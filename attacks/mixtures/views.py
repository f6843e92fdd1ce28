"""What a client's prototypes were in several rounds, each with that round's extractor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.mixtures.mixing import Kind, Mixing, mixings
from fedre_privacy.attacks.running.messages import messages_of
from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.types import Observation

from .aligned import align, aligned, images_of
from .through import aux_reps, lagging


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
        held = _held(observation, mixing.client, mixing.rounds.tolist())
        mixing = mixing.take(held)
        if len(mixing.rounds) < 2:
            continue
        if mixing.kind is Kind.SINGLE:
            places = spread(len(mixing.rounds), rounds)
            found[mixing.client] = PrototypeViews(
                mixing.rounds[places].tolist(), mixing.classes, mixing.uploads[places][:, None]
            )
        elif mixing.kind is Kind.MIXED:
            found[mixing.client] = _solved(
                observation, context, mixing, rounds, aux_limit, align_penalty
            )
    for client, made in _uploaded(observation, rounds).items():
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


def _held(observation: Observation, client: int, rounds: list[int]) -> Tensor:
    have = [i for i, r in enumerate(rounds) if (client, r) in observation.extractors]
    return torch.tensor(have, dtype=torch.int64)


def _solved(
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
    if lagging(reps):
        mixing, reps = mixing.take(torch.arange(len(reps) - 1)), reps[:-1]
    images = [images_of(r) for r in reps]
    places = spread(len(images), rounds)
    not_negative = bool((mixing.uploads >= 0).all())
    vectors = []
    for at in places:
        carried = align(images, mixing.uploads, penalty, at=at)
        answer = aligned(mixing.weights, carried, carried.uploads).vectors
        vectors.append(answer.clamp(min=0) if not_negative else answer)
    return PrototypeViews(mixing.rounds[places].tolist(), mixing.classes, torch.stack(vectors))


def _uploaded(observation: Observation, rounds: int) -> dict[int, PrototypeViews]:
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
