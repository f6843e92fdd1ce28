"""The ServerApp: it hands the server's messages to Flower's grid, and answers back.

The server is the process that trains. It connects to a socket of this app, sends messages by
client's number, and gets the clients' answers.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Listener

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from fedre_privacy.core.errors import FedreError, MissingInputError

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
    """Tell the server this process's number, and pass its messages on until it hangs up."""
    posts = Posts(grid, float(context.run_config["patience"]))
    with Listener(str(context.run_config["socket"]), family="AF_UNIX") as listener:
        with listener.accept() as line:
            line.send(os.getpid())
            while True:
                try:
                    orders = line.recv()
                except EOFError:
                    return
                try:
                    line.send(posts(orders))
                except FedreError as error:
                    line.send((type(error).__name__, error.problems, error.next_step))


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
        waiting: dict[
            int, tuple[str, str]
        ] = {}  # a message's number, and since when its node is up
        failed, not_taken = Counter[int](), Counter[int]()
        why: dict[int, str] = {}
        while len(answers) < len(orders):
            nodes = self.nodes()
            for k in orders:
                if k in answers or k not in nodes:
                    continue
                if k in waiting and waiting[k][1] == nodes[k][1]:
                    continue
                content = RecordDict({"fedre": ConfigRecord({"bytes": orders[k], "client": k})})
                try:
                    (number,) = self.grid.push_messages([Message(content, nodes[k][0], "train")])
                except Exception as error:  # a SuperLink that was restarted loses half a message
                    LOG.warning("the SuperLink did not take a message to client %d: %s", k, error)
                    not_taken[k] += 1
                    if not_taken[k] == TRIES:
                        raise
                    continue
                if number:
                    waiting[k] = (number, nodes[k][1])
            owners = {number: k for k, (number, _) in waiting.items()}
            for reply in self.grid.pull_messages(list(owners)) if owners else ():
                k = owners[reply.metadata.reply_to_message_id]
                del waiting[k]
                got = reply.content["fedre"]["bytes"] if reply.has_content() else None
                if isinstance(got, bytes):
                    answers[k] = got
                elif not (reply.has_error() and reply.error.code in AWAY):
                    failed[k] += 1
                    why[k] = str(reply.error.reason) if reply.has_error() else "it sent no bytes"
            lost = [k for k in failed if failed[k] >= TRIES]
            if lost or time.monotonic() > until:
                raise _missing_clients(
                    lost or [k for k in orders if k not in answers], why, self.patience
                )
            time.sleep(POLL_SECONDS)
        return answers

    def nodes(self) -> dict[int, tuple[int, str]]:
        """By client: its SuperNode that is up, and since when."""
        nodes: dict[int, tuple[int, str]] = {}
        for node in self.grid.get_nodes():
            number = node.name.removeprefix("client")
            if node.status != "online" or number == node.name or not number.isdecimal():
                continue
            if int(number) in nodes:
                raise FedreError(
                    f"Two SuperNodes are registered as {node.name}.",
                    next_step="Remove one: flwr supernode unregister.",
                )
            nodes[int(number)] = (node.node_id, node.last_activated_at)
        return nodes


def _missing_clients(clients: list[int], why: Mapping[int, str], seconds: float) -> FedreError:
    told = " ".join(f"Client {k}'s app failed: {why[k][:300]}." for k in clients if k in why)
    who = ", ".join(map(str, clients))
    return MissingInputError(
        f"No answer from client {who} within {seconds:g} s. {told}".strip(),
        next_step="Look at the log of that client and its SuperNode, start it again, and go on "
        "with --resume; what was recorded is kept.",
    )


app = ServerApp()
app.main()(main)
