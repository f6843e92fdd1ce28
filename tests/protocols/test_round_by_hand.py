"""One whole round of every protocol against a plain loop that shares no code with it."""

import copy

import pytest
import torch

from fedre_privacy.core.artifacts import HeadState
from fedre_privacy.core.rng import stream
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.blocks.state import client_secret

CLASSES = range(4)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def train_by_hand(model, samples, *, lr, batch_size, order):
    """Plain SGD on the mean hard cross-entropy; returns the mean loss of the batches."""
    model.train()
    size = min(batch_size, len(samples))
    losses = []
    for first in range(0, len(order) - size + 1, size):
        total = 0.0
        batch = order[first : first + size]
        images = samples.images[batch].float() / 255
        logits = model.head(model.extractor(images))
        for row, label in zip(logits, samples.labels[batch].tolist(), strict=True):
            total = total - (row[label] - row.exp().sum().log())
        loss = total / size
        parameters = list(model.parameters())
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.data -= lr * gradient
        losses.append(float(loss.detach()))
    model.eval()
    return sum(losses) / len(losses)


def pairs_by_hand(name, model, samples, client):
    """What a client should upload: vectors, each with the weight of every class."""
    with torch.no_grad():
        reps = [model.extractor(image[None].float() / 255)[0] for image in samples.images]
    labels = samples.labels.tolist()
    if name == "fedallrep":
        return [(rep, {label: 1.0}) for rep, label in zip(reps, labels, strict=True)]
    members = {c: [r for r, y in zip(reps, labels, strict=True) if y == c] for c in CLASSES}
    means = {c: sum(own) / len(own) for c, own in members.items() if own}
    if name == "fedgh":
        return [(mean, {c: 1.0}) for c, mean in means.items()]
    seed = client_secret(samples.fingerprint(), 0, client)
    drawn = torch.rand(
        4, generator=stream(seed, "entangle", client=client, round=1), dtype=torch.float64
    ).tolist()
    total = sum(drawn[c] for c in means)
    weights = {c: drawn[c] / total for c in means}
    return [(sum(weights[c] * mean for c, mean in means.items()), weights)]


def train_head_by_hand(head, pairs, *, lr, batch_size, mean):
    """SGD on the weighted sum of hard cross-entropies."""
    order = torch.randperm(len(pairs), generator=stream(0, "server", round=1)).tolist()
    for first in range(0, len(pairs), batch_size):
        batch = [pairs[i] for i in order[first : first + batch_size]]
        loss = 0.0
        for rep, weights in batch:
            row = head(rep)
            for label, weight in weights.items():
                loss = loss - weight * (row[label] - row.exp().sum().log())
        loss = loss / len(batch) if mean else loss
        gradients = torch.autograd.grad(loss, [head.weight, head.bias])
        head.weight.data -= lr * gradients[0]
        head.bias.data -= lr * gradients[1]


def accuracies_by_hand(models, clients):
    shares = []
    for model, client in zip(models, clients, strict=True):
        hits = 0
        for image, label in zip(client.test.images, client.test.labels, strict=True):
            with torch.no_grad():
                hits += int(model(image[None].float() / 255)[0].argmax()) == int(label)
        shares.append((hits, len(client.test)))
    macro = sum(hits / n for hits, n in shares) / len(shares)
    return macro, sum(hits for hits, _ in shares) / sum(n for _, n in shares)


@pytest.mark.parametrize("name", ["fedre", "fedgh", "fedallrep", "local"])
def test_a_round_equals_the_plain_loop(name, federation):
    fed = federation(protocols.get(name)(), rounds=1, dropout=0.0)
    clients, lr = fed.clients, fed.training.lr
    models = [copy.deepcopy(client.model) for client in clients]
    head = copy.deepcopy(fed.server.modules.get("head"))
    rows = fed.run()

    losses, pairs = [], []
    for client, model in zip(clients, models, strict=True):
        if head is not None:
            model.head.load_state_dict(head.state_dict())
        order = torch.randperm(
            len(client.train), generator=stream(0, "batches", client=client.id, round=1)
        )
        losses.append(train_by_hand(model, client.train, lr=lr, batch_size=8, order=order))
        if name != "local":
            pairs.append(pairs_by_hand(name, model, client.train, client.id))
    assert rows[0]["loss"] == pytest.approx(sum(losses) / 3, rel=1e-4)
    macro, pooled = accuracies_by_hand(models, clients)
    assert rows[0]["acc_post_local"] == pytest.approx(macro)
    assert rows[0]["acc_post_local_pooled"] == pytest.approx(pooled)

    for upload, own in zip(fed.uploads(1), pairs, strict=name != "local"):
        (artifact,) = upload.artifacts
        expected = torch.zeros(len(own), 4)
        for i, (_, weights) in enumerate(own):
            for label, weight in weights.items():
                expected[i, label] = weight
        torch.testing.assert_close(artifact.rows(), torch.stack([r for r, _ in own]), **CLOSE)
        torch.testing.assert_close(artifact.encodings(4), expected)

    if head is not None:
        flat = [pair for own in pairs for pair in own]
        train_head_by_hand(head, flat, lr=0.01, batch_size=10, mean=name != "fedallrep")
        (sent,) = fed.broadcasts(2)[0].artifacts
        assert isinstance(sent, HeadState) and fed.broadcasts(2)[0].recipients == (0, 1, 2)
        torch.testing.assert_close(sent.params["weight"], head.weight.data, **CLOSE)
        torch.testing.assert_close(sent.params["bias"], head.bias.data, **CLOSE)
        for model in models:
            model.head.load_state_dict(head.state_dict())
    for model, client in zip(models, clients, strict=True):
        torch.testing.assert_close(client.model.state_dict(), model.state_dict(), **CLOSE)
    macro, pooled = accuracies_by_hand(models, clients)
    assert rows[0]["acc_post_broadcast"] == pytest.approx(macro)
    assert rows[0]["acc_post_broadcast_pooled"] == pytest.approx(pooled)
