"""Pictures of a training run: what is drawn, from what, and what is left alone."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.eval.report.prototype_map import tsne_map
from fedre_privacy.reports.run_figures import caption, draw
from fedre_privacy.runs.training import train


@pytest.fixture(scope="module")
def drawn(tiny, tmp_path_factory):
    run = train(tiny(protocol="fedre"), runs=tmp_path_factory.mktemp("drawn"))
    return run, draw(run)


@pytest.mark.slow
def test_pictures_with_their_data(drawn):
    run, pictures = drawn
    assert [path.stem for path in pictures] == ["accuracy", "clients", "partition", "prototypes"]
    for name in ("accuracy", "clients", "partition", "prototypes"):
        for ending in ("png", "pdf", "csv"):
            assert (run.folder / f"{name}.{ending}").stat().st_size > 0
    held = pd.read_csv(run.folder / "partition.csv").drop(columns="client")
    assert held.to_numpy().tolist() == run.record["class_counts"]


@pytest.mark.slow
def test_the_map_has_every_prototype_and_every_entangled_upload(drawn):
    run, _ = drawn
    placed = pd.read_csv(run.folder / "prototypes.csv")
    counts = torch.tensor(run.record["class_counts"])
    real = placed[placed["class"] >= 0]
    assert sorted(zip(real["client"], real["class"], strict=True)) == sorted(
        map(tuple, counts.nonzero().tolist())
    )
    assert (placed["class"] < 0).sum() == len(counts)  # one entangled upload a client


@pytest.mark.slow
def test_pictures_that_are_there_are_not_drawn_again(drawn):
    run, _ = drawn
    before = (run.folder / "prototypes.png").stat().st_mtime_ns
    assert len(draw(run)) == 4
    assert (run.folder / "prototypes.png").stat().st_mtime_ns == before


@pytest.mark.slow
def test_without_truth_there_is_no_map(tiny, tmp_path):
    run = train(tiny(protocol="fedre", record={"truth": False}), runs=tmp_path)
    assert [path.stem for path in draw(run)] == ["accuracy", "clients", "partition"]


@pytest.mark.slow
def test_what_sends_no_upload_of_its_own_has_no_map(runs, tiny, tmp_path):
    summed = train(tiny(protocol="fedavg", defense="secagg"), runs=tmp_path)
    for run in (train(tiny(protocol="local"), runs=tmp_path), summed):
        assert "prototypes" not in [path.stem for path in draw(run)]


def test_neighbours_stay_neighbours_and_seeds_repeat():
    groups = torch.randn(3, 1, 16, generator=torch.Generator().manual_seed(0)) * 8
    rows = (groups + torch.randn(3, 8, 16, generator=torch.Generator().manual_seed(1))).flatten(
        0, 1
    )
    points = tsne_map(rows, seed=3)
    nearest = (torch.cdist(points, points) + 1e9 * torch.eye(24)).argmin(1)
    assert torch.equal(nearest // 8, torch.arange(24) // 8)
    assert torch.equal(points, tsne_map(rows, seed=3))
    with pytest.raises(IncompatibleError, match="at least 5 vectors; there are 4"):
        tsne_map(rows[:4])


@pytest.mark.slow
def test_the_curve_says_what_partial_participation_mixes(drawn, tiny, tmp_path):
    words = "counts the others with the model they kept"
    assert words not in caption(drawn[0])
    partial = {"train": {"join_ratio": 0.4, "rounds": 1}}
    for protocol, sections in (
        ("fedre", {"train": {**partial["train"], "broadcast_to": "all"}}),
        ("local", partial),
    ):
        assert words not in caption(train(tiny(protocol=protocol, **sections), runs=tmp_path))
    assert words in caption(train(tiny(protocol="fedre", **partial), runs=tmp_path))
