"""The ClientApp: it hands the server's bytes to the client's process beside it, and back.

Flower starts a process for every message. This one therefore imports Flower and nothing of ours;
data, model and state stay in the client's process (`process`), which listens on a socket.
"""

import socket
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

PATIENCE = 120.0
"""For so long (seconds) a client's process may be away."""

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]
def relay(message: Message, context: Context) -> Message:
    """Answer a message of the server."""
    sent = message.content["fedre"]["bytes"]
    answer = exchange(Path(str(context.node_config["socket"])), sent)
    return Message(RecordDict({"fedre": ConfigRecord({"bytes": answer})}), reply_to=message)


def exchange(path: Path, sent: bytes) -> bytes:
    """Send bytes to the process that listens at a socket, and return its answer.

    Raises:
        ConnectionError: nobody listens, or who did has died.
    """
    until = time.monotonic() + PATIENCE
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            try:
                line.connect(str(path))
            except OSError as error:
                if time.monotonic() > until:
                    raise ConnectionError(f"No client listens at {path}.") from error
                time.sleep(0.2)
                continue
            line.sendall(len(sent).to_bytes(8, "little") + sent)
            size = int.from_bytes(read(line, 8), "little")
            return read(line, size)


def read(line: socket.socket, size: int) -> bytes:
    """Read so many bytes.

    Raises:
        ConnectionError: the other side ended before.
    """
    parts, left = [], size
    while left:
        part = line.recv(min(left, 1 << 20))
        if not part:
            raise ConnectionError("The client's process ended before it answered.")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
