"""What a person at a terminal, a script and a pipe get to see."""

import contextlib
import io
import math
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.cells import cell_len

from fedre_privacy.cli import attack
from fedre_privacy.cli.output import Output, table_lines
from fedre_privacy.core.config import knobs
from fedre_privacy.core.events import Event
from fedre_privacy.runs.settings import Evaluation
from fedre_privacy.runs.verification import verify


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_is_one_object_per_line(cli: Any, tiny: list[str], fast: list[str], tmp_path: Path):
    done = cli.attack(*tiny, *fast, "--target", "prototypes", "--json", "--runs-dir", tmp_path)
    assert done.code == 0 and done.err == ""
    names = [event["event"] for event in done.events]
    assert names[:3] == ["train.round"] * 3 and names[3:6] == ["train.done", "run", "attack.trial"]
    assert set(names[6:-3]) == {"attack.step"}
    assert names[-3:] == ["attack.scoring", "attack.done", "result"]
    result = done.events[-1]
    assert (Path(result["folder"]) / "record.json").is_file()
    assert result["counterfactual"] is True and result["target"] == "prototypes"
    assert [row["metric"].split(",")[0] for row in result["table"]][:2] == ["PSNR dB", "SSIM"]
    assert result["n"] == 6 and result["verdict"]


def test_json_of_training_ends_with_the_result(cli: Any, runs: Path, run: Path, tiny: list[str]):
    done = cli.train(*tiny, "--json", "--runs-dir", runs)
    assert [event["event"] for event in done.events] == ["train.reused", "run", "result"]
    assert done.events[-1]["folder"] == str(run)
    assert 0 <= done.events[-1]["final"]["acc_post_broadcast"] <= 1


@pytest.mark.parametrize("options", [["list"], ["--explain"], ["list", "--for", "RUN"]])
def test_json_descriptions_are_one_result(cli: Any, run: Path, options: list[str]):
    done = cli.attack(*[run if text == "RUN" else text for text in options], "--json")
    (event,) = done.events
    assert done.code == 0 and event["event"] == "result" and len(event) > 1


def test_json_errors_are_objects_too(cli: Any, nowhere: Path):
    done = cli.attack("--attack", "dipp", "--rounds", "0", "--json")
    (event,) = done.events
    assert done.code == event["exit"] == 2 and done.err == ""
    assert event["type"] == "ConfigError" and len(event["problems"]) == 2 and event["next"]


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]):
    output = Output(as_json=True, quiet=False)
    output(Event("attack.step", {"match": torch.tensor([1.0, math.nan]), "loss": math.inf}))
    assert capsys.readouterr().out == (
        '{"event": "attack.step", "match": [1.0, null], "loss": null}\n'
    )


def test_json_lines_of_several_threads_stay_whole(cli: Any):
    stream = io.StringIO()
    output = Output(as_json=True, quiet=False)
    event = Event("attack.step", {"match": torch.ones(50)})
    with contextlib.redirect_stdout(stream), ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: output(event), range(200)))
    assert len(set(stream.getvalue().splitlines())) == 1
    assert stream.getvalue().count("\n") == 200


def test_quiet_prints_the_path_only(cli: Any, runs: Path, run: Path, tiny: list[str], fast: Any):
    trained = cli.train(*tiny, "--quiet", "--runs-dir", runs)
    assert trained.out == f"{run}\n" and trained.err == ""
    attacked = cli.attack(run, *fast, "--quiet")
    (line,) = attacked.out.splitlines()
    assert (Path(line) / "recovered.safetensors").is_file() and attacked.err == ""


def test_no_colour_and_no_bar_without_a_terminal(cli: Any, run: Path, fast: list[str]):
    done = cli.attack(run, *fast, "--set", "eval.seed=31")
    assert "\x1b" not in done.out and "\r" not in done.out
    (attacker,) = [text for text in done.out.splitlines() if text.startswith("Attacker")]
    assert len(attacker) > 120  # one line, for grep


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int, *arguments: str) -> tuple[int, str]:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    with contextlib.redirect_stdout(stream):
        code = attack.main(list(arguments))
    return code, stream.getvalue()


@pytest.mark.slow
def test_terminal_gets_a_bar_and_wrapped_lines(
    monkeypatch: pytest.MonkeyPatch, run: Path, fast: list[str]
):
    monkeypatch.setenv("TERM", "xterm")
    seed = ["--set", "eval.seed=32", "--target", "prototypes"]
    code, text = on_terminal(monkeypatch, 100, str(run), *fast, *seed)
    assert code == 0 and "match" in text and "100 %" in text
    code, again = on_terminal(monkeypatch, 100, str(run), *fast, *seed)  # read back: no bar
    assert code == 0 and "\x1b" not in again
    lines = again.splitlines()
    for line in lines:
        if not line.startswith(("Files", "Again", "Next")):
            assert len(line) <= 100, line
    start = next(i for i, line in enumerate(lines) if line.startswith("Attacker"))
    assert lines[start + 1].startswith(" " * 11) and lines[start + 1][11] != " "
    for line in lines:  # an interval, or a value and its spread, is never torn apart
        assert line.count("[") == line.count("]") and not line.rstrip().endswith("+-")
    (command,) = [line for line in lines if line.startswith("Again")]
    assert str(run) in command and command.endswith("config.yaml")


def test_table_keeps_columns_and_content_at_any_width():
    rows = [
        {"name": "PSNR dB", "this attack": "9.56 +- 1.04", "reads as": "-10.8 under [-12.9, -8.5]"},
        {"name": "a", "this attack": "7 %", "reads as": "b"},
    ]
    wide = table_lines(rows)
    assert [re.split(r"\s{3,}", line.strip()) for line in wide] == [
        ["name", "this attack", "reads as"],
        ["PSNR dB", "9.56 +- 1.04", "-10.8 under [-12.9, -8.5]"],
        ["a", "7 %", "b"],
    ]
    assert wide[0].index("this") == wide[1].index("9.56") == wide[2].index("7 %")
    narrow = table_lines(rows, 50)
    assert all(len(line) <= 50 for line in narrow) and len(narrow) > len(wide)
    assert sorted(" ".join(narrow).split()) == sorted(" ".join(wide).split())
    assert table_lines([], 50) == []


def test_no_name_steers_the_terminal(capsys: pytest.CaptureFixture[str]):
    name = "[red]a[/red]\x1b[2J\u202e <b> $x^2$ =1+1 \r\nb"
    output = Output(as_json=False, quiet=False)
    output.line("Target", name)
    output.table([{name: name}])
    seen = capsys.readouterr().out
    assert r"[red]a[/red]\x1b[2J\u202e <b> $x^2$ =1+1 \r" in seen
    assert not {"\x1b", "\u202e", "\r"} & set(seen)
    table = table_lines([{"name": "日本", "n": "1"}, {"name": "a", "n": "2"}])
    assert {cell_len(line) for line in table} == {2 + 4 + 3 + 1}  # wide characters are two columns


def test_no_name_in_an_error_steers_the_terminal(cli: Any, nowhere: Path):
    done = cli.attack("--attack", "dip\x1b[2J\u202e")
    assert done.code == 2 and not {"\x1b", "\u202e"} & set(done.err)
    assert r"dip\x1b[2J\u202e" in done.err


@pytest.mark.parametrize("command", ["train", "attack"])
def test_explain_shows_every_setting(cli: Any, command: str, nowhere: Path):
    done = getattr(cli, command)("--explain", "--protocol", "fedgh", "--set", "train.rounds=9")
    assert done.code == 0 and list(nowhere.iterdir()) == []
    shown = {}
    for line in done.out.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if re.match(r"  \w+\.[\w.]+ ", line):
            shown[cells[0]] = cells[1:]
            assert len(cells) >= 4 and all(cells), line  # default, allowed, (unit,) meaning
    assert shown["train.rounds"][:2] == ["20", ">= 1 and <= 1000000"]
    assert shown["data.size"][:3] == ["24", ">= 4 and <= 1024", "pixels"]
    assert shown["partition.min_samples"][0] == "none"
    assert shown["record.truth"][0] == "true"
    assert {"protocol.server.lr", "model.name", "data.per_class"} <= set(shown)
    if command == "attack":
        assert {f"eval.{knob.name}" for knob in knobs(Evaluation)} <= set(shown)
        assert shown["attack.channels"][0] == "16,32"
        assert "Needs:" in done.out and "Reference:" in done.out and "Cost:" in done.out
    else:
        assert not any(key.startswith(("attack.", "eval.")) for key in shown)


def test_explain_covers_optional_metrics(cli: Any):
    done = cli.attack("--explain", "--metrics", "psnr,lpips")
    assert re.search(r"^  metrics\.lpips\.net +alex ", done.out, re.M)


@pytest.mark.parametrize("command", ["train", "attack"])
def test_help_is_short_and_names_defaults(cli: Any, command: str):
    done = getattr(cli, command)("--help")
    assert done.code == 0
    usage = done.out.split("\n\n")[0]
    assert len(usage.splitlines()) <= 3
    for text in ("default: fedre", "default: 20", "default: auto", "--resume", "--dry-run"):
        assert text in done.out


def test_list_names_what_reads_what(cli: Any):
    done = cli.attack("list")
    rows = {line.split()[0]: line for line in done.out.splitlines() if line.strip()}
    assert done.code == 0 and "BROKEN" not in done.out
    assert "Prototypes, EntangledRep" in rows["dip"] and "extractor" in rows["dip"]
    assert rows["dip"].endswith("built in")
    assert "Representations" in rows["fedallrep"] and "nothing" in rows["local"]
    assert "FedRE as published" in rows["rap"] and "paper:" in rows["presets"]


def test_list_says_when_to_use_each(cli: Any):
    done = cli.attack("list", "--json")
    (listed,) = done.events
    said = {row["attack"]: row["when to use"] for row in listed["attacks"]}
    assert "no public images" in said["dip"]
    others = listed["when to use"]
    assert others["defences"].keys() == set(listed["defences"])
    printed = {" ".join(line.split()) for line in cli.attack("list").out.splitlines()}
    for name, clause in {**said, **others["defences"], **others["metrics"]}.items():
        assert clause != "-" and f"{name} {clause}" in printed


def test_list_for_a_run_has_one_line_per_target_and_attack(cli: Any, run: Path, runs: Path):
    done = cli.attack("list", "--for", run.name, "--runs-dir", runs)
    assert done.code == 0 and "2, 3 can be attacked" in done.line("Rounds")
    rows = [line.split() for line in done.out.splitlines() if line.startswith("  ")]
    table = {(row[0], row[-3]): row for row in rows[1:] if row[-1] == "yes"}
    assert {target for target, name in table if name == "dip"} == {
        "representations", "prototypes", "entangled", "recovered-prototypes",
    }  # fmt: skip
    assert "counterfactual" in table["prototypes", "dip"]
    assert "counterfactual" not in table["entangled", "dip"]
    weak = cli.attack("list", "--for", run, "--threat", "eavesdropper")
    lines = [line for line in weak.out.splitlines() if line.startswith("  ")]
    inversion = [line for line in lines if " dip " in line or " pixel " in line]
    assert inversion
    assert all("no: needs extractor (--threat fedre-paper)" in line for line in inversion)


def test_list_for_says_which_attacks_would_need_a_loss_that_is_hidden(
    cli: Any, tiny: list[str], tmp_path: Path
):
    """What it says is possible can be asked, and what it says is not is refused."""
    small = ["--set", "protocol.small.dim=8"]
    trained = cli.train("--protocol", "fedmrl", *tiny, *small, "--runs-dir", tmp_path)
    assert trained.code == 0, trained.err
    (run,) = tmp_path.glob("fedmrl-*")
    rows = [line.split() for line in cli.attack("list", "--for", run).out.splitlines()]
    said = {row[2]: row[4] for row in rows if row[:2] == ["update", "yes"]}
    assert said["free-upstream"] == "yes" and said["update-inversion"] == "no:"
    for name in ("free-upstream", "update-inversion"):
        asked = cli.attack(run, "--target", "update", "--attack", name, "--dry-run")
        assert (asked.code == 0) == (said[name] == "yes")


def test_list_for_says_what_a_run_lacks(cli: Any, copy: Path, read_json: Callable[[Path], Any]):
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("truth: true", "truth: false"))
    for path in (copy / "models").iterdir():
        path.unlink()
    refused = cli.attack("list", "--for", copy)
    assert refused.code == 4 and "config.yaml is not the file that was recorded" in refused.err
    verify(copy, accept=True)
    done = cli.attack("list", "--for", copy)
    assert done.code == 0 and "none can be attacked" in done.line("Rounds")
    missing = [line for line in done.out.splitlines() if line.startswith("Missing")]
    assert len(missing) == 2 and "no truth" in missing[0] and "extractors" in missing[1]


class Gone(io.StringIO):
    """A pipe whose reader has left."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def fileno(self) -> int:
        return self.number


def test_a_reader_that_leaves_early_is_no_error(capsys: pytest.CaptureFixture[str]):
    """As in ``fedre-attack list | head -1``."""
    with open(os.devnull, "w") as unused, contextlib.redirect_stdout(Gone(unused.fileno())):
        code = attack.main(["list"])
    assert code == 141 and capsys.readouterr().err == ""
