"""``fedre-benchmark verify``: repeat what somebody claims, and print claimed beside repeated."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import shtab

from fedre_privacy.core.errors import ConfigError, NotRepeatedError
from fedre_privacy.core.registry import import_plugins
from fedre_privacy.core.units import human_seconds, plural
from fedre_privacy.publish.names import AGAIN, OTHERWISE, PARTS, SPLIT, TOLERANCE, WITHIN

from .command import command
from .options import add_output_options, add_plugin_option
from .output import Output

if TYPE_CHECKING:  # a help page needs no part
    from fedre_privacy.publish.format import Claim, Verification


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = argparse.ArgumentParser(
        prog="fedre-benchmark verify",
        allow_abbrev=False,
        description="Repeat what a claim's file says: train and attack again by its settings, or "
        "with --run only what is asked for. Prints claimed beside repeated and writes the outcome "
        "into a small file. Exit code 0: it repeats; 8: it does not.",
    )
    made.add_argument(
        "claim", type=Path, metavar="FILE", help="a claim, as fedre-benchmark claim writes it"
    ).complete = shtab.FILE  # type: ignore[attr-defined]
    made.add_argument(
        "--run", type=Path, metavar="RUN",
        help="the run that was attacked, if you have its folder: it is attacked again, not trained",
    ).complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # fmt: skip
    made.add_argument(
        "--repeat", choices=PARTS, metavar="PART",
        help="split (train with the images shared out anew, and attack), training (with the same "
        "split, and attack), attack, or scores of the answers that lie in RUN (default: split; "
        "with --run, attack)",
    )  # fmt: skip
    made.add_argument(
        "--tolerance", type=float, default=TOLERANCE, metavar="SHARE",
        help="by how much numbers may differ on another machine, as a share of the half-width of "
        f"their interval (default: {TOLERANCE:g})",
    )  # fmt: skip
    made.add_argument(
        "--data-dir",
        type=Path,
        metavar="PATH",
        help="file or folder of the data set, if it has one",
    )
    made.add_argument(
        "--runs-dir", type=Path, default=AGAIN, metavar="DIR",
        help=f"folder for what is made (default: {AGAIN})",
    )  # fmt: skip
    made.add_argument(
        "--out", type=Path, metavar="FILE.json",
        help="where to write the verification (default: beside FILE)",
    )  # fmt: skip
    made.add_argument("--by", default="", metavar="NAME", help="who repeats it")
    made.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or cuda:N")
    made.add_argument(
        "--dry-run", action="store_true",
        help="check the file, say what would be done, measure one step of it, and stop",
    )  # fmt: skip
    add_plugin_option(made)
    add_output_options(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command(parser(), run, argv)


def run(options: argparse.Namespace, output: Output) -> int:
    """Repeat a claim, compare, and write that down; return the exit code."""
    from fedre_privacy.experiments.dry_run import dry_run
    from fedre_privacy.publish.claims import read_claim, targets_of
    from fedre_privacy.publish.comparison import HELD, states
    from fedre_privacy.publish.repetition import DOES, plan, repeat
    from fedre_privacy.runs.device import choose_device

    import_plugins(options.plugin)
    if not 0 <= options.tolerance <= 10:
        raise ConfigError(f"--tolerance is a share from 0 to 10; got {options.tolerance:g}.")
    claim = read_claim(options.claim)
    wanted = plan(
        claim, run=options.run, part=options.repeat, runs=options.runs_dir, data=options.data_dir
    )
    device, what = choose_device(options.device), claim.what
    by = f" by {claim.by}" if claim.by else ""
    output.line(
        "Claim",
        f"{claim.sha256[:16]}{by}: {what.attack} on {claim.kind} of {what.protocol}, "
        f"{what.dataset}, {what.threat}, seed {claim.seeds.training}",
    )
    took = f"it took {human_seconds(wanted.seconds)} on {claim.attack.device}"
    output.line("Will", f"{DOES[wanted.part]}; {took}")
    if options.dry_run:
        estimate = dry_run(wanted.run or wanted.training, wanted.attack, device)
        output.estimate(estimate)
        output.final(None, {"plan": vars(estimate)})
        return 0
    done, path = repeat(
        wanted, options.out or options.claim.with_suffix(".verification.json"),
        tolerance=options.tolerance, device=device, by=options.by, report=output,
    )  # fmt: skip
    output.text()
    output.table(_table(claim, done))
    output.line("Uploads", UPLOADS[None if done.part != SPLIT else SPLIT, done.uploads_same])
    same = done.verdict == claim.verdict
    differs = "" if same else "   THE VERDICT DIFFERS"
    output.line("Verdict", f"claimed: {claim.verdict}; repeated: {done.verdict}{differs}")
    near = f"{done.tolerance:g} of the half-width of each interval"
    near = "intervals overlap, and the verdict is the same" if done.part == SPLIT else near
    ended = {WITHIN: f"{WITHIN} ({near})", OTHERWISE: "DOES NOT REPEAT"}
    output.line("Outcome", ended.get(done.outcome, done.outcome))
    output.line("Written", str(path), wrap=False)
    if done.outcome != OTHERWISE:
        output.final(path, {"outcome": done.outcome, "part": done.part, "path": str(path)})
        return 0
    output.event("outcome", {"outcome": done.outcome, "path": path})
    why = f"the verdict is '{done.verdict}', claimed was '{claim.verdict}'"
    found = zip(done.measures, states(done), strict=True)
    if wrong := [(one, words) for one, words in found if words not in HELD]:
        (one, words), count = wrong[0], plural(len(wrong), "measure")
        why = (
            f"{count} of {len(done.measures)}, the first {one.key} "
            f"({targets_of(one.group)}): {words}"
        )
    raise NotRepeatedError(
        f"{options.claim} DOES NOT REPEAT: {why}.",
        next_step=f"The verification is in {path}. Compare versions and devices, and ask "
        "whoever claims it.",
    )


UPLOADS = {
    (SPLIT, None): "images were shared out anew, so other numbers are due, of the same size",
    (None, None): "nothing was trained; the run is the one whose hash is claimed",
    (None, True): "training again gave the same bytes as claimed, so the same numbers are due",
    (None, False): "training again gave other bytes than claimed: another processor or version, or "
    "other settings than claimed",
}
"""What is said of the uploads, by whether they were shared out anew and are the same bytes."""


def _table(claim: Claim, done: Verification) -> list[dict[str, str]]:
    """Claimed beside repeated, a row for each measure."""
    from fedre_privacy.publish.claims import measure_of, targets_of
    from fedre_privacy.publish.comparison import states

    words = {(one.key, one.group): one for one in claim.measures}
    rows = []
    for one, state in zip(done.measures, states(done), strict=True):
        told = words.get((one.key, one.group))
        texts = []
        for numbers in (one.claimed, one.repeated):
            if numbers is None or told is None:
                texts.append("-" if numbers is None else f"{numbers.value:.4g}")
                continue
            measure = measure_of(told, numbers)
            floor = "" if measure.floor is None else f", {measure.over_text()}"
            texts.append(measure.value_text() + floor)
        rows.append({
            "metric": one.key if told is None else f"{told.title} {told.unit}".strip(),
            "targets": targets_of(one.group), "claimed": texts[0], "repeated": texts[1],
            "state": state,
        })  # fmt: skip
    return rows
