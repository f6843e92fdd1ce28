"""Which properties do each client's images have, beyond any single one of them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.attacks.common.upload_features import class_counts_of, classes_of
from fedre_privacy.core.channels import Channel
from fedre_privacy.core.outcomes import PropertyScores
from fedre_privacy.core.types import Property
from fedre_privacy.core.units import plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Card, PublicImages
from fedre_privacy.eval.property_scores import evaluate_properties
from fedre_privacy.experiments.observation import held_out, observe
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings

from .base import Question, Trial, only_kinds, questions

LARGE = 0.3
"""Share above which a class is a large one."""
MOST = 0.5
"""Share above which a client's images are mostly dark."""
CLASSES, IMAGES = "classes", "images"
"""Kinds of properties."""
NAMED, WEIGHED = "classes named", "labels as weighed"
"""Rules that read no more than labels: each class that is named once, or as often as it is sent."""


@dataclass(frozen=True, eq=False)
class PropertyTrial(Trial):
    """Uploads of all clients of the round, and what only the evaluator knows of their images.

    Shape: clients (K,) int64; shares (K, P) of each client's images that count; told, by rule,
    (K, P) the shares that labels in uploads make one expect.
    """

    clients: Tensor
    shares: Tensor
    told: Mapping[str, Tensor]

    def unknown(self) -> str:
        named = plural(self.shares.shape[1], "property")
        return f"{named} of the images of {plural(len(self.clients), 'client')}"


@questions.register("property")
class PropertyQuestion(Question):
    """Tell whether a class is a large share of a client's images, and whether most are dark."""

    when_to_use = "does something hold for much of a client's data?"
    is_target = True
    from_recording = True

    def outcome(self) -> type[PropertyScores]:
        return PropertyScores

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> PropertyTrial:
        source = TargetSource.asked(run, data, settings)
        public, aux = held_out(source, settings.evaluation.public)
        properties = properties_of(public, data.classes)
        targets = only_kinds(source.uploads.values(), set(settings.attack.consumes))
        observation = observe(source, settings, targets, aux, properties=properties)
        clients = sorted(upload.client for upload in targets)
        return PropertyTrial.of(
            source,
            settings,
            observation,
            "properties",
            clients=torch.tensor(clients),
            shares=_shares(source, properties, clients),
            told=_expected_shares(source, properties, public, clients, observation.channel),
        )

    def score(self, trial: PropertyTrial, outcome: PropertyScores) -> Card:
        asked = trial.observation.properties
        found = torch.full(trial.shares.shape, torch.nan, dtype=torch.float64)
        place = {client: row for row, client in enumerate(trial.clients.tolist())}
        found[[place[client] for client in outcome.clients.tolist()]] = outcome.scores.double()
        return evaluate_properties(
            found,
            trial.shares,
            torch.tensor([one.above for one in asked], dtype=torch.float64),
            trial.clients,
            names=[one.name for one in asked],
            kinds=[CLASSES if one.label >= 0 else IMAGES for one in asked],
            told=trial.told,
            notes=outcome.notes,
            seed=trial.settings.evaluation.seed,
        )


def properties_of(public: PublicImages, classes: Sequence[str]) -> tuple[Property, ...]:
    """What is asked: of each class whether it is a large share, and whether most images are dark.

    An image is dark if its mean pixel lies below the median of public images of its class, so that
    the classes of a client do not tell how many of its images are.
    """
    bright = public.images.double().flatten(1).mean(1)
    middle = [float(bright.median())] * len(classes)
    for label in public.labels.unique().tolist():
        middle[label] = float(bright[public.labels == label].median())
    large = [
        Property(f"over {100 * LARGE:g} % of class {name}", LARGE, label=label)
        for label, name in enumerate(classes)
    ]
    return (*large, Property("mostly dark images", MOST, darker=tuple(middle)))


def _shares(source: TargetSource, properties: Sequence[Property], clients: Sequence[int]) -> Tensor:
    """Of each client's training images the share (K, P) that counts."""
    found = []
    for client in clients:
        own = source.train[client]
        images, labels = source.data.floats(own), source.data.labels[own]
        found.append([float(one.counts(images, labels).double().mean()) for one in properties])
    return torch.tensor(found, dtype=torch.float64)


def _expected_shares(
    source: TargetSource,
    properties: Sequence[Property],
    public: PublicImages,
    clients: Sequence[int],
    channel: Channel,
) -> dict[str, Tensor]:
    """Shares (K, P) that a client's labels make one expect of public images, by what is read."""
    classes = source.data.num_classes
    rates = torch.zeros(classes, len(properties), dtype=torch.float64)
    for label in public.labels.unique().tolist():
        own = public.labels == label
        images, labels = public.images[own], public.labels[own]
        for column, one in enumerate(properties):
            rates[label, column] = one.counts(images, labels).double().mean()
    once = {u.client: u.artifacts for u in source.messages.of([0])[0]}
    named, weighed = [], []
    for client in clients:
        sent = [*source.uploads[client].artifacts, *once.get(client, ())]
        held = classes_of(sent, classes, channel).double()
        named.append(held if bool(held.any()) else torch.ones(classes, dtype=torch.float64))
        rows = [a.encodings(classes) for a in sent if a.rows() is not None]
        weights = [one.double().sum(0).clamp(min=0) for one in rows if one is not None]
        counts = class_counts_of(sent, classes, channel)
        if counts is None:
            counts = torch.stack(weights).sum(0) if weights else named[-1]
        weighed.append(counts)

    def expected(shares: Sequence[Tensor]) -> Tensor:
        rows = torch.stack(list(shares))
        return rows / rows.sum(1, keepdim=True).clamp(min=1e-12) @ rates

    return {NAMED: expected(named), WEIGHED: expected(weighed)}
