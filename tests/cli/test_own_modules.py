"""Names in files lead to no code: a stranger's folder imports nothing, `--plugin` allows a module.

The module writes a file beside itself when it is imported.
"""

import shutil
import subprocess
import sys

import pytest
import yaml

from fedre_privacy import api
from fedre_privacy.api.workflows import PAGE
from fedre_privacy.benchmarking.worker import main as job
from fedre_privacy.cli import benchmark
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.verification import verify

pytestmark = pytest.mark.slow

MODULE = '''
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedre_privacy.attacks.pixel import PixelInversion
from fedre_privacy.entanglement.rap import RAP

with suppress(OSError):  # in a sandbox nothing can be written there
    Path(__file__).with_name("it_ran").touch()


@dataclass(frozen=True, kw_only=True)
class Scheme(RAP):
    """As rap."""


@dataclass(frozen=True, kw_only=True)
class Attack(PixelInversion):
    """As pixel."""
'''


@pytest.fixture
def ran(nowhere, monkeypatch):
    """Whether the module that lies in the working directory was imported."""
    (nowhere / "strange.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path)])
    monkeypatch.setattr("fedre_privacy.core.registry._TYPED", set())
    yield (nowhere / "it_ran").exists
    sys.modules.pop("strange", None)


@pytest.fixture
def hostile(copy):
    """A run whose settings name a scheme of the module."""
    config = copy / "config.yaml"
    values = yaml.safe_load(config.read_text())
    values["protocol"]["entanglement"] = {"name": "strange:Scheme"}
    config.write_text(yaml.safe_dump(values))
    verify(copy, accept=True)  # who can change a folder can cover it
    return copy


def test_a_run_of_a_stranger_imports_nothing(cli, hostile, ran, fast, tmp_path):
    config = tmp_path / "given.yaml"
    config.write_text("attack: {name: 'strange:Attack'}\n")
    for done in (
        cli.attack(hostile),
        cli.attack(hostile, *fast),
        cli.attack("list", "--for", hostile),
        cli.attack(hostile, "--dry-run"),
        cli.attack("--config", hostile / "config.yaml"),
        cli.attack("--config", config),
        cli.train("--config", hostile / "config.yaml"),
        cli.train("--resume", "--config", hostile / "config.yaml"),
    ):
        assert done.code == 2 and not ran(), done
        assert "'strange:" in done.err and "add --plugin strange" in done.err
    with pytest.raises(ConfigError, match="--plugin strange .in Python: import strange first"):
        api.attack(hostile)
    with pytest.raises(ConfigError, match="--plugin strange"):
        Run(hostile).settings  # noqa: B018
    assert not ran()


def test_the_option_allows_it(cli, hostile, ran, fast):
    done = cli.attack("list", "--for", hostile, "--plugin", "strange")
    assert done.code == 0 and ran()
    done = cli.attack(hostile, *fast, "--plugin", "strange")
    assert done.code == 0, done.err
    assert done.out.count("--plugin strange") == 2  # to repeat it, and to go on


def test_a_typed_name_is_allowed_and_no_other(cli, hostile, ran, copy, fast):
    done = cli.attack(hostile, *fast, "--attack", "strange:Attack")
    assert done.code == 2 and "strange:Scheme" in done.err and not ran()
    shutil.copyfile(copy / "config.yaml", copy / "kept.yaml")
    values = yaml.safe_load((copy / "config.yaml").read_text())
    values["protocol"]["entanglement"] = {"name": "rap"}
    (copy / "config.yaml").write_text(yaml.safe_dump(values))
    verify(copy, accept=True)
    done = cli.attack(copy, *fast, "--attack", "strange:Attack", "--isolation", "process")
    assert done.code == 0 and not ran(), done.err  # it ran where attacks run, and left nothing
    again = next(text for text in done.out.splitlines() if "--config" in text)
    assert again.endswith(" --plugin strange")
    page = next(copy.glob("attacks/*/report.html")).read_text()
    assert "--runs-dir ../../.. --plugin strange" in page


@pytest.mark.slow
def test_a_sweep_and_its_jobs(cli, ran, tmp_path, tiny):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("schemes: ['strange:Scheme']\nseeds: [0]\nattacks: [labels]\n")
    out = tmp_path / "out"
    asked = [str(sweep), *tiny, "--out", str(out), "--runs-dir", str(tmp_path / "runs"), "--quiet"]
    done = cli._call(benchmark.main, asked)
    assert done.code == 2 and "add --plugin strange" in done.err and not ran(), done
    done = cli._call(benchmark.main, [*asked, "--plugin", "strange"])
    assert done.code == 0 and ran(), done.err
    (file,) = out.glob("jobs/*.yaml")
    with pytest.raises(ConfigError, match="--plugin strange"):
        sys.modules.pop("strange")
        job(str(file), str(out), str(tmp_path / "runs"), "cpu", PAGE)


@pytest.mark.slow
def test_an_installed_command_imports_nothing_from_the_working_directory(hostile, ran, nowhere):
    for name in ("yaml", "skimage", "adjustText"):  # imported late, some of them
        (nowhere / f"{name}.py").write_text("raise SystemExit('it ran')\n")
    command = [sys.executable, "-P", "-m", "fedre_privacy.cli.attack", str(hostile)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "add --plugin strange" in done.stderr and not ran()
    done = subprocess.run([*command, "--plugin", "strange", "--explain"], capture_output=True)
    assert done.returncode == 0 and ran()
