"""The ServerApp: the server of a federation, whose messages go through Flower's grid."""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from fedre_privacy.core import files
from fedre_privacy.core.errors import FedreError, MissingInputError
from fedre_privacy.core.events import Event
from fedre_privacy.core.registry import import_plugins

from .bundle import EVENTS, OUTCOME, PID, ROWS, Orders
from .client import read_settings
from .server import Facts, refused, serve

LOG = logging.getLogger("fedre_privacy")
POLL_SECONDS = 0.25
TRIES = 3
"""Times that a message is sent to a client whose app fails, or handed to a SuperLink that fails."""
AWAY = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
"""Errors of Flower's that say that a SuperNode is not there."""


def main(grid: Grid, context: Context) -> None:
    """Lead the run that the run configuration's `orders` describe."""
    orders = files.read_json(Path(str(context.run_config["orders"])), Orders)
    told = Path(orders["told"])
    files.write_text(told / PID, str(os.getpid()))
    files.write_json(told / OUTCOME, lead(orders, grid))


def lead(orders: Orders, grid: Grid) -> dict[str, Any]:
    """Train; return how it ended."""
    told = Path(orders["told"])
    try:
        import_plugins(orders["plugins"])
        settings = read_settings(Path(orders["config"]))
        if problems := refused(settings):
            raise FedreError(*problems)

        def report(event: Event) -> None:
            with (told / EVENTS).open("a") as out:
                out.write(json.dumps([event.name, event.data]) + "\n")

        serve(
            settings,
            Facts(image_shape=orders["image_shape"], num_classes=orders["num_classes"]),
            Path(orders["folder"]),
            Posts(grid, orders["patience"]),
            resume=orders["resume"],
            report=report,
            on_row=lambda rows: files.write_text(told / ROWS, json.dumps(rows)),
        )
    except FedreError as error:
        return {"error": [type(error).__name__, list(error.problems), error.next_step]}
    except Exception:
        return {"trace": traceback.format_exc()}
    return {}


@dataclass(frozen=True)
class _Waiting:
    """A message on its way: its number, and since when the node has been up that it went to."""

    number: str
    since: str


class Posts:
    """Sends clients messages through a grid, again where a SuperNode came back or an app failed.

    A client is the SuperNode that was registered under the name ``client<number>``, so its key
    says who it is.

    Args:
        patience: seconds to wait for all answers.
    """

    def __init__(self, grid: Grid, patience: float) -> None:
        self.grid, self.patience = grid, patience

    def __call__(self, orders: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return the clients' answers.

        Raises:
            MissingInputError: a client did not answer in time, or its app failed again and again.
        Exception: Flower's own, where the SuperLink took no message again and again.
        """
        until = time.monotonic() + self.patience
        answers: dict[int, bytes] = {}
        waiting: dict[int, _Waiting] = {}
        failed: Counter[int] = Counter()
        not_taken: Counter[int] = Counter()
        why: dict[int, str] = {}
        while len(answers) < len(orders):
            nodes = self.nodes()
            for k in orders:
                if k in answers or k not in nodes:
                    continue
                node, since = nodes[k]
                if k in waiting and waiting[k].since == since:
                    continue
                content = RecordDict({"fedre": ConfigRecord({"bytes": orders[k]})})
                message = Message(content, node, "train")
                try:
                    (number,) = self.grid.push_messages([message])
                except Exception as error:  # a SuperLink that was restarted loses half a message
                    LOG.warning("the SuperLink did not take a message to client %d: %s", k, error)
                    not_taken[k] += 1
                    if not_taken[k] == TRIES:
                        raise
                    continue
                if number:
                    waiting[k] = _Waiting(number, since)
            owners = {one.number: k for k, one in waiting.items()}
            for reply in self.grid.pull_messages(list(owners)) if owners else ():
                k = owners[reply.metadata.reply_to_message_id]
                del waiting[k]
                got = reply.content["fedre"]["bytes"] if reply.has_content() else None
                if isinstance(got, bytes):
                    answers[k] = got
                    continue
                if reply.has_error() and reply.error.code in AWAY:
                    continue
                failed[k] += 1
                why[k] = str(reply.error.reason) if reply.has_error() else "it sent no bytes"
            lost = [k for k in failed if failed[k] >= TRIES]
            if lost or time.monotonic() > until:
                raise _missing(lost or [k for k in orders if k not in answers], why, self.patience)
            time.sleep(POLL_SECONDS)
        return answers

    def nodes(self) -> dict[int, tuple[int, str]]:
        """By client: its SuperNode that is up, and since when."""
        nodes: dict[int, tuple[int, str]] = {}
        for node in self.grid.get_nodes():
            if (
                node.status == "online"
                and node.name.startswith("client")
                and node.name[6:].isdecimal()
            ):
                k = int(node.name[6:])
                if k in nodes:
                    raise FedreError(
                        f"Two SuperNodes are registered as client{k}.",
                        next_step="Remove one: flwr supernode unregister.",
                    )
                nodes[k] = (node.node_id, node.last_activated_at)
        return nodes


def _missing(clients: list[int], why: Mapping[int, str], seconds: float) -> FedreError:
    told = " ".join(f"Client {k}'s app failed: {why[k][:300]}." for k in clients if k in why)
    who = ", ".join(map(str, clients))
    return MissingInputError(
        f"No answer from client {who} within {seconds:g} s. {told}".strip(),
        next_step="Look at the log of that client and its SuperNode, start it again, and go on "
        "with --resume; what was recorded is kept.",
    )


app = ServerApp()
app.main()(main)
