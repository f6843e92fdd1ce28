"""The toy runs the real protocols on points, and counts its uncertainty honestly."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
import torch
from scipy.stats import t, ttest_rel

from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.config import build
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.federation import loop
from fedre_privacy.reproduction import toy
from fedre_privacy.reproduction.toy import ToySettings, draw, mean_interval, methods, train_toy

SMALL = ToySettings(seeds=2, rounds=2, train_points=40, test_points=20)


@pytest.fixture(scope="module")
def result() -> toy.ToyResult:
    return toy.run_toy(SMALL)


def test_points_follow_the_stated_law():
    settings = ToySettings(train_points=20_000, gap=0.5, shift=2.0)
    for client, sign in ((0, -1), (1, 1)):
        points, _ = draw(settings, 3, client)
        flat = points.images.flatten(1)
        for label, side in ((0, -1), (1, 1)):
            own = flat[points.labels == label]
            assert len(own) == 10_000
            assert torch.allclose(own.mean(0), torch.tensor([0.5 * side, 2.0 * sign]), atol=0.04)
            assert torch.allclose(own.std(0), torch.ones(2), atol=0.04)


def test_best_accuracy_is_that_of_the_rule_that_knows_the_law():
    settings = ToySettings(test_points=100_000)
    _, test = draw(settings, 0, 0)
    reached = ((test.images[:, 0, 0, 0] > 0).long() == test.labels).float().mean()
    assert settings.best_accuracy == pytest.approx(0.6179, abs=1e-4)
    assert float(reached) == pytest.approx(settings.best_accuracy, abs=0.006)


def test_points_reach_the_model_unscaled_and_stay_points():
    train, test = draw(SMALL, 0, 1)
    x, y = train.batch(slice(0, 4))
    assert x.shape == (4, 2, 1, 1) and torch.equal(x, train.images[:4])
    assert torch.equal(y, torch.tensor([0, 1, 0, 1]))
    assert isinstance(train.take(torch.tensor([1])), toy.Points)
    assert not torch.equal(train.images[:20], test.images)


def test_each_seed_gives_every_method_the_same_start(monkeypatch):
    seen = []

    def look(protocol, clients, server, setting, **rest):
        seen.append([p.clone() for c in clients for p in c.model.parameters()])
        seen[-1] += [c.train.images for c in clients]
        return [{}]

    monkeypatch.setattr(loop, "run_rounds", look)
    for protocol in methods(SMALL.server).values():
        train_toy(protocol, SMALL, 5)
    train_toy(methods(SMALL.server)["Local"], SMALL, 6)
    for other in seen[1:-1]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))
    assert not torch.equal(seen[0][0], seen[-1][0])


@pytest.mark.parametrize(
    ("heading", "kind", "rows"),
    [
        ("FedAllRep", Representations, 80),
        ("FedGH", Prototypes, 4),
        ("FedRE re-sampled", EntangledRep, 2),
        ("FedRE fixed", EntangledRep, 2),
    ],
)
def test_uploads_are_as_many_as_the_paper_says(monkeypatch, heading, kind, rows):
    kept = []
    original = loop.run_rounds

    def run(*given, **options):
        def keep(round, clients, emissions):
            kept.append([e.artifact for sent in emissions.values() for e in sent])

        return original(*given, **{**options, "keep": keep})

    monkeypatch.setattr(loop, "run_rounds", run)
    train_toy(methods(SMALL.server)[heading], SMALL, 0)
    assert len(kept) == 2
    for artifacts in kept:
        assert all(isinstance(a, kind) for a in artifacts)
        assert sum(len(a.rows()) for a in artifacts) == rows
    if kind is EntangledRep:
        first, second = ([a.encoding for a in artifacts] for artifacts in kept)
        same = [torch.equal(a, b) for a, b in zip(first, second, strict=True)]
        assert same == [heading == "FedRE fixed"] * 2


def test_clients_hold_the_servers_head_in_the_end(result):
    for heading, trained in result.shown.items():
        heads = [client.model.head.weight for client in trained.clients]
        if heading == "Local":
            assert not torch.equal(*heads)
        else:
            assert all(torch.equal(h, trained.server.modules["head"].weight) for h in heads)


def test_same_seed_same_numbers(result):
    again = train_toy(methods(SMALL.server)["FedRE re-sampled"], SMALL, 1)
    row = result.runs.query("seed == 1 and method == 'FedRE re-sampled'").iloc[0]
    assert row["acc_post_broadcast"] == again.row["acc_post_broadcast"]
    assert row["confidence"] == toy.confidence(again.clients)


@pytest.mark.slow
def test_training_learns_an_easy_plane():
    easy = dataclasses.replace(SMALL, gap=2.5, rounds=15)
    for heading, protocol in methods(easy.server).items():
        trained = train_toy(protocol, easy, 0)
        assert trained.row["acc_post_broadcast"] > 0.9, heading


def test_interval_is_students():
    values = [0.6, 0.62, 0.59, 0.65]
    mean, low, high = mean_interval(values)
    expected = t.interval(0.95, 3, loc=mean, scale=pd.Series(values).sem())
    assert mean == pytest.approx(0.615)
    assert (low, high) == pytest.approx(expected)


def test_differences_are_paired():
    runs = pd.DataFrame(
        [
            {"seed": seed, "method": name, **dict.fromkeys(toy.MEASURES, level + offset)}
            for seed, level in enumerate((0.5, 0.9, 0.7))
            for name, offset in zip(methods(SMALL.server), (0, 0.01, 0.02, 0.03 * seed, 0.04),
                                    strict=True)
        ]
    )  # fmt: skip
    table = toy.compare(runs).set_index(["first", "second"])
    row = table.loc[("FedAllRep", "FedGH")]
    assert row["acc_post_local"] == pytest.approx(-0.01)
    assert row["acc_post_local_high"] - row["acc_post_local_low"] == pytest.approx(0, abs=1e-9)
    wide = runs.pivot(index="seed", columns="method", values="confidence")
    expected = ttest_rel(wide["FedRE re-sampled"], wide["FedRE fixed"]).confidence_interval(0.95)
    row = table.loc[("FedRE re-sampled", "FedRE fixed")]
    assert (row["confidence_low"], row["confidence_high"]) == pytest.approx(tuple(expected))


def test_means_stand_beside_the_published(result):
    means = result.means.set_index("method")
    assert means.loc["FedRE fixed", "published"] == 0.415
    assert pd.isna(means.loc["Local", "published"])
    assert (means["seeds"] == 2).all()


@pytest.mark.slow
def test_files(result, tmp_path):
    written = toy.write_toy(result, tmp_path)
    assert {path.name for path in written} == {
        "toy.png", "toy.pdf", "toy.svg", "toy.csv", "toy-runs.csv", "toy-differences.csv",
    }  # fmt: skip
    assert all(path.stat().st_size > 0 for path in written)
    assert len(pd.read_csv(tmp_path / "toy-runs.csv")) == 2 * 5
    assert len(pd.read_csv(tmp_path / "toy.csv")) == 5


def test_bad_settings_are_refused_together():
    problems: list[str] = []
    assert (
        build(ToySettings, {"train_points": 7, "test_points": 9}, at="toy", problems=problems)
        is None
    )
    assert len(problems) == 2
    with pytest.raises(ConfigError, match="even number"):
        ToySettings(train_points=7)
