"""The features of every sample, exactly, from the gradient of a softmax head or its change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedre_privacy.core.artifacts import Artifact, GradientState, HeadState, ModelState
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredRepresentations
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Knowledge, Observation, Upload

from .base import Attack, Context, attacks
from .gradients.head_features import (
    HeadFeatures,
    features_of_head_change,
    features_of_head_gradient,
)
from .gradients.head_uploads import head_cases
from .gradients.victims import head_names

Answer = tuple[tuple[int, int], HeadFeatures]
"""By client and round."""
FROZEN = frozenset({Knowledge.HEAD, Knowledge.TRAINING, Knowledge.FROZEN_EXTRACTOR})
"""What must be known where a head was trained for several steps."""


@attacks.register("head-features")
@dataclass(frozen=True, kw_only=True)
class HeadFeaturesAttack(Attack):
    """Take the gradient of a softmax head, or its change, apart into features of single samples.

    The gradient is a sum of residuals times features. Of fewer samples than classes its rows span
    the features, and the head, which is known, says which residual belongs to which features. A
    feature that one sample alone has leaves a column from which that sample follows by a linear
    system; elsewhere features are drawn that may be zero. A sample that is found is taken off, and
    the others are fewer. Only features with a certificate are answered: see `HeadFeatures`. Of as
    many samples as the head has classes nothing is answered.

    Local steps over features that nobody trains change a head by the same sum, so a head that was
    trained over a frozen extractor is read likewise, over any number of epochs and batches. All
    samples of the client must then be fewer than the classes. What the rounding of the head to
    float32 hides is not answered. The certificate is of the features: a label is certain only
    where all samples of a client are found.

    Shape:      one gradient with a head (C, d) and (C,), or this head before and after;
                vectors (N, d), not negative
    Needs:      UPLOADS, and the model that the protocol's own messages hold; no extractor. Of
                trained heads HEAD, TRAINING and FROZEN_EXTRACTOR
    Recovers:   representations of single images, with their labels
    Cost:       .1 s for 8 images of 10 classes, 1 s for 32 and 5 s for 64 of 200 (d = 512, one
                CPU core)
    Reference:  this package's own; sparse rows of a low-rank gradient: Dimitrov et al., SPEAR:
                Exact gradient inversion of batches in federated learning, NeurIPS 2024; removal of
                rank: Wedderburn, Lectures on matrices, 1934.
    """

    when_to_use = (
        "single features: of gradients of fewer samples than classes, of heads over frozen "
        "extractors"
    )
    consumes = (GradientState, HeadState, ModelState)
    needs = frozenset({Knowledge.UPLOADS})
    needs_for: ClassVar[Mapping[type[Artifact], frozenset[Knowledge]]] = {
        HeadState: FROZEN,
        ModelState: FROZEN,
    }
    recovers = "representations"
    answers = "representations"
    measured_on = ("gradients",)
    assumes = "representations are not negative and often zero (ReLU)"

    tries: int = knob(
        4096, help="draws of features that may be zero, for each sample, at most", ge=0
    )

    def run(self, observation: Observation, context: Context) -> RecoveredRepresentations:
        found, notes = self._of_gradients(observation, context)
        sent = {type(artifact) for upload in observation.targets for artifact in upload.artifacts}
        if sent & {HeadState, ModelState}:
            found += self._of_training(observation, context, notes)
        if not found:
            raise IncompatibleError(
                "No head can be read: " + "; ".join(notes or ["the targets hold none"]) + ".",
                next_step="Use inverting-gradients, or head for class means.",
            )
        sizes = torch.tensor([len(one.labels) for _, one in found])
        clients = torch.tensor([client for (client, _), _ in found])
        rounds = torch.tensor([round_ for (_, round_), _ in found])
        labels = torch.cat([one.labels for _, one in found])
        return RecoveredRepresentations(
            vectors=torch.cat([one.features for _, one in found]).float(),
            clients=clients.repeat_interleave(sizes),
            labels=labels,
            rounds=rounds.repeat_interleave(sizes),
            expected_error=torch.cat([one.expected_error for _, one in found]).float(),
            certified=torch.ones(len(labels), dtype=torch.bool),
            notes=tuple(notes),
        )

    def _of_gradients(
        self, observation: Observation, context: Context
    ) -> tuple[list[Answer], list[str]]:
        """What gradients hold by client and round, and a sentence on each of them."""
        found: list[Answer] = []
        notes: list[str] = []
        for upload in observation.targets:
            who = f"client {upload.client}, round {upload.round}"
            for artifact in upload.artifacts:
                if not isinstance(artifact, GradientState):
                    continue
                one = self._features(observation, upload, artifact, context)
                if isinstance(one, str):
                    notes.append(f"{who}: {one}")
                    continue
                found.append(((upload.client, upload.round), one))
                classes = observation.num_classes
                notes.append(
                    f"{who}: {len(one.labels)} samples certain of a gradient of rank {one.rank}, "
                    f"{100 * one.left:.2g} % of it left"
                    if one.rank < classes - 1 or len(one.labels)
                    else f"{who}: rank {one.rank} of a head of {classes} classes leaves the number "
                    "of samples open, and their features with it"
                )
        return found, notes

    def _of_training(
        self, observation: Observation, context: Context, notes: list[str]
    ) -> list[Answer]:
        """What heads that were trained over frozen extractors hold; adds sentences."""
        cases, untold = head_cases(observation)
        notes += untold
        found: list[Answer] = []
        for case in cases:
            if not case.trained:
                continue
            rng = stream(context.seed, "head features", client=case.client, round=case.round)
            one = features_of_head_change(
                (case.weight, case.bias),
                case.after,
                rng,
                tries=self.tries,
                lr=case.lr,
                steps=case.steps,
                count=case.size,
            )
            found.append(((case.client, case.round), one))
            who = f"client {case.client}, round {case.round}"
            notes.append(
                f"{who}: {len(one.labels)} of {case.size} samples certain, {case.steps} local steps"
                if one.rank == case.size
                else f"{who}: a change of rank {one.rank} by {case.size} samples leaves their "
                f"features open; a head of {observation.num_classes} classes tells fewer samples "
                "apart, and rounding hides those that hardly move it"
            )
        return found

    def _features(
        self, observation: Observation, upload: Upload, artifact: GradientState, context: Context
    ) -> HeadFeatures | str:
        """What one gradient holds, or why it cannot be read."""
        model = observation.models.get((upload.client, upload.round))
        if model is None:
            return "the model it was taken at was not given"
        own = dict(model.named_parameters())
        weight, bias = head_names(model, observation.num_classes, observation.image_shape)
        if bias is None:
            return "its head has no bias, whose gradient tells samples' shares"
        sent = artifact.parameters({name: value.shape for name, value in own.items()})
        if weight not in sent or bias not in sent:
            return "the head's gradient was not sent"
        if not bool(sent[weight].isfinite().all() and sent[bias].isfinite().all()):
            return "the gradient is not finite"
        rng = stream(context.seed, "head features", client=upload.client, round=upload.round)
        training = observation.training
        count = None
        if training is not None:
            count = min(training.batch_size, training.sizes[upload.client])
        return features_of_head_gradient(
            sent[weight], sent[bias], own[weight], own[bias], rng, tries=self.tries, count=count
        )
