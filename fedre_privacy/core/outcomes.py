"""What an attack returns, one class for each question that can be asked.

Everything here is a frozen dataclass of tensors and texts, without truth and without scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from .types import Observation


@dataclass(frozen=True, eq=False)
class Outcome:
    """Base of what an attack returns. It holds no truth and no score against truth.

    Fields are tensors, texts, or tuples of texts, so that every outcome is saved the same way.
    """

    def save(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return tensors and texts to write to ``recovered.safetensors``."""
        tensors: dict[str, Tensor] = {}
        texts: dict[str, str] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                tensors[item.name] = value.detach().cpu().contiguous()
            else:
                texts[item.name] = value if isinstance(value, str) else "\n".join(value)
        return tensors, texts

    @classmethod
    def load(cls, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> Self:
        """Rebuild an outcome from what `save` returned.

        Raises:
            ValueError: a field is absent, or an unknown one is present.
        """
        known = {item.name: item for item in dataclasses.fields(cls)}
        found: dict[str, Any] = {**tensors, **texts}
        optional = {n for n, f in known.items() if f.default_factory is not dataclasses.MISSING}
        absent, extra = set(known) - optional - set(found), set(found) - set(known)
        if absent or extra:
            raise ValueError(
                f"{cls.__name__} needs {sorted(known)}; absent: {sorted(absent) or 'none'}, "
                f"not known: {sorted(extra) or 'none'}"
            )
        wrong = [
            n for n, f in known.items() if n in found and (f.type == "Tensor") != (n in tensors)
        ]
        if wrong:
            raise ValueError(f"{cls.__name__} needs another kind of value for {wrong}")
        for name, value in texts.items():
            if known[name].type == "tuple[str, ...]":
                found[name] = tuple(value.splitlines())
        return cls(**found)

    def problems(self, observation: Observation) -> list[str]:
        """Every way in which it is not what was promised; each starts with a verb."""
        return []

    @property
    def lost(self) -> bool:
        """Whether nothing in it is finite."""
        return False


@dataclass(frozen=True, eq=False)
class Reconstruction(Outcome):
    """Images that an attack recovered.

    Shape:
        images (N, C, H, W) in [0, 1]; row i belongs to target i. NaN rows diverged.
        prior (N, C, H, W): the attack's output before any fitting, a floor.
        fit (N,): attained match to the target (the attack's own objective, lower is better).
        trace (num_logged, N): the fit along the way; trace_steps (num_logged,).
        labels (N,) int64: the class that the attack took each image to be of; empty (0,) where it
            took none.
        spread (N,): mean squared distance between the answers of two restarts, a mark of doubt that
            needs no truth; empty (0,) where there was one start only.
        confidence (N,): the attack's own score of its answer, made without truth, higher is surer;
            NaN where it has none. Empty (0,): no such score.
        certified (N,) bool: whether a check without truth says that the image is exact. Empty (0,):
            the attack has no such check.
        calibrated: of what `confidence` is the probability, and how that is known; empty: it is a
            ranking and no probability.
    """

    images: Tensor
    prior: Tensor
    fit: Tensor
    trace: Tensor
    trace_steps: Tensor
    stopped_because: str
    diverged: Tensor
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    spread: Tensor = field(default_factory=lambda: torch.zeros(0))
    confidence: Tensor = field(default_factory=lambda: torch.zeros(0))
    certified: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    calibrated: str = field(default_factory=str)

    def problems(self, observation: Observation) -> list[str]:
        count = observation.image_count()
        wanted = (count, *observation.image_shape)
        if tuple(self.images.shape) != wanted:
            return [
                f"returned images of shape {tuple(self.images.shape)}; {count} targets need "
                f"{wanted}."
            ]
        steps = len(self.trace_steps.reshape(-1))
        shapes = {"prior": wanted, "fit": (count,), "diverged": (count,), "trace": (steps, count)}
        for name, shape in shapes.items():
            if tuple(getattr(self, name).shape) != shape:
                return [
                    f"returned '{name}' of shape {tuple(getattr(self, name).shape)}, not {shape}."
                ]
        finite = self.images.isfinite().flatten(1).all(1)
        found = []
        if len(self.labels) not in (0, count):
            found.append(f"returned {len(self.labels)} labels for {count} images.")
        if len(self.spread) not in (0, count):
            found.append(f"returned {len(self.spread)} spreads for {count} images.")
        if self.confidence.shape not in ((0,), (count,)):
            found.append(
                f"returned confidences of shape {tuple(self.confidence.shape)} for {count} images."
            )
        if self.calibrated and bool(((self.confidence < 0) | (self.confidence > 1)).any()):
            found.append("returned a confidence outside [0, 1] as a probability.")
        if self.certified.shape not in ((0,), (count,)):
            found.append(
                f"returned certificates of shape {tuple(self.certified.shape)} for {count} images."
            )
        if not bool((finite | self.diverged.bool()).all()):
            found.append("returned NaN without marking it as diverged.")
        if bool(finite.any()):
            low, high = float(self.images[finite].min()), float(self.images[finite].max())
            if low < 0 or high > 1:
                found.append(f"returned values in [{low:.3g}, {high:.3g}]; images are in [0, 1].")
        return found

    @property
    def lost(self) -> bool:
        return not bool(self.images.isfinite().flatten(1).all(1).any())


def _wrong_integers(outcome: Outcome, names: Sequence[str]) -> list[str]:
    """Say which fields are no lists of whole numbers."""
    wrong = [
        name
        for name in names
        if getattr(outcome, name).dim() != 1 or getattr(outcome, name).dtype != torch.int64
    ]
    return [f"returned '{name}' that holds no whole numbers." for name in wrong]


CERTIFIED_WITHIN = 0.1
"""Relative error that the certificate of a prototype stands for."""


@dataclass(frozen=True, eq=False)
class RecoveredPrototypes(Outcome):
    """Class prototypes that an attack worked out of mixtures of them.

    Shape:
        vectors (N, d): one row per client and class; NaN where the uploads do not determine it.
        clients, labels, rounds (N,) int64: whose, of which class, as of which round.
        rounds_used (N,) int64: uploads of that client that entered the answer.
        s_min (N,): smallest singular value of that client's weight matrix.
        expected_error (N,): relative error ||p - p'|| / ||p'|| that the attack itself expects; NaN
            where it has no estimate.
        certified (N,) bool: whether a check without truth says that the relative error is at most
            `CERTIFIED_WITHIN`. Empty (0,): the attack has no such check.
    Args:
        notes: what was recognised, one sentence each (single class, fixed weights, ...).
    """

    vectors: Tensor
    clients: Tensor
    labels: Tensor
    rounds: Tensor
    rounds_used: Tensor
    s_min: Tensor
    expected_error: Tensor
    notes: tuple[str, ...]
    certified: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))

    def problems(self, observation: Observation) -> list[str]:
        if self.certified.shape not in ((0,), (len(self.vectors),)):
            return [
                f"returned certificates of shape {tuple(self.certified.shape)} for "
                f"{len(self.vectors)} prototypes."
            ]
        lengths = {
            name: len(getattr(self, name))
            for name in ("vectors", "clients", "labels", "rounds", "rounds_used", "s_min")
        }
        if len(set(lengths.values())) > 1:
            return [f"returned fields of different lengths: {lengths}."]
        if self.vectors.dim() != 2 or not self.vectors.is_floating_point():
            return [f"returned vectors of shape {tuple(self.vectors.shape)}; rows are needed."]
        labels, classes = self.labels, observation.num_classes
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            return [f"returned labels that are not in 0..{classes - 1}."]
        return _wrong_integers(self, ("clients", "labels", "rounds", "rounds_used"))

    @property
    def lost(self) -> bool:
        """Whether nothing is finite and nothing says why: uploads that determine no prototype
        are an answer, which the notes give."""
        return not self.notes and not bool(self.vectors.isfinite().all(1).any())


@dataclass(frozen=True, eq=False)
class LabelEstimate(Outcome):
    """What an attack says about the labels of each client.

    Shape:
        clients (K,) int64.
        support (K, C): belief in [0, 1] that the client holds the class; above 0.5 means it does.
        proportions (K, C): estimated share of each class, rows summing to 1; NaN where unknown.
        sizes (K,): estimated number of training samples; NaN where unknown.
    """

    clients: Tensor
    support: Tensor
    proportions: Tensor
    sizes: Tensor
    notes: tuple[str, ...]

    def problems(self, observation: Observation) -> list[str]:
        wanted = (len(self.clients), observation.num_classes)
        if tuple(self.support.shape) != wanted or tuple(self.proportions.shape) != wanted:
            return [
                f"returned a support of shape {tuple(self.support.shape)} and proportions of shape "
                f"{tuple(self.proportions.shape)}; both must be {wanted}."
            ]
        if tuple(self.sizes.shape) != (len(self.clients),):
            return [
                f"returned sizes of shape {tuple(self.sizes.shape)} for {len(self.clients)} "
                "clients."
            ]
        observed = {upload.client for upload in (*observation.targets, *observation.uploads)}
        if len(self.clients.unique()) < len(self.clients) or not observed >= set(
            self.clients.tolist()
        ):
            return ["returned clients that uploaded nothing, or a client twice."]
        return _wrong_integers(self, ("clients",))


@dataclass(frozen=True, eq=False)
class MembershipScores(Outcome):
    """How strongly an attack believes that each candidate was trained on.

    Shape: scores (M,), higher means member, comparable within a client and class; NaN where the
    uploads say nothing.
    """

    scores: Tensor
    notes: tuple[str, ...]

    def problems(self, observation: Observation) -> list[str]:
        wanted = len(observation.candidates) if observation.candidates else 0
        if tuple(self.scores.shape) != (wanted,):
            return [f"returned {tuple(self.scores.shape)} scores for {wanted} candidates."]
        return []


@dataclass(frozen=True, eq=False)
class PropertyScores(Outcome):
    """How strongly an attack believes that each client's images have each property asked about.

    Shape: clients (K,) int64; scores (K, P), higher means that the client has it, comparable
    between clients; above 0.5 the attack says that it does. NaN where nothing is said.
    """

    clients: Tensor
    scores: Tensor
    notes: tuple[str, ...]

    def problems(self, observation: Observation) -> list[str]:
        wanted = (len(self.clients), len(observation.properties))
        if tuple(self.scores.shape) != wanted:
            return [f"returned scores of shape {tuple(self.scores.shape)}; {wanted} are needed."]
        asked = {upload.client for upload in observation.targets}
        if len(self.clients.unique()) < len(self.clients) or not asked >= set(
            self.clients.tolist()
        ):
            return ["returned clients that were not asked about, or a client twice."]
        return _wrong_integers(self, ("clients",))
