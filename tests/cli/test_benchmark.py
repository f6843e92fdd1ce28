"""fedre-benchmark: which of its commands is meant, and what is refused before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.api.workflows import comparison
from fedre_privacy.cli import benchmark
from fedre_privacy.cli.benchmark import _benchmark_of


@pytest.fixture
def call(cli: Any) -> Any:
    return lambda *arguments: cli._call(benchmark.main, arguments)


def test_help_names_the_published_tables_and_theirs_is_theirs(call: Any) -> None:
    done = call("--help")
    assert done.code == 0 and "--protocols P,Q" in done.out
    assert "--communication" in done.out and "Figure 2" in done.out
    assert "--measured RUN" in call("--communication", "--help").out
    assert "runs/toy" in call("--help", "--toy").out


def test_one_table_at_a_time(call: Any, nowhere: Path) -> None:
    done = call("--communication", "--toy")
    assert done.code == 2 and "--toy" in done.err
    assert call("--toy", "--protocols", "fedre").code == 2  # no option of the toy
    # a value that looks like one is the value of its option
    assert "Unknown preset 'toy'" in call("--protocols", "fedre", "--preset", "toy").err
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--protocols", "fedre", "--set", "attack.steps=3"], "--set attack.steps=3 is a setting"),
        (["--protocols", "fedre", "--set", "trian.lr=1"], "Unknown section 'trian'. Did you mean"),
        (["mine.yaml", "--protocols", "fedre"], "protocols cannot be given beside a sweep file."),
        (["mine.yaml", "--attacks", "labels"], "attacks cannot be given beside a sweep file."),
        ([], "Nothing to compare: give a SWEEP.yaml"),
        (["--protocols", "fedre", "--seeds", "x"], "--seeds takes whole numbers"),
        (["--against", "rap"], "--against goes with --scheme"),
    ],
)
def test_refusals(call: Any, nowhere: Path, options: list[str], text: str) -> None:
    done = call(*options)
    assert done.code == 2 and text in done.err and done.out == ""
    assert list(nowhere.iterdir()) == []


def test_seeds_and_targets_win_over_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("protocols: [fedre]\nseeds: [7]\ntargets: 3\n", encoding="utf-8")
    own = comparison({}, [], sweep=file, seeds=None, targets=None)
    assert (own.seeds, own.targets) == ((7,), 3)
    other = comparison({}, [], sweep=file, seeds=[4, 5], targets=2)
    assert (other.seeds, other.targets) == ((4, 5), 2)
    options = benchmark.parser().parse_args([str(file), "--seeds", "4"])
    assert _benchmark_of(options).seeds == (4,)


def test_presets_are_listed(call: Any) -> None:
    done = call("--preset", "list")
    assert done.code == 0 and "paper:fedral-table6" in done.out
