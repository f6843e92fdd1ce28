"""The features of every sample of a batch, exactly, from the gradient of a softmax head."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import GradientState
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredRepresentations
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Knowledge, Observation, Upload

from .base import Attack, Context, attacks
from .gradients.head_features import HeadFeatures, features_of_head_gradient
from .gradients.victims import head_names


@attacks.register("head-features")
@dataclass(frozen=True, kw_only=True)
class HeadFeaturesAttack(Attack):
    """Take the gradient of a softmax head apart into the features of single samples.

    The gradient is a sum of residuals times features. Of fewer samples than classes its rows span
    the features, and the head, which is known, says which residual belongs to which features. A
    feature that one sample alone has leaves a column from which that sample follows by a linear
    system; elsewhere features are drawn that may be zero. A sample that is found is taken off, and
    the others are fewer. Only features with a certificate are answered: see `HeadFeatures`. Of as
    many samples as the head has classes nothing is answered.

    Shape:      one gradient with a head (C, d) and (C,); vectors (N, d), not negative
    Needs:      UPLOADS, and the model that the protocol's own messages hold; no extractor
    Recovers:   representations of single images, with their labels
    Cost:       .1 s for 8 images of 10 classes, 1 s for 32 and 5 s for 64 of 200 (d = 512, one
                CPU core)
    Reference:  this package's own; sparse rows of a low-rank gradient: Dimitrov et al., SPEAR:
                Exact gradient inversion of batches in federated learning, NeurIPS 2024; removal of
                rank: Wedderburn, Lectures on matrices, 1934.
    """

    when_to_use = (
        "gradients of fewer samples than classes: each sample's features, before an attack on "
        "images"
    )
    consumes = (GradientState,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "representations"
    answers = "representations"
    measured_on = ("gradients",)
    assumes = "representations are not negative and often zero (ReLU)"

    tries: int = knob(
        4096, help="draws of features that may be zero, for each sample, at most", ge=0
    )

    def run(self, observation: Observation, context: Context) -> RecoveredRepresentations:
        found: list[tuple[Upload, HeadFeatures]] = []
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
                found.append((upload, one))
                classes = observation.num_classes
                notes.append(
                    f"{who}: {len(one.labels)} samples certain of a gradient of rank {one.rank}, "
                    f"{100 * one.left:.2g} % of it left"
                    if one.rank < classes - 1 or len(one.labels)
                    else f"{who}: rank {one.rank} of a head of {classes} classes leaves the number "
                    "of samples open, and their features with it"
                )
        if not found:
            raise IncompatibleError(
                "No head can be read: " + "; ".join(notes or ["the targets hold none"]) + ".",
                next_step="Use inverting-gradients, or head for class means.",
            )
        sizes = torch.tensor([len(one.labels) for _, one in found])
        clients = torch.tensor([upload.client for upload, _ in found])
        rounds = torch.tensor([upload.round for upload, _ in found])
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
