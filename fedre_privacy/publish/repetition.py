"""Repeat what is claimed, as far as is asked for, and compare.

What is claimed may come from a stranger. Its settings are built by the same checks as any file's:
names lead to registered parts, and to a module of one's own only where ``--plugin`` named it.
Nothing is downloaded, and no file is opened because a claim names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedre_privacy.core.config import merge
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    IncompatibleError,
    MissingInputError,
)
from fedre_privacy.core.events import Report, silent
from fedre_privacy.core.manifest import complete_manifest
from fedre_privacy.core.secrets import kept_secret
from fedre_privacy.eval import Card
from fedre_privacy.experiments.attack import AttackResult, attack, attack_into, prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.runs.folder import COMPLETE, status_of, versions
from fedre_privacy.runs.preparation import prepare
from fedre_privacy.runs.resolution import require_resolved, resolve_attack, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.runs.training import train
from fedre_privacy.sandbox.client import AUTO

from .claims import accuracy_of, claimed_of, portable, uploads_hash
from .comparison import ACCURACY, accuracy_numbers, is_due, outcome, state
from .format import (
    VERIFICATION,
    VERSION,
    Accuracy,
    Claim,
    Compared,
    Made,
    Verification,
    check_name,
    hash_content,
    write,
)
from .names import AGAIN, ATTACK, PARTS, SCORES, SPLIT, TOLERANCE, TRAINING

DOES = {
    SPLIT: "train with the images shared out anew by a new secret, and attack again",
    TRAINING: "train and attack again by its settings",
    ATTACK: "attack the given run again",
    SCORES: "score the recorded answers again",
}
"""What will be done, in words."""


@dataclass(frozen=True)
class RepetitionPlan:
    """What is to be repeated.

    Args:
        part: one of `PARTS`.
        run: the recorded run that is attacked or scored again; None where one is trained.
        runs: folder for what is made.
    """

    claim: Claim
    part: str
    training: TrainSettings
    attack: AttackSettings
    run: Run | None
    runs: Path

    @property
    def seconds(self) -> float:
        """Seconds that the part took where it was claimed; scores alone are quick."""
        attacked = 0.0 if self.part == SCORES else self.claim.attack.seconds
        trained = self.part in (SPLIT, TRAINING)
        return attacked + (self.claim.training.seconds if trained else 0.0)


def plan(
    claim: Claim,
    *,
    run: Path | None = None,
    part: str | None = None,
    runs: Path = AGAIN,
    data: Path | None = None,
) -> RepetitionPlan:
    """Resolve the settings of a claim and decide what to repeat; nothing is computed yet.

    Args:
        run: folder of the run that was attacked, if it is at hand.
        part: what to repeat, one of `PARTS`; None: the attack where there is a run, else all, with
            another split, so that an attack that repeats the claimed split does not repeat.
        runs: folder for what is made.
        data: file or folder of the data set, where it needs one.

    Raises:
        ConfigError: an unknown part or setting; a module that was not named by ``--plugin``.
        DamagedInputError: the run is not the one that was attacked.
        MissingInputError: the data's file or the run is needed and was not given.
    """
    part = part or (SPLIT if run is None else ATTACK)
    if part not in PARTS:
        raise ConfigError(f"--repeat takes {', '.join(PARTS)}; got '{part}'.")
    if (run is None) != (part in (SPLIT, TRAINING)):
        raise ConfigError(
            f"--repeat {part} needs --run RUN, the folder that was attacked."
            if run is None
            else f"--repeat {part} trains anew; leave --run out.",
        )
    training, attacked = _resolve_claim(claim, data)
    if part == TRAINING and training.train.secret:
        raise IncompatibleError(
            "The claimed training follows from a secret, which is not published.",
            next_step="Leave --repeat out: then the images are shared out anew. Or give the run: "
            "--run RUN.",
        )
    if run is None:
        named = claim.settings["data"].get("path")
        if named is not None and data is None:
            raise MissingInputError(
                f"The claim is about the data set '{claim.what.dataset}' in a file or folder that "
                f"was named '{named}'. Its SHA-256 is {claim.data.sha256}.",
                next_step="Say where yours is: --data-dir PATH.",
            )
        check_ahead(training, attacked)
        return RepetitionPlan(claim, part, training, attacked, None, runs)
    recorded = Run(run)
    _require_same(
        f"{run} is not the run that was attacked", recorded.manifest.sha256,
        claim.hashes.run_manifest, "Give the claimed run, or leave --run out to train again.",
    )  # fmt: skip
    own = portable(recorded.plain())
    if any(claim.settings.get(key) != value for key, value in own.items()):
        raise DamagedInputError(
            f"{run} was trained with other settings than the claim holds, though its manifest is "
            "the one that the claim names.",
            next_step="Leave --run out to train by the settings of the claim.",
        )
    return RepetitionPlan(claim, part, training, attacked, recorded, runs)


def _resolve_claim(claim: Claim, data: Path | None) -> tuple[TrainSettings, AttackSettings]:
    """The settings of a claim as objects, by the checks of every settings file."""
    values: dict[str, Any] = dict(claim.settings)
    if data is not None:
        values = merge(values, {"data": {"path": str(data.expanduser().resolve())}})
    if "download" in values["data"]:
        values = merge(values, {"data": {"download": False}})
    problems: list[str] = []
    training = resolve_training(values, {}, problems)
    uploads = training.protocol.uploads if training else ()
    attacked = resolve_attack(values, {}, problems, uploads=uploads)
    see = "The claim needs modules of its own: " + ", ".join(claim.plugins)
    if problems and claim.plugins:
        problems.append(f"{see}. Read them; if you trust them, name each by --plugin.")
    training, attacked = require_resolved(training, problems), require_resolved(attacked, problems)
    used = [*training.plugins(), *attacked.plugins()]
    if strangers := sorted(set(used) - set(claim.plugins)):
        raise IncompatibleError(
            f"The claim's names lead to parts of {', '.join(strangers)} here, which the claim does "
            "not name.",
            next_step="Leave --plugin out, or ask whoever claims it for the modules.",
        )
    return training, attacked


def repeat(
    wanted: RepetitionPlan,
    out: Path,
    *,
    tolerance: float = TOLERANCE,
    device: torch.device = torch.device("cpu"),  # noqa: B008
    by: str = "",
    isolation: str = AUTO,
    report: Report = silent,
) -> tuple[Verification, Path]:
    """Do what was planned, compare what came of it with the claim, and write that down.

    What an earlier call has finished or begun in the folder of the plan is taken up.

    Args:
        out: file for the verification.
        tolerance: see `comparing`.
        by: who repeats it.

    Returns:
        The verification, and its file.

    Raises:
        ConfigError: no such name can be published.
        DamagedInputError: other data than claimed, or a folder that holds the claimed result
            itself.
        FedreError: of the training or the attack.
    """
    check_name(by)
    how: dict[str, Any] = {"device": device, "report": report}
    run = wanted.run or _train_claim(wanted, how)
    if wanted.part == SCORES:
        result = _rescore_attack(run, wanted, how)
    elif wanted.part == ATTACK:
        folder = wanted.runs / "attacks" / wanted.claim.sha256[:16]
        result = attack_into(
            folder, wanted.attack, lambda: prepare_attack(run, wanted.attack),
            resume=_is_begun(folder), isolation=isolation, **how,
        )  # fmt: skip
    else:
        folder = run.folder / "attacks" / wanted.attack.folder_name
        result = attack(run, wanted.attack, resume=_is_begun(folder), isolation=isolation, **how)
    done = verify_claim(wanted, run, result, tolerance=tolerance, by=by)
    write(out, done)
    return done, out


def _is_begun(folder: Path) -> bool:
    """Whether work in a folder was begun and not finished."""
    return status_of(folder) not in (None, COMPLETE)


def _train_claim(wanted: RepetitionPlan, how: dict[str, Any]) -> Run:
    """Train by the settings of the claim, on the data that it names."""
    claim, settings = wanted.claim, wanted.training
    other = "The {} is not the one that was claimed"
    ask = "Ask whoever claims it for the data, and give it by --data-dir."
    found = settings.data.load().sha256
    _require_same(other.format("data set"), found, claim.data.sha256, ask)
    if wanted.part == SPLIT:
        name = kept_secret(wanted.runs / f"{claim.sha256[:16]}.secret")
        settings = replace(settings, train=replace(settings.train, secret=name))
    prepared = prepare(settings, how["device"])
    if wanted.part == TRAINING:
        shares = (prepared.split.sha256_train, prepared.split.sha256_test)
        for found, told in zip(shares, claim.data.partition_sha256, strict=True):
            _require_same(other.format("partition"), found, told, ask)
    begun = _is_begun(wanted.runs / settings.run_name)
    run = train(settings, runs=wanted.runs, resume=begun, prepared=prepared, **how)
    if run.manifest.sha256 == claim.hashes.run_manifest:
        raise DamagedInputError(
            f"{run.folder} is the claimed run itself, which would repeat nothing.",
            next_step=f"Give another folder: --runs-dir {AGAIN}. Or attack it again: "
            f"--run {run.folder}.",
        )
    return run


def _require_same(problem: str, found: str, claimed: str, next_step: str) -> None:
    """Refuse what has another SHA-256 than the claim names."""
    if found != claimed:
        raise DamagedInputError(
            f"{problem}: SHA-256 {found[:12]}..., the claim names {claimed[:12]}....",
            next_step=next_step,
        )


def _rescore_attack(run: Run, wanted: RepetitionPlan, how: dict[str, Any]) -> AttackResult:
    """The claimed attack itself, read back and scored again."""
    folder = run.folder / "attacks" / wanted.attack.folder_name
    if status_of(folder) != COMPLETE:
        raise MissingInputError(
            f"{folder} is not there: the attack's folder is needed to score it again.",
            next_step="Attack again in place of it: --repeat attack.",
        )
    _require_same(
        f"{folder} is not the attack that was claimed", complete_manifest(folder).sha256,
        wanted.claim.hashes.attack_manifest, "Attack again: --repeat attack.",
    )  # fmt: skip
    return attack(run, wanted.attack, **how)


def verify_claim(
    wanted: RepetitionPlan, run: Run, result: AttackResult, *, tolerance: float, by: str
) -> Verification:
    """What came of repeating a claim: the repeated attack beside what is claimed."""
    claim, record, part = wanted.claim, result.record, wanted.part
    made = Made(
        device=str(record["device"]),
        versions=versions() if part == SCORES else record["versions"],
        seconds=record["wall_s"] + (run.record["wall_s"] if wanted.run is None else 0.0),
    )
    same = uploads_hash(run.manifest) == claim.hashes.uploads if part == TRAINING else None
    rows = compare_measures(claim, result.card, made, None if wanted.run else run)
    due = is_due(claim, part, made, uploads_same=same)
    states = [state(one, part=part, due=due, tolerance=tolerance) for one in rows]
    verdict = result.card.verdict.word
    ended = outcome(states, part=part, due=due, same_verdict=verdict == claim.verdict)
    return hash_content(
        Verification,
        {
            "schema": VERIFICATION, "version": VERSION, "claim": claim.sha256, "by": by,
            "part": part, "uploads_same": same, "due": due, "tolerance": tolerance,
            "outcome": ended, "verdict": verdict, "measures": rows, "made": made,
        },
    )  # fmt: skip


def compare_measures(claim: Claim, card: Card, made: Made, trained: Run | None) -> list[Compared]:
    """Every measure that is claimed, and those that the same version gives and nobody claims.

    Args:
        trained: the run, where it was trained again; its accuracy is compared as a measure is.
    """
    claimed = [one for measure in card.measures if (one := claimed_of(measure)) is not None]
    found = {(one.key, one.group): one.numbers for one in claimed}
    told = {(one.key, one.group): one.numbers for one in claim.measures}
    package = "fedre-privacy"
    same = claim.attack.versions.get(package) == made.versions.get(package)
    keys = dict.fromkeys([*told, *(found if same else ())])
    if trained is not None:
        if (again := accuracy_of(trained)) is not None:
            found[ACCURACY] = accuracy_numbers(Accuracy(**again))
        if claim.accuracy is not None:
            told[ACCURACY] = accuracy_numbers(claim.accuracy)
        keys |= {ACCURACY: None} if ACCURACY in {*found, *told} else {}
    return [
        Compared(key=key, group=group, claimed=told.get((key, group)),
                 repeated=found.get((key, group)))
        for key, group in keys
    ]  # fmt: skip
