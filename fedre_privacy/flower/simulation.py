"""Clients and server in Flower's own simulation: no network, clients shared out over Ray workers.

It runs the same ServerApp and the same clients as a federation of processes does. A worker takes
whichever client is next, so every message finds its client anew on disk.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedre_privacy.core.errors import FedreError
from fedre_privacy.core.registry import import_plugins
from fedre_privacy.runs.training import Work

from .client import Worker
from .server import serve_work, with_clients

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

PATIENCE = 600.0
"""Seconds that a step waits for its clients."""


def simulation(work: Work) -> None:
    """Train with clients and server as apps of Flower's simulation on this machine.

    Raises:
        IncompatibleError: settings that cannot have clients elsewhere.
        FedreError: what the server ended with.
    """
    settings, device = work.settings, work.prepared.setting.device
    place = (work.folder / "federation").absolute()
    clients = settings.train.clients

    def lead() -> None:
        ended: list[BaseException | None] = []
        over = threading.Event()
        try:
            _simulate(
                _server(work, ended, over), _client(place, device, settings.plugins()), clients,
                gpus=int(device.type != "cpu"),
            )  # fmt: skip
        finally:
            over.set()  # a server whose clients never came ends too
        if ended[0] is not None:
            raise ended[0]

    with_clients(work, [place / str(k) for k in range(clients)], lead)
    shutil.rmtree(place, ignore_errors=True)


def _simulate(server: ServerApp, client: ClientApp, clients: int, gpus: int) -> None:
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = os.environ.get("PYTHONPATH")  # Flower lengthens it
    from flwr.simulation import run_simulation

    ray = {"log_to_driver": False, "logging_level": "ERROR"}
    if "RAY_ADDRESS" not in os.environ:
        ray["address"] = "local"  # not a cluster that another left behind
    said = logging.getLogger("flwr")
    level = said.level
    said.setLevel(logging.ERROR)
    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": gpus}, "init_args": ray}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            run_simulation(server, client, clients, backend_config=backend)
    finally:
        said.setLevel(level)
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before


def _client(folder: Path, device: torch.device, plugins: Sequence[str]) -> ClientApp:
    """The app of every node: what each client keeps lies in a folder of its own."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    def answer(message: Message, context: Context) -> Message:
        import_plugins(list(plugins))
        torch.set_num_threads(1)  # so that its numbers depend on no number of cores
        given: Any = message.content["fedre"]
        k = int(given["client"])
        made = Worker(folder / str(k), k, device).answer(given["bytes"])
        return Message(RecordDict({"fedre": ConfigRecord({"bytes": made})}), reply_to=message)

    app = ClientApp()
    app.train()(answer)
    return app


def _server(work: Work, ended: list[BaseException | None], over: threading.Event) -> ServerApp:
    """The app of the server, which runs in a thread of this process; it puts down how it ended."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    from .app import Posts

    class Nodes(Posts):
        """Messages to simulated nodes, any of which can be any client."""

        def nodes(self) -> dict[int, tuple[int, str]]:
            if over.is_set():
                raise FedreError("Flower's simulation ended before its server did.")
            return {k: (node, "") for k, node in enumerate(self.grid.get_node_ids())}

    def main(grid: Grid, context: Context) -> None:
        try:
            serve_work(work, Nodes(grid, PATIENCE))
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    app = ServerApp()
    app.main()(main)
    return app
