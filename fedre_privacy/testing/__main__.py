"""``python -m fedre_privacy.testing [--plugin MODULE] [KIND:NAME ...]``: a line for each check."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedre_privacy.core.errors import FedreError
from fedre_privacy.core.plugin_errors import is_plugin
from fedre_privacy.core.registry import allow_module_paths, import_plugins

from . import SUITES, NotApplicable, checks


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="python -m fedre_privacy.testing",
        description="Check that parts keep what every part of their kind promises. Exit code 0: "
        "they do, 1: one does not, 2: there is no such part.",
    )
    made.add_argument(
        "parts",
        nargs="*",
        metavar="KIND:NAME",
        help=f"a part by its kind ({', '.join(SUITES)}) and its name, or module:Class; without "
        "it, every part that is not built in",
    )
    made.add_argument(
        "--plugin", action="append", default=[], metavar="MODULE", help="import a module first"
    )
    made.add_argument("--all", action="store_true", help="check built-in parts too")
    return made


def choose_parts(parts: Sequence[str], *, every: bool) -> list[tuple[str, str]]:
    """Kinds and names of the parts to check: those given, else all or all that are not built in."""
    if parts:
        allow_module_paths(*(part.partition(":")[2] for part in parts))
        return [(kind, name) for kind, _, name in (part.partition(":") for part in parts)]
    return [
        (kind, name)
        for kind, suite in SUITES.items()
        for name in suite.registry.names()
        if every or is_plugin(suite.registry.origin(name))
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Make the checks, print a line for each, and return the exit code."""
    options = parser().parse_args(argv)
    failed = done = 0
    try:
        import_plugins(options.plugin)
        for kind, name in choose_parts(options.parts, every=options.all):
            for title, check in checks(kind, name):
                done += 1
                word, why = "kept", ""
                try:
                    check()
                except NotApplicable as error:
                    word, why = "left out", f": {error}"
                except Exception as error:  # a part may fail in any way; it is reported
                    failed += 1
                    said = str(error) if isinstance(error, AssertionError) else repr(error)
                    word, why = "BROKEN", f": {said}"
                print(f"{word:9} {kind} {name}: {title}{why}", flush=True)
    except (FedreError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if not done:
        print("No part that is not built in: name one as KIND:NAME, or --plugin its module.")
        return 2
    print(f"{done} checks, {failed} broken")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
