"""FedSGD: the gradient of one batch, where it came from, and what the server makes of it."""

import pytest
import torch
from torch.nn import functional as F

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def _start(fed, client):
    """The client's model as broadcast for round 1, with its own buffers."""
    model = fed.kept[1][client].model
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.data, fed.sent(1, client)[0].params[name])
        parameter.grad = None
    return model


def test_a_round_by_hand(world):
    fed = world("fedsgd", train={"rounds": 1, "batch_size": 8}, per_class=7)
    fed.run()
    sizes = [len(client.train) for client in fed.clients]
    assert len(set(sizes)) > 1 and min(sizes) >= 16
    total = {name: 0.0 for name in fed.sent(1, 0)[0].params}
    for k, client in enumerate(fed.clients):
        model = _start(fed, k)
        order = torch.randperm(sizes[k], generator=stream(0, "batches", client=k, round=1))
        batch = order[:8]
        rows = model(client.train.images[batch].float() / 255)
        labels = client.train.labels[batch]
        loss = sum(r.exp().sum().log() - r[y] for r, y in zip(rows, labels, strict=True)) / 8
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        (sent,) = fed.uploads(1)[k].artifacts
        assert list(sent.params) == [name for name, _ in model.named_parameters()]
        for (name, value), gradient in zip(sent.params.items(), gradients, strict=True):
            torch.testing.assert_close(value, gradient, **CLOSE)
            total[name] = total[name] + sizes[k] / sum(sizes) * gradient
        (emission,) = fed.emissions[1][k]
        mixture = emission.mixture
        assert mixture.num_rows == 1 and not mixture.row.any()
        assert mixture.sample.tolist() == sorted(batch.tolist())
        assert mixture.weight.tolist() == pytest.approx([1 / 8] * 8)
        assert all(p.grad is None for p in client.model.parameters())
    for name, value in fed.sent(2, 0)[0].params.items():
        expected = fed.sent(1, 0)[0].params[name] - 0.1 * total[name]
        torch.testing.assert_close(value, expected, **CLOSE)


def test_one_client_with_all_its_samples_takes_one_sgd_step(world):
    train = {"clients": 1, "rounds": 2, "batch_size": 1000}
    one, other = (world(name, train=train) for name in ("fedsgd", "fedavg"))
    first, second = one.run(), other.run()
    for mine, theirs in zip(first, second, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    for round in (2, 3):
        sent, expected = dict(one.sent(round, 0)[0].params), dict(other.sent(round, 0)[0].params)
        torch.testing.assert_close(sent, expected, rtol=1e-4, atol=1e-6)
        assert not torch.equal(sent["head.bias"], one.sent(1, 0)[0].params["head.bias"])


def test_batchnorm_is_in_train_mode_and_its_statistics_stay(world):
    fed = world("fedsgd", models="resnet4", train={"rounds": 1})
    fed.run()
    means = []
    for k, client in enumerate(fed.clients):
        model = _start(fed, k).train()
        batch = fed.emissions[1][k][0].mixture.sample
        images, labels = client.train.batch(batch)
        gradients = torch.autograd.grad(
            F.cross_entropy(model(images), labels), list(model.parameters())
        )
        (sent,) = fed.uploads(1)[k].artifacts
        assert not any("running" in name for name in sent.params)
        for value, gradient in zip(sent.params.values(), gradients, strict=True):
            torch.testing.assert_close(value, gradient, rtol=1e-3, atol=1e-5)
        found = [v for n, v in client.model.state_dict().items() if n.endswith("running_mean")]
        means.append(torch.cat(found))
    assert all(mean.abs().sum() > 0 for mean in means) and not torch.equal(means[0], means[1])
    server = fed.server.modules["model"].state_dict()
    assert not any(v.any() for n, v in server.items() if n.endswith("running_mean"))


def test_more_than_one_epoch_is_refused(world):
    with pytest.raises(IncompatibleError, match="train.epochs=2 has no meaning"):
        world("fedsgd", train={"epochs": 2})
