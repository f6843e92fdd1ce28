"""``python -m fedre_privacy COMMAND``: the commands where their scripts are not on the path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from . import __version__

COMMANDS = {
    "train": "train a federation and record what its clients upload",
    "attack": "reconstruct images, labels or prototypes from uploads, and score against floors",
    "membership": "tell from uploads who trained, over many federations",
    "audit": "test the privacy that defences claim",
    "benchmark": "compare protocols, schemes and defences over seeds",
    "view": "show all results below a folder in one page",
}
"""Name, also of the script ``fedre-NAME``, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, or list them; return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given and given[0] in COMMANDS:
        code: int = import_module(f".cli.{given[0]}", __package__).main(given[1:])
        return code
    if given == ["--version"]:
        print(f"fedre-privacy {__version__}")
        return 0
    print("usage: python -m fedre_privacy COMMAND [options], or fedre-COMMAND [options]\n")
    for name, does in COMMANDS.items():
        print(f"  {name:<12}{does}")
    print("\nEach has --help; fedre-attack list shows protocols, attacks and defences.")
    return 0 if given in ([], ["--help"], ["-h"]) else 2


if __name__ == "__main__":
    sys.exit(main())
