"""Images from a data set of the package `datasets`: in a folder, its cache, or on the Hub."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..core.config import knob
from ..core.engines import Package
from ..core.errors import (
    ConfigError,
    DamagedInputError,
    IncompatibleError,
    MissingExtraError,
    MissingInputError,
)
from ..core.units import first_few, plural
from .arrays import absent_classes, class_numbers
from .base import BUILT_IN, Dataset, ImageData, at_hand, datasets
from .files import UNREADABLE, Tree, decode_all, with_links

NEEDS = Package("datasets", (4, 0))
"""Before version 4 a folder could name code that the package then ran."""

SAVED = ("dataset_dict.json", "state.json")
"""What ``save_to_disk`` writes into the folder of several parts, and of one."""
TRAIN = ("train", "training")
TEST = ("test", "testing", "validation", "valid", "val")
LABELS = ("label", "labels", "class", "target", "fine_label")
"""Names of parts and of the column of labels, the usual ones first."""


@datasets.register("hf")
@dataclass(frozen=True, kw_only=True)
class HuggingFace(Dataset):
    """Load labelled images from a data set of Hugging Face's package `datasets`.

    `path` is a folder that ``save_to_disk`` wrote, a folder that ``load_dataset`` reads (Parquet
    files, images in class folders), or the name of a data set on the Hub, which is downloaded
    unless it is in the package's cache. No code of a data set is run. The part ``train`` comes
    first, then ``test``, or ``validation`` where there is none. The columns of images and labels
    are found by their types; where several fit, name one. Rows with a negative label have none and
    are left out, with a note. With `per_class` no more images are decoded than kept.

    Raises:
        MissingExtraError: the package is not installed, or older than version 4.
        MissingInputError: nothing at the path and not to be had from the Hub.
        DamagedInputError: a file or an image cannot be read.
        IncompatibleError: no column of images or labels, or several; sizes that differ; no such
            part; labels that are neither whole numbers nor words.
    """

    when_to_use = "a labelled image data set of the package `datasets`"
    also = ("huggingface", "hugging-face", "datasets", "hub")

    path: str | None = knob(None, help="a folder, or the name of a data set on the Hub")
    config: str | None = knob(None, help="which configuration of the data set; none: the only one")
    revision: str | None = knob(None, help="commit, tag or branch on the Hub; none: the newest")
    train: str | None = knob(None, help="name of the training part; none: train, or the only one")
    test: str | None = knob(
        None, help="name of the test part; none: test, validation, or there is none"
    )
    image: str | None = knob(None, help="column of images; none: the only one of that type")
    label: str | None = knob(
        None, help="column of labels; none: the only one of that type, or the usual name"
    )
    size: int | None = knob(
        None, help="side to resize to; none keeps the native size", unit="pixels", ge=4
    )

    def sources(self) -> tuple[Path, ...]:
        if self.path is None:
            return ()
        local = at_hand(self.path)
        if local.exists():
            return with_links((local.resolve(),))
        return tuple(place.resolve() for place in caches() if place.exists())

    def load(self) -> ImageData:
        if self.path is None:
            raise MissingInputError(
                f"Data set '{self.name}' needs a folder or the name of a data set, and none was "
                "given.",
                next_step=f"For example --dataset hf:uoft-cs/cifar10. {BUILT_IN}",
            )
        if problem := NEEDS.problem():
            raise MissingExtraError(
                f"Data set '{self.name}' needs {problem}.",
                next_step="pip install 'fedre-privacy[hf]'",
            )
        parts = self._parts(self.path)
        image, label = self._columns(parts)
        numbers, classes, notes = _labels(parts, label)
        rows = [_kept(own, self.per_class) for own in numbers]
        unlabelled = sum(int((own < 0).sum()) for own in numbers)
        if unlabelled:
            notes = (*notes, f"Left out, having no label: {plural(unlabelled, 'image')}.")
        every = [f"{name}, row {row}" for name, own in zip(parts, rows, strict=True) for row in own]
        if not every:
            raise IncompatibleError(f"{self.path} holds no labelled images.")
        tree = Tree(Path(self.path), tuple(every), _reader(parts, rows, image, self._allowed()))
        with _with_clear_errors(self.path):
            images, changed = decode_all(tree, every, self.size)
        labels = torch.from_numpy(
            np.concatenate([own[kept] for own, kept in zip(numbers, rows, strict=True)])
        )
        return ImageData(
            name=self.name,
            images=images,
            labels=labels,
            classes=classes,
            num_train=len(rows[0]),
            notes=(*notes, *absent_classes(labels, classes), *changed),
        )

    def _allowed(self) -> tuple[Path, ...]:
        """Folders that image files may lie in which a data set names instead of holding them."""
        local = at_hand(str(self.path))
        return (local.resolve(),) if local.exists() else tuple(p.resolve() for p in caches())

    def _parts(self, path: str) -> dict[str, Any]:
        """The training part and, if there is one, the test part by their names."""
        found = _open(path, self.config, self.revision)
        if not hasattr(found, "keys"):
            found = {self.train or TRAIN[0]: found}
        names = list(found)
        lone = names[0] if len(names) == 1 else None
        train = self.train or next((name for name in TRAIN if name in names), lone)
        test = self.test or next((name for name in TEST if name in names and name != train), None)
        for given, option in ((train, "data.train"), (test, "data.test")):
            if given not in names and (given is not None or option == "data.train"):
                said = f"no part '{given}'" if given else "no part with the name train"
                raise IncompatibleError(
                    f"{path} has {said}; its parts are {first_few(names, 10)}.",
                    next_step=f"Name one with --set {option}=NAME.",
                )
        if train == test:
            raise ConfigError(f"data.train and data.test are both '{train}'. Name two parts.")
        return {str(name): found[name] for name in (train, test) if name is not None}

    def _columns(self, parts: dict[str, Any]) -> tuple[str, str]:
        """The columns of images and of labels, which all parts have."""
        from datasets import ClassLabel, Image

        features = next(iter(parts.values())).features
        typed = {
            "image": [name for name, kind in features.items() if isinstance(kind, Image)],
            "label": [name for name, kind in features.items() if isinstance(kind, ClassLabel)],
        }
        if not typed["label"]:
            typed["label"] = [name for name in LABELS if name in features][:1]
        chosen = []
        for what, given in (("image", self.image), ("label", self.label)):
            fits = [given] if given is not None else typed[what]
            if len(fits) != 1 or any(fits[0] not in part.features for part in parts.values()):
                found = "several columns that fit" if len(fits) > 1 else "no such column"
                raise IncompatibleError(
                    f"Data set {self.path}: {found} for data.{what}; its columns are "
                    f"{', '.join(f'{name} ({_type(kind)})' for name, kind in features.items())}.",
                    next_step=f"Name one with --set data.{what}=NAME.",
                )
            chosen.append(fits[0])
        if not isinstance(features[chosen[0]], Image):
            raise IncompatibleError(
                f"Data set {self.path}: column '{chosen[0]}' is {_type(features[chosen[0]])}. "
                "Needed: images.",
                next_step=f"dataset.cast_column('{chosen[0]}', datasets.Image()), and save it "
                "again.",
            )
        return chosen[0], chosen[1]


def caches() -> tuple[Path, ...]:
    """Folders in which the package keeps what it downloaded, as its environment variables say."""
    base = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{base}/huggingface")
    places = {"HF_DATASETS_CACHE": f"{home}/datasets", "HF_HUB_CACHE": f"{home}/hub"}
    return tuple(Path(os.environ.get(name, usual)).expanduser() for name, usual in places.items())


def _open(path: str, config: str | None, revision: str | None) -> Any:
    """The data set as the package opens it: one part, or several by name."""
    from datasets import DownloadConfig, load_dataset, load_from_disk

    local = at_hand(path)
    with _with_clear_errors(path), _quiet():
        if any((local / name).is_file() for name in SAVED):
            return load_from_disk(str(local))
        if local.exists():
            return load_dataset(str(local), config)
    with _quiet():
        try:
            once = DownloadConfig(max_retries=1)
            return load_dataset(path, config, revision=revision, download_config=once)
        except Exception as error:  # of the network, the Hub or the package, in many types
            said = " ".join(str(error).split()).rstrip(".")[:300]
            raise MissingInputError(
                f"Data set '{path}' is no folder here, and it could not be had from the Hub or "
                f"its cache: {said}.",
                next_step="Where there is a network: datasets.load_dataset(NAME)"
                f".save_to_disk('DIR'); then --dataset hf:DIR. {BUILT_IN}",
            ) from None


@contextmanager
def _with_clear_errors(path: str) -> Iterator[None]:
    """Turn whatever the package raises into one message."""
    import pyarrow

    try:
        yield
    except (*UNREADABLE, KeyError, TypeError, pyarrow.ArrowException) as error:
        said = " ".join(str(error).split()).rstrip(".")[:300]
        raise DamagedInputError(
            f"Data set {path} cannot be read: {type(error).__name__}: {said}.",
            next_step="Save it again with save_to_disk.",
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars and warnings of retries away from the output."""
    from datasets.utils import logging as own

    loggers = [logging.getLogger(name) for name in ("huggingface_hub", "datasets")]
    levels = [logger.level for logger in loggers]
    shown = own.is_progress_bar_enabled()
    own.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if shown:
            own.enable_progress_bar()


def _type(feature: Any) -> str:
    return str(getattr(feature, "dtype", type(feature).__name__))


def _labels(
    parts: dict[str, Any], column: str
) -> tuple[list[npt.NDArray[np.int64]], tuple[str, ...], tuple[str, ...]]:
    """Labels of each part, below 0 where there is none; the class names; and notes."""
    feature = next(iter(parts.values())).features[column]
    values = [part.select_columns([column])[:][column] for part in parts.values()]
    none = [[value is None for value in own] for own in values]
    names = tuple(getattr(feature, "names", ()) or ())
    flat = {type(value) for own in values for value in own if value is not None}
    if flat == {str}:
        names = tuple(sorted({value for own in values for value in own if value is not None}))
        place = {name: number for number, name in enumerate(names)}
        return (
            [np.array([place.get(value, -1) for value in own], np.int64) for own in values],
            names,
            (),
        )
    if flat != {int}:
        raise IncompatibleError(
            f"Column '{column}' holds {_of_types(flat)}. Needed: whole numbers or words, one for "
            "each image.",
            next_step="Name another column with --set data.label=NAME.",
        )
    numbers = [
        np.array([-1 if gone else value for value, gone in zip(own, lost, strict=True)], np.int64)
        for own, lost in zip(values, none, strict=True)
    ]
    if names:
        others = {tuple(getattr(p.features[column], "names", ()) or ()) for p in parts.values()}
        if others != {names}:
            raise IncompatibleError(
                f"The parts {', '.join(parts)} name the classes of '{column}' in different orders.",
                next_step="Save them anew with one list of classes (ClassLabel), or choose one "
                "part with --set data.train=NAME.",
            )
        return numbers, names, ()
    known = [own >= 0 for own in numbers]
    every = torch.from_numpy(np.concatenate([o[k] for o, k in zip(numbers, known, strict=True)]))
    labels, names, notes = class_numbers(every)
    first = 0
    for own, kept in zip(numbers, known, strict=True):
        count = int(kept.sum())
        own[kept] = labels[first : first + count].numpy()
        first += count
    return numbers, names, notes


def _of_types(kinds: set[type]) -> str:
    return ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"


def _kept(labels: npt.NDArray[np.int64], per_class: int | None) -> npt.NDArray[np.int64]:
    """Row numbers of the first images of each class, in their order; all that have a label."""
    rows = np.flatnonzero(labels >= 0)
    if per_class is None:
        return rows
    own = labels[rows]
    order = np.argsort(own, kind="stable")
    starts = np.searchsorted(own[order], own[order])
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - starts
    return rows[rank < per_class]


def _reader(
    parts: dict[str, Any],
    rows: Sequence[npt.NDArray[np.int64]],
    column: str,
    allowed: Sequence[Path],
) -> Callable[[str], bytes]:
    """What returns the bytes of an image by ``PART, row NUMBER``."""
    from datasets import Image

    stored = {
        name: part.select_columns([column]).cast_column(column, Image(decode=False))
        for name, part in parts.items()
    }

    def read(name: str) -> bytes:
        part, _, row = name.rpartition(", row ")
        found = stored[part][int(row)][column] or {}
        if found.get("bytes") is not None:
            return bytes(found["bytes"])
        given = Path(found.get("path") or "").resolve()
        if not any(given.is_relative_to(folder) for folder in allowed):
            raise ValueError(f"it names the file {given}, which is not in its own folder")
        return given.read_bytes()

    return read
