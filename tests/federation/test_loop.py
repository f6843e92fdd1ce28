"""When and how accuracy is measured, what a row holds, and what stops a federation."""

import math

import pytest
import torch

from fedre_privacy.core.errors import DivergedError
from fedre_privacy.federation.accuracy import evaluate
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.protocols.blocks.state import Samples


class Constant(Protocol):
    """Predicts class 1 for every image."""

    def logits(self, client, images):
        return torch.eye(4)[torch.ones(len(images)).long()]


def test_macro_and_micro_accuracy_are_the_plain_counts(federation):
    fed = federation(Constant())
    hits = [(client.test.labels == 1).sum().item() for client in fed.clients]
    counts = [len(client.test) for client in fed.clients]
    shares = [h / n for h, n in zip(hits, counts, strict=True)]
    assert len(set(counts)) == 3 and len(set(shares)) > 1
    found = evaluate(fed.protocol, fed.clients, fed.setting)
    mean = sum(shares) / 3
    assert found.per_client == pytest.approx(tuple(shares))
    assert found.mean_client == pytest.approx(mean)
    assert found.pooled == pytest.approx(sum(hits) / sum(counts))
    assert found.mean_client != pytest.approx(found.pooled)
    assert found.sd_client == pytest.approx(math.sqrt(sum((s - mean) ** 2 for s in shares) / 2))


def test_a_client_without_test_samples_is_left_out_of_the_mean(federation):
    fed = federation(Constant())
    client = fed.clients[1]
    client.test = Samples(client.test.images[:0], client.test.labels[:0])
    found = evaluate(fed.protocol, fed.clients, fed.setting)
    assert found.per_client[1] is None
    assert found.mean_client == pytest.approx((found.per_client[0] + found.per_client[2]) / 2)


def test_evaluation_changes_nothing_but_the_mode(federation):
    fed = federation(protocols.get("fedre")())
    before = fed.state()
    first = evaluate(fed.protocol, fed.clients, fed.setting)
    assert first == evaluate(fed.protocol, fed.clients, fed.setting)
    after = fed.state()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_rounds_between_evaluations_are_empty_and_the_last_is_always_measured(federation):
    fed = federation(protocols.get("fedre")(), rounds=5, eval_every=2)
    every = federation(protocols.get("fedre")(), rounds=5)
    rows, full = fed.run(), every.run()
    keys = [key for key in rows[0] if key.startswith("acc_post")]
    assert len(keys) == 6
    for row, measured in zip(rows, full, strict=True):
        if row["round"] in (2, 4, 5):
            assert [row[key] for key in keys] == [measured[key] for key in keys]
        else:
            assert [row[key] for key in keys] == [None] * 6
        assert row["loss"] == measured["loss"] and row["up_scalars"] > 0


def test_all_clients_are_tested_on_one_shared_set_where_it_is_due(federation):
    fed = federation(protocols.get("fedre")(), rounds=5, shared_every=2)
    shared = fed.clients[0].test
    for client in fed.clients:
        client.shared = shared
    rows = fed.run()
    for row in rows:
        due = row["round"] in (2, 4, 5)
        assert (row["acc_shared_post_broadcast"] is not None) == due
        assert (row["per_client_shared_post_local"] is not None) == due
    logits = [fed.protocol.logits(client, shared.batch(slice(None))[0]) for client in fed.clients]
    right = [float((own.argmax(1) == shared.labels).float().mean()) for own in logits]
    assert rows[-1]["per_client_shared_post_broadcast"] == pytest.approx(right)
    assert rows[-1]["acc_shared_post_broadcast"] == pytest.approx(sum(right) / len(right))
    assert rows[-1]["per_client_shared_post_broadcast"][0] == pytest.approx(
        rows[-1]["per_client_post_broadcast"][0]
    )


def test_without_a_shared_set_nothing_is_measured_on_it(federation):
    rows = federation(protocols.get("fedre")(), rounds=1).run()
    assert rows[-1]["acc_shared_post_broadcast"] is None and rows[-1]["acc_post_broadcast"]


def test_rows_are_handed_out_every_round(federation):
    seen, events = [], []
    fed = federation(protocols.get("fedre")(), rounds=3)
    rows = fed.run(on_row=lambda rows: seen.append(len(rows)), report=events.append)
    assert seen == [1, 2, 3]
    assert [event.data["round"] for event in events] == [1, 2, 3]
    assert [event.data["accuracy"] for event in events] == [r["acc_post_broadcast"] for r in rows]
    local = federation(protocols.get("local")(), rounds=1)
    (row,) = local.run(report=events.append)
    assert events[-1].data["accuracy"] == row["acc_post_local"]
    assert row["acc_post_local"] == row["acc_post_broadcast"]


def test_kept_models_are_those_that_made_the_uploads(federation):
    fed = federation(protocols.get("fedallrep")())
    fed.run()
    for round in (1, 2):
        for upload in fed.uploads(round):
            images = fed.clients[upload.client].train.images.float() / 255
            with torch.no_grad():
                reps = fed.kept[round][upload.client].extractor(images)
            torch.testing.assert_close(upload.artifacts[0].reps, reps)


@pytest.mark.parametrize("name", ["fedre", "local"])
def test_a_diverging_client_is_named(federation, name):
    fed = federation(protocols.get(name)(), lr=1e30)
    with pytest.raises(DivergedError) as stopped:
        fed.run()
    for part in ("the loss of client 0 in round 1 is nan", "lr 1e+30", "--set train.lr=0.06"):
        assert part in str(stopped.value)
    assert not (fed.folder / "uploads").exists()


class Explodes(protocols.get("fedallrep")):
    """Client 1's loss is as usual, but its one step leaves an infinite weight."""

    def loss(self, client, images, labels, message):
        weight = client.model.extractor.backbone[1].weight
        steep = 1e38 * (weight - weight.detach()).sum() if client.id == 1 else 0.0
        return super().loss(client, images, labels, message) + steep


def test_values_that_are_not_finite_are_not_uploaded(federation):
    fed = federation(Explodes(), batch_size=64, lr=10.0)
    with pytest.raises(DivergedError) as stopped:
        fed.run()
    assert "client 1 in round 1 is about to upload values that are not finite" in str(stopped.value)
    assert not (fed.folder / "uploads").exists()


class LosesItsHead(protocols.get("fedgh")):
    """A server whose training ends without a usable head."""

    def aggregate(self, server, uploads, task):
        super().aggregate(server, uploads, task)
        server.modules["head"].bias.data[0] = math.nan


def test_a_diverging_server_is_blamed_itself(federation):
    fed = federation(LosesItsHead(), rounds=1)
    with pytest.raises(DivergedError) as stopped:
        fed.run()
    assert "after round 1 the server" in str(stopped.value)
    assert "protocol.server.lr" in str(stopped.value)
