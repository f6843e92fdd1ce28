"""The heads that uploads tell of: before the round, and what the round moved them by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.attacks.common.client_messages import received_by
from fedre_privacy.core.artifact_schema import Holds
from fedre_privacy.core.artifacts import (
    GradientState,
    HeadState,
    LowRankChange,
    LowRankModel,
    MatrixBlocks,
    ModelState,
    SmallModelState,
)
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import LocalTrainingFacts, Observation, Upload

from .class_means import shares
from .matrix_heads import blocks_before, head_rows, linear_parts, turned_weight
from .model_pairs import past_model
from .reconstruction import training_of
from .victims import head_names, local_steps, parameters_after

Whole = ModelState | SmallModelState | LowRankModel | LowRankChange | GradientState
Carrier = HeadState | Whole | MatrixBlocks


LEAST_SHARE = 0.01
"""Share of samples below which a class counts as absent after several steps."""
MOST_REPLAYED = 5
"""Most local steps that are replayed; fewer, larger ones above."""


@dataclass(frozen=True, eq=False)
class HeadCase:
    """A head before and after a round.

    Args:
        change_weight, change_bias: before minus after, (C, d) and (C,).
        weight, bias: before.
        after: by which the client answers after the round, weight and bias.
        bias_sent: whether `change_bias` is known.
        error: of a change that was worked out of something else, as a share of it.
    """

    client: int
    round: int
    change_weight: Tensor
    change_bias: Tensor
    weight: Tensor
    bias: Tensor
    after: tuple[Tensor, Tensor]
    lr: float
    steps: int
    size: int
    trained: bool
    bias_sent: bool = True
    error: float = 0.0

    @property
    def finite(self) -> bool:
        return bool(self.change_weight.isfinite().all() and self.change_bias.isfinite().all())

    def outputs(self, reps: Tensor) -> Tensor:
        """Softmax of the head after the round (n, C), float64, for representations (n, d)."""
        weight, bias = (part.double().to(reps.device) for part in self.after)
        return torch.softmax(reps.double() @ weight.T + bias, 1)

    def shares(self, least: float = LEAST_SHARE, most: int = MOST_REPLAYED) -> Tensor:
        """Estimated share of each class (C,), zero where it counts as absent.

        Args:
            least: share below which a class counts as absent after several steps.
            most: most local steps that are replayed.
        """
        half_a_sample = 0.5 / self.size
        return shares(
            self.change_weight,
            self.change_bias,
            self.weight,
            self.bias,
            self.lr,
            self.steps,
            least=max(half_a_sample, least) if self.steps > 1 else half_a_sample,
            most=most,
        )

    def with_longer_change(self, factor: float) -> HeadCase:
        """The same with a longer change."""
        return replace(
            self,
            change_weight=factor * self.change_weight,
            change_bias=factor * self.change_bias,
        )


def head_cases(observation: Observation) -> tuple[list[HeadCase], list[str]]:
    """What there is to attack, and a sentence for each target that cannot be.

    Raises:
        IncompatibleError: nothing can be, or the local training is not known.
    """
    training = training_of(observation)
    cases: list[HeadCase] = []
    notes: list[str] = []
    for upload in observation.targets:
        for artifact in upload.artifacts:
            if not isinstance(artifact, Carrier):
                continue
            found = _case(observation, upload, artifact, training, notes)
            who = f"client {upload.client}, round {upload.round}"
            if found is None:
                notes.append(f"{who}: the head it started from was never broadcast")
            elif not found.finite:
                notes.append(f"{who}: the upload is not finite")
            else:
                cases.append(found)
    if not cases:
        raise IncompatibleError(
            "No head can be attacked: " + "; ".join(notes or ["the targets hold none"]) + ".",
            next_step="Attack a later round, or a protocol that broadcasts its head.",
        )
    return cases, notes


def earlier_cases(observation: Observation, case: HeadCase, rounds: int) -> list[HeadCase]:
    """The heads of the same client in the rounds just before, as far as they can be attacked.

    Args:
        rounds: how many rounds before that of `case`, at most.
    """
    training = training_of(observation)
    found = []
    for upload in observation.uploads:
        if upload.client != case.client or not 0 < case.round - upload.round <= rounds:
            continue
        for artifact in upload.artifacts:
            if not isinstance(artifact, Carrier):
                continue
            received = received_by(observation, upload.client).get(upload.round, ())
            if isinstance(artifact, MatrixBlocks) and (
                (upload.client, upload.round) not in observation.heads
                or not any(isinstance(one, MatrixBlocks) for one in received)
            ):
                continue
            one = _case(observation, upload, artifact, training, [])
            if one is not None and one.finite and one.trained:
                found.append(one)
    return found


def class_shares_of(observation: Observation, owner: tuple[int, int]) -> Tensor | None:
    """Class shares (C,) that a head which a client uploaded tells of, or None."""
    training = observation.training
    for upload in observation.uploads:
        if (upload.client, upload.round) != owner or training is None:
            continue
        for artifact in upload.artifacts:
            if isinstance(artifact, Carrier) and not isinstance(artifact, MatrixBlocks):
                case = _head_case(observation, upload, artifact, training)
                if case is not None and case.finite:
                    return case.shares().double()
    return None


def _case(
    observation: Observation,
    upload: Upload,
    artifact: Carrier,
    training: LocalTrainingFacts,
    notes: list[str],
) -> HeadCase | None:
    if isinstance(artifact, MatrixBlocks):
        return _matrix_case(observation, upload, artifact, training, notes)
    return _head_case(observation, upload, artifact, training)


def _head_case(
    observation: Observation,
    upload: Upload,
    artifact: HeadState | Whole,
    training: LocalTrainingFacts,
) -> HeadCase | None:
    before = _before(upload, observation, artifact)
    if before is None:
        return None
    (weight, bias), sent = before
    sent_weight, sent_bias = _head_of(sent, weight, bias)
    after, size = (sent_weight, sent_bias), training.sizes[upload.client]
    if isinstance(artifact, GradientState):  # an update by one step of size one
        lr, steps = 1.0, 1
        size = observation.images_per_target or size
    else:
        lr, steps = training.lr, local_steps(training, upload.client)
        sent_weight, sent_bias = weight - sent_weight, bias - sent_bias
    return HeadCase(
        client=upload.client,
        round=upload.round,
        change_weight=sent_weight,
        change_bias=sent_bias,
        weight=weight,
        bias=bias,
        after=after,
        lr=lr,
        steps=steps,
        size=size,
        trained=not isinstance(artifact, GradientState),
    )


def _matrix_case(
    observation: Observation,
    upload: Upload,
    artifact: MatrixBlocks,
    training: LocalTrainingFacts,
    notes: list[str],
) -> HeadCase:
    """What the matrix of a client moved by, as the rows of its head, whose bias is not known."""
    head = observation.heads.get((upload.client, upload.round))
    earlier = observation.heads.get((upload.client, upload.round - 1))
    if head is None:
        raise IncompatibleError(
            f"The head of client {upload.client} in round {upload.round} was not given.",
            next_step="Use --threat strong, and a round whose models were kept.",
        )
    before = blocks_before(observation, upload, artifact).blocks
    own, bias = linear_parts(head)
    weight = own if earlier is None else (own + linear_parts(earlier)[0]) / 2
    if before.shape[1] < len(weight):
        raise IncompatibleError(
            f"Blocks of {before.shape[1]} columns do not tell the outputs of {len(weight)} classes "
            "apart; 'head' needs as many columns as classes.",
            next_step="Ask for the classes alone: --attack matrix.",
        )
    rows, left = head_rows(before - artifact.blocks, weight)
    steps = local_steps(training, upload.client)
    notes.append(
        f"client {upload.client}, round {upload.round}: {steps} local steps, {100 * left:.0f} % of "
        "the matrix's change is outside the head's rows"
    )
    return HeadCase(
        client=upload.client,
        round=upload.round,
        change_weight=rows.to(weight),
        change_bias=weight.new_zeros(len(weight)),
        weight=weight,
        bias=weight.new_zeros(len(weight)),
        after=(turned_weight(own, artifact.blocks), bias),
        lr=training.lr,
        steps=steps,
        size=training.sizes[upload.client],
        trained=True,
        bias_sent=False,
        error=left,
    )


def _before(
    upload: Upload, observation: Observation, artifact: HeadState | Whole
) -> tuple[tuple[Tensor, Tensor], Mapping[str, Tensor]] | None:
    """The head from which the client started, (C, d) and (C,), and all that it sent by name.

    None if that head was never sent. Models of other rounds are not given; what was sent in them
    is, and it has the same names.
    """
    model = observation.models.get((upload.client, upload.round))
    if model is None and isinstance(artifact, HeadState):
        received = received_by(observation, upload.client).get(upload.round, ())
        heads = [one.params for one in received if isinstance(one, HeadState)]
        return ((heads[0]["weight"], heads[0]["bias"]), artifact.params) if heads else None
    if model is None:
        model = past_model(observation, upload.client, upload.round)
    if model is None:
        return None
    own = {name: value.detach() for name, value in model.named_parameters()}
    weight, bias = head_names(model, observation.num_classes, observation.image_shape)
    if bias is None:
        return None
    sent = artifact.parameters({name: value.shape for name, value in own.items()})
    if artifact.holds == Holds.CHANGE:
        sent = parameters_after(sent, own)
    return (own[weight], own[bias]), sent


def _head_of(params: Mapping[str, Tensor], weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of the head among uploaded parameters: the last of fitting shapes."""
    weights = [value for value in params.values() if value.shape == weight.shape]
    biases = [value for value in params.values() if value.shape == bias.shape]
    if not weights or not biases:
        raise IncompatibleError(
            f"The upload holds no head of shape {tuple(weight.shape)} with bias "
            f"{tuple(bias.shape)}, which is the head before it."
        )
    return weights[-1], biases[-1]
