"""What a logger is, and the way from events to loggers, on which no failure of theirs ends a run.

Loggers get settings, losses, accuracies, matches and scores. They never get an image, a label, an
upload or a parameter.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..core.engines import Package
from ..core.errors import ConfigError, IncompatibleError, MissingExtraError
from ..core.events import Event, Report
from ..core.registry import Registry, allow_module_paths

PROJECT = "fedre-privacy"
"""Name of the project or experiment, where the environment names none."""
CURVE = 100
"""Steps of a search that are logged, about; a search takes thousands."""


@dataclass(frozen=True)
class LoggedWork:
    """One training, attack or benchmark, as loggers see it.

    Args:
        kind: ``"training"``, ``"attack"`` or ``"benchmark"``.
        name: of its folder; of an attack ``RUN/ATTACK``.
        settings: sections of settings, as ``config.yaml`` holds them.
        runs: the folder of run folders; a logger that writes files takes a folder of its own in it.
    """

    kind: str
    name: str
    settings: Mapping[str, Any]
    runs: Path


@dataclass(frozen=True)
class Point:
    """Values of one step.

    Args:
        group: what the step counts in: ``"train"`` (round), ``"attack"`` (step of the search) or
            ``"sweep"`` (finished jobs).
        step: 0 or more.
        values: by name; NaN and infinity are what they are.
    """

    group: str
    step: int
    values: Mapping[str, float]


loggers: Registry[Logger] = Registry("logger", "fedre_privacy.loggers")


@loggers.base
class Logger(ABC):
    """Base of all loggers. An instance logs one training, attack or benchmark.

    Its methods are called one at a time, perhaps from several threads. What they raise is reported
    once, and the logger is called no more; the work goes on. Nothing may draw from the process-wide
    random streams that it does not put back.
    """

    name: ClassVar[str] = ""
    also: ClassVar[tuple[str, ...]] = ()
    """What else the field calls it: whoever gives such a word is told the name."""
    needs: ClassVar[tuple[Package, ...]] = ()
    """Packages that it imports."""
    extra: ClassVar[str] = ""
    """The extra of this package that installs them; empty: they are installed by their names."""

    @classmethod
    def check(cls) -> None:
        """Refuse a logger whose package is not there.

        Raises:
            MissingExtraError: with the command that installs it.
        """
        for package in cls.needs:
            if problem := package.problem():
                wanted = f"'{PROJECT}[{cls.extra}]'" if cls.extra else package.name
                raise MissingExtraError(
                    f"--log {cls.name} needs {problem}.", next_step=f"pip install {wanted}"
                )

    @abstractmethod
    def begin(self, work: LoggedWork) -> None:
        """Open a record, with the settings. Called once, before anything is computed."""

    @abstractmethod
    def log(self, point: Point) -> None:
        """Add the values of one step."""

    @abstractmethod
    def summarise(self, values: Mapping[str, float]) -> None:
        """Add the final numbers. Called at most once, and not of work that failed."""

    @abstractmethod
    def end(self, *, complete: bool) -> None:
        """Close the record.

        Args:
            complete: False where an error or the user ended the work.
        """


def point_of(event: Event) -> Point | None:
    """Return the numbers of an event (`core.events.EVENTS`), or None where it has none.

    Of a search about `CURVE` steps have a point, the last one included.
    """
    data = event.data
    if event.name == "train.round":
        values = {key: data[key] for key in ("loss", "accuracy") if data[key] is not None}
        return Point("train", data["round"], values)
    if event.name == "attack.step":
        if data["step"] % max(1, data["of"] // CURVE) and data["step"] + 1 != data["of"]:
            return None
        last = data["first"] + data["rows"] - 1
        name = f"match/rows {data['first']} to {last}"
        return Point("attack", data["step"], {name: float(data["match"].nanmedian())})
    if event.name == "sweep.job":
        values = {"failed": float(bool(data["failure"]))}
        if data["wall_s"] is not None:
            values["wall_s"] = data["wall_s"]
        return Point("sweep", data["done"], values)
    return None


class LoggedReport:
    """Passes events on to whoever listens, and to loggers.

    Args:
        report: hears every event first, and of a logger that failed.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._loggers: list[Logger] = []
        self._lock = threading.RLock()
        self._steps: dict[str, int] = {}
        self._searches: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        """Receive an event of the work."""
        self._report(event)
        if self._loggers and (found := point_of(event)) is not None:
            with self._lock:
                point = self._by_search(found)
                self._each(lambda logger: logger.log(point))

    def _by_search(self, point: Point) -> Point:
        """Name the curves of rows that are searched again, from other starts, by their number."""
        if point.group != "attack":
            return point
        values = {}
        for name, value in point.values.items():
            if point.step <= self._steps.get(name, -1):
                self._searches[name] = self._searches.get(name, 1) + 1
            self._steps[name] = point.step
            search = self._searches.get(name, 1)
            values[name if search == 1 else f"{name}, search {search}"] = value
        return Point(point.group, point.step, values)

    def begin(self, logger: Logger, work: LoggedWork) -> None:
        """Open a logger's record, and let it hear what follows.

        Raises:
            IncompatibleError: it cannot be opened, with what its library says.
        """
        try:
            logger.begin(work)
        except Exception as error:  # a library may fail in any way; nothing is computed yet
            raise IncompatibleError(
                f"--log {_name(logger)} cannot begin: {_said(error)}.",
                next_step=f"Mend what it says, or leave {_name(logger)} out of --log.",
            ) from error
        self._loggers.append(logger)

    def summarise(self, values: Mapping[str, float]) -> None:
        """Hand the final numbers of the work to the loggers."""
        self._each(lambda logger: logger.summarise(values))

    def end(self, *, complete: bool) -> None:
        """Close all records."""
        self._each(lambda logger: logger.end(complete=complete))
        self._loggers.clear()

    def _each(self, call: Callable[[Logger], None]) -> None:
        failed = []
        with self._lock:
            for logger in list(self._loggers):
                try:
                    call(logger)
                except Exception as error:  # a library may fail in any way; the work goes on
                    self._loggers.remove(logger)
                    failed.append(
                        f"--log {_name(logger)} stopped: {_said(error)}. The work goes on."
                    )
        for text in failed:
            self._report(Event("note", {"text": text}))


def _name(logger: Logger) -> str:
    return logger.name or type(logger).__name__


def _said(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def chosen_loggers(names: str | Sequence[str]) -> list[type[Logger]]:
    """Return the loggers of ``--log A,B``: names, or ``module:Class`` for one's own.

    Raises:
        ConfigError: an unknown name, or one given twice.
        IncompatibleError: a module that cannot be imported.
        MissingExtraError: a package that is not installed.
    """
    given = names.split(",") if isinstance(names, str) else list(names)
    given = [name.strip() for name in given if name.strip()]
    allow_module_paths(given)
    if twice := {name for name in given if given.count(name) > 1}:
        raise ConfigError(f"--log names {', '.join(sorted(twice))} twice. Name each logger once.")
    kinds = [loggers.own(name) if ":" in name else loggers.get(name) for name in given]
    for kind in kinds:
        if not issubclass(kind, Logger):
            raise ConfigError(
                f"--log {kind.__name__} is no logger. Needed: a class that inherits from "
                "fedre_privacy.loggers.base.Logger."
            )
        kind.check()
    return kinds


@contextmanager
def logging_work(
    names: str | Sequence[str], work: LoggedWork, report: Report
) -> Iterator[LoggedReport]:
    """Log what happens inside a ``with`` block by the loggers of some names.

    Args:
        names: see `chosen_loggers`; empty: none.
        report: hears all events as it would without loggers.

    Raises:
        FedreError: before the block is entered, a logger that cannot be used.
    """
    kinds = chosen_loggers(names)
    logged = LoggedReport(report)
    complete = False
    try:
        for kind in kinds:
            logged.begin(kind(), work)
        yield logged
        complete = True
    finally:
        logged.end(complete=complete)


def flat_settings(settings: Mapping[str, Any], *, above: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names: ``{"train": {"lr": 1}}`` as ``{"train.lr": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flat_settings(value, above=f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = value
    return flat
