"""The process of one client: ``python -m fedre_privacy.flower.process --client 0 ...``.

It holds the client, and starts the SuperNode that brings the server's messages. The two end
together; a SuperNode that died is started again.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Listener
from pathlib import Path
from types import FrameType

import torch

from fedre_privacy.core.engines import BUILT_IN
from fedre_privacy.core.errors import FedreError
from fedre_privacy.core.lock import held
from fedre_privacy.core.registry import import_plugins
from fedre_privacy.runs.device import choose_device

from .client import Worker
from .commands import start, stop

QUICK_DEATHS, QUICK_SECONDS, PAUSE_SECONDS = 25, 60.0, 3.0
"""A SuperNode that dies so many times in a row, each within so long of its start, is given up. A
SuperLink lets a SuperNode that was killed come back after a minute."""


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="python -m fedre_privacy.flower.process",
        description="One client of a federation on Flower, with its SuperNode.",
    )
    made.add_argument("--client", type=int, required=True, metavar="N", help="from 0")
    made.add_argument(
        "--folder", type=Path, required=True, help="of this client: its state, accepted/RUN.yaml"
    )
    made.add_argument("--superlink", required=True, metavar="HOST:PORT")
    made.add_argument("--root-certificates", type=Path, required=True, metavar="FILE")
    made.add_argument("--key", type=Path, required=True, help="private key of the SuperNode")
    made.add_argument("--port", type=int, required=True, help="of the SuperNode on this machine")
    made.add_argument("--device", default="cpu")
    made.add_argument("--plugin", action="append", default=[], metavar="MODULE")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the process is told to end; return its exit code."""
    options = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _leave)
    try:
        BUILT_IN["flower"].check()
        import_plugins(options.plugin)
        torch.set_num_threads(1)  # so that its numbers depend on no number of cores
        with held(options.folder), tempfile.TemporaryDirectory(prefix="fedre-") as room:
            worker = Worker(options.folder, options.client, choose_device(options.device))
            address = str(Path(room) / "client")
            node = _Node(options, address)
            try:
                _listen(worker, address, node)
            finally:
                node.end()
    except FedreError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _listen(worker: Worker, address: str, node: _Node) -> None:
    """Answer whoever connects, one after another."""
    with Listener(address, family="AF_UNIX") as listener:
        node.begin()
        while True:
            with suppress(OSError, EOFError), listener.accept() as line:
                line.send_bytes(worker.answer(line.recv_bytes()))


class _Node:
    """The SuperNode beside a client, started again when it dies."""

    def __init__(self, options: argparse.Namespace, address: str) -> None:
        self.log = options.folder / "supernode.log"
        self.home = options.folder / "flwr"
        self.command = [
            "flower-supernode",
            "--superlink", options.superlink,
            "--port", str(options.port),
            "--root-certificates", str(options.root_certificates),
            "--auth-supernode-private-key", str(options.key),
            "--node-config", f'client={options.client} socket="{address}"',
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._keep_up, daemon=True)

    def begin(self) -> None:
        self.thread.start()

    def end(self) -> None:
        self.over.set()
        if self.thread.is_alive():
            self.thread.join()

    def _keep_up(self) -> None:
        deaths = 0
        while not self.over.is_set() and deaths < QUICK_DEATHS:
            began = time.monotonic()
            process = start(self.command, self.log, self.home)
            (self.log.parent / "supernode.pid").write_text(str(process.pid))
            while process.poll() is None and not self.over.wait(0.2):
                pass
            stop([process])
            deaths = deaths + 1 if time.monotonic() - began < QUICK_SECONDS else 0
            self.over.wait(PAUSE_SECONDS)
        if not self.over.is_set():
            print(f"The SuperNode ended {deaths} times; see {self.log}.", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
