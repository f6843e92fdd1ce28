"""Clients' models as a run keeps them: what a client's upload was made by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedre_privacy.defenses.base import Defense, FederationFacts
from fedre_privacy.defenses.defended_modules import blank_extractor, defended_state, kept_modules
from fedre_privacy.defenses.local_pass import ModelShapes
from fedre_privacy.models.split import SplitModel
from fedre_privacy.protocols.blocks.state import Client, Setting

from .preparation import facts_of
from .record import Record
from .settings import TrainSettings


class RecordedRun(Protocol):
    """What is asked of a `Run`."""

    @property
    def settings(self) -> TrainSettings: ...

    @property
    def record(self) -> Record: ...

    @property
    def image_shape(self) -> tuple[int, int, int]: ...


OWN = "defense "
"""What names of tensors of own modules of defences begin with."""


def kept_state(client: Client, defenses: Sequence[Defense]) -> dict[str, Tensor]:
    """Tensors of a client's model, and of what its defences have learnt to change."""
    return client.model.state_dict() | kept_modules(defenses, client.memory)


def parts_of(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The model's tensors and those of own modules, apart."""
    own = {name: value for name, value in state.items() if name.startswith(OWN)}
    return {name: value for name, value in state.items() if name not in own}, own


def facts_of_run(run: RecordedRun) -> FederationFacts:
    """What was known of a run's federation before it started, from its record."""
    setting = Setting(
        training=run.settings.train,
        num_classes=len(run.record["classes"]),
        image_shape=run.image_shape,
        dims=(run.record["dim"],) * run.settings.train.clients,
        architectures=tuple(run.record["architectures"]),
        class_counts=tuple(map(tuple, run.record["class_counts"])),
        device=torch.device("cpu"),
        model=run.settings.model,
    )
    return facts_of(run.settings, setting)


def acting_defenses(run: RecordedRun) -> tuple[Defense, ...]:
    """A run's defences with the settings that follow from its federation filled in."""
    chosen = run.settings.defense
    return tuple(one.settled(facts_of_run(run)) for one in chosen) if chosen else ()


def defend_model(
    model: SplitModel,
    defenses: Sequence[Defense],
    own: Mapping[str, Tensor],
    image_shape: tuple[int, int, int],
) -> None:
    """Let a model's extractor make what learnt defences make of its representations.

    Raises:
        RuntimeError: the tensors are not those of the defences' modules.
    """
    shapes = ModelShapes(image_shape, model.dim, model.num_classes)
    made = blank_extractor(model.extractor, defenses, shapes)
    if made is not model.extractor:
        made.load_state_dict(defended_state(model.extractor.state_dict(), own))
        model.extractor = made  # type: ignore[assignment]
