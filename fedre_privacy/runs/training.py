"""Train a federation from settings and record it in a run folder."""

from __future__ import annotations

import copy
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedre_privacy.blocks.state import (
    SERVER_STATE,
    Client,
    Samples,
    Server,
    Setting,
    client_secret,
)
from fedre_privacy.core import files
from fedre_privacy.core.errors import DamagedInputError, IncompatibleError
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.core.manifest import write_manifest
from fedre_privacy.core.memory import available_bytes, free_bytes
from fedre_privacy.core.rng import seeded
from fedre_privacy.core.types import Emission
from fedre_privacy.core.units import first_few, human_bytes, plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.defenses import statement
from fedre_privacy.defenses.base import Defense, Facts
from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import Recorder
from fedre_privacy.models.families import (
    PRIVATE,
    architecture_of,
    build_model,
    has_batch_norm,
    representation_dim,
)
from fedre_privacy.models.split import SplitModel
from fedre_privacy.partition.base import Split, split
from fedre_privacy.protocols.base import protocols

from .coins import dealt, draw_slots, planted, toss
from .folder import (
    COMPLETE,
    PARTIAL,
    Begun,
    begin,
    device_name,
    log,
    logging_to,
    taken,
    versions,
    write_end,
)
from .run import Run
from .settings import TrainSettings


@dataclass(frozen=True, eq=False)
class Prepared:
    """Data loaded, shared out and checked against the protocol; no model built yet.

    Defences have what follows from the federation filled in.
    """

    data: ImageData
    split: Split
    setting: Setting
    defense: tuple[Defense, ...]


@dataclass(frozen=True, eq=False)
class Work:
    """What an engine trains, and where it puts what it records.

    Args:
        folder: the run's own. resume: go on after the last checkpoint in it.
        on_row: to be called with all rows of metrics after every round.
    """

    settings: TrainSettings
    prepared: Prepared
    folder: Path
    resume: bool
    report: Report
    on_row: Callable[[list[loop.Row]], None]


Engine = Callable[[Work], None]
"""Trains a federation and records its uploads, models and mixtures in the run's folder."""

UPLOADS, CHECKPOINTS = "uploads", "checkpoints"
"""Folders of a run: what crossed the wire, and the state to go on from."""


def prepare(settings: TrainSettings, device: torch.device) -> Prepared:
    """Load the data, share it out, and refuse what cannot work before anything is trained.

    Raises:
        FedreError: of the data set, the partition, the model or the protocol.
    """
    training = settings.train
    data, shares = loaded(settings)
    dim = representation_dim(settings.model, data.image_shape)
    names = tuple(architecture_of(settings.model.name, k) for k in range(training.clients))
    counts = shares.class_counts(data.labels.numpy(), data.num_classes)
    setting = Setting(
        training=training,
        num_classes=data.num_classes,
        image_shape=data.image_shape,
        dims=(dim,) * training.clients,
        architectures=names,
        class_counts=tuple(tuple(int(n) for n in row) for row in counts),
        device=device,
        model=settings.model,
    )
    problems = settings.protocol.check(setting) + _too_few_samples(settings, data, counts)
    problems += _too_large(settings, setting)
    for one in settings.steering:
        problems += one.check(training.clients, settings.protocol.broadcasts)
    if settings.defense and not problems:
        problems = statement.check_all(settings.defense, facts_of(settings, setting))
    if problems:
        raise IncompatibleError(*problems)
    facts = facts_of(settings, setting)
    return Prepared(data, shares, setting, tuple(d.settled(facts) for d in settings.defense))


def loaded(settings: TrainSettings) -> tuple[ImageData, Split]:
    """The images of a training, with its canaries if it has any, and who trains on which.

    Raises:
        FedreError: of the data set or the partition.
    """
    data = settings.data.load()
    shares = shared_out(settings, data)
    if settings.coins is None:
        return data, shares
    slots = draw_slots(shares, data.labels, settings.coins)
    heads = toss(shares, len(slots), settings.coins)
    return planted(data, slots, settings.coins), dealt(slots, heads)


def shared_out(settings: TrainSettings, data: ImageData) -> Split:
    """Who gets which samples, before any coin is tossed.

    Raises:
        FedreError: of the partition.
    """
    training, partition = settings.train, settings.partition
    return split(
        partition,
        data.labels.numpy(),
        training.clients,
        training.seed if partition.seed is None else partition.seed,
        training.train_ratio,
    )


def facts_of(settings: TrainSettings, setting: Setting) -> Facts:
    """What the accounting of defences needs to know of a federation."""
    training, protocol = setting.training, settings.protocol
    joined = Counter(k for sent in possible_participants(settings).values() for k in sent)
    built: dict[str, nn.Module] = {}

    def model(client: int) -> nn.Module:
        name = setting.architectures[client]
        if name not in built:
            with torch.device("meta"):
                built[name] = build_model(
                    settings.model, client, setting.image_shape, setting.num_classes
                )
        return built[name]

    return Facts(
        protocol=protocol.name,
        kinds=protocol.uploads,
        sums=protocol.sums,
        class_counts=setting.class_counts,
        participations=tuple(joined[k] for k in range(training.clients)),
        rounds=training.rounds,
        epochs=training.epochs,
        batch_size=training.batch_size,
        local_steps=protocol.local_steps,
        buffers=protocol.sends_buffers(),
        training_only=protocol.training_only,
        summing=_summing(),
        model=model,
    )


def possible_participants(settings: TrainSettings) -> dict[int, tuple[int, ...]]:
    """Who may take part in each round: whom an honest server draws, or anybody.

    A server that chooses may choose any client in every round, and clients account for that.
    """
    training = settings.train
    free = any(one.chooses for one in settings.steering)
    everyone = tuple(range(training.clients))
    return {
        r: everyone if free else loop.select(training, r) for r in range(1, training.rounds + 1)
    }


def _summing() -> tuple[str, ...]:
    """Protocols whose server can do with sums, with the setting that it takes."""
    found = []
    for name in protocols.names():
        protocol = protocols.get(name)
        if protocol.sums:
            found.append(name)
        elif protocol.sums_with:
            found.append(f"{name} with protocol.{protocol.sums_with}")
    return tuple(found)


def _too_large(settings: TrainSettings, setting: Setting) -> list[str]:
    """Clients' models that the machine cannot hold, without which nothing can be trained."""
    size = 0
    for name, count in Counter(setting.architectures).items():
        client = setting.architectures.index(name)
        with torch.device("meta"):
            model = build_model(settings.model, client, setting.image_shape, setting.num_classes)
        size += count * sum(p.numel() * p.element_size() for p in model.parameters())
    available = available_bytes()
    if available is None or size <= available:
        return []
    return [
        f"The models of {plural(len(setting.architectures), 'client')} ({settings.model.name}, "
        f"images of {'x'.join(map(str, setting.image_shape))}) take {human_bytes(size)}; the "
        f"machine has {human_bytes(available)} of memory left. Use fewer clients (--clients), "
        "smaller images, or a smaller model (--models)."
    ]


def _too_few_samples(
    settings: TrainSettings, data: ImageData, counts: NDArray[np.int64]
) -> list[str]:
    """Clients whose batches would hold one sample although their model has BatchNorm."""
    single: dict[str, list[int]] = {}
    for k, count in enumerate(counts.sum(1).tolist()):
        if settings.train.batch_size == 1 or count == 1:
            single.setdefault(architecture_of(settings.model.name, k), []).append(k)
    return [
        f"{plural(len(clients), 'client')} ({first_few(clients)}) would train on batches of one "
        f"sample, and their model ({name}) has BatchNorm, which needs two. Raise "
        "partition.min_samples or train.batch_size, or choose --models cnn4."
        for name, clients in single.items()
        if has_batch_norm(settings.model, clients[0], data.image_shape, data.num_classes)
    ]


def build_clients(settings: TrainSettings, prepared: Prepared) -> list[Client]:
    """Make every client's model and put its samples on the device, pixels as uint8."""
    device = prepared.setting.device
    images, labels = prepared.data.images.to(device), prepared.data.labels.to(device)
    data = Samples(images, labels)
    first: dict[str, SplitModel] = {}
    clients = [
        build_client(settings, prepared, k, data, first) for k in range(settings.train.clients)
    ]
    if _fit_together(clients, device):
        for client in clients:
            client.model.to(device)
    return clients


def build_client(
    settings: TrainSettings,
    prepared: Prepared,
    k: int,
    data: Samples,
    first: dict[str, SplitModel],
) -> Client:
    """Make one client's model and take its samples.

    Args:
        data: all samples, on the device.
        first: the model that clients of an architecture begin with, by its name; filled here.
    """
    shape, classes = prepared.data.image_shape, prepared.data.num_classes

    def samples(index: np.ndarray[Any, np.dtype[np.int64]]) -> Samples:
        return data.take(torch.from_numpy(index).to(data.labels.device))

    own = samples(prepared.split.train[k])
    if settings.model.init == PRIVATE:
        secret = client_secret(own.fingerprint(), settings.train.seed, k)
        with seeded(secret, "model"):
            model = build_model(settings.model, k, shape, classes)
    else:  # clients of one architecture begin with equal parameters
        architecture = prepared.setting.architectures[k]
        if architecture not in first:
            first[architecture] = shared_start(settings, k, shape, classes)
        model = copy.deepcopy(first[architecture])
    client = Client(k, model, own, samples(prepared.split.test[k]))
    with seeded(settings.train.seed, "protocol state", client=k):
        settings.protocol.start_client(client, prepared.setting)
    return client


def shared_start(
    settings: TrainSettings, client: int, image_shape: tuple[int, int, int], num_classes: int
) -> SplitModel:
    """The model that all clients of a client's architecture begin with."""
    architecture = architecture_of(settings.model.name, client)
    with seeded(settings.train.seed, f"model {architecture}"):
        return build_model(settings.model, client, image_shape, num_classes)


def _fit_together(clients: Sequence[Client], device: torch.device) -> bool:
    """Whether all clients' models may stay on the device: a quarter of a GPU's free memory."""
    size = sum(p.numel() * p.element_size() for c in clients for p in c.model.parameters())
    free = free_bytes(device)
    return free is None or size < free / 4


def train(
    settings: TrainSettings,
    *,
    runs: Path = Path("runs"),
    device: torch.device = torch.device("cpu"),  # noqa: B008
    resume: bool = False,
    restart: bool = False,
    wait: bool = False,
    report: Report = silent,
    prepared: Prepared | None = None,
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
            another process works, or one to be resumed whose data have changed.
    """
    folder = runs / settings.run_name
    if begin(folder, resume=resume, restart=restart, what="Run", wait=wait):
        return _reused(folder, report)
    # before an earlier run goes: what cannot be trained must not cost it
    prepared = prepared or prepare(settings, device)
    with taken(folder, resume=resume, restart=restart, what="Run", wait=wait) as finished:
        if finished:
            return _reused(folder, report)
        with logging_to(folder):
            return _train(settings, prepared, folder, resume or wait, report, engine or in_process)


def _reused(folder: Path, report: Report) -> Run:
    report(Event("train.reused", {"folder": str(folder)}))
    return Run(folder)


def _train(
    settings: TrainSettings,
    prepared: Prepared,
    folder: Path,
    resume: bool,
    report: Report,
    engine: Engine,
) -> Run:
    started = time.monotonic()
    record = _first_record(settings, prepared)
    if resume and (folder / "record.json").is_file():
        before = files.read_json(folder / "record.json", Begun).get("data_sha256")
        if before != record["data_sha256"]:
            raise DamagedInputError(
                f"The data set '{prepared.data.name}' has changed since {folder.name} was started "
                f"(SHA-256 {record['data_sha256'][:12]}..., then {str(before)[:12]}...).",
                next_step="Restore the data, or train again with --restart.",
            )
    log.info("training %s on %s", folder.name, record["device"])
    if settings.active:
        report(Event("note", {"text": f"{settings.active}: clients are not told."}))
    for sentence in record.get("privacy", {}).get("says", ()):
        report(Event("note", {"text": sentence}))
    files.write_yaml(folder / "config.yaml", settings.plain())
    files.write_json(folder / "record.json", record)
    if settings.record.truth:
        _write_split(folder, prepared.split)
    table = _Metrics(folder)
    try:
        engine(Work(settings, prepared, folder, resume, report, table.take))
    except BaseException as error:
        write_end(folder, record, error)
        raise
    finally:
        table.write()
    record |= {
        "status": COMPLETE,
        "wall_s": time.monotonic() - started,
        "final": {k: v for k, v in _columns(table.rows[-1]).items() if k != "wall_s"},
    }
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    _cover(folder, record)
    files.write_json(folder / "record.json", record)
    log.info("complete: %s", record["final"])
    report(Event("train.done", {"folder": str(folder), "wall_s": record["wall_s"]}))
    return Run(folder)


def _cover(folder: Path, record: dict[str, Any]) -> None:
    """List what was recorded with its hashes, the record too, which is written after that."""
    names = ("config.yaml", "metrics.csv", "clients.csv")
    written = [path for name in names if (path := folder / name).is_file()]
    for name in (UPLOADS, "models", "private"):
        written += sorted((folder / name).glob("*"))
    write_manifest(folder, written, ahead={"record.json": files.json_text(record)})


def in_process(work: Work) -> None:
    """Train all clients in this process, one after another or together."""
    settings, prepared, folder = work.settings, work.prepared, work.folder
    clients = build_clients(settings, prepared)
    server = begin_server(settings, prepared.setting)
    last, record = settings.train.rounds, settings.record

    def keep(
        round: int, clients: Sequence[Client], emissions: dict[int, tuple[Emission, ...]]
    ) -> None:
        if not record.keeps(round, last):
            return
        tensors = {
            f"client{client.id}/{name}": value
            for client in clients
            for name, value in client.model.state_dict().items()
        }
        files.write_tensors(models_file(folder, round), tensors)
        if settings.record.truth:
            files.write_tensors(mixtures_file(folder, round), mixtures(emissions))

    loop.run(
        settings.protocol,
        clients,
        server,
        prepared.setting,
        recorder=Recorder(folder / UPLOADS),
        checkpoints=folder / CHECKPOINTS,
        keep=keep,
        report=work.report,
        resume=work.resume,
        on_row=work.on_row,
        defenses=prepared.defense,
        steering=settings.steering,
    )


def begin_server(settings: TrainSettings, setting: Setting) -> Server:
    """The server as it is before the first round."""
    with seeded(settings.train.seed, SERVER_STATE):
        return settings.protocol.start_server(setting)


def _columns(row: loop.Row) -> loop.Row:
    """A round's row without the lists over clients."""
    return {key: value for key, value in row.items() if not key.startswith(loop.PER_CLIENT)}


class _Metrics:
    """The tables of a run, written anew now and then: they grow with the rounds.

    They may take a twentieth of the time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[loop.Row] = []
        self.again = 0.0

    def take(self, rows: list[loop.Row]) -> None:
        """All rows so far, after every round."""
        self.rows = rows
        began = time.monotonic()
        if began >= self.again:
            self.write()
            ended = time.monotonic()
            self.again = ended + max(1.0, 20 * (ended - began))

    def write(self) -> None:
        """Write what there is."""
        if self.rows:
            _write_metrics(self.folder, self.rows)


def _write_metrics(folder: Path, rows: list[loop.Row]) -> None:
    """Write one row per round, and one per client of every round that was evaluated."""
    files.write_csv(folder / "metrics.csv", [_columns(row) for row in rows])
    local, broadcast = (f"{loop.PER_CLIENT}{moment}" for moment in ("post_local", "post_broadcast"))
    clients = [
        {"round": row["round"], "client": k, "acc_post_local": one, "acc_post_broadcast": other}
        for row in rows
        if row.get(local) and row.get(broadcast)
        for k, (one, other) in enumerate(zip(row[local], row[broadcast], strict=True))
    ]
    if clients:
        files.write_csv(folder / "clients.csv", clients)


def _first_record(settings: TrainSettings, prepared: Prepared) -> dict[str, Any]:
    data = prepared.data
    return {
        "name": settings.run_name,
        "status": PARTIAL,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "device": device_name(prepared.setting.device),
        "image_shape": list(data.image_shape),
        "classes": list(data.classes),
        "dim": prepared.setting.dims[0],
        "data_sha256": data.sha256,
        "data_notes": list(data.notes),
        "partition_sha256": [prepared.split.sha256_train, prepared.split.sha256_test],
        "class_counts": [list(row) for row in prepared.setting.class_counts],
        "architectures": list(prepared.setting.architectures),
        "summary": summary(settings),
        **_defended(settings, prepared),
        **({"active_server": settings.active} if settings.active else {}),
    }


def _defended(settings: TrainSettings, prepared: Prepared) -> dict[str, Any]:
    """The defences and what they guarantee, for the record; nothing where there are none."""
    if not prepared.defense:
        return {}
    return statement.record(prepared.defense, facts_of(settings, prepared.setting))


def summary(settings: TrainSettings) -> str:
    """The run in a few words: clients, partition, rounds, models."""
    options = ", ".join(
        f"{key} {value:g}"
        for key, value in vars(settings.partition).items()
        if isinstance(value, float)
    )
    shared = f"{settings.partition.name}{' (' + options + ')' if options else ''}"
    return (
        f"{plural(settings.train.clients, 'client')}, {shared}, "
        f"{plural(settings.train.rounds, 'round')}, {settings.model.name}"
        + "".join(f", {defense.name}" for defense in settings.defense)
        + (f", {settings.active}" if settings.active else "")
    )


def _write_split(folder: Path, shares: Split) -> None:
    tensors: dict[str, Tensor] = {}
    for part, arrays in (("train", shares.train), ("test", shares.test)):
        tensors |= {f"{part}{k}": torch.from_numpy(own) for k, own in enumerate(arrays)}
    files.write_tensors(folder / "private" / "split.safetensors", tensors)


def models_file(folder: Path, round: int) -> Path:
    """Where clients' models of a round are kept."""
    return folder / "models" / f"r{round:04d}.safetensors"


def mixtures_file(folder: Path, round: int) -> Path:
    """Where it is kept which samples made a round's uploads."""
    return folder / "private" / f"mixtures-r{round:04d}.safetensors"


def mixtures(emissions: dict[int, tuple[Emission, ...]]) -> dict[str, Tensor]:
    """Which samples made clients' uploads, as tensors by name."""
    tensors: dict[str, Tensor] = {}
    for client, sent in emissions.items():
        for number, emission in enumerate(sent):
            if emission.mixture is not None:
                mixture = emission.mixture
                parts = {
                    "row": mixture.row,
                    "sample": mixture.sample,
                    "weight": mixture.weight,
                    "num_rows": torch.tensor(mixture.num_rows),
                }
                # copies: a mixture may use one tensor twice, which safetensors refuses
                tensors |= {f"{client}/{number}/{key}": t.clone() for key, t in parts.items()}
    return tensors
