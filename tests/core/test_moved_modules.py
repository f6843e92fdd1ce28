"""Old import paths lead to the same modules for one release, and warn."""

from __future__ import annotations

import importlib
import sys

import pytest

from fedre_privacy.core.moved_modules import MOVED, new_path


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_package_that_moved_is_the_same_and_warns(old, new):
    sys.modules.pop(f"fedre_privacy.{old}", None)
    with pytest.warns(DeprecationWarning, match="has moved to"):
        found = importlib.import_module(f"fedre_privacy.{old}")
    assert found is importlib.import_module(f"fedre_privacy.{new}")
    assert found.__spec__.name == f"fedre_privacy.{new}"


def test_a_module_in_it_is_the_same_one():
    from fedre_privacy.active_server import base

    with pytest.warns(DeprecationWarning, match="active_server.base"):
        old = importlib.import_module("fedre_privacy.steering.base")
    assert old is base and old.Steering is base.Steering


def test_what_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fedre_privacy.steering.no_such_module")
    assert new_path("fedre_privacy.steeringwheel") is None and new_path("torch") is None
