"""The Flower app of a run, and the files by which its server is told what to do and tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

from fedre_privacy import __version__
from fedre_privacy.core import files

EVENTS, ROWS, OUTCOME, PID = "events.jsonl", "rows.json", "outcome.json", "server.pid"
"""What a server tells: its reports, all rows of metrics, how it ended, its process."""

SERVE = "from fedre_privacy.flower import app as server\n\napp = server.app\n"
RELAY = Path(__file__).with_name("relay.py")


class Orders(TypedDict):
    """What the server of a run is told, in a JSON file on its machine.

    Args:
        config: the run's ``config.yaml``, named RUN.yaml.
        folder: where uploads and checkpoints go. told: where events, metrics and the outcome go.
        patience: seconds to wait for clients in a step.
    """

    config: str
    folder: str
    told: str
    image_shape: tuple[int, int, int]
    num_classes: int
    resume: bool
    patience: float
    plugins: list[str]


def write_app(folder: Path, orders: Path) -> None:
    """Write the app that ``flwr run`` takes.

    Args:
        orders: path of the server's orders, on the server's machine.
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
orders = {json.dumps(str(orders))}
""",
    )
