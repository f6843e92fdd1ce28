"""One registry class for every kind of plugin.

Built-ins are found by walking their package; others by the entry-point group of the same name,
through the same `register` door. A plugin whose import fails is listed as broken with its reason
and stops only those who ask for it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar

from .errors import ConfigError, IncompatibleError, unknown

T = TypeVar("T")
C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Entry:
    """Where a plugin came from, and what is wrong with it if it could not be imported."""

    name: str
    origin: str
    broken: str | None = None


class Registry(Generic[T]):
    """Names to classes of one kind.

    Args:
        what: the kind, singular, as users read it (``"attack"``).
        package: the package whose modules register the built-ins.
        see: the command that lists them.
    """

    def __init__(self, what: str, package: str, *, see: str = "") -> None:
        self.what = what
        self.package = package
        self.group = package
        self.see = see
        self._classes: dict[str, type[T]] = {}
        self._broken: dict[str, Entry] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: make a class available under a name.

        Raises:
            ConfigError: another class already has the name.
        """

        def add(cls: C) -> C:
            old = self._classes.get(name)
            if old is not None and _identity(old) != _identity(cls):
                raise ConfigError(
                    f"{self.what} '{name}' is registered twice: {_identity(old)} and "
                    f"{_identity(cls)}. Rename one of them."
                )
            self._classes[name] = cls
            cls.name = name  # type: ignore[attr-defined]
            return cls

        return add

    def get(self, name: str) -> type[T]:
        """Return the class registered under a name.

        Raises:
            ConfigError: unknown name (with the nearest one).
            IncompatibleError: a plugin that is installed but cannot be imported.
        """
        self._load()
        if name in self._classes:
            return self._classes[name]
        if name in self._broken:
            entry = self._broken[name]
            raise IncompatibleError(
                f"{self.what} '{name}' ({entry.origin}) cannot be imported: {entry.broken}",
                next_step="The other plugins are unaffected. Mend or uninstall that package.",
            )
        raise ConfigError(unknown(self.what, name, self.names(), see=self.see))

    def names(self) -> list[str]:
        """Return all usable names, sorted."""
        self._load()
        return sorted(self._classes)

    def entries(self) -> list[Entry]:
        """Return every plugin with its origin, the broken ones last."""
        self._load()
        usable = [Entry(name, _identity(self._classes[name])) for name in self.names()]
        return usable + [self._broken[name] for name in sorted(self._broken)]

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.ispkg:
                importlib.import_module(f"{self.package}.{module.name}")
        for point in entry_points(group=self.group):
            origin = f"{point.value}"
            try:
                loaded: Any = point.load()
            except Exception as error:  # a stranger's package may fail in any way; it is recorded
                reason = f"{type(error).__name__}: {error}"
                self._broken[point.name] = Entry(point.name, origin, reason)
                continue
            taken = self._classes.get(point.name)
            if not inspect.isclass(loaded):
                reason = f"it is a {type(loaded).__name__}, not a class"
                self._broken[point.name] = Entry(point.name, origin, reason)
            elif taken is None:
                self.register(point.name)(loaded)
            elif _identity(taken) != _identity(loaded):
                reason = f"the name is taken by {_identity(taken)}"
                self._broken[point.name] = Entry(point.name, origin, reason)


def _identity(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def import_own(module: str) -> ModuleType:
    """Import a user's module, from the working directory too, as ``python -m`` would."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(module)


def import_plugin(path: str, what: str) -> type:
    """Import a class given as ``package.module:Class``.

    Raises:
        ConfigError: the path has no colon, or no such class.
        IncompatibleError: the module's import fails.
    """
    module_name, colon, class_name = path.partition(":")
    if not colon:
        raise ConfigError(f"Your own {what} is given as module:Class; got '{path}'.")
    try:
        module = import_own(module_name)
    except Exception as error:  # a stranger's module may fail in any way; it is reported
        raise IncompatibleError(
            f"{what} '{path}' cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        classes = [
            n
            for n, c in vars(module).items()
            if inspect.isclass(c) and c.__module__ == module.__name__
        ]
        raise ConfigError(unknown("class", class_name, classes, at=module_name))
    return found
