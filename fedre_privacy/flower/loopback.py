"""A whole federation on this machine: a SuperLink, and clients and the server as processes.

It is what several machines would be, over TLS and with authenticated SuperNodes, but for one
thing: an evaluator can bring the clients' models and provenance along afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from fedre_privacy.core import files
from fedre_privacy.core.errors import FedreError, IncompatibleError, InUseError
from fedre_privacy.core.events import Event
from fedre_privacy.runs.training import Work

from .bundle import EVENTS, OUTCOME, PID, ROWS, Orders, write_app
from .client import ACCEPTED
from .commands import flwr, require_flower, start, stop
from .server import refused
from .truth import bring
from .wire import error_of

HOST, NAME = "127.0.0.1", "loopback"
DATABASE = "superlink.db"
"""What the SuperLink keeps, so that it can be started again."""
START_SECONDS = 120.0
"""A SuperLink or a server that is not there after this long will not come."""
REVIVALS = 5
"""Times that the process of a client is started again."""


def flower(work: Work) -> None:
    """Train with clients and server as processes of a federation on this machine.

    Raises:
        MissingExtraError: Flower is not installed.
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
        plugins: modules that clients and server import.
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
        self.revived = 0

    def __enter__(self) -> Self:
        """Start the SuperLink, register the clients' keys, and start the clients.

        Raises:
            MissingExtraError, InUseError, FedreError: no Flower; the port is taken; no SuperLink.
        """
        require_flower()
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
        try:
            self._start_link()
            everyone = range(self.clients)
            flwr([self._registration(k) for k in everyone], self.home, START_SECONDS)
            self.parties = [self._start_client(k) for k in everyone]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        settings = work.settings
        problems = refused(settings)
        if settings.train.clients != self.clients:
            problems.append(f"This federation has {self.clients} clients.")
        if problems:
            raise IncompatibleError(*problems)
        if self.link is not None and self.link.poll() is not None:
            stop([self.link])
            self._start_link()
        told = self.folder / "server" / settings.run_name
        shutil.rmtree(told, ignore_errors=True)
        config = told / f"{settings.run_name}.yaml"
        files.write_yaml(config, settings.plain())
        for k in range(self.clients):
            own = self.client_folder(k)
            if not work.resume:
                shutil.rmtree(own / settings.run_name, ignore_errors=True)
            accepted = own / ACCEPTED / config.name
            files.write_yaml(accepted, settings.plain())
        orders = Orders(
            config=str(config),
            folder=str(work.folder.absolute()),
            told=str(told),
            image_shape=work.prepared.setting.image_shape,
            num_classes=work.prepared.setting.num_classes,
            resume=work.resume,
            patience=self.patience,
            plugins=self.plugins,
        )
        files.write_json(told / "orders.json", orders)
        write_app(told / "app", told / "orders.json")
        flwr([["run", str(told / "app"), NAME]], self.home)
        self._follow(work, told)
        if settings.record.truth:
            places = [self.client_folder(k) / settings.run_name for k in range(self.clients)]
            bring(work.prepared.record, settings.train.rounds, work.folder, places)
        for k in range(self.clients):
            shutil.rmtree(self.client_folder(k) / settings.run_name, ignore_errors=True)

    def _follow(self, work: Work, told: Path) -> None:
        """Pass on what the server tells until it has ended."""
        read = 0
        rows: list[dict[str, Any]] = []
        until = time.monotonic() + START_SECONDS
        while True:
            ended = (told / OUTCOME).is_file()
            gone = not ended and self._server_gone(told, until)
            if (told / ROWS).is_file():
                latest = json.loads((told / ROWS).read_text())
                if latest != rows:
                    rows = latest
                    work.on_row(rows)
            if (told / EVENTS).is_file():
                lines = (told / EVENTS).read_text().split("\n")[:-1]
                for line in lines[read:]:
                    work.report(Event(*json.loads(line)))
                read = len(lines)
            if ended:
                break
            if gone and not (told / OUTCOME).is_file():
                raise FedreError(
                    f"The server's process ended without a word; see {self.log('superlink')}.",
                    next_step="Give the command again with --resume; what was recorded is kept.",
                )
            self._revive()
            time.sleep(0.2)
        outcome = files.read_json(told / OUTCOME, dict)
        if "error" in outcome:
            raise error_of(*outcome["error"])
        if "trace" in outcome:
            raise RuntimeError(f"the server failed:\n{outcome['trace']}")

    def _server_gone(self, told: Path, until: float) -> bool:
        if self.link is not None and self.link.poll() is not None:
            return True
        with suppress(OSError, ValueError):
            if _alive(int((told / PID).read_text())):
                return False
        return (told / PID).is_file() or time.monotonic() > until

    def _revive(self) -> None:
        """Start clients again whose processes have died."""
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
        self._wait_for_link()

    def _registration(self, k: int) -> list[str]:
        key = str(self.keys / f"client{k}.pub")
        return ["supernode", "register", key, NAME, "--name", f"client{k}"]

    def _wait_for_link(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            ended = self.link is None or self.link.poll() is not None
            if ended or time.monotonic() > until:
                raise FedreError(
                    f"The SuperLink did not start: {_last_words(self.log('superlink'))}"
                )
            with suppress(OSError), socket.create_connection((HOST, self.port), 1):
                return
            time.sleep(0.1)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not.

    Raises:
        OSError: there is no such process.
    """
    os.kill(pid, 0)
    state = Path(f"/proc/{pid}/stat")
    return not state.is_file() or state.read_text().rpartition(")")[2].split()[0] != "Z"


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
