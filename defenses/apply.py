"""Where the loop meets defences: while representations are collected, and before sending."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import Artifact, is_one_of
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Emission, Upload

from .base import Defense, Sending, Trainer
from .learnt import Changes, Draws, Memory, changes_representations


def trainer_of(defenses: Sequence[Defense]) -> Trainer | None:
    """The way of local training that a defence prescribes, if one does."""
    return next((made for d in defenses if (made := d.trainer()) is not None), None)


def visible(
    defenses: Sequence[Defense], uploads: Sequence[Upload], class_counts: Sequence[Sequence[int]]
) -> Sequence[Upload]:
    """What the server sees of a round's uploads."""
    sizes = [sum(counts) for counts in class_counts]
    for defense in defenses:
        uploads = defense.seen(uploads, sizes)
    return uploads


def left_of(
    defenses: Sequence[Defense], total: Upload, known: Sequence[Upload], sizes: Sequence[int]
) -> Upload:
    """What is left of a sum for who knows all uploads behind it but one."""
    for defense in defenses:
        total = defense.left(total, known, sizes)
    return total


class Collecting:
    """Counts the passes of an extractor while an upload is made."""

    def __init__(self) -> None:
        self.passes = 0


@contextmanager
def represent_with_defenses(
    extractor: nn.Module, defenses: Sequence[Defense], memory: Memory, draws: Draws
) -> Iterator[Collecting]:
    """Apply learnt changes and then `Defense.represent` to what an extractor returns in a block.

    Args:
        memory: the client's, with own modules of the defences.
        draws: streams of the client's secret and round.
    """
    steps = [step for d in defenses if (step := d.represent()) is not None]
    seen = Collecting()
    changes = Changes.drawing(defenses, memory, draws, "uploads")
    if not steps and not changes.any:
        yield seen
        return

    def hook(module: nn.Module, given: Any, reps: Tensor) -> Tensor:
        seen.passes += 1
        for step in steps:
            reps = step(reps)
        return reps

    with changes.on(extractor):
        handle = extractor.register_forward_hook(hook)
        try:
            yield seen
        finally:
            handle.remove()


def received_parameters(
    kind: type[Artifact], artifact: Artifact, message: Sequence[Artifact]
) -> Any:
    """The parameters of a kind that a message gave to the client, in the artifact's shapes."""
    if Role.STARTED_FROM not in kind.roles:
        return None
    shapes = {name: value.shape for name, value in artifact.tensors().items()}
    for sent in message:
        if type(sent) is not kind:
            continue
        sent = sent.fitted(artifact)
        if {name: value.shape for name, value in sent.tensors().items()} == shapes:
            return sent
    return None


def apply_defenses(
    defenses: Sequence[Defense],
    emission: Emission,
    sending: Sending,
    *,
    number: int,
    passes: int | None = None,
) -> Emission | None:
    """Let every defence act on an emission, in order; the mixture stays the evaluator's.

    None: no row is left that a defence lets through.

    Args:
        number: place of the emission among those of this client and round.
        passes: of the extractor seen by `represent_with_defenses`; None where nothing was watched.

    Raises:
        IncompatibleError: a defence returned another kind, other names or shapes, or values that
            are not finite; or one that bounds representations was passed by.
    """
    artifact, mixture = emission.artifact, emission.mixture
    for place, defense in enumerate(defenses):
        # a defence that names a kind bounds what enters it
        collected = Role.COLLECTED in artifact.roles or type(artifact) in defense.acts_on
        acts = defense.represent() is not None or changes_representations(defense)
        if acts and collected and passes == 0:
            raise IncompatibleError(
                f"Defence '{defense.name}' bounds or changes representations where an upload is "
                f"made of them, but protocol '{sending.protocol}' collected those of client "
                f"{sending.client} elsewhere.",
                next_step="Bound what is sent instead (unit=client, or where=upload).",
            )
        if not is_one_of(type(artifact), defense.acts_on):
            continue
        once = Role.ONCE in artifact.roles
        if defense.adds_noise and once != (sending.round == 0):
            raise IncompatibleError(
                f"Protocol '{sending.protocol}' sent {type(artifact).__name__} in round "
                f"{sending.round}; the accounting of defence '{defense.name}' expects it "
                + ("before the first round only." if once else "later.")
            )
        who, purpose = sending.client, f"defense {place} {defense.name}"
        rng = stream(sending.seed, purpose, client=who, round=sending.round, index=number)
        rows = defense.kept(artifact)
        if rows is not None:
            if not len(rows):
                return None
            artifact, mixture = artifact.take(rows), mixture and mixture.select(rows)
        artifact = _same_form(defense, artifact, defense.defend(artifact, sending, rng))
    return Emission(artifact, mixture)


def _same_form(defense: Defense, before: Artifact, after: Artifact) -> Artifact:
    old = {name: value.shape for name, value in before.tensors().items()}
    if type(after) is not type(before) or old != {n: v.shape for n, v in after.tensors().items()}:
        raise IncompatibleError(
            f"Defence '{defense.name}' made {after!r} of {before!r}; kind, names and shapes must "
            "stay."
        )
    if not all(bool(value.isfinite().all()) for value in after.tensors().values()):
        raise IncompatibleError(f"Defence '{defense.name}' made values that are not finite.")
    return after
