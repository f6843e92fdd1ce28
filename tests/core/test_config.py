"""Settings: types, bounds, unknown keys, groups and parts, YAML files and --set."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedre_privacy.core.config import (
    build,
    build_plugin,
    knob,
    knobs,
    load_yaml,
    merge,
    parse_assignments,
    part,
    plain,
    plain_plugin,
    section,
)
from fedre_privacy.core.errors import ConfigError, MissingInputError
from fedre_privacy.core.registry import Registry, import_plugins

engines: Registry[Engine] = Registry("engine", "fedre_privacy.core", see="list-engines")


@dataclass(frozen=True, kw_only=True)
class Engine:
    name = ""


@engines.register("diesel")
@dataclass(frozen=True, kw_only=True)
class Diesel(Engine):
    litres: float = knob(2.0, help="displacement", unit="l", gt=0)


@engines.register("electric")
@dataclass(frozen=True, kw_only=True)
class Electric(Engine):
    cells: int = knob(96, help="battery cells", ge=1)


@dataclass(frozen=True, kw_only=True)
class Crew:
    drivers: int = knob(1, help="drivers", ge=1)
    uniform: str = knob("blue", help="colour", choices=("blue", "red"))


@dataclass(frozen=True, kw_only=True)
class Car:
    wheels: int = knob(4, help="wheels", ge=3, le=8)
    share: float = knob(0.5, help="share", gt=0, lt=1)
    fast: bool = knob(False, help="fast")
    colour: str = knob("red", help="colour", choices=("red", "green"))
    label: str = knob("", help="any text")
    doors: int | None = knob(None, help="doors; none: open", ge=1)
    gears: tuple[int, ...] = knob((1, 2), help="gears", ge=1)
    extras: tuple[str, ...] = knob((), help="extras", choices=("radio", "roof"))
    weights: tuple[float, ...] = knob((1.0,), help="weights", lt=2)
    engine: Engine = part(engines, "diesel", help="what drives it")
    crew: Crew = section(Crew(drivers=2), help="who drives it")
    note: str = "not a setting"


@dataclass(frozen=True, kw_only=True)
class Pair:
    low: int = knob(0, help="lower end")
    high: int = knob(1, help="upper end")

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError("low is above high.", "swap them.")


def made(**values: Any) -> Car:
    problems: list[str] = []
    car = build(Car, values, at="car", problems=problems)
    assert problems == [] and car is not None
    return car


def problems_of(values: dict[str, Any], where: dict[str, str] | None = None) -> list[str]:
    problems: list[str] = []
    assert build(Car, values, at="car", problems=problems, where=where) is None
    return problems


def test_nothing_given_means_defaults():
    assert made() == Car()
    assert made().crew.drivers == 2  # the default of the group, not of its class


@pytest.mark.parametrize(
    ("key", "given", "kept"),
    [
        ("wheels", 6, 6),
        ("wheels", 6.0, 6),
        ("wheels", "6", 6),
        ("wheels", "4e0", 4),
        ("share", "1e-3", 1e-3),
        ("share", "0.25", 0.25),
        ("fast", True, True),
        ("colour", "green", "green"),
        ("label", 7, "7"),
        ("doors", None, None),
        ("doors", "none", None),
        ("doors", "2", 2),
        ("gears", [3, "4"], (3, 4)),
        ("gears", "3, 4", (3, 4)),
        ("gears", 5, (5,)),
        ("extras", "roof,radio", ("roof", "radio")),
        ("extras", [], ()),
        ("weights", "1e-2,1", (0.01, 1.0)),
    ],
)
def test_values_take_the_declared_type(key, given, kept):
    value = getattr(made(**{key: given}), key)
    assert value == kept and type(value) is type(kept)
    if isinstance(kept, tuple):
        assert [type(v) for v in value] == [type(v) for v in kept]


def test_an_unquoted_exponent_from_a_file_is_a_number():
    assert yaml.safe_load("1e-3") == "1e-3"  # YAML 1.1 calls it text
    assert made(**parse_assignments(["share=1e-3"])).share == 1e-3


@pytest.mark.parametrize(
    ("key", "given", "needed"),
    [
        ("wheels", 2, "must be >= 3 and <= 8"),
        ("wheels", 9, "must be >= 3 and <= 8"),
        ("wheels", 4.5, "whole number"),
        ("wheels", "four", "whole number"),
        ("wheels", True, "whole number"),
        ("wheels", None, "whole number"),
        ("wheels", float("inf"), "whole number"),
        ("wheels", [4], "whole number"),
        ("share", 0, "must be > 0 and < 1"),
        ("share", 1, "must be > 0 and < 1"),
        ("share", "half", "must be a number"),
        ("share", False, "must be a number"),
        ("share", float("nan"), "finite"),
        ("share", 10**400, "must be a number"),
        ("fast", "true", "true or false"),
        ("fast", "no", "true or false"),
        ("fast", 1, "true or false"),
        ("fast", 0, "true or false"),
        ("colour", "blue", "one of red, green"),
        ("label", {"a": 1}, "must be text"),
        ("label", ["a"], "must be text"),
        ("doors", 0, "must be >= 1"),
        ("gears", [1, 0], "must be >= 1"),
        ("gears", "1,x", "whole number"),
        ("gears", {"a": 1}, "whole number"),
        ("extras", ["roof", "rooof"], "one of radio, roof"),
        ("weights", [1, 2], "must be < 2"),
        ("engine", "steam", "Unknown engine 'steam'"),
        ("engine", 3, "needs the name of its engine"),
        ("engine", {"name": "diesel", "litres": 0}, "must be > 0 l"),
        ("crew", 3, "is a group of settings"),
        ("crew", {"drivers": 0}, "'car.crew.drivers'"),
        ("note", "x", "Unknown setting 'car.note'"),
    ],
)
def test_a_bad_value_is_refused_and_named(key, given, needed):
    (problem,) = problems_of({key: given})
    assert needed in problem
    assert f"car.{key}" in problem or "Unknown engine" in problem


def test_bounds_are_inclusive_where_they_say_so():
    assert made(wheels=3).wheels == 3 and made(wheels=8).wheels == 8


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_are_never_rounded(number):
    problems: list[str] = []
    built = build(Pair, {"low": number, "high": number}, at="pair", problems=problems)
    assert built == Pair(low=number, high=number) and problems == []


def test_a_refusal_says_the_default():
    assert problems_of({"wheels": 2})[0].endswith("Default: 4.")
    assert problems_of({"doors": 0})[0].endswith("Default: none.")


def test_an_unknown_key_names_the_nearest_one_and_all_others():
    (problem,) = problems_of({"weels": 4})
    assert "Unknown setting 'car.weels'" in problem and "Did you mean 'car.wheels'?" in problem
    assert "wheels, share, fast, colour" in problem
    (problem,) = problems_of({"zzzz": 4})
    assert "Did you mean" not in problem


def test_a_key_that_is_not_text_is_an_unknown_setting():
    (problem,) = problems_of({1: 2})  # type: ignore[dict-item]
    assert "Unknown setting 'car.1'" in problem


def test_all_problems_are_reported_at_once():
    problems = problems_of(
        {
            "weels": 4,
            "wheels": 2,
            "fast": "yes",
            "engine": {"name": "electric", "cels": 1, "cells": 0},
            "crew": {"uniform": "pink", "driver": 1},
        }
    )
    named = ("car.weels", "car.wheels", "car.fast", "car.engine.cels", "car.engine.cells")
    named += ("car.crew.uniform", "car.crew.driver")
    assert len(problems) == len(named)
    for name in named:
        pattern = re.compile(rf"(Unknown setting )?'{name}'")
        assert sum(bool(pattern.match(problem)) for problem in problems) == 1, name


def test_problems_found_by_the_class_itself_are_collected():
    problems = ["from before"]
    assert build(Pair, {"low": 3}, at="pair", problems=problems) is None
    assert problems == ["from before", "low is above high.", "swap them."]


def test_a_problem_elsewhere_does_not_spoil_a_good_section():
    problems = ["from before"]
    assert build(Pair, {"low": -3}, at="pair", problems=problems) == Pair(low=-3)


# --- groups and parts ------------------------------------------------------------------------


def test_a_part_is_given_by_name_or_with_settings():
    assert made(engine="electric").engine == Electric()
    assert made(engine={"name": "electric", "cells": 5}).engine == Electric(cells=5)
    assert made(engine={"name": "diesel"}).engine == Diesel()


def test_a_group_keeps_what_is_not_mentioned():
    assert made(crew={"uniform": "red"}).crew == Crew(drivers=2, uniform="red")


def test_a_part_from_a_module_path(tmp_path, monkeypatch):
    (tmp_path / "my_engines.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedre_privacy.core.config import knob\n"
        "@dataclass(frozen=True)\n"
        "class Steam:\n"
        "    bar: int = knob(3, help='pressure', ge=1)\n"
        "class Loose:\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (problem,) = problems_of({"engine": "my_engines:Steam"})
    assert "add --plugin my_engines" in problem and "my_engines" not in sys.modules
    import_plugins(["my_engines"])
    steam: Any = made(engine={"name": "my_engines:Steam", "bar": 7}).engine
    assert steam.bar == 7 and steam.name == "my_engines:Steam"
    assert plain_plugin(steam) == {"name": "my_engines:Steam", "bar": 7}
    (problem,) = problems_of({"engine": "my_engines:Loose"})
    assert "no dataclass" in problem
    (problem,) = problems_of({"engine": "my_engines:Steem"})
    assert "Did you mean 'Steam'?" in problem


def test_a_wrong_name_points_into_the_file():
    problems: list[str] = []
    where = {"car.engine.name": "a.yaml:3"}
    found = build_plugin(
        engines, {"name": "disel"}, at="car.engine", problems=problems, where=where
    )
    assert found is None
    assert "Did you mean 'diesel'?" in problems[0] and "(a.yaml:3)" in problems[0]
    assert "list-engines" in problems[0]


def test_plain_round_trips_through_yaml():
    car = made(
        wheels=5,
        share=1e-3,
        fast=True,
        doors=3,
        gears=(4, 5),
        extras=("roof",),
        engine={"name": "electric", "cells": 5},
        crew={"uniform": "red"},
    )
    values = yaml.safe_load(yaml.safe_dump(plain(car)))
    assert made(**values) == car
    assert "note" not in values
    assert values["engine"] == {"name": "electric", "cells": 5}
    assert values["crew"] == {"drivers": 2, "uniform": "red"}


def test_knobs_list_everything_with_bounds():
    rows = {row.name: row for row in knobs(Car)}
    assert list(rows)[-3:] == ["engine", "crew.drivers", "crew.uniform"]
    assert rows["wheels"].bounds == ">= 3 and <= 8" and rows["wheels"].default == 4
    assert rows["colour"].bounds == "one of red, green"
    assert rows["engine"].bounds == "one of diesel, electric"
    assert rows["engine"].default == "diesel"
    assert rows["crew.drivers"].default == 2 and rows["crew.drivers"].bounds == ">= 1"
    assert rows["label"].bounds == ""
    assert knobs(Diesel)[0].unit == "l"


# --- YAML files --------------------------------------------------------------------------------


def test_problems_point_to_the_line_of_the_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("# cars\ncar:\n  wheels: 2\n\n  weels: 4\n  crew:\n    drivers: 0\n")
    loaded = load_yaml(path)
    assert loaded.values == {"car": {"wheels": 2, "weels": 4, "crew": {"drivers": 0}}}
    problems = problems_of(loaded.values["car"], loaded.where)
    assert [p.split("(")[1].split(")")[0] for p in problems] == [
        "mine.yaml:3",
        "mine.yaml:5",
        "mine.yaml:7",
    ]


def test_an_empty_file_changes_nothing(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert load_yaml(path).values == {}


@pytest.mark.parametrize(
    "text",
    [
        b"car: [1,",
        b"- 1\n- 2\n",
        b"just text",
        b"car: !!python/object:os.system {}",
        b"\xff\xfe\x9f",
    ],
)
def test_a_file_that_is_no_mapping_is_a_config_error(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_yaml(path)


def test_a_missing_file_is_a_missing_input(tmp_path):
    with pytest.raises(MissingInputError, match="absent.yaml"):
        load_yaml(Path(tmp_path / "absent.yaml"))


# --- command line --------------------------------------------------------------------------------


def test_assignments_nest_and_the_last_one_wins():
    values = parse_assignments(
        ["a.b.c=1", "a.b.d=text", "a.b.c=2", "x=[1, 2]", "y=", "z= true", "e=a=b", "f=null"]
    )
    assert values == {
        "a": {"b": {"c": 2, "d": "text"}},
        "x": [1, 2],
        "y": None,
        "z": True,
        "e": "a=b",
        "f": None,
    }


def test_bad_assignments_are_all_named():
    with pytest.raises(ConfigError) as caught:
        parse_assignments(["good=1", "steps", "=5", "a.b=[1,"])
    assert len(caught.value.problems) == 3
    assert "'steps'" in caught.value.problems[0] and "KEY=VALUE" in caught.value.problems[0]
    assert "'=5'" in caught.value.problems[1]
    assert "a.b=[1," in caught.value.problems[2]


def test_merge_goes_into_mappings_and_replaces_the_rest():
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 3}
    assert merge(base, {"a": {"y": [9]}, "c": {"z": 1}}) == {
        "a": {"x": 1, "y": [9]},
        "b": 3,
        "c": {"z": 1},
    }
    assert merge(base, {"a": 5}) == {"a": 5, "b": 3}
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": 3}


def test_a_setting_declared_later_is_not_written_at_its_default():
    @dataclass(frozen=True, kw_only=True)
    class Grown:
        old: int = knob(1, help="from the first day")
        new: bool = knob(False, help="since then", later=True)

    assert plain(Grown()) == {"old": 1} and plain(Grown(new=True)) == {"old": 1, "new": True}
    assert Grown(**plain(Grown(new=True))) == Grown(new=True)
