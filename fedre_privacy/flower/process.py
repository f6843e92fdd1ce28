"""The process of one client: ``python -m fedre_privacy.flower.process --client 0 ...``.

It holds the client, and starts the SuperNode that brings the server's messages. The two end
together; a SuperNode that died is started again.
"""

from __future__ import annotations

import argparse
import os
import signal
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
from fedre_privacy.core.lock import lock_folder
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
    over = threading.Event()
    try:
        BUILT_IN["flower"].check()
        import_plugins(options.plugin)
        torch.set_num_threads(1)  # so that its numbers depend on no number of cores
        with lock_folder(options.folder), tempfile.TemporaryDirectory(prefix="fedre-") as room:
            worker = Worker(options.folder, options.client, choose_device(options.device))
            address = str(Path(room) / "client")
            with Listener(address, family="AF_UNIX") as listener:
                node = threading.Thread(target=_keep_node, args=(options, address, over))
                node.start()
                try:
                    while True:  # whoever connects, one after another
                        with suppress(OSError, EOFError), listener.accept() as line:
                            line.send_bytes(worker.answer(line.recv_bytes()))
                finally:
                    over.set()
                    node.join()
    except FedreError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _keep_node(options: argparse.Namespace, address: str, over: threading.Event) -> None:
    """Run the SuperNode beside a client until all is over; start it again when it dies."""
    log: Path = options.folder / "supernode.log"
    command = [
        "flower-supernode",
        "--superlink", options.superlink,
        "--port", str(options.port),
        "--root-certificates", str(options.root_certificates),
        "--auth-supernode-private-key", str(options.key),
        "--node-config", f'client={options.client} socket="{address}"',
    ]  # fmt: skip
    deaths = 0
    while not over.is_set() and deaths < QUICK_DEATHS:
        began = time.monotonic()
        process = start(command, log, options.folder / "flwr")
        (options.folder / "supernode.pid").write_text(str(process.pid))
        while process.poll() is None and not over.wait(0.2):
            pass
        stop([process])
        deaths = deaths + 1 if time.monotonic() - began < QUICK_SECONDS else 0
        over.wait(PAUSE_SECONDS)
    if not over.is_set():
        print(f"The SuperNode ended {deaths} times; see {log}.", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
