"""The small federation of tests/protocols serves here too."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedre_privacy.entanglement.base import Draw

_shared = Path(__file__).parent.parent / "protocols" / "conftest.py"
federation = runpy.run_path(str(_shared))["federation"]


@pytest.fixture
def draw() -> Callable[..., Draw]:
    """Make a draw for labels; ten classes unless said otherwise."""

    def make(labels: Tensor | list[int], **given: int) -> Draw:
        values = {
            "num_classes": 10,
            "dim": 8,
            "seed": 0,
            "secret": 0,
            "client": 0,
            "round": 1,
            **given,
        }
        return Draw(labels=torch.as_tensor(labels), **values)

    return make
