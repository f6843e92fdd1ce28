"""Small comforts: versions, completion, a page that opens by itself, commands without scripts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedre_privacy
from fedre_privacy.__main__ import COMMANDS, main
from fedre_privacy.cli import attack, audit, benchmark, membership, train, view

PARSERS = {
    one.__name__.rpartition(".")[2]: one
    for one in (attack, audit, benchmark, membership, train, view)
}


@pytest.mark.parametrize("name", PARSERS)
def test_every_command_tells_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        PARSERS[name].main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"fedre-{name}, fedre-privacy {fedre_privacy.__version__}\n"


def test_commands_run_without_their_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(COMMANDS) == set(PARSERS)
    assert main([]) == 0 and main(["nonsense"]) == 2 and main(["--version"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in COMMANDS) and fedre_privacy.__version__ in told
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "usage: fedre-train" in capsys.readouterr().out
    done = subprocess.run([sys.executable, "-m", "fedre_privacy"], capture_output=True, text=True)
    assert done.returncode == 0 and "fedre-attack list" in done.stdout


@pytest.mark.parametrize("name", PARSERS)
def test_bash_completes_options(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        PARSERS[name].main(["--print-completion", "bash"])
    assert stopped.value.code == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    asked = (
        f"source {script}; COMP_WORDS=(fedre-{name} --vers); COMP_CWORD=1; "
        rf"$(complete -p fedre-{name} | sed 's/.*-F \([^ ]*\).*/\1/'); "
        "echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True)
    assert "--version" in done.stdout, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_too(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train.main(["--print-completion", shell])
    assert "protocol" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(set(PARSERS) - {"train"}))
def test_every_command_that_writes_a_page_can_open_it(name: str) -> None:
    assert "--open" in PARSERS[name].parser().format_help()


@pytest.mark.slow
def test_the_report_opens_in_a_browser(
    cli: Any, run: Path, fast: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    started = cli.start("attack", run, *fast, "--open", "--quiet")
    _, err = started.communicate()
    assert started.returncode == 0, err
    page = Path(opened.read_text().strip().removeprefix("file://"))
    assert page.name == "report.html" and page.is_file()


@pytest.mark.parametrize(
    ("words", "folder"),
    [([], "runs"), (["a"], "a"), (["--runs-dir", "b"], "b"), (["--runs-dir", "b", "a"], "a")],
)
def test_the_viewer_takes_its_folder_as_a_word_or_as_other_commands_do(words, folder):
    assert view.parser().parse_args(words).runs == Path(folder)
