"""fedre-benchmark: which of its commands is meant, and what is refused before any training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.api.workflows import comparison
from fedre_privacy.cli import benchmark
from fedre_privacy.cli.benchmark import _benchmark_of, _parts
from fedre_privacy.experiments.dry_run import words_of


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


def test_settings_of_a_defence_stay_with_its_name() -> None:
    text = "nopeek,cem:noise=1,strength=0.1, shredder,tensors=4,my_module:Mine:weight=2,none"
    assert _parts(text) == [
        "nopeek", "cem:noise=1,strength=0.1", "shredder:tensors=4", "my_module:Mine:weight=2",
        "none",
    ]  # fmt: skip
    given = ["--protocols", "fedgh", "--seeds", "0", "--attacks", "linear@uploaded@strong"]
    wanted = _benchmark_of(
        benchmark.parser().parse_args([*given, "--defenses", "cem:noise=1,strength=0.1"])
    )
    plain, defended = wanted.jobs
    (cem,) = defended.training.defense
    assert plain.training.defense == () and (cem.noise, cem.strength) == (1.0, 0.1)  # type: ignore[attr-defined]
    assert [one.evaluation.attacker for one in plain.attacks] == ["adaptive"]
    assert [one.evaluation.attacker for one in defended.attacks] == ["adaptive", "naive"]


def test_a_defence_of_ones_own_enters_by_its_module(nowhere: Path, call: Any) -> None:
    (nowhere / "own_defence.py").write_text(
        "from fedre_privacy.defenses.nopeek import NoPeek\n\nclass Mine(NoPeek):\n    name = ''\n"
    )
    given = ["--protocols", "fedgh", "--seeds", "0", "--attacks", "labels"]
    wanted = _benchmark_of(
        benchmark.parser().parse_args([*given, "--defenses", "own_defence:Mine:strength=3"])
    )
    (mine,) = wanted.jobs[1].training.defense
    assert wanted.jobs[1].label == "fedgh + own_defence:Mine:strength=3"
    assert type(mine).__name__ == "Mine" and wanted.jobs[1].plugins() == ["own_defence"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--protocols", "fedre", "--set", "attack.steps=3"], "--set attack.steps=3 is a setting"),
        (["--protocols", "fedre", "--set", "trian.lr=1"], "Unknown section 'trian'. Did you mean"),
        ([], "Nothing to compare: give a SWEEP.yaml"),
        (["--protocols", "fedre", "--seeds", "x"], "--seeds takes whole numbers"),
        (["--against", "rap"], "--against goes with --scheme"),
        (["--protocols", "fedgh", "--defenses", "noise=1"], "--defenses begins with a setting"),
        (["--protocols", "fedgh", "--defenses", "nopek"], "fedgh + nopek: Unknown defence"),
    ],
)
def test_refusals(call: Any, nowhere: Path, options: list[str], text: str) -> None:
    done = call(*options)
    assert done.code == 2 and text in done.err and done.out == ""
    assert list(nowhere.iterdir()) == []


def test_what_is_wrong_with_all_is_said_once(call: Any) -> None:
    done = call("--protocols", "fedre,fedgh,fedavg", "--attacks", "dipp", "--seeds", "0,1")
    assert done.code == 2 and done.err.count("dipp") == 1
    assert done.err.startswith("Unknown attack 'dipp'. Did you mean 'dip'?")


def test_options_win_over_the_keys_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = "protocols: [fedre]\nseeds: [7]\ntargets: 3\nattacks: [dip]\ndefenses: [nopeek]\n"
    file.write_text(text, encoding="utf-8")
    own = comparison({}, [], sweep=file, seeds=None, targets=None)
    assert (own.seeds, own.targets) == ((7,), 3)
    other = comparison({}, [], sweep=file, seeds=[4, 5], targets=2)
    assert (other.seeds, other.targets) == ((4, 5), 2)
    options = benchmark.parser().parse_args([str(file), "--seeds", "4"])
    assert _benchmark_of(options).seeds == (4,)
    given = ["--protocols", "fedgh,fedavg", "--attacks", "labels", "--defenses", "quantise:bits=8"]
    options = benchmark.parser().parse_args([str(file), *given])
    beside = _benchmark_of(options)
    assert [one.label for one in beside.variants] == [
        "fedgh", "fedgh + quantise:bits=8", "fedavg", "fedavg + quantise:bits=8",
    ]  # fmt: skip
    assert beside.seeds == (7,) and beside.attackers == ("adaptive", "naive")
    assert [one["attack"]["name"] for one in beside.attacks or ()] == ["labels"]
    assert comparison({}, [], sweep=file, attacks=()).attacks == ()


def test_presets_are_listed(call: Any) -> None:
    done = call("--preset", "list")
    assert done.code == 0 and "paper:fedral-table6" in done.out


@pytest.mark.slow
def test_the_page_of_a_benchmark_opens(
    call: Any, tiny: list[str], tmp_path: Path, opened: list[Path]
) -> None:
    here = ["--runs-dir", tmp_path, "--device", "cpu"]
    wanted = ["--protocols", "fedgh", "--seeds", "0", "--attacks", "labels"]
    done = call(*wanted, *tiny, *here, "--open", "--quiet")
    assert done.code == 0, done.err
    assert opened == [(Path(done.out.strip()) / "report.html").resolve()]
    assert "benchmark of FedGH" in opened[0].read_text()


@pytest.mark.parametrize(
    ("attack_s", "quick"),
    [(1.0, None), (600.0, "linear@uploaded@strong,labels@uploaded@realistic")],
)
def test_a_long_dry_run_names_attacks_that_would_be_quicker(attack_s, quick, monkeypatch, capsys):
    """They give a first answer in a quarter of an hour, and are given as they are named."""

    def measured(training, suite, device, known, report):
        for settings in suite:
            short = settings.attack.name in ("linear", "labels")
            own = 4.0 if settings.attack.name == "labels" else 3.0
            known[words_of(settings)] = own if short else attack_s
            report(words_of(settings), known[words_of(settings)])
        return 10.0, sum(known.values()), 1024

    monkeypatch.setattr("fedre_privacy.experiments.dry_run.dry_run_suite", measured)
    options = ["--protocols", "fedproto,fedgh", "--seeds", "0,1,2", "--dry-run"]
    assert benchmark.main(options) == 0
    said = capsys.readouterr().out
    assert "dip@uploaded@fedre-paper: about " in said
    if quick is None:
        assert "Quicker" not in said
        return
    assert f"--attacks {quick} takes about 1 min 42 s" in said
    again = benchmark.main([*options, "--attacks", quick])
    assert again == 0 and "Quicker" not in capsys.readouterr().out


def test_many_variants_are_counted_and_few_are_named(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "SHOWN", 2)
    monkeypatch.setattr(
        "fedre_privacy.experiments.dry_run.dry_run_suite", lambda *_: (1.0, 1.0, 1024)
    )
    options = ["--seeds", "0", "--dry-run", "--protocols"]
    assert benchmark.main([*options, "fedproto,fedgh"]) == 0
    assert re.search(r"^Compare +fedproto, fedgh$", capsys.readouterr().out, re.MULTILINE)
    assert benchmark.main([*options, "fedproto,fedgh,fedre,fedavg"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^Compare +fedproto, fedgh and 2 more$", said, re.MULTILINE)


def test_attacks_that_fit_no_upload_are_told_once_by_variant(capsys):
    named = "linear@uploaded@fedre-paper"
    options = ["--protocols", "fedgh,fedproto,fedavg", "--attacks", named, "--dry-run"]
    assert benchmark.main(options) == 3
    said = capsys.readouterr().err
    assert said.count("fedgh, fedproto: Attack 'linear' needs AUX-DATA") == 1
    assert "fedavg: Attack 'linear' reads Representations" in said
    assert said.rstrip().endswith("--attacks attack@target@threat.")
    options[1] = "fedgh,fedpr"
    assert benchmark.main(options) == 2 and "fedpr: Unknown protocol" in capsys.readouterr().err


def test_an_option_of_fedre_attack_is_shown_how_a_benchmark_takes_it(capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["--protocols", "fedgh", "--threat", "strong"])
    assert "Give it as --attacks attack@target@threat." in capsys.readouterr().err
