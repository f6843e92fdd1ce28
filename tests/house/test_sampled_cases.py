"""Of tests with many slow cases some are asked: always the same, and at least one of each test."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
FEW = [f"test_few[{n}]" for n in range(8)]
MANY = [f"test_many[{n}]" for n in range(60)]


class Case:
    """A collected test."""

    def __init__(self, nodeid: str, slow: bool = True) -> None:
        self.nodeid, self.slow = nodeid, slow

    def get_closest_marker(self, name: str) -> bool:
        return self.slow


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEDRE_ALL_CASES", "FEDRE_SLOW_SHARE"):
        monkeypatch.delenv(name, raising=False)


def kept(*cases: Case) -> list[str]:
    items, told = list(cases), []
    hook = SimpleNamespace(pytest_deselected=lambda items: told.extend(items))
    collect = runpy.run_path(str(CONFTEST))["pytest_collection_modifyitems"]
    collect(SimpleNamespace(hook=hook), items)
    assert sorted(c.nodeid for c in (*items, *told)) == sorted(c.nodeid for c in cases)
    return [case.nodeid for case in items]


def test_a_sixth_of_many_slow_cases_is_asked_and_all_of_few(monkeypatch: pytest.MonkeyPatch):
    found = kept(*map(Case, FEW + MANY))
    assert found[: len(FEW)] == FEW
    assert 4 <= len(found) - len(FEW) <= 20
    without = kept(*map(Case, FEW + MANY[1:]))
    assert {*found} - {*without} <= {MANY[0]} and {*without} <= {*found}
    assert len(kept(*(Case(name, slow=False) for name in MANY))) == len(MANY)
    monkeypatch.setenv("FEDRE_ALL_CASES", "1")
    assert len(kept(*map(Case, MANY))) == len(MANY)


def test_a_third_of_the_slow_tests_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDRE_SLOW_SHARE", "3")
    names = [f"tests/test_some.py::test_{n}" for n in range(90)]
    found = kept(*map(Case, names), *(Case(f"{name}_fast", slow=False) for name in names))
    assert 20 <= len(found) - len(names) <= 40
    monkeypatch.setenv("FEDRE_ALL_CASES", "1")
    assert kept(*map(Case, names)) == names


def test_at_least_one_case_is_asked():
    unlucky = [name for name in MANY if crc32(name.encode()) % 6]
    assert len(kept(*map(Case, unlucky))) == 1
