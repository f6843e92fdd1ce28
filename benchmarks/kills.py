"""Does a killed command, given again with --resume, end at the same files as an undisturbed one?

Processes that train, draw, attack and sweep are killed with SIGKILL, SIGTERM and SIGINT at random
moments, uniform over the time that an undisturbed one takes, counted from the process's start.
The command is then given again, and every file is compared with the undisturbed run's. Each
process is forked from one that has imported the package, so that moments fall into work and not
into imports; the jobs of a sweep are processes of their own.

What differs between any two runs is left out of the comparison, and nothing else:

record.json                 started, wall_s, attack_s, peak_memory, run_manifest (follows from them)
jobs/*.json                 wall_s, round_s
metrics.csv, results.csv    the columns wall_s and round_s
report.html                 times of day, durations, amounts of memory and hashes
manifest.json, drawn.json   the hashes of the files above
log.txt, jobs/*.log         everything

A file that begins with a dot, or a checkpoint, that is left after the second command is a fault.

Ctrl-C ends it with the table of what was measured.

Usage: python benchmarks/kills.py [--moments 200] [--seed 0] [--of train,draw,attack,sweep]
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tools

from fedre_privacy.cli import attack, benchmark, train
from fedre_privacy.cli.output import table_lines
from fedre_privacy.core.units import human_seconds

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)

TINY = [
    *("--set", "data.size=16", "--set", "data.per_class=12", "--clients", "4", "--rounds", "6"),
    *("--set", "record.keep_every=2", "--device", "cpu"),
]
Main = Callable[[Sequence[str] | None], int]

TIMES = {"started", "wall_s", "round_s", "attack_s", "peak_memory", "run_manifest"}
CLOCKS = re.compile(
    r"[0-9a-f]{64}|[\d-]+T[\d:]+[+\d:]*|[\d.]+ (?:h|min|s)\b(?: [\d.]+ (?:min|s)\b)?"
    r"|[\d.]+ (?:B|KiB|MiB|GiB)\b"
    r'|data-value="[\d.]+">[\d.]+</td>(?=\n<td[^>]*>[\w-]+</td>\n</tr>)'  # took
)
DIFFER = {"record.json", "metrics.csv", "report.html"}


@dataclass(frozen=True)
class Case:
    """A command to be killed.

    Args:
        name: what it does.
        main: the command.
        arguments: without the folder of runs.
        before: commands that are finished before it begins.
        again: what is added when it is given again.
        without: files that are removed before it begins.
    """

    name: str
    main: Main
    arguments: tuple[str, ...]
    before: tuple[tuple[Main, tuple[str, ...]], ...] = ()
    again: tuple[str, ...] = ("--resume",)
    without: tuple[str, ...] = ()


TRAIN = ("--protocol", "fedre", *TINY)
ATTACK = ("--attack", "pixel", "--targets", "24", "--set", "attack.steps=60")
SWEEP = ("--protocols", "fedgh", "--seeds", "0", "--attacks", "labels", *TINY, "--out", "bench")
DRAWN = ("accuracy.*", "clients.p*", "partition.*", "prototypes.*", "drawn.json")
CASES = {
    case.name: case
    for case in (
        Case("train", train.main, TRAIN),
        Case("draw", train.main, TRAIN, before=((train.main, TRAIN),), without=DRAWN),
        Case(
            "attack", attack.main, (*TRAIN, *ATTACK), before=((train.main, TRAIN),),
        ),
        Case("sweep", benchmark.main, SWEEP, again=()),
    )
}  # fmt: skip


@dataclass
class Tally:
    """What came of the moments of one case and signal."""

    moments: int = 0
    early: int = 0
    late: int = 0
    equal: int = 0
    faults: list[str] = field(default_factory=list)


def start(folder: Path, main: Main, arguments: Sequence[str]) -> int:
    """Give a command in a folder, in a process of its own; return its number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.chdir(folder)
        os.setsid()
        for which in (signal.SIGINT, signal.SIGTERM):
            signal.signal(which, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        said = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = main([*arguments, "--runs-dir", "runs"])
    except KeyboardInterrupt:
        code = 130
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def finish(folder: Path, main: Main, arguments: Sequence[str]) -> tuple[int, float]:
    """Give a command and wait for its end; return its exit code and seconds."""
    began = time.monotonic()
    _, status = os.waitpid(start(folder, main, arguments), 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - began


def contents(folder: Path) -> dict[str, bytes]:
    """Every file by its name, without what differs between any two runs."""
    out = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.name not in ("log.txt", "said.txt") and path.suffix != ".log":
            out[name] = _plain(path)
    return out


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    if path.name in ("manifest.json", "drawn.json"):
        listed = json.loads(data)
        for name in DIFFER & listed["files"].keys():
            listed["files"][name] = None
        return json.dumps(listed).encode()
    if path.name == "record.json" or path.parent.name == "jobs" and path.suffix == ".json":
        return json.dumps({k: v for k, v in json.loads(data).items() if k not in TIMES}).encode()
    if path.suffix == ".csv":
        rows = list(csv.DictReader(io.StringIO(data.decode())))
        return json.dumps([{k: v for k, v in r.items() if k not in TIMES} for r in rows]).encode()
    if path.suffix == ".html":
        return CLOCKS.sub("", data.decode()).encode()
    return data


def faults(found: dict[str, bytes], whole: dict[str, bytes]) -> list[str]:
    """What is different, absent or left behind."""
    out = [f"{name} absent" for name in whole.keys() - found.keys()]
    for name in sorted(found.keys() - whole.keys()):
        out.append(f"{name} left")
    return out + [f"{n} differs" for n in found.keys() & whole.keys() if found[n] != whole[n]]


def prepared(case: Case, folder: Path) -> None:
    """Do in a folder what comes before a case."""
    folder.mkdir()
    for main, arguments in case.before:
        code, _ = finish(folder, main, arguments)
        if code:
            raise SystemExit(f"{case.name}: {(folder / 'said.txt').read_text()}")
    for pattern in case.without:
        for path in folder.glob(f"runs/*/{pattern}"):
            path.unlink()


def killed(case: Case, ready: Path, place: Path, how: signal.Signals, after: float) -> str:
    """Kill a case at a moment and give it again; return when the moment fell, or what went wrong.

    Returns:
        ``early`` (nothing was written yet), ``during`` or ``late`` (it had ended).
    """
    shutil.copytree(ready, place)
    before = {path for path in place.rglob("*") if path.is_file()}
    pid = start(place, case.main, case.arguments)
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
    _, status = os.waitpid(pid, 0)
    written = {path for path in place.rglob("*") if path.is_file()} - before
    code = os.waitstatus_to_exitcode(status)
    when = "late" if code == 0 else "early" if written <= {place / "said.txt"} else "during"
    again, _ = finish(place, case.main, (*case.arguments, *case.again))
    return when if again == 0 else f"exit {again}: {(place / 'said.txt').read_text()[-600:]}"


Told = dict[tuple[str, str], Tally]
"""What came of the moments, by case and signal."""


def measure(
    cases: Sequence[Case], moments: int, seed: int, scratch: Path, told: Told, *, keep: bool
) -> None:
    """Kill, resume and compare.

    Args:
        moments: in all, shared out evenly over cases and signals.
        told: is added to after every moment.
        keep: leave the folders of faults.
    """
    rng = random.Random(seed)
    wholes: dict[str, tuple[Path, dict[str, bytes], float]] = {}
    for case in cases:
        ready, undisturbed = scratch / f"{case.name}-ready", scratch / f"{case.name}-whole"
        prepared(case, ready)
        shutil.copytree(ready, undisturbed)
        code, seconds = finish(undisturbed, case.main, case.arguments)
        if code:
            raise SystemExit(f"{case.name}: {(undisturbed / 'said.txt').read_text()}")
        wholes[case.name] = ready, contents(undisturbed), seconds
        print(f"{case.name}: {human_seconds(seconds)} undisturbed", flush=True)
    for number in range(moments):
        case = cases[number % len(cases)]
        how = SIGNALS[number // len(cases) % len(SIGNALS)]
        ready, whole, seconds = wholes[case.name]
        tally = told.setdefault((case.name, how.name), Tally())
        place, after = scratch / f"moment-{number}", rng.uniform(0, seconds)
        when = killed(case, ready, place, how, after)
        found = [when] if when.startswith("exit") else faults(contents(place), whole)
        tally.moments += 1
        tally.early += when == "early"
        tally.late += when == "late"
        tally.equal += not found
        if found:
            said = f"{case.name}, {how.name} after {after:.2f} s: {'; '.join(found)}"
            tally.faults.append(said)
            print(said, flush=True)
        if not (found and keep):
            shutil.rmtree(place)
        if (number + 1) % 20 == 0:
            print(f"{number + 1} of {moments} moments", flush=True)


def rows(told: Told) -> list[dict[str, str]]:
    """The table: one row per case and signal, and their sum."""
    out = []
    whole = Tally()
    for (name, how), own in sorted(told.items()):
        out.append(_row(name, how, own))
        for count in ("moments", "early", "late", "equal"):
            setattr(whole, count, getattr(whole, count) + getattr(own, count))
        whole.faults += own.faults
    return [*out, _row("all", "", whole)]


def _row(name: str, how: str, own: Tally) -> dict[str, str]:
    return {
        "killed": name,
        "signal": how,
        "moments": str(own.moments),
        "before a file": str(own.early),
        "after the end": str(own.late),
        "equal after resume": str(own.equal),
        "faults": str(len(own.faults)),
    }


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = tools.options(__doc__)
    made.add_argument("--moments", type=int, default=200, help="in all (default: 200)")
    made.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    made.add_argument("--of", default=",".join(CASES), help="cases (default: all)")
    made.add_argument("--keep", action="store_true", help="leave the folders of faults")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if anything was different."""
    chosen = parser().parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    scratch = Path(tempfile.mkdtemp(prefix="kills-"))
    cases = [CASES[name] for name in chosen.of.split(",")]
    told: Told = {}
    try:
        measure(cases, chosen.moments, chosen.seed, scratch, told, keep=chosen.keep)
    except KeyboardInterrupt:
        print("Stopped: what was measured so far.")
    for line in table_lines(rows(told)):
        print(line)
    bad = any(own.faults for own in told.values())
    if bad and chosen.keep:
        print(f"Folders of faults: {scratch}")
    else:
        shutil.rmtree(scratch)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
