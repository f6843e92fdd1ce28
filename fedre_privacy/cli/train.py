"""``fedre-train``: train a federation and record everything it exchanges."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.units import human_seconds
from fedre_privacy.pipeline.rehearse import rehearse
from fedre_privacy.pipeline.runs import Run
from fedre_privacy.pipeline.settings import check_sections, resolve_training
from fedre_privacy.pipeline.train import train

from .explain import explain
from .options import add_common_options, add_training_options, choose_device, gather
from .output import Output, guarded


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-train",
        description="Train a federation and record every upload and broadcast in a run folder.",
    )
    add_training_options(made)
    add_common_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parser().parse_args(argv)
    output = Output(as_json=options.json, quiet=options.quiet)
    return guarded(lambda out: _run(options, out), output, lambda: options.runs_dir / "log.txt")


def _run(options: argparse.Namespace, output: Output) -> int:
    values, where = gather(options)
    problems: list[str] = []
    check_sections(values, where, problems)
    settings = resolve_training(values, where, problems)
    if problems or settings is None:
        raise ConfigError(*problems, next_step="See fedre-train --explain for every setting.")
    if options.explain:
        explain([settings.protocol, settings.data, settings.partition], settings, output)
        return 0
    device = choose_device(options.device)
    if options.dry_run:
        for heading, text in rehearse(settings, None, device).lines.items():
            output.line(heading, text)
        return 0
    run = train(
        settings,
        runs=options.runs_dir,
        device=device,
        resume=options.resume,
        restart=options.restart,
        report=output,
    )
    print_run(run, output)
    output.line("Next", f"fedre-attack {run.folder}")
    output.final(run.folder, {"final": run.record["final"]})
    return 0


def print_run(run: Run, output: Output) -> None:
    """Print one line about a trained run, and where it is."""
    record = run.record
    moment = run.settings.protocol.headline
    accuracy, spread = record["final"][f"acc_{moment}"], record["final"][f"acc_{moment}_sd"]
    output.line(
        "Run",
        f"{run.name} ({record['summary']}, {human_seconds(record['wall_s'])} of training)   "
        f"accuracy {accuracy:.3f} +- {spread:.3f} ({len(record['architectures'])} clients, "
        f"{moment.replace('_', ' ')})",
    )
    for note in record["data_notes"]:
        output.line("Note", note)


if __name__ == "__main__":
    sys.exit(main())
