"""``fedre-benchmark verify``: repeat what somebody claims, and print claimed beside repeated."""

from __future__ import annotations

import argparse

from fedre_privacy.core.errors import ConfigError, NotRepeatedError
from fedre_privacy.core.units import human_seconds, plural
from fedre_privacy.play.rehearse import rehearse
from fedre_privacy.publish.claims import measure_of, read_claim, targets_of
from fedre_privacy.publish.comparing import HELD, state
from fedre_privacy.publish.format import OTHERWISE, SPLIT, WITHIN, Claim, Verification
from fedre_privacy.publish.repeating import DOES, Plan, plan, repeat
from fedre_privacy.runs.device import choose_device

from ..output import Output


def run(options: argparse.Namespace, output: Output) -> int:
    """Repeat a claim, compare, and write that down; return the exit code."""
    if not 0 <= options.tolerance <= 10:
        raise ConfigError(f"--tolerance is a share from 0 to 10; got {options.tolerance:g}.")
    claim = read_claim(options.claim)
    wanted = plan(
        claim, run=options.run, part=options.repeat, runs=options.runs_dir, data=options.data_dir
    )
    device = choose_device(options.device)
    _say(wanted, output)
    if options.dry_run:
        rehearsed = rehearse(wanted.run or wanted.training, wanted.attack, device)
        for heading, text in rehearsed.lines.items():
            output.line(heading, text)
        output.final(None, {"plan": vars(rehearsed)})
        return 0
    done, path = repeat(
        wanted, options.out or options.claim.with_suffix(".verification.json"),
        tolerance=options.tolerance, device=device, by=options.by, report=output,
    )  # fmt: skip
    output.text()
    output.table(_table(claim, done))
    output.line("Uploads", _uploads(done))
    differs = "" if done.verdict == claim.verdict else "   THE VERDICT DIFFERS"
    output.line("Verdict", f"claimed: {claim.verdict}; repeated: {done.verdict}{differs}")
    output.line("Outcome", _outcome(done))
    output.line("Written", str(path), wrap=False)
    if done.outcome == OTHERWISE:
        output.event("outcome", {"outcome": done.outcome, "path": path})
        raise NotRepeatedError(
            f"{options.claim} DOES NOT REPEAT: {_why(claim, done)}.",
            next_step=f"The verification is in {path}. Compare versions and devices, and ask "
            "whoever claims it.",
        )
    output.final(path, {"outcome": done.outcome, "part": done.part, "path": str(path)})
    return 0


def _say(wanted: Plan, output: Output) -> None:
    """What is claimed, what will be done, and what it took before."""
    claim, what = wanted.claim, wanted.claim.what
    by = f" by {claim.by}" if claim.by else ""
    output.line(
        "Claim",
        f"{claim.sha256[:16]}{by}: {what.attack} on {claim.kind} of {what.protocol}, "
        f"{what.dataset}, {what.threat}, seed {claim.seeds.training}",
    )
    took = f"it took {human_seconds(wanted.told)} on {claim.attack.device}"
    output.line("Will", f"{DOES[wanted.part]}; {took}")


def _table(claim: Claim, done: Verification) -> list[dict[str, str]]:
    """Claimed beside repeated, a row for each measure."""
    words = {(one.key, one.group): one for one in claim.measures}
    rows = []
    for one in done.measures:
        told = words.get((one.key, one.group))
        texts = []
        for numbers in (one.claimed, one.repeated):
            if numbers is None:
                texts.append("-")
            elif told is None:
                texts.append(f"{numbers.value:.4g}")
            else:
                measure = measure_of(told, numbers)
                floor = "" if measure.floor is None else f", {measure.over_text()}"
                texts.append(measure.value_text() + floor)
        rows.append({
            "metric": one.key if told is None else f"{told.title} {told.unit}".strip(),
            "targets": targets_of(one.group),
            "claimed": texts[0],
            "repeated": texts[1],
            "state": state(one, part=done.part, due=done.due, tolerance=done.tolerance),
        })  # fmt: skip
    return rows


def _uploads(done: Verification) -> str:
    if done.part == SPLIT:
        return "images were shared out anew, so other numbers are due, of the same size"
    return {
        None: "nothing was trained; the run is the one whose hash is claimed",
        True: "training again gave the same bytes as claimed, so the same numbers are due",
        False: "training again gave other bytes than claimed: another processor or version, or "
        "other settings than claimed",
    }[done.uploads_same]


def _outcome(done: Verification) -> str:
    if done.outcome != WITHIN:
        return done.outcome if done.outcome != OTHERWISE else "DOES NOT REPEAT"
    if done.part == SPLIT:
        return f"{done.outcome} (intervals overlap, and the verdict is the same)"
    return f"{done.outcome} ({done.tolerance:g} of the half-width of each interval)"


def _why(claim: Claim, done: Verification) -> str:
    states = [
        (one, words)
        for one in done.measures
        if (words := state(one, part=done.part, due=done.due, tolerance=done.tolerance)) not in HELD
    ]
    if not states:
        return f"the verdict is '{done.verdict}', claimed was '{claim.verdict}'"
    one, words = states[0]
    return (
        f"{plural(len(states), 'measure')} of {len(done.measures)}, the first {one.key} "
        f"({targets_of(one.group)}): {words}"
    )
