"""Everything public says what it does; methods from papers say which."""

from __future__ import annotations

import ast
from collections.abc import Iterator

OF_NO_PAPER = {"fedre_privacy.protocols.local.Local"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def public(name: str) -> bool:
    return not name.startswith("_")


def undocumented(modules: dict[str, ast.Module]) -> Iterator[str]:
    """Public things without a docstring.

    A method counts as documented where a class of ours documents a method of its name: it
    overrides that one.
    """
    classes = [
        node
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    inherited = {"forward"} | {
        method.name
        for node in classes
        for method in node.body
        if isinstance(method, Function) and ast.get_docstring(method)
    }
    for name, tree in modules.items():
        if not ast.get_docstring(tree):
            yield name
        for node in tree.body:
            if not isinstance(node, Function | ast.ClassDef) or not public(node.name):
                continue
            if not ast.get_docstring(node):
                yield f"{name}.{node.name}"
            for method in node.body if isinstance(node, ast.ClassDef) else []:
                if (
                    isinstance(method, Function)
                    and public(method.name)
                    and method.name not in inherited
                    and not ast.get_docstring(method)
                ):
                    yield f"{name}.{node.name}.{method.name}"


def registered(modules: dict[str, ast.Module], room: str) -> dict[str, str]:
    """Docstrings of the plugins of a room, by dotted name."""
    return {
        f"{name}.{node.name}": ast.get_docstring(node) or ""
        for name, tree in modules.items()
        if name.startswith(f"fedre_privacy.{room}.")
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(
            isinstance(mark, ast.Call)
            and isinstance(mark.func, ast.Attribute)
            and mark.func.attr == "register"
            for mark in node.decorator_list
        )
    }


def test_everything_public_is_documented(modules):
    assert list(undocumented(modules)) == []


def test_methods_from_papers_name_the_paper(modules):
    for room in ("attacks", "protocols", "entanglement"):
        plugins = registered(modules, room)
        assert len(plugins) >= 2, room
        silent = [n for n, text in plugins.items() if "Reference:" not in text]
        assert set(silent) <= OF_NO_PAPER


def test_attacks_state_shape_needs_and_cost(modules):
    for name, text in registered(modules, "attacks").items():
        for word in ("Shape:", "Needs:", "Recovers:", "Cost:"):
            assert word in text, f"{name} does not say {word}"


def test_protocols_say_what_is_uploaded(modules):
    for name, text in registered(modules, "protocols").items():
        assert "Uploads:" in text or name in OF_NO_PAPER, name


def test_a_missing_docstring_is_found():
    source = '"""m"""\ndef f(): ...\nclass A:\n    """a"""\n    def g(self): ...\n'
    assert list(undocumented({"m": ast.parse(source)})) == ["m.f", "m.A.g"]
    assert list(undocumented({"m": ast.parse("def _f(): ...")})) == ["m"]
