"""Commands inside commands: a first word, or an option, that asks for something else.

Another package adds one by an entry point in the group ``fedre_privacy.commands``, named by the
command, a dot and the word (``benchmark.claim``), whose value is a function like `main`.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedre_privacy.core.registry import entry_points

Main = Callable[[Sequence[str]], int]
GROUP = f"{__name__.partition('.')[0]}.commands"


@dataclass(frozen=True)
class SubCommand:
    """Where a command inside a command is.

    Args:
        module: whose `main` runs it; imported when it is asked for.
        help: what it does, for the help page of the outer command.
        takes: what follows the word, for the usage.
    """

    module: str
    help: str
    takes: str = ""


SUBCOMMANDS: dict[str, SubCommand] = {
    "train.curves": SubCommand(
        "fedre_privacy.cli.curves",
        "draws several recorded trainings in one figure",
        "RUN [RUN ...]",
    ),
    "attack.verify": SubCommand(
        "fedre_privacy.cli.verify", "checks that a folder is what was recorded", "RUN"
    ),
    "benchmark.claim": SubCommand(
        "fedre_privacy.cli.claim", "writes results into files that others can repeat", "FOLDER"
    ),
    "benchmark.verify": SubCommand("fedre_privacy.cli.repeat", "repeats one of these", "FILE"),
    "benchmark.leaderboard": SubCommand(
        "fedre_privacy.cli.leaderboard", "makes a page of them", "FOLDER"
    ),
    "benchmark.--communication": SubCommand(
        "fedre_privacy.cli.communication",
        "published communication tables beside ours (--communication --help)",
    ),
    "benchmark.--toy": SubCommand(
        "fedre_privacy.cli.toy",
        "the plane of FedRE's Figure 2, over many seeds (--toy --help)",
    ),
}
"""Built-in ones, by command and word."""


def inside(command: str) -> dict[str, SubCommand]:
    """Return the built-in commands inside a command, by the word that asks for them."""
    before = f"{command}."
    return {
        name.removeprefix(before): one
        for name, one in SUBCOMMANDS.items()
        if name.startswith(before)
    }


def called(parser: argparse.ArgumentParser, given: Sequence[str]) -> int | None:
    """Run the command inside a command that words ask for; return its exit code.

    Args:
        parser: of the outer command.

    Returns:
        None where the words ask for none.
    """
    command = parser.prog.removeprefix("fedre-")
    known = inside(command)
    first = [word for word in given[:1] if not word.startswith("-")]
    flags = [word for word in given if word.startswith("--")]
    for word in (*first, *flags):
        if word in known:
            main: Main = importlib.import_module(known[word].module).main
            return main(given if word in flags else given[1:])
    own: Any = parser._option_string_actions
    new = [*first, *(word for word in flags if word.partition("=")[0] not in own)]
    for point in entry_points(group=GROUP) if new else ():
        for word in new:
            if point.name == f"{command}.{word}":
                main = point.load()
                return main(given if word in flags else given[1:])
    return None


def usage(program: str, *lines: str, words: Iterable[str] = ()) -> str:
    """Return the usage of a command: its own lines, then one of the words that ask for others.

    Args:
        words: that the command answers itself.
    """
    others = inside(program.removeprefix("fedre-"))
    more = [*words, *(f"{word} {one.takes}" for word, one in others.items() if one.takes)]
    both = [*lines, *([f"{' | '.join(more)} [options]"] if more else [])]
    return "\n       ".join(f"{program} {line}" for line in both)


def epilog(program: str) -> str:
    """Return what the commands inside a command do, for the end of its help page."""
    words = inside(program.removeprefix("fedre-"))
    does = [f"{program} {word} {one.takes} {one.help}" for word, one in words.items() if one.takes]
    return "; ".join(does) + " (each with --help)." if does else ""
