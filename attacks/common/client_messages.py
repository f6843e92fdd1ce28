"""Every message of each attacked client, in order of rounds, and what is asked about them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, EntangledRep
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Candidates, Observation

from .channels import undo_smoothing

Sent = tuple[int, Artifact]
"""A round and what was sent in it."""


def messages_of(observation: Observation) -> dict[int, dict[type[Artifact], list[Sent]]]:
    """What each attacked client sent, by kind of artifact, rounds ascending.

    Targets may be some rows of an upload. Where the whole upload of the same client, round and
    kind was observed, it takes their place; a target that no upload contains (because it was
    recovered, or is counterfactual) stands for itself. Declared smoothing of label encodings is
    taken off.

    Returns:
        Client to kind to (round, artifact), clients ascending.
    """
    clients, channel = {upload.client for upload in observation.targets}, observation.channel
    found: dict[tuple[int, int, type[Artifact], int], Artifact] = {}
    for upload in (*observation.targets, *observation.uploads):
        if upload.client not in clients:
            continue
        seen: dict[type[Artifact], int] = {}
        for artifact in upload.artifacts:
            kind = type(artifact)
            number = seen.get(kind, 0)
            seen[kind] = number + 1
            if isinstance(artifact, EntangledRep):
                artifact = EntangledRep(artifact.rep, undo_smoothing(channel, artifact.encoding))
            found[upload.client, upload.round, kind, number] = artifact
    out: dict[int, dict[type[Artifact], list[Sent]]] = {client: {} for client in sorted(clients)}
    for (client, round, kind, _), artifact in sorted(found.items(), key=_place):
        out[client].setdefault(kind, []).append((round, artifact))
    return out


def _place(entry: tuple[tuple[int, int, type[Artifact], int], Artifact]) -> tuple[int, int, int]:
    client, round, _, number = entry[0]
    return client, round, number


def received_by(observation: Observation, client: int) -> Mapping[int, tuple[Artifact, ...]]:
    """What the server sent to a client, by round."""
    return {b.round: b.artifacts for b in observation.broadcasts if client in b.recipients}


SLACK = 0.25
"""How far shares of classes may be below 0, of a row's size, or over 1, in the median, when they
are sent with noise; what is beyond are raw outputs."""


def are_shares(sent: Tensor) -> bool:
    """Whether uploads (m, C) are shares of classes, maybe defended, and not raw outputs."""
    below = sent.clamp(max=0).abs().sum(1) / sent.abs().sum(1).clamp(min=1e-12)
    return bool(below.median() < SLACK and sent.amax(1).median() < 1 + SLACK)


def asked_of(observation: Observation) -> Candidates:
    """The samples whose membership is asked.

    Raises:
        IncompatibleError: none were given.
    """
    if observation.candidates is None:
        raise IncompatibleError(
            "The attack was given no candidates, the samples whose membership is asked.",
            next_step="Give Observation.candidates: images, labels and clients.",
        )
    return observation.candidates


def image_keys(images: Tensor) -> Tensor:
    """One number per image (n,), equal for equal images; integers, so that it is exact."""
    levels = (images.flatten(1) * 255).round().long()
    factors = torch.randint(1 << 40, (levels.shape[1],), generator=stream(0, "image keys"))
    return (levels * factors).sum(1)
