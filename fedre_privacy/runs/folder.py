"""A run's folder: what is where, what is whole, and reading it back."""

from __future__ import annotations

import logging
import platform
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy import __version__
from fedre_privacy.core import files
from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.errors import ConfigError, DamagedInputError, MissingInputError, nearest
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.core.types import Broadcast, Mixture, Upload
from fedre_privacy.core.units import human_seconds
from fedre_privacy.defenses.base import Defense
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.models.families import build_model
from fedre_privacy.models.split import SplitModel

from .settings import AttackSettings, TrainSettings, required, resolve_training

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
        return PARTIAL if folder.is_dir() and any(folder.iterdir()) else None
    return str(files.read_json(path).get("status", PARTIAL))


def begin(folder: Path, *, resume: bool, restart: bool, what: str) -> bool:
    """Decide what happens to a folder that may exist; return True when it is already complete.

    Raises:
        ConfigError: it holds an unfinished piece of work and neither option was given.
    """
    status = status_of(folder)
    if status == COMPLETE and not restart:
        return True
    if status is not None and restart:
        shutil.rmtree(folder)
        status = None
    if status is not None and not resume:
        raise ConfigError(
            f"{what} {folder} was started before and is {status}.",
            next_step="Add --resume to go on from where it stopped, or --restart to begin anew.",
        )
    if status is None and resume and folder.parent.is_dir():
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


@contextmanager
def logging_to(folder: Path) -> Iterator[None]:
    """Append what happens in a block, and the traceback of what ends it, to ``log.txt``.

    Nothing is written when the block ends before the folder was made.
    """
    handler = logging.FileHandler(folder / "log.txt", encoding="utf-8", delay=True)
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
        handler.close()


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
        """The contents of ``record.json``."""
        record = files.read_json(self.folder / "record.json")
        if not isinstance(record, dict):
            raise DamagedInputError(f"{self.folder / 'record.json'} is not a record.")
        return record

    @cached_property
    def settings(self) -> TrainSettings:
        """The settings it was trained with."""
        loaded = load_yaml(self.folder / "config.yaml")
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

    def messages(
        self, rounds: Collection[int] | None = None
    ) -> tuple[list[Upload], list[Broadcast]]:
        """Uploads and broadcasts, of all rounds or of some."""
        return read_messages(self.folder / "uploads", rounds)

    def plain(self) -> dict[str, Any]:
        """The settings of the training."""
        return self.settings.plain()

    def identity(self) -> dict[str, Any]:
        """The run's name."""
        return {"run": self.name}

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
        }

    def headline(self) -> dict[str, str]:
        """The protocol, and the training in a line."""
        return {"Protocol": f"{self.system}: {self.record['summary']}"}

    def repeat(self, attack: AttackSettings, folder: Path) -> tuple[str, str]:
        """The command that repeats an attack, given in the attack's folder."""
        own = plugin_words([*self.settings.plugins(), *attack.plugins()])
        return f"fedre-attack --config config.yaml --runs-dir ../../..{own}", (
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

    def kept_rounds(self) -> list[int]:
        """Rounds whose extractors were kept, ascending."""
        return sorted(int(p.stem[1:]) for p in (self.folder / "models").glob("r*.safetensors"))

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
        return files.read_tensors(
            self.folder / "models" / f"r{round:04d}.safetensors", prefix=prefix
        )

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
        found = (self.folder / "private").glob("mixtures-r*.safetensors")
        kept = sorted(int(path.stem.removeprefix("mixtures-r")) for path in found)
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
        path = self.folder / "private" / name
        if not path.is_file():
            raise MissingInputError(
                f"{self.folder} has no truth to score against ({path.name} is absent): it was "
                "recorded with record.truth=false.",
                next_step="Train again without --no-truth to score attacks.",
            )
        return files.read_tensors(path)

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
