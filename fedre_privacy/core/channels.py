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
    they are 0, unless noise or rounding comes after it (see `usable`). Attacks that send vectors of
    their own anew keep the coordinates that any vector of the upload has.
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
class SummingStep:
    """Show the server sums over the clients of a round only."""

    word: ClassVar[str] = "sums over clients"


Value = ClippingStep | Masking | Noise | UnknownNoise | RandomRounding
"""What can happen to numbers that are sent."""
Step = Value | Smoothing | Rounding | NoisySteps | SummingStep

_VALUES = (ClippingStep, Masking, Noise, UnknownNoise, RandomRounding)
PLACES: dict[str, tuple[type[Step], ...]] = {
    "each": (ClippingStep,),
    "rows": _VALUES,
    "updates": _VALUES,
    "encoding": (Smoothing, Rounding),
    "training": (NoisySteps,),
    "round": (SummingStep,),
}
"""Where steps act, and the steps that may stand there."""
_BY_NAME: dict[str, type[Step]] = {
    kind.__name__: kind for kinds in PLACES.values() for kind in kinds
}

_COVERING = (Noise, UnknownNoise, RandomRounding)


def mask_is_hidden(step: Step, later: Sequence[Step]) -> bool:
    """Whether a mask cannot be seen: noise or rounding comes after it, so that no zero stays 0."""
    return isinstance(step, Masking) and any(isinstance(one, _COVERING) for one in later)


def usable(steps: Sequence[Value]) -> list[Value]:
    """Leave out masks that cannot be seen."""
    return [step for i, step in enumerate(steps) if not mask_is_hidden(step, steps[i + 1 :])]


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
        encoding: to label encodings.
        training: to local training.
        round: to the round as a whole, after everything else.

    Raises:
        TypeError: a step that cannot stand at its place.
    """

    each: tuple[ClippingStep, ...] = ()
    rows: tuple[Value, ...] = ()
    updates: tuple[Value, ...] = ()
    encoding: tuple[Smoothing | Rounding, ...] = ()
    training: tuple[NoisySteps, ...] = ()
    round: tuple[SummingStep, ...] = ()

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
