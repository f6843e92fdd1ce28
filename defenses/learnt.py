"""Where local training, uploads and predictions meet learnt defences.

A client keeps the own modules of its defences in its memory, under `memory_key` of their places. In
local training and behind uploads hooks on the extractor change what it makes; an attacker who knows
of the defences holds the same as one module, see `defended_modules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.optimisers import Adam

from .base import Defense
from .local_pass import ExtractorPass, LocalBatch, ModelShapes

Loss = Callable[[Tensor, Tensor], Tensor]
Memory = Mapping[str, nn.Module]
Draws = Callable[[str], torch.Generator]
"""A purpose to a fresh CPU stream of a client and round."""

_CHANGES = ("change", "change_images")
_LEARNS = (*_CHANGES, "training_term", "own_modules")


def changes_representations(defense: Defense) -> bool:
    """Whether it changes what an extractor makes or is given."""
    return _overrides(defense, _CHANGES)


def learns(defense: Defense) -> bool:
    """Whether it takes part in local training, or changes what an extractor makes."""
    return _overrides(defense, _LEARNS)


def is_trained(defense: Defense) -> bool:
    """Whether it has a term in local training, or modules that are trained there."""
    return _overrides(defense, ("training_term", "own_modules"))


def _overrides(defense: Defense, names: Sequence[str]) -> bool:
    return any(getattr(type(defense), name) is not getattr(Defense, name) for name in names)


def memory_key(place: int) -> str:
    """Name in a client's memory of the own modules of the defence at a place in the list."""
    return f"defense {place}"


def begin_modules(defenses: Sequence[Defense], shapes: ModelShapes) -> dict[str, nn.ModuleDict]:
    """Own modules of all defences that have some, by `memory_key`; the global generator is seeded.

    Raises:
        IncompatibleError: a name of `opponents` that is none of the modules.
    """
    made: dict[str, nn.ModuleDict] = {}
    for place, defense in enumerate(defenses):
        own = dict(defense.own_modules(shapes))
        if unknown := set(defense.opponents) - set(own):
            raise IncompatibleError(
                f"Defence '{defense.name}' names opponents that are none of its own modules: "
                f"{', '.join(sorted(unknown))}."
            )
        if own:
            made[memory_key(place)] = nn.ModuleDict(own)
    return made


def own_modules(memory: Memory, place: int) -> dict[str, nn.Module]:
    """Own modules of the defence at a place, by name."""
    kept = memory.get(memory_key(place))
    return dict(kept.items()) if isinstance(kept, nn.ModuleDict) else {}


@dataclass(frozen=True, eq=False)
class Changes:
    """What some defences do to the passes of one extractor.

    Args:
        defenses: all of the client's; those that change nothing are passed over.
        memory: where their modules are. rngs: by place, what each draws from; empty: none draws.
        opaque: places whose changes give no gradient, which is then that of the identity; and
            whether the change itself is near it, and left out where gradients are asked for.
    """

    defenses: Sequence[Defense]
    memory: Memory
    rngs: Mapping[int, torch.Generator]
    training: bool = False
    opaque: Mapping[int, bool] = field(default_factory=dict)

    @classmethod
    def drawing(
        cls,
        defenses: Sequence[Defense],
        memory: Memory,
        draws: Draws,
        purpose: str,
        *,
        training: bool = False,
    ) -> Changes:
        """With a stream for each place of (purpose, place)."""
        rngs = {
            place: draws(f"defense {place} {purpose}")
            for place, one in enumerate(defenses)
            if changes_representations(one)
        }
        return cls(defenses, memory, rngs, training)

    @property
    def any(self) -> bool:
        """Whether one of the defences changes something."""
        return any(map(changes_representations, self.defenses))

    def images(self, images: Tensor, extract: Callable[[Tensor], Tensor]) -> Tensor:
        """What the extractor is given in place of images (n, C, H, W)."""
        for place, defense in enumerate(self.defenses):
            if type(defense).change_images is not Defense.change_images:
                images = defense.change_images(images, self._pass(place, images, extract))
        return images

    def reps(self, reps: Tensor, images: Tensor, extract: Callable[[Tensor], Tensor]) -> Tensor:
        """What representations (n, d) of images become.

        Raises:
            IncompatibleError: another shape.
        """
        for place, defense in enumerate(self.defenses):
            if type(defense).change is not Defense.change:
                after = defense.change(reps, self._pass(place, images, extract))
                if after.shape != reps.shape:
                    raise IncompatibleError(
                        f"Defence '{defense.name}' made representations of shape "
                        f"{tuple(after.shape)} of {tuple(reps.shape)}; the shape must stay."
                    )
                if place not in self.opaque or not torch.is_grad_enabled():
                    reps = after
                elif not self.opaque[place]:
                    reps = reps + (after - reps).detach()
        return reps

    def without_gradient(
        self, reps: Tensor, images: Tensor, extract: Callable[[Tensor], Tensor]
    ) -> dict[int, bool]:
        """Places whose change of representations (n, d) has no slope in any direction tried.

        With it: whether it moves them by at most half of their length.
        """
        found: dict[int, bool] = {}
        for place, defense in enumerate(self.defenses):
            if type(defense).change is Defense.change:
                continue
            alone = Changes((Defense(),) * place + (defense,), self.memory, {})
            given = reps.clone().requires_grad_(True)
            made = alone.reps(given, images, extract)
            slope = torch.zeros_like(reps)
            if made.requires_grad:
                ways = torch.randn(made.shape, generator=torch.Generator().manual_seed(0)).to(made)
                (slope,) = torch.autograd.grad(made, given, ways, materialize_grads=True)
            if not bool((slope != 0).any()):
                found[place] = bool((made.detach() - reps).norm() <= 0.5 * reps.norm())
        return found

    def _pass(
        self, place: int, images: Tensor, extract: Callable[[Tensor], Tensor]
    ) -> ExtractorPass:
        return ExtractorPass(
            images, extract, own_modules(self.memory, place), self.rngs.get(place), self.training
        )

    @contextmanager
    def on(self, extractor: nn.Module, record: list[_Recorded] | None = None) -> Iterator[None]:
        """Let every pass of an extractor within a block be changed, and perhaps recorded."""
        if not self.any and record is None:
            yield
            return

        def before(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self.images(given[0], module.forward), *given[1:])

        def after(module: nn.Module, given: tuple[Any, ...], reps: Tensor) -> Tensor:
            changed = self.reps(reps, given[0], module.forward)
            if record is not None:
                record.append(_Recorded(reps, changed))
            return changed

        handles = (
            extractor.register_forward_pre_hook(before),
            extractor.register_forward_hook(after),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@dataclass(frozen=True, eq=False)
class _Recorded:
    """Representations (n, d) of one pass, as the extractor made them and as they became."""

    unchanged: Tensor
    changed: Tensor


@contextmanager
def predict_with_defenses(
    extractor: nn.Module, defenses: Sequence[Defense], memory: Memory
) -> Iterator[None]:
    """Within a block, let an extractor make what its client predicts from: nothing is drawn."""
    with Changes(defenses, memory, {}).on(extractor):
        yield


class DefendedTraining:
    """What learnt defences do in one client's local training of one round.

    Args:
        extractor, head: of the client's model. memory: of the client.
        draws: streams of the client's secret and round.
    """

    def __init__(
        self,
        defenses: Sequence[Defense],
        extractor: nn.Module,
        head: nn.Module,
        memory: Memory,
        draws: Draws,
        *,
        round: int,
        rounds: int,
    ) -> None:
        self.defenses, self.extractor, self.head, self.memory = defenses, extractor, head, memory
        self.round, self.rounds = round, rounds
        self.changes = Changes.drawing(defenses, memory, draws, "steps", training=True)
        self._rngs = [draws(f"defense {place} terms") for place in range(len(defenses))]
        self._opponents = {
            place: [
                p for name in one.opponents for p in own_modules(memory, place)[name].parameters()
            ]
            for place, one in enumerate(defenses)
            if one.opponents
        }
        self._steps = {
            place: Adam(params, lr=defenses[place].opponent_lr())
            for place, params in self._opponents.items()
        }

    def trained(self, lr: float) -> tuple[list[nn.Module], list[float]]:
        """Own modules that are trained with the client, and the step size of each."""
        modules, rates = [], []
        for place, defense in enumerate(self.defenses):
            for name, module in own_modules(self.memory, place).items():
                if name not in defense.opponents:
                    modules.append(module)
                    rates.append(defense.own_lr(lr))
        return modules, rates

    @contextmanager
    def defended(self, loss: Loss) -> Iterator[Loss]:
        """The loss with the defences' terms, while representations are changed.

        Opponents take a step on each batch before its terms are computed.
        """
        passes: list[_Recorded] = []
        rivals = [
            own_modules(self.memory, place)[name]
            for place in self._opponents
            for name in self.defenses[place].opponents
        ]
        for rival in rivals:
            rival.train().requires_grad_(False)

        def with_terms(images: Tensor, labels: Tensor) -> Tensor:
            passes.clear()
            value = loss(images, labels)
            seen = self._behind(images, passes)
            passes.clear()
            for place, defense in enumerate(self.defenses):
                batch = self._batch(place, images, labels, seen)
                if place in self._steps:
                    self._step(place, defense, batch)
                term = defense.training_term(batch)
                if term is not None:
                    value = value + term
            return value

        try:
            with self.changes.on(self.extractor, passes):
                yield with_terms
        finally:
            for rival in rivals:
                rival.eval().requires_grad_(True)

    def _behind(self, images: Tensor, passes: Sequence[_Recorded]) -> _Recorded:
        """The pass of the batch that carries gradients; made here where the loss made none."""
        fitting = [one for one in passes if len(one.changed) == len(images)]
        for one in sorted(fitting, key=lambda one: not one.changed.requires_grad):
            return one
        made: list[_Recorded] = []
        with Changes(self.defenses, self.memory, self.changes.rngs, True).on(self.extractor, made):
            self.extractor(images)
        return made[-1]

    def _batch(self, place: int, images: Tensor, labels: Tensor, seen: _Recorded) -> LocalBatch:
        return LocalBatch(
            images=images,
            labels=labels,
            reps=seen.changed.float(),
            unchanged=seen.unchanged.float(),
            extract=self.extractor.forward,
            head=self.head,
            modules=own_modules(self.memory, place),
            rng=self._rngs[place],
            round=self.round,
            rounds=self.rounds,
        )

    def _step(self, place: int, defense: Defense, batch: LocalBatch) -> None:
        """One step of a defence's opponents."""
        still = LocalBatch(
            **{
                **vars(batch),
                "reps": batch.reps.detach(),
                "unchanged": batch.unchanged.detach(),
            }
        )
        params = self._opponents[place]
        for one in params:
            one.requires_grad_(True)
        with torch.enable_grad():
            slopes = torch.autograd.grad(
                defense.opponent_loss(still), params, allow_unused=True, materialize_grads=True
            )
        for one, slope in zip(params, slopes, strict=True):
            one.grad = slope
        self._steps[place].step()
        for one in params:
            one.grad = None
            one.requires_grad_(False)
