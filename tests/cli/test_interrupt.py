"""Stopped in the middle: what is kept, what is said, and going on to the same numbers."""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.attacks.common import tiling as driver
from fedre_privacy.attacks.inversion import search_settings as inversion
from fedre_privacy.cli import attack, benchmark
from fedre_privacy.federation import loop
from fedre_privacy.reports import attack as pages

pytestmark = pytest.mark.slow

SLOW = ["--attack", "pixel", "--target", "representations", "--targets", "24"]
SLOW += ["--set", "attack.steps=250", "--set", "eval.metrics=psnr"]
HERE = ["--isolation", "same-process"]
"""Run the attack where a test can reach into it."""


def after(calls: int, real: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """Let a function work so many times, then fail."""
    left = [calls]

    def call(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return real(*arguments, **options)

    return call


def no_leftovers(folder: Path) -> bool:
    """No temporary file; a kill leaves none that looks whole either."""
    return not [path for path in folder.rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize("command", ["train", "attack"])
def test_interrupted_training(
    cli: Any,
    run: Path,
    tiny: list[str],
    fast: list[str],
    nowhere: Path,
    read_json: Callable[[Path], Any],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    call = getattr(cli, command)
    options = [*tiny, *(fast if command == "attack" else [])]
    folder = nowhere / "runs" / run.name
    with monkeypatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1)
        patch.setattr(loop, "client_step", after(6, loop.client_step, KeyboardInterrupt()))
        stopped = call(*options)
    assert stopped.code == 130 and stopped.err.splitlines() == [
        "Interrupted. What was finished is kept.",
        "Give the same command with --resume to go on.",
    ]
    assert read_json(folder / "record.json")["status"] == "partial" and no_leftovers(folder)
    assert (folder / "checkpoints").is_dir()

    refused = call(*options)
    assert refused.code == 2
    assert f"Run runs/{run.name} was started before and is partial." in refused.err
    assert "Add --resume to go on from where it stopped, or --restart to begin anew" in refused.err
    by_folder = cli.attack(folder)
    assert by_folder.code == 4 and "is partial: training did not finish." in by_folder.err
    assert "training is partial; go on with --resume" in cli.attack("list", "--for", folder).out
    assert call(*options, "--dry-run").code == 2

    other = call(*options, "--set", "train.lr=0.01", "--resume")
    assert other.code == 2 and "--resume found no unfinished fedre-digits-" in other.err
    assert f"unfinished with other settings: {run.name}." in other.err
    assert f"Use the settings in runs/{run.name}/config.yaml" in other.err

    done = []
    monkeypatch.setattr(
        loop, "client_step", lambda *a, **k: (done.append(a[-1].round), real_step(*a, **k))[1]
    )
    resumed = call(*options, "--resume")
    assert resumed.code == 0, resumed.err
    assert sorted(set(done)) == [2, 3]  # round 1 came from the checkpoint
    assert not (folder / "checkpoints").exists() and no_leftovers(folder)
    for name in ("uploads/index.json", "config.yaml"):
        assert (folder / name).read_bytes() == (run / name).read_bytes()
    mine, theirs = (read_json(path / "record.json") for path in (folder, run))
    assert mine["status"] == "complete" and mine["final"] == theirs["final"]
    assert (folder / "models/r0003.safetensors").read_bytes() == (
        run / "models/r0003.safetensors"
    ).read_bytes()


real_step = loop.client_step


def test_restart_of_an_unfinished_training(
    cli: Any, run: Path, tiny: list[str], fast: list[str], nowhere: Path, monkeypatch: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(loop, "client_step", after(2, loop.client_step, KeyboardInterrupt()))
        assert cli.attack(*tiny, *fast).code == 130
    done = cli.attack(*tiny, *fast, "--restart")
    assert done.code == 0, done.err
    folder = nowhere / "runs" / run.name
    assert (folder / "uploads/index.json").read_bytes() == (run / "uploads/index.json").read_bytes()


@dataclass(frozen=True)
class Undisturbed:
    name: str
    recovered: bytes
    table: list[str]


@pytest.fixture(scope="module")
def plain(cli: Any, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """What the slow attack comes to when nobody stops it."""
    target = tmp_path_factory.mktemp("plain") / run.name
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("attacks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "save_figure", lambda figure, path: [])
        done = cli.attack(target, *SLOW)
    assert done.code == 0, done.err
    (folder,) = (target / "attacks").iterdir()
    return Undisturbed(folder.name, (folder / "recovered.safetensors").read_bytes(), done.table)


@pytest.mark.slow
def test_interrupted_attack(
    cli: Any,
    copy: Path,
    plain: Undisturbed,
    read_json: Callable[[Path], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = copy / "attacks" / plain.name
    monkeypatch.setattr(inversion.torch, "get_num_threads", lambda: 1)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "progress", after(1, driver.progress, KeyboardInterrupt()))
        stopped = cli.attack(copy, *SLOW, *HERE, "--json")
    assert stopped.code == 130 and stopped.events[-1]["type"] == "Interrupted"
    assert read_json(folder / "record.json")["status"] == "partial" and no_leftovers(folder)
    assert len(list((folder / "checkpoints").iterdir())) == 1

    refused = cli.attack(copy, *SLOW)
    assert refused.code == 2 and f"Attack {folder} was started before and is par" in refused.err
    other = cli.attack(copy, *SLOW, "--set", "attack.lr=0.2", "--resume")
    assert other.code == 2 and f"unfinished with other settings: {folder.name}." in other.err

    begun = []
    real = driver.progress
    monkeypatch.setattr(driver, "progress", lambda *a, **o: (begun.append(1), real(*a, **o))[1])
    resumed = cli.attack(copy, *SLOW, *HERE, "--resume")
    assert resumed.code == 0, resumed.err
    assert len(begun) == 3  # of four tiles
    assert (folder / "recovered.safetensors").read_bytes() == plain.recovered
    assert resumed.table == plain.table and not (folder / "checkpoints").exists()


def test_failure_in_an_attack_is_logged_in_its_folder(
    cli: Any, copy: Path, fast: list[str], read_json: Callable[[Path], Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(inversion, "fit_tile", after(0, inversion.fit_tile, RuntimeError("odd")))
    done = cli.attack(copy, *fast, *HERE, "--runs-dir", copy.parent)
    assert done.code == 1
    assert done.err.splitlines()[0] == "Unexpected error: RuntimeError: odd"
    (folder,) = (copy / "attacks").iterdir()
    assert "RuntimeError: odd" in (folder / "log.txt").read_text()
    record = read_json(folder / "record.json")
    assert record["status"] == "failed" and "odd" in record["failure"]


def wait_for(pattern: str, folder: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not any(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"no {pattern} after two minutes"
        time.sleep(0.002)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=["kill", "ctrl-c", "terminate"]
)
def test_attack_stopped_from_outside(
    cli: Any,
    copy: Path,
    plain: Undisturbed,
    read_json: Callable[[Path], Any],
    how: signal.Signals,
) -> None:
    process = cli.start("attack", copy, *SLOW)
    wait_for("attacks/*/checkpoints/rows-*.safetensors", copy, process)
    process.send_signal(how)
    out, err = process.communicate(timeout=120)
    folder = copy / "attacks" / plain.name
    assert read_json(folder / "record.json")["status"] == "partial"
    assert not (folder / "recovered.safetensors").exists()
    assert 1 <= len(list((folder / "checkpoints").glob("rows-*"))) < 4
    if how == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
        assert no_leftovers(folder)
    resumed = cli.attack(copy, *SLOW, "--resume")
    assert resumed.code == 0, resumed.err
    assert (folder / "recovered.safetensors").read_bytes() == plain.recovered
    assert resumed.table == plain.table


def test_an_interrupted_benchmark_goes_on_with_the_same_command(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = after(0, print, KeyboardInterrupt())
    monkeypatch.setattr("fedre_privacy.cli.benchmark.run", stopped)
    assert benchmark.main(["--protocols", "fedre"]) == 130
    assert capsys.readouterr().err.splitlines() == [
        "Interrupted. What was finished is kept.",
        "Give the same command again to go on.",
    ]


def test_a_dry_run_that_is_interrupted_has_kept_nothing(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedre_privacy.cli.attack.run", after(0, print, KeyboardInterrupt()))
    assert attack.main(["--protocol", "fedre", "--dry-run"]) == 130
    assert capsys.readouterr().err.splitlines() == [
        "Interrupted. A dry run keeps nothing.",
        "Give the same command again to go on.",
    ]
