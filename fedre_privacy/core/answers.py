"""What each field of an answer may hold, and the one place where it is converted to that.

A field declares a `Values`. Sizes are named: those that the observation gives (`SIZES`), and others
that the first field which has them sets. Nothing but rounding is lost in a conversion.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from .types import Observation

T = TypeVar("T")

NUMBERS, WHOLE, TRUTH = "numbers", "whole numbers", "truth values"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
)
MOST_LETTERS = 1_000_000
"""Longest text of an answer, and all lines of its notes together."""

TARGETS, CLASSES, CANDIDATES, PROPERTIES = "targets", "classes", "candidates", "properties"
SIZES: Mapping[str, Callable[[Observation], int]] = {
    TARGETS: lambda seen: seen.image_count(),
    "channels": lambda seen: seen.image_shape[0],
    "height": lambda seen: seen.image_shape[1],
    "width": lambda seen: seen.image_shape[2],
    CLASSES: lambda seen: seen.num_classes,
    CANDIDATES: lambda seen: len(seen.candidates) if seen.candidates else 0,
    PROPERTIES: lambda seen: len(seen.properties),
}
"""Sizes that an observation gives."""


@dataclass(frozen=True)
class Values:
    """What a tensor of an answer holds.

    Args:
        kind: `NUMBERS` (float32 or float64, NaN among them), `WHOLE` (int64) or `TRUTH` (bool).
        shape: names of sizes, of `SIZES` or the answer's own.
        low, high: the range of finite values, both inclusive; a name is a size, which lies above.
        single: float32 only.
    """

    kind: str
    shape: tuple[str, ...]
    low: float = -math.inf
    high: float | str = math.inf
    single: bool = False


def holds(kind: str, *shape: str, **limits: Any) -> dict[str, Values]:
    """The metadata of a field of an answer, see `Values`.

    A field that has a default, which is empty (0,), may be left out.
    """
    return {"values": Values(kind, shape, **limits)}


def typed_answer(answer: T, observation: Observation) -> tuple[T, list[str]]:
    """An answer with the types that its fields declare, and every field that is otherwise.

    Returns:
        The answer, converted where it can be, and a clause for each problem; each begins with a
        verb.
    """
    sizes: dict[str, int] = {}
    found: dict[str, Any] = {}
    problems: list[str] = []
    for item in dataclasses.fields(answer):  # type: ignore[arg-type]
        value = getattr(answer, item.name)
        try:
            if item.type in ("Tensor", Tensor):
                declared: Values | None = item.metadata.get("values")
                empty = item.default_factory is not dataclasses.MISSING
                found[item.name] = _tensor(value, declared, empty, sizes, observation)
            else:
                _check_text(value, several="tuple" in str(item.type))
        except ValueError as error:
            problems.append(f"returned '{item.name}' {error}.")
    if problems:
        return answer, problems
    return dataclasses.replace(answer, **found), []  # type: ignore[type-var]


def _tensor(
    value: object,
    declared: Values | None,
    empty: bool,
    sizes: dict[str, int],
    observation: Observation,
) -> Tensor:
    plain = real(value)
    if declared is None:
        return plain
    if empty and plain.shape == (0,):
        return _as(plain, declared)
    for name in declared.shape:
        if name in SIZES:
            sizes.setdefault(name, SIZES[name](observation))
    if plain.dim() == len(declared.shape):
        for name, length in zip(declared.shape, plain.shape, strict=True):
            sizes.setdefault(name, length)
    wanted = tuple(sizes.get(name, name) for name in declared.shape)
    if tuple(plain.shape) != wanted:
        needed = ", ".join(map(str, wanted)) + "," * (len(wanted) == 1)
        more = f" for {wanted[0]} targets" if declared.shape[:1] == (TARGETS,) else ""
        raise ValueError(f"of shape {tuple(plain.shape)}; it must be ({needed}){more}")
    out = _as(plain, declared)
    high = declared.high
    high = SIZES[high](observation) - 1 if isinstance(high, str) else high
    kept = out[out.isfinite()] if out.is_floating_point() else out
    for extreme in (kept.min(), kept.max()) if kept.numel() else ():
        if not declared.low <= extreme.item() <= high:
            raise ValueError(
                f"with the value {extreme.item():.9g}; values are in [{declared.low:g}, {high:g}]"
            )
    return out


def real(value: object) -> Tensor:
    """A plain tensor of real numbers on the CPU.

    Raises:
        ValueError: it is another kind of value, with what is needed.
    """
    if not isinstance(value, Tensor):
        raise ValueError(f"as {type(value).__name__}; a tensor is needed")
    strided = value.layout == torch.strided and not (value.is_nested or value.is_quantized)
    if not strided or value.device.type == "meta":
        raise ValueError("as a tensor of another layout; a dense one is needed")
    if value.dtype not in (*FLOATS, *INTEGERS, torch.bool):
        raise ValueError(f"as {str(value.dtype).removeprefix('torch.')}; real numbers are needed")
    return value.detach().cpu()


def _as(value: Tensor, declared: Values) -> Tensor:
    if declared.kind == NUMBERS:
        return numbers(value, single=declared.single)
    if declared.kind == WHOLE and value.dtype == torch.bool:
        raise ValueError("as truth values; whole numbers are needed")
    out = value.to(torch.int64)
    same = torch.ones_like(out, dtype=torch.bool)
    if value.dtype in FLOATS:  # NaN, infinity and fractions are no whole numbers
        same = (out.to(value.dtype) == value) & (value.abs() < 2**53)
    elif value.dtype == torch.uint64:
        same = out >= 0
    if declared.kind == TRUTH:
        same &= (out == 0) | (out == 1)
        out = out.bool()
    if not bool(same.all()):
        raise ValueError(f"with values that are no {declared.kind}")
    return out


def numbers(value: Tensor, *, single: bool = False) -> Tensor:
    """Real numbers as float32, or as float64 where they are given so and `single` does not ask.

    Raises:
        ValueError: whole numbers that float32 does not hold exactly.
    """
    if value.dtype == torch.float64 and not single:
        return value
    out = value.to(torch.float32)
    if value.dtype in INTEGERS and bool((out.abs() > 1 << 24).any()):
        raise ValueError("with whole numbers beyond 2^24; numbers are needed as floats")
    return out


def _check_text(value: object, *, several: bool) -> None:
    """Refuse what is no text, or no tuple of texts, that a file can hold."""
    lines = value if several else (value,)
    if not isinstance(lines, tuple) or not all(isinstance(line, str) for line in lines):
        raise ValueError(
            f"as {type(value).__name__}; {'a tuple of texts' if several else 'a text'} is needed"
        )
    if sum(map(len, lines)) > MOST_LETTERS:
        raise ValueError(f"of more than {MOST_LETTERS:,} letters")
    try:
        "".join(lines).encode()
    except UnicodeEncodeError:
        raise ValueError("with letters that are no Unicode") from None
