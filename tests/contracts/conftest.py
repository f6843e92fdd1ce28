"""Tiny federations, each trained once in a process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedre_privacy.runs.run import Run
from fedre_privacy.testing.federation import trained_run


@pytest.fixture(scope="session")
def trained() -> Callable[..., Run]:
    """Train a protocol, and under some steerings, once and return its run; read only."""
    return trained_run
