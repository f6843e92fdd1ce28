"""Tiny federations, each trained once, for the contracts of every kind of part."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.core.config import knobs
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolving import resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import TrainSettings
from fedre_privacy.runs.training import train

TINY: dict[str, Any] = {
    "data": {"name": "digits", "size": 16, "per_class": 12},
    "partition": {"name": "pra", "alpha": 0.5},
    "model": {"name": "cnn4", "dim": 16},
    "train": {"clients": 3, "rounds": 3, "batch_size": 8},
    "record": {"keep_every": 1},
}
QUICK = {"hidden": 12, "steps": 1, "server_epochs": 1, "first_passes": 1, "small": {"dim": 8}}
"""Settings that keep a protocol short, for those that have them."""


def settings_of(protocol: str, **sections: Any) -> TrainSettings:
    """Settings of a tiny training of a protocol; sections are laid over it."""
    known = {knob.name.partition(".")[0] for knob in knobs(protocols.get(protocol))}
    quick = {key: value for key, value in QUICK.items() if key in known}
    problems: list[str] = []
    made = resolve_training(
        {**TINY, "protocol": {"name": protocol, **quick}, **sections}, {}, problems
    )
    assert made is not None and not problems, problems
    return made


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Train a protocol, and under some steerings, once and return its run; read only."""
    folder: Path = tmp_path_factory.mktemp("contracts")
    return cache(
        lambda protocol, *steered: train(settings_of(protocol, steering=list(steered)), runs=folder)
    )
