"""Commands inside commands: a first word, or an option, that asks for something else.

Another package adds one by an entry point in the group ``fedre_privacy.commands``, named by the
command, a dot and the word (``benchmark.claim``), whose value is a function like `main`.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from fedre_privacy.core.registry import entry_points

GROUP = f"{__name__.partition('.')[0]}.commands"
SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "train.curves": ("curves", "RUN [RUN ...]: draws recorded trainings in one figure"),
    "attack.verify": ("verify", "RUN: checks that a folder is what was recorded"),
    "benchmark.claim": ("claim", "FOLDER: writes results into files that others can repeat"),
    "benchmark.verify": ("repeat", "FILE: repeats one of these"),
    "benchmark.leaderboard": ("leaderboard", "FOLDER: makes a page of them"),
    "benchmark.--communication": (
        "communication",
        "published communication tables beside ours (--communication --help)",
    ),
    "benchmark.--toy": ("toy", "the plane of FedRE's Figure 2, over many seeds (--toy --help)"),
}
"""By command and word: the module whose `main` runs it, of this package or by its whole path, which
is imported when it is asked for; what follows the word, and what it does."""


def inside(program: str) -> dict[str, tuple[str, str]]:
    """Return the modules and helps of the built-in commands inside one, by word."""
    before = program.removeprefix("fedre-") + "."
    return {n.removeprefix(before): one for n, one in SUBCOMMANDS.items() if n.startswith(before)}


def run_subcommand(parser: argparse.ArgumentParser, given: Sequence[str]) -> int | None:
    """Run the command inside a command that words ask for; return its exit code.

    Args:
        parser: of the outer command.

    Returns:
        None where the words ask for none.
    """
    known, own = inside(parser.prog), vars(parser)["_option_string_actions"]
    first = [word for word in given[:1] if not word.startswith("-")]
    flags = [word for word in given if word.startswith("--")]
    strange = [*first, *(word for word in flags if word.partition("=")[0] not in own)]
    main, word = None, next((word for word in (*first, *flags) if word in known), "")
    if word:
        module = known[word][0]
        place = module if "." in module else f"{__package__}.{module}"
        main = importlib.import_module(place).main
    for point in entry_points(group=GROUP) if strange and not word else ():
        command, _, asked = point.name.partition(".")
        if command == parser.prog.removeprefix("fedre-") and asked in strange:
            main, word = point.load(), asked
    if main is None:
        return None
    return int(main(given if word in flags else given[1:]))


def usage(program: str, *lines: str, words: Sequence[str] = ()) -> str:
    """Return the usage of a command: its own lines, then one of the words that ask for others.

    Args:
        words: that the command answers itself.
    """
    others = [(word, help) for word, (_, help) in inside(program).items() if word[0] != "-"]
    more = [*words, *(f"{word} {help.partition(':')[0]}" for word, help in others)]
    return "\n       ".join(
        f"{program} {line}" for line in (*lines, f"{' | '.join(more)} [options]")
    )


def epilog(program: str) -> str:
    """Return what the commands inside a command do, for the end of its help page."""
    others = [(word, help) for word, (_, help) in inside(program).items() if word[0] != "-"]
    return f"{program} " + "; ".join(f"{word} {help}" for word, help in others) + "."
