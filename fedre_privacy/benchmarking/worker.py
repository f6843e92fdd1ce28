"""The process of one job of a benchmark; the words after the module's name are `main`'s."""

from __future__ import annotations

import os
import pkgutil
import socket
import sys
import threading
import time
from pathlib import Path

from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.registry import import_plugins
from fedre_privacy.runs.device import VISIBLE, choose_device
from fedre_privacy.runs.folder import COMPLETE
from fedre_privacy.runs.resolution import require_resolved, resolve_attack, resolve_training

from .executors import LOST, PARENT
from .jobs import BenchmarkJob, Place
from .sweep import run_job


def main(file: str, folder: str, runs: str, device: str, page: str, *plugins: str) -> int:
    """Run the job described in a file; return 0 if it finished well.

    Args:
        device: auto, cpu, cuda or cuda:N, chosen here.
        page: ``module:function`` that writes the page of a finished attack.
        plugins: modules to which names in the file may lead.

    Raises:
        ConfigError: this machine has no such device.
    """
    import_plugins(plugins)
    chosen = choose_device(device)
    print(f"{socket.gethostname()}: {chosen}, {VISIBLE}={os.environ.get(VISIBLE, '')}", flush=True)
    values = load_yaml(Path(file)).values
    problems: list[str] = []
    training = resolve_training(values["training"], {}, problems)
    attacks = [resolve_attack(chosen, {}, problems) for chosen in values["attacks"]]
    job = BenchmarkJob(
        values["label"],
        values["seed"],
        require_resolved(training, problems),
        tuple(require_resolved(settings, problems) for settings in attacks),
    )
    result = run_job(
        job, Place(Path(folder), Path(runs)), chosen, pkgutil.resolve_name(page), _end_here
    )
    return 0 if result["status"] == COMPLETE else 1


def _end_here() -> None:
    """End a job that another machine has taken over, before it writes what that one writes."""
    os._exit(LOST)


def _end_with(parent: int) -> None:
    """End this process soon after the one that started it, however that ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    if PARENT in os.environ:
        threading.Thread(target=_end_with, args=(int(os.environ[PARENT]),), daemon=True).start()
    sys.exit(main(*sys.argv[1:]))
