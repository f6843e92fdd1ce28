"""What a defence is: it changes what a client sends, or how it trains, and states what that costs.

A defence acts at the client alone, between the protocol's upload and the wire, and is pure: the
same artifact, sending and stream give the same result. Several are applied in the order given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import Artifact, is_one_of
from fedre_privacy.core.channels import Channel
from fedre_privacy.core.config import build_plugin, plain_plugin
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.rng import stream
from fedre_privacy.core.tradeoff import VACUOUS
from fedre_privacy.core.types import Mixture, Upload

from .local_pass import ExtractorPass, LocalBatch, ModelShapes

defenses: Registry[Defense] = Registry("defence", "fedre_privacy.defenses")

CLIENT, RECORD = UNITS = ("client", "record")
"""Whose data a guarantee hides: everything of one client, or one training sample."""


@dataclass(frozen=True, eq=False)
class Sending:
    """What a client knows when it is about to send one artifact.

    Args:
        protocol: its name. client, round: who and when; round 0 is the exchange before the first.
        rounds: of the whole run.
        kinds: artifacts that the protocol sends, as declared.
        class_counts: (num_classes,) training samples of each class at this client.
        received: for parameters, the ones it received at the start of the round (same kind, names
            and shapes), so that what is sent minus these is the client's update; else None.
        mixture: which of its samples made each row, with which weight; None where not a mean.
        seed: the client's own, which nobody without its data can compute; see `of_run`.
    """

    protocol: str
    client: int
    round: int
    rounds: int
    kinds: tuple[type[Artifact], ...]
    class_counts: tuple[int, ...]
    received: Artifact | None = None
    mixture: Mixture | None = None
    seed: int = 0

    def of_run(self, purpose: str) -> torch.Generator:
        """A CPU stream of this client that is the same in every round."""
        return stream(self.seed, f"defense {purpose}", client=self.client)


@dataclass(frozen=True, eq=False)
class FederationFacts:
    """What is known of a federation before it starts: the input of checks and of accounting.

    Args:
        protocol: its name. kinds: artifacts that it sends, as declared. sums: the mean of uploads
            that its server can do with ("samples", "classes", "clients"), or "".
        class_counts: (clients, num_classes) training samples.
        participations: rounds in which each client takes part.
        rounds, epochs, batch_size: of the training. local_steps: batches of a round, or None.
        buffers: whether BatchNorm's running statistics are sent with the parameters.
        training_only: clients use their data in local training and in what they upload, only.
        trains: clients train; where not, their extractors are public and depend on no data.
        inexact: why class statistics are no sums of one part of each sample; empty: they are.
        summing: protocols whose server can do with sums, for a refusal to name.
        model: client number to its model, on any device (also ``meta``).
    """

    protocol: str
    kinds: tuple[type[Artifact], ...]
    class_counts: tuple[tuple[int, ...], ...]
    participations: tuple[int, ...]
    rounds: int
    epochs: int = 1
    batch_size: int = 32
    local_steps: int | None = None
    buffers: bool = False
    sums: str = ""
    training_only: bool = False
    trains: bool = True
    inexact: str = ""
    summing: tuple[str, ...] = ()
    model: Callable[[int], nn.Module] | None = None

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.participations)

    @property
    def kinds_with_values(self) -> tuple[type[Artifact], ...]:
        """Kinds sent that hold more than counts."""
        return sensitive_kinds(self.kinds)


def sensitive_kinds(kinds: Iterable[type[Artifact]]) -> tuple[type[Artifact], ...]:
    """Leave out the kinds that no defence touches."""
    return tuple(kind for kind in kinds if Role.OPEN not in kind.roles)


def uses(kinds: Iterable[type[Artifact]], rounds: int) -> int:
    """Count the artifacts with values that a client sends in so many rounds."""
    return sum(1 if Role.ONCE in kind.roles else rounds for kind in sensitive_kinds(kinds))


@dataclass(frozen=True)
class Release:
    """A Gaussian mechanism used several times.

    Args:
        noise: noise multiplier: standard deviation over L2 sensitivity.
        rate: chance with which each record enters (Poisson sampling); 1: always.
        count: how often it is used.
    """

    noise: float
    rate: float
    count: int


@dataclass(frozen=True)
class PrivacyCost:
    """What a defence spends and what that pays for, before anything is composed.

    Args:
        unit: ``client`` or ``record``.
        delta: at which the guarantee is stated; 0 for a pure one.
        releases: of each client over the whole run. pure: epsilon of each client spent by
            mechanisms with delta 0.
        covers: kinds of artifacts whose values are protected.
        assumptions: sentences under which it holds.
        accountant: how sampled releases are added up, ``prv`` or ``rdp``.
        replaces: whether it hides one by another, or, False, that there is one. A release lies half
            as far from the middle of what it could be as one end of it lies from the other.
    """

    unit: str
    delta: float
    releases: tuple[tuple[Release, ...], ...]
    pure: tuple[float, ...]
    covers: tuple[type[Artifact], ...]
    assumptions: tuple[str, ...] = ()
    accountant: str = "prv"
    replaces: bool = True

    def from_nothing(self, client: int) -> tuple[tuple[Release, ...], float]:
        """What tells a client's releases from some that do not depend on what is hidden."""
        if not self.replaces:
            return self.releases[client], self.pure[client]
        halved = tuple(replace(r, noise=2 * r.noise) for r in self.releases[client])
        return halved, self.pure[client] / 2


class TrainingSamples(Protocol):
    """A client's samples: length, labels, and batches of images in [0, 1] with labels."""

    labels: Tensor

    def __len__(self) -> int: ...

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Images (b, C, H, W) and labels (b,)."""


class Trainer(Protocol):
    """Another way of local training, in place of plain SGD; arguments as of `DPSGD`."""

    @property
    def batches(self) -> Callable[..., Iterator[Tensor]]:
        """Sample numbers (b,) of each batch; b may be 0."""

    @property
    def fit(self) -> Callable[..., float]:
        """Train modules in place; the mean loss."""


@defenses.base
@dataclass(frozen=True, kw_only=True)
class Defense:
    """Base of all defences. Authors write `defend`, or `represent`, or `trainer`, or, of a learnt
    one, `training_term`, `change`, `change_images` and `own_modules`."""

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another defence: a clause of at most 100 characters."""
    acts_on: ClassVar[tuple[type[Artifact] | Role, ...]] = ()
    """Kinds of artifacts that `defend` changes, or their roles; it is given no others."""
    adds_noise: ClassVar[bool] = False
    """Whether it claims a guarantee for what `defend` returns."""
    sets_zeros: ClassVar[bool] = False
    """Whether all that `change` does is to set coordinates of representations to 0."""
    opponents: ClassVar[tuple[str, ...]] = ()
    """Names of those own modules that are trained by `opponent_loss` against the client; the others
    are trained with the client's model, on its loss."""

    def check(self, facts: FederationFacts) -> list[str]:
        """Return every reason why this defence cannot be used in a federation."""
        sent = facts.kinds_with_values
        if not self.acts_on or any(is_one_of(kind, self.acts_on) for kind in sent):
            return []
        listed = ", ".join(kind.__name__ for kind in sent) or "nothing"
        every = Artifact.kinds.values()
        known = ", ".join(kind.__name__ for kind in every if is_one_of(kind, self.acts_on))
        return [
            f"Defence '{self.name}' acts on {known}; protocol '{facts.protocol}' sends {listed}. "
            "Leave it out, or choose a protocol that sends one of these."
        ]

    def settled(self, facts: FederationFacts) -> Defense:
        """Return itself with settings that follow from the federation filled in.

        It is asked for once, after `check`; what it returns acts, and is what attackers know.
        """
        return self

    def represent(self) -> Callable[[Tensor], Tensor] | None:
        """What is done to each representation (n, d) before an upload is made of them."""
        return None

    def kept(self, artifact: Artifact) -> Tensor | None:
        """Rows of an artifact (k,), ascending, that are sent at all; None: all.

        The others are left out before `defend` is asked. Without a row nothing is sent.
        """
        return None

    def unrepaired(self) -> Defense:
        """Itself without what it does to its own noisy values, which costs no privacy.

        Audits test it so.
        """
        return self

    def defend(self, artifact: Artifact, sending: Sending, rng: torch.Generator) -> Artifact:
        """Return what is sent instead of an artifact: same kind, names and shapes.

        Args:
            artifact: on the CPU, of a kind in `acts_on`; it is not changed.
            rng: a CPU stream of (the client's secret, this place in the list, client, round).
        """
        return artifact

    def trainer(self) -> Trainer | None:
        """How the client trains instead of by plain SGD, if it does."""
        return None

    def own_modules(self, shapes: ModelShapes) -> Mapping[str, nn.Module]:
        """Modules that each client trains for the defence and keeps, from round to round.

        None of them leaves the client, and torch's global generator is seeded. An attacker who
        holds a client's extractor and knows of the defence holds those too that `change` uses.
        """
        return {}

    def training_term(self, batch: LocalBatch) -> Tensor | None:
        """A scalar that is added to the loss of every batch of local training; None: nothing.

        Its gradient moves the client's model and own modules but `opponents`, which stand still.
        """
        return None

    def opponent_loss(self, batch: LocalBatch) -> Tensor:
        """A scalar that `opponents` are trained on before each of the client's steps.

        Representations in the batch carry no gradient.
        """
        raise TypeError(f"{type(self).__name__} has opponents and does not define opponent_loss")

    def opponent_lr(self) -> float:
        """Step size of Adam for `opponents`; its moments begin anew in every round."""
        return 1e-3

    def own_lr(self, lr: float) -> float:
        """Step size of own modules that are trained with the client, given the client's."""
        return lr

    def change_images(self, images: Tensor, seen: ExtractorPass) -> Tensor:
        """What an extractor is given in place of images (n, C, H, W), of the same shape."""
        return images

    def change(self, reps: Tensor, seen: ExtractorPass) -> Tensor:
        """What each representation (n, d) becomes, in training, uploads and predictions.

        Row i may depend on others only as far as they were in the same pass; `seen.rng` is the
        only source of randomness.
        """
        return reps

    def seen(self, uploads: Sequence[Upload], sizes: Sequence[int]) -> tuple[Upload, ...]:
        """What the server sees of a round's uploads, which it aggregates all the same.

        Args:
            sizes: training samples of every client, by client number.
        """
        return tuple(uploads)

    def left(self, total: Upload, known: Sequence[Upload], sizes: Sequence[int]) -> Upload:
        """What a sum of `seen` says to who knows all uploads behind it but one: that upload.

        Args:
            known: the others, as they were sent.
            sizes: as of `seen`.
        """
        return total

    def cost(self, facts: FederationFacts) -> PrivacyCost | None:
        """What it spends over the whole run, or None: a heuristic without a formal guarantee."""
        return None

    def public(self, facts: FederationFacts) -> dict[str, Any]:
        """Name and settings, with derived ones filled in: what an adaptive attacker knows."""
        return plain_plugin(self)

    def channel(self, facts: FederationFacts) -> Channel | None:
        """What it does to uploads, for attackers to adapt to; None: it does not say.

        Without a channel no attack adapts to it, and every attack on such a run says so.
        """
        return None


def defenses_of(plain: Sequence[Mapping[str, Any]]) -> tuple[Defense, ...]:
    """Undo `plain_plugin` for a list of defences.

    Raises:
        ConfigError: with every problem that the settings have.
    """
    problems: list[str] = []
    made = [build_plugin(defenses, one, at="defense", problems=problems) for one in plain]
    if problems:
        raise ConfigError(*problems)
    return tuple(one for one in made if one is not None)


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta) differential privacy of everything in `covers`, over the whole run.

    Args:
        unit: ``client`` or ``record``.
        epsilon: of the client that spends most. by_client: of each.
        line_up: largest chance with which any attack finds the true image among 100, if it is as
            likely as the other 99 without the uploads, and labels and counts are known.
    """

    unit: str
    epsilon: float
    delta: float
    by_client: tuple[float, ...]
    covers: tuple[str, ...]
    by: tuple[str, ...]
    assumptions: tuple[str, ...]
    line_up: float

    def bound(self) -> str:
        """What no attack can exceed, in words."""
        if self.line_up >= VACUOUS:
            return f"no bound: the guarantee for one {self.unit} is too weak for one"
        return (
            f"found among 100 at most {self.line_up:.1%} of the time by any attack, if without the "
            f"uploads each is as likely, given labels and counts (by the guarantee for one "
            f"{self.unit})"
        )


@dataclass(frozen=True)
class Statement:
    """What a list of defences guarantees, what it does not, and why.

    Args:
        guarantees: none, one, or one per unit.
        reasons: why a defence that spends privacy gives no guarantee here.
        not_covered: what stays in the clear.
    """

    guarantees: tuple[Guarantee, ...] = ()
    reasons: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    heuristics: tuple[str, ...] = field(default=())

    def bound(self) -> str:
        """What no attack on images can exceed, or why there is no such bound; a sentence."""
        if not self.guarantees:
            return (
                "no bound: nothing is guaranteed of what is sent, so a stronger attack may recover "
                "more than any shown here"
            )
        return min(self.guarantees, key=lambda g: g.line_up).bound()

    def lines(self) -> list[str]:
        """Sentences for people."""
        out = [
            f"epsilon {g.epsilon:.2f} at delta {g.delta:g} for one {g.unit} "
            f"({' with '.join(g.by)}; {', '.join(g.covers) or 'the trained models'})"
            for g in self.guarantees
        ]
        out += [g.bound() for g in self.guarantees]
        out += self.reasons
        if self.heuristics:
            out.append(f"{', '.join(self.heuristics)}: no formal privacy")
        if self.not_covered:
            out.append("not covered: " + "; ".join(self.not_covered))
        return out
