"""A whole federation on this machine: a SuperLink, and each client as a process.

It is what several machines would be, over TLS and with authenticated SuperNodes, but for one
thing: an evaluator can bring the clients' models and provenance along afterwards.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Self

import torch

from fedre_privacy.core import files
from fedre_privacy.core.engines import BUILT_IN
from fedre_privacy.core.errors import FedreError, IncompatibleError, InUseError
from fedre_privacy.runs.training import Work

from .commands import flwr, start, stop, write_app
from .server import Ask, serve_work, with_clients
from .wire import error_of

HOST, NAME = "127.0.0.1", "loopback"
DATABASE = "superlink.db"
"""What the SuperLink keeps, so that it can be started again."""
START_SECONDS = 120.0
"""A SuperLink or a server that is not there after this long will not come."""
REVIVALS = 5
"""Times that the process of a client is started again."""


def flower(work: Work) -> None:
    """Train with clients as processes of a federation on this machine.

    Raises:
        FedreError: what the federation ended with.
    """
    place = work.folder / "federation"
    settings, device = work.settings, work.prepared.setting.device
    clients = settings.train.clients
    with Loopback(place, clients, device, plugins=settings.plugins()) as federation:
        federation(work)
    shutil.rmtree(place, ignore_errors=True)


class Loopback:
    """A federation that runs as long as a block does, and trains one run after another.

    Args:
        folder: of keys, logs and clients' states. clients: how many.
        port: of the SuperLink; 0: a free one. patience: seconds to wait for clients in a step.
        plugins: modules that clients import.
    """

    def __init__(
        self,
        folder: Path,
        clients: int,
        device: torch.device,
        *,
        port: int = 0,
        patience: float = 600.0,
        plugins: Sequence[str] = (),
    ) -> None:
        self.folder, self.clients, self.device = folder.absolute(), clients, device
        self.port, self.patience, self.plugins = port, patience, list(plugins)
        self.keys, self.home = self.folder / "keys", self.folder / "flwr"
        self.link: subprocess.Popen[bytes] | None = None
        self.parties: list[subprocess.Popen[bytes]] = []
        self.revived = self.server = 0

    def __enter__(self) -> Self:
        """Start the SuperLink, register the clients' keys, and start the clients.

        Raises:
            MissingExtraError, InUseError, FedreError: no Flower; the port is taken; no SuperLink.
        """
        BUILT_IN["flower"].check()
        from .keys import AUTHORITY, write_keys

        self.port = self.port or free_port()
        _refuse_taken(self.port)
        for left in self.folder.glob(f"{DATABASE}*"):  # of an earlier federation, with other keys
            left.unlink()
        write_keys(self.keys, self.clients)
        certificate = json.dumps(str(self.keys / AUTHORITY))
        files.write_text(
            self.home / "config.toml",
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
            f'address = "{HOST}:{self.port}"\nroot-certificates = {certificate}\n',
        )
        everyone = range(self.clients)
        registered = [
            ["supernode", "register", str(self.keys / f"client{k}.pub"), NAME,
             "--name", f"client{k}"] for k in everyone
        ]  # fmt: skip
        try:
            self._start_link()
            flwr(registered, self.home, START_SECONDS)
            self.parties = [self._start_client(k) for k in everyone]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process, and remove the keys."""
        stop([*self.parties, *([self.link] if self.link else [])])
        self.parties, self.link = [], None
        shutil.rmtree(self.keys, ignore_errors=True)

    def log(self, name: str) -> Path:
        """Where a process of the federation writes what it says."""
        return self.folder / "logs" / f"{name}.log"

    def entrance(self) -> int:
        """The port by which clients reach the SuperLink."""
        return self.port

    def client_folder(self, k: int) -> Path:
        """Where a client keeps what it has."""
        return self.folder / "clients" / str(k)

    def __call__(self, work: Work) -> None:
        """Train a run: an engine (see `runs.training.Engine`).

        Raises:
            IncompatibleError: settings that cannot have clients elsewhere, or other clients.
            FedreError: what the federation ended with.
        """
        if work.settings.train.clients != self.clients:
            raise IncompatibleError(f"This federation has {self.clients} clients.")
        if self.link is not None and self.link.poll() is not None:
            stop([self.link])
            self._start_link()

        def lead() -> None:
            with server_app(self.folder / "app", NAME, self.home, self.patience, self._keep_up) as (
                self.server,
                ask,
            ):
                serve_work(work, ask)

        with_clients(work, [self.client_folder(k) for k in range(self.clients)], lead)

    def _keep_up(self) -> None:
        """Start clients again whose processes have died.

        Raises:
            ConnectionError: the SuperLink has died. FedreError: a client died again and again.
        """
        if self.link is None or self.link.poll() is not None:
            raise ConnectionError(f"the SuperLink ended; see {self.log('superlink')}")
        for k, process in enumerate(self.parties):
            if process.poll() is None:
                continue
            if self.revived >= REVIVALS:
                raise FedreError(
                    f"The process of client {k} ended with exit code {process.returncode}: "
                    f"{_last_words(self.log(f'client{k}'))}",
                    next_step="Give the command again with --resume; what was recorded is kept.",
                )
            self.revived += 1
            stop([process])
            self.parties[k] = self._start_client(k)

    def _start_client(self, k: int) -> subprocess.Popen[bytes]:
        from .keys import AUTHORITY

        command = [
            sys.executable, "-m", "fedre_privacy.flower.process",
            "--client", str(k),
            "--folder", str(self.client_folder(k)),
            "--superlink", f"{HOST}:{self.entrance()}",
            "--root-certificates", str(self.keys / AUTHORITY),
            "--key", str(self.keys / f"client{k}"),
            "--port", str(free_port()),
            "--device", str(self.device),
            *(word for name in self.plugins for word in ("--plugin", name)),
        ]  # fmt: skip
        return start(command, self.log(f"client{k}"), self.home)

    def _start_link(self) -> None:
        """Start the SuperLink, which knows from its database whom it knew before."""
        from .keys import AUTHORITY, CERTIFICATE, KEY

        command = [
            "flower-superlink", "--host", HOST, "--port", str(self.port),
            "--disable-runtime-dependency-installation", "--enable-supernode-auth",
            "--database", str(self.folder / DATABASE),
            "--ssl-ca-certfile", str(self.keys / AUTHORITY),
            "--ssl-certfile", str(self.keys / CERTIFICATE),
            "--ssl-keyfile", str(self.keys / KEY),
        ]  # fmt: skip
        self.link = start(command, self.log("superlink"), self.home)
        until = time.monotonic() + START_SECONDS
        while True:
            if self.link.poll() is not None or time.monotonic() > until:
                raise FedreError(
                    f"The SuperLink did not start: {_last_words(self.log('superlink'))}"
                )
            with suppress(OSError), socket.create_connection((HOST, self.port), 1):
                return
            time.sleep(0.1)


@contextmanager
def server_app(
    folder: Path, link: str, home: Path, patience: float, keep_up: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, Ask]]:
    """Have a SuperLink run the ServerApp while a block runs.

    Args:
        folder: for the app. link: the SuperLink's name in Flower's configuration in `home`.
        patience: seconds to wait for clients in a step.
        keep_up: called while answers are waited for.

    Yields:
        The number of the app's process, and what sends clients messages through it.

    Raises:
        FedreError: the app ended or did not come.
    """
    with tempfile.TemporaryDirectory(prefix="fedre-") as room:
        address = str(Path(room) / "server")
        write_app(folder, address, patience)
        flwr([["run", str(folder), link]], home)
        until = time.monotonic() + START_SECONDS
        try:
            line = _line(address, until, keep_up)
            with line:

                def ask(orders: Mapping[int, bytes]) -> dict[int, bytes]:
                    line.send(dict(orders))
                    answer: Any = _answer(line, keep_up)
                    if isinstance(answer, tuple):
                        raise error_of(*answer)
                    answers: dict[int, bytes] = answer
                    return answers

                yield _answer(line, keep_up), ask
        except (ConnectionError, EOFError) as error:
            raise FedreError(
                f"The server's app ended without a word: {error or 'its process is gone'}.",
                next_step="Give the command again with --resume; what was recorded is kept.",
            ) from None


def _line(address: str, until: float, keep_up: Callable[[], None]) -> Connection:
    while True:
        keep_up()
        with suppress(FileNotFoundError, ConnectionRefusedError):
            return Client(address, family="AF_UNIX")
        if time.monotonic() > until:
            raise ConnectionError(f"it did not come within {START_SECONDS:g} s")
        time.sleep(0.2)


def _answer(line: Connection, keep_up: Callable[[], None]) -> Any:
    while not line.poll(0.2):
        keep_up()
    return line.recv()


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def _refuse_taken(port: int) -> None:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, port))
        except OSError as error:
            raise InUseError(
                f"Port {port} of {HOST} cannot be used: {error.strerror}.",
                next_step="End what listens there, or choose another port.",
            ) from None


def _last_words(log: Path) -> str:
    if not log.is_file():
        return "it said nothing."
    said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{' '.join(said[-3:])[-500:]} (see {log})"
