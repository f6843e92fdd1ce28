"""Whether uploaded vectors are what their protocol, scheme and defences declare."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedre_privacy.attacks.common.channels import bounded_each, row_as_compared
from fedre_privacy.core.artifacts import Artifact, EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import NOTHING, Channel, Noise, RandomRounding, UnknownNoise
from fedre_privacy.core.types import AGGREGATE, Mixture

from .observation import known_defenses
from .targets import TargetSource

APART = 0.02
"""Error relative to the declared vector's length from which an upload is something else; half
precision rounds by a tenth of it."""
CLIENTS = 8
"""Clients whose uploads are looked at, at most."""
NOUNS: dict[type[Artifact], str] = {
    Prototypes: "class prototypes", Representations: "representations", EntangledRep: "mixtures",
}  # fmt: skip


def departure(source: TargetSource) -> str:
    """How uploaded vectors differ from what is declared, in words; empty: they do not.

    What is declared is computed anew: the images behind each vector go through the client's own
    extractor, are mixed as recorded, and take the declared channels. Where these hold errors drawn
    at random, or the round's models or truth were not kept, nothing is said.
    """
    run, channel = source.run, NOTHING
    for known in known_defenses(run):
        channel = channel.then(known.channel or NOTHING)
    random = any(isinstance(step, Noise | UnknownNoise | RandomRounding) for step in channel.rows)
    random |= any(step.random for step in channel.extractor)
    if random or source.round not in run.kept_rounds():
        return ""
    errors, cosines, nouns = [], [], []
    for client in [k for k in source.clients if k != AGGREGATE][:CLIENTS]:
        for number, artifact in enumerate(source.uploads[client].artifacts):
            sent, mixture = artifact.rows(), source.mixtures.get((client, number))
            noun = next(
                (w for kind, w in NOUNS.items() if kind in (type(artifact), *type(artifact).like)),
                "",
            )
            if sent is None or mixture is None or not noun or not len(sent):
                continue
            expected = _declared_vectors(source, client, mixture, channel, sent)
            if expected.shape == sent.shape:
                lengths = expected.norm(dim=1).clamp(min=1e-12)
                errors.append((sent - expected).norm(dim=1) / lengths)
                cosines.append(torch.cosine_similarity(sent, expected, dim=1))
                nouns.append(noun)
    if not errors:
        return ""
    apart, alike = torch.cat(errors) > APART, torch.cat(cosines)
    if not bool(apart.any()):
        return ""
    cosine = float(alike[apart].mean())
    return (
        f"{int(apart.sum())} of {len(apart)} uploaded vectors are not the {nouns[0]} that "
        f"'{run.settings.protocol.name}' declares (cosine {cosine:.2f}): attacks are not adapted "
        "to what is uploaded"
    )


def _declared_vectors(
    source: TargetSource, client: int, mixture: Mixture, channel: Channel, sent: Tensor
) -> Tensor:
    """The vectors (m, d) that a client should have sent, given those that it did."""
    reps = bounded_each(channel, source.representations(client, source.train[client]))
    parts = reps[mixture.sample] * mixture.weight[:, None].to(reps)
    rows = reps.new_zeros(mixture.num_rows, reps.shape[1]).index_add(0, mixture.row, parts)
    if rows.shape != sent.shape:
        return rows
    return row_as_compared(replace(channel, each=()), rows, sent.to(rows))
