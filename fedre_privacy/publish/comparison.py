"""Claimed beside repeated: measure by measure, and what that comes to.

Numbers that are due to be the same may differ by rounding alone. Where another processor or other
versions computed them, training amplifies rounding: there value, floor and their difference may
differ by a share of the half-width of the interval that the repetition found, and what tells of the
spread by `SPREAD` times as much. That interval cannot be claimed wider.

Where the images were shared out anew, other targets are attacked: intervals have to overlap, and
the verdict has to be the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from .format import Accuracy, Claim, Compared, Made, Numbers, Verification
from .names import OTHERWISE, REPEATS, SCORES, SPLIT, TRAINING, WITHIN

ROUNDING = 1e-6
"""Relative difference of numbers that are the same."""

SPREAD = 3.0
"""How much more the ends of intervals and the sd may differ than the mean that they belong to."""

ACCURACY = ("accuracy", "training")
"""Key and group under which the accuracy of a training is compared."""

SAME, NEAR, OTHER, ABSENT, LEFT_OUT, OVERLAPS, ELSEWHERE = (
    "the same", "within tolerance", "differs", "not found again", "left out of the claim",
    "intervals overlap", "of one split alone",
)  # fmt: skip
HELD = (SAME, NEAR, OVERLAPS, ELSEWHERE)
"""States of measures that were repeated."""


def is_due(claim: Claim, part: str, made: Made, *, uploads_same: bool | None) -> bool:
    """Whether the same numbers are due: the versions are the same, and no processor shows.

    Scores are computed from answers that lie there. After a training the uploads tell: another
    processor, another order of sums, and some byte of them differs.
    """
    same = claim.attack.versions == made.versions
    processors = {claim.attack.device.split(" ")[0], made.device.split(" ")[0]}
    if part == SCORES:
        return same
    return same and part == TRAINING and uploads_same is True and processors == {"cpu"}


def state(one: Compared, *, part: str, due: bool, tolerance: float) -> str:
    """How a measure was repeated, in words."""
    if part == SPLIT:
        return _state_elsewhere(one)
    if one.claimed is None:
        return LEFT_OUT
    if one.repeated is None:
        return ABSENT
    turned = one.claimed.higher_is_more_leakage != one.repeated.higher_is_more_leakage
    if turned or one.claimed.n != one.repeated.n:
        return OTHER
    room = 0.0 if due else tolerance * _half_width(one.repeated)
    pairs = list(zip(_with_room(one.claimed), _with_room(one.repeated), strict=True))
    if all(_close(a, b, 0.0) for (a, _), (b, _) in pairs):
        return SAME
    return NEAR if all(_close(a, b, more * room) for (a, more), (b, _) in pairs) else OTHER


def _state_elsewhere(one: Compared) -> str:
    """How a measure was repeated with other clients' images, of which groups may hold none."""
    if one.claimed is None or one.repeated is None:
        return ELSEWHERE
    first, second = _range(one.claimed), _range(one.repeated)
    turned = one.claimed.higher_is_more_leakage != one.repeated.higher_is_more_leakage
    apart = first[1] < second[0] or second[1] < first[0]
    return OTHER if turned or apart else OVERLAPS


def _range(numbers: Numbers) -> tuple[float, float]:
    """Where a measure lies: its interval over the floor, or of its value, or the value give or
    take three standard deviations."""
    room = SPREAD * (numbers.sd or abs(numbers.value))
    ends = numbers.over_interval or numbers.interval
    return ends or (numbers.value - room, numbers.value + room)


def _close(one: float | None, other: float | None, room: float) -> bool:
    """Whether two numbers are the same but for rounding, or closer than that."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= max(room, ROUNDING * max(abs(one), abs(other)))


def _with_room(numbers: Numbers) -> list[tuple[float | None, float]]:
    """All numbers of a measure, each with how much more than the mean it may differ."""
    none = (None, None)
    means = (numbers.value, numbers.floor, numbers.over)
    spreads = (numbers.sd, *(numbers.interval or none), *(numbers.over_interval or none))
    return [*((one, 1.0) for one in means), *((one, SPREAD) for one in spreads)]


def _half_width(numbers: Numbers) -> float:
    """Of the interval over the floor, or of the value; without either the sd, or the value."""
    ends = numbers.over_interval or numbers.interval
    if ends is not None and ends[1] > ends[0]:
        return (ends[1] - ends[0]) / 2
    return numbers.sd or abs(numbers.value)


def states(done: Verification, due: bool | None = None) -> list[str]:
    """How each measure of a verification was repeated, in words.

    Args:
        due: whether the same numbers are due; None: what the verification says.
    """
    due = done.due if due is None else due
    return [state(one, part=done.part, due=due, tolerance=done.tolerance) for one in done.measures]


def outcome(states: Sequence[str], *, part: str, due: bool, same_verdict: bool) -> str:
    """What the states of all measures come to.

    Where the same numbers are not due, a verdict near its border may turn without any number being
    far off; that is said beside the outcome, and is none.
    """
    strict = due or part == SPLIT
    if any(one not in HELD for one in states) or (strict and not same_verdict):
        return OTHERWISE
    return REPEATS if all(one == SAME for one in states) and same_verdict else WITHIN


def accuracy_numbers(accuracy: Accuracy) -> Numbers:
    """The accuracy of a training as the numbers of a measure."""
    return Numbers(
        value=accuracy.mean, interval=None, sd=accuracy.sd, floor=None, over=None,
        over_interval=None, n=0, higher_is_more_leakage=True,
    )  # fmt: skip


def contradiction(verification: Verification, claim: Claim) -> str:
    """Why a verification cannot be one of a claim, whatever hash it names; empty: it can.

    What it says of the claim must be what the claim says, and its outcome what follows from its
    own numbers.
    """
    told = {(one.key, one.group): one.numbers for one in claim.measures}
    if verification.part in (SPLIT, TRAINING) and claim.accuracy is not None:
        told[ACCURACY] = accuracy_numbers(claim.accuracy)
    rows = {(one.key, one.group): one for one in verification.measures}
    if len(rows) < len(verification.measures):
        return "compares a measure twice"
    said = {key: one.claimed for key, one in rows.items() if one.claimed is not None}
    if said != told:
        return "says of the claim what the claim does not say"
    if any(one.claimed is None and one.repeated is None for one in rows.values()):
        return "compares nothing with nothing"
    if (verification.uploads_same is None) == (verification.part == TRAINING):
        return "speaks of uploads that it did not make, or not of those that it made"
    due = is_due(claim, verification.part, verification.made,
                 uploads_same=verification.uploads_same)  # fmt: skip
    same = verification.verdict == claim.verdict
    follows = outcome(states(verification, due), part=verification.part, due=due, same_verdict=same)
    if (due, follows) != (verification.due, verification.outcome):
        return "names an outcome that does not follow from its numbers"
    return ""
