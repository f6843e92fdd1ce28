"""Which samples are asked about: as many members as others, each once, or a clear refusal."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.eval import PublicImages
from fedre_privacy.experiments.questions.candidates import FEWEST, draw_candidates


def source(copied: int = 0, held: int = 40, clients: int = 2, side: int = 8):
    """Random pictures of two classes; the first of the held-out ones may copy members.

    Every client trains on 40 and holds 20 more back.
    """
    count = clients * 60
    images = torch.randint(
        256, (count, 1, side, side), generator=stream(0, "pictures"), dtype=torch.uint8
    )
    labels = torch.arange(count) % 2
    train = [torch.arange(k * 60, k * 60 + 40) for k in range(clients)]
    test = [torch.arange(k * 60 + 40, k * 60 + 60) for k in range(clients)]
    images[test[0][:copied]] = images[train[0][:copied]]
    data = SimpleNamespace(
        images=images,
        labels=labels,
        num_classes=2,
        floats=lambda index: images[index].float() / 255,
    )
    whole = SimpleNamespace(
        data=data,
        train=train,
        test=test,
        clients=list(range(clients)),
        run=SimpleNamespace(settings=SimpleNamespace(coins=None)),
    )
    out = torch.cat(test)[:held]
    return whole, PublicImages(data.floats(out), labels[out])


def test_members_and_others_are_what_they_are_said_to_be():
    whole, public = source()
    asked = draw_candidates(whole, public, 100, 0)
    found = asked.candidates
    where = {image.numpy().tobytes(): i for i, image in enumerate(whole.data.images)}
    levels = (found.images * 255).round().to(torch.uint8)
    index = [where[image.numpy().tobytes()] for image in levels]
    owner = {i: k for k, own in enumerate(whole.train) for i in own.tolist()}
    for i, client, label, member in zip(
        index, found.clients.tolist(), found.labels.tolist(), asked.members.tolist(), strict=True
    ):
        assert whole.data.labels[i] == label
        assert (owner.get(i) == client) == member and (member or i not in owner)
    assert len(found) == 80 and bool((asked.class_sizes == 20).all())
    assert torch.equal(found.images, levels.float() / 255)


def test_copies_are_not_asked_about():
    whole, public = source(copied=12)
    asked = draw_candidates(whole, public, 100, 0)
    kept = {image.numpy().tobytes() for image in asked.candidates.images}
    assert len(kept) == len(asked.candidates) == 2 * (40 - 12)
    copied = whole.data.floats(whole.train[0][:12])
    assert not kept & {image.numpy().tobytes() for image in copied}


def test_a_limit_holds_per_client_and_seeds_differ():
    whole, public = source()
    asked = draw_candidates(whole, public, 10, 0)
    for client in (0, 1):
        mine = asked.candidates.clients == client
        assert int((mine & asked.members).sum()) == int((mine & ~asked.members).sum()) <= 10
    again, other = draw_candidates(whole, public, 10, 0), draw_candidates(whole, public, 10, 1)
    assert torch.equal(asked.candidates.images, again.candidates.images)
    assert not torch.equal(asked.members, other.members)


def test_others_are_dealt_evenly():
    whole, public = source(held=14)
    asked = draw_candidates(whole, public, 100, 0)
    shares = torch.bincount(asked.candidates.clients[~asked.members])
    assert int(shares.sum()) == 14 and int(shares.max() - shares.min()) <= 2


def test_too_few_are_refused():
    whole, public = source(held=FEWEST - 1)
    with pytest.raises(IncompatibleError, match="Only 5 training images can be compared"):
        draw_candidates(whole, public, 100, 0)
    whole, public = source(copied=20, held=20)
    with pytest.raises(IncompatibleError, match="Only 0 training images"):
        draw_candidates(whole, public, 100, 0)
