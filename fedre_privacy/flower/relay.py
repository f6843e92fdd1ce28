"""The ClientApp: it hands the server's bytes to the client's process beside it, and back.

Flower starts a process for every message. This one therefore imports Flower and nothing of ours;
data, model and state stay in the client's process, which listens on a socket (`process`).
"""

import time
from multiprocessing.connection import Client

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

PATIENCE = 120.0
"""For so long (seconds) a client's process may be away."""


def relay(message: Message, context: Context) -> Message:
    """Answer a message of the server."""
    sent = message.content["fedre"]["bytes"]
    if not isinstance(sent, bytes):
        raise TypeError("The server sent no bytes.")
    answer = exchange(str(context.node_config["socket"]), sent)
    return Message(RecordDict({"fedre": ConfigRecord({"bytes": answer})}), reply_to=message)


def exchange(path: str, sent: bytes) -> bytes:
    """Send bytes to the process that listens at a socket, and return its answer.

    Raises:
        OSError, EOFError: nobody listens, or who did has died.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            line = Client(path, family="AF_UNIX")
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    with line:
        line.send_bytes(sent)
        return line.recv_bytes()


app = ClientApp()
app.train()(relay)
