"""Who trains in one world: coins that decide, sample by sample, what a federation trains on.

A slot is a sample of a client's own pool, its training and test share together. In every world each
slot is in or out by a fair coin of its own, so that members and others differ by the coin alone.
The partition is the same in all worlds; models, batches, noise and coins are of each world.

Three games. ``coin``: a slot's sample trains or does not, which moves the counts of its client and
class by one. ``pair``: a slot holds two samples of one client and class, of which one trains, which
leaves all counts as they are. ``null``: a slot's sample trains or counts for nothing: it stands in
all counts and rates as before, and no batch holds it. That is a record added or removed where
counts are public, as private training promises it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import secret, stream
from fedre_privacy.data.base import ImageData
from fedre_privacy.data.mapped import copy_images
from fedre_privacy.partition.base import ClientSplit

COIN, PAIR, NULL = GAMES = ("coin", "pair", "null")
NATURAL, MISLABELLED, NOISE = CANARIES = ("natural", "mislabelled", "noise")


@dataclass(frozen=True, kw_only=True)
class MembershipGame:
    """Which world a training is, and how its coins are tossed."""

    world: int = knob(0, help="number of the world; each has coins of its own", ge=0)
    game: str = knob(
        COIN,
        help="coin: a sample trains or does not; pair: one of two samples of a client and class; "
        "null: a sample trains or is in no batch while all counts stay, for dp-sgd alone",
        choices=GAMES,
    )
    slots: int | None = knob(
        None, help="slots of each client at most, others train always; none: all its samples", ge=2
    )
    apart: float = knob(
        0.2,
        help="share of each client's samples that train in no world: for accuracy and for "
        "attackers' own images",
        gt=0,
        lt=1,
    )
    seed: int = knob(0, help="seed of slots and coins", ge=0)
    canary: str = knob(
        NATURAL,
        help="what the samples of slots are: natural: themselves; mislabelled: with another label, "
        "the same for both of a pair; noise: images of random pixels; the latter two harm the "
        "model",
        choices=CANARIES,
    )


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of a federation, the same in all worlds.

    Args:
        clients, labels: of each slot (n,) int64.
        one: the sample that trains on heads (n,) int64, a number in the data set.
        other: the sample that trains on tails (n,) int64, -1 where none does.
        always, apart: samples of each client that train in every world, and in none.
    """

    clients: Tensor
    labels: Tensor
    one: Tensor
    other: Tensor
    always: tuple[Tensor, ...]
    apart: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.clients)


def game_seed(shares: ClientSplit, coins: MembershipGame) -> int:
    """The seed of slots and coins, which nobody without the split can compute."""
    arrays = [torch.from_numpy(np.asarray(own)) for own in (*shares.train, *shares.test)]
    return secret(coins.seed, "coins", *arrays)


def draw_slots(shares: ClientSplit, labels: Tensor, coins: MembershipGame) -> Slots:
    """Choose the slots; the number of the world plays no part.

    Args:
        shares: the partition of all worlds.
        labels: of all samples of the data set (N,).

    Raises:
        IncompatibleError: no client has a slot.
    """
    seed = game_seed(shares, coins)
    slots: list[tuple[int, int, int]] = []
    always, apart = [], []
    for client, (train, test) in enumerate(zip(shares.train, shares.test, strict=True)):
        pool = torch.from_numpy(np.sort(np.concatenate([train, test])))
        drawn = pool[torch.randperm(len(pool), generator=stream(seed, "slots", client=client))]
        spare = max(1, round(coins.apart * len(drawn)))
        out, left = drawn[:spare].tolist(), drawn[spare:]
        paired = _pairs(left, labels) if coins.game == PAIR else [(i, -1) for i in left.tolist()]
        taken = paired[: coins.slots]
        slots += [(client, one, other) for one, other in taken]
        used = {sample for pair in taken for sample in pair}
        rest = [sample for sample in left.tolist() if sample not in used]
        always.append(torch.tensor(sorted(rest), dtype=torch.int64))
        apart.append(torch.tensor(sorted(out), dtype=torch.int64))
    if not slots:
        raise IncompatibleError(
            "No client has a sample, or a pair of one class, to toss a coin about.",
            next_step="Use more images, a lower coins.apart, or coins.game=coin.",
        )
    clients, one, other = (torch.tensor(column) for column in zip(*slots, strict=True))
    return Slots(clients, labels[one], one, other, tuple(always), tuple(apart))


def plant_canaries(data: ImageData, slots: Slots, coins: MembershipGame) -> ImageData:
    """The data with canaries in place of the samples of slots, the same in all worlds."""
    if coins.canary == NATURAL:
        return data
    rng = stream(coins.seed, "canaries")
    images, labels = copy_images(data.images), data.labels.clone()
    classes = len(data.classes)
    shift = torch.randint(1, max(classes, 2), (len(slots),), generator=rng)
    for samples in (slots.one, slots.other):
        there = samples >= 0
        where = samples[there]
        if coins.canary == MISLABELLED:
            labels[where] = (labels[where] + shift[there]) % classes
        else:
            shape = (len(where), *images.shape[1:])
            images[where] = torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8)
    return replace(data, images=images, labels=labels)


def _pairs(samples: Tensor, labels: Tensor) -> list[tuple[int, int]]:
    """Samples two by two within their class, in the order given; one may be left over."""
    waiting: dict[int, int] = {}
    found = []
    for sample, label in zip(samples.tolist(), labels[samples].tolist(), strict=True):
        if waiting.setdefault(label, sample) != sample:
            found.append((waiting.pop(label), sample))
    return found


def draw_coins(shares: ClientSplit, count: int, coins: MembershipGame) -> Tensor:
    """The coins of one world, one for each slot: (count,) bool, true for heads."""
    rng = stream(game_seed(shares, coins), "coins", index=coins.world)
    return torch.rand(count, generator=rng) < 0.5


def deal_samples(slots: Slots, heads: Tensor) -> ClientSplit:
    """Who trains on what in a world: its training samples, and as test samples those apart.

    Args:
        heads: (n,) bool; all of them in game ``null``, where samples stay in all counts.

    Raises:
        IncompatibleError: a client would train on nothing.
    """
    chosen = torch.where(heads, slots.one, slots.other)
    train = []
    for client, always in enumerate(slots.always):
        own = chosen[(slots.clients == client) & (chosen >= 0)]
        train.append(torch.cat([always, own]).sort().values)
    empty = [str(client) for client, own in enumerate(train) if not len(own)]
    if empty:
        raise IncompatibleError(
            f"By the coins of this world client {', '.join(empty)} trains on nothing.",
            next_step="Use more images for each client, or a lower coins.apart.",
        )
    return ClientSplit(*(tuple(part.numpy() for part in parts) for parts in (train, slots.apart)))
