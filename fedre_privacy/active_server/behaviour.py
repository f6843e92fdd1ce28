"""Where the loop meets steerings: who takes part, what each client is sent, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from fedre_privacy.core.artifact_schema import Content, Holds
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import AGGREGATE, Broadcast, Upload

from .base import NOTHING_HELD, Message, ServerKnowledge, ServerView, Steering

Without = Callable[[Upload, Sequence[Upload], Sequence[int]], Upload]


class ServerBehaviour:
    """What a server does over a run, and what it has seen so far.

    Args:
        given: steerings, applied in order; none: an honest server.
        held: what the server holds beside messages.
    """

    def __init__(
        self,
        given: Sequence[Steering],
        seed: int,
        clients: int,
        num_classes: int,
        held: ServerKnowledge = NOTHING_HELD,
    ) -> None:
        self.given, self.seed, self.held = tuple(given), seed, held
        self.clients, self.num_classes = clients, num_classes
        self.uploads: list[Upload] = []
        self.broadcasts: list[Broadcast] = []

    @property
    def honest(self) -> bool:
        """Whether nothing is steered."""
        return not self.given

    def saw(self, uploads: Iterable[Upload], broadcasts: Iterable[Broadcast]) -> None:
        """Remember the messages of a round; an honest server needs none of them again."""
        if not self.honest:
            self.uploads += uploads
            self.broadcasts += broadcasts

    def received(self, round: int) -> frozenset[int]:
        """Clients that were sent the broadcast of an earlier round."""
        return frozenset(k for b in self.broadcasts if b.round == round for k in b.recipients)

    def view(self, one: Steering) -> ServerView:
        """What the server holds now, as far as a steering is shown it."""
        return ServerView(
            tuple(self.uploads),
            tuple(self.broadcasts),
            self.clients,
            self.num_classes,
            self.held.shown(one.needs),
        )

    def participants(self, round: int, honest: tuple[int, ...]) -> tuple[int, ...]:
        """The clients of a round, ascending.

        Raises:
            IncompatibleError: a steering chose clients that do not exist, one twice, or another
                number of them.
        """
        chosen = honest
        for place, one in enumerate(self.given):
            if not one.chooses or not one.acts(round):
                continue
            rng = stream(self.seed, f"steering {place} choose", round=round)
            found = one.choose(self.view(one), round, chosen, rng)
            known = set(range(self.clients))
            if not set(found) <= known or len(set(found)) != len(found):
                raise _refusal(one, f"chose clients {list(found)} in round {round}",
                               f"different ones of 0 to {self.clients - 1}")  # fmt: skip
            if len(found) != len(honest):
                raise _refusal(one, f"chose {len(found)} clients in round {round}",
                               f"{len(honest)}, as many as an honest server takes")  # fmt: skip
            chosen = tuple(sorted(found))
        return chosen

    def message(self, round: int, client: int, honest: Message) -> Message:
        """What one client is sent.

        Raises:
            IncompatibleError: a steering breaks the contract, see `breach`.
        """
        message = honest
        for place, one in enumerate(self.given):
            if not honest or not one.acts(round) or not one.alters:
                continue
            rng = stream(self.seed, f"steering {place}", client=client, round=round)
            steered = one.steer(self.view(one), round, client, message, rng)
            broken = breach(steered, message, one.alters)
            if broken:
                raise _refusal(
                    one, f"sends client {client} in round {round} {broken[0]}", broken[1]
                )
            message = tuple(artifact.detached_copy() for artifact in steered)
        return message

    def taken(
        self,
        round: int,
        uploads: Sequence[Upload],
        sent: Mapping[int, Message],
        honest: Mapping[int, Message],
    ) -> Sequence[Upload]:
        """What the server's own state takes of a round's uploads, see `Steering.apart`.

        Args:
            sent, honest: what each client was sent, and what an honest server would have sent it.
        """
        if not any(one.apart and one.acts(round) for one in self.given):
            return uploads
        return [
            replace(
                upload,
                artifacts=tuple(
                    _transplant_change(artifact, sent[upload.client], honest[upload.client])
                    for artifact in upload.artifacts
                ),
            )
            for upload in uploads
        ]

    def sybils(self, round: int) -> frozenset[int]:
        """Clients that the server controls in a round."""
        return frozenset[int]().union(
            *(one.sybils(self.clients) for one in self.given if one.acts(round))
        )

    def upload_without_sybils(
        self, seen: Sequence[Upload], sent: Sequence[Upload], sizes: Sequence[int], without: Without
    ) -> Sequence[Upload]:
        """What the server knows of a round once it takes what its sybils sent out of a sum.

        A sum in which one client only is no sybil gives that client's upload, which takes the
        sum's place. Everything else stays as it was seen.

        Args:
            seen: uploads or sums as the defences let the server see them.
            sent: uploads of all clients, of which those of sybils alone are looked at.
            sizes: training samples of every client.
            without: (sum, known uploads, sizes) to the upload that is left.
        """
        if self.honest or not sent:
            return seen
        own = self.sybils(sent[0].round)
        known = [upload for upload in sent if upload.client in own]
        return [
            without(one, known, sizes)
            if one.client == AGGREGATE and len(set(one.participants) - own) == 1
            else one
            for one in seen
        ]


def _transplant_change(upload: Artifact, sent: Message, honest: Message) -> Artifact:
    """Parameters as they would be if the client had changed the honest ones as it did those sent.

    Whatever else is uploaded stays as it is.
    """
    pairs = zip(sent, honest, strict=True)
    pair = next((p for p in pairs if type(p[0]) is type(upload)), None)
    if pair is None or upload.holds is not Holds.PARAMETERS:
        return upload
    was, own = (artifact.tensors() for artifact in pair)
    tensors = upload.tensors().items()
    return type(upload).from_tensors(
        {n: own[n] + (t - was[n]) if t.is_floating_point() else t for n, t in tensors}
    )


def alone(given: Sequence[Steering], clients: int, joined: int, rounds: Iterable[int]) -> bool:
    """Whether one client only is no sybil of the server's in each of some rounds."""
    chosen = [one for one in given if one.chooses]
    return bool(chosen) and all(
        any(one.acts(r) and len(one.sybils(clients)) >= joined - 1 for one in chosen)
        for r in rounds
    )


def breach(
    steered: Message, honest: Message, alters: Collection[type[Artifact]]
) -> tuple[str, str] | None:
    """Say how a steered message breaks the contract: what was given, and what is needed.

    The same kinds in the same order; the same names, shapes and types of numbers, all finite; only
    kinds in `alters` changed. Labelled rows may be left out, none may be added or named twice.
    """
    if not isinstance(steered, tuple):
        return f"a {type(steered).__name__}", "a tuple of artifacts"
    if [type(a) for a in steered] != [type(a) for a in honest]:
        return f"a message of {_names(steered) or 'nothing'}", _names(honest)
    for new, old in zip(steered, honest, strict=True):
        kind, tensors, before = type(old).__name__, new.tensors(), old.tensors()
        if tensors.keys() != before.keys():
            return (f"a {kind} of {', '.join(tensors)}", ", ".join(before))
        label = _label(old)
        rows: int | None = None
        if label is not None:
            kept, known = (
                Counter(tensors[label].reshape(-1).tolist()),
                Counter(before[label].tolist()),
            )
            if kept - known:
                return f"a {kind} of classes that the honest message does not name", "fewer, if any"
            rows = len(tensors[label])
        for name, tensor in tensors.items():
            was = before[name]
            shape = (rows, *was.shape[1:]) if rows is not None else tuple(was.shape)
            if tuple(tensor.shape) != shape or tensor.dtype != was.dtype:
                return (
                    f"a {kind} whose '{name}' is {_form(tensor)}",
                    f"{_form(was)}, as in the honest message",
                )
        problems = new.problems()
        if problems:
            return (f"a {kind} in which {problems[0]}", "finite numbers of the declared form")
        if not isinstance(old, tuple(alters)) and not same((new,), (old,)):
            return (
                f"another {kind}",
                f"the honest one, since it declares to replace "
                f"{', '.join(k.__name__ for k in alters)} only",
            )
    return None


def _names(message: Message) -> str:
    return ", ".join(type(artifact).__name__ for artifact in message)


def _label(artifact: Artifact) -> str | None:
    """The name of the labels of an artifact of labelled rows, which may be left out."""
    content = artifact.content().items()
    return next((name for name, held in content if held is Content.LABEL), None)


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def same(one: Message, other: Message) -> bool:
    """Whether two messages say the same to the last digit."""
    if one is other:
        return True
    if [type(a) for a in one] != [type(a) for a in other]:
        return False
    return all(
        a.tensors().keys() == b.tensors().keys()
        and all(torch.equal(t, b.tensors()[name]) for name, t in a.tensors().items())
        for a, b in zip(one, other, strict=True)
    )


def _refusal(one: Steering, given: str, needed: str) -> IncompatibleError:
    return IncompatibleError(
        f"Steering '{one.name}' {given}; clients take {needed}.",
        next_step="Mend the steering, or leave it out.",
    )
