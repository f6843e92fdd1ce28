"""Names that strangers choose are shown, and do nothing."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest

from fedre_privacy.core.files import write_csv, write_frame
from fedre_privacy.core.safe_text import csv_text, visible


def test_what_cannot_be_seen_is_written_out():
    assert visible("a\x1b[2J\0\r\x9b") == r"a\x1b[2J\x00\r\x9b"
    assert visible("\u202egnp.exe\u2066\u200f\u2028") == r"\u202egnp.exe\u2066\u200f\u2028"
    assert visible("\udcff").encode() == rb"\udcff"  # half a character, from a file's name


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand a tab", "<b> & $x^2$", "שלום", "日本"])
def test_what_can_be_seen_stays(text):
    assert visible(text) == text


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", " =1", "\t=1", "-3.2 dB"])
def test_no_text_is_a_formula(text):
    assert csv_text(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-3.2", "+1e5", "-", "", "a=b", "nan", "class-mean-image"])
def test_numbers_and_harmless_texts_stay(text):
    assert csv_text(text) == text


def test_only_texts_of_a_table_change(tmp_path):
    frame = pd.DataFrame(
        {"=name": ["=1+1", "b\x1b"], "value": [-1.5, np.nan], "count": [-1, 2], "yes": [True, None],
         "kind": pd.Categorical(["@x", "y"]), "mixed": ["-a", 3]}
    )  # fmt: skip
    path = tmp_path / "t.csv"
    write_frame(path, frame)
    assert path.read_text() == (
        "'=name,value,count,yes,kind,mixed\n'=1+1,-1.5,-1,True,'@x,'-a\nb\\x1b,,2,,y,3\n"
    )
    assert frame["=name"].to_list() == ["=1+1", "b\x1b"]
    write_csv(path, [{"=name": "=1+1", "value": -1.5, "none": None}])
    with path.open(newline="") as handle:
        assert list(csv.reader(handle)) == [["'=name", "value", "none"], ["'=1+1", "-1.5", ""]]


def test_a_table_of_numbers_is_what_pandas_writes(tmp_path):
    frame = pd.DataFrame({"a": [0.1, 1 / 3], "b": [1, 2], "c": [None, 2], "d": [None, None]})
    frame = frame.astype({"c": object})
    write_frame(tmp_path / "t.csv", frame)
    assert (tmp_path / "t.csv").read_text() == frame.to_csv(index=False)
