"""How a command runs: its options are read, and whatever ends it is a message and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from fedre_privacy.core.errors import FedreError, Interrupted, MissingInputError, nearest
from fedre_privacy.core.interrupts import stoppable
from fedre_privacy.core.os_errors import os_error_message
from fedre_privacy.core.registry import import_plugins
from fedre_privacy.core.safe_text import visible

from .index import read_index
from .lists import list_presets
from .output import Output

FOLDER_WORDS = ("out", "output", "out-dir", "output-dir", "run-dir")
"""What `--runs-dir` is called elsewhere."""


def command(
    parser: argparse.ArgumentParser,
    body: Callable[[argparse.Namespace, Output], int],
    argv: Sequence[str] | None,
    *,
    folder: str = "runs_dir",
    others: Callable[[argparse.ArgumentParser, Sequence[str]], int | None] | None = None,
) -> int:
    """Run a command, or the one inside it that is asked for; return its exit code.

    Args:
        parser: with ``--json`` and ``--quiet`` (`options.add_output_options`).
        body: does the work; plugins are imported before, and ``--preset list`` is answered here.
        folder: the option that says where the traceback of an unexpected error is written.
        others: runs a command inside it, see `subcommands.called`.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    code = others(parser, given) if others is not None else None
    if code is not None:
        return code
    options, strange = parser.parse_known_args(given)
    if strange:
        parser.error(_unrecognised(parser, strange))
    output = Output(as_json=options.json, quiet=options.quiet)
    try:
        with stoppable():
            _refuse_word_as_run(parser.prog, getattr(options, "run", None))
            import_plugins(getattr(options, "plugin", ()))
            if "list" in getattr(options, "preset", ()):
                return list_presets(output)
            return body(options, output)
    except (Exception, KeyboardInterrupt) as error:
        dry = getattr(options, "dry_run", False)
        resume = " with --resume" if hasattr(options, "resume") and not dry else " again"
        kept = "A dry run keeps nothing." if dry else "What was finished is kept."
        return exit_code_of(
            error, output, lambda: getattr(options, folder) / "log.txt", resume=resume, kept=kept
        )


def _unrecognised(parser: argparse.ArgumentParser, strange: Sequence[str]) -> str:
    """What is said of words that no option takes, with the nearest option or what they name."""
    known = vars(parser)["_option_string_actions"]
    names = [one.removeprefix("--") for one in known if one.startswith("--")]
    hints = []
    for word in strange:
        option = word.partition("=")[0]
        name = option.removeprefix("--")
        if name in FOLDER_WORDS and "runs-dir" in names:
            hints.append("Folders of runs go to --runs-dir.")
        elif name in ("attack", "target", "threat") and "attacks" in names:
            hints.append("Give it as --attacks attack@target@threat.")
        elif option.startswith("--") and (close := nearest(name, names)):
            hints.append(f"Did you mean --{close}?")
        elif word in _protocols():
            hints.append(f"'{word}' is a protocol: --protocol {word}.")
    return " ".join([f"unrecognized arguments: {' '.join(strange)}.", *hints])


def _refuse_word_as_run(program: str, run: object) -> None:
    """Refuse a protocol's name, or the command's own, where a run's folder is asked for.

    Raises:
        MissingInputError: with the command that takes a protocol.
    """
    if run is None or Path(str(run)).exists():
        return
    if program == f"fedre-{run}":
        raise MissingInputError(
            f"'{run}' is the command itself, and no run has its name.",
            next_step=f"{program} --protocol fedre",
        )
    if str(run) in _protocols():
        raise MissingInputError(
            f"'{run}' is a protocol, and no run has its name.",
            next_step=f"{program} --protocol {run}",
        )


def _protocols() -> set[str]:
    return {row["protocol"] for row in read_index()["parts"]["protocols"]}


def exit_code_of(
    error: BaseException,
    output: Output,
    log: Callable[[], Path],
    *,
    resume: str = " again",
    kept: str = "What was finished is kept.",
) -> int:
    """Turn what ended a command into a message and an exit code.

    Args:
        log: where the traceback of an unexpected error is written.
        resume: how the same command is given to go on after an interruption.
        kept: what is left of what was interrupted, in a sentence.
    """
    if isinstance(error, KeyboardInterrupt):
        again = f"Give the same command{resume} to go on."
        error = Interrupted(f"Interrupted. {kept}", next_step=again)
    if isinstance(error, BrokenPipeError):  # whoever read our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    refused = os_error_message(error)
    return (
        _report_unexpected(error, output, log())
        if refused is None
        else _report_refusal(refused, output)
    )


def _report_unexpected(error: BaseException, output: Output, path: Path) -> int:
    output.stop()
    text = f"Unexpected error: {type(error).__name__}: {_first_line(error)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as handle:
            handle.write(traceback.format_exc())
        where = f"the traceback is in {path}."
    except OSError:
        where = f"the traceback could not be written to {path}:\n{traceback.format_exc()}"
    output.event("error", {"type": type(error).__name__, "exit": 1, "problems": [text]})
    print(visible(f"{text}\nThis is a bug in fedre-privacy; {where}"), file=sys.stderr)
    return 1


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].strip()


def _report_refusal(error: FedreError, output: Output) -> int:
    output.stop()
    if output.as_json:
        output.event(
            "error",
            {
                "type": type(error).__name__,
                "exit": error.exit_code,
                "problems": list(error.problems),
                "next": error.next_step,
            },
        )
    else:
        print(visible(str(error)), file=sys.stderr)
    return error.exit_code
