"""What the scores allow to be said, of all targets and of each group of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from fedre_privacy.core.units import plural

from .measures import Measure, Verdict

LEAKS, NO_EVIDENCE, INCONCLUSIVE = "leaks", "no evidence", "inconclusive"
"""Words of a verdict, the same for every question."""

NOT_EXPLAINED = "not explained"
"""Of images: the answers do not make what was uploaded, so that they show nothing."""

TOO_FEW = "too few to say"
"""Of a group only; of all targets it reads as inconclusive."""

MARGIN_DB = 0.5
"""PSNR above the floor that is too little to matter (dB): nobody sees it in a picture."""

MARGIN_SHARE = 0.1
"""Share above the floor that is too little to matter: one in ten of the images found, classes named
or pairs put in order. A leak of more than that is one that an attacker can use, and less can be
ruled out with some forty clients."""

LEAST_DB = 0.01
"""PSNR above the floor that is more than rounding (dB)."""

MIN_TARGETS = 6
"""Fewest targets for a verdict: of five, not even all on one side differ from chance at 5 %."""

MIN_CLIENTS = 5
"""Fewest clients for a verdict; intervals of fewer hold their level but say little."""

ERROR = 0.025
"""Probability, at most, that any test of clients like these finds a leak where there is none; the
same again for the tests of these images."""

OF = {"1": "of one image", "2-30": "of 2 to 30 images", ">30": "of more than 30 images"}
"""Keys of `measures.GROUPS` in words."""

AVERAGES = ("prototype", "recovered prototype")
"""Targets of which it is always said how many images they are of."""

OPEN_RULE = (
    "no evidence: no test finds a leak, and by every measure the 95 % interval leaves less open "
    "than the margin; inconclusive: otherwise"
)
"""What is said where nothing leaks, for the rules of all questions."""

VERDICT_RULE = (
    "Tested are the PSNR over the floor and identification over a guess that knows the class, of "
    "all targets and of each group by number of images, one-sided, together at a level of "
    f"{100 * ERROR:g} % (Holm), for clients like these; and the number of these images that was "
    f"found, exactly, together at {100 * ERROR:g} %. leaks: a test of all targets or of a group "
    f"finds more than the floor; {OPEN_RULE}; not explained, in place of these two: the answers "
    "make no more of what was uploaded than the floor's, or the true images do not make it, and in "
    "place of the first also where it may be chance that they make more (95 % interval). "
    f"Margins: +{MARGIN_DB} dB and "
    f"+{100 * MARGIN_SHARE:g} points found. too few to say: fewer than "
    f"{MIN_TARGETS} targets or {MIN_CLIENTS} clients, which are not tested for clients like them"
)


@dataclass(frozen=True)
class VerdictGroup:
    """All targets, or a group of them.

    Args:
        name: "" for all targets, or a key of `measures.GROUPS`.
        psnr: over the floor.
        hit: identification over a guess.
        found: expected number of originals found.
        chance: probability that a guess finds as many of these images, or None without line-ups.
        explained: whether the answers make more of what was uploaded than the floor's answers do;
            None: on average they do, but it may be chance. True where it is not asked.
    """

    name: str
    psnr: Measure
    hit: Measure
    found: float = 0.0
    chance: float | None = None
    explained: bool | None = True

    @property
    def targets(self) -> int:
        """How many there are."""
        return self.psnr.targets

    @property
    def clients(self) -> int:
        """Of how many clients they are."""
        return self.psnr.clients

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All that the verdict rests on."""
        return self.psnr, self.hit

    @property
    def enough(self) -> bool:
        """Whether a verdict about clients like these is possible."""
        return self.targets >= MIN_TARGETS and self.clients >= MIN_CLIENTS


@dataclass(frozen=True)
class Ruling:
    """What follows for a part.

    Args:
        word: `LEAKS`, `NO_EVIDENCE`, `NOT_EXPLAINED`, `INCONCLUSIVE` or `TOO_FEW`.
        alike: whether a test of clients like these rejects.
        here: whether more of these images were found than by guessing.
    """

    word: str
    alike: bool = False
    here: bool = False


def verdicts(parts: Sequence[VerdictGroup]) -> list[Ruling]:
    """Apply `VERDICT_RULE` to parts that are tested together, in their order."""
    alike = _rejected_groups(
        [
            (m.p, i)
            for i, part in enumerate(parts)
            if part.enough
            for m in part.measures
            if m.p is not None
        ]
    )
    here = _rejected_groups([(p.chance, i) for i, p in enumerate(parts) if p.chance is not None])
    out = []
    for i, part in enumerate(parts):
        word = leak_verdict(i in alike | here, part.measures)
        if word != LEAKS and not part.enough:
            word = TOO_FEW
        elif part.explained is False and word != LEAKS:
            word = NOT_EXPLAINED
        elif part.explained is None and word == NO_EVIDENCE:
            word = NOT_EXPLAINED
        out.append(Ruling(word, i in alike, i in here))
    return out


def _rejected_groups(tests: Sequence[tuple[float, int]]) -> set[int]:
    """Parts of which a test rejects, of tests with the part that each is of."""
    return {tests[k][1] for k in holm([p for p, _ in tests])}


def leak_verdict(leaks: bool, measures: Sequence[Measure], *, clients: int = MIN_CLIENTS) -> str:
    """The word where it is known whether anything leaks.

    Args:
        leaks: whether a test finds a leak.
        measures: all that the verdict rests on; where it is no leak each must be bounded.
        clients: behind them; of fewer than `MIN_CLIENTS` nothing follows for others like them.
    """
    if leaks:
        return LEAKS
    bounded = bool(measures) and all(m.bounded for m in measures)
    return NO_EVIDENCE if bounded and clients >= MIN_CLIENTS else INCONCLUSIVE


def still(measures: Sequence[Measure]) -> str:
    """What the intervals leave open: ``could still be up to +47 points found and +0.3 dB``."""
    known = [text for m in measures if (text := m.most())]
    said = [f"could still be up to {' and '.join(known)}"] if known else []
    said += [f"{m.title} has no bound" for m in measures if m.over_interval is None]
    return ", ".join(said) or "shown to be under the floor"


def verdict_of_clients(
    leaks: bool,
    measures: Sequence[Measure],
    said: Sequence[str],
    rule: str,
    *,
    clients: int,
    comma: str = "; ",
) -> Verdict:
    """The verdict of a question whose cases are clients, see `leak_verdict`.

    Args:
        said: the numbers that it rests on, joined by `comma`.
    """
    word = leak_verdict(leaks, measures, clients=clients)
    if clients < MIN_CLIENTS:
        needed = f"{plural(clients, 'client')} of at least {MIN_CLIENTS} needed"
        return Verdict(INCONCLUSIVE, comma.join((needed, *said)), rule)
    left_open = () if word == LEAKS else (still(measures),)
    return Verdict(word, comma.join((*said, *left_open)), rule)


def weakened_verdict(verdict: Verdict, why: Sequence[str]) -> Verdict:
    """The verdict of an attack that is weaker than it could have been.

    Such an attack is no evidence that a stronger one finds nothing, so the word is then
    inconclusive.

    Args:
        why: a clause for each weakness; without any the verdict stays.
    """
    if not why:
        return verdict
    word = INCONCLUSIVE if verdict.word == NO_EVIDENCE else verdict.word
    lines = [(INCONCLUSIVE if said == NO_EVIDENCE else said, text) for said, text in verdict.lines]
    return dataclasses.replace(
        verdict,
        word=word,
        because=f"{verdict.because}; weakened: {'; '.join(why)}",
        findings=tuple(lines),
        weakened=tuple(why),
    )


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


def verdict_lines(
    whole: VerdictGroup,
    groups: Sequence[VerdictGroup],
    found: Sequence[Ruling],
    *,
    noun: str,
    gallery: int,
    unit: str = "client",
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the verdict over all targets, and what was found: a word and a text for each line.

    Lines are about disjoint targets: about all of them, or about groups where one leaks.

    Args:
        groups: those that hold a target; none or one where there is nothing to tell apart.
    """
    first, rest = found[0], list(zip(groups, found[1:], strict=True))
    alike = f" {OF[groups[0].name]}" if len(rest) == 1 and noun in AVERAGES else ""
    if len(rest) < 2:
        rest = []
    leaking = [(part, ruling) for part, ruling in rest if ruling.word == LEAKS]
    if not leaking or (len(leaking) == len(rest) and first.word == LEAKS):
        word = _word(first.word)
        return word, ((word, _of_all(whole, first, rest, noun, gallery, unit, alike)),)
    lines = [
        (
            LEAKS,
            f"the {plural(part.targets, noun)} {OF[part.name]}: {_numbers([part], gallery)}"
            + _generalisation_words(part, ruling, unit),
        )
        for part, ruling in leaking
    ]
    left = len(rest) - len(leaking)
    for word in (NO_EVIDENCE, NOT_EXPLAINED, INCONCLUSIVE, TOO_FEW):
        same = [part for part, ruling in rest if ruling.word == word]
        if not same:
            continue
        if len(same) == left:
            who = f"the other {_number(sum(part.targets for part in same))}"
        else:
            who = " and ".join(f"the {_number(p.targets)} {OF[p.name]}" for p in same)
        few = f"; {TOO_FEW}" if word == TOO_FEW else _upper_limits(same)
        lines.append((_word(word), f"{who}: {_numbers(same, gallery)}{few}"))
    return LEAKS, tuple(lines)


def of_units(count: int, noun: str, unit: str) -> str:
    """`` of 5 clients``; nothing where each target is a unit of its own."""
    return "" if unit == noun else f" of {plural(count, unit)}"


def _word(word: str) -> str:
    return INCONCLUSIVE if word == TOO_FEW else word


def _of_all(
    whole: VerdictGroup,
    ruling: Ruling,
    rest: Sequence[tuple[VerdictGroup, Ruling]],
    noun: str,
    gallery: int,
    unit: str,
    alike: str,
) -> str:
    """What is said of all targets in one line; `alike`: of how many images each is."""
    numbers, many = _numbers([whole], gallery), plural(whole.targets, noun) + alike
    if ruling.word == TOO_FEW:
        return (
            f"{many}{of_units(whole.clients, noun, unit)} are too few for a verdict (at least "
            f"{MIN_TARGETS} targets{of_units(MIN_CLIENTS, noun, unit)}); {numbers}"
        )
    if ruling.word == LEAKS:
        together = " together" if any(one.word != LEAKS for _, one in rest) else ""
        return f"the {many}{together}: {numbers}{_generalisation_words(whole, ruling, unit)}"
    unsure = [OF[part.name] for part, one in rest if one.word in (INCONCLUSIVE, TOO_FEW)]
    lacking = [OF[part.name] for part, one in rest if one.word == NOT_EXPLAINED]
    alone = ""
    if unsure and ruling.word == NO_EVIDENCE:
        alone = f"; {TOO_FEW} of those {' and '.join(unsure)} alone"
    if lacking and ruling.word != NOT_EXPLAINED:
        alone += f"; {NOT_EXPLAINED} for those {' and '.join(lacking)}"
    return f"the {many}: {numbers}{_upper_limits([whole])}{alone}"


def _generalisation_words(part: VerdictGroup, ruling: Ruling, unit: str) -> str:
    """For whom a leak is shown: these images, others like them, or both."""
    these = f"these images (p = {part.chance:.1g} by guessing)" if ruling.here else ""
    if ruling.alike:
        return f"; shown for {unit}s like these" + (f" and for {these}" if these else "")
    return f"; shown for {these} of {plural(part.clients, unit)}, little is said of other {unit}s"


def _upper_limits(parts: Sequence[VerdictGroup]) -> str:
    """What could still be, at most, of any of some parts."""
    highest = []
    for measures in zip(*(part.measures for part in parts), strict=True):
        ends = [m.over_interval[1] if m.over_interval else float("inf") for m in measures]
        highest.append(measures[ends.index(max(ends))])
    return f"; {still(highest)}"


def _number(count: int) -> str:
    return "one" if count == 1 else str(count)


def _numbers(parts: Sequence[VerdictGroup], gallery: int) -> str:
    """``6 of 6 found among 100 (guess 1.6 %), pictures 5.9 dB over the floor``."""
    said = []
    lineups = sum(part.hit.n for part in parts)
    if lineups:
        guess = sum((part.hit.floor or 0.0) * part.hit.n for part in parts) / lineups
        said.append(
            f"{_count(sum(part.found for part in parts))} of {lineups} found among {gallery} "
            f"(guess {100 * guess:.1f} %)"
        )
    gaps = [(part.psnr.over, part.targets) for part in parts if part.psnr.over is not None]
    if gaps:
        mean = sum(gap * count for gap, count in gaps) / sum(count for _, count in gaps)
        said.append(f"pictures {abs(mean):.1f} dB {'over' if mean >= 0 else 'under'} the floor")
    return ", ".join(said) or "nothing to score"


def _count(found: float) -> str:
    """A number of originals found; ties count in parts."""
    return f"{found:.0f}" if abs(found - round(found)) < 0.05 else f"{found:.1f}"
