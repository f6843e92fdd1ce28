"""Train a federation from settings and record it in a run folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fedre_privacy.core import files
from fedre_privacy.core.errors import DamagedInputError, MissingExtraError, MissingInputError
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.secrets import learn, write_secret
from fedre_privacy.core.types import Emission
from fedre_privacy.data.base import ImageData
from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import Recorder
from fedre_privacy.models.frozen_backbone import frozen_backbones
from fedre_privacy.protocols.blocks.state import Client

from . import run_writer as writing
from .backbone_features import compute_features
from .disk_space import message_bytes, record_bytes, refuse_full, written_bytes
from .folder import COMPLETE, BegunRecord, begin, claim_folder, log, logging_to, write_end
from .initial_state import begin_server, build_clients
from .kept_models import kept_state
from .preparation import PreparedTraining, models_bytes, prepare
from .public_images import server_knowledge
from .run import Run
from .run_writer import CHECKPOINTS, UPLOADS, Metrics, without_clients
from .settings import TrainSettings


@dataclass(frozen=True, eq=False)
class Work:
    """What an engine trains, and where it puts what it records.

    Args:
        folder: the run's own. resume: go on after the last checkpoint in it.
        on_row: to be called with all rows of metrics after every round.
    """

    settings: TrainSettings
    prepared: PreparedTraining
    folder: Path
    resume: bool
    report: Report
    on_row: Callable[[list[loop.Row]], None]


Engine = Callable[[Work], None]
"""Trains a federation and records its uploads, models and mixtures in the run's folder."""


def train(
    settings: TrainSettings,
    *,
    runs: Path = Path("runs"),
    device: torch.device = torch.device("cpu"),  # noqa: B008
    resume: bool = False,
    restart: bool = False,
    wait: bool = False,
    report: Report = silent,
    prepared: PreparedTraining | None = None,
    engine: Engine | None = None,
) -> Run:
    """Train and record a run, or return the identical one that was trained before.

    Args:
        runs: folder of run folders; the run's own name is a hash of its settings.
        resume: go on with an unfinished run of the same settings.
        restart: remove an earlier run of the same settings first.
        wait: wait for another process that trains it, and go on with what that leaves.
        engine: what does the work; None: `in_process`.

    Raises:
        FedreError: anything that `prepare` refuses, divergence, an unfinished run, one in which
            another process works, or one whose data have changed.
    """
    folder = runs / settings.run_name
    learn(folder, settings.train.secret)
    if begin(folder, resume=resume, restart=restart, what="Run", wait=wait):
        return _reuse_run(settings, folder, report)
    # before an earlier run goes: what cannot be trained must not cost it
    prepared = prepared or prepare(settings, device)
    models = models_bytes(settings, prepared.setting)
    needed = record_bytes(prepared.record, settings.train.rounds, 0, models)
    refuse_full(settings, needed, folder, written_bytes(folder))
    with claim_folder(folder, resume=resume, restart=restart, what="Run", wait=wait) as finished:
        if finished:
            return _reuse_run(settings, folder, report)
        with logging_to(folder):
            return _train(settings, prepared, folder, resume or wait, report, engine or in_process)


def _reuse_run(settings: TrainSettings, folder: Path, report: Report) -> Run:
    """The run of a folder; refused where the files of its data set now hold other images."""
    run = Run(folder)
    if settings.data.sources() and settings.coins is None:
        with suppress(MissingInputError, MissingExtraError):  # a run outlives its data
            require_same(settings.data.load(), run.record["data_sha256"], run.name)
    report(Event("train.reused", {"folder": str(folder)}))
    return run


def require_same(data: ImageData, before: str | None, name: str, done: str = "trained") -> None:
    """Refuse images that are not those of a run.

    Args:
        before: their hash in the run's record. name: of the run. done: what was done with them.

    Raises:
        DamagedInputError: the hash is another one.
    """
    if data.sha256 != before:
        raise DamagedInputError(
            f"The data set '{data.name}' has changed since {name} was {done} "
            f"(SHA-256 {data.sha256[:12]}..., then {str(before)[:12]}...).",
            next_step="Restore the data, or train again with fedre-train --restart.",
        )


def _train(
    settings: TrainSettings,
    prepared: PreparedTraining,
    folder: Path,
    resume: bool,
    report: Report,
    engine: Engine,
) -> Run:
    started = time.monotonic()
    record = writing.first_record(settings, prepared)
    if resume and (folder / "record.json").is_file():
        before = files.read_json(folder / "record.json", BegunRecord).get("data_sha256")
        require_same(prepared.data, before, folder.name, "started")
    log.info("training %s on %s", folder.name, record["device"])
    if settings.active:
        report(Event("note", {"text": f"{settings.active}: clients are not told."}))
    for sentence in record.get("privacy", {}).get("says", ()):
        report(Event("note", {"text": sentence}))
    files.write_yaml(folder / "config.yaml", settings.plain())
    files.write_json(folder / "record.json", record)
    if settings.record.truth:
        writing.write_split(folder, prepared.split)
        if settings.train.secret:
            write_secret(folder, settings.train.secret)
    table = Metrics(folder)
    models = models_bytes(settings, prepared.setting)
    refused_ahead = False

    def take(rows: list[loop.Row]) -> None:
        nonlocal refused_ahead
        table.take(rows)
        messages = None if refused_ahead else message_bytes(folder)
        if messages is not None:
            refused_ahead = True
            needed = record_bytes(prepared.record, settings.train.rounds, messages, models)
            refuse_full(settings, needed, folder, written_bytes(folder))

    try:
        engine(Work(settings, prepared, folder, resume, report, take))
    except BaseException as error:
        write_end(folder, record, error)
        raise
    finally:
        table.write()
    record |= {
        "status": COMPLETE,
        "wall_s": time.monotonic() - started,
        "final": {k: v for k, v in without_clients(table.rows[-1]).items() if k != "wall_s"},
    }
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    writing.list_written(folder, record)
    files.write_json(folder / "record.json", record)
    log.info("complete: %s", record["final"])
    report(Event("train.done", {"folder": str(folder), "wall_s": record["wall_s"]}))
    return Run(folder)


def in_process(work: Work) -> None:
    """Train all clients in this process, one after another, or by captured steps."""
    settings, prepared, folder = work.settings, work.prepared, work.folder
    clients = build_clients(settings, prepared)
    server = begin_server(settings, prepared.setting)
    last, record = settings.train.rounds, prepared.record
    backbones = frozen_backbones(nn.ModuleList(client.model for client in clients))
    compute_features(backbones, prepared.data.images, folder.parent, work.report)

    def keep(
        round: int, clients: Sequence[Client], emissions: dict[int, tuple[Emission, ...]]
    ) -> None:
        if not record.keeps(round, last):
            return
        tensors = {
            f"client{client.id}/{name}": value
            for client in clients
            for name, value in kept_state(client, prepared.defense).items()
        }
        files.write_tensors(writing.models_file(folder, round), tensors)
        if settings.record.truth:
            with files.private():
                files.write_tensors(
                    writing.mixtures_file(folder, round), writing.mixtures(emissions)
                )

    loop.run_rounds(
        settings.protocol,
        clients,
        server,
        prepared.setting,
        recorder=Recorder(
            folder / UPLOADS,
            lambda round: record.records(round, last),
            behind=loop.ROUNDS_BEHIND if prepared.setting.device.type == "cuda" else 0,
        ),
        checkpoints=folder / CHECKPOINTS,
        keep=keep,
        report=work.report,
        resume=work.resume,
        on_row=work.on_row,
        defenses=prepared.defense,
        steering=settings.steering,
        held=server_knowledge(settings, prepared),
    )
