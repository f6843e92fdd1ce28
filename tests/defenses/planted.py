"""Learnt defences whose effect is known beforehand: they check the door and the attackers."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedre_privacy.core.channels import Channel, LearntChange, TrainingTerm
from fedre_privacy.core.config import knob
from fedre_privacy.defenses.base import Defense, FederationFacts
from fedre_privacy.defenses.local_pass import ExtractorPass, LocalBatch, ModelShapes
from fedre_privacy.defenses.values import COLLECTED


@dataclass(frozen=True, kw_only=True)
class Short(Defense):
    """A term alone: representations are drawn towards 0."""

    when_to_use = "a test of the door and of attackers"
    acts_on = COLLECTED
    weight: float = knob(1.0, help="of the mean square of representations", ge=0)

    def training_term(self, batch: LocalBatch) -> Tensor:
        return self.weight * batch.reps.square().mean()

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(training=(TrainingTerm(),))


@dataclass(frozen=True, kw_only=True)
class Rival(Defense):
    """A term against an opponent, which learns the mean pixel of each image."""

    when_to_use = "a test of the door and of attackers"
    acts_on = COLLECTED
    opponents = ("guess",)
    weight: float = knob(1.0, help="of the opponent's error", ge=0)

    def own_modules(self, shapes: ModelShapes) -> Mapping[str, nn.Module]:
        return {"guess": nn.Linear(shapes.dim, 1)}

    def opponent_loss(self, batch: LocalBatch) -> Tensor:
        brightness = batch.images.flatten(1).mean(1, keepdim=True)
        return (batch.modules["guess"](batch.reps) - brightness).square().mean()

    def training_term(self, batch: LocalBatch) -> Tensor:
        return -self.weight * self.opponent_loss(batch)

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(training=(TrainingTerm(),))


@dataclass(frozen=True, kw_only=True)
class RivalAnywhere(Rival):
    """The same, whatever is uploaded."""

    acts_on = ()


@dataclass(frozen=True, kw_only=True)
class Gate(Defense):
    """A learnt change: a gate between 0 and 2 on each coordinate, and noise of a given size."""

    when_to_use = "a test of the door and of attackers"
    acts_on = COLLECTED
    noise: float = knob(0.0, help="standard deviation", ge=0)

    def own_modules(self, shapes: ModelShapes) -> Mapping[str, nn.Module]:
        return {"gate": nn.Linear(shapes.dim, shapes.dim)}

    def change(self, reps: Tensor, seen: ExtractorPass) -> Tensor:
        gated: Tensor = 2 * reps * seen.modules["gate"](reps).sigmoid()
        return gated + self.noise * seen.normal(gated)

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(extractor=(LearntChange(random=self.noise > 0),), training=(TrainingTerm(),))


@dataclass(frozen=True, kw_only=True)
class GateAnywhere(Gate):
    """The same, whatever is uploaded."""

    acts_on = ()


@dataclass(frozen=True, kw_only=True)
class Constant(Defense):
    """The strongest there is: every image has the same representation."""

    when_to_use = "a test of the door and of attackers"
    acts_on = COLLECTED

    def change(self, reps: Tensor, seen: ExtractorPass) -> Tensor:
        return reps * 0 + 1

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(extractor=(LearntChange(),))


@dataclass(frozen=True, kw_only=True)
class Rounded(Defense):
    """Weak, but hidden from gradients: representations are rounded, training goes straight through.

    What a search by gradients sees of it is 0 nearly everywhere.
    """

    when_to_use = "a test of the door and of attackers"
    acts_on = COLLECTED
    step: float = knob(0.5, help="distance of two levels", gt=0)

    def change(self, reps: Tensor, seen: ExtractorPass) -> Tensor:
        rounded = (reps / self.step).round() * self.step
        return reps + (rounded - reps).detach() if seen.training else rounded

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(extractor=(LearntChange(),))
