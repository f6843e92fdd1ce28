"""From a recorded run to an observation: what the threat model lets through, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

import torch
from torch import nn

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import (
    Artifact,
    Broadcast,
    Candidates,
    Knowledge,
    LocalTraining,
    ModelState,
    Observation,
    ThreatModel,
    Upload,
)
from fedre_privacy.eval import PublicImages
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.models.families import build_model
from fedre_privacy.models.split import load_parameters

from .runs import Run
from .targets import TargetSource

HELD_AT_ONCE = 32
"""Extractors kept in memory; others are read from the run again when asked for."""


def effective(threat: ThreatModel, uploads: Collection[type[Artifact]]) -> ThreatModel:
    """Add what the protocol itself hands over: who uploads whole models gives away extractors."""
    if not any(issubclass(kind, ModelState) for kind in uploads):
        return threat
    given = {Knowledge.EXTRACTOR, Knowledge.HEAD}
    if threat.rounds == "all":
        given.add(Knowledge.ALL_EXTRACTORS)
    return dataclasses.replace(threat, grants=threat.grants | given)


class KeptExtractors(Mapping[tuple[int, int], nn.Module]):
    """Extractors of a run by (client, round), read from disk when they are asked for."""

    def __init__(self, run: Run, clients: Collection[int], rounds: Collection[int]) -> None:
        self._keys = [(client, round) for round in rounds for client in clients]

        @lru_cache(maxsize=HELD_AT_ONCE)
        def load(client: int, round: int) -> nn.Module:
            return run.model(client, round).extractor

        self._load = load

    def __getitem__(self, key: tuple[int, int]) -> nn.Module:
        if key not in self._keys:
            raise KeyError(key)
        return self._load(*key)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def observe(
    run: Run,
    threat: ThreatModel,
    round: int,
    targets: Collection[Upload],
    aux: PublicImages,
    *,
    candidates: Candidates | None = None,
    images_per_target: int = 0,
) -> Observation:
    """Build the observation of an attack on some uploads of one round.

    Args:
        aux: held-out images, passed on if the threat model grants auxiliary data.
        candidates: samples whose membership is asked.
        images_per_target: images sought in each upload that carries no rows.

    Raises:
        MissingInputError: the extractors of the round were not kept.
    """
    threat = effective(threat, run.settings.protocol.uploads)
    observed = [0, round] if threat.rounds == "last" else None
    uploads, broadcasts = read_messages(run.folder / "uploads", observed)
    broadcasts = [b for b in broadcasts if b.round <= round]
    clients = sorted({upload.client for upload in targets})
    extractors: Mapping[tuple[int, int], nn.Module] = {}
    if Knowledge.EXTRACTOR in threat.grants and clients:
        run.model(clients[0], round)  # refuses a round that was not kept, naming the nearest
        past = Knowledge.ALL_EXTRACTORS in threat.grants
        rounds = [r for r in run.kept_rounds() if r == round or (past and r < round)]
        extractors = KeptExtractors(run, clients, rounds)
    aux_granted = Knowledge.AUX_DATA in threat.grants
    return Observation(
        threat=threat,
        targets=tuple(targets),
        uploads=tuple(u for u in uploads if u.round <= round),
        broadcasts=tuple(broadcasts) if Knowledge.HEAD in threat.grants else (),
        extractors=extractors,
        image_shape=run.image_shape,
        num_classes=len(run.record["classes"]),
        aux=aux.images if aux_granted else None,
        aux_labels=aux.labels if aux_granted else None,
        training=_training(run) if Knowledge.TRAINING in threat.grants else None,
        candidates=candidates,
        models=_models(run, clients, round, broadcasts) if Knowledge.HEAD in threat.grants else {},
        images_per_target=images_per_target,
    )


def _training(run: Run) -> LocalTraining:
    training = run.settings.train
    sizes = {k: sum(counts) for k, counts in enumerate(run.record["class_counts"])}
    return LocalTraining(training.lr, training.epochs, training.batch_size, sizes)


def _models(
    run: Run, clients: Collection[int], round: int, broadcasts: Collection[Broadcast]
) -> dict[tuple[int, int], nn.Module]:
    """Whole models as clients started the round, where a broadcast holds all parameters."""
    found: dict[tuple[int, int], nn.Module] = {}
    for broadcast in broadcasts:
        states = [a for a in broadcast.artifacts if isinstance(a, ModelState)]
        if broadcast.round != round or not states:
            continue
        for client in set(broadcast.recipients) & set(clients):
            num_classes = len(run.record["classes"])
            model = build_model(run.settings.model, client, run.image_shape, num_classes)
            load_parameters(model, states[0].params)
            found[client, round] = model.eval().requires_grad_(False)
    return found


def held_out(source: TargetSource, limit: int, seed: int) -> tuple[PublicImages, PublicImages]:
    """Images that no client trained on, in two halves: for floors, and for the attacker.

    Raises:
        IncompatibleError: the clients' test parts hold fewer than two images.
    """
    pool = torch.cat(source.test)
    if len(pool) < 2:
        raise IncompatibleError(
            "No held-out images are left for the floors: the clients' test parts are empty.",
            next_step="Lower train.train_ratio, or use more images.",
        )
    order = pool[torch.randperm(len(pool), generator=stream(seed, "held out"))]
    half = len(order) // 2
    parts = (order[:half][:limit], order[half:][:limit])
    made = [PublicImages(source.data.floats(p), source.data.labels[p]) for p in parts]
    return made[0], made[1]
