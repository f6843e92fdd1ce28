"""An interrupted federation that goes on is the one that was never interrupted."""

import pytest
import torch
from torch import nn

from fedre_privacy.core.errors import DamagedInputError
from fedre_privacy.core.files import read_tensors, write_tensors
from fedre_privacy.federation import checkpoint, loop
from fedre_privacy.protocols.base import Protocol, protocols

ROUNDS = 4


class TwoModules(Protocol):
    """Keeps a second module at every client, with dropout."""

    def start_client(self, client, setting):
        client.memory["peer"] = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 4))

    def modules(self, client):
        return client.model, client.memory["peer"]

    def loss(self, client, images, labels, message):
        own = nn.functional.cross_entropy(client.memory["peer"](images), labels)
        return own + super().loss(client, images, labels, message)

    def logits(self, client, images):
        return client.model(images) + client.memory["peer"](images)


def _protocol(name):
    return TwoModules() if name == "two modules" else protocols.get(name)()


class Stop:
    """Interrupt after a round's report, or in its middle: trained, but neither sent nor saved."""

    def __init__(self, fed, round, moment):
        self.fed, self.round, self.moment = fed, round, moment

    def report(self, event):
        if self.moment == "after" and event.data["round"] == self.round:
            raise KeyboardInterrupt

    def keep(self, round, clients, emissions):
        self.fed.keep(round, clients, emissions)
        if self.moment == "within" and round == self.round:
            raise KeyboardInterrupt


def _assert_equal(one, other):
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


def _outcome(fed, rows):
    uploads = {p.name: p.read_bytes() for p in (fed.folder / "uploads").iterdir()}
    return [{**row, "wall_s": 0} for row in rows], uploads


@pytest.mark.parametrize(
    ("round", "moment"), [(1, "after"), (2, "after"), (1, "within"), (3, "within")]
)
@pytest.mark.parametrize(
    "name", ["fedre", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fedgh", "two modules"))]
)
def test_resuming_changes_nothing(federation, monkeypatch, name, round, moment):
    options = {"rounds": ROUNDS, "join_ratio": 0.67, "eval_every": 2}
    whole = federation(_protocol(name), **options)
    rows = whole.run()
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    stopped = federation(_protocol(name), **options)
    stop = Stop(stopped, round, moment)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(report=stop.report, keep=stop.keep)
    torch.rand(3)
    resumed = federation(_protocol(name), folder=stopped.folder, **options)
    seen = []
    again = resumed.run(resume=True, on_row=lambda rows: seen.append(len(rows)))
    first_again = round + (moment == "after")
    assert seen == list(range(first_again, ROUNDS + 1))  # earlier rounds are not trained again
    assert _outcome(resumed, again) == _outcome(whole, rows)
    _assert_equal(whole.state(), resumed.state())
    for r, models in resumed.kept.items():  # idle clients too hold what they held
        for one, other in zip(models, whole.kept[r], strict=True):
            _assert_equal(one.state_dict(), other.state_dict())


def test_resuming_without_a_checkpoint_begins_anew(federation):
    whole = federation(protocols.get("fedre")())
    rows = whole.run()
    stopped = federation(protocols.get("fedre")())
    with pytest.raises(KeyboardInterrupt):
        stopped.run(report=Stop(stopped, 1, "after").report)
    assert not (stopped.folder / "checkpoints").exists()  # ten seconds had not passed
    resumed = federation(protocols.get("fedre")(), folder=stopped.folder)
    assert _outcome(resumed, resumed.run(resume=True)) == _outcome(whole, rows)


def test_without_resume_a_checkpoint_is_not_read(federation, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    fed = federation(protocols.get("fedre")())
    fed.run()
    assert (fed.folder / "checkpoints" / checkpoint.FILE).is_file()
    afresh = federation(protocols.get("fedre")(), folder=fed.folder)
    assert [row["round"] for row in afresh.run()] == [1, 2]


def test_a_checkpoint_holds_buffers_and_metrics(federation):
    fed = federation(TwoModules())
    fed.clients[1].model.extractor.backbone[2].running_mean.fill_(0.125)
    rows = [{"round": 1, "loss": 0.1 + 0.2, "acc_post_local": None}]
    checkpoint.save(fed.folder, fed.clients, fed.server, round=1, metrics=rows)
    other = federation(TwoModules(), seed=5)
    assert checkpoint.load(fed.folder, other.clients, other.server) == (1, rows)
    one, two = fed.state(), other.state()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert checkpoint.load(fed.folder / "nowhere", other.clients, other.server) is None


def test_damaged_or_foreign_checkpoints_are_refused(federation):
    fed = federation(protocols.get("fedre")())
    checkpoint.save(fed.folder, fed.clients, fed.server, round=1, metrics=[{"round": 1}])
    more = federation(protocols.get("fedre")(), sizes=(8, 8, 8, 8))
    with pytest.raises(DamagedInputError, match="does not fit this run"):
        checkpoint.load(fed.folder, more.clients, more.server)
    path = fed.folder / checkpoint.FILE
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DamagedInputError, match=checkpoint.FILE):
        checkpoint.load(fed.folder, fed.clients, fed.server)


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"round": "1"},
        {"round": "1", "metrics": "[{"},
        {"round": "1", "metrics": "[]"},
        {"round": "1", "metrics": "[1]"},
        {"round": "one", "metrics": '[{"round": 1}]'},
        {"round": "7", "metrics": '[{"round": 1}]'},
    ],
)
def test_a_checkpoint_that_tells_no_round_is_refused(federation, meta):
    fed = federation(protocols.get("fedre")())
    checkpoint.save(fed.folder, fed.clients, fed.server, round=1, metrics=[{"round": 1}])
    path = fed.folder / checkpoint.FILE
    write_tensors(path, read_tensors(path), metadata=meta)
    with pytest.raises(DamagedInputError, match=checkpoint.FILE):
        checkpoint.load(fed.folder, fed.clients, fed.server)


@pytest.mark.parametrize("round", ["2", "-1", str(2**62), "9" * 5000, "one"])
def test_a_round_that_the_metrics_do_not_tell_of_is_refused(tmp_path, round):
    path = tmp_path / "state.safetensors"
    meta = {"round": round, "metrics": '[{"round": 1}]'}
    write_tensors(path, {"x": torch.zeros(1)}, metadata=meta)
    with pytest.raises(DamagedInputError, match="no checkpoint of this version"):
        checkpoint._read_progress(path)
