"""How often the host waits for the device in a round, and in which line of the package.

Counted on a device that stands in for a GPU (`tests/devices/stand_in.py`): a value read, a size
that depends on values, a copy to the host, the end of copies that were queued. Evaluation is not
part of it. A client that is trained step by step waits once for its loss; captured steps wait once
for the losses of all.

Usage: python benchmarks/waits.py [--protocols fedgh,fedre,fedavg] [--clients 10] [--lines]
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rounds
import tools
import torch

from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import Recorder

LOSS = "local.py"
"""The file whose only wait in training is for a client's loss."""


def stand_in() -> Any:
    """The module of the device, which must be installed before anything is computed backwards."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "devices"))
    import stand_in

    return stand_in


def counted(
    protocol: str, clients: int, count: int, device: torch.device, reads: Counter[str]
) -> Counter[str]:
    """Waits of a training of so many rounds, by line."""
    fed = rounds.build(
        protocol, clients=clients, samples=64, batch=32, rounds=count, architecture="cnn4",
        device=device,
    )  # fmt: skip
    reads.clear()
    with tempfile.TemporaryDirectory() as folder:
        loop.run_rounds(
            fed.protocol, fed.clients, fed.server, fed.setting,
            recorder=Recorder(Path(folder) / "uploads"), checkpoints=Path(folder) / "checkpoints",
            report=lambda event: None, keep=lambda *made: None,
        )  # fmt: skip
    return Counter(reads)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument("--protocols", default="fedgh,fedre,fedavg")
    options.add_argument("--clients", type=int, default=10)
    options.add_argument("--lines", action="store_true", help="name the lines that wait")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Count and print one row for each protocol; this ends the process."""
    chosen = parser().parse_args(arguments)
    module = stand_in()
    device = module.install()
    loop.CHECKPOINT_SECONDS = math.inf
    print(f"{'protocol':<12}{'waits a round':>15}{'for losses':>12}{'for the rest':>14}")
    for protocol in chosen.protocols.split(","):
        few, more = (
            counted(protocol, chosen.clients, count, device, module.reads) for count in (3, 4)
        )
        found = more - few
        losses = sum(count for line, count in found.items() if line.startswith(LOSS))
        every = found.total()
        print(f"{protocol:<12}{every:>15}{losses:>12}{every - losses:>14}", flush=True)
        for line, count in found.most_common() if chosen.lines else ():
            print(f"  {count:>6}  {line}")
    module.leave()


if __name__ == "__main__":
    main()
