"""What our own modules declare, read from their text: help pages and lists import no part.

A name is worked out when it is asked for, from the one statement that binds it and from the names
in that. Nothing is kept between two commands, so what is read is what the files say now. What
cannot be worked out without one of the large libraries is refused by `Undeclared`.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .errors import unknown
from .registry import Entry

PACKAGE, *_ = __name__.split(".")
_FLAGS = __future__.annotations.compiler_flag
_DEFINED = re.compile(r"(?:@.*\n)*(class|def) (\w+)")
_REGISTERED = re.compile(r'^@?\w+\.register\(\s*(?:"([^"]+)"|\w)', re.M)
_ROOT = Path(__file__).parents[1]


class Undeclared(AttributeError):
    """Something that is not written where it can be read without importing it."""


def declared(module: str, name: str) -> Any:
    """Return what a module of ours binds to a name: a value, a function or a `Class`.

    Raises:
        Undeclared: no such name, or its value needs more than our own text.
    """
    try:
        return namespace(module)[name]
    except Undeclared:
        raise
    except Exception as error:  # what is run is made of pieces: anything may be missing
        raise Undeclared(f"{module}.{name}: {type(error).__name__}: {error}") from error


class Namespace(dict[str, Any]):
    """Names of a module, worked out one by one."""

    def __init__(self, module: str, path: Path) -> None:
        super().__init__(__name__=module, __builtins__=__builtins__)
        self.module, self.path = module, path
        self.parts = list(statements(path.read_text(encoding="utf-8")))

    def __missing__(self, name: str) -> Any:
        for text in self.parts:
            if name in text and self._bind(name, text):
                return self[name]
        raise KeyError(name)  # a built-in, or nothing

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise Undeclared(f"{self.module} declares no {name}") from None

    def _bind(self, name: str, text: str) -> bool:
        """Run a statement if it binds a name; of classes and imports, only look at it."""
        defined = _DEFINED.match(text)
        if defined is not None and defined[2] != name:
            return False
        if defined is not None and defined[1] == "class":
            self[name] = Class(name, self, text)
            return True
        node = ast.parse(text).body[0]
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    self[name] = self._imported(node, alias)
                    return True
            return False
        if defined is None and name not in bound(node):
            return False
        # a file of this package, which an import would run whole; `file_of` leads nowhere else
        exec(compile(text, str(self.path), "exec", _FLAGS, dont_inherit=True), self)
        return True

    def _imported(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> Any:
        if isinstance(node, ast.Import):
            return _outside(alias.name)
        base = self.module.split(".")
        if self.path.name != "__init__.py":
            base = base[:-1]
        base = base[: len(base) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        if source.split(".")[0] != PACKAGE:
            return getattr(_outside(source), alias.name)
        if (inner := file_of(f"{source}.{alias.name}")) is not None and inner.is_file():
            return namespace(f"{source}.{alias.name}")
        return namespace(source)[alias.name]


class Class:
    """A class as its text declares it: attributes with values, its own or inherited."""

    def __init__(self, name: str, names: Namespace, text: str) -> None:
        self.__name__ = name
        self._names, self._text = names, text[text.index("class ") :]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for text in statements(self._text, "    "):
            if text.startswith(name):
                node = ast.parse(text).body[0]
                if (
                    isinstance(node, ast.Assign | ast.AnnAssign)
                    and node.value
                    and name in bound(node)
                ):
                    value = self._worked_out(node.value)
                    setattr(self, name, value)
                    return value
        for base in self._bases():
            try:
                return getattr(base, name)
            except AttributeError:
                continue
        raise Undeclared(f"{self.__name__} declares no {name}")

    def __call__(self, **given: Any) -> SimpleNamespace:
        """An instance of a plain dataclass: the values that it is given."""
        return SimpleNamespace(**given)

    def _bases(self) -> Iterator[Any]:
        head = re.match(r"class \w+(?:\(.*?\))?:", self._text, re.DOTALL)
        (node,) = ast.parse(f"{head[0]} pass" if head else "class _: pass").body
        assert isinstance(node, ast.ClassDef)
        for base in node.bases:
            try:
                yield self._worked_out(base)
            except Undeclared:  # of another library, or generic: it declares nothing of ours
                continue

    def _worked_out(self, value: ast.expr) -> Any:
        return worked_out(value, self._names)


class Shelf:
    """Names and declared classes of the built-in parts of one kind, as a registry has them.

    Args:
        home: the module that makes the registry, for example that of `Attack`.
    """

    def __init__(self, home: str) -> None:
        path = file_of(home)
        assert path is not None
        made = re.search(r'= (?:Registry|Instances)\(\s*"([^"]+)", "([^"]+)"', path.read_text())
        if made is None:
            raise Undeclared(f"{home} makes no registry")
        self.what, self.package = made[1], made[2]
        self._found: dict[str, tuple[str, str]] = {}
        for file in sorted(path.parent.glob("*.py")):
            text = file.read_text(encoding="utf-8")
            module = f"{self.package}.{file.stem}"
            for found in _REGISTERED.finditer(text):
                self._found[found[1] or _named(text[found.start() :])] = module, text[found.end() :]

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._found)

    def entries(self) -> list[Entry]:
        """Return every part with the module that defines it."""
        return [Entry(name, self._found[name][0]) for name in self.names()]

    def get(self, name: str) -> Any:
        """Return the class, or the instance, that is registered under a name."""
        if name not in self._found:
            raise Undeclared(unknown(self.what, name, self.names()))
        module, rest = self._found[name]
        defined = re.search(r"^class (\w+)", rest, re.M)
        names = namespace(module)
        if defined is not None:
            return declared(module, defined[1])
        (call,) = [text for text in names.parts if ".register(" in text]
        (node,) = ast.parse(call).body
        assert isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        return worked_out(node.value.args[0], names)


@cache
def namespace(module: str) -> Namespace:
    """The names of a module of ours.

    Raises:
        Undeclared: there is no such module.
    """
    path = file_of(module)
    if path is None or not path.is_file():
        raise Undeclared(f"there is no module {module}")
    return Namespace(module, path)


@cache
def file_of(module: str) -> Path | None:
    """Where a module of ours is, or would be; None of others. No module is imported for it."""
    first, *rest = module.split(".")
    if first != PACKAGE:
        return None
    place = _ROOT.joinpath(*rest)
    if rest and rest[0] not in _inside():  # a checkout keeps some packages beside this one
        place = _ROOT.parent.joinpath(*rest)
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


@cache
def _inside() -> frozenset[str]:
    return frozenset(path.stem for path in _ROOT.iterdir())


def statements(text: str, indent: str = "") -> Iterator[str]:
    """Statements of a module, or with an indent those of a class, with their decorators."""
    found: list[list[str]] = []
    quoted = decorated = False
    for line in text.splitlines(keepends=True):
        first = line[len(indent) : len(indent) + 1]
        if not quoted and line.startswith(indent) and (first.isidentifier() or first == "@"):
            if not decorated:
                found.append([])
            decorated = first == "@"
        if found:
            found[-1].append(line.removeprefix(indent))
        quoted ^= line.count('"""') % 2 == 1
    return map("".join, found)


def worked_out(value: ast.expr, names: Namespace) -> Any:
    """Evaluate an expression of a module.

    Raises:
        Undeclared: it needs more than our own text.
    """
    try:  # as in `Namespace._bind`: text of this package only
        return eval(compile(ast.Expression(value), str(names.path), "eval"), names)
    except Undeclared:
        raise
    except Exception as error:  # what is run is made of pieces: anything may be missing
        raise Undeclared(f"{names.module}: {type(error).__name__}: {error}") from error


def bound(node: ast.stmt) -> set[str]:
    """Names that an assignment binds."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    return {one.id for each in targets for one in ast.walk(each) if isinstance(one, ast.Name)}


def _outside(module: str) -> Any:
    if module.split(".")[0] not in sys.stdlib_module_names:
        raise Undeclared(f"{module} would have to be imported")
    return importlib.import_module(module)


def _named(call: str) -> str:
    found = re.search(r'\bname="([^"]+)"', call)
    if found is None:
        raise Undeclared("a part is registered without a name")
    return found[1]
