"""Tiny trainings on real digits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.core.config import merge
from fedre_privacy.runs.resolution import resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import TrainSettings
from fedre_privacy.runs.training import train

TINY = {
    "data": {"name": "digits", "size": 16, "per_class": 12},
    "partition": {"name": "pra", "alpha": 0.5},
    "model": {"name": "cnn4", "dim": 32},
    "train": {"clients": 3, "rounds": 2, "batch_size": 8},
}


def resolve(values: dict[str, Any]) -> TrainSettings:
    problems: list[str] = []
    settings = resolve_training(merge(TINY, values), {}, problems)
    assert settings is not None, problems
    return settings


@pytest.fixture(scope="session")
def tiny() -> Callable[..., TrainSettings]:
    """Settings of a tiny training; keyword arguments are sections laid over them."""
    return lambda **sections: resolve(sections)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One finished run of each protocol, the same data and seed; read only."""
    folder: Path = tmp_path_factory.mktemp("runs")
    names = ("fedre", "fedgh", "fedallrep", "local")
    return {name: train(resolve({"protocol": name}), runs=folder) for name in names}
