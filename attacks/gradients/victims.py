"""From an observation to the uploads to be explained: one gradient, or one update, per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.common.frozen_modules import frozen_copy
from fedre_privacy.core.artifact_schema import Holds
from fedre_privacy.core.channels import LearntChange
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import ChangedModel, LocalTrainingFacts, Observation
from fedre_privacy.models.probe import logit_layer

STATISTICS = ("eval", "batch")
"""By which BatchNorm can have normalised: running statistics, or those of the batch."""
BN_MODES = ("auto", *STATISTICS, "either")


@dataclass(frozen=True, eq=False)
class Victim:
    """One upload and the model it started from.

    Args:
        client, round: who sent it, and when.
        model: the whole model at the start of the round, images in [0, 1] to logits.
        upload: by parameter name; a gradient, or parameters before minus after local training,
            which points the same way. Parameters that were not sent are absent: they stayed as
            they were, and are not compared.
        local: whether it is an update by local training and not one gradient.
        unmoved: whether the upload holds the running statistics of BatchNorm and they are those
            of before, so that the client did not normalise by its batches; None: it holds none.
        statistics: by which BatchNorm is taken to have normalised, "eval" or "batch".
        dropout: how dropout is simulated, "off" or "masks".
    """

    client: int
    round: int
    model: nn.Module
    upload: Mapping[str, Tensor]
    local: bool
    unmoved: bool | None = None
    statistics: str = "batch"
    dropout: str = "off"

    def sent(self, *names: str) -> list[Tensor]:
        """What was uploaded of some parameters.

        Raises:
            IncompatibleError: one of them was not.
        """
        absent = [name for name in names if name not in self.upload]
        if absent:
            raise IncompatibleError(
                f"The upload of client {self.client} in round {self.round} holds nothing of "
                f"{' and '.join(absent)}, which this attack reads.",
                next_step="Use an attack that compares what was sent: inverting-gradients, dlg or "
                "update-inversion.",
            )
        return [self.upload[name] for name in names]

    def finite(self) -> bool:
        """Whether the upload holds no NaN and no infinity."""
        return all(bool(value.isfinite().all()) for value in self.upload.values())


def victims_of(observation: Observation) -> list[Victim]:
    """Pair every target with the model that its client started the round from.

    Raises:
        IncompatibleError: a target without a model, a model with other parameters, or an
            observation that does not say how many images are sought; all problems at once.
    """
    problems: list[str] = []
    found: list[Victim] = []
    channel = observation.channel
    masked = any(isinstance(step, LearntChange) for step in channel.extractor)
    zeros_are_told = masked and not channel.updates
    if observation.images_per_target < 1:
        problems.append(
            "The observation seeks 0 images per target; attacks on gradients and updates need at "
            "least 1 (the batch size)."
        )
    for upload in observation.targets:
        who = f"client {upload.client} in round {upload.round}"
        model = observation.models.get((upload.client, upload.round))
        if model is None:
            problems.append(
                f"No model of {who} was given; this attack needs the parameters from which the "
                "client started. Attack a protocol that sends whole models, and keep its "
                "broadcasts."
            )
            continue
        own = dict(model.named_parameters())
        shapes = {name: value.shape for name, value in own.items()}
        for artifact in upload.artifacts:
            if artifact.holds is None:
                continue
            params = artifact.parameters(shapes)
            extra = params.keys() - own.keys() - dict(model.named_buffers()).keys()
            names = sorted(extra if own.keys() & params.keys() else own.keys() | extra)
            names += sorted(
                name for name in own.keys() & params.keys() if own[name].shape != params[name].shape
            )
            if names:
                listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                problems.append(
                    f"The upload of {who} and its model disagree on {len(names)} parameters "
                    f"({listed}). Is it another architecture or number of classes?"
                )
                continue
            local = artifact.holds != Holds.GRADIENT
            if artifact.holds == Holds.CHANGE:
                params = parameters_after(params, own)
            sent = {
                name: own[name].detach() - params[name] if local else params[name]
                for name in own
                if name in params
            }
            unmoved = (
                _batch_statistics_unchanged(model, params)
                if artifact.holds == Holds.PARAMETERS
                else None
            )
            if isinstance(model, ChangedModel) and zeros_are_told:
                model = model.told_by(sent, 0 if local else observation.images_per_target)
            found.append(Victim(upload.client, upload.round, model, sent, local, unmoved))
    if problems:
        raise IncompatibleError(*dict.fromkeys(problems))
    return found


def _batch_statistics_unchanged(model: nn.Module, sent: Mapping[str, Tensor]) -> bool | None:
    """Whether uploaded running means and variances are those of a model; None: there are none."""
    before = dict(model.named_buffers())
    told = [n for n in before if n.endswith((".running_mean", ".running_var")) and n in sent]
    return all(torch.equal(sent[n].to(before[n]), before[n]) for n in told) if told else None


def by_statistics(victims: Sequence[Victim], bn: str) -> list[Victim]:
    """Victims that say by which statistics BatchNorm normalised.

    Args:
        bn: "eval" or "batch" for all; else as each upload tells, and "batch" where it does not.
    """
    usual = "batch" if bn in ("auto", "either") else bn
    told = {True: "eval", False: "batch", None: usual}
    return [replace(v, statistics=told[v.unmoved] if usual != bn else bn) for v in victims]


def parameters_after(change: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters after local training, from their change and those before it."""
    return {name: own[name].detach() + value for name, value in change.items() if name in own}


def steps_per_epoch(training: LocalTrainingFacts, client: int) -> int:
    """Local steps of one epoch: the last short batch is dropped, unless it is the only one."""
    return max(1, training.sizes[client] // training.batch_size)


def local_steps(training: LocalTrainingFacts, client: int) -> int:
    """Local steps of one round."""
    return training.epochs * steps_per_epoch(training, client)


def mean_gradient(victim: Victim, training: LocalTrainingFacts | None) -> dict[str, Tensor]:
    """The gradient that the upload stands for: itself, or the update over lr times steps.

    Raises:
        IncompatibleError: an update, and nothing is known of the client's training.
    """
    if not victim.local:
        return dict(victim.upload)
    if training is None:
        raise IncompatibleError(
            "An update tells label counts only to somebody who knows step size and steps "
            "(TRAINING), which this threat model does not grant.",
            next_step="Use labels=rowmin or labels=idlg, or a threat model that grants TRAINING.",
        )
    scale = training.lr * local_steps(training, victim.client)
    return {name: value / scale for name, value in victim.upload.items()}


def head_names(
    model: nn.Module, num_classes: int, image_shape: tuple[int, int, int]
) -> tuple[str, str | None]:
    """Names of the weight (num_classes, d) and bias (num_classes,) of the layer of the logits.

    Raises:
        IncompatibleError: no parameter has such a shape, or what they belong to puts out no logits.
    """
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    weights = [name for name, s in shapes.items() if len(s) == 2 and s[0] == num_classes]
    if not weights:
        raise IncompatibleError(
            f"No linear layer of the model has {num_classes} outputs; labels are read off the "
            "gradient of the last one."
        )
    head = logit_layer(frozen_copy(model, torch.device("cpu")), image_shape, num_classes)
    if head is None:
        raise IncompatibleError(
            f"The logits of the model are not the output of a linear layer (tried: "
            f"{', '.join(weights)}); labels are read off the gradient of such a layer.",
            next_step="Give the classifier itself, without what follows its last linear layer.",
        )
    bias = head.removesuffix("weight") + "bias"
    return head, bias if shapes.get(bias) == (num_classes,) else None


def architecture_key(model: nn.Module) -> str:
    """A text that two models share if one can run with the parameters of the other."""
    shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    return f"{model!r}{shapes}"


def differentiable_copy(
    model: nn.Module, bn: str, device: torch.device, dtype: torch.dtype
) -> nn.Module:
    """A private copy to differentiate through, in evaluation mode.

    Args:
        bn: "eval" uses the model's running statistics, "batch" those of the batch itself, as a
            client in training mode does; dropout is off in both.
    """
    module = frozen_copy(model, device).to(dtype)
    if bn == "batch":
        for part in batch_norms(module).values():
            part.track_running_stats = False
            part.running_mean = part.running_var = None
    return module


def batch_norms(model: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """Batch-normalisation layers by name."""
    return {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm)
    }


def check_batch(
    model: nn.Module, bn: str, count: int, image_shape: tuple[int, int, int], num_classes: int
) -> None:
    """Refuse models that such a batch cannot pass, before any work starts.

    Raises:
        IncompatibleError: batch statistics of one value per channel, or another number of classes.
    """
    module = differentiable_copy(model, bn, torch.device("cpu"), torch.float32)
    try:
        with torch.no_grad():
            found = module(torch.full((count, *image_shape), 0.5)).shape
    except ValueError as error:
        raise IncompatibleError(
            f"The model cannot take a batch of {count} with batch statistics ({error}).",
            next_step="Use bn=eval, or attack larger batches.",
        ) from None
    if tuple(found) != (count, num_classes):
        raise IncompatibleError(
            f"The model returns {tuple(found)} for {count} images; logits {(count, num_classes)} "
            "are needed."
        )


def stack_parameters(tensors: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], bool]:
    """Join mappings of equal shapes row by row, or keep one of them if all are equal.

    Returns:
        Tensors by name, with a leading row dimension unless shared; and whether they are shared.
    """
    first = tensors[0]
    shared = all(
        other is first or all(torch.equal(other[name], value) for name, value in first.items())
        for other in tensors[1:]
    )
    if shared:
        return dict(first), True
    return {name: torch.stack([other[name] for other in tensors]) for name in first}, False
