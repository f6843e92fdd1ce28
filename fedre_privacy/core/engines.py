"""Engines: where the clients of a training are, and where the jobs of a benchmark run.

An engine is named by the path of its function, whose module is imported when the engine is used.
Other packages bring engines for trainings by the entry-point group ``fedre_privacy.engines``.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError, MissingExtraError, unknown_name
from .registry import entry_points

GROUP = f"{__name__.partition('.')[0]}.engines"


@dataclass(frozen=True)
class Package:
    """A package that an engine needs, with the versions that were tried.

    Args:
        name: of the distribution and of its module. oldest, below: (major, minor), or None.
    """

    name: str
    oldest: tuple[int, int] | None = None
    below: tuple[int, int] | None = None

    def problem(self) -> str:
        """Why it cannot be used, after "needs"; empty where it can."""
        if importlib.util.find_spec(self.name) is None:
            return f"the package {self.name}, which is not installed"
        if self.oldest is None:
            return ""
        from importlib.metadata import version

        found = version(self.name)
        known = tuple(int(part) for part in found.split(".")[:2])
        if self.oldest <= known and (self.below is None or known < self.below):
            return ""
        needed = f"{self.name} {'.'.join(map(str, self.oldest))} or newer"
        if self.below is not None:
            needed += f", below {'.'.join(map(str, self.below))}"
        return f"{needed}; {found} is installed"


@dataclass(frozen=True)
class Engine:
    """An engine by name.

    Args:
        path: ``module:function``. extra: of this package, installs what the engine needs.
    """

    name: str
    path: str
    extra: str = ""
    needs: tuple[Package, ...] = ()

    def check(self) -> None:
        """Refuse an engine whose packages are absent or of a version that was not tried.

        Raises:
            MissingExtraError: with the command that installs them.
        """
        for package in self.needs:
            if problem := package.problem():
                raise MissingExtraError(
                    f"--engine {self.name} needs {problem}.",
                    next_step=f"pip install 'fedre-privacy[{self.extra}]'",
                )

    def __call__(self, *given: Any) -> Any:
        """Import the engine's function and call it.

        Raises:
            MissingExtraError: see `check`.
        """
        self.check()
        return pkgutil.resolve_name(self.path)(*given)


IN_PROCESS = "in-process"
FLOWER, RAY = Package("flwr", (1, 41), (1, 50)), Package("ray")
BUILT_IN = {
    engine.name: engine
    for engine in (
        Engine(IN_PROCESS, "fedre_privacy.runs.training:in_process"),
        Engine("flower", "fedre_privacy.flower.local_federation:flower", "flower", (FLOWER,)),
        Engine("flower-simulation", "fedre_privacy.flower.simulation:simulation", "flower,ray",
               (FLOWER, RAY)),
    )
}  # fmt: skip
"""Engines of trainings: in this process, each client in a process of its own on Flower, or in
Flower's simulation."""
JOBS = {
    "local": Engine("local", "fedre_privacy.benchmarking.executors:local"),
    "ray": Engine("ray", "fedre_privacy.benchmarking.ray_cluster:run", "ray", (RAY,)),
}
"""Engines of benchmarks: processes of this machine, or tasks of a Ray cluster."""


def training_engines() -> dict[str, Engine]:
    """Engines of trainings by name: built in, then those of other packages."""
    installed = {point.name: Engine(point.name, point.value) for point in entry_points(group=GROUP)}
    return {**BUILT_IN, **{k: v for k, v in installed.items() if k not in BUILT_IN}}


def engine_named(name: str, engines: Mapping[str, Engine]) -> Engine:
    """Return an engine.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in engines:
        raise ConfigError(unknown_name("engine", name, list(engines)))
    return engines[name]
