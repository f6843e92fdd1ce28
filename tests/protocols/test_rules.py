"""Rules that hold for every protocol, built in or not."""

import pytest
import torch
from torch import nn

from fedre_privacy.core.artifacts import HeadState
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Emission
from fedre_privacy.federation import loop
from fedre_privacy.models.split import load_parameters, parameters_of
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.protocols.blocks import shared_head
from fedre_privacy.protocols.blocks.state import Training, only_artifact


class LgFedAvg(Protocol):
    """What a user would write: average the heads."""

    uploads = (HeadState,)
    start_server = shared_head.start_server
    broadcast = shared_head.broadcast
    receive = shared_head.receive

    def upload(self, client, task):
        return (Emission(HeadState(parameters_of(client.model.head))),)

    def aggregate(self, server, uploads, task):
        states = [only_artifact(upload.artifacts, HeadState).params for upload in uploads]
        mean = {name: sum(s[name] for s in states) / len(states) for name in states[0]}
        load_parameters(server.modules["head"], mean)


class Rogue(LgFedAvg):
    """Declares nothing and sends its head all the same."""

    name = "rogue"
    uploads = ()


def test_a_protocol_of_ones_own_runs(federation):
    fed = federation(LgFedAvg(), rounds=3, join_ratio=0.7)
    rows = fed.run()
    assert len(rows) == 3
    for round in (1, 2, 3):
        sent = [upload.artifacts[0].params for upload in fed.uploads(round)]
        (broadcast,) = fed.broadcasts(round + 1)
        for name in ("weight", "bias"):
            mean = torch.stack([params[name] for params in sent]).mean(0)
            torch.testing.assert_close(broadcast.artifacts[0].params[name], mean)
    assert rows[0]["up_scalars"] == rows[0]["up_scalars_paper"] == 2 * 4 * (6 + 1)
    head = fed.server.modules["head"].state_dict()
    for client in fed.clients:
        torch.testing.assert_close(client.model.head.state_dict(), head, rtol=0, atol=0)


def test_uploading_what_was_not_declared_is_refused(federation):
    fed = federation(Rogue())
    with pytest.raises(IncompatibleError) as refused:
        fed.run()
    assert "'rogue' uploaded HeadState but declares nothing" in str(refused.value)
    assert not (fed.folder / "uploads").exists()


@pytest.mark.parametrize("name", ["fedre", "fedgh", "fedallrep", "local"])
def test_only_selected_clients_train_and_upload(federation, name):
    fed = federation(protocols.get(name)(), rounds=1, join_ratio=0.67)
    before = fed.state()
    (row,) = fed.run()
    chosen = loop.select(fed.training, 1)
    (idle,) = set(range(3)) - set(chosen)
    assert row["clients"] == len(chosen) == 2
    assert [upload.client for upload in fed.uploads(1)] == list(chosen)
    assert fed.broadcasts(1)[0].recipients == chosen
    for key, value in fed.state().items():
        if key.startswith(f"{idle}/model/extractor"):
            assert torch.equal(value, before[key]), key
    trained = f"{chosen[0]}/model/extractor.backbone.1.weight"
    assert not torch.equal(fed.state()[trained], before[trained])
    if name != "local":  # after the last round everybody gets the head
        head = fed.state()["server/head/weight"]
        assert torch.equal(fed.clients[idle].model.head.weight, head)
    else:
        own = f"{idle}/model/head.weight"
        assert torch.equal(fed.state()[own], before[own])


def test_a_client_that_sits_out_keeps_the_head_it_had(federation):
    fed = federation(protocols.get("fedgh")(), rounds=4, join_ratio=0.34, seed=1)
    initial = [client.model.head.weight.detach().clone() for client in fed.clients]
    fed.run()
    chosen = [loop.select(fed.training, r) for r in range(1, 5)]
    assert chosen == [(2,), (2,), (0,), (1,)]  # so that client 2 waits for two rounds
    assert [fed.broadcasts(r)[0].recipients for r in range(1, 5)] == chosen
    head = {(k, r): fed.kept[r][k].head.weight for k in range(3) for r in range(1, 5)}
    assert torch.equal(head[2, 4], head[2, 2]) and torch.equal(head[2, 3], head[2, 2])
    assert not torch.equal(head[2, 2], head[2, 1])
    assert torch.equal(head[0, 4], head[0, 3]) and torch.equal(head[0, 2], initial[0])
    assert torch.equal(head[1, 3], initial[1]) and not torch.equal(head[1, 4], initial[1])
    last = fed.server.modules["head"].weight
    assert all(torch.equal(client.model.head.weight, last) for client in fed.clients)


def test_select_takes_the_floor_and_at_least_one():
    def count(ratio, clients=10):
        return len(loop.select(Training(clients=clients, join_ratio=ratio), 1))

    assert [count(r) for r in (0.05, 0.1, 0.19, 0.3, 0.7, 0.99, 1.0)] == [1, 1, 1, 3, 7, 9, 10]
    assert [count(r, 100) for r in (0.29, 0.57, 0.58)] == [29, 57, 58]  # 0.29 * 100 is 28.99...
    assert loop.select(Training(clients=10), 1) == tuple(range(10))
    some = Training(clients=10, join_ratio=0.5)
    drawn = [loop.select(some, r) for r in range(1, 9)]
    assert all(list(d) == sorted(set(d)) and set(d) <= set(range(10)) for d in drawn)
    assert len(set(drawn)) > 4 and set().union(*drawn) == set(range(10))


class CountsBatches(Protocol):
    """Remembers the batches that each client trained on."""

    def __init__(self):
        object.__setattr__(self, "seen", {})

    def loss(self, client, images, labels, message):
        self.seen.setdefault(client.id, []).append(len(labels))
        return super().loss(client, images, labels, message)


def test_a_small_client_trains_on_one_batch(federation):
    fed = federation(CountsBatches(), rounds=1, sizes=(24, 20, 5), epochs=2)
    before = fed.state()
    fed.run()
    assert fed.protocol.seen == {0: [8, 8, 8] * 2, 1: [8, 8] * 2, 2: [5] * 2}
    weight = "2/model/head.weight"
    assert not torch.equal(before[weight], fed.state()[weight])


class TwoModules(Protocol):
    """Trains a second module that the client keeps, and predicts with it."""

    def start_client(self, client, setting):
        client.memory["peer"] = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 4))

    def modules(self, client):
        return client.model, client.memory["peer"]

    def loss(self, client, images, labels, message):
        own = nn.functional.cross_entropy(client.memory["peer"](images), labels)
        return own + super().loss(client, images, labels, message)

    def logits(self, client, images):
        return client.memory["peer"](images)


def test_what_a_client_keeps_is_trained_and_evaluated_in_eval_mode(federation):
    fed = federation(TwoModules(), rounds=1, join_ratio=0.34)
    before = fed.state()
    (row,) = fed.run()
    (chosen,) = loop.select(fed.training, 1)
    for k, client in enumerate(fed.clients):
        key = f"{k}/peer/2.weight"
        assert torch.equal(before[key], fed.state()[key]) == (k != chosen)
        assert not client.memory["peer"].training  # also where it never trained: no dropout
    hits = [
        (c.memory["peer"](c.test.images.float() / 255).argmax(1) == c.test.labels).float().mean()
        for c in fed.clients
    ]
    assert row["acc_post_local"] == pytest.approx(float(sum(hits)) / 3)
