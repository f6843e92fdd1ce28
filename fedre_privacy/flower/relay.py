"""The ClientApp: it hands the server's bytes to the client's process beside it, and back.

Flower starts a process for every message. This one therefore imports Flower and nothing of ours;
data, model and state stay in the client's process, which listens on a socket (`process`).
"""

import time
from multiprocessing.connection import Client, Connection

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

PATIENCE = 120.0
"""For so long (seconds) a client's process may be away."""


def relay(message: Message, context: Context) -> Message:
    """Answer a message of the server."""
    sent = message.content["fedre"]["bytes"]
    if not isinstance(sent, bytes):
        raise TypeError("The server sent no bytes.")
    with connect(str(context.node_config["socket"])) as line:
        line.send_bytes(sent)
        answer = line.recv_bytes()
    return Message(RecordDict({"fedre": ConfigRecord({"bytes": answer})}), reply_to=message)


def connect(path: str) -> Connection:
    """Connect to the process that listens at a socket.

    Raises:
        OSError: nobody listens.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return Client(path, family="AF_UNIX")
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


app = ClientApp()
app.train()(relay)
