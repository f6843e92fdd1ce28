"""The examples in the docstrings of core, and the errors' exit codes."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import fedre_privacy.core
from fedre_privacy.core import errors
from fedre_privacy.core.errors import ConfigError, FedreError, nearest, unknown_name
from fedre_privacy.core.units import human_bytes, human_seconds, plural

MODULES = [
    f"fedre_privacy.core.{m.name}" for m in pkgutil.iter_modules(fedre_privacy.core.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0
    if name.endswith((".units", ".errors")):
        assert result.attempted > 0


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**30, "1.0 GiB"), (2**42, "4096.0 GiB")],
)
def test_bytes_at_the_borders(count, text):
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (90061, "25 h 1 min"),
    ],
)
def test_seconds_at_the_borders(seconds, text):
    assert human_seconds(seconds) == text


def test_plural_of_a_sibilant():
    assert plural(2, "box") == "2 boxes" and plural(0, "client") == "0 clients"


def test_an_error_shows_all_problems_and_the_next_step():
    error = ConfigError("one.", "two.", next_step="do this.")
    assert str(error) == "one.\ntwo.\ndo this."
    assert error.problems == ("one.", "two.")


def test_exit_codes():
    codes = {
        name: cls.exit_code
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, FedreError)
    }
    assert codes == {
        "FedreError": 1,
        "ConfigError": 2,
        "IncompatibleError": 3,
        "MissingInputError": 4,
        "DamagedInputError": 4,
        "AttackFailedError": 9,
        "DivergedError": 5,
        "OutOfMemoryError": 5,
        "PartialError": 5,
        "MissingExtraError": 6,
        "InUseError": 4,
        "StorageError": 4,
        "RefutedError": 7,
        "NotRepeatedError": 8,
        "Interrupted": 130,
    }


def test_nearest():
    assert nearest("dipp", ["pixel", "dip"]) == "dip"
    assert nearest("zzz", ["pixel", "dip"]) is None
    assert (
        unknown_name("thing", "x", [], at="here") == "Unknown thing 'x' at here. Available: none."
    )
