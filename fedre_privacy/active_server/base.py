"""What a steering is: a server that sends other messages than the protocol says, or picks clients.

A steering is pure: the same view, round, client and stream give the same message, so a run that was
killed goes on to the same end. It sees what the server sees and nothing of any client.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.types import Broadcast, Knowledge, Upload

steerings: Registry[Steering] = Registry(
    "steering", "fedre_privacy.active_server", see="fedre-attack list"
)

Message = tuple[Artifact, ...]

ACTIVE = "ACTIVE SERVER"
"""How every result of a steered run is marked."""


@dataclass(frozen=True, eq=False)
class ServerKnowledge:
    """What a server holds beside messages; a steering is shown what it declares to need of it.

    Args:
        aux: public images in [0, 1] (m, C, H, W), on which no client trains; AUX_DATA.
        aux_labels: their classes (m,); AUX_DATA.
        blank: client to a model of the architecture that it is sent, with any weights;
            ARCHITECTURE.
    """

    aux: Tensor | None = None
    aux_labels: Tensor | None = None
    blank: Callable[[int], nn.Module] | None = None

    def shown(self, needs: frozenset[Knowledge]) -> ServerKnowledge:
        """The part of it that these needs name."""
        images, models = Knowledge.AUX_DATA in needs, Knowledge.ARCHITECTURE in needs
        return ServerKnowledge(
            self.aux if images else None,
            self.aux_labels if images else None,
            self.blank if models else None,
        )


NOTHING_HELD = ServerKnowledge()


@dataclass(frozen=True, eq=False)
class ServerView:
    """What the server holds when it decides: everything that crossed the wire, and no client state.

    Args:
        uploads: of earlier rounds, as the server saw them, oldest first.
        broadcasts: sent in earlier rounds, as they were sent.
        held: what it holds beside messages, as far as the steering declares to need it.
    """

    uploads: tuple[Upload, ...]
    broadcasts: tuple[Broadcast, ...]
    clients: int
    num_classes: int
    held: ServerKnowledge = NOTHING_HELD

    def newest(self, client: int) -> Upload | None:
        """The newest upload of one client, or None before its first."""
        return next((u for u in reversed(self.uploads) if u.client == client), None)


@steerings.base
@dataclass(frozen=True, kw_only=True)
class Steering:
    """Base of all steerings. Authors write `steer`, or `choose`, or both."""

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another steering: a clause of at most 100 characters."""
    alters: ClassVar[tuple[type[Artifact], ...]] = ()
    """Kinds of broadcast artifacts that `steer` may replace; all others stay as they are."""
    needs: ClassVar[frozenset[Knowledge]] = frozenset()
    """What it is shown beside messages: AUX_DATA, ARCHITECTURE (see `ServerKnowledge`)."""
    apart: ClassVar[bool] = False
    """Whether the server takes only what clients changed in the parameters that they were sent, and
    adds it to what it would honestly have sent, so that its own model keeps what was steered out
    of it."""

    rounds: str = knob(
        "all", help="rounds in which it acts: all, one (1), or some without a gap (2-5)"
    )

    def __post_init__(self) -> None:
        self._span()

    def _span(self) -> tuple[int, int | None]:
        """First and last round in which it acts; None: without end.

        Raises:
            ConfigError: `rounds` is no round, span or "all".
        """
        found = re.fullmatch(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?", str(self.rounds))
        if self.rounds == "all":
            return 1, None
        if found is None or (found[2] and int(found[2]) < int(found[1])):
            raise ConfigError(
                f"'steering.rounds' is '{self.rounds}'; give all, a round such as 1, or a span "
                "such as 2-5."
            )
        return int(found[1]), int(found[2] or found[1])

    def acts(self, round: int) -> bool:
        """Whether it acts in a round."""
        first, last = self._span()
        return first <= round and (last is None or round <= last)

    def when(self) -> str:
        """The rounds in which it acts, in words."""
        first, last = self._span()
        if last is None:
            return "all rounds"
        return f"round {first}" if first == last else f"rounds {first} to {last}"

    def check(self, clients: int, broadcast: tuple[type[Artifact], ...]) -> list[str]:
        """Return every reason why this steering cannot be used in a federation."""
        if not self.alters or any(issubclass(kind, self.alters) for kind in broadcast):
            return []
        sent = ", ".join(kind.__name__ for kind in broadcast) or "nothing"
        return [
            f"Steering '{self.name}' replaces {' or '.join(k.__name__ for k in self.alters)}; the "
            f"server of this protocol is declared to send {sent}. Leave it out, or choose another "
            "protocol."
        ]

    def lacks(self, model: nn.Module) -> str:
        """Why it cannot steer a model, in words that follow its name ("has no ..."); empty: it can.

        Asked, before anything is trained, of each architecture that is sent, where ARCHITECTURE is
        needed.

        Args:
            model: without values (on the meta device).
        """
        return ""

    def sybils(self, clients: int) -> frozenset[int]:
        """Clients that the server controls, whose uploads it knows; of so many clients."""
        return frozenset()

    def aims_at(self, client: int, clients: int) -> bool:
        """Whether a client is one whom it is about; the others' messages count for no detector."""
        return True

    def choose(
        self, view: ServerView, round: int, honest: tuple[int, ...], rng: torch.Generator
    ) -> tuple[int, ...]:
        """Return the clients of a round, as many as an honest draw would take.

        Args:
            honest: what the honest server drew, ascending.
            rng: a CPU stream of (run, steering, round).
        """
        return honest

    def steer(
        self, view: ServerView, round: int, client: int, honest: Message, rng: torch.Generator
    ) -> Message:
        """Return what one client is sent: same kinds, names, shapes and types, all finite.

        Args:
            honest: what the protocol would send, never empty; it is not changed.
            rng: a CPU stream of (run, steering, round, client).
        """
        return honest

    @property
    def chooses(self) -> bool:
        """Whether it decides who takes part."""
        return type(self).choose is not Steering.choose


def declaration(given: tuple[Steering, ...]) -> str:
    """The mark that every result of a steered run carries; empty for an honest server."""
    if not given:
        return ""
    said = "; ".join(f"{one.name}, {one.when()}" for one in given)
    return f"{ACTIVE} ({said})"
