"""A run's folder: what is where, what is whole, and reading it back."""

from __future__ import annotations

import csv
import logging
import platform
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy import __version__
from fedre_privacy.core import files, lock
from fedre_privacy.core.config import Loaded, load_yaml
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    FedreError,
    MissingInputError,
    StorageError,
    nearest,
)
from fedre_privacy.core.manifest import MADE_FROM, Manifest, covering
from fedre_privacy.core.types import Broadcast, Mixture, Upload
from fedre_privacy.core.units import human_seconds
from fedre_privacy.defenses.base import Defense
from fedre_privacy.federation.recorder import read_messages, rounds_recorded
from fedre_privacy.models.families import build_model
from fedre_privacy.models.split import SplitModel

from .settings import TrainSettings, required, resolve_training

log = logging.getLogger("fedre_privacy")
log.propagate = False
log.addHandler(logging.NullHandler())

COMPLETE, PARTIAL, FAILED = "complete", "partial", "failed"


def versions() -> dict[str, str]:
    """Versions that can change numbers."""
    out = {"fedre-privacy": __version__, "python": platform.python_version()}
    for package in ("torch", "torchvision", "numpy", "scikit-image", "scikit-learn"):
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            out[package] = "absent"
    return out


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({torch.get_num_threads()} threads, {platform.machine()})"


def status_of(folder: Path) -> str | None:
    """``complete``, ``partial`` or ``failed``; None where nothing was begun."""
    path = folder / "record.json"
    if not path.is_file():
        begun = folder.is_dir() and any(path.name != lock.LOCK for path in folder.iterdir())
        return PARTIAL if begun else None
    return str(files.read_json(path).get("status", PARTIAL))


def begin(folder: Path, *, resume: bool, restart: bool, what: str, wait: bool = False) -> bool:
    """Decide what happens to a folder that may exist; return True when it is already complete.

    Nothing is changed yet: see `taken`.

    Args:
        wait: refuse nothing that another process may still complete.

    Raises:
        ConfigError: it holds an unfinished piece of work and neither option was given.
        InUseError: another process works in it.
    """
    if not restart and status_of(folder) == COMPLETE:
        lock.remove_left(folder)
        return True
    if wait:
        return False
    lock.refuse_if_held(folder)
    return _finished(folder, resume=resume, restart=restart, what=what)


@contextmanager
def taken(
    folder: Path, *, resume: bool, restart: bool, what: str, wait: bool = False
) -> Iterator[bool]:
    """Hold a folder for work, and free it of what is not needed any more.

    Yields:
        Whether another process completed it in the meantime.

    Args:
        wait: wait for another process that works in it, and take up what that left.

    Raises:
        ConfigError, InUseError: as `begin`.
    """
    with lock.held(folder, wait=wait):
        resume = resume or (wait and status_of(folder) is not None)
        finished = _finished(folder, resume=resume, restart=restart, what=what)
        if not finished:
            if restart:
                _empty(folder)
            lock.remove_temporaries(folder)
        yield finished


def _empty(folder: Path) -> None:
    """Remove what is in a folder, but for its lock: first the record, which calls it complete."""
    with files.writing(folder):
        (folder / "record.json").unlink(missing_ok=True)
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != lock.LOCK:
                path.unlink()


def _finished(folder: Path, *, resume: bool, restart: bool, what: str) -> bool:
    status = None if restart else status_of(folder)
    if status == COMPLETE:
        return True
    if status is not None and not resume:
        raise ConfigError(
            f"{what} {folder} was started before and is {status}.",
            next_step="Add --resume to go on from where it stopped, or --restart to begin anew.",
        )
    if status is None and resume and not restart and folder.parent.is_dir():
        kin = folder.name.rsplit("-", 1)[0]
        others = [
            path.name
            for path in sorted(folder.parent.glob(f"{kin}-*"))
            if status_of(path) in (PARTIAL, FAILED)
        ]
        if others:
            raise ConfigError(
                f"--resume found no unfinished {folder.name} with these settings; unfinished with "
                f"other settings: {', '.join(others)}.",
                next_step=f"Use the settings in {folder.parent / others[0] / 'config.yaml'} "
                "(--config), or leave --resume out to start a new one.",
            )
    return False


class _LogFile(logging.FileHandler):
    """A log that ends no work and prints nothing where the disk is full or cannot be written."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextmanager
def logging_to(folder: Path) -> Iterator[None]:
    """Append what happens in a block, and the traceback of what ends it, to ``log.txt``.

    Nothing is written when the block ends before the folder was made.
    """
    handler = _LogFile(folder / "log.txt", encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    except Exception:
        if folder.is_dir():
            log.exception("stopped")
        raise
    finally:
        log.removeHandler(handler)
        with suppress(OSError):
            handler.close()


def write_end(folder: Path, record: dict[str, Any], error: BaseException) -> None:
    """Note in ``record.json`` how work ended that did not finish, if the disk lets us."""
    record["status"] = PARTIAL if isinstance(error, KeyboardInterrupt) else FAILED
    record["failure"] = str(error) if isinstance(error, FedreError) else repr(error)
    with suppress(StorageError):
        files.write_json(folder / "record.json", record)


@dataclass(frozen=True)
class Messages:
    """Recorded messages of a folder, of which each file is read, and its hash checked, once.

    It lives as long as one attack is prepared; the next attack reads the files anew.

    Args:
        folder: holds ``index.json`` and the files of the rounds.
        check: refuses rounds whose files are not what was recorded.
    """

    folder: Path
    check: Callable[[Collection[int] | None], None]
    _loaded: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)

    def of(self, rounds: Collection[int] | None = None) -> tuple[list[Upload], list[Broadcast]]:
        """Uploads and broadcasts, of all rounds or of some; see `read_messages`."""
        self.check(rounds)
        return read_messages(self.folder, rounds, loaded=self._loaded)


@dataclass(frozen=True)
class Run:
    """A recorded training run.

    Args:
        folder: its folder, holding ``record.json`` and ``config.yaml``.
    """

    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / "record.json").is_file():
            raise _no_run(self.folder, self.folder, self.folder.parent)

    @cached_property
    def record(self) -> dict[str, Any]:
        """The contents of ``record.json``.

        Raises:
            DamagedInputError: it is no record; or the training is complete, and no manifest covers
                it or it is not the record that was covered.
        """
        path = self.folder / "record.json"
        record = files.read_json(path)
        if not isinstance(record, dict):
            raise DamagedInputError(f"{path} is not a record.")
        if record.get("status") == COMPLETE:
            self.manifest.check(path)
        return record

    @cached_property
    def manifest(self) -> Manifest:
        """The hashes of what was recorded; there is none before the training is complete.

        Raises:
            DamagedInputError: the folder has no readable one.
        """
        return covering(self.folder)

    def unchanged(self, name: str) -> Path:
        """A file of the run by its name in the folder; what was recorded, if that is complete.

        Raises:
            DamagedInputError: it is changed, gone, or was added.
        """
        path = self.folder / name
        if self.record.get("status") == COMPLETE:
            self.manifest.check(path)
        return path

    def _kept(self, folder: str) -> list[str]:
        """Names of the files that were recorded in a folder of the run."""
        if self.record.get("status") == COMPLETE:
            return self.manifest.below(folder)
        return sorted(path.name for path in (self.folder / folder).glob("*.safetensors"))

    @cached_property
    def loaded(self) -> Loaded:
        """The contents of ``config.yaml``."""
        return load_yaml(self.unchanged("config.yaml"))

    @cached_property
    def settings(self) -> TrainSettings:
        """The settings it was trained with."""
        loaded = self.loaded
        problems: list[str] = []
        return required(resolve_training(loaded.values, loaded.where, problems), problems)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.record["image_shape"]
        return channels, height, width

    @property
    def system(self) -> str:
        """Name of the protocol."""
        return self.settings.protocol.name

    @property
    def class_names(self) -> list[str]:
        """Names of the classes."""
        return list(self.record["classes"])

    @property
    def defenses(self) -> tuple[Defense, ...]:
        """What clients declare to do to their training and uploads, in order."""
        return self.settings.defense

    def messages(self) -> Messages:
        """What clients and server sent."""
        return Messages(self.folder / "uploads", self._check_messages)

    def _check_messages(self, rounds: Collection[int] | None) -> None:
        """Refuse messages, of all rounds or of some, that are not what was recorded."""
        self.unchanged("uploads/index.json")
        there = {path.name for path in (self.folder / "uploads").glob("r*.safetensors")}
        wanted = None if rounds is None else {f"r{round:04d}.safetensors" for round in rounds}
        for name in sorted({*self._kept("uploads"), *there}):
            if wanted is None or name in wanted:
                self.unchanged(f"uploads/{name}")

    def uploaded_rounds(self) -> list[int]:
        """Rounds with at least one upload, ascending."""
        self.unchanged("uploads/index.json")
        return rounds_recorded(self.folder / "uploads")

    def plain(self) -> dict[str, Any]:
        """The settings of the training."""
        return self.settings.plain()

    def identity(self) -> dict[str, Any]:
        """The run's name, and the hash of its manifest."""
        return {"run": self.name, MADE_FROM: self.manifest.sha256}

    def provenance(self) -> dict[str, str]:
        """What was trained, where, and how well it learnt."""
        record, moment = self.record, self.settings.protocol.headline
        final = record.get("final", {})
        accuracy = final.get(f"acc_{moment}")
        return {
            "Run": f"{self.name}, trained {record['started']} on {record['device']} in "
            f"{human_seconds(record['wall_s'])}",
            "Accuracy": "-"
            if accuracy is None
            else f"{accuracy:.3f} +- {final[f'acc_{moment}_sd']:.3f} over clients ({moment})",
            "Data (SHA-256)": str(record["data_sha256"]),
            "Partition (SHA-256)": ", ".join(record["partition_sha256"]),
            "Run's manifest (SHA-256)": self.manifest.sha256,
        }

    def headline(self) -> dict[str, str]:
        """The protocol, and the training in a line."""
        return {"Protocol": f"{self.system}: {self.record['summary']}"}

    def repeat(self, attack: str, folder: Path) -> tuple[str, str]:
        """The command that repeats an attack, given in the attack's folder."""
        return "fedre-attack --config config.yaml --runs-dir ../../..", (
            "To be given in the folder of this page. It finds this run and this attack and reads "
            "them back; --restart repeats the attack. Elsewhere config.yaml alone trains and "
            "attacks anew."
        )

    @property
    def notes(self) -> list[str]:
        """What the data set says about itself."""
        return list(self.record.get("data_notes", ()))

    def secrets(self) -> list[Path]:
        """What no attack may open: this run, those beside it, and the files of its data set."""
        folder = self.folder.resolve()
        return [folder.parent, *self.settings.data.sources()]

    def best_round(self) -> tuple[int, float] | None:
        """The evaluated round of highest accuracy at the protocol's moment, and that accuracy.

        It is chosen on the test images, so it flatters; papers that report it say "best". None
        where no round was evaluated. The earliest of equals.
        """
        moment = f"acc_{self.settings.protocol.headline}"
        with self.unchanged("metrics.csv").open(newline="", encoding="utf-8") as text:
            found = [
                (int(row["round"]), float(row[moment]))
                for row in csv.DictReader(text)
                if row[moment]
            ]
        return max(found, key=lambda one: (one[1], -one[0]), default=None)

    def kept_rounds(self) -> list[int]:
        """Rounds whose extractors were kept, ascending."""
        names = (Path(name).stem for name in self._kept("models"))
        return sorted(int(name[1:]) for name in names if name.startswith("r"))

    def model(self, client: int, round: int) -> SplitModel:
        """The model of a client as it was when it made its upload of a round.

        Raises:
            MissingInputError: the round's models were not kept (the nearest one is named).
        """
        settings = self.settings
        num_classes = len(self.record["classes"])
        model = build_model(settings.model, client, self.image_shape, num_classes)
        try:
            model.load_state_dict(self.state(client, round))
        except RuntimeError as error:
            raise DamagedInputError(
                f"The models of {self.folder} do not fit its config.yaml: {error}"
            ) from None
        return model.eval().requires_grad_(False)

    def extractor(self, client: int, round: int) -> nn.Module:
        """The extractor of `model`."""
        return self.model(client, round).extractor

    def state(self, client: int, round: int) -> dict[str, Tensor]:
        """The tensors of `model` by name.

        Raises:
            MissingInputError: the round's models were not kept (the nearest one is named).
        """
        prefix = f"client{client}/"
        return {k.removeprefix(prefix): v for k, v in self._models(round, prefix).items()}

    def _models(self, round: int, prefix: str) -> dict[str, Tensor]:
        kept = self.kept_rounds()
        if round not in kept:
            if not kept:
                raise MissingInputError(f"{self.folder} kept no extractors: models/ is empty.")
            near = min(kept, key=lambda r: abs(r - round))
            raise MissingInputError(
                f"The extractors of round {round} were not kept; kept: "
                f"{', '.join(map(str, kept))}.",
                next_step=f"Use --set eval.round={near}, or train with --set record.keep_every=1.",
            )
        path = self.unchanged(f"models/r{round:04d}.safetensors")
        return files.read_tensors(path, prefix=prefix)

    def split_indices(self) -> tuple[list[Tensor], list[Tensor]]:
        """Training and test indices of each client (evaluator only)."""
        tensors = self._private("split.safetensors")
        clients = self.settings.train.clients
        return (
            [tensors[f"train{k}"] for k in range(clients)],
            [tensors[f"test{k}"] for k in range(clients)],
        )

    def mixtures(self, round: int) -> dict[tuple[int, int], Mixture]:
        """(client, artifact number) to the provenance of its rows (evaluator only)."""
        found = (Path(name).stem for name in self._kept("private"))
        kept = sorted(
            int(name.removeprefix("mixtures-r")) for name in found if name.startswith("mixtures-r")
        )
        if kept and round not in kept:
            near = min(kept, key=lambda r: abs(r - round))
            raise MissingInputError(
                f"The truth of round {round} was not kept; kept: {', '.join(map(str, kept))}.",
                next_step=f"Use --set eval.round={near}, or train with --set record.keep_every=1.",
            )
        tensors = self._private(f"mixtures-r{round:04d}.safetensors")
        out = {}
        for key in {name.rsplit("/", 1)[0] for name in tensors}:
            client, number = key.split("/")
            out[int(client), int(number)] = Mixture(
                tensors[f"{key}/row"],
                tensors[f"{key}/sample"],
                tensors[f"{key}/weight"],
                num_rows=int(tensors[f"{key}/num_rows"]),
            )
        return out

    def _private(self, name: str) -> dict[str, Tensor]:
        if name not in self._kept("private"):
            raise MissingInputError(
                f"{self.folder} has no truth to score against ({name} is absent): it was "
                "recorded with record.truth=false.",
                next_step="Train again without --no-truth to score attacks.",
            )
        return files.read_tensors(self.unchanged(f"private/{name}"))

    def __repr__(self) -> str:
        record = self.record
        return f"Run({self.name}: {record['summary']}, {record['status']})"


def find_run(given: str | Path, runs: Path) -> Run:
    """Find a run by its folder, or by its name among the runs.

    Raises:
        MissingInputError: neither is there; the nearest runs are named.
    """
    folder = Path(given)
    for place in (folder, runs / given):
        if (place / "record.json").is_file():
            return Run(place)
    raise _no_run(given, folder, folder.parent, runs)


def _no_run(given: str | Path, *places: Path) -> MissingInputError:
    """The refusal of a folder that is no run, with the nearest runs in some places."""
    found = (path for place in places for path in sorted(place.glob("*/record.json")))
    near = list(dict.fromkeys(path.parent for path in found))
    close = nearest(Path(given).name, [path.name for path in near])
    hint = next((f" Did you mean {path}?" for path in near if path.name == close), "")
    more = f" and {len(near) - 8} more" if len(near) > 8 else ""
    listed = f" Runs near it: {', '.join(map(str, near[:8]))}{more}." if near else ""
    return MissingInputError(
        f"No run at {given}: record.json is not there.{hint}{listed}",
        next_step="Train one with fedre-train, or give --protocol instead of a folder.",
    )
