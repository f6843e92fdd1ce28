"""Modules that have moved: their old paths can be imported for one release, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ROOT = __name__.partition(".")[0]
MOVED = {
    "attacks.gradient": "attacks.gradients",
    "attacks.running": "attacks.common",
    "attacks.shadows": "attacks.shadow_attacks",
    "blocks": "protocols.blocks",
    "detectors": "active_server.detectors",
    "pages": "reports",
    "play": "experiments",
    "sealed": "sandbox",
    "steering": "active_server",
    "study": "benchmarking",
    "viewing": "reports.viewer",
}
"""Packages by their old and new path; modules in them may have new names too."""


class MovedModules(MetaPathFinder, Loader):
    """Finds what was asked for by an old path under its new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a moved module; None for all others."""
        if new := new_path(fullname):
            package = fullname.removeprefix(f"{ROOT}.") in MOVED
            return ModuleSpec(fullname, self, origin=new, is_package=package)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its new path.

        Raises:
            ModuleNotFoundError: it is not there under the name that it had.
        """
        assert spec.origin is not None
        module = import_module(spec.origin)
        warnings.warn(
            f"{spec.name} has moved to {spec.origin}; the old path goes in the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run a second time; the module has its own specification again."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def new_path(name: str) -> str | None:
    """Where a module is now, by its old path; None where it has not moved."""
    for old, new in MOVED.items():
        if name == f"{ROOT}.{old}" or name.startswith(f"{ROOT}.{old}."):
            return name.replace(old, new, 1)
    return None


def old_paths(package: str) -> list[str]:
    """Paths that a package had before, under which others may have registered their parts."""
    return [f"{ROOT}.{old}" for old, new in MOVED.items() if f"{ROOT}.{new}" == package]


def install() -> None:
    """Let old paths be imported in this process."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())  # before a module is found twice, in its new folder
