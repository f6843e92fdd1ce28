"""Small federations on digits, each trained once in a process, and helpers of all checks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from fedre_privacy.core.config import build_plugin, knobs, plain_plugin
from fedre_privacy.core.registry import Registry, allow_module_paths
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolution import resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import TrainSettings
from fedre_privacy.runs.training import train

K = TypeVar("K")
V = TypeVar("V")

TINY: dict[str, Any] = {
    "data": {"name": "digits", "size": 16, "per_class": 12},
    "partition": {"name": "pra", "alpha": 0.5},
    "model": {"name": "cnn4", "dim": 16},
    "train": {"clients": 3, "rounds": 3, "batch_size": 8},
    "record": {"keep_every": 1},
}
QUICK = {
    "local": "trained",
    "hidden": 12,
    "steps": 1,
    "server_epochs": 1,
    "first_passes": 1,
    "small": {"dim": 8},
}
"""Settings that keep a protocol short, for those that have them."""


class NotApplicable(Exception):
    """A check that says nothing of this part, or needs what is not here, with the reason."""


def once(work: Callable[[K], V]) -> Callable[[K], V]:
    """The same function, which works on each argument once in a process."""
    return cast(Callable[[K], V], cache(work))


def expect(true: bool, sentence: str) -> None:
    """Raise an AssertionError that says what was promised and not kept.

    Raises:
        AssertionError: the sentence.
    """
    if not true:
        raise AssertionError(sentence)


def name_of(part: type, registry: Registry[Any]) -> str:
    """The name under which settings name a class: the registered one, else ``module:Class``."""
    own = str(vars(part).get("name") or "")
    if own in registry.names() and registry.get(own) is part:
        return own
    path = f"{part.__module__}:{part.__qualname__}"
    allow_module_paths(path)
    if not own:
        part.name = path  # type: ignore[attr-defined]
    return path


def class_of(name: str, registry: Registry[Any]) -> type[Any]:
    """The class behind a name that `name_of` gave."""
    found: type[Any] = registry.own(name) if ":" in name else registry.get(name)
    return found


def survives(registry: Registry[Any], made: Any, at: str) -> None:
    """Check that a part with its settings is written to a settings file and read back equal.

    Raises:
        AssertionError: it is not.
    """
    problems: list[str] = []
    read = build_plugin(registry, plain_plugin(made), at=at, problems=problems)
    expect(
        read == made and not problems,
        f"Its settings do not survive being written and read: {' '.join(problems) or read!r}",
    )


def settings_of(protocol: str, /, **sections: Any) -> TrainSettings:
    """Settings of a tiny training of a protocol; sections are laid over it.

    Raises:
        AssertionError: settings that cannot be built.
    """
    known = {knob.name.partition(".")[0] for knob in knobs(class_of(protocol, protocols))}
    quick = {key: value for key, value in QUICK.items() if key in known}
    problems: list[str] = []
    values = {**TINY, "protocol": {"name": protocol, **quick}, **sections}
    made = resolve_training(values, {}, problems)
    if made is None:
        raise AssertionError(" ".join(problems))
    return made


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where the runs of this process are; it goes with the process."""
    return tempfile.TemporaryDirectory(prefix="fedre-testing-")


@cache
def trained_run(protocol: str, *steered: str) -> Run:
    """The run of a protocol, maybe under steerings, trained when first asked for; read only."""
    return train(settings_of(protocol, steering=list(steered)), runs=Path(_folder().name))


def fresh_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for one more run, to be used in a ``with``."""
    return tempfile.TemporaryDirectory(prefix="fedre-testing-")


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN in the same places."""
    return torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
