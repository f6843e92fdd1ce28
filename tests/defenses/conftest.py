"""Artifacts, scenes and facts for defences; the small federation of tests/protocols; tiny runs."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedre_privacy.core.artifacts import (
    Artifact,
    ClassLogits,
    Counts,
    EntangledRep,
    GradientState,
    HeadState,
    LowRankChange,
    LowRankModel,
    MatrixBlocks,
    ModelChange,
    ModelState,
    Prototypes,
    Representations,
    RepStatistic,
    SmallModelState,
)
from fedre_privacy.core.types import Mixture
from fedre_privacy.defenses.base import Facts, Sending

_tests = Path(__file__).parent.parent
federation = runpy.run_path(str(_tests / "protocols" / "conftest.py"))["federation"]
tiny = runpy.run_path(str(_tests / "play" / "conftest.py"))["tiny"]


def _named(seed: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(20, 30, generator=rng), "b": torch.randn(20, generator=rng)}


@pytest.fixture
def artifacts() -> dict[str, Artifact]:
    """One artifact of every kind, values of order 1."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 2, 3])
    rows = torch.randn(3, 40, generator=rng)
    made: list[Artifact] = [
        Representations(rows, labels),
        Prototypes(rows.clone(), labels),
        EntangledRep(rows[0].clone(), torch.tensor([0.5, 0.0, 0.3, 0.2])),
        ClassLogits(torch.randn(3, 4, generator=rng), labels),
        RepStatistic(rows[1].clone()),
        ModelState(_named(1)),
        HeadState(_named(2)),
        SmallModelState(_named(3)),
        GradientState(_named(4)),
        MatrixBlocks(torch.randn(2, 5, 5, generator=rng)),
        LowRankModel({"w.dense": torch.randn(8, 4, generator=rng)}),
        LowRankChange({"w.dense": torch.randn(8, 4, generator=rng)}),
        ModelChange(_named(5)),
        Counts(torch.tensor([3])),
    ]
    return {artifact.kind: artifact for artifact in made}


@pytest.fixture
def sending() -> Callable[..., Sending]:
    """Make a sending; client 0 in round 1 of 10 with 2, 0, 5 and 3 samples of its classes."""

    def make(**changes) -> Sending:
        mixture = Mixture(
            torch.tensor([0, 0, 1, 1, 1, 1, 1, 2, 2, 2]),
            torch.arange(10),
            torch.tensor([1 / 2] * 2 + [1 / 5] * 5 + [1 / 3] * 3),
            num_rows=3,
        )
        values = {
            "protocol": "test", "client": 0, "round": 1, "rounds": 10, "kinds": (Prototypes,),
            "class_counts": (2, 0, 5, 3), "mixture": mixture, "seed": 0, **changes,
        }  # fmt: skip
        return Sending(**values)

    return make


@pytest.fixture
def facts() -> Callable[..., Facts]:
    """Make the facts of ten clients with 100 samples each, all in 100 rounds."""

    def make(**changes) -> Facts:
        values = {
            "protocol": "fedre", "kinds": (EntangledRep,), "class_counts": ((50, 50),) * 10,
            "participations": (100,) * 10, "rounds": 100, "training_only": True, **changes,
        }  # fmt: skip
        return Facts(**values)

    return make
