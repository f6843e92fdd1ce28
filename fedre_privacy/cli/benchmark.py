"""``fedre-benchmark``: many trainings and attacks side by side, or a published table recomputed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedre_privacy.core.errors import ConfigError, PartialError
from fedre_privacy.core.events import Event
from fedre_privacy.core.options import options_of
from fedre_privacy.core.units import human_bytes, human_seconds, plural
from fedre_privacy.runs.options import ComparedOptions

from .command import command
from .options import (
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
    add_options(group, options_of(ComparedOptions))
    add_training_options(made)
    group = add_settings_options(made)
    group.add_argument("--dry-run", action="store_true", help="print the plan and an estimate")
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv, others=run_subcommand)


def run(options: argparse.Namespace, output: Output) -> int:
    """Train and attack what is compared, and print the tables; return the exit code."""
    from fedre_privacy.api import run_benchmark
    from fedre_privacy.runs.device import choose_device

    wanted = _benchmark_of(options)
    device = choose_device(options.device)
    jobs = wanted.jobs
    labels = dict.fromkeys(job.label for job in jobs)
    output.line("Compare", ", ".join(labels))
    output.line("Jobs", f"{plural(len(jobs), 'training')}: {_suites(jobs)}")
    if options.dry_run:
        return _print_dry_run(jobs, device, output, prune=options.prune)
    result = run_benchmark(
        wanted, runs=options.runs_dir, out=options.out, workers=options.jobs, engine=options.engine,
        device=device, retry=options.retry, prune=options.prune, report=_Progress(output),
    )  # fmt: skip
    output.text()
    output.table(result.table())
    for text in result.failures():
        output.line("FAILED", text)
    output.line("Files", f"{result.folder}/{{report.html,frontier.png,results.csv}}", wrap=False)
    output.final(result.folder, {"rows": result.table(), "failed": result.failures()})
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
    from fedre_privacy.runs.settings import ATTACK_SECTIONS

    from .shared.settings import gather, settings_in_sections

    values, _ = gather(options)
    scheme = values.get("protocol", {}).pop("entanglement", None) if options.scheme else None
    if options.against and not scheme:
        raise ConfigError("--against goes with --scheme: the scheme to compare with these.")
    schemes = [scheme] if scheme else []
    schemes += [name for text in (options.against, options.schemes) if text for name in _list(text)]
    protocols = _list(options.protocols) if options.protocols else []
    if options.sweep is None and not schemes and not protocols:
        raise ConfigError(
            "Nothing to compare: give a SWEEP.yaml, --protocols, --scheme with --against, "
            "--schemes, or --communication.",
            next_step="For example: fedre-benchmark --protocols fedre,fedgh,fedavg --seeds 0.",
        )
    problems = [
        f"--set {item} is a setting of an attack; a benchmark takes it from a sweep's attacks."
        for item in settings_in_sections(options, ATTACK_SECTIONS)
    ]
    return comparison(
        values,
        problems,
        sweep=options.sweep,
        protocols=protocols,
        schemes=schemes,
        seeds=[_whole(seed) for seed in _list(options.seeds)] if options.seeds else None,
        attacks=_list(options.attacks) if options.attacks not in (None, "default") else None,
        targets=options.targets,
    )


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"--seeds takes whole numbers, for example 0,1,2; got '{text}'."
        ) from None


def _suites(jobs: Sequence[BenchmarkJob]) -> str:
    counts: dict[str, int] = {}
    for job in jobs:
        for settings in job.attacks:
            key = f"{settings.attack.name} on {settings.target}"
            counts[key] = counts.get(key, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "no attack"


def _print_dry_run(
    jobs: Sequence[BenchmarkJob], device: Any, output: Output, *, prune: bool
) -> int:
    """Take one step of each kind of job and add the estimates up."""
    from fedre_privacy.experiments.dry_run import dry_run_suite

    firsts = {job.label: job for job in reversed(jobs)}
    seconds, disk = 0.0, 0
    known: dict[str, float] = {}
    for label in dict.fromkeys(job.label for job in jobs):
        job = firsts[label]
        train_s, attack_s, record = dry_run_suite(job.training, job.attacks, device, known)
        own = train_s + attack_s
        times = sum(other.label == label for other in jobs)
        seconds += own * times
        disk = max(disk, record) if prune else disk + record * times
        output.line(label, f"{plural(times, 'job')} of about {human_seconds(own)}")
    output.line("In all", f"about {human_seconds(seconds)} with one job at a time")
    kept = "one record at a time" if prune else "all records; --prune keeps one at a time"
    output.line("Disk", f"about {human_bytes(disk)} for {kept}")
    output.final(None, {"jobs": len(jobs), "seconds": seconds, "disk_bytes": disk})
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
