"""What a defence does to uploads, as data: the channel that attackers are told about.

A channel is a few steps with plain numbers, sorted by the place where they act. It names the
mechanism and never what was drawn. Attacks read channels and know no defence by name, so a defence
that is made of these steps is adapted to wherever it was written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class ClippingStep:
    """Shorten to a Euclidean length: each vector by itself, an update as a whole.

    Args:
        norm: the largest length, above 0.
    """

    word: ClassVar[str] = "bound"

    norm: float


@dataclass(frozen=True)
class Masking:
    """Set some numbers to 0 and multiply the others by a factor.

    All vectors of an upload lose the same coordinates, or each its own. Which ones is seen, as
    they are 0, or hold nothing but noise of a known size (see `mask_is_hidden`). Attacks that send
    vectors of their own anew keep the coordinates that any vector of the upload has.
    """

    word: ClassVar[str] = "mask"

    factor: float = 1.0


@dataclass(frozen=True)
class Noise:
    """Add noise of mean 0 and of a known size to every number.

    Args:
        std: standard deviation on a number.
        per_row: it is multiplied by the square root of the number of vectors in the upload.
        per_number: it is multiplied by the square root of the number of values in the upload.
        normal: it is normal and independent from number to number.
    """

    word: ClassVar[str] = "noise"

    std: float
    per_row: bool = False
    per_number: bool = False
    normal: bool = False


@dataclass(frozen=True)
class UnknownNoise:
    """Add noise of mean 0 whose size depends on what the server is not told."""

    word: ClassVar[str] = "noise of unknown size"


@dataclass(frozen=True)
class RandomRounding:
    """Round at random, right on average, to even levels between -max and max of the tensor.

    Args:
        levels: how many there are, both ends counted; 2 or more.
    """

    word: ClassVar[str] = "random rounding"

    levels: int


@dataclass(frozen=True)
class Smoothing:
    """Mix a label encoding with the uniform one: (1 - alpha) y + alpha / C."""

    word: ClassVar[str] = "smoothing"

    alpha: float


@dataclass(frozen=True)
class Rounding:
    """Round a label encoding to multiples of 1 / levels that sum to 1."""

    word: ClassVar[str] = "rounding of encodings"

    levels: int


@dataclass(frozen=True)
class NoisySums:
    """Add normal noise to numbers of samples, sums of representations and of their outer products.

    Args:
        count, sums, outer: standard deviation on a number of samples, on each value of a sum, and
            on each diagonal value of a sum of outer products; off the diagonal it is outer over
            the root of 2. A spherical covariance holds one such value, a sum of squared lengths.
    """

    word: ClassVar[str] = "noise on sums"

    count: float
    sums: float
    outer: float


@dataclass(frozen=True)
class Shrinkage:
    """Mix covariances with something simpler: (1 - share) C + share T.

    Args:
        share: of what is simpler, from 0 to 1.
        towards: T; ``identity``: the mean variance times the identity, ``diagonal``: C's diagonal.
    """

    word: ClassVar[str] = "shrinkage"

    share: float
    towards: str = "identity"


@dataclass(frozen=True)
class LeastCount:
    """Leave out means of fewer samples than this; they stay in a covariance of all classes."""

    word: ClassVar[str] = "least count"

    count: int


@dataclass(frozen=True)
class NoisySteps:
    """Train on gradients of single samples, each shortened, with normal noise on their sum.

    Args:
        norm: largest length of a sample's gradient.
        noise: standard deviation of the noise on the sum, in units of `norm`.
    """

    word: ClassVar[str] = "noisy training"

    norm: float
    noise: float


@dataclass(frozen=True)
class CorrelatedSteps:
    """Train in noisy steps whose noise is correlated from step to step, afresh in every round.

    Args:
        norm, noise: as of `NoisySteps`; the noise x of step t is z C g_t with
            g_t + coefficients[1] g_(t-1) + ... = normal and independent numbers.
        coefficients: the first is 1.
    """

    word: ClassVar[str] = "noisy training with correlated noise"

    norm: float
    noise: float
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", tuple(self.coefficients))


@dataclass(frozen=True)
class LearntChange:
    """Change each representation by what a client has learnt.

    Extractors that an attacker holds who knows of it make this change too; see
    `core.types.RandomModule` for what they draw.

    Args:
        random: it draws anew for each representation.
    """

    word: ClassVar[str] = "learnt change"

    random: bool = False


@dataclass(frozen=True)
class RandomChange:
    """Change each representation by fresh draws alone, which extractors without them do not.

    What an attacker holds differs from the bare extractor where it repeats uploads, and not where
    it matches them.

    Args:
        mixes: whether other images enter, so that it is no noise about the representation.
    """

    word: ClassVar[str] = "random change"
    random: ClassVar[bool] = True

    mixes: bool = False


@dataclass(frozen=True)
class TrainingTerm:
    """Train with a further term in the loss of each batch, perhaps against an opponent."""

    word: ClassVar[str] = "training term"


@dataclass(frozen=True)
class SummingStep:
    """Show the server sums over the clients of a round only."""

    word: ClassVar[str] = "sums over clients"


Value = ClippingStep | Masking | Noise | UnknownNoise | RandomRounding
"""What can happen to numbers that are sent."""
Training = NoisySteps | CorrelatedSteps | TrainingTerm
"""What can happen to local training."""
Change = LearntChange | RandomChange
"""What an extractor may do to what it makes."""
Statistic = NoisySums | Shrinkage | LeastCount
"""What can happen to numbers, means and covariances of classes."""
Step = Value | Change | Statistic | Smoothing | Rounding | Training | SummingStep

_VALUES = (ClippingStep, Masking, Noise, UnknownNoise, RandomRounding)
PLACES: dict[str, tuple[type[Step], ...]] = {
    "extractor": (LearntChange, RandomChange),
    "each": (ClippingStep,),
    "rows": _VALUES,
    "updates": _VALUES,
    "statistics": (NoisySums, Shrinkage, LeastCount),
    "encoding": (Smoothing, Rounding),
    "training": (NoisySteps, CorrelatedSteps, TrainingTerm),
    "round": (SummingStep,),
}
"""Where steps act, and the steps that may stand there."""
_BY_NAME: dict[str, type[Step]] = {
    kind.__name__: kind for kinds in PLACES.values() for kind in kinds
}


def mask_is_hidden(step: Step, later: Sequence[Step], place: str) -> bool:
    """Whether a mask cannot be seen: what comes over what was not sent has no known size.

    What holds nothing but noise of a known size is recognised (`attacks.common.hidden_masks`).
    Rounding of updates counts as unknown, as its size differs from tensor to tensor.

    Args:
        later: all steps after it. place: where they act, one of `PLACES`.
    """
    if not isinstance(step, Masking):
        return False
    unknown = (UnknownNoise, RandomRounding) if place == "updates" else (UnknownNoise,)
    noisy = [n for n, one in enumerate(later) if isinstance(one, Noise | RandomRounding)]
    changed = noisy and any(isinstance(one, ClippingStep) for one in later[noisy[0] :])
    return bool(changed) or any(isinstance(one, unknown) for one in later)


StepsAt = dict[str, tuple[type[Step], ...]]
"""Kinds of steps by the place where they act."""


def join_steps(one: StepsAt, other: StepsAt) -> StepsAt:
    """Kinds of steps of both, place by place."""
    return {
        place: tuple(dict.fromkeys((*one.get(place, ()), *other.get(place, ()))))
        for place in PLACES
        if place in one or place in other
    }


def without(steps: StepsAt, place: str) -> StepsAt:
    """Kinds of steps but those at one place."""
    return {key: kinds for key, kinds in steps.items() if key != place}


@dataclass(frozen=True)
class Channel:
    """What happens between a client's samples and what the server sees, in order at each place.

    Args:
        each: to each representation, before means are taken of them.
        rows: to vectors as they are sent: representations, prototypes, entangled, class outputs.
        updates: to parameters sent minus parameters received, and to gradients.
        statistics: to numbers, means and covariances of classes.
        encoding: to label encodings.
        training: to local training.
        round: to the round as a whole, after everything else.
        extractor: to what a client's extractor makes, before everything else; so it is of
            representations that were not sent too.

    Raises:
        TypeError: a step that cannot stand at its place.
    """

    each: tuple[ClippingStep, ...] = ()
    rows: tuple[Value, ...] = ()
    updates: tuple[Value, ...] = ()
    statistics: tuple[Statistic, ...] = ()
    encoding: tuple[Smoothing | Rounding, ...] = ()
    training: tuple[Training, ...] = ()
    round: tuple[SummingStep, ...] = ()
    extractor: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        for place, kinds in PLACES.items():
            wrong = [step for step in self.at(place) if not isinstance(step, kinds)]
            if wrong:
                known = ", ".join(kind.__name__ for kind in kinds)
                raise TypeError(f"Channel.{place} was given {wrong[0]!r}; it holds {known}.")

    def at(self, place: str) -> tuple[Step, ...]:
        """The steps at one of `PLACES`."""
        steps: tuple[Step, ...] = getattr(self, place)
        return steps

    def then(self, other: Channel) -> Channel:
        """This channel and another one after it."""
        return Channel(**{place: self.at(place) + other.at(place) for place in PLACES})  # type: ignore[arg-type]

    def plain(self) -> dict[str, list[dict[str, Any]]]:
        """JSON-ready: for each place with steps, each step's name and numbers."""
        return {
            place: [{"step": type(s).__name__, **dataclasses.asdict(s)} for s in self.at(place)]
            for place in PLACES
            if self.at(place)
        }

    @classmethod
    def from_plain(cls, values: dict[str, list[dict[str, Any]]]) -> Channel:
        """Undo `plain`."""

        def step(given: dict[str, Any]) -> Step:
            own = dict(given)
            return _BY_NAME[own.pop("step")](**own)

        return cls(**{place: tuple(map(step, steps)) for place, steps in values.items()})  # type: ignore[arg-type]


NOTHING = Channel()
"""The channel of what is sent as it is."""


def usable(channel: Channel, place: str) -> list[Value]:
    """Steps on rows or updates, without masks that cannot be seen.

    Bounds come before rounding that they followed: a row that is shortened takes its levels with
    it, which is about what rounding to levels of the shortened rows does.
    """
    steps = channel.at(place)
    seen = [
        step
        for i, step in enumerate(steps)
        if isinstance(step, _VALUES) and not mask_is_hidden(step, steps[i + 1 :], place)
    ]
    for i, step in enumerate(seen):
        while isinstance(step, ClippingStep) and i and isinstance(seen[i - 1], RandomRounding):
            seen[i - 1 : i + 1] = step, seen[i - 1]
            i -= 1
    return seen
