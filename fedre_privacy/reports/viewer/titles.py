"""Titles of results in words."""

from __future__ import annotations

from fedre_privacy.reports.page_parts import (
    protocol_name,
    title_of_attack,
    title_of_audit,
    title_of_membership,
)

from .entries import ATTACK, AUDIT, BENCHMARK, MEMBERSHIP, RUN, ResultEntry

ELSEWHERE = "another system"
"""Stands for the protocol of uploads that came from elsewhere."""


def title_of(entry: ResultEntry) -> str:
    """What a result is, in words; where that is not known, the name of its folder."""
    told = entry.facets
    given = [name for name in told.get("protocol", "").split(", ") if name]
    protocol = ", ".join(protocol_name(name) for name in given) or ELSEWHERE
    if entry.kind == ATTACK and {"attack", "target"} <= set(told):
        return title_of_attack(told["attack"], told["target"], protocol)
    if entry.kind == AUDIT and "attack" in told:
        return title_of_audit(told["attack"].removeprefix("audit: "), protocol)
    if entry.kind == MEMBERSHIP and "attack" in told:
        return title_of_membership(told["attack"], protocol)
    if entry.kind == RUN and given:
        return f"{protocol} on {told.get('data', 'unknown data')}"
    if entry.kind == BENCHMARK and given:
        return f"benchmark of {protocol}"
    return entry.name
