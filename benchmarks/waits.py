"""How often the host waits for the device in a round, and in which line of the package.

Counted on a device that stands in for a GPU (`tests/devices/stand_in.py`): a value read, a size
that depends on values, a copy to the host, the end of copies that were queued. Evaluation is not
part of it. A client that is trained step by step waits once for its loss; captured steps wait once
for the losses of all.

Usage: python benchmarks/waits.py [--protocols fedgh,fedre,fedavg] [--clients 10] [--lines]
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "devices"))
import stand_in  # before anything is computed backwards

DEVICE = stand_in.install()

import rounds  # noqa: E402
import tools  # noqa: E402

from fedre_privacy.federation import loop  # noqa: E402
from fedre_privacy.federation.recorder import Recorder  # noqa: E402

LOSS = "local.py"
"""The file whose only wait in training is for a client's loss."""


def counted(protocol: str, clients: int, count: int) -> Counter[str]:
    """Waits of a training of so many rounds, by line."""
    fed = rounds.build(
        protocol, clients=clients, samples=64, batch=32, rounds=count, architecture="cnn4",
        device=DEVICE,
    )  # fmt: skip
    stand_in.reads.clear()
    loop.CHECKPOINT_SECONDS = math.inf
    with tempfile.TemporaryDirectory() as folder:
        loop.run_rounds(
            fed.protocol, fed.clients, fed.server, fed.setting,
            recorder=Recorder(Path(folder) / "uploads"), checkpoints=Path(folder) / "checkpoints",
            report=lambda event: None, keep=lambda *made: None,
        )  # fmt: skip
    return Counter(stand_in.reads)


def of_round(protocol: str, clients: int) -> Counter[str]:
    """Waits of one more round, by line."""
    return counted(protocol, clients, 4) - counted(protocol, clients, 3)


def main(arguments: Sequence[str] | None = None) -> None:
    """Count and print one row for each protocol."""
    options = tools.options(__doc__)
    options.add_argument("--protocols", default="fedgh,fedre,fedavg")
    options.add_argument("--clients", type=int, default=10)
    options.add_argument("--lines", action="store_true", help="name the lines that wait")
    chosen = options.parse_args(arguments)
    print(f"{'protocol':<12}{'waits a round':>15}{'for losses':>12}{'for the rest':>14}")
    for protocol in chosen.protocols.split(","):
        found = of_round(protocol, chosen.clients)
        losses = sum(count for line, count in found.items() if line.startswith(LOSS))
        every = found.total()
        print(f"{protocol:<12}{every:>15}{losses:>12}{every - losses:>14}", flush=True)
        for line, count in found.most_common() if chosen.lines else ():
            print(f"  {count:>6}  {line}")
    stand_in.leave()


if __name__ == "__main__":
    main()
