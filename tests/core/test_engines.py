"""Engines by name: built in, of other packages, and what each needs."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

import fedre_privacy as fp
from fedre_privacy.core import engines
from fedre_privacy.core.errors import ConfigError, MissingExtraError


@pytest.fixture
def other_package(monkeypatch):
    """A package that declares an engine, and one under a name that is taken."""
    points = [
        EntryPoint("shouted", "builtins:print", engines.GROUP),
        EntryPoint(engines.IN_PROCESS, "builtins:print", engines.GROUP),
    ]
    monkeypatch.setattr(engines, "entry_points", lambda group: points)


def test_other_packages_bring_engines_and_replace_none(other_package, capsys):
    found = engines.training_engines()
    assert list(found) == ["in-process", "flower", "flower-simulation", "shouted"]
    assert found["in-process"].path.startswith("fedre_privacy.")
    found["shouted"]("work")
    assert capsys.readouterr().out == "work\n"


def test_built_in_engines_exist():
    for engine in (*engines.BUILT_IN.values(), *engines.JOBS.values()):
        if not any(package.problem() for package in engine.needs):
            assert callable(engines.pkgutil.resolve_name(engine.path))


def test_an_unknown_engine_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"Unknown engine 'flowr'.*flower"):
        fp.train("fedre", engine="flowr", runs=tmp_path)
    with pytest.raises(ConfigError, match="Unknown engine 'slurm'"):
        engines.engine_named("slurm", engines.JOBS)


def test_what_an_engine_needs_is_checked_before_it_is_imported():
    absent = engines.Engine("x", "no_such_module:run", "x", (engines.Package("no_such_module"),))
    with pytest.raises(MissingExtraError, match=r"--engine x needs(.|\n)*fedre-privacy\[x\]"):
        absent()
