"""Local training repeated on images of somebody else, out of settings and broadcasts alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.config import build, build_plugin, modules_of
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.core.types import Broadcast
from fedre_privacy.defenses.base import Defense, defenses_of
from fedre_privacy.defenses.defended_modules import defended_extractor
from fedre_privacy.models.families import (
    ModelSettings,
    architecture_of,
    build_model,
    members_of,
    representation_dim,
)
from fedre_privacy.models.split import SplitModel
from fedre_privacy.models.zoo import architectures
from fedre_privacy.protocols.base import Protocol, protocols
from fedre_privacy.protocols.blocks.state import Client, Samples, Setting, Task, Training

from .steps import client_step, on_device, start_defenses


@dataclass(frozen=True, eq=False)
class ShadowTraining:
    """How clients of a federation train, as plain values and the recorded broadcasts.

    Nothing in it is private: no image, no class count, and no seed of the training.

    Args:
        protocol, model, training: settings, as in ``config.yaml``; those of the training without
            its seed.
        defense: settings of each declared defence, derived ones filled in.
        image_shape: (C, H, W). num_classes: length of the heads' output.
    """

    protocol: Mapping[str, Any]
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    defense: tuple[Mapping[str, Any], ...]
    image_shape: tuple[int, int, int]
    num_classes: int
    broadcasts: tuple[Broadcast, ...]

    def plain(self) -> dict[str, Any]:
        """JSON-ready settings; broadcasts are left out."""
        names = [item.name for item in fields(self) if item.name != "broadcasts"]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_plain(
        cls, values: Mapping[str, Any], broadcasts: tuple[Broadcast, ...]
    ) -> ShadowTraining:
        """Undo `plain`."""
        own = {**values, "defense": tuple(values["defense"])}
        own["image_shape"] = tuple(values["image_shape"])
        return cls(**own, broadcasts=broadcasts)

    def modules(self) -> set[str]:
        """Names of the Python modules that it needs."""
        kinds = {__name__} | {architectures.get(n).__module__ for n in members_of(self._model.name)}
        return kinds.union(*map(modules_of, (self._protocol, *self._defenses)))

    def blank(self, client: int, seed: int) -> SplitModel:
        """Fresh random weights of a client's architecture."""
        with seeded_generators(seed, "blank model", client=client):
            return build_model(self._model, client, self.image_shape, self.num_classes)

    def __call__(
        self,
        client: int,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        rounds: Sequence[int],
        seed: int,
    ) -> dict[int, nn.Module]:
        """Train a copy of a model as a client would have trained it on these images.

        Args: see `core.types.Rehearsal`.

        Returns:
            Each of the rounds to the model after it, in evaluation mode, frozen; its extractor
            makes the changes of learnt defences.

        Raises:
            IncompatibleError: the model is no `SplitModel`, or there is no image.
            DivergedError: the loss is not finite.
        """
        return {
            round: _defended_model(actor, self._defenses)
            for round, actor, _ in self._train_shadow(client, model, images, labels, rounds, seed)
        }

    def uploads(self, *args: Any, **given: Any) -> dict[int, tuple[Artifact, ...]]:
        """Each of the rounds to what a client with these images would have uploaded in it.

        Args, raises: as a call, to which it is what the training was for.
        """
        return {round: sent for round, _, sent in self._train_shadow(*args, **given)}

    def _train_shadow(
        self,
        client: int,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        rounds: Sequence[int],
        seed: int,
    ) -> Iterator[tuple[int, Client, tuple[Artifact, ...]]]:
        """The client after each of the rounds, and what it sends then."""
        if not isinstance(model, SplitModel) or not len(labels):
            raise IncompatibleError(
                "A shadow model needs the model of a client and an image or more."
            )
        protocol, chosen = self._protocol, self._defenses
        device = next(model.parameters()).device
        pixels = (images * 255).round().to(torch.uint8).to(device)
        samples = Samples(pixels, labels.to(device))
        setting = self._federation_setting(seed, labels, device)
        trainable = copy.deepcopy(model).requires_grad_(True)
        actor = Client(client, trainable, samples, samples.take(torch.arange(0)))
        with seeded_generators(seed, "protocol state", client=client):
            protocol.start_client(actor, setting)
        start_defenses(actor, chosen, setting, seed)
        received = {b.round: b.artifacts for b in self.broadcasts if client in b.recipients}
        before = Task(setting, 0, client)
        with on_device(actor, setting), seeded_generators(seed, "setup", client=client):
            protocol.setup_upload(actor, before)
        if received.get(0):
            protocol.setup_receive(actor, received[0], before)
        for round in range(1, max(rounds) + 1):
            message, task = received.get(round, ()), Task(setting, round, client)
            with on_device(actor, setting):
                if message:
                    protocol.receive(actor, message, task)
                if round in rounds:
                    made, _ = client_step(protocol, actor, message, task, chosen)
            if round in rounds:
                yield round, actor, tuple(emission.artifact for emission in made)

    @property
    def _protocol(self) -> Protocol:
        protocol: Protocol = _build_part(build_plugin, protocols, self.protocol, "protocol")
        return protocol

    @property
    def _model(self) -> ModelSettings:
        model: ModelSettings = _build_part(build, ModelSettings, self.model, "model")
        return model

    @property
    def _defenses(self) -> tuple[Defense, ...]:
        return defenses_of(self.defense)

    def _federation_setting(self, seed: int, labels: Tensor, device: torch.device) -> Setting:
        """The federation as it looks from here: every client as large as the one that is copied."""
        training: Training = _build_part(build, Training, {**self.training, "seed": seed}, "train")
        counts = tuple(torch.bincount(labels.cpu(), minlength=self.num_classes).tolist())
        model, everyone = self._model, range(training.clients)
        return Setting(
            training=training,
            num_classes=self.num_classes,
            image_shape=self.image_shape,
            dims=(representation_dim(model, self.image_shape),) * training.clients,
            architectures=tuple(architecture_of(model.name, k) for k in everyone),
            class_counts=(counts,) * training.clients,
            device=device,
            model=model,
        )


def _defended_model(actor: Client, chosen: Sequence[Defense]) -> nn.Module:
    model = copy.deepcopy(actor.model)
    made = defended_extractor(model.extractor, chosen, copy.deepcopy(actor.memory))
    model.extractor = made  # type: ignore[assignment]
    return model.eval().requires_grad_(False)


def _build_part(make: Callable[..., Any], kind: Any, values: Any, at: str) -> Any:
    """What is built of plain settings.

    Raises:
        ConfigError: with every problem that they have.
    """
    problems: list[str] = []
    found = make(kind, values, at=at, problems=problems)
    if found is None:
        raise ConfigError(*problems)
    return found
