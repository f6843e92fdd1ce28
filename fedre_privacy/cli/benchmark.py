"""``fedre-benchmark``: many trainings and attacks side by side, or a published table recomputed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedre_privacy.core.errors import ConfigError, PartialError
from fedre_privacy.core.events import Event
from fedre_privacy.core.options import options_of
from fedre_privacy.core.units import human_bytes, human_seconds, plural
from fedre_privacy.runs.options import ComparedOptions

from .browser import add_open_option, open_page
from .command import command
from .options import (
    add_log_option,
    add_options,
    add_output_options,
    add_settings_options,
    add_training_options,
)
from .output import Output
from .subcommands import epilog, inside, run_subcommand, usage

if TYPE_CHECKING:
    from fedre_privacy.benchmarking.jobs import BenchmarkJob
    from fedre_privacy.benchmarking.variants import Benchmark


SHOWN = 8
"""Variants that are named before a benchmark; the others are counted."""
SHORT_S = 900.0
"""A dry run that foresees more seconds says which attacks would take less."""


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    tables = {word: one for word, one in inside("fedre-benchmark").items() if word.startswith("--")}
    made = argparse.ArgumentParser(
        prog="fedre-benchmark",
        usage=usage(
            "fedre-benchmark",
            "[SWEEP.yaml] [options]",
            "--scheme my_module:MyScheme --against rap,vap,rsr",
            *(f"{word} [options]" for word in tables),
        ),
        allow_abbrev=False,
        description="Train protocols, schemes and defences over seeds, attack each, and print and "
        "draw leakage beside accuracy and communication. What is finished is not repeated.",
        epilog=epilog("fedre-benchmark"),
    )
    group = made.add_argument_group("published tables")
    for word, (_, help) in tables.items():
        group.add_argument(word, action="store_true", help=help)
    made.add_argument("sweep", nargs="?", type=Path, metavar="SWEEP.yaml", help="what to compare")
    group = made.add_argument_group("what to compare")
    group.add_argument("--protocols", metavar="P,Q", help="protocols, or all")
    group.add_argument("--schemes", metavar="S,T", help="entanglement schemes of fedre")
    group.add_argument("--against", metavar="S,T", help="with --scheme: schemes to compare it with")
    group.add_argument(
        "--defenses",
        metavar="D,E",
        help="defences, names or module:Class, compared with none under adaptive and naive "
        "attackers; a part such as strength=0.1 is a setting of the one before it: "
        "nopeek,cem:noise=1,strength=0.1 are two defences",
    )
    add_options(group, options_of(ComparedOptions))
    add_training_options(made)
    group = add_settings_options(made)
    add_log_option(group)
    group.add_argument("--dry-run", action="store_true", help="print the plan and an estimate")
    add_open_option(group)
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv, others=run_subcommand)


def run(options: argparse.Namespace, output: Output) -> int:
    """Train and attack what is compared, and print the tables; return the exit code."""
    from fedre_privacy.api import run_benchmark
    from fedre_privacy.loggers.base import chosen_loggers
    from fedre_privacy.runs.device import choose_device

    chosen_loggers(options.log)
    wanted = _benchmark_of(options)
    jobs = wanted.jobs
    labels = list(dict.fromkeys(job.label for job in jobs))
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    output.line("Compare", ", ".join(labels[:SHOWN]) + more)
    suites = _suites(jobs)
    output.line("Jobs", plural(len(jobs), "training") + ("" if suites else ", no attack"))
    output.table(suites)
    if options.dry_run:
        device = choose_device(options.device)
        return _print_dry_run(jobs, device, output, prune=options.prune)
    result = run_benchmark(
        wanted, runs=options.runs_dir, out=options.out, workers=options.jobs, engine=options.engine,
        gpu_share=options.gpu_share, shard=options.shard, device=options.device,
        retry=options.retry, prune=options.prune, report=_Progress(output), log=options.log,
    )  # fmt: skip
    output.text()
    output.table(result.table())
    if defences := result.defences():
        output.text()
        output.table(defences)
    for text in result.failures():
        output.line("FAILED", text)
    output.line("Files", f"{result.folder}/{{report.html,frontier.png,results.csv}}", wrap=False)
    output.final(
        result.folder,
        {"rows": result.table(), "defences": defences, "failed": result.failures()},
    )
    if options.open:
        open_page(result.folder / "report.html", output)
    if result.failures():
        raise PartialError(
            f"{plural(len(result.failures()), 'job')} of {len(jobs)} failed; the others are in "
            "the tables and figures.",
            next_step="Mend what they say and give the same command with --retry.",
        )
    return 0


def _benchmark_of(options: argparse.Namespace) -> Benchmark:
    """What to compare, from the file and the options.

    Raises:
        ConfigError: nothing to compare, or two ways of saying it.
    """
    from fedre_privacy.api import comparison
    from fedre_privacy.runs.settings import ATTACK_SECTIONS, ATTACKERS

    from .shared.settings import gather, settings_in_sections

    values, _ = gather(options)
    scheme = values.get("protocol", {}).pop("entanglement", None) if options.scheme else None
    if options.against and not scheme:
        raise ConfigError("--against goes with --scheme: the scheme to compare with these.")
    schemes = [scheme] if scheme else []
    schemes += [name for text in (options.against, options.schemes) if text for name in _list(text)]
    protocols = _list(options.protocols) if options.protocols else []
    defenses = _parts(options.defenses) if options.defenses else []
    if options.sweep is None and not schemes and not protocols:
        raise ConfigError(
            "Nothing to compare: give a SWEEP.yaml, --protocols, --scheme with --against, "
            "--schemes, or --communication.",
            next_step="For example: fedre-benchmark --protocols fedre,fedgh,fedavg --seeds 0.",
        )
    problems = [
        f"--set {item} is a setting of an attack; a benchmark takes it from a sweep's attacks, for "
        "example: attacks: [{attack: {name: dip, steps: 100}, threat: fedre-paper}]."
        for item in settings_in_sections(options, ATTACK_SECTIONS)
    ]
    return comparison(
        values,
        problems,
        sweep=options.sweep,
        protocols=protocols,
        schemes=schemes,
        defenses=["none", *(one for one in defenses if one != "none")] if defenses else [],
        attackers=list(ATTACKERS) if defenses else None,
        seeds=[_whole(seed) for seed in _list(options.seeds)] if options.seeds else None,
        attacks=_list(options.attacks) if options.attacks not in (None, "default") else None,
        targets=options.targets,
    )


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parts(text: str) -> list[str]:
    """Names with settings: ``a:k=1,l=2,b`` is ``a:k=1,l=2`` and ``b``.

    Raises:
        ConfigError: a setting before any name.
    """
    found: list[str] = []
    for part in _list(text):
        name, equals, _ = part.partition("=")
        if not equals or ":" in name:
            found.append(part)
        elif found:
            found[-1] += f"{',' if '=' in found[-1] else ':'}{part}"
        else:
            raise ConfigError(
                f"--defenses begins with a setting, {part}; a name comes first.",
                next_step="For example: --defenses nopeek,cem:noise=1,strength=0.1.",
            )
    return found


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"--seeds takes whole numbers, for example 0,1,2; got '{text}'."
        ) from None


def _suites(jobs: Sequence[BenchmarkJob]) -> list[dict[str, str]]:
    """The attacks of a benchmark, and on how many trainings each runs."""
    counts = Counter(
        (one.attack.name, one.target, one.threat.name, one.evaluation.attacker)
        for job in jobs
        for one in job.attacks
    )
    keys = ("attack", "target", "threat", "attacker")
    return [{**dict(zip(keys, one, strict=True)), "trainings": str(n)} for one, n in counts.items()]


def _print_dry_run(
    jobs: Sequence[BenchmarkJob], device: Any, output: Output, *, prune: bool
) -> int:
    """Take one step of each kind of job and add the estimates up."""
    from fedre_privacy.experiments.dry_run import dry_run_suite, quicker

    firsts = {job.label: job for job in reversed(jobs)}
    seconds, disk = 0.0, 0
    known: dict[str, float] = {}
    rows, trainings = [], []

    def report(attack: str, takes: float) -> None:
        output.event("estimate.attack", {"attack": attack, "seconds": takes})
        output.line("Attack", f"{attack}: about {human_seconds(takes)} on one training")

    output.text()
    for label in dict.fromkeys(job.label for job in jobs):
        job = firsts[label]
        train_s, attack_s, record = dry_run_suite(job.training, job.attacks, device, known, report)
        own = train_s + attack_s
        times = sum(other.label == label for other in jobs)
        seconds += own * times
        trainings += [(train_s, job.attacks)] * times
        disk = max(disk, record) if prune else disk + record * times
        rows.append(
            {
                "compared": label,
                "jobs": str(times),
                "training": human_seconds(train_s),
                "its attacks": human_seconds(attack_s),
                "all jobs": human_seconds(own * times),
            }
        )
    output.text()
    output.table(rows)
    output.text()
    output.line("In all", f"about {human_seconds(seconds)} with one job at a time")
    chosen, shorter = quicker(trainings, known, SHORT_S) if seconds > SHORT_S else ([], 0.0)
    if chosen:
        words = f"--attacks {','.join(chosen)} takes about {human_seconds(shorter)}"
        output.line("Quicker", f"{words}; it leaves the stronger attacks out", wrap=False)
    kept = "one record at a time" if prune else "all records; --prune keeps one at a time"
    output.line("Disk", f"about {human_bytes(disk)} for {kept}")
    said = {"jobs": len(jobs), "seconds": seconds, "disk_bytes": disk, "quicker": chosen}
    output.final(None, said)
    return 0


class _Progress:
    """Prints one line per finished job."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def __call__(self, event: Event) -> None:
        data = event.data
        self.output.event(event.name, data)
        if event.name == "sweep.plan":
            done = data["jobs"] - data["waiting"]
            self.output.line("Done", f"{done} of {data['jobs']} before this start")
        elif event.name == "sweep.job":
            took = "" if data["wall_s"] is None else f" in {human_seconds(data['wall_s'])}"
            left = f"; about {human_seconds(data['left_s'])} left" if data["left_s"] else ""
            why = f": {data['failure']}" if data["failure"] else ""
            self.output.line(
                f"{data['done']}/{data['of']}", f"{data['job']} {data['status']}{took}{why}{left}"
            )


if __name__ == "__main__":
    sys.exit(main())
