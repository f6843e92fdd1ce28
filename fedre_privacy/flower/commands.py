"""Flower's own commands: where they are, what they are told, and how they end."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fedre_privacy import __version__
from fedre_privacy.core import files
from fedre_privacy.core.errors import FedreError, MissingExtraError
from fedre_privacy.core.threads import end_with_parent

INSTALL = "pip install 'fedre-privacy[flower]'"
SERVE = "from fedre_privacy.flower import app as server\n\napp = server.app\n"
RELAY = Path(__file__).with_name("relay.py")


def write_app(folder: Path, address: str, patience: float) -> None:
    """Write the app that ``flwr run`` takes.

    Args:
        address: socket at which the ServerApp listens. patience: see `app.Posts`.
    """
    files.write_text(folder / "relay.py", RELAY.read_text())
    files.write_text(folder / "serve.py", SERVE)
    files.write_text(
        folder / "pyproject.toml",
        f"""[project]
name = "fedre-app"
version = "{__version__}"
description = "A federation of fedre-privacy"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedre"

[tool.flwr.app.components]
serverapp = "serve:app"
clientapp = "relay:app"

[tool.flwr.app.config]
socket = {json.dumps(address)}
patience = {float(patience)}
""",
    )


def variables(home: Path) -> dict[str, str]:
    """Environment of Flower's commands: no telemetry, a folder of its own, short polls."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([*_places(), os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def _places() -> list[str]:
    """Folders in which an installer may have put Flower's commands."""
    spec = importlib.util.find_spec("flwr")
    package = [Path(spec.origin).parent.parent / "bin"] if spec and spec.origin else []
    return [str(place) for place in (Path(sys.executable).parent, *package)]


def start(command: Sequence[str], log: Path, home: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, and write what it says to a file."""
    found = shutil.which(command[0], path=variables(home)["PATH"])
    if found is None:
        raise MissingExtraError(f"The command {command[0]} is not installed.", next_step=INSTALL)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            [found, *command[1:]], env=variables(home), stdin=subprocess.DEVNULL,
            stdout=out, stderr=out, preexec_fn=end_with_parent, start_new_session=True,
        )  # fmt: skip


def stop(processes: Sequence[subprocess.Popen[bytes]], seconds: float = 10.0) -> None:
    """End processes and what they started: first with a word, then without."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        try:  # what it started, in its session
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        process.wait()


FLWR = (
    "import json, sys; from flwr.cli.app import app\n"
    "for words in json.loads(sys.argv[1]): app(words, standalone_mode=False)"
)


def flwr(commands: Sequence[Sequence[str]], home: Path, seconds: float = 120.0) -> str:
    """Run commands of ``flwr`` one after another in one process; return what they say.

    Raises:
        FedreError: one of them failed, with its last words.
    """
    words = [sys.executable, "-c", FLWR, json.dumps(commands)]
    ended = subprocess.run(
        words, env=variables(home), capture_output=True, text=True, timeout=seconds, check=False
    )
    if ended.returncode:
        said = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
        raise FedreError(f"flwr {' '.join(commands[0][:2])} failed: {' '.join(said[-3:])}")
    return ended.stdout
