"""One card renders any list of measures; measures are found by key and group."""

import dataclasses
import json

import pandas as pd
import pytest
import torch

from fedre_privacy.eval.measures import (
    BETTER,
    COMPARISON,
    RECORD,
    TABLE,
    Card,
    Measure,
    Verdict,
    by_size,
    over_floor,
)

GAIN = Measure(
    key="gain", title="gain", unit="dB", digits=1, shown=COMPARISON, value=3.0, sd=0.5, floor=2.0,
    floor_name="grey", floors_chosen={"grey": 4, "mean": 2}, over=1.0, over_interval=(-0.5, 2.5),
    n=6,
)  # fmt: skip
ERROR = dataclasses.replace(
    GAIN, key="error", title="error", unit="", sd=None, interval=(2.0, 4.0), shown=TABLE,
    higher_is_more_leakage=False, floors_chosen={}, floor_interval=(1.0, 3.0),
)  # fmt: skip
FOUND = Measure(
    key="found", title="found", percent=True, value=0.5, interval=(0.2, 0.8), floor=0.1,
    floor_name="a guess", against="guess", over=0.4, n=6,
)  # fmt: skip


def card(*measures: Measure, groups=None, **more) -> Card:
    return Card(
        measures=measures,
        verdict=Verdict("leaks", "of this", "by that", groups or {}),
        rows=pd.DataFrame(),
        n=6,
        targets=6,
        diverged=0,
        compared_with="the truth",
        **more,
    )


def test_values_floors_and_differences_in_words():
    assert GAIN.value_text() == "3.0 +- 0.5" and GAIN.floor_text() == "2.0 (mostly grey)"
    assert GAIN.over_text() == "not shown: +1.0 dB [-0.5, +2.5]"
    # `over` is positive where more leaks; printed is the difference itself
    assert ERROR.value_text() == "3.0 [2.0, 4.0]" and ERROR.floor_text() == "2.0 [1.0, 3.0] (grey)"
    assert ERROR.over_text() == "not shown: +1.0 [-0.5, +2.5]"
    assert FOUND.value_text() == "50.0 %" and FOUND.floor_text() == "10.0 % by a guess"
    assert FOUND.over_text() == "not shown: +40.0 points"
    none = Measure(key="rate", title="rate", note="too few")
    assert (none.value_text(), none.floor_text(), none.over_text()) == ("-", "-", "too few")


def test_a_table_of_any_measures():
    hidden = dataclasses.replace(GAIN, key="hidden", shown=RECORD)
    few = dataclasses.replace(GAIN, group="1", n=2)
    empty = dataclasses.replace(GAIN, group="2-30", value=None)
    assert [list(row) for row in card(GAIN, FOUND).table()] == [
        ["metric", "this attack", "floor", BETTER]
    ] * 2
    rows = card(GAIN, hidden, few, empty).table()
    assert [(row["classes of"], row["metric"], row["n"]) for row in rows] == [
        ("all", "gain dB", "6"), ("1 image", "gain dB", "2"),
    ]  # fmt: skip
    real = dataclasses.replace(GAIN, group="actual", value=1.0)
    beside = card(GAIN, FOUND, real, beside={"actual": "upload"}).table()
    assert [row["upload"] for row in beside] == ["1.0 +- 0.5", "-"]


def test_groups_with_a_verdict_of_their_own_are_a_table_of_their_own():
    few = dataclasses.replace(GAIN, group="1", targets=2, clients=2)
    made = card(GAIN, ERROR, few, groups={"1": "too few to say", "2-30": "leaks"})
    assert [row["metric"] for row in made.table()] == ["gain dB", "error"]
    (row,) = made.groups()
    assert row["verdict"] == "too few to say" and row["gain dB"] == "3.0 +- 0.5"
    assert not any("error" in heading for heading in row)  # it is in tables, not in comparisons


def test_measures_are_found_by_key_and_group_and_recorded():
    few = dataclasses.replace(GAIN, group="1", value=9.0)
    made = card(GAIN, few)
    assert made.get("gain", "1").value == 9.0 and made.find("gain", "2-30") is None
    with pytest.raises(KeyError, match="measures: gain"):
        made.get("loss")
    record = json.loads(json.dumps(made.record(), allow_nan=False))
    assert [m["group"] for m in record["measures"]] == ["", "1"]
    assert record["verdict"]["word"] == "leaks" and str(made.verdict) == "leaks: of this"


def test_groups_by_size():
    groups = by_size(torch.tensor([1, 2, 30, 31, 999]))
    assert {key: here.int().tolist() for key, here in groups.items()} == {
        "": [1, 1, 1, 1, 1], "1": [1, 0, 0, 0, 0], "2-30": [0, 1, 1, 0, 0], ">30": [0, 0, 0, 1, 1],
    }  # fmt: skip
    assert list(by_size(torch.tensor([2, 3]))) == ["", "2-30"]


def test_the_difference_to_the_floor_is_turned():
    values, floor = torch.tensor([1.0, 2.0, torch.nan]).double(), torch.ones(3).double()
    clients = torch.arange(3)
    up = over_floor(Measure(key="a", title="a"), values, floor, clients, floor_name="one")
    down = over_floor(
        Measure(key="a", title="a", higher_is_more_leakage=False), values, floor, clients,
        floor_name="one",
    )  # fmt: skip
    assert (up.value, up.over, down.over, up.n) == (1.5, 0.5, -0.5, 2)
    assert up.over_interval == pytest.approx(tuple(-end for end in reversed(down.over_interval)))
    nothing = torch.full_like(floor, torch.nan)
    silent = over_floor(Measure(key="a", title="a"), nothing, floor, clients, floor_name="one")
    assert (silent.value, silent.floor, silent.n) == (None, 1.0, 0)
