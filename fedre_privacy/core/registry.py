"""Registries of every kind of plugin: of classes, and of values without settings.

Built-ins are found by walking their package; others by the entry-point group of the same name,
through the same `register` door. A plugin whose import fails is listed as broken with its reason
and stops only those who ask for it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import ConfigError, IncompatibleError, unknown_name
from .moved_modules import old_paths

if TYPE_CHECKING:  # it takes long to import, and help pages ask for no package
    from importlib.metadata import EntryPoint, EntryPoints

T = TypeVar("T")
C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class PluginEntry:
    """Where a plugin came from, and what is wrong with it if it could not be imported."""

    name: str
    origin: str
    broken: str | None = None


class NameTable(Generic[T]):
    """Names to things of one kind, built in or installed: what `Registry` and `Instances` share.

    Args:
        what: the kind, singular, as users read it (``"attack"``).
        package: the package whose modules register the built-ins; entry points of other packages
            are in the group of the same name.
        see: the command that lists them.
    """

    def __init__(self, what: str, package: str, *, see: str = "") -> None:
        self.what = what
        self.package = package
        self.see = see
        self._things: dict[str, T] = {}
        self._origins: dict[str, str] = {}
        self._broken: dict[str, PluginEntry] = {}
        self._loaded = False
        self._loading = False

    def _add(self, name: str, thing: T, origin: str) -> None:
        if name in self._things and self._origins[name] != origin:
            raise ConfigError(
                f"{self.what} '{name}' is registered twice: {self._origins[name]} and {origin}. "
                "Rename one of them."
            )
        self._things[name] = thing
        self._origins[name] = origin

    def _install(self, name: str, loaded: Any, origin: str) -> str | None:
        """Register what an entry point holds, or say why it cannot be."""
        raise NotImplementedError

    def get(self, name: str) -> T:
        """Return what is registered under a name.

        Raises:
            ConfigError: unknown name (with the nearest one).
            IncompatibleError: a plugin that is installed but cannot be imported.
        """
        self._load()
        if name in self._things:
            return self._things[name]
        if name in self._broken:
            entry = self._broken[name]
            raise IncompatibleError(
                f"{self.what} '{name}' ({entry.origin}) cannot be imported: {entry.broken}",
                next_step="The other plugins are unaffected. Mend or uninstall that package.",
            )
        raise ConfigError(
            unknown_name(self.what, name, self.names(), see=self.see, also=self.other_words())
        )

    def other_words(self) -> dict[str, str]:
        """Return what else the field calls these things, as they declare it, to their names."""
        return {
            word: name
            for name, thing in self._things.items()
            for word in getattr(thing, "also", ())
        }

    def names(self) -> list[str]:
        """Return all usable names, sorted."""
        self._load()
        return sorted(self._things)

    def origin(self, name: str) -> str:
        """Return where a registered name was defined: its class or module, dotted."""
        self.get(name)
        return self._origins[name]

    def entries(self) -> list[PluginEntry]:
        """Return every plugin with its origin, the broken ones last."""
        usable = [PluginEntry(name, self._origins[name]) for name in self.names()]
        return usable + [self._broken[name] for name in sorted(self._broken)]

    def _load(self) -> None:
        """Import the built-ins and the entry points, once.

        A built-in that cannot be imported is an error, now and at every later call.
        """
        if self._loaded or self._loading:
            return
        self._loading = True
        try:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                if not module.ispkg:
                    importlib.import_module(f"{self.package}.{module.name}")
            for group in (self.package, *old_paths(self.package)):
                for point in entry_points(group=group):
                    self._load_point(point)
        finally:
            self._loading = False
        self._loaded = True

    def _load_point(self, point: EntryPoint) -> None:
        try:
            reason = self._install(point.name, point.load(), point.value)
        except Exception as error:  # a stranger's package may fail in any way; it is recorded
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            self._broken[point.name] = PluginEntry(point.name, point.value, reason)


def entry_points(*, group: str) -> EntryPoints:
    """Entry points of a group in all installed packages."""
    from importlib.metadata import entry_points

    return entry_points(group=group)


def has_plugins() -> bool:
    """Whether an installed package declares parts of ours in its entry points."""
    from importlib.metadata import distributions

    ours = f"[{__name__.split('.')[0]}."
    return any(ours in (one.read_text("entry_points.txt") or "") for one in distributions())


class Registry(NameTable[type[T]], Generic[T]):
    """Names to classes of one kind, whose fields are their settings."""

    of: type = object
    """The class that parts of this kind inherit from."""

    described: Callable[[str], type[T]] | None = None
    """Makes a class that stands for a typed ``module:Class``, whose module is then not imported."""

    def own(self, path: str) -> type[T]:
        """Return the class of a user's own part, given as ``module:Class``; see `import_plugin`."""
        loaded = path.partition(":")[0] in sys.modules
        if self.described is not None and path in _TYPED and _PATH.fullmatch(path) and not loaded:
            return self.described(path)
        return import_plugin(path, self.what)

    def base(self, cls: C) -> C:
        """Class decorator: parts of this kind inherit from this class."""
        self.of = cls
        return cls

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: make a class available under a name.

        Raises:
            ConfigError: another class already has the name.
        """

        def add(cls: C) -> C:
            self._add(name, cls, _identity(cls))
            cls.name = name  # type: ignore[attr-defined]
            return cls

        return add

    def _install(self, name: str, loaded: Any, origin: str) -> str | None:
        if not inspect.isclass(loaded):
            return f"it is a {type(loaded).__name__}, not a class"
        taken = self._origins.get(name)
        if taken not in (None, _identity(loaded)):
            return f"the name is taken by {taken}"
        self.register(name)(loaded)
        return None


class Instances(NameTable[T], Generic[T]):
    """Names to values of one class that have a `name` and no settings.

    Args:
        of: the class.
    """

    def __init__(self, what: str, package: str, of: type[T], *, see: str = "") -> None:
        super().__init__(what, package, see=see)
        self.of = of

    def register(self, thing: T, origin: str) -> T:
        """Make a value available under its own name.

        Args:
            origin: the module that defines it, ``__name__``.

        Raises:
            ConfigError: another module already has the name.
        """
        self._add(str(thing.name), thing, origin)  # type: ignore[attr-defined]
        return thing

    def _install(self, name: str, loaded: Any, origin: str) -> str | None:
        if not isinstance(loaded, self.of):
            return f"it is a {type(loaded).__name__}, not a {self.of.__name__}"
        taken = self._origins.get(name)
        if taken is not None and self._things.get(name) is not loaded:
            return f"the name is taken by {taken}"
        if str(loaded.name) != name:  # type: ignore[attr-defined]
            return f"its name is '{loaded.name}'"  # type: ignore[attr-defined]
        if taken is None:
            self.register(loaded, origin)
        return None


def _identity(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_TYPED: set[str] = set()
"""Names ``module:Class`` that a command or a call has given."""
_MODULE = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_PATH = re.compile(rf"(?<![\w.:/-])({_MODULE}):([^\W\d]\w*)")


def allow_module_paths(*given: Any) -> None:
    """Allow the names ``module:Class`` in values that a person has typed, not read from a file.

    Nothing is imported yet: a module is imported when its name stands where a part is named.
    """
    for value in given:
        if isinstance(value, str):
            _TYPED.update(found[0] for found in _PATH.finditer(value))
        elif isinstance(value, Mapping):
            allow_module_paths(*value.values())
        elif isinstance(value, list | tuple):
            allow_module_paths(*value)


def import_own(module: str) -> ModuleType:
    """Import a user's module, from the working directory too, as ``python -m`` would.

    Afterwards the working directory is searched last: no file in it takes the place of an installed
    module that is imported later.
    """
    if "" in sys.path:
        sys.path.remove("")
    sys.path.insert(0, "")
    try:
        return importlib.import_module(module)
    finally:
        sys.path.remove("")
        sys.path.append("")


def import_plugins(modules: Iterable[str]) -> None:
    """Import the modules that ``--plugin`` names.

    Raises:
        ConfigError: one of them is no name of a module.
        IncompatibleError: one of them cannot be imported.
    """
    for module in modules:
        if not re.fullmatch(_MODULE, module):
            raise ConfigError(
                f"--plugin takes the name of a module, for example my_module; got '{module}'."
            )
        try:
            import_own(module)
        except Exception as error:  # a user's module may fail in any way; it is reported
            raise IncompatibleError(
                f"--plugin {module} cannot be imported: {type(error).__name__}: {error}",
                next_step=_looked_for(error),
            ) from error


def _looked_for(error: Exception) -> str | None:
    """Where a module that was not found was looked for."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    return "A module is looked for in the working directory and among installed packages."


def not_installed(modules: Iterable[str]) -> list[str]:
    """Return the modules of parts that another process has to be told, for its ``--plugin``.

    Args:
        modules: those of this package, and of packages that declare entry points, are left out.
    """
    own = sorted({name for name in modules if name.split(".")[0] != __name__.split(".")[0]})
    if not own:
        return []
    from importlib.metadata import distributions

    points = {point.module for package in distributions() for point in package.entry_points}
    return [name for name in own if name not in points]


def plugin_words(modules: Iterable[str]) -> str:
    """The options that a command needs for parts of one's own, each after a space."""
    return "".join(f" --plugin {module}" for module in dict.fromkeys(modules))


def import_plugin(path: str, what: str) -> type:
    """Return a class given as ``package.module:Class``.

    Its module is imported only where the name was typed (see `allow_module_paths`). A name that a
    file holds leads to modules that are imported already, and to no other.

    Raises:
        ConfigError: the path has no colon, there is no such class, or the name comes from a file
            and its module is not imported.
        IncompatibleError: the module's import fails.
    """
    module_name, _, class_name = path.partition(":")
    if not _PATH.fullmatch(path):
        raise ConfigError(f"Your own {what} is given as module:Class; got '{path}'.")
    module = sys.modules.get(module_name)
    if path in _TYPED:
        try:
            module = import_own(module_name)
        except Exception as error:  # a stranger's module may fail in any way; it is reported
            raise IncompatibleError(
                f"{what} '{path}' cannot be imported: {type(error).__name__}: {error}",
                next_step=_looked_for(error),
            ) from error
    if module is None:
        raise ConfigError(
            f"A file names the {what} '{path}', and nothing is imported because a file says so. If "
            f"you trust that module, add --plugin {module_name} (in Python: import {module_name} "
            "first)."
        )
    found = vars(module).get(class_name)
    if not inspect.isclass(found):
        classes = [
            n
            for n, c in vars(module).items()
            if inspect.isclass(c) and c.__module__ == module.__name__
        ]
        raise ConfigError(unknown_name("class", class_name, classes, at=module_name))
    return found
