"""The campaign of trainings: what is planned, what is not repeated, and what its rows say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

SIZE = {"per_class": 100, "rounds": 20}


@pytest.fixture(scope="module")
def learning(load):
    return load("learning")


@pytest.fixture
def found(learning):
    def made(local: float, broadcast: float):
        return learning.Found(local, broadcast, local, broadcast, 1.0)

    return made


def test_rows_are_read_back(learning, found, tmp_path):
    rows = {cell: found(0.5, 0.25) for cell in learning.server_cells(SIZE)[:5]}
    learning.write(tmp_path / "new" / "learning.csv", rows)
    assert learning.read(tmp_path / "new" / "learning.csv") == rows
    assert learning.read(tmp_path / "none.csv") == {}


def test_no_training_is_planned_twice_and_no_seed_for_choosing_is_reported(learning):
    cells = learning.server_cells(SIZE)
    assert len(set(cells)) == len(cells) == 5 * (16 + 16 + 8 + 4)
    assert {cell.seed for cell in cells} == set(learning.REPORTED)
    assert not set(learning.REPORTED) & {*learning.CHOOSING, 0}
    first = set(cells[:16])
    assert {(c.seed, c.models, c.clients) for c in first} == {(1, "cnn4", 10)}


def test_the_best_step_is_chosen_on_seeds_of_its_own(learning, found):
    name, partition = "fedavg", "pra:0.1"
    cells = [
        c for c in learning.protocol_cells(SIZE, {}) if (c.way, c.partition) == (name, partition)
    ]
    choosing = [cell for cell in cells if cell.seed in learning.CHOOSING]
    assert {cell.step for cell in choosing} == {0.007, 0.02, 0.06}
    rows = {cell: found(0.1, 0.5 if cell.step == 0.02 else 0.4) for cell in choosing}
    reported = learning.Cell(name, partition, "cnn4", 0.06, 10, 1, **SIZE)
    rows[reported] = found(0.1, 0.99)
    assert learning.best_step(name, partition, SIZE, rows) == 0.02
    assert learning.best_step(name, "pat:2", SIZE, rows) is None
    planned = set(learning.protocol_cells(SIZE, rows))
    assert {replace(reported, step=0.02, seed=seed) for seed in learning.REPORTED} <= planned
    assert reported not in planned


def test_the_difference_is_paired_by_seed(learning, found):
    cell = learning.Cell("fedre, mean", "pra:0.1", "cnn4", 0.06, 10, 1, **SIZE)
    rows = {}
    for seed, (mine, alone) in enumerate([(0.5, 0.4), (0.7, 0.5), (0.9, 0.6)], start=1):
        rows[replace(cell, seed=seed)] = found(0.0, mine)
        rows[replace(cell, seed=seed, way="local")] = found(alone, alone)
    rows[replace(cell, seed=100)] = found(0.0, 0.0)
    mine = next(line for line in learning.lines(rows) if line.cell.way == "fedre, mean")
    assert (mine.seeds, mine.pairs) == (3, 3)
    mean, low, high = mine.over
    assert mean == pytest.approx(20)
    assert (low, high) == pytest.approx((20 - 24.84, 20 + 24.84), abs=0.01)  # 4.303 * 10 / sqrt(3)
    text = learning.table("server", rows, SIZE)
    assert "| fedre, mean | pra:0.1 | cnn4 | 0.06 | 10 | 3 |" in text
    assert "+20.0 [-4.8, +44.8] (n 3)" in text


def test_mean_and_sum_are_compared_by_setting_and_seed(learning, found):
    cell = learning.Cell("fedre, mean", "pra:0.1", "cnn4", 0.06, 10, 1, **SIZE)
    rows = {}
    for seed, gain in ((1, 0.2), (2, -0.1)):
        rows[replace(cell, seed=seed)] = found(0.0, 0.5 + gain)
        rows[replace(cell, seed=seed, way="fedre, sum")] = found(0.0, 0.5)
    said = learning.mean_over_sum(rows, SIZE)
    assert "+5.0 [" in said and "2 pairs of setting and seed (seeds 1, 2)" in said
    assert "better in 1, smallest difference -10.0" in said
    assert learning.mean_over_sum({}, SIZE) == "no pair of mean and sum yet"


@pytest.mark.slow
def test_a_finished_training_is_not_repeated(learning, tmp_path, capsys):
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 10
    np.savez(
        tmp_path / "images.npz",
        x_train=rng.integers(0, 256, (300, 32, 32, 3)).astype(np.uint8),
        y_train=labels,
    )
    given = ["server", f"--data={tmp_path / 'images.npz'}", "--rounds=1", "--per-class=12",
             "--first=1", f"--out={tmp_path}"]  # fmt: skip
    assert learning.main(given) == 0
    before = (tmp_path / "learning.csv").read_text()
    assert "seed 1: local" in capsys.readouterr().out
    assert learning.main(given) == 0
    assert "seed 1" not in capsys.readouterr().out
    assert (tmp_path / "learning.csv").read_text() == before


def test_the_best_step_is_compared_with_the_best_step_of_training_alone(learning, found):
    rows = {}
    for cell in learning.protocol_cells(SIZE, {}):
        if cell.seed in learning.CHOOSING and cell.partition == "pra:0.1":
            best = {"fedre": 0.02, "local": 0.06}.get(cell.way)
            if best:
                rows[cell] = found(0.1, 0.1) if cell.step != best else found(0.5, 0.5)
    for seed in learning.REPORTED:
        mine = learning.Cell("fedre", "pra:0.1", "cnn4", 0.02, 10, seed, **SIZE)
        rows[mine] = found(0.0, 0.75)
        rows[replace(mine, way="local")] = found(0.1, 0.1)  # not the best step of local
        rows[replace(mine, way="local", step=0.06)] = found(0.5, 0.5)
    lines = {line.cell.way: line for line in learning.best_lines(rows, SIZE)}
    assert set(lines) == {"fedre", "local"}
    assert lines["fedre"].over[0] == pytest.approx(25) and lines["fedre"].pairs == 5
    assert lines["local"].over is None and lines["local"].cell.step == 0.06


def test_what_becomes_known_on_the_way_is_trained_by_the_same_command(
    learning, found, tmp_path, monkeypatch
):
    def train(cells, rows, options, path, ends):
        rows.update({cell: found(cell.step, cell.step) for cell in cells})

    monkeypatch.setattr(learning, "campaign", train)
    seen = {}
    monkeypatch.setattr(learning, "read", lambda path: seen)
    given = ["protocols", "--data", "any.npz", "--only", "fedgh pra:0.1", "--out", str(tmp_path)]
    assert learning.main(given) == 0
    reported = {(cell.step, cell.seed) for cell in seen if cell.seed in learning.REPORTED}
    assert reported == {(step, seed) for step in (0.007, 0.06) for seed in learning.REPORTED}
