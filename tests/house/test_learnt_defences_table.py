"""The script that makes the tables of learnt defences out of a sweep."""

from __future__ import annotations

import csv
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import fisher_exact

FILE = Path(__file__).parents[2] / "results" / "learnt_defences.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("results_learnt_defences", FILE)
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


def measured(label: str, seed: int, attacker: str, over: float, found: float) -> list[dict]:
    """Rows of one training under one attacker, as `results.frame` makes them."""
    head = {
        "label": label, "seed": seed, "attacker": attacker, "accuracy": 0.4, "up_bytes": 2048,
        "up_scalars": 512, "round_s": 0.1 * seed,
    }  # fmt: skip
    return [
        {**head, "measure": "psnr", "group": "", "value": 20.0, "floor": 20 - over, "over": over,
         "n": 20},
        {**head, "measure": "hit1", "group": "", "value": found, "floor": 0.1, "over": 0.0,
         "n": 20},
    ]  # fmt: skip


def test_a_row_holds_both_attackers_and_what_lies_between_them(script):
    label = "fedgh + shredder:strength=0.1,tensors=2"
    rows = [
        *measured(label, 1, "adaptive", 1.0, 0.5), *measured(label, 1, "naive", -5.0, 0.0),
        *measured(label, 2, "adaptive", 2.0, 0.7), *measured(label, 2, "naive", -4.0, 0.1),
    ]  # fmt: skip
    variant = script.Variant(label, pd.DataFrame(rows))
    row = variant.row()
    assert (row["defence"], row["setting"]) == ("`shredder`", "`strength=0.1,tensors=2`")
    assert row["adaptive, dB over floor"] == "+1.5 ± 0.7"
    assert row["false security, dB"] == "+6.0"
    assert row["found: naive, adaptive (guess)"] == "0.05, 0.60 (0.10)"
    assert (row["n"], row["seeds"], row["one image each: naive"]) == ("40", "2", "-")
    assert row["membership: naive, adaptive (floor)"] == "-"
    assert (row["KiB a round"], row["seconds a round"]) == ("2", "0.10")
    bare = script.Variant("fedgh", pd.DataFrame(measured("fedgh", 1, "adaptive", 1.0, 0.5)))
    assert bare.row()["defence"] == "none"
    assert bare.row()["found: naive, adaptive (guess)"].startswith("-, 0.50")
    (first, second) = script.points([bare, variant])
    assert (first.label, first.over_sd) == ("none", None)
    assert (second.over, second.targets) == (pytest.approx(1.5), 40)


def test_a_row_of_gradients_says_how_many_images_are_behind_them(script):
    label = "one image + soteria:strength=0.2"
    rows = [*measured(label, 1, "adaptive", 9.0, 1.0), *measured(label, 1, "naive", -3.0, 0.0)]
    row = script.Variant(label, pd.DataFrame(rows)).gradient_row()
    assert row["behind a gradient"] == "one image"
    assert row["share of coordinates set to 0"] == "`strength=0.2`"
    assert (row["false security, dB"], row["n"]) == ("+12.0", "20")


def test_the_first_setting_of_a_defence_is_the_usual_one(script):
    """Names of files do not decide: a sweep does."""
    asked = ["none", "shredder:strength=0.01", "cem:noise=0.1", "cem:noise=0.01", "shredder"]
    assert script.first_settings(asked) == {"none", "shredder:strength=0.01", "cem:noise=0.1"}
    labels = ["b", "a + cem:noise=0.01", "a + cem:noise=0.1", "a", "a + disco", "b + cem:noise=0.1"]
    variants = [script.Variant(label, pd.DataFrame()) for label in labels]
    found = [one.label for one in script.in_order(variants, ["a", "b"], asked)]
    assert found == ["a", "a + cem:noise=0.1", "a + cem:noise=0.01", "b", "b + cem:noise=0.1"]


def test_the_rank_of_an_encoder_is_that_of_its_matrix(script):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(20, 3, generator=generator) @ torch.randn(3, 16, generator=generator)
    found = script.rank_share(
        lambda images: images.flatten(1) @ matrix.T, torch.rand(1, 4, 4, generator=generator)
    )
    assert found == 3 / 16
    # its Fisher information has a determinant of 0, so FSInfo has no finite value
    assert torch.linalg.matrix_rank(matrix.T @ matrix) == 3


def test_predictors_are_ranked_within_each_seed(script):
    """A predictor that tells seeds apart and nothing else has no correlation."""
    table = pd.DataFrame(
        {
            "seed": [1, 1, 1, 2, 2, 2],
            "setting": ["a", "b", "c", "a", "b", "c"],
            "over": [1.0, 2.0, 3.0, 11.0, 12.0, 13.0],
            "hits": [0.3, 0.2, 0.1, 0.6, 0.5, 0.4],
            "information": [1.0, 2.0, 3.0, 1.0, 2.0, 3.0],
            "correlation": [0.1, 0.1, 0.1, 0.9, 0.9, 0.9],
            "rank": [3.0, 1.0, 2.0, 2.0, 3.0, 1.0],
        }
    )
    found = {row["predictor"]: row for row in script.ranked(table)}
    first = found["Fisher information a pixel"]
    assert first["with adaptive dB over floor"] == "+1.00 [+1.00, +1.00]"
    assert first["with adaptive found"] == "-1.00 [-1.00, -1.00]"
    assert found["distance correlation"]["with adaptive dB over floor"] == "-"
    ranks = found["rank of the gradient over pixels"]["with adaptive dB over floor"]
    assert ranks.startswith("-0.50 [-")


def test_an_interval_of_a_correlation_draws_settings_with_all_their_seeds(script):
    rng = np.random.default_rng(3)
    settings = pd.Series(np.repeat([f"s{i}" for i in range(40)], 3))
    base = pd.Series(np.repeat(rng.normal(size=40), 3))
    alone = pd.Series(np.repeat(rng.normal(size=40), 3))  # one draw for each setting
    low, high = map(float, script.correlation(base, alone, settings).split("[")[1][:-1].split(","))
    assert low < 0 < high and high - low > 0.45  # 40 settings, not 120 trainings
    close = base + 0.1 * rng.normal(size=120)
    assert float(script.correlation(base, close, settings).split("[")[1][:5]) > 0.95


def test_the_strongest_of_several_attacks_stands_out(script):
    label, rows = "fedgh + cem:noise=0.1", []
    for seed, over in ((1, 1.0), (2, 3.0)):
        for name, more in (("linear", 0.0), ("diffusion", 2.0)):
            own = measured(label, seed, "adaptive", over + more, 0.5 + more / 10)
            rows += [{**row, "attack": name} for row in own]
    row = script.Variant(label, pd.DataFrame(rows)).attack_row()
    assert row == {
        "protocol": "fedgh", "defence": "`cem:noise=0.1`", "n": "40",
        "`linear`": "+2.0 ± 1.4, 0.50", "`diffusion`": "**+4.0 ± 1.4, 0.70**", "guess": "0.10",
    }  # fmt: skip


PAIR = re.compile(r"([\d.]+), ([\d.]+) \(")


def test_no_published_row_has_a_weaker_adaptive_attacker_but_those_that_the_page_names():
    fewer, cells = set(), 0
    for name in ("all", "cifar10"):
        path = FILE.parent / "data" / f"learnt_defences_{name}.csv"
        with path.open(newline="", encoding="utf-8") as text:
            rows = list(csv.DictReader(text))
        for row in rows:
            over = [row[f"{who}, dB over floor"].split()[0] for who in ("naive", "adaptive")]
            if over[0] != "-":
                assert float(over[1]) > float(over[0]) - 0.6, row
            for pair, count in (
                ("found: naive, adaptive (guess)", "n"),
                ("found of these", "n of these"),
            ):
                told, n = PAIR.match(row[pair]), row[count]
                if told is None or n == "0":
                    continue
                naive, adaptive = (round(float(share) * int(n)) for share in told.groups())
                table = [[naive, int(n) - naive], [adaptive, int(n) - adaptive]]
                cells += 1
                if fisher_exact(table, alternative="greater")[1] < 0.05:
                    fewer.add((name, row["protocol"], row["defence"], row["setting"]))
    assert cells == 346
    assert fewer == {
        ("all", "fedgh", "`cem`", "`noise=0.1`"),
        ("all", "fedallrep", "`cem`", "`noise=0.1`"),
        ("cifar10", "fedallrep", "`cem`", "`noise=0.1`"),
        ("cifar10", "fedallrep", "`cem`", "`noise=0.3`"),
    }
