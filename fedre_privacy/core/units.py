"""Numbers as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence


def human_bytes(count: float) -> str:
    """Format a number of bytes.

    >>> human_bytes(296), human_bytes(3_514_152)
    ('296 B', '3.4 MiB')
    """
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """Format a duration.

    >>> human_seconds(0.42), human_seconds(61), human_seconds(3700)
    ('0.4 s', '1 min 1 s', '1 h 2 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def plural(count: int, noun: str) -> str:
    """Count a noun.

    >>> plural(1, "client"), plural(3, "class"), plural(2, "property")
    ('1 client', '3 classes', '2 properties')
    """
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("ty"):
        return f"{count} {noun.removesuffix('y')}ies"
    return f"{count} {noun}{'es' if noun.endswith(('s', 'x')) else 's'}"


def first_few(items: Sequence[object], count: int = 10) -> str:
    """The first of many in a sentence, and how many there are more.

    >>> first_few(range(5), 3)
    '0, 1, 2 and 2 more'
    """
    more = len(items) - count
    return ", ".join(map(str, items[:count])) + (f" and {more} more" if more > 0 else "")
