"""Attack recorded uploads: the only place where attacks and truth meet, on opposite sides."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, NotRequired, TypedDict

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.core import files
from fedre_privacy.core.answers import typed_answer
from fedre_privacy.core.errors import AttackFailedError, DamagedInputError, MissingInputError
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.manifest import MADE_FROM, complete_manifest, cover
from fedre_privacy.core.memory import peak_bytes
from fedre_privacy.core.outcomes import Outcome
from fedre_privacy.core.typed_yaml import Count, Hash, Seconds, Word
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Card
from fedre_privacy.eval.verdict import LEAKS
from fedre_privacy.runs.folder import (
    COMPLETE,
    PARTIAL,
    Status,
    begin,
    claim_folder,
    device_name,
    logging_to,
    versions,
    write_end,
)
from fedre_privacy.runs.preparation import load_images
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings
from fedre_privacy.runs.training import require_same
from fedre_privacy.sandbox.client import AUTO, PROCESS, choose_isolation, run_attack, warm

from .compatibility import check_fit, check_sums
from .questions.base import Trial, question_of

PICTURES = "pictures.safetensors"
"""Private: the images that answers were scored against, and their floors (`Scores.pictures`)."""


class FinishedAttack(TypedDict):
    """``record.json`` of a finished attack, as far as it is read back."""

    status: Status
    started: Word
    device: Word
    versions: dict[Word, Word]
    attack_s: Seconds
    wall_s: Seconds
    peak_memory: NotRequired[dict[Word, Count]]
    run_manifest: NotRequired[Hash | None]


def prepare_attack(run: Run, settings: AttackSettings, *, data: ImageData | None = None) -> Trial:
    """Check that the attack fits the run, choose targets, and build the observation.

    Raises:
        IncompatibleError: the attack cannot read the target, or the threat model is too weak.
        MissingInputError: the run lacks a round, an extractor, or its truth.
        DamagedInputError: the data set is not the one the run was trained on.
    """
    require_complete(run)
    check_fit(run.settings, settings)
    check_sums(run.settings, settings)
    data = data or load_images(run.settings)[0]
    require_same(data, run.record["data_sha256"], run.name)
    if data.image_shape != run.image_shape or list(data.classes) != run.record["classes"]:
        raise DamagedInputError(
            f"{run.folder / 'record.json'} tells of other images or classes than the data set "
            f"'{data.name}' holds.",
            next_step="Restore it, or train again with fedre-train --restart.",
        )
    return question_of(settings).prepare(run, settings, data)


def require_complete(run: Run) -> None:
    """Refuse a run that cannot be attacked whatever the attack.

    Raises:
        MissingInputError: its training did not finish.
        DamagedInputError: its record is not as it was written.
    """
    if run.record["status"] != COMPLETE:
        raise MissingInputError(
            f"Run {run.name} is {run.record['status']}: training did not finish.",
            next_step="Give the training command again with --resume.",
        )


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What an attack recovered, how well, and where it was written.

    `record` holds the contents of ``record.json``.
    """

    folder: Path
    trial: Trial
    outcome: Outcome
    card: Card
    record: dict[str, Any] = field(default_factory=dict)
    _repr_html_: ClassVar[Callable[[AttackResult], str] | None] = None
    """Writes it out for a notebook; given by the room that writes pages."""

    @property
    def leaks(self) -> bool:
        """Whether the verdict says that something leaks."""
        return self.card.verdict.word == LEAKS

    def table(self) -> list[dict[str, str]]:
        """The result table, row by row."""
        return self.card.table()

    def verdict(self) -> str:
        """The verdict and its reason."""
        return str(self.card.verdict)

    def frame(self) -> pd.DataFrame:
        """Scores of single targets."""
        return self.card.rows

    def figures(self) -> dict[str, Figure]:
        """Figures by file name, the main one first."""
        return self.trial.figures(self.outcome, self.card)

    def figure(self) -> Figure:
        """The main figure."""
        return next(iter(self.figures().values()))

    def __repr__(self) -> str:
        verdict = self.card.verdict
        return (
            f"AttackResult({self.trial.settings.attack.name} on {self.trial.kind} of "
            f"{self.trial.run.name}: {verdict.word}; {verdict.because})"
        )


class _FolderCache:
    """Finished tiles in the attack's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, name: str) -> dict[str, Tensor] | None:
        path = self.folder / f"{name}.safetensors"
        return files.read_tensors(path) if path.is_file() else None

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        files.write_tensors(self.folder / f"{name}.safetensors", tensors)

    def clear(self) -> None:
        for path in self.folder.glob("*.safetensors"):
            path.unlink()
        if self.folder.is_dir():
            self.folder.rmdir()


def attack(
    run: Run,
    settings: AttackSettings,
    *,
    device: torch.device = torch.device("cpu"),  # noqa: B008
    resume: bool = False,
    restart: bool = False,
    report: Report = silent,
    trial: Trial | None = None,
    wait: bool = False,
    isolation: str = AUTO,
) -> AttackResult:
    """Attack a recorded run, score the result, and write the attack's folder.

    Figures and the page are not among it: `reports.attack` draws them from the result.
    All groups of targets go through the attack in one call. An identical finished attack is read
    back, not repeated.

    Args:
        wait: wait for another process that runs it, and go on with what that leaves.
        isolation: how far the attack is kept from the run, see `sandbox.client.ISOLATION`.

    Raises:
        FedreError: anything that `prepare_attack` refuses, an unfinished identical attack, or one
            that another process runs.
    """

    def prepare() -> Trial:
        if trial is not None:
            return trial
        warm(isolation, device, run.secrets())
        return prepare_attack(run, settings)

    return attack_into(
        run.folder / "attacks" / settings.folder_name,
        settings,
        prepare,
        device=device,
        resume=resume,
        restart=restart,
        report=report,
        wait=wait,
        isolation=isolation,
    )


def attack_into(
    folder: Path,
    settings: AttackSettings,
    prepare: Callable[[], Trial],
    *,
    device: torch.device,
    resume: bool = False,
    restart: bool = False,
    report: Report = silent,
    wait: bool = False,
    isolation: str = AUTO,
) -> AttackResult:
    """Attack what a trial holds, of whatever recording, and write a folder; see `attack`.

    Args:
        folder: where a finished attack of these settings is, or will be.
        prepare: makes the trial; called once nothing unfinished is in the way.
    """
    choose_isolation(isolation, device)
    if begin(folder, resume=resume, restart=restart, what="Attack", wait=wait):
        return _reuse_finished(folder, settings, prepare(), report)
    trial = prepare()
    with claim_folder(folder, resume=resume, restart=restart, what="Attack", wait=wait) as finished:
        if finished:
            return _reuse_finished(folder, settings, trial, report)
        with logging_to(folder), files.private():
            return _attack(folder, settings, trial, device, report, isolation)


def _reuse_finished(
    folder: Path, settings: AttackSettings, trial: Trial, report: Report
) -> AttackResult:
    """A finished attack, read back and scored again."""
    report(Event("attack.trial", {"lines": trial.lines()}))
    listed = complete_manifest(folder)
    for name in {*listed.entries, "record.json", "recovered.safetensors"}:
        listed.check(folder / name)
    record = dict(files.read_json(folder / "record.json", FinishedAttack))
    now, then = trial.run.identity().get(MADE_FROM), record.get(MADE_FROM)
    if now != then:
        raise DamagedInputError(
            f"{folder} was made from another recording than the one that {trial.run.name} holds "
            f"now (manifest {str(now)[:12]}..., then {str(then)[:12]}...).",
            next_step="Attack again with --restart.",
        )
    report(Event("attack.reused", {"folder": str(folder)}))
    outcome = _read_back(folder, trial)
    report(Event("attack.scoring"))
    card = trial.score(outcome)
    report(Event("attack.done", {"folder": str(folder), "wall_s": record["wall_s"]}))
    return AttackResult(folder, trial, outcome, card, record)


def _attack(
    folder: Path,
    settings: AttackSettings,
    trial: Trial,
    device: torch.device,
    report: Report,
    isolation: str,
) -> AttackResult:
    lines = trial.lines()
    if choose_isolation(isolation, device) == PROCESS:
        lines["Attacker"] += "; its code could open your files (isolation: process)"
    report(Event("attack.trial", {"lines": lines}))
    started = time.monotonic()
    record: dict[str, Any] = {
        "status": PARTIAL,
        **trial.run.identity(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "device": device_name(device),
        **trial.settings.plain(),
        "kind": trial.kind,
        "counterfactual": trial.counterfactual,
        **({"active_server": trial.run.active} if trial.run.active else {}),
        "trial": trial.lines(),
        "adaptation": [asdict(one) for stage in trial.adaptations() for one in stage],
    }
    cache = _FolderCache(folder / "checkpoints")
    config = {**trial.run.plain(), **settings.plain()}
    files.write_yaml(folder / "config.yaml", config)
    files.write_json(folder / "record.json", record)
    context = Context(trial.attack_seed, device, report, cache)
    try:
        played = run_attack(
            settings.attack,
            trial.observation,
            context,
            outcome=question_of(settings).outcome(),
            isolation=isolation,
            hidden=[*trial.hidden(), folder.parent.resolve()],
        )
    except BaseException as error:
        write_end(folder, record, error)
        if isinstance(error, AttackFailedError):
            error.next_step = f"Its traceback is in {folder / 'log.txt'}."
        raise
    outcome = played.outcome
    record |= {"isolation": played.how}
    tensors, texts = outcome.save()
    files.write_tensors(folder / "recovered.safetensors", tensors, metadata=texts)
    attack_s = time.monotonic() - started
    report(Event("attack.scoring"))
    card = trial.score(outcome)
    result = AttackResult(folder, trial, outcome, card, record)
    record |= {
        "status": COMPLETE,
        "attack_s": attack_s,
        "wall_s": time.monotonic() - started,
        "peak_memory": peak_memory(device, played.peak_bytes),
        **{k: v for k, v in outcome.save()[1].items() if k == "stopped_because"},
        **card.record(),
    }
    _write(result)
    cache.clear()
    cover(folder, record)
    report(Event("attack.done", {"folder": str(folder), "wall_s": record["wall_s"]}))
    return result


def _read_back(folder: Path, trial: Trial) -> Outcome:
    path, kind = folder / "recovered.safetensors", question_of(trial.settings).outcome()
    try:
        saved = kind.load(files.read_tensors(path), files.read_metadata(path))
    except ValueError as error:
        raise DamagedInputError(f"{path} is not a recorded result: {error}.") from None
    outcome, problems = typed_answer(saved, trial.observation)
    problems = problems or outcome.problems(trial.observation)
    if problems:
        raise DamagedInputError(f"{path} is not a recorded result: it {problems[0]}")
    return outcome


def _write(result: AttackResult) -> None:
    folder = result.folder
    files.write_frame(folder / "scores.csv", result.frame())
    if pictures := result.card.pictures():
        files.write_tensors(folder / PICTURES, pictures)
    result.trial.write(folder, result.outcome)


def peak_memory(device: torch.device, attack_bytes: int = 0) -> dict[str, int]:
    """Peak memory of the larger process, and of the GPU where one is used (bytes)."""
    out = {"process_bytes": max(peak_bytes(), attack_bytes)}
    if device.type == "cuda":
        out["device_bytes"] = peak_bytes(device)
    return out
