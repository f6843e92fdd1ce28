"""What a server can compute with: the model before an upload, and the model that the upload makes.

Parameters are tensors by name. A gradient makes a model by one step of the learning rate, factors
of low rank are multiplied out, and a head joins the client's extractor, which must be granted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.common.client_messages import received_by
from fedre_privacy.attacks.common.frozen_modules import BATCH, frozen_copy, outputs
from fedre_privacy.core.artifact_schema import Holds
from fedre_privacy.core.artifacts import Artifact, HeadState, MatrixBlocks
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.models.norm import running_norms, take_statistics

from .matrix_heads import blocks_before, linear_parts, turned_weight
from .victims import parameters_after

STEP = 0.01
"""Length of a gradient step where the learning rate is not known; only its sign matters much."""


@dataclass(frozen=True, eq=False)
class SentModels:
    """Two models, images in [0, 1] to logits, in eval mode.

    Args:
        before: with what the client received in the round.
        after: with what it uploaded.
        settled: whether statistics of BatchNorm were sent, granted, or are not needed.
    """

    before: nn.Module
    after: nn.Module
    settled: bool


def exchanges(observation: Observation) -> dict[int, SentModels]:
    """The models of every target, by client, clients ascending.

    Raises:
        IncompatibleError: a model that was not given, or parameters that do not fit it.
    """
    found: dict[int, SentModels] = {}
    for upload in sorted(observation.targets, key=lambda one: one.client):
        for artifact in upload.artifacts:
            if isinstance(artifact, HeadState):
                found[upload.client] = _head(observation, upload, artifact)
            elif isinstance(artifact, MatrixBlocks):
                found[upload.client] = _matrix(observation, upload, artifact)
            elif artifact.holds == Holds.GRADIENT:
                found[upload.client] = _gradient(observation, upload, artifact)
            elif artifact.holds is not None:
                found[upload.client] = _model(observation, upload, artifact)
    return found


def latest(observation: Observation, rounds: int) -> Iterator[dict[int, SentModels]]:
    """The models of the attacked round, then of those before it, as far as they were observed.

    Models of earlier rounds are made of the server's own broadcasts; a round is left out for a
    client that took no part in it, or whose model cannot be made again.
    """
    yield exchanges(observation)
    attacked = {upload.client: upload for upload in observation.targets}
    kinds = {type(a) for upload in observation.targets for a in upload.artifacts}
    past = [
        upload
        for upload in observation.uploads
        if upload.client in attacked and 0 < upload.round < attacked[upload.client].round
    ]
    for number in sorted({upload.round for upload in past}, reverse=True)[: rounds - 1]:
        models: dict[tuple[int, int], nn.Module] = {}
        targets = []
        for upload in (one for one in past if one.round == number):
            sent = tuple(a for a in upload.artifacts if type(a) in kinds)
            model = past_model(observation, upload.client, number)
            if model is not None:
                models[upload.client, number] = model
            granted = (upload.client, number) in observation.extractors
            if sent and (granted or model is not None):
                targets.append(replace(upload, artifacts=sent))
        if targets:
            yield exchanges(replace(observation, targets=tuple(targets), models=models))


def losses(
    model: nn.Module, images: Tensor, labels: Tensor, device: torch.device | None = None
) -> Tensor:
    """Cross-entropy of each image (n,), float64 on the CPU."""
    device = device or torch.device("cpu")
    logits = outputs(frozen_copy(model, device), images, device=device).double()
    return nn.functional.cross_entropy(logits, labels.long(), reduction="none")


def settle(exchange: SentModels, images: Tensor) -> SentModels:
    """Take statistics of BatchNorm that were not sent from images; a copy, unless they were."""
    if exchange.settled:
        return exchange
    made = []
    for model in (exchange.before, exchange.after):
        own = copy.deepcopy(model)
        take_statistics(own, images.split(BATCH))
        made.append(own)
    return SentModels(made[0], made[1], True)


# --- one reader per kind -------------------------------------------------------------------------


def _model(observation: Observation, upload: Upload, artifact: Artifact) -> SentModels:
    model = _parameters_given(observation, upload)
    own = {name: value.detach() for name, value in model.named_parameters()}
    sent = artifact.parameters({name: value.shape for name, value in own.items()})
    if artifact.holds == Holds.CHANGE:
        sent = parameters_after(sent, own)
    return _model_before_and_after(model, sent, upload.client, upload.round)


def _gradient(observation: Observation, upload: Upload, artifact: Artifact) -> SentModels:
    model = _parameters_given(observation, upload)
    step = observation.training.lr if observation.training else STEP
    own = dict(model.named_parameters())
    slopes = artifact.parameters({name: value.shape for name, value in own.items()})
    stepped = {
        name: value.detach() - step * slopes[name]
        for name, value in own.items()
        if name in slopes and slopes[name].shape == value.shape
    }
    return _model_before_and_after(model, stepped, upload.client, upload.round)


def past_model(observation: Observation, client: int, round: int) -> nn.Module | None:
    """The model that a client started an earlier round from, or None where that is not known.

    Broadcasts of changes are taken off the model of the attacked round, one after the other.
    """
    newest = max((r for k, r in observation.models if k == client), default=0)
    model = observation.models.get((client, newest))
    received = received_by(observation, client)
    if model is None or round not in received:
        return None
    shapes = {name: value.shape for name, value in model.named_parameters()}
    state = {name: value.detach() for name, value in model.named_parameters()}
    for number in sorted((r for r in received if round <= r <= newest), reverse=True):
        for artifact in received[number]:
            if isinstance(artifact, HeadState) or artifact.holds is None:
                continue
            sent = artifact.parameters(shapes)
            if artifact.holds == Holds.PARAMETERS:
                state = dict(sent)
            elif artifact.holds == Holds.CHANGE and number > round:
                state = {name: value - sent[name] for name, value in state.items()}
    return _model_before_and_after(model, state, client, round).after


def _head(observation: Observation, upload: Upload, artifact: HeadState) -> SentModels:
    who = f"client {upload.client} in round {upload.round}"
    extractor = observation.extractors.get((upload.client, upload.round))
    received = received_by(observation, upload.client).get(upload.round, ())
    heads = [one.params for one in received if isinstance(one, HeadState)]
    if extractor is None or not heads:
        absent = "extractor" if extractor is None else "broadcast head"
        raise IncompatibleError(
            f"No {absent} of {who} was given; a head alone computes no loss on images."
        )
    joined = [
        nn.Sequential(extractor, _linear(params)).eval() for params in (heads[0], artifact.params)
    ]
    return SentModels(joined[0], joined[1], True)


def _matrix(observation: Observation, upload: Upload, artifact: MatrixBlocks) -> SentModels:
    """The client's own model, which must be granted, behind the matrix as received and as sent."""
    extractor = observation.extractors.get((upload.client, upload.round))
    head = observation.heads.get((upload.client, upload.round))
    if extractor is None or head is None:
        raise IncompatibleError(
            f"No model of client {upload.client} in round {upload.round} was given; a matrix alone "
            "computes no loss on images.",
            next_step="Use --threat strong, and a round whose models were kept.",
        )
    weight, bias = linear_parts(head)
    made = []
    for blocks in (blocks_before(observation, upload, artifact).blocks, artifact.blocks):
        params = {"weight": turned_weight(weight, blocks), "bias": bias}
        made.append(nn.Sequential(extractor, _linear(params)).eval())
    return SentModels(made[0], made[1], True)


def _linear(params: Mapping[str, Tensor]) -> nn.Linear:
    classes, dim = params["weight"].shape
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, dim, classes)
    with torch.no_grad():
        layer.weight.copy_(params["weight"])
        layer.bias.copy_(params["bias"])
    layer.requires_grad_(False)
    return layer


def _parameters_given(observation: Observation, upload: Upload) -> nn.Module:
    model = observation.models.get((upload.client, upload.round))
    if model is None:
        raise IncompatibleError(
            f"No model of client {upload.client} in round {upload.round} was given; a loss needs "
            "the model that the parameters belong to.",
            next_step="Attack a protocol that sends whole models, and keep its broadcasts.",
        )
    return model


def _model_before_and_after(
    model: nn.Module, sent: Mapping[str, Tensor], client: int, round: int
) -> SentModels:
    """The model before, and a copy with what was sent."""
    after = copy.deepcopy(model)
    own = dict(after.named_parameters())
    odd = sorted(
        name for name, value in own.items() if name not in sent or sent[name].shape != value.shape
    )
    if odd:
        listed = ", ".join(odd[:5]) + (", ..." if len(odd) > 5 else "")
        raise IncompatibleError(
            f"The upload of client {client} in round {round} and its model disagree "
            f"on {len(odd)} parameters ({listed}). Is it another architecture or number of classes?"
        )
    places = own | dict(after.named_buffers())
    with torch.no_grad():
        for name, value in sent.items():
            if name in places:
                places[name].copy_(value)
    settled = not running_norms(model) or any(name.endswith("running_mean") for name in sent)
    return SentModels(copy.deepcopy(model).eval(), after.eval(), settled)
