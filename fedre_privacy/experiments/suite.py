"""Which attacks of the suite fit a training, and what a protocol hides from attacks."""

from __future__ import annotations

from collections.abc import Collection

from fedre_privacy.attacks.base import Attack, SuiteEntry, attacks, can_read, readers_of_any
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.types import Knowledge
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.settings import TrainSettings

from .questions.base import questions


def entries_for(training: TrainSettings) -> list[tuple[str, SuiteEntry]]:
    """Names and uses of the attacks that fit what a training uploads, in the order of a suite.

    They are those that attacks declare (`Attack.suite`) without those that the protocol or its
    initial weights rule out.
    """
    protocol = training.protocol
    found = [
        (name, entry)
        for kind in protocol.uploads
        for name in attacks.names()
        for entry in attacks.get(name).suite
        if entry.reads in (kind, *kind.like)
        and not (
            training.unseen
            and attacks.get(name).simulates
            and entry.target in ("update", "membership", "source")
        )
        and not any(
            hides_its_head(protocol, attacks.get(stage), [kind])
            for stage in (name, *([entry.via] if entry.via else []))
        )
        and entry.unknown_start <= training.private_start
        and not (
            training.private_start
            and Knowledge.INITIAL_MODEL in attacks.get(name)(**entry.settings).required
        )
    ]
    return sorted(found, key=lambda one: one[1].place)


def first_stages(protocol: Protocol | type[Protocol]) -> list[str]:
    """Attacks that recover prototypes or representations from what a protocol uploads."""
    return [
        name
        for name in readers_of_any(protocol.uploads)
        if attacks.get(name).answers in ("prototypes", "representations")
        and not hides_its_head(protocol, attacks.get(name), protocol.uploads)
    ]


def hides_its_loss(
    training: TrainSettings, attack: Attack | type[Attack], kinds: Collection[type[Artifact]]
) -> bool:
    """Whether an attack on these kinds would compute a loss that nobody but the clients can."""
    simulates = questions.get(attack.answers).simulates and attack.simulates
    return bool(training.unseen) and simulates and any(kind.updates for kind in kinds)


def hides_its_head(
    protocol: Protocol | type[Protocol],
    attack: Attack | type[Attack],
    kinds: Collection[type[Artifact]],
) -> bool:
    """Whether an attack would take a head's inputs for those of an extractor that is not before it.

    Args:
        kinds: that are attacked, of which the attack reads some.
    """
    reads = any(kind.updates and can_read(attack, kind) for kind in kinds)
    return bool(protocol.unseen) and attack.answers == "prototypes" and reads
