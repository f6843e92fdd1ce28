"""What declares an option once, for parsers, signatures and docstrings."""

from __future__ import annotations

import functools
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Constant(str):
    """What a module binds to a name, as ``module:NAME``; importing the module can wait."""

    def load(self) -> Any:
        """Import the module and return the value, or what a function without arguments returns."""
        module, _, name = self.partition(":")
        value = getattr(importlib.import_module(module), name)
        return value() if callable(value) else value


def load_constant(value: Any) -> Any:
    """Return the value of a `Constant`, or any other value as it is."""
    return value.load() if isinstance(value, Constant) else value


@dataclass(frozen=True)
class Option:
    """One option of commands and functions, declared by ``Annotated[type, help, Option(...)]``.

    Args:
        metavar: what stands for its value in help pages.
        usual: what holds where it is left out, in words; empty: its default.
        at: dotted name of the setting or section that it gives; empty: it is no setting.
        default: value where it is left out.
        choices: values that the command line takes, or what returns them; None: any.
        flag: on the command line; empty: ``--`` and its name; ``-``: only functions take it.
        parse: further arguments of `argparse.ArgumentParser.add_argument`; those of numbers and
            switches follow from the type.
        help: what it is; words of a `Constant` are listed.
    """

    metavar: str | None = None
    usual: str = ""
    at: str = ""
    default: Any = None
    choices: Constant | Callable[[], Iterable[str]] | None = None
    flag: str = ""
    parse: Mapping[str, Any] = field(default_factory=dict)
    help: str = ""

    def text(self, load: Callable[[Any], Any] = load_constant) -> str:
        """Return its help, and what holds where it is left out.

        Args:
            load: returns the value of a `Constant`, and any other value as it is.
        """
        default = "" if self.default in (None, False, (), "") else load(self.default)
        usual = _words(load(self.usual)) or _words(default)
        return _words(load(self.help)) + (f" (default: {usual})" if usual else "")


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def option_in(declaration: Any) -> Option:
    """Return what ``Annotated[type, help, Option(...)]`` declares."""
    option: Option
    help, option = declaration.__metadata__
    kind, parse = declaration.__origin__, dict(option.parse)
    if kind in (bool, bool | None):
        parse = {"action": "store_true", **parse}
    elif kind in (int, int | None, float):
        parse = {"type": float if kind is float else int, **parse}
    return replace(option, help=help, parse=parse)


def options_of(*groups: type) -> dict[str, Option]:
    """Return the options that classes declare, by name and in their order."""
    return {
        name: option_in(declaration)
        for group in groups
        for name, declaration in group.__annotations__.items()
    }


def select_options(options: Mapping[str, Any], group: type) -> dict[str, Any]:
    """Return those of some options that a class declares."""
    return {name: options[name] for name in group.__annotations__ if name in options}


def document_options(
    group: type, /, **by_position: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function whose keyword arguments are the options of a class.

    Their defaults are filled in, and the signature and the docstring name each: its line
    ``{options}`` is replaced.

    Args:
        by_position: declarations of options that the function names itself.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = options_of(group)
        plain = inspect.signature(function)
        own = [p for p in plain.parameters.values() if p.kind is not p.VAR_KEYWORD]
        keyword = inspect.Parameter.KEYWORD_ONLY
        more = [
            inspect.Parameter(
                name, keyword, default=load_constant(one.default), annotation=_type(named)
            )
            for (name, one), named in zip(
                known.items(), group.__annotations__.values(), strict=True
            )
        ]
        signature = plain.replace(parameters=[*own, *more])

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return function(*bound.args, **bound.kwargs)

        known = {name: option_in(one) for name, one in by_position.items()} | known
        wrapped = textwrap.TextWrapper(92, subsequent_indent=" " * 12, break_on_hyphens=False)
        lines = [wrapped.fill(f"{name}: {one.text()}.") for name, one in known.items()]
        called.__doc__ = (function.__doc__ or "").replace("{options}", ("\n" + " " * 8).join(lines))
        called.__signature__ = signature  # type: ignore[attr-defined]
        return called

    return decorate


def _type(declaration: Any) -> Any:
    return getattr(declaration.__origin__, "__forward_arg__", declaration.__origin__)
