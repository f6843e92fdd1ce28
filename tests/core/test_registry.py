"""One door for built-ins and strangers; a broken stranger stops only those who ask for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from fedre_privacy.core import registry as module
from fedre_privacy.core.config import build_plugin
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.registry import Registry, allow_module_paths, import_plugin, import_plugins

OTHERS = ["broken_stranger:Thing", "not_installed:Thing"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put a package of two built-in widgets, and a third-party module, on the path."""
    inside = tmp_path / "widgets"
    inside.mkdir()
    (inside / "__init__.py").write_text(
        "from fedre_privacy.core.registry import Registry\n"
        "widgets = Registry('widget', 'widgets', see='list-widgets')\n"
    )
    for name in ("gear", "lever"):
        (inside / f"{name}.py").write_text(
            f"from . import widgets\n@widgets.register('{name}')\nclass {name.title()}:\n    pass\n"
        )
    (tmp_path / "stranger.py").write_text(
        "class Spring:\n    pass\nclass Gear:\n    pass\ndef function(): pass\n"
    )
    (tmp_path / "broken_stranger.py").write_text("raise RuntimeError('no such chip')\n")
    (tmp_path / "registering.py").write_text(
        "from widgets import widgets\n@widgets.register('cam')\nclass Cam:\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in list(sys.modules):
        if name.split(".")[0] in {"widgets", "stranger", "broken_stranger", "registering"}:
            del sys.modules[name]


@pytest.fixture
def install(monkeypatch):
    """Pretend that other packages declare entry points of the group."""

    def pretend(**points: str) -> Registry[object]:
        found = [EntryPoint(name, value, "widgets") for name, value in points.items()]

        def entry_points(*, group: str) -> list[EntryPoint]:
            return [point for point in found if point.group == group]

        monkeypatch.setattr(module, "entry_points", entry_points)
        import widgets

        return widgets.widgets

    return pretend


def test_built_ins_are_found_by_walking(package, install):
    widgets = install()
    assert widgets.names() == ["gear", "lever"]
    assert widgets.get("gear").name == "gear"
    assert [entry.origin for entry in widgets.entries()] == [
        "widgets.gear.Gear",
        "widgets.lever.Lever",
    ]


def test_an_unknown_name_lists_the_known_ones(package, install):
    with pytest.raises(ConfigError) as caught:
        install().get("leaver")
    text = str(caught.value)
    assert "Unknown widget 'leaver'" in text and "Did you mean 'lever'?" in text
    assert "gear, lever" in text and "list-widgets" in text


def test_an_entry_point_comes_through_the_same_door(package, install):
    widgets = install(spring="stranger:Spring")
    assert widgets.names() == ["gear", "lever", "spring"]
    assert widgets.get("spring").name == "spring"


def test_an_entry_point_that_registers_itself_is_no_duplicate(package, install):
    widgets = install(cam="registering:Cam")
    assert widgets.names() == ["cam", "gear", "lever"]
    assert all(entry.broken is None for entry in widgets.entries())


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("broken_stranger:Thing", "no such chip"),
        ("not_installed:Thing", "not_installed"),
        ("stranger:Absent", "Absent"),
        ("stranger:function", "not a class"),
    ],
)
def test_a_broken_stranger_stops_only_those_who_ask(package, install, value, reason):
    widgets = install(bad=value, spring="stranger:Spring")
    assert widgets.names() == ["gear", "lever", "spring"]
    assert widgets.get("gear").__name__ == "Gear"
    last = widgets.entries()[-1]
    assert (last.name, last.origin) == ("bad", value) and reason in (last.broken or "")
    with pytest.raises(IncompatibleError) as caught:
        widgets.get("bad")
    assert reason in str(caught.value) and value in str(caught.value)


def test_a_stranger_cannot_take_a_built_in_name(package, install):
    widgets = install(gear="stranger:Gear")
    assert widgets.get("gear").__module__ == "widgets.gear"
    last = widgets.entries()[-1]
    assert last.name == "gear" and "taken by widgets.gear.Gear" in (last.broken or "")


def test_two_classes_cannot_share_a_name():
    things: Registry[object] = Registry("thing", "fedre_privacy.core")

    @things.register("one")
    class First:
        pass

    with pytest.raises(ConfigError) as caught:

        @things.register("one")
        class Second:
            pass

    assert "First" in str(caught.value) and "Second" in str(caught.value)
    assert things.get("one") is First


def test_the_same_class_may_be_registered_again():
    things: Registry[object] = Registry("thing", "fedre_privacy.core")

    def define() -> type:
        @things.register("one")
        @dataclass
        class Again:
            pass

        return Again

    define()
    second = define()  # what a reloaded notebook cell does
    assert things.get("one") is second


def test_import_plugin(package):
    allow_module_paths(
        "stranger:Spring,stranger:Sprig", ["stranger:function"], {"a": {"b": OTHERS}}
    )
    assert import_plugin("stranger:Spring", "widget").__name__ == "Spring"
    with pytest.raises(ConfigError, match="module:Class"):
        import_plugin("stranger", "widget")
    with pytest.raises(ConfigError, match="Did you mean 'Spring'"):
        import_plugin("stranger:Sprig", "widget")
    with pytest.raises(ConfigError, match="Available: Spring, Gear"):
        import_plugin("stranger:function", "widget")
    with pytest.raises(IncompatibleError, match="RuntimeError: no such chip"):
        import_plugin("broken_stranger:Thing", "widget")
    with pytest.raises(IncompatibleError, match="ModuleNotFoundError"):
        import_plugin("not_installed:Thing", "widget")


def test_a_module_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "lying_here.py").write_text("class Thing: ...\n")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    allow_module_paths("lying_here:Thing@target")
    assert import_plugin("lying_here:Thing", "widget").__name__ == "Thing"
    assert "" not in sys.path[:-1]  # it hides nothing that is imported later
    sys.modules.pop("lying_here")


def test_a_name_from_a_file_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "lying_there.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="add --plugin lying_there "):
        import_plugin("lying_there:Thing", "widget")
    for path in ("os:", ":x", "a b:c", "a;b:c", "../x:Y", "lying_there:Thing.more", "x" * 9):
        allow_module_paths(path)
        with pytest.raises(ConfigError, match="module:Class"):
            import_plugin(path, "widget")
    assert "lying_there" not in sys.modules


def test_only_classes_of_its_kind_are_parts():
    things: Registry[object] = Registry("thing", "fedre_privacy.core")
    things.of = Registry
    problems: list[str] = []
    for path in (f"{__name__}:EntryPoint", "fedre_privacy.core.registry:Registry"):
        assert build_plugin(things, path, at="one", problems=problems) is None
    assert problems == [
        f"'one': {__name__}:EntryPoint is no thing.",
        "'one': fedre_privacy.core.registry:Registry is no thing.",
    ]


def test_import_plugins(package):
    import_plugins(["stranger"])
    assert "stranger" in sys.modules
    with pytest.raises(ConfigError, match="name of a module.*got 'stranger.py --help'"):
        import_plugins(["stranger.py --help"])
    with pytest.raises(IncompatibleError, match="--plugin broken_stranger cannot be imported"):
        import_plugins(["broken_stranger"])


def test_a_built_in_that_fails_is_not_half_a_registry(package, install, tmp_path):
    widgets = install()
    bad = tmp_path / "widgets" / "hinge.py"
    bad.write_text("raise RuntimeError('no steel')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no steel"):
            widgets.names()
    bad.unlink()
    assert widgets.names() == ["gear", "lever"]
