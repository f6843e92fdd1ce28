"""What the scores allow to be said, of all targets and of each group of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedre_privacy.core.units import plural

MARGIN_DB = 0.5
"""PSNR above the floor that is too little to matter (dB)."""

LEAST_DB = 0.01
"""PSNR above the floor that is more than rounding (dB)."""

MIN_TARGETS = 6
"""Fewest targets for a verdict: of five, not even all on one side differ from chance at 5 %."""

MIN_CLIENTS = 5
"""Fewest clients for a verdict; intervals of fewer hold their level but say little."""

ERROR = 0.025
"""Probability, at most, that any test of a verdict finds a leak where there is none."""

OF = {"1": "of one image", "2-30": "of 2 to 30 images", ">30": "of more than 30 images"}
"""Keys of `measures.GROUPS` in words."""

LEAKS, NOT_BETTER, INCONCLUSIVE = "leaks", "not better than the floor", "inconclusive"
NOT_EXPLAINED = "not explained"
TOO_FEW = "too few to say"
"""Verdicts; the last is of groups only, and reads as inconclusive of all targets."""

VERDICT_RULE = (
    "Tested are the PSNR over the floor and identification over a guess that knows the class, of "
    "all targets and of each group by number of images, one-sided, together at a level of "
    f"{100 * ERROR:g} % (Holm). leaks: a test of all targets or of a group finds more than the "
    "floor; not better than the floor: none does, and the 95 % interval of the PSNR over the "
    f"floor ends below +{MARGIN_DB} dB; inconclusive: otherwise; not explained, in place of "
    "these two: the answers make no more of what was uploaded than the floor's, or the true images "
    "do not make it, and in place of the first also where it may be chance that they make more "
    "(95 % interval); too few to say: fewer than "
    f"{MIN_TARGETS} targets or {MIN_CLIENTS} clients, which are not tested"
)


@dataclass(frozen=True)
class Part:
    """All targets, or a group of them.

    Args:
        name: "" for all targets, or a key of `measures.GROUPS`.
        targets, clients: how many there are, and of how many clients.
        gap: mean PSNR over the floor (dB), or None.
        highest: upper end of its 95 % interval, or None.
        tests: one-sided p-values, of the PSNR and of identification; those that exist.
        found, lineups: expected number of originals found, among so many line-ups.
        explained: whether the answers make more of what was uploaded than the floor's answers do;
            None: on average they do, but it may be chance. True where it is not asked.
    """

    name: str
    targets: int
    clients: int
    gap: float | None
    highest: float | None
    tests: tuple[float, ...]
    found: float
    lineups: int
    explained: bool | None = True

    @property
    def enough(self) -> bool:
        """Whether a verdict about them is possible."""
        return self.targets >= MIN_TARGETS and self.clients >= MIN_CLIENTS


def verdicts(parts: Sequence[Part]) -> list[str]:
    """Apply `VERDICT_RULE` to parts that are tested together, in their order."""
    tests = [(p, i) for i, part in enumerate(parts) if part.enough for p in part.tests]
    leaking = {tests[k][1] for k in holm([p for p, _ in tests])}
    out = []
    for i, part in enumerate(parts):
        if not part.enough:
            out.append(TOO_FEW)
        elif i in leaking:
            out.append(LEAKS)
        else:
            bounded = part.highest is not None and part.highest < MARGIN_DB
            unexplained = part.explained is False or (bounded and not part.explained)
            word = NOT_BETTER if bounded else INCONCLUSIVE
            out.append(NOT_EXPLAINED if unexplained else word)
    return out


def holm(p_values: Sequence[float], error: float = ERROR) -> list[int]:
    """Positions of the tests that reject (Holm, Scand. J. Stat. 6, 1979).

    The probability of any false rejection is at most `error`, however the tests depend on each
    other.
    """
    rejected = []
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    for step, k in enumerate(order):
        if not p_values[k] <= error / (len(order) - step):
            break
        rejected.append(k)
    return rejected


def told(
    whole: Part,
    groups: Sequence[Part],
    found: Sequence[str],
    *,
    noun: str,
    gallery: int,
    unit: str = "client",
) -> tuple[str, str]:
    """Return the verdict over all targets, and the sentence that names who leaks.

    Args:
        whole: all targets.
        groups: those that hold a target; none or one where there is nothing to tell apart.
        found: verdicts of the whole and of each group.
        noun: what a target is, in the singular.
        gallery: images in a line-up.
        unit: what targets are grouped by for intervals and tests, in the singular.
    """
    first, rest = found[0], list(zip(groups, found[1:], strict=True))
    if first == TOO_FEW:
        return INCONCLUSIVE, (
            f"{plural(whole.targets, noun)}{of_units(whole.clients, noun, unit)} are too few for a "
            f"verdict (at least {MIN_TARGETS} targets{of_units(MIN_CLIENTS, noun, unit)}); "
            f"{_score([whole], gallery)}"
        )
    if len(rest) < 2:
        rest = []
    leaking = [part for part, verdict in rest if verdict == LEAKS]
    verdict = LEAKS if leaking else first
    if leaking and len(leaking) < len(rest):
        clauses = [
            "the "
            + " and the ".join(
                f"{plural(p.targets, noun)} {OF[p.name]} ({_score([p], gallery)})" for p in leaking
            )
        ]
    else:
        together = " together" if first == LEAKS and rest and not leaking else ""
        clauses = [f"the {plural(whole.targets, noun)}{together} ({_score([whole], gallery)})"]
    if verdict == NOT_BETTER:
        clauses[0] += ", so a weak attack or a strong protocol"
    # groups of the same verdict as all targets together need no words, unless others were named
    if {said for _, said in rest} <= {first}:
        rest = []
    named = len(leaking)
    for said in (TOO_FEW, NOT_EXPLAINED, INCONCLUSIVE, NOT_BETTER):
        same = [part for part, one in rest if one == said]
        named += len(same)
        if not same or (said == first and not leaking):
            continue
        if named == len(rest) and len(same) < len(rest):
            who = f"the other {_number(sum(part.targets for part in same))} ({_score(same)})"
        else:
            who = " and ".join(
                f"the {_number(part.targets)} {OF[part.name]} ({_score([part])})" for part in same
            )
        clauses.append(f"{said} for {who}")
    return verdict, "; ".join(clauses)


def of_units(count: int, noun: str, unit: str) -> str:
    """`` of 5 clients``; nothing where each target is a unit of its own."""
    return "" if unit == noun else f" of {plural(count, unit)}"


def _number(count: int) -> str:
    return "one" if count == 1 else str(count)


def _score(parts: Sequence[Part], gallery: int | None = None) -> str:
    """The numbers of parts: ``+5.9 dB, 6 of 6 found``; how many clients where they are too few."""
    gaps = [(part.gap, part.targets) for part in parts if part.gap is not None]
    said = []
    if gaps:
        mean = sum(gap * count for gap, count in gaps) / sum(count for _, count in gaps)
        said.append(f"{mean:+.1f} dB")
    lineups = sum(part.lineups for part in parts)
    if lineups:
        among = "" if gallery is None else f" among {gallery}"
        said.append(f"{_count(sum(part.found for part in parts))} of {lineups} found{among}")
    if gallery is None and len(parts) == 1 and parts[0].clients < MIN_CLIENTS:
        said.append(f"of {plural(parts[0].clients, 'client')}")
    return ", ".join(said) or "nothing to score"


def _count(found: float) -> str:
    """A number of originals found; ties count in parts."""
    return f"{found:.0f}" if abs(found - round(found)) < 0.05 else f"{found:.1f}"
