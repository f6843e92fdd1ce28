"""The samples whose membership is asked, drawn so that nothing about the list tells the answer.

Members and others of a client and class are equally many, every image is asked about once, all
go through the same arithmetic into tensors of their own, and a stream of the evaluator shuffles
the list. What separates them is then the training alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Candidates
from fedre_privacy.core.units import plural
from fedre_privacy.eval import PublicImages
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.runs.membership_game import NULL

HOLDERS = 10
"""Clients that an image is asked about, at most, where its client is sought."""
FEWEST = 6
"""Members, and as many others, below which nothing can be said."""


@dataclass(frozen=True, eq=False)
class MembershipCandidates:
    """What the attacker is asked, and what only the evaluator knows about it.

    Shape: members (M,) bool; class_sizes (M,) samples of the candidate's class at its client.
    """

    candidates: Candidates
    members: Tensor
    class_sizes: Tensor


def evaluator_stream(seed: int, purpose: str, *, client: int = -1) -> torch.Generator:
    """Random numbers of the evaluator behind the candidates; no attack may draw them again."""
    return stream(seed, f"evaluator: candidates, {purpose}", client=client)


def draw_candidates(
    source: TargetSource, public: PublicImages, per_client: int, seed: int
) -> MembershipCandidates:
    """Draw members and as many others of the same classes for every client, in random order.

    Images whose bytes occur more than once in the run's data are not asked about: a copy of a
    member is trained on wherever it stands. Others are dealt out, so that none is asked about
    twice.

    Args:
        public: images that no client trained on.
        per_client: members asked about per client, at most.

    Raises:
        IncompatibleError: fewer than `FEWEST` of each kind are left.
    """
    data = source.data
    held = torch.cat([*source.train, *source.test])
    copies = Counter(digests(data.images[held]))
    wished = {k: members_of(source, copies, k, per_client, seed) for k in source.clients}
    levels = (public.images * 255).round().to(torch.uint8)
    usable = torch.tensor([copies[digest] <= 1 for digest in digests(levels)])
    dealt = _deal(source, wished, public.labels, usable, seed)
    inside, outside = [], []
    clients, labels, sizes = [], [], []
    for client, others in dealt.items():
        own = _match_classes(data.labels[wished[client]], public.labels[others])
        inside.append(wished[client][own])
        outside.append(others)
        counts = torch.bincount(data.labels[source.train[client]], minlength=data.num_classes)
        asked = torch.cat([data.labels[inside[-1]], public.labels[others]])
        labels.append(asked.split(len(others)))
        clients.append(torch.full((len(others),), client))
        sizes.append(counts[asked].split(len(others)))
    number = sum(len(part) for part in inside)
    if number < FEWEST:
        raise IncompatibleError(
            f"Only {plural(number, 'training image')} can be compared with a held-out image of "
            f"the same client's classes; membership needs {FEWEST} of each.",
            next_step="Use more images, or a lower train.train_ratio.",
        )
    order = torch.randperm(2 * number, generator=evaluator_stream(seed, "order"))

    def joined(first: list[Tensor], second: list[Tensor]) -> Tensor:
        return torch.cat([*first, *second])[order]

    images = joined([data.images[part] for part in inside], [levels[part] for part in outside])
    return MembershipCandidates(
        Candidates(
            images.float() / 255,
            joined([own for own, _ in labels], [other for _, other in labels]),
            joined(clients, clients),
        ),
        order < number,
        joined([own for own, _ in sizes], [other for _, other in sizes]),
    )


@dataclass(frozen=True, eq=False)
class SourceCandidates:
    """What the attacker is asked, and what only the evaluator knows about it; see `SourceTrial`."""

    candidates: Candidates
    own: Tensor
    records: Tensor


def draw_sources(source: TargetSource, per_client: int, seed: int) -> SourceCandidates:
    """Draw training images of classes that several clients hold, in random order of pairs.

    Of each class every client that is asked about gives equally many images, so that neither the
    class nor a client's size tells the source. Images whose bytes occur twice are left out.

    Args:
        per_client: images of a client, at most.

    Raises:
        IncompatibleError: fewer than `FEWEST` images are left.
    """
    data = source.data
    copies = Counter(digests(data.images[torch.cat([*source.train, *source.test])]))
    wished = {k: members_of(source, copies, k, per_client, seed) for k in source.clients}
    rng = evaluator_stream(seed, "holders")
    rows, owners, asked = [], [], []
    for label in range(data.num_classes):
        held = {k: own[data.labels[own] == label] for k, own in wished.items()}
        each, holders = images_per_client({k: len(own) for k, own in held.items()})
        order = torch.randperm(len(holders), generator=rng)[:HOLDERS].tolist()
        holders = [holders[i] for i in order]
        for owner in holders:
            rows.append(held[owner][:each].repeat_interleave(len(holders)))
            owners.append(torch.full((len(rows[-1]),), owner))
            asked.append(torch.tensor(holders).repeat(each))
    number = sum(len(part.unique()) for part in rows)
    if number < FEWEST:
        raise IncompatibleError(
            f"Only {plural(number, 'training image')} can be asked about: of classes that "
            f"several clients hold, each as many; {FEWEST} are needed.",
            next_step="Use a partition whose clients share classes, such as --partition iid.",
        )
    pairs = sum(len(part) for part in rows)
    shuffled = torch.randperm(pairs, generator=evaluator_stream(seed, "order of pairs"))
    chosen, owner_of, clients = (torch.cat(part)[shuffled] for part in (rows, owners, asked))
    return SourceCandidates(
        Candidates(data.images[chosen].float() / 255, data.labels[chosen], clients),
        owner_of == clients,
        torch.unique(chosen, return_inverse=True)[1],
    )


def images_per_client(counts: Mapping[int, int]) -> tuple[int, list[int]]:
    """How many images each client gives, and which clients can give so many.

    The number with the most images in all, of two clients at least; of equals the smallest.

    Args:
        counts: client to images that it has.
    """
    best: tuple[int, list[int]] = (0, [])
    for each in sorted(set(counts.values()) - {0}):
        able = [k for k, count in counts.items() if count >= each]
        if len(able) > 1 and each * len(able) > best[0] * len(best[1]):
            best = each, able
    return best


def digests(images: Tensor) -> list[bytes]:
    """A hash of each image (N, C, H, W) uint8."""
    rows = images.flatten(1).contiguous().numpy()
    return [hashlib.blake2b(row, digest_size=16).digest() for row in rows]


def members_of(
    source: TargetSource, copies: Counter[bytes], client: int, most: int, seed: int
) -> Tensor:
    """Training samples that may be asked about, in random order, at most `most`.

    Raises:
        IncompatibleError: some of them are counted and were in no batch.
    """
    coins = source.run.settings.coins
    if coins is not None and coins.game == NULL:
        raise IncompatibleError(
            "In this run samples are counted that were in no batch (coins.game=null), so that its "
            "training samples are no members.",
            next_step="Use fedre-membership --game null, or fedre-audit --level run.",
        )
    own = source.train[client]
    once = torch.tensor([copies[d] == 1 for d in digests(source.data.images[own])]).bool()
    own = own[once]
    rng = evaluator_stream(seed, "members", client=client)
    return own[torch.randperm(len(own), generator=rng)][:most]


def _deal(
    source: TargetSource,
    wished: dict[int, Tensor],
    labels: Tensor,
    usable: Tensor,
    seed: int,
) -> dict[int, Tensor]:
    """Deal held-out images out to clients that hold their class, in turn: client to positions."""
    rng = evaluator_stream(seed, "others")
    wants = {
        k: torch.bincount(source.data.labels[own], minlength=source.data.num_classes)
        for k, own in wished.items()
    }
    hands: dict[int, list[int]] = {k: [] for k in wants}
    for label in range(source.data.num_classes):
        pool = (usable & (labels == label)).nonzero().squeeze(1)
        cards = pool[torch.randperm(len(pool), generator=rng)].tolist()
        seats = [list(wants)[i] for i in torch.randperm(len(wants), generator=rng).tolist()]
        wanted = {k: int(wants[k][label]) for k in seats}
        turn = 0
        while cards and any(wanted[k] > turn for k in seats):
            for k in seats:
                if cards and wanted[k] > turn:
                    hands[k].append(cards.pop())
            turn += 1
    return {k: torch.tensor(hand, dtype=torch.int64) for k, hand in hands.items() if hand}


def _match_classes(labels: Tensor, others: Tensor) -> Tensor:
    """Positions in `labels` (n,), each class as often as in `others` (m,): (m,)."""
    kept = [
        (labels == label).nonzero().squeeze(1)[: int(count)]
        for label, count in enumerate(torch.bincount(others).tolist())
    ]
    return torch.cat(kept)


def by_image_alone(asked: Candidates, public: PublicImages) -> Tensor:
    """A rule that sees no model: minus the distance to the mean public image of the class, (M,).

    Args:
        public: images that are not asked about; a class without any takes the mean of all.
    """
    whole = public.images.mean(0)
    means = []
    for label in range(int(asked.labels.max()) + 1):
        own = public.images[public.labels == label]
        means.append(own.mean(0) if len(own) else whole)
    apart: Tensor = (asked.images - torch.stack(means)[asked.labels]).flatten(1).norm(dim=1)
    return -apart
