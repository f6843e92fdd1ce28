"""What JSON and YAML files may hold: bounded sizes, and declared types that are checked on reading.

A declared type is a `TypedDict` or a list of one, whose fields carry their ranges (`Count`, `Word`,
...). Keys that are not declared are left alone, so that newer files can be read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from msgspec import Meta

from .errors import DamagedInputError

T = TypeVar("T")

MOST_TEXT = 1 << 28
"""Largest JSON file (bytes)."""
MOST_SETTINGS = 1 << 20
"""Largest YAML file (bytes)."""
MOST_VALUES, MOST_DEPTH, MOST_DIGITS = 100_000, 50, 25
"""Values of a YAML file with its aliases written out, levels of nesting, digits of a number."""

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
"""A number of things."""
Size = Annotated[int, Meta(ge=1, le=1 << 20)]
"""A length that memory is taken for."""
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
"""How long something took."""
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
"""A finite number."""
Word = Annotated[str, Meta(max_length=200)]
"""A name."""
Line = Annotated[str, Meta(max_length=10_000)]
"""Words for people."""
Hash = Annotated[str, Meta(pattern="^[0-9a-f]{8,64}$")]
"""A SHA-256 or its beginning (hex)."""

_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in
                  ("map", "seq", "str", "int", "float", "bool", "null", "merge"))  # fmt: skip


def parse_json(text: str, *, once: bool = False) -> Any:
    """Parse JSON whose numbers are finite and of at most `MOST_DIGITS` digits.

    Args:
        once: refuse a key that is given twice; otherwise the last one counts.

    Raises:
        ValueError: it is not JSON, or beyond the bounds.
    """
    pairs = _once if once else None
    try:
        value = json.loads(
            text, parse_int=_whole, parse_constant=_no_number, object_pairs_hook=pairs
        )
        if _HALF.search(text):  # an escape that may stand for half a letter
            _whole_letters(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _whole_letters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text holds half a letter (a lone surrogate)") from None


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {short(key)} is given twice")
        found[key] = value
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def parse_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """Parse YAML of plain values: no tags, dates, keys that are no words, or keys given twice.

    Returns:
        The value, and the node that says where its parts stand; None for an empty text.

    Raises:
        ValueError: beyond the bounds, or another kind of value.
        yaml.YAMLError: it is not YAML.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, None
        _check_yaml_size(node)
        return loader.construct_document(node), node
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (TypeError, OverflowError, AttributeError) as error:  # the constructor's own
        raise ValueError(f"a value cannot be read: {error}") from None
    finally:
        loader.dispose()


def _check_yaml_size(root: yaml.Node) -> None:
    """Refuse nodes beyond the bounds; an alias counts as often as it stands."""
    waiting, seen = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        line = f"line {node.start_mark.line + 1}"
        if seen > MOST_VALUES or depth > MOST_DEPTH:
            raise ValueError(f"it holds too many values or is nested too deeply ({line})")
        if node.tag not in _TAGS:
            raise ValueError(f"a value of kind '{node.tag.rpartition(':')[2]}' ({line})")
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            if not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
                raise ValueError(f"a key that is no word ({line})")
            if len(set(keys)) < len(keys):
                raise ValueError(f"a key that is given twice ({line})")
            waiting += [(one, depth + 1) for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(one, depth + 1) for one in node.value]
        else:
            _whole_letters(node.value)
            if node.tag.endswith(":int") and len(node.value) > MOST_DIGITS:
                raise ValueError(f"a number of {len(node.value)} digits ({line})")


def check(value: Any, kind: type[T], path: Path) -> T:
    """Return a value that is as declared.

    Raises:
        DamagedInputError: it is not, with the place in the file.
    """
    convert_value(value, kind, path)
    return value  # type: ignore[no-any-return]


def convert_value(value: Any, kind: type[T], path: Path) -> T:
    """Return the instance of a declared type that a value describes.

    Raises:
        DamagedInputError: it describes none, with the place in the file.
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        words, _, place = str(error).partition(" - at ")
        where = f" at {place.strip('`')}" if place else ""
        raise DamagedInputError(
            f"{path} is not what was written{where}: {words.replace('`', '').rstrip('.').lower()}.",
            next_step="Restore the file, or make its folder again.",
        ) from None


def short(value: object, longest: int = 200) -> str:
    """The repr of a value from a file, cut where it is long."""
    text = repr(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
