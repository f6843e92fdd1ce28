"""FedRE's own choices: how representations are mixed, and when weights are drawn."""

import pytest
import torch

from fedre_privacy.entanglement.base import schemes
from fedre_privacy.protocols.base import protocols


def _encodings(fed, rounds):
    return [[u.artifacts[0].encoding for u in fed.uploads(r)] for r in range(1, rounds + 1)]


def test_weights_drawn_once_stay_over_rounds(federation):
    fed = federation(protocols.get("fedre")(resample=False), rounds=3)
    fed.run()
    first, *others = _encodings(fed, 3)
    for encodings in others:
        assert all(torch.equal(a, b) for a, b in zip(first, encodings, strict=True))
    assert not torch.allclose(
        fed.uploads(1)[0].artifacts[0].rep, fed.uploads(3)[0].artifacts[0].rep
    )
    assert not torch.allclose(first[0].sort().values, first[1].sort().values)


def test_weights_drawn_every_round_change(federation):
    fed = federation(protocols.get("fedre")(), rounds=3)
    fed.run()
    for of_client in zip(*_encodings(fed, 3), strict=True):
        for a, b in ((0, 1), (1, 2), (0, 2)):
            assert not torch.allclose(of_client[a], of_client[b], atol=1e-3)


def _expected_encoding(name, labels):
    """Label mix that a scheme without free weights must give, or None."""
    shares = torch.bincount(labels, minlength=4).float() / len(labels)
    return {"var": shares, "vap": (shares > 0) / (shares > 0).sum()}.get(name)


@pytest.mark.parametrize("name", ["rap", "rar", "rsp", "rsr", "var", "vap"])
def test_every_published_scheme_runs(federation, name):
    fed = federation(protocols.get("fedre")(entanglement=schemes.get(name)()), rounds=1)
    fed.run()
    for upload in fed.uploads(1):
        client, (pair,) = fed.clients[upload.client], upload.artifacts
        labels = client.train.labels
        present = torch.bincount(labels, minlength=4) > 0
        assert pair.encoding.min() >= 0 and pair.encoding.sum() == pytest.approx(1, abs=1e-6)
        assert not pair.encoding[~present].any()
        known = _expected_encoding(name, labels)
        if known is not None:
            torch.testing.assert_close(pair.encoding, known)
        if name in ("rsp", "rsr"):
            assert pair.encoding.max() == 1
        if name in ("rap", "rar"):
            assert (pair.encoding[present] > 0).all() and pair.encoding.max() < 1

        with torch.no_grad():
            reps = fed.kept[1][upload.client].extractor(client.train.images.float() / 255)
        means = torch.stack([reps[labels == c].mean(0) for c in range(4) if present[c]])
        if name == "rsr":
            assert torch.cdist(pair.rep[None], reps).min() < 1e-4
        elif name == "var":
            torch.testing.assert_close(pair.rep, reps.mean(0), rtol=1e-4, atol=1e-5)
        elif name != "rar":
            mixed = pair.encoding[present] @ means
            torch.testing.assert_close(pair.rep, mixed, rtol=1e-4, atol=1e-5)
        (emission,) = fed.emissions[1][upload.client]
        weights = torch.zeros(len(labels))
        weights[emission.mixture.sample] = emission.mixture.weight
        torch.testing.assert_close(pair.rep, weights @ reps, rtol=1e-4, atol=1e-5)
        by_class = torch.stack([weights[labels == c].sum() for c in range(4)])
        torch.testing.assert_close(pair.encoding, by_class)
