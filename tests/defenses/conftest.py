"""Artifacts, scenes and facts for defences; the small federation of tests/protocols; tiny runs."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.defenses.base import FederationFacts, Sending
from fedre_privacy.testing import message_checks

_tests = Path(__file__).parent.parent
federation = runpy.run_path(str(_tests / "protocols" / "conftest.py"))["federation"]
tiny = runpy.run_path(str(_tests / "experiments" / "conftest.py"))["tiny"]


@pytest.fixture
def artifacts() -> dict[str, Artifact]:
    """One artifact of every kind, values of order 1."""
    return message_checks.artifacts()


@pytest.fixture
def sending() -> Callable[..., Sending]:
    """Make a sending; client 0 in round 1 of 10 with 2, 0, 5 and 3 samples of its classes."""
    return message_checks.sending_context


@pytest.fixture
def facts() -> Callable[..., FederationFacts]:
    """Make the facts of ten clients with 100 samples each, all in 100 rounds."""
    return message_checks.facts
