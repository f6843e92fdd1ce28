"""FedPFT and FedCGS against their formulas, written out without the code that they check."""

import copy

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.errors import DivergedError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.triangles import pack, unpack
from fedre_privacy.federation.ledger import measure
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.blocks.class_statistics import drawn_from, mixture_statistics
from fedre_privacy.protocols.blocks.traffic import Sizes
from fedre_privacy.protocols.fedcgs import _discriminant

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def represented(client):
    """Representations of a client's training samples one by one, float64, and their classes."""
    with torch.no_grad():
        rows = [
            client.model.eval().extractor(image[None].float() / 255)[0].double()
            for image in client.train.images
        ]
    return torch.stack(rows), client.train.labels.tolist()


def statistics_by_hand(reps, labels):
    """Of each class: its mean, its covariance divided by n, and n, by sums over samples."""
    out = {}
    for label in sorted(set(labels)):
        own = [row for row, y in zip(reps, labels, strict=True) if y == label]
        mean = sum(own) / len(own)
        covariance = sum(torch.outer(row - mean, row - mean) for row in own) / len(own)
        out[label] = (mean, covariance, len(own))
    return out


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_fedpft_sends_counts_means_and_covariances(federation, precision):
    fed = federation(protocols.get("fedpft")(precision=precision), rounds=1)
    before = [copy.deepcopy(client.model.state_dict()) for client in fed.clients]
    fed.run()
    near = CLOSE if precision == "float32" else {"rtol": 2e-3, "atol": 1e-4}
    for client, start, upload in zip(fed.clients, before, fed.uploads(1), strict=True):
        (sent,) = upload.artifacts
        expected = {k: v for k, v in statistics_by_hand(*represented(client)).items() if v[2] > 1}
        assert isinstance(sent, ClassStatistics) and sent.labels.tolist() == list(expected)
        assert sent.counts.tolist() == [n for *_, n in expected.values()]
        dim = sent.means.shape[1]
        for row, (mean, covariance, _) in enumerate(expected.values()):
            torch.testing.assert_close(sent.means[row].double(), mean, **near)
            covariance = covariance + 1e-6 * torch.eye(dim, dtype=torch.float64)
            found = unpack(sent.spread["full"][row].double(), dim)
            torch.testing.assert_close(found, covariance, **near)
        for name, value in client.model.extractor.state_dict().items():
            assert torch.equal(value, start[f"extractor.{name}"]), "the extractor is public"


def test_fedpft_trains_a_fresh_head_on_what_it_draws(federation):
    fed = federation(protocols.get("fedpft")(), rounds=1)
    head = copy.deepcopy(fed.server.modules["fresh"])
    fed.run()
    rng = stream(0, "server", round=1)
    drawn = [drawn_from(upload.artifacts[0], rng) for upload in fed.uploads(1)]
    reps, labels = (torch.cat([one[k] for one in drawn]) for k in (0, 1))
    moving = [torch.zeros_like(p) for p in head.parameters()]
    for _ in range(50):
        for batch in torch.randperm(len(labels), generator=rng).split(128):
            logits = head(reps[batch])
            picked = logits[torch.arange(len(batch)), labels[batch]]
            loss = (logits.exp().sum(1).log() - picked).mean()
            for place, (p, g) in enumerate(
                zip(head.parameters(), torch.autograd.grad(loss, head.parameters()), strict=True)
            ):
                moving[place] = 0.9 * moving[place] + g
                p.data -= 0.01 * moving[place]
    (sent,) = fed.broadcasts(2)[0].artifacts
    torch.testing.assert_close(sent.params["weight"], head.weight.data, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(sent.params["bias"], head.bias.data, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "form, named", [("full", "full"), ("diagonal", "diag"), ("spherical",) * 2]
)
def test_a_mixture_is_that_of_scikit_learn(form, named):
    rng = torch.Generator().manual_seed(3)
    reps = torch.randn(40, 5, generator=rng) + 6 * (torch.arange(40) % 2)[:, None]
    labels = torch.tensor([0] * 38 + [1] * 2)
    made = mixture_statistics(reps, labels, 2, form, torch.Generator().manual_seed(4))
    seed = int(torch.randint(2**31 - 1, (1,), generator=torch.Generator().manual_seed(4)))
    fit = GaussianMixture(
        2, covariance_type=named, tol=1e-12, max_iter=10_000, random_state=seed
    ).fit(reps[:38].double().numpy())
    sent = made.artifact
    assert sent.labels.tolist() == [0, 0], "two images are no more than two components"
    np.testing.assert_allclose(sent.means, fit.means_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(sent.counts, 38 * fit.weights_, rtol=1e-3)
    spread = sent.spread[form].double()
    found = unpack(spread, 5) if form == "full" else spread
    np.testing.assert_allclose(found, fit.covariances_, rtol=1e-3, atol=1e-4)
    weights = torch.zeros(2, 40).index_put_(
        (made.mixture.row, made.mixture.sample), made.mixture.weight
    )
    torch.testing.assert_close(weights @ reps, sent.means, rtol=1e-3, atol=1e-3)


def test_draws_have_the_statistics_that_were_sent():
    rng = torch.Generator().manual_seed(0)
    root = torch.randn(3, 3, generator=rng)
    sent = ClassStatistics(
        torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([20_000]), torch.tensor([7]),
        {"full": pack(root @ root.T)[None]},
    )  # fmt: skip
    reps, labels = drawn_from(sent, rng)
    assert labels.tolist() == [7] * 20_000
    torch.testing.assert_close(reps.mean(0), sent.means[0], rtol=0.05, atol=0.05)
    torch.testing.assert_close(torch.cov(reps.T), root @ root.T, rtol=0.1, atol=0.1)


def test_fedcgs_is_the_linear_discriminant_of_all_samples(federation):
    """By samples, as if all clients' were in one place: nothing is lost by sending sums."""
    fed = federation(protocols.get("fedcgs")(ridge=0.1), rounds=1)
    fed.run()
    pairs = [represented(client) for client in fed.clients]
    reps, labels = torch.cat([r for r, _ in pairs]), [y for _, own in pairs for y in own]
    total = len(labels)
    mean = sum(reps) / total
    covariance = sum(torch.outer(row - mean, row - mean) for row in reps) / (total - 1)
    covariance = covariance + 0.1 * torch.eye(len(mean), dtype=torch.float64)
    (sent,) = fed.broadcasts(2)[0].artifacts
    for label, (own, _, count) in statistics_by_hand(reps, labels).items():
        weight = torch.linalg.solve(covariance, own)
        bias = np.log(count / total) - float(weight @ own) / 2
        torch.testing.assert_close(
            sent.params["weight"][label].double(), weight, rtol=1e-3, atol=1e-3
        )
        assert float(sent.params["bias"][label]) == pytest.approx(bias, rel=1e-3, abs=1e-3)
    for client, upload in zip(fed.clients, fed.uploads(1), strict=True):
        (statistics,) = upload.artifacts
        own, classes = represented(client)
        moment = sum(torch.outer(row, row) for row in own) / len(own)
        torch.testing.assert_close(statistics.spread["moment"].double(), moment, **CLOSE)
        assert int(statistics.counts.sum()) == len(classes)


@pytest.mark.parametrize("name, settings", [
    ("fedcgs", {}),
    ("fedpft", {}),
    ("fedpft", {"covariance": "diagonal", "precision": "float32"}),
    ("fedpft", {"covariance": "spherical", "components": 2}),
])  # fmt: skip
def test_traffic_to_the_scalar(federation, name, settings):
    protocol = protocols.get(name)(**settings)
    fed = federation(protocol, rounds=1)
    fed.run()
    counts = [torch.bincount(c.train.labels, minlength=4).tolist() for c in fed.clients]
    d = fed.uploads(1)[0].artifacts[0].means.shape[1]
    if name == "fedcgs":
        pairs = sum(n > 0 for own in counts for n in own)
        paper, integers = pairs * d + len(counts) * d * d, 2 * pairs
        size = 4 * paper + 8 * integers
    else:
        k = settings.get("components", 1)
        rows = k * sum(n > k for own in counts for n in own)
        each = {"full": d * (d + 1) // 2, "diagonal": d, "spherical": 1}
        paper, integers = rows * (d + each[settings.get("covariance", "full")]), 2 * rows
        width = 4 if settings.get("precision") == "float32" else 2
        size = width * paper + (8 * integers if k == 1 else 8 * rows + 4 * rows)
    sent = measure((u.artifacts, 1) for u in fed.uploads(1))
    assert (sent.scalars_paper, sent.scalars_complete, sent.nbytes) == (
        paper,
        paper + integers,
        size,
    )
    said = protocol.traffic(Sizes.of(counts, dim=d)).up
    assert (said.paper, said.complete, said.nbytes) == (paper, paper + integers, size)


def test_fewer_images_than_dimensions_leave_a_head_that_float32_does_not_move():
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(100) % 5
    centres = torch.randn(5, 512, generator=rng, dtype=torch.float64)
    noise = torch.randn(100, 512, generator=rng, dtype=torch.float64)
    reps = (centres[labels] + noise).clamp(min=0)
    sums = torch.zeros(5, 512, dtype=torch.float64).index_add_(0, labels, reps)
    numbers, moment = torch.bincount(labels).double(), reps.T @ reps
    exact, _ = _discriminant(sums, numbers, moment, 0.0)
    sent, _ = _discriminant(sums.float().double(), numbers, moment.float().double(), 0.0)
    assert float((sent - exact).norm() / exact.norm()) < 0.05


def test_statistics_too_large_for_float16_are_refused(federation):
    fed = federation(protocols.get("fedpft")(), rounds=1)
    for client in fed.clients:
        with torch.no_grad():
            for parameter in client.model.extractor.parameters():
                parameter.mul_(1e4)
    with pytest.raises(DivergedError, match="too large for float16"):
        fed.run()
