"""A recorded run: reading it back, with every file checked against what was recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from fedre_privacy.core import files
from fedre_privacy.core.artifact_schema import DTYPES
from fedre_privacy.core.config import LoadedYaml, load_yaml
from fedre_privacy.core.errors import DamagedInputError, MissingInputError, nearest
from fedre_privacy.core.manifest import MADE_FROM, Manifest, complete_manifest
from fedre_privacy.core.registry import plugin_words
from fedre_privacy.core.secrets import follows_from, learn
from fedre_privacy.core.types import Broadcast, Mixture, Upload
from fedre_privacy.core.units import human_seconds
from fedre_privacy.defenses.base import Defense
from fedre_privacy.federation.recorder import read_messages, rounds_recorded
from fedre_privacy.models.families import build_model
from fedre_privacy.models.split import SplitModel

from .folder import COMPLETE
from .kept_models import acting_defenses, defend_model, parts_of
from .record import AT_END, NEEDED, Record, misfit
from .resolution import require_resolved, resolve_training
from .settings import AttackSettings, TrainSettings

SECRET = "Secret"
"""Heading under which a run says what its hidden draws follow from."""


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
    def record(self) -> Record:
        """The contents of ``record.json``, which fit the settings where the run is complete.

        Raises:
            DamagedInputError: it is no record; or the training is complete, and no manifest covers
                it, it is not the record that was covered, or it does not fit the settings.
        """
        record = self._record
        problem = misfit(record, self.settings) if record["status"] == COMPLETE else ""
        if problem:
            raise DamagedInputError(
                f"{self.folder / 'record.json'} and config.yaml do not belong to one run: "
                f"{problem}.",
                next_step="Restore them, or train again with fedre-train --restart.",
            )
        return record

    @cached_property
    def _record(self) -> Record:
        """The record by itself, before the settings are read."""
        path = self.folder / "record.json"
        record = files.read_json(path, Record)
        complete = record["status"] == COMPLETE
        if complete:
            self.manifest.check(path)
        absent = [key for key in (*NEEDED, *AT_END * complete) if key not in record]
        if absent:
            raise DamagedInputError(
                f"{path} lacks {', '.join(absent)}: it is not a run's record, or it was changed.",
                next_step="Train again with fedre-train --restart.",
            )
        return record

    @cached_property
    def manifest(self) -> Manifest:
        """The hashes of what was recorded; there is none before the training is complete.

        Raises:
            DamagedInputError: the folder has no readable one.
        """
        return complete_manifest(self.folder)

    def unchanged(self, name: str) -> Path:
        """A file of the run by its name in the folder; what was recorded, if that is complete.

        Raises:
            DamagedInputError: it is changed, gone, or was added.
        """
        path = self.folder / name
        if self._record["status"] == COMPLETE:
            self.manifest.check(path)
        return path

    def _recorded_files(self, folder: str) -> list[str]:
        """Names of the files that were recorded in a folder of the run."""
        if self._record["status"] == COMPLETE:
            return self.manifest.recorded(folder, "*.safetensors")
        return sorted(path.name for path in (self.folder / folder).glob("*.safetensors"))

    @cached_property
    def loaded(self) -> LoadedYaml:
        """The contents of ``config.yaml``."""
        return load_yaml(self.unchanged("config.yaml"))

    @cached_property
    def settings(self) -> TrainSettings:
        """The settings it was trained with."""
        loaded = self.loaded
        problems: list[str] = []
        settings = require_resolved(
            resolve_training(loaded.values, loaded.where, problems), problems
        )
        learn(self.folder, settings.train.secret)
        return settings

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.record["image_shape"]
        return channels, height, width

    @property
    def system(self) -> str:
        """Who uploads: the protocol."""
        return self.settings.protocol.name

    @property
    def class_names(self) -> list[str]:
        return list(self.record["classes"])

    def metrics(self) -> pd.DataFrame:
        """``metrics.csv``: a row per round with accuracy, loss and traffic.

        Raises:
            MissingInputError, DamagedInputError: it is absent, or no table of numbers.
        """
        needed = ("round", "loss", f"acc_{self.settings.protocol.headline}")
        return files.read_table(self.unchanged("metrics.csv"), (*needed, "up_bytes", "down_bytes"))

    @property
    def defenses(self) -> tuple[Defense, ...]:
        """The defences of the training, in order."""
        return self.settings.defense

    @cached_property
    def acting(self) -> tuple[Defense, ...]:
        """The same with derived settings filled in."""
        return acting_defenses(self)

    @property
    def active(self) -> str:
        return self.settings.active

    def messages(self) -> Messages:
        """What clients and server sent."""
        return Messages(self.folder / "uploads", self._check_messages)

    def _check_messages(self, rounds: Collection[int] | None) -> None:
        """Refuse messages, of all rounds or of some, that are not what was recorded."""
        self.unchanged("uploads/index.json")
        there = {path.name for path in (self.folder / "uploads").glob("r*.safetensors")}
        wanted = None if rounds is None else {f"r{round:04d}.safetensors" for round in rounds}
        for name in sorted({*self._recorded_files("uploads"), *there}):
            if wanted is None or name in wanted:
                self.unchanged(f"uploads/{name}")

    def uploaded_rounds(self) -> list[int]:
        """Rounds with at least one upload, ascending."""
        self.unchanged("uploads/index.json")
        return rounds_recorded(self.folder / "uploads")

    def plain(self) -> dict[str, Any]:
        return self.settings.plain()

    def identity(self) -> dict[str, Any]:
        return {"run": self.name, MADE_FROM: self.manifest.sha256}

    def provenance(self) -> dict[str, str]:
        record, moment = self.record, self.settings.protocol.headline
        final = record.get("final", {})
        accuracy = final.get(f"acc_{moment}")
        return {
            "Run": f"{self.name}, trained {record['started']} on {record['device']} in "
            f"{human_seconds(record['wall_s'])}",
            SECRET: follows_from(self.settings.train.secret),
            "Accuracy": "-"
            if accuracy is None
            else f"{accuracy:.3f} +- {final[f'acc_{moment}_sd']:.3f} over clients ({moment})",
            "Data (SHA-256)": str(record["data_sha256"]),
            "Partition (SHA-256)": ", ".join(record["partition_sha256"]),
            "Run's manifest (SHA-256)": self.manifest.sha256,
        }

    def headline(self) -> dict[str, str]:
        return {"Protocol": f"{self.system}: {self.record['summary']}"}

    def repeat(self, attack: AttackSettings, folder: Path) -> tuple[str, str]:
        own = plugin_words([*self.settings.plugins(), *attack.plugins()])
        return f"fedre-attack --config config.yaml --runs-dir ../../..{own}", (
            "To be given in the folder of this page. It finds this run and this attack and reads "
            "them back; --restart repeats the attack. Elsewhere config.yaml alone trains and "
            "attacks anew."
        )

    @property
    def bound(self) -> str:
        return str(self.record.get("privacy", {}).get("bound", ""))

    @property
    def notes(self) -> list[str]:
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
        rows = self.metrics()[["round", moment]].dropna().to_numpy().tolist()
        found = [(int(round), float(accuracy)) for round, accuracy in rows]
        return max(found, key=lambda one: (one[1], -one[0]), default=None)

    def kept_rounds(self) -> list[int]:
        """Rounds whose extractors were kept, ascending."""
        return _rounds(self._recorded_files("models"), "r")

    def model(self, client: int, round: int) -> SplitModel:
        """The model of a client as it was when it made its upload of a round, defences included.

        Raises:
            MissingInputError: the round's models were not kept (the nearest one is named).
        """
        settings = self.settings
        num_classes = len(self.record["classes"])
        model = build_model(settings.model, client, self.image_shape, num_classes)
        try:
            model.load_state_dict(self.state(client, round))
            defend_model(model, self.acting, self.own_state(client, round), self.image_shape)
        except RuntimeError as error:
            raise DamagedInputError(
                f"The models of {self.folder} do not fit its config.yaml: {error}"
            ) from None
        return model.eval().requires_grad_(False)

    def extractor(self, client: int, round: int) -> nn.Module:
        return self.model(client, round).extractor

    def state(self, client: int, round: int) -> dict[str, Tensor]:
        """The tensors of `model` by name, without what its defences have learnt.

        Raises:
            MissingInputError: the round's models were not kept (the nearest one is named).
        """
        return parts_of(self._kept(client, round))[0]

    def own_state(self, client: int, round: int) -> dict[str, Tensor]:
        """What a client's defences have learnt to change, see `kept_models`; raises as `state`."""
        return parts_of(self._kept(client, round))[1]

    def _kept(self, client: int, round: int) -> dict[str, Tensor]:
        kept, prefix = self.kept_rounds(), f"client{client}/"
        if not kept:
            raise MissingInputError(f"{self.folder} kept no extractors: models/ is empty.")
        if round not in kept:
            raise self._not_kept("extractors", round, kept)
        path = self.unchanged(f"models/r{round:04d}.safetensors")
        tensors = files.read_tensors(path, prefix=prefix)
        state = {name.removeprefix(prefix): value for name, value in tensors.items()}
        broken = [name for name, one in state.items() if one.dtype not in DTYPES]
        broken += [name for name, one in state.items() if not bool(one.isfinite().all())]
        if broken:
            raise DamagedInputError(
                f"The models of {self.folder} hold no finite numbers: '{broken[0]}' of client "
                f"{client} in round {round}."
            )
        return state

    def _not_kept(self, what: str, round: int, kept: list[int]) -> MissingInputError:
        near = min(kept, key=lambda r: abs(r - round))
        return MissingInputError(
            f"The {what} of round {round} {'was' if what == 'truth' else 'were'} not kept; kept: "
            f"{', '.join(map(str, kept))}.",
            next_step=f"Use --set eval.round={near}, or train with --set record.keep_every=1.",
        )

    def split_indices(self, samples: int | None = None) -> tuple[list[Tensor], list[Tensor]]:
        """Training and test indices of each client (evaluator only).

        Args:
            samples: number of samples of the data set, where it is known.

        Raises:
            MissingInputError, DamagedInputError: absent, or no split of that data set.
        """
        file, clients = "split.safetensors", len(self.record["class_counts"])
        tensors = self._private(file)
        train, test = ([tensors.get(f"{p}{k}") for k in range(clients)] for p in ("train", "test"))
        if not all(one is not None and _indices(one) for one in (*train, *test)):
            raise self._damage_error(file, "holds no samples of each client")
        trained, tested = ([one for one in part if one is not None] for part in (train, test))
        whole = torch.cat([*trained, *tested])
        if len(whole.unique()) < len(whole):
            raise self._damage_error(file, "holds a sample twice")
        if samples is not None and len(whole) and int(whole.max()) >= samples:
            raise self._damage_error(file, "holds samples that the data set lacks")
        if list(map(len, trained)) != [sum(counts) for counts in self.record["class_counts"]]:
            raise self._damage_error(file, "does not fit the class_counts of the record")
        return trained, tested

    def _damage_error(self, name: str, what: str) -> DamagedInputError:
        return DamagedInputError(
            f"{self.folder / 'private' / name} {what}: it was changed.",
            next_step="Restore the file, or train again with fedre-train --restart.",
        )

    def mixtures(self, round: int) -> dict[tuple[int, int], Mixture]:
        """(client, artifact number) to the provenance of its rows (evaluator only)."""
        kept = _rounds(self._recorded_files("private"), "mixtures-r")
        if kept and round not in kept:
            raise self._not_kept("truth", round, kept)
        file = f"mixtures-r{round:04d}.safetensors"
        tensors, out = self._private(file), {}
        sizes = [sum(counts) for counts in self.record["class_counts"]]
        for key in {name.rpartition("/")[0] for name in tensors}:
            match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", key)
            names = ("num_rows", "row", "sample", "weight")
            none = torch.zeros(0, 0)
            rows, row, sample, weight = (tensors.get(f"{key}/{name}", none) for name in names)
            if match is None or rows.dim() or rows.is_floating_point():
                raise self._damage_error(file, f"holds no provenance of '{key}'")
            client, count = int(match[1]), int(rows)
            if (
                not (_indices(row) and _indices(sample) and weight.is_floating_point())
                or not row.shape == sample.shape == weight.shape
                or client >= len(sizes)
                or not 0 <= count <= max(len(row), sizes[client])
                or (len(row) and int(row.max()) >= count)
                or (len(sample) and int(sample.max()) >= sizes[client])
                or not bool(weight.isfinite().all())
            ):
                raise self._damage_error(file, f"holds a provenance of '{key}' that cannot be")
            out[client, int(match[2])] = Mixture(row, sample, weight, num_rows=count)
        return out

    def _private(self, name: str) -> dict[str, Tensor]:
        if name not in self._recorded_files("private"):
            raise MissingInputError(
                f"{self.folder} has no truth to score against ({name} is absent): it was "
                "recorded with record.truth=false.",
                next_step="Train again without --no-truth to score attacks.",
            )
        return files.read_tensors(self.unchanged(f"private/{name}"))

    def __repr__(self) -> str:
        record = self.record
        return f"Run({self.name}: {record['summary']}, {record['status']})"


def _rounds(names: Iterable[str], head: str) -> list[int]:
    """The rounds in the names of safetensors files, ascending."""
    found = (re.fullmatch(rf"{head}([0-9]{{4,9}})\.safetensors", Path(n).name) for n in names)
    return sorted(int(match[1]) for match in found if match)


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


def _indices(tensor: Tensor) -> bool:
    """Whether a tensor is a list of whole numbers of 0 or more."""
    whole = tensor.dtype == torch.int64 and tensor.dim() == 1
    return whole and (not len(tensor) or int(tensor.min()) >= 0)


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
