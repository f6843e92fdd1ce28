"""Which rows are attacked, and which private images truly made each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.blocks.local import represent
from fedre_privacy.blocks.prototypes import class_means
from fedre_privacy.blocks.state import Samples
from fedre_privacy.core.errors import IncompatibleError, MissingInputError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import (
    Artifact,
    Emission,
    EntangledRep,
    Mixture,
    Prototypes,
    Representations,
    Truth,
    Upload,
)
from fedre_privacy.data.base import ImageData
from fedre_privacy.entanglement.base import Entanglement, schemes
from fedre_privacy.federation.recorder import read_messages, rounds_recorded

from .runs import Run

KINDS: dict[str, type[Artifact]] = {
    "representations": Representations,
    "prototypes": Prototypes,
    "entangled": EntangledRep,
}


@dataclass(frozen=True, eq=False)
class TargetGroup:
    """Targets of one kind with their truth.

    Args:
        kind: "representations", "prototypes" or "entangled".
        counterfactual: the protocol does not upload this kind.
        uploads: what the attacker is given, one upload per client.
        truth: what the evaluator keeps.
    """

    kind: str
    counterfactual: bool
    uploads: tuple[Upload, ...]
    truth: Truth

    def __len__(self) -> int:
        return self.truth.mixture.num_rows


class TargetSource:
    """Makes target groups from a recorded run and the data it was trained on."""

    def __init__(self, run: Run, data: ImageData, *, round: int | None, seed: int) -> None:
        self.run, self.data, self.seed = run, data, seed
        uploaded = rounds_recorded(run.folder / "uploads")
        if not uploaded:
            raise MissingInputError(f"{run.folder} recorded no upload of any client.")
        if round is not None and round not in uploaded:
            near = min(uploaded, key=lambda r: abs(r - round))
            raise MissingInputError(
                f"Round {round} was not recorded; recorded: {uploaded[0]} to {uploaded[-1]}.",
                next_step=f"Use --set eval.round={near}.",
            )
        self.round = uploaded[-1] if round is None else round
        self.train, self.test = run.split_indices()
        uploads, _ = read_messages(run.folder / "uploads", [self.round])
        self.uploads = {upload.client: upload for upload in uploads}
        self.clients = sorted(self.uploads)

    def uploaded_kind(self) -> str | None:
        """The kind of representation that the run really uploads, or None."""
        for upload in self.uploads.values():
            for artifact in upload.artifacts:
                if artifact.rows() is not None:
                    return artifact.kind
        return None

    def group(self, kind: str, count: int) -> TargetGroup:
        """Choose up to `count` targets of a kind, spread over clients, the same for every attack.

        Rows that were uploaded are taken from the record; others are computed from the client's
        own model and data, and marked counterfactual.
        """
        real = self.uploaded_kind() == kind
        emissions = {k: self._emission(k, kind, real, count) for k in self.clients}
        chosen = self._choose(
            {k: e.mixture.num_rows for k, e in emissions.items() if e.mixture}, count, kind
        )
        uploads: list[Upload] = []
        parts: list[tuple[int, Mixture, Tensor]] = []
        for k, rows in chosen.items():
            mixture = emissions[k].mixture
            if mixture is None:
                raise MissingInputError(
                    f"The run has no provenance for client {k}'s {kind} in round {self.round}."
                )
            artifact = emissions[k].artifact
            uploads.append(Upload(k, self.round, (artifact.take(rows),), counterfactual=not real))
            parts.append((k, mixture.select(rows), self._labels(artifact.take(rows))))
        return TargetGroup(kind, not real, tuple(uploads), self._truth(parts))

    def _emission(self, client: int, kind: str, real: bool, count: int) -> Emission:
        if real:
            mixtures = self.run.mixtures(self.round)
            for number, artifact in enumerate(self.uploads[client].artifacts):
                if artifact.kind == kind:
                    return Emission(artifact, mixtures.get((client, number)))
        own = self.train[client]
        if kind == "representations":
            order = torch.randperm(len(own), generator=stream(self.seed, "targets", client=client))
            picked = order[: min(count, len(own))]
            reps, labels = self._represent(client, own[picked])
            index = torch.arange(len(picked))
            mixture = Mixture(index, picked, torch.ones(len(picked)), num_rows=len(picked))
            return Emission(Representations(reps, labels), mixture)
        reps, labels = self._represent(client, own)
        if kind == "prototypes":
            return class_means(reps, labels, self.data.num_classes)
        scheme = getattr(self.run.settings.protocol, "entanglement", None)
        if not isinstance(scheme, Entanglement):
            scheme = schemes.get("rap")()
        rng = stream(self.run.settings.train.seed, "entangle", client=client, round=self.round)
        return scheme(reps, labels, self.data.num_classes, rng)

    def _represent(self, client: int, index: Tensor) -> tuple[Tensor, Tensor]:
        samples = Samples(self.data.images[index], self.data.labels[index])
        return represent(self.run.model(client, self.round).extractor, samples), samples.labels

    def _choose(self, available: dict[int, int], count: int, kind: str) -> dict[int, Tensor]:
        """Deal targets out to clients in turn, random within a client."""
        orders = {
            k: torch.randperm(n, generator=stream(self.seed, f"targets {kind}", client=k)).tolist()
            for k, n in available.items()
        }
        taken: dict[int, list[int]] = {k: [] for k in available}
        left = min(count, sum(available.values()))
        depth = 0
        while left > 0:
            for k, order in orders.items():
                if depth < len(order) and left > 0:
                    taken[k].append(order[depth])
                    left -= 1
            depth += 1
        return {k: torch.tensor(sorted(rows)) for k, rows in taken.items() if rows}

    def _labels(self, artifact: Artifact) -> Tensor:
        encodings = artifact.encodings(self.data.num_classes)
        if encodings is None:
            return torch.full((len(artifact.rows() or ()),), -1)
        pure = encodings.max(1).values > 1 - 1e-6
        return torch.where(pure, encodings.argmax(1), -1)

    def _truth(self, parts: Sequence[tuple[int, Mixture, Tensor]]) -> Truth:
        """Gather the images that entered any target, numbered from 0."""
        images, labels, clients, owners, target_labels = [], [], [], [], []
        rows, samples, weights = [], [], []
        first_row = first_image = 0
        for client, mixture, row_labels in parts:
            used, position = torch.unique(mixture.sample, return_inverse=True)
            index = self.train[client][used]
            images.append(self.data.floats(index))
            labels.append(self.data.labels[index])
            clients.append(torch.full((len(index),), client))
            rows.append(mixture.row + first_row)
            samples.append(position + first_image)
            weights.append(mixture.weight)
            owners.append(torch.full((mixture.num_rows,), client))
            target_labels.append(row_labels)
            first_row += mixture.num_rows
            first_image += len(index)
        return Truth(
            images=torch.cat(images),
            labels=torch.cat(labels),
            clients=torch.cat(clients),
            mixture=Mixture(torch.cat(rows), torch.cat(samples), torch.cat(weights), first_row),
            target_clients=torch.cat(owners),
            target_labels=torch.cat(target_labels),
        )


def resolve_kind(source: TargetSource, target: str, protocol: str) -> str:
    """Turn ``uploaded`` into the kind that the run uploads.

    Raises:
        IncompatibleError: the protocol uploads no representations.
    """
    if target != "uploaded":
        return target
    kind = source.uploaded_kind()
    if kind is None:
        raise IncompatibleError(
            f"Protocol '{protocol}' uploads no representations, so target 'uploaded' is empty.",
            next_step="Ask what it would leak if it did: --target representations, prototypes or "
            "entangled (counterfactual).",
        )
    return kind
