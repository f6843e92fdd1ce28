"""Which rows are attacked, and which private images truly made each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifact_schema import Holds
from fedre_privacy.core.artifacts import Artifact, EntangledRep, Prototypes, Representations
from fedre_privacy.core.errors import IncompatibleError, MissingInputError
from fedre_privacy.core.outcomes import RecoveredPrototypes
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.core.types import Emission, Mixture, RandomModule, Truth, Upload
from fedre_privacy.data.base import ImageData
from fedre_privacy.defenses.defended_modules import Drawing
from fedre_privacy.entanglement.base import Draw, schemes
from fedre_privacy.protocols.blocks.local import represent
from fedre_privacy.protocols.blocks.prototypes import class_means
from fedre_privacy.protocols.blocks.state import Samples, client_secret
from fedre_privacy.runs.backbone_features import known_features
from fedre_privacy.runs.public_images import split_secret
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings
from fedre_privacy.sandbox.module_recipes import Modules

from .attacker_models import shared_extractors
from .recovered_rows import Recovered, prototype_rows, rows_of, single_rows

KINDS: dict[str, type[Artifact]] = {
    "representations": Representations,
    "prototypes": Prototypes,
    "entangled": EntangledRep,
    "recovered-prototypes": Prototypes,
}
"""Targets that are rows of numbers, and the artifact that carries each."""


@dataclass(frozen=True, eq=False)
class TargetGroup:
    """Targets of one kind with their truth.

    Args:
        kind: "representations", "prototypes" or "entangled".
        uploads: what the attacker is given, one upload per client.
    """

    kind: str
    counterfactual: bool
    uploads: tuple[Upload, ...]
    truth: Truth

    def __len__(self) -> int:
        return self.truth.mixture.num_rows

    @property
    def single(self) -> bool:
        """Whether one image made each target."""
        return bool((_images_in(self.truth.mixture) == 1).all())


def evaluator_secret(run: Run, data: ImageData, seed: int) -> int:
    """Seed of what the evaluator draws: targets, candidates, public images (`split_secret`)."""
    train, test = run.split_indices(len(data))
    return split_secret(data.sha256, train, test, seed, run.settings.train.secret)


class TargetSource:
    """Makes target groups from a recorded run and the data it was trained on.

    Args:
        round: to be attacked; None: the last one.
        seed: ``eval.seed``; the draws follow from it and from the split (`evaluator_secret`).
        earliest: without a round it is the first one in which clients trained.
    """

    def __init__(
        self, run: Run, data: ImageData, *, round: int | None, seed: int, earliest: bool = False
    ) -> None:
        self.run, self.data = run, data
        known_features(run.settings.model, run.settings.train.clients, data, run.folder.parent)
        self.seed = evaluator_secret(run, data, seed)
        self.attack_seed = derive(self.seed, "attack")
        """The seed that an attack is given; nothing else is drawn from it."""
        uploaded = run.uploaded_rounds()
        if not uploaded:
            raise MissingInputError(f"{run.folder} recorded no upload of any client.")
        if round is not None and round not in uploaded:
            near = min(uploaded, key=lambda r: abs(r - round))
            raise MissingInputError(
                f"Round {round} was not recorded; recorded: {uploaded[0]} to {uploaded[-1]}.",
                next_step=f"Use --set eval.round={near}.",
            )
        usual = min((r for r in uploaded if r), default=0) if earliest else uploaded[-1]
        self.round = usual if round is None else round
        self.train, self.test = run.split_indices(len(data))
        self.messages = run.messages()
        uploads, _ = self.messages.of([self.round])
        self.uploads = {upload.client: upload for upload in uploads}
        self.clients = sorted(self.uploads)

    @classmethod
    def asked(cls, run: Run, data: ImageData, settings: AttackSettings) -> TargetSource:
        """Of the round and the seed that settings ask for, or the attack's usual round."""
        told = settings.evaluation
        return cls(run, data, round=told.round, seed=told.seed, earliest=settings.earliest)

    @cached_property
    def shared(self) -> Modules:
        """Extractors of the small models sent in the round, see `held.shared_extractors`."""
        return shared_extractors(self.run, self.round, self.messages)

    def extractor_behind(self, client: int) -> nn.Module:
        """The extractor whose prototypes a client's upload can tell of.

        That of the small model that was sent, where the protocol shares one, or the client's own.

        Raises:
            MissingInputError: the models of the round were not kept.
        """
        key = (client, self.round)
        return self.shared[key] if key in self.shared else self.run.extractor(*key)

    @cached_property
    def mixtures(self) -> dict[tuple[int, int], Mixture]:
        """(client, artifact number) to the provenance of its rows in the round."""
        return self.run.mixtures(self.round)

    def uploaded_kind(self) -> str | None:
        """The kind of representation that the run really uploads, or None."""
        for upload in self.uploads.values():
            for artifact in upload.artifacts:
                if artifact.rows() is not None:
                    return artifact.kind
        return None

    def kind_of(self, target: str) -> str:
        """The kind behind a ``--target``; that of ``uploaded`` is what the run uploads.

        Raises:
            IncompatibleError: the protocol uploads no representations.
        """
        kind = self.uploaded_kind() if target == "uploaded" else target
        if kind is None:
            raise IncompatibleError(
                f"Protocol '{self.run.system}' uploads no representations, so target 'uploaded' is "
                "empty.",
                next_step="Ask what it would leak if it did: --target representations, prototypes "
                "or entangled (counterfactual).",
            )
        return kind

    def group(
        self,
        kind: str,
        count: int,
        *,
        max_images: int | None = None,
        fewest_first: bool = False,
        singles: int = 0,
        recovered: Recovered | None = None,
        behind: bool = False,
    ) -> TargetGroup:
        """Choose up to `count` targets of a kind, spread over clients, the same for every attack.

        Rows that were uploaded are taken from the record; others are computed from the client's
        own model and data, and marked counterfactual.

        Args:
            max_images: only targets made of at most so many images.
            fewest_first: those made of the fewest images, in place of a draw.
            singles: only targets made of one image, where there are at least so many; 0: all.
            recovered: what an attack made of the uploads, for the kind "recovered-prototypes".
            behind: through `extractor_behind`, not the client's own.

        Raises:
            IncompatibleError: no target is left.
        """
        real = recovered is not None or self.uploaded_kind() == kind
        emitted = {k: self._emission(k, kind, real, count, recovered, behind) for k in self.clients}
        emissions = {k: emission for k, emission in emitted.items() if emission is not None}
        sizes = {k: _images_in(e.mixture) for k, e in emissions.items() if e.mixture}
        if singles and sum(int((made == 1).sum()) for made in sizes.values()) >= singles:
            max_images = 1
        chosen = self._choose(sizes, count, kind, max_images, fewest_first)
        if not chosen:
            limit = "" if max_images is None else f" made of at most {max_images} images"
            raise IncompatibleError(
                f"Run {self.run.name} has no {kind}{limit} to attack in round {self.round}.",
                next_step="Raise eval.max_images, attack another round, or another target.",
            )
        return self._gather(kind, {k: (emissions[k], rows) for k, rows in chosen.items()}, real)

    def representations(self, client: int, index: Tensor) -> Tensor:
        """Representations (n, d) of images of the data set through a client's own extractor.

        Raises:
            MissingInputError: the models of the round were not kept.
        """
        return self._represent(client, index)[0]

    def true_prototypes(self, of: TargetGroup) -> TargetGroup:
        """The true prototypes of the clients and classes of another group, row by row."""
        chosen = {}
        for upload in of.uploads:
            emission = self._prototypes(upload.client, self.extractor_behind(upload.client))
            wanted = torch.cat([a.labels for a in upload.artifacts if isinstance(a, Prototypes)])
            chosen[upload.client] = (emission, rows_of(emission, wanted))
        return self._gather("prototypes", chosen, self.uploaded_kind() == "prototypes")

    def updates(
        self,
        count: int,
        per_update: int,
        *,
        max_images: int | None = None,
        fewest_first: bool = False,
    ) -> tuple[TargetGroup, int]:
        """Choose gradients or updates of up to `count` images in all; return images of each.

        The images that made an update are those of the recorded provenance, or all of the
        client's training samples where a whole round of training made it.

        Args:
            per_update: images sought in each, at most; no more than made the smallest.
            max_images: leave out those that more images made.
            fewest_first: those that the fewest images made, in place of a draw.

        Raises:
            IncompatibleError: the protocol uploads neither, or more images made each.
        """
        uploads = {
            k: replace(u, artifacts=tuple(a for a in u.artifacts if a.updates))
            for k, u in self.uploads.items()
        }
        uploads = {k: u for k, u in uploads.items() if u.artifacts}
        if not uploads:
            raise IncompatibleError(
                f"Protocol '{self.run.settings.protocol.name}' uploads no gradient or parameters.",
                next_step="Attack what it uploads (--target uploaded), or train fedsgd or fedavg.",
            )
        recorded: dict[int, Mixture] = {}
        batches = any(a.holds is Holds.GRADIENT for u in uploads.values() for a in u.artifacts)
        kept = batches or self.round in self.run.kept_rounds()
        for client, number in sorted(self.mixtures if kept else {}):
            recorded.setdefault(client, self.mixtures[client, number])
        made = {}
        for k in uploads:
            first, members = 0, []
            for member in self._members(k):
                batch = recorded.get(member)
                own = batch.sample if batch else torch.arange(len(self.train[member]))
                members.append(torch.unique(own) + first)
                first += len(self.train[member])
            made[k] = torch.cat(members)
        order = torch.randperm(len(made), generator=stream(self.seed, "targets update"))
        drawn = [sorted(made)[i] for i in order.tolist()]
        drawn = [k for k in drawn if max_images is None or len(made[k]) <= max_images]
        if not drawn:
            fewest = min(map(len, made.values()))
            raise IncompatibleError(
                f"No update of round {self.round} was made of at most {max_images} images; the "
                f"smallest was made of {fewest}.",
                next_step=f"Use --set eval.max_images={fewest} or more.",
            )
        if fewest_first:
            drawn.sort(key=lambda k: len(made[k]))
        images = min(per_update, count, *(len(made[k]) for k in drawn))
        wanted = sorted(drawn[: max(1, count // images)])
        parts = []
        for k in wanted:
            samples = made[k].repeat(images)
            rows = torch.arange(images).repeat_interleave(len(made[k]))
            weight = torch.full((len(samples),), 1 / len(made[k]))
            labels = torch.full((images,), -1)
            parts.append((k, Mixture(rows, samples, weight, images), labels))
        truth = self._truth(parts)
        return TargetGroup("update", False, tuple(uploads[k] for k in wanted), truth), images

    def _members(self, client: int) -> tuple[int, ...]:
        """The clients behind an upload: one, or all whose sum it is."""
        upload = self.uploads.get(client)
        return (upload.participants if upload else ()) or (client,)

    def _gather(
        self, kind: str, chosen: dict[int, tuple[Emission, Tensor]], real: bool
    ) -> TargetGroup:
        uploads: list[Upload] = []
        parts: list[tuple[int, Mixture, Tensor]] = []
        for k, (emission, rows) in chosen.items():
            if emission.mixture is None:
                raise MissingInputError(
                    f"The run has no provenance for client {k}'s {kind} in round {self.round}."
                )
            taken = emission.artifact.take(rows)
            uploads.append(Upload(k, self.round, (taken,), counterfactual=not real))
            parts.append((k, emission.mixture.select(rows), self._labels(taken)))
        return TargetGroup(kind, not real, tuple(uploads), self._truth(parts))

    def _prototypes(self, client: int, extractor: nn.Module | None = None) -> Emission:
        own = self.train[client]
        reps, labels = self._represent(client, own, extractor)
        return class_means(reps, labels, self.data.num_classes)

    def _recovered_rows(self, client: int, recovered: Recovered) -> Emission:
        """What was recovered of a client, with the provenance of what it stands for."""
        extractor = self.extractor_behind(client)
        if isinstance(recovered, RecoveredPrototypes):
            true = self._prototypes(client, extractor)
            return prototype_rows(recovered, true, client, self.round)
        reps, labels = self._represent(client, self.train[client], extractor)
        return single_rows(recovered, reps, labels, client, self.round)

    def _emission(
        self,
        client: int,
        kind: str,
        real: bool,
        count: int,
        recovered: Recovered | None,
        behind: bool,
    ) -> Emission | None:
        """All targets that a client offers; None if its scheme refused to upload."""
        if recovered is not None:
            return self._recovered_rows(client, recovered)
        if real:
            for number, artifact in enumerate(self.uploads[client].artifacts):
                if artifact.kind == kind:
                    return Emission(artifact, self.mixtures.get((client, number)))
            return None
        own = self.train[client]
        through = self._as_sent(client, self.extractor_behind(client) if behind else None)
        if kind == "representations":
            order = torch.randperm(len(own), generator=stream(self.seed, "targets", client=client))
            picked = order[: min(count, len(own))]
            reps, labels = self._represent(client, own[picked], through)
            index = torch.arange(len(picked))
            mixture = Mixture(index, picked, torch.ones(len(picked)), num_rows=len(picked))
            return Emission(Representations(reps, labels), mixture)
        if kind == "prototypes":
            return self._prototypes(client, through)
        reps, labels = self._represent(client, own, through)
        scheme = self.run.settings.protocol.scheme() or schemes.get("rap")()
        training = self.run.settings.train
        draw = Draw(
            labels=labels,
            num_classes=self.data.num_classes,
            dim=reps.shape[1],
            seed=training.seed,
            secret=client_secret(self._samples(own).fingerprint(), training.hidden, client),
            client=client,
            round=self.round,
        )
        return scheme(reps, draw)

    def _as_sent(self, client: int, extractor: nn.Module | None) -> nn.Module:
        """An extractor (the client's own if None) that draws what learnt defences would draw."""
        extractor = extractor or self.run.extractor(client, self.round)
        if not isinstance(extractor, RandomModule):
            return extractor
        rng = stream(self.seed, "targets drawn", client=client, round=self.round)
        return Drawing(extractor, rng)

    def _samples(self, index: Tensor) -> Samples:
        return Samples(self.data.images, self.data.labels[index], index)

    def _represent(
        self, client: int, index: Tensor, extractor: nn.Module | None = None
    ) -> tuple[Tensor, Tensor]:
        """Representations (n, d) and labels (n,), through the client's own extractor if none."""
        samples = self._samples(index)
        extractor = extractor or self.run.extractor(client, self.round)
        return represent(extractor, samples), samples.labels

    def _choose(
        self,
        sizes: dict[int, Tensor],
        count: int,
        kind: str,
        max_images: int | None,
        fewest_first: bool,
    ) -> dict[int, Tensor]:
        """Deal targets out to clients in turn, random within a client.

        The draw is over all rows, so that a limit leaves the order of the rest as it was.
        """
        dealt: list[tuple[int, int, int]] = []
        for k, images in sizes.items():
            rng = stream(self.seed, f"targets {kind}", client=k)
            drawn = torch.randperm(len(images), generator=rng)
            if max_images is not None:
                drawn = drawn[images[drawn] <= max_images]
            dealt += [(turn, k, row) for turn, row in enumerate(drawn.tolist())]
        place = {k: i for i, k in enumerate(sizes)}
        dealt.sort(key=lambda one: (one[0], place[one[1]]))
        if fewest_first:
            dealt.sort(key=lambda one: int(sizes[one[1]][one[2]]))
        taken: dict[int, list[int]] = {k: [] for k in sizes}
        for _, k, row in dealt[:count]:
            taken[k].append(row)
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
            index = torch.cat([self.train[k] for k in self._members(client)])[used]
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


def _images_in(mixture: Mixture) -> Tensor:
    """How many images each row of an upload was made of, (rows,) int64."""
    return torch.bincount(mixture.row, minlength=mixture.num_rows)
