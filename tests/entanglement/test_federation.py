"""Whole small federations under every scheme, and what happens where a client refuses."""

import copy
import math

import pytest
import torch

from fedre_privacy.core.artifacts import HeadState
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.federation import loop
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.blocks.state import Samples, Task

DIM, CLASSES = 6, 4


def fedre(name, base=None, **settings):
    given = settings if base is None else {"base": base, **settings}
    return protocols.get("fedre")(entanglement=schemes.get(name)(**given))


def with_a_single_class(fed):
    """Client 2 holds class 1 only."""
    own = fed.clients[2].train
    fed.clients[2].train = Samples(own.images, torch.ones_like(own.labels))
    return fed


OFTEN = ("decoy", "fixed", "rap")


@pytest.mark.parametrize(
    "name",
    [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in schemes.names()],
)
def test_every_scheme_learns(federation, name):
    fed = federation(fedre(name), rounds=6, epochs=4, dropout=0.0)
    rows = fed.run()
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    sent = sum(len(u.artifacts) for r in range(1, 7) for u in fed.uploads(r))
    assert sum(row["up_scalars"] for row in rows) == sent * (DIM + CLASSES) > 0
    assert sum(row["up_scalars_paper"] for row in rows) == sent * DIM
    heads = [b.artifacts[0].params["weight"] for b in (fed.broadcasts(1)[0], fed.broadcasts(7)[0])]
    assert not torch.equal(*heads)


def test_the_server_goes_on_without_a_client_that_refuses(federation):
    fed = with_a_single_class(federation(fedre("refuse-single"), rounds=2))
    server = copy.deepcopy(fed.server)
    rows = fed.run()
    for row, round in zip(rows, (1, 2), strict=True):
        assert [len(u.artifacts) for u in fed.uploads(round)] == [1, 1, 0]
        assert row["up_scalars"] == 2 * (DIM + CLASSES) and row["clients"] == 3
        assert len(fed.broadcasts(round)[0].recipients) == 3  # it receives all the same
        assert fed.emissions[round][2] == ()
    with seeded_generators(fed.training.seed, "server", round=1):
        fed.protocol.aggregate(server, fed.uploads(1)[:2], Task(fed.setting, 1))
    (head,) = fed.broadcasts(2)[0].artifacts
    assert isinstance(head, HeadState)
    for name, value in server.modules["head"].state_dict().items():
        assert torch.equal(head.params[name], value)


def test_a_federation_in_which_everyone_refuses_trains_locally(federation):
    fed = federation(fedre("min-count", min_count=1000), rounds=3)
    rows = fed.run()
    assert [row["up_scalars"] for row in rows] == [0, 0, 0]
    assert all(math.isfinite(row["loss"]) for row in rows)
    first, last = (fed.broadcasts(r)[0].artifacts[0].params for r in (1, 4))
    assert all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize(
    ("name", "base"), [("refuse-single", None), ("slow", None), ("quantised", "decoy")]
)
def test_resuming_changes_nothing(federation, monkeypatch, name, base):
    protocol = fedre(name, base and schemes.get(base)())
    whole = with_a_single_class(federation(protocol, rounds=4))
    rows = whole.run()
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    stopped = with_a_single_class(federation(protocol, rounds=4))

    def stop(event):
        if event.data["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.run(report=stop)
    resumed = with_a_single_class(federation(protocol, rounds=4, folder=stopped.folder))
    again = resumed.run(resume=True)
    assert [{**row, "wall_s": 0} for row in again] == [{**row, "wall_s": 0} for row in rows]
    for one in (whole.folder / "uploads").iterdir():
        assert one.read_bytes() == (resumed.folder / "uploads" / one.name).read_bytes()


def test_decoys_are_in_the_upload_and_not_in_the_record_of_samples(federation):
    fed = federation(fedre("decoy"), rounds=1)
    fed.run()
    for upload in fed.uploads(1):
        (pair,), (emission,) = upload.artifacts, fed.emissions[1][upload.client]
        labels = fed.clients[upload.client].train.labels
        absent = torch.bincount(labels, minlength=CLASSES) == 0
        assert bool((pair.encoding[absent] > 0).all()) and int(absent.sum()) == 1
        total = float(emission.mixture.weight.sum())
        assert (
            total == pytest.approx(1 - float(pair.encoding[absent].sum()), abs=1e-6) and total < 1
        )
