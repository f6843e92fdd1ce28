"""A client's model as an attacker holds it who knows of its learnt defences."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedre_privacy.core.types import RandomModule

from .base import Defense
from .learnt import Changes, Memory, begin_modules, changes_representations, memory_key, own_modules
from .local_pass import ModelShapes


class DefendedExtractor(nn.Module):
    """A client's extractor with what learnt defences make of its representations.

    Calling it draws nothing: it returns the change on average, or without its noise. `sample` is
    what one upload would have held, with random numbers of whoever asks. A change that gives no
    gradient at all, such as rounding, hides nothing from a search by gradients: backwards it is
    taken for the identity, and where it is near that, forwards too (Athalye et al., Obfuscated
    gradients give a false sense of security, ICML 2018).

    Args:
        extractor: images in [0, 1] (n, C, H, W) to representations (n, d).
        own: modules of the defences, by `memory_key`.
    """

    opaque: dict[int, bool] | None = None
    """Changes without a gradient, see `Changes`; None until a gradient is first asked for."""

    def __init__(
        self, extractor: nn.Module, defenses: Sequence[Defense], own: Mapping[str, nn.Module]
    ) -> None:
        super().__init__()
        self.extractor = extractor
        self.own = nn.ModuleDict({key: own[key] for key in sorted(own)})
        self.defenses = tuple(defenses)

    def forward(self, images: Tensor) -> Tensor:
        return self._passed(images, {})

    def sample(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Representations (n, d) with fresh draws."""
        return self._passed(images, dict.fromkeys(range(len(self.defenses)), generator))

    def unmasked(self) -> nn.Module | None:
        """The same without the changes that set coordinates to 0; None where there are none."""
        changing = [one for one in self.defenses if type(one).change is not Defense.change]
        first = next((n for n, one in enumerate(changing) if one.sets_zeros), len(changing))
        if first == len(changing) or not all(one.sets_zeros for one in changing[first:]):
            return None  # what comes after them could fill the zeros again
        made = copy.copy(self)
        made.opaque = None
        made.defenses = tuple(Defense() if one.sets_zeros else one for one in self.defenses)
        return made

    def _passed(self, images: Tensor, rngs: Mapping[int, torch.Generator]) -> Tensor:
        changes = Changes(self.defenses, dict(self.own.items()), rngs)
        images = changes.images(images, self.extractor)
        reps: Tensor = self.extractor(images)
        if torch.is_grad_enabled() and reps.requires_grad:
            if self.opaque is None:
                self.opaque = changes.without_gradient(
                    reps.detach(), images.detach(), self.extractor
                )
            changes = replace(changes, opaque=self.opaque)
        return changes.reps(reps, images, self.extractor)


class DefendedModel(nn.Module):
    """A client's model whose head is given what learnt defences make of representations.

    It draws nothing, as `DefendedExtractor` when it is called. Parameters of extractor and head
    have the names that they have without defences.

    Args:
        extractor: images in [0, 1] (n, C, H, W) to representations (n, d).
        head: representations to logits.
        own: modules of the defences, by `memory_key`.
    """

    opaque: Mapping[int, bool] = {}
    """Changes without a gradient, see `Changes`."""
    all_told = False
    """Whether coordinates that are not told to be 0 are not 0."""
    kept: Tensor

    def __init__(
        self,
        extractor: nn.Module,
        head: nn.Linear,
        defenses: Sequence[Defense],
        own: Mapping[str, nn.Module],
    ) -> None:
        super().__init__()
        self.extractor, self.head = extractor, head
        self.own = nn.ModuleDict({key: own[key] for key in sorted(own)})
        self.defenses = tuple(defenses)
        self.register_buffer("kept", torch.ones(head.in_features), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        changes = self._changes()
        images = changes.images(images, self.extractor)
        reps = self.extractor(images)
        changed = changes.reps(reps, images, self.extractor)
        if self.all_told:
            changed = torch.where(changed == 0, reps, changed)
        logits: Tensor = self.head(changed * self.kept)
        return logits

    def find_opaque(self, images: Tensor) -> None:
        """Look, on some images, which changes give no gradient; before gradients are asked for."""
        with torch.no_grad():
            reps = self.extractor(images)
        with torch.enable_grad():
            self.opaque = self._changes().without_gradient(reps, images, self.extractor)

    def told_by(self, gradient: Mapping[str, Tensor], images: int) -> DefendedModel:
        """A copy that sets coordinates to 0 which were 0 behind an upload.

        The gradient of the head's weight (classes, d) is a sum of representations times residuals:
        a column of zeros is a coordinate that was 0 in each of them, and of one image any other
        was not. So masks of coordinates hide nothing of themselves (Balunovic et al., Bayesian
        framework for gradient leakage, ICLR 2022, undo Soteria so).
        """
        made = copy.copy(self)
        made._buffers = dict(self._buffers)
        if "head.weight" in gradient:
            made.kept = (gradient["head.weight"] != 0).any(0).to(self.kept)
            made.all_told = images == 1
        return made

    def _changes(self) -> Changes:
        return Changes(self.defenses, dict(self.own.items()), {}, opaque=self.opaque)


class Drawing(nn.Module):
    """A module that makes of images (n, C, H, W) what another one draws, (n, d)."""

    def __init__(self, drawn: RandomModule, rng: torch.Generator) -> None:
        super().__init__()
        self.drawn, self.rng = drawn, rng

    def forward(self, images: Tensor) -> Tensor:
        return self.drawn.sample(images, self.rng)


def changing_modules(defenses: Sequence[Defense], memory: Memory) -> dict[str, nn.Module]:
    """Own modules that take part in changes, by `memory_key`: all but opponents."""
    found: dict[str, nn.Module] = {}
    for place, defense in enumerate(defenses):
        if changes_representations(defense):
            own = own_modules(memory, place)
            kept = {name: own[name] for name in own if name not in defense.opponents}
            if kept:
                found[memory_key(place)] = nn.ModuleDict(kept)
    return found


def kept_modules(defenses: Sequence[Defense], memory: Memory) -> dict[str, Tensor]:
    """Tensors of `changing_modules`, by ``key/name``."""
    return {
        f"{key}/{name}": value
        for key, module in changing_modules(defenses, memory).items()
        for name, value in module.state_dict().items()
    }


def defended_state(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a `DefendedExtractor`.

    Args:
        state: of the extractor. own: `kept_modules`.
    """
    inner = {f"extractor.{name}": value for name, value in state.items()}
    return inner | {f"own.{name.replace('/', '.', 1)}": value for name, value in own.items()}


def defended_model_state(
    state: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The state of a `DefendedModel`.

    Args:
        state: of the model. own: `kept_modules`.
    """
    return {**state, **{f"own.{name.replace('/', '.', 1)}": value for name, value in own.items()}}


def blank_model(
    extractor: nn.Module, head: nn.Linear, defenses: Sequence[Defense], shapes: ModelShapes
) -> nn.Module:
    """A `DefendedModel` of two parts, with modules that are yet to get their state."""
    own = changing_modules(defenses, begin_modules(defenses, shapes))
    return DefendedModel(extractor, head, defenses, own)


def blank_extractor(
    extractor: nn.Module, defenses: Sequence[Defense], shapes: ModelShapes
) -> nn.Module:
    """A `DefendedExtractor` about one, with modules that are yet to get their state."""
    return defended_extractor(extractor, defenses, begin_modules(defenses, shapes))


def defended_extractor(
    extractor: nn.Module, defenses: Sequence[Defense], memory: Memory
) -> nn.Module:
    """The extractor as it makes uploads; itself where no defence changes representations."""
    if not any(map(changes_representations, defenses)):
        return extractor
    return DefendedExtractor(extractor, defenses, changing_modules(defenses, memory))
