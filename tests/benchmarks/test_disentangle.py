"""Runs on which settings were chosen are told from others, and are never averaged with them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from fedre_privacy.data.base import keep_per_class
from fedre_privacy.data.npz import Npz
from fedre_privacy.runs.resolution import resolve_training


@pytest.fixture(scope="module")
def disentangle(load):
    return load("disentangle")


@pytest.fixture
def source(tmp_path):
    """205 and 207 training images of two classes, all different, and 4 test images."""
    rng = np.random.default_rng(0)
    labels = np.array([0] * 205 + [1] * 207)
    rng.shuffle(labels)
    images = rng.integers(0, 256, (416, 4, 4, 3), dtype=np.uint8)
    path = tmp_path / "all.npz"
    np.savez(path, x_train=images[:412], y_train=labels, x_test=images[412:], y_test=[0, 1, 0, 1])
    return path


@dataclasses.dataclass
class Recorded:
    """What `kind_of` reads of a run."""

    settings: object


def trained_on(path, seed):
    problems: list[str] = []
    values = {"data": {"name": "npz", "path": str(path)}, "train": {"seed": seed}}
    settings = resolve_training(values, {}, problems)
    assert not problems
    return Recorded(settings)


def test_unseen_images_are_those_that_no_run_of_the_choice_held(disentangle, source, tmp_path):
    new = tmp_path / "new.npz"
    disentangle.write_unseen(source, new)
    whole, unseen = Npz(path=str(source)).load(), Npz(path=str(new)).load()
    held = keep_per_class(whole, 200)
    left = set(disentangle.digests(unseen.images))
    assert unseen.labels.bincount().tolist() == [5, 7] and unseen.num_train == 12
    assert not left & set(disentangle.digests(held.images))
    assert left < set(disentangle.digests(whole.images))


def test_a_repeated_image_is_left_out_everywhere(disentangle, source, tmp_path):
    arrays = dict(np.load(source))
    last = int(np.flatnonzero(arrays["y_train"] == 0)[-1])
    arrays["x_train"][last] = arrays["x_test"][0]
    np.savez(source, **arrays)
    data = disentangle.write_unseen(source, tmp_path / "new.npz")
    assert data.labels.bincount().tolist() == [4, 7]


def test_a_file_of_few_images_has_none_left(disentangle, source, tmp_path):
    arrays = dict(np.load(source))
    np.savez(source, x_train=arrays["x_train"][:100], y_train=arrays["y_train"][:100])
    with pytest.raises(ValueError, match="more than 200"):
        disentangle.write_unseen(source, tmp_path / "new.npz")


def test_only_new_images_under_new_seeds_are_report_only(disentangle, source, tmp_path):
    new = tmp_path / "new.npz"
    disentangle.write_unseen(source, new)
    kinds = {
        (path.stem, seed): disentangle.kind_of(trained_on(path, seed))
        for path in (source, new)
        for seed in (0, 1, 2, 4)
    }
    assert kinds["new", 2] == kinds["new", 4] == disentangle.REPORT_ONLY
    assert kinds["all", 2] == kinds["all", 4] == disentangle.NEW_SEEDS
    assert {kinds[name, seed] for name in ("all", "new") for seed in (0, 1)} == {
        disentangle.CHOSEN_ON
    }


def test_a_file_with_old_images_slipped_in_is_not_report_only(disentangle, source, tmp_path):
    new = tmp_path / "new.npz"
    disentangle.write_unseen(source, new)
    arrays = dict(np.load(new))
    arrays["x_train"][3] = np.load(source)["x_test"][1]
    np.savez(new, **arrays)
    assert disentangle.kind_of(trained_on(new, 4)) == disentangle.NEW_SEEDS


def rows_of(kind: str) -> pd.DataFrame:
    columns = ["centred_cosine", "relative_error", "identified", "counts", "labels"]
    rows = [
        (0.5, 0.1, 1.0, 3, label, r) for label in range(2) for r in ("1 n", "2 n", "3 n", "all")
    ]
    table = pd.DataFrame(rows, columns=[*columns, "rounds"])
    return table.assign(
        solver="aligned", clients=0, run=kind, seed=5, kind=kind, drift=0.1, drift_max=0.2
    )


def test_tables_of_two_kinds_are_printed_apart(disentangle, capsys):
    disentangle.report(pd.concat([rows_of("one"), rows_of("other")]))
    text = capsys.readouterr().out
    assert text.count("images behind a prototype: all, n = 2\n") == 2
    assert "n = 4" not in text


def test_the_figure_takes_one_kind(load):
    figure = load("disentangle_figure")
    assert figure.means_of(rows_of("one"))["kind"].unique().tolist() == ["one"]
    with pytest.raises(ValueError, match="do not mix"):
        figure.means_of(pd.concat([rows_of("one"), rows_of("other")]))


def test_common_movement_is_no_drift(disentangle):
    first = torch.tensor([[0.0, 0.0, 5.0], [2.0, 0.0, 5.0], [1.0, 3.0, 5.0]])
    still = torch.stack([first, first + 7, first - 2])
    assert disentangle.drift(still).tolist() == pytest.approx([0, 0], abs=1e-6)
    # one of two prototypes moves by 2: each by 1 about the mean; spread 2 afterwards
    two = torch.tensor([[[0.0], [2.0]], [[0.0], [4.0]]])
    assert disentangle.drift(two).tolist() == [0.5]
    assert bool(disentangle.drift(first[None, :1].repeat(3, 1, 1)).isnan().all())
