"""What an attack returns, one class for each question that can be asked.

Everything here is a frozen dataclass of tensors and texts, without truth and without scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from .answers import CANDIDATES, CLASSES, NUMBERS, PROPERTIES, TARGETS, TRUTH, WHOLE, holds
from .types import Observation

IMAGES = (TARGETS, "channels", "height", "width")
"""Sizes of what is sought."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Base of what an attack returns. It holds no truth and no score against truth.

    Fields are tensors, texts, or tuples of texts, so that every outcome is saved the same way. A
    tensor declares what it may hold (`answers.holds`); `answers.typed` converts to that.
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
        """What fields of declared types do not promise together; each starts with a verb."""
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

    images: Tensor = field(metadata=holds(NUMBERS, *IMAGES, low=0, high=1, single=True))
    prior: Tensor = field(metadata=holds(NUMBERS, *IMAGES, low=0, high=1, single=True))
    fit: Tensor = field(metadata=holds(NUMBERS, TARGETS))
    trace: Tensor = field(metadata=holds(NUMBERS, "num_logged", TARGETS))
    trace_steps: Tensor = field(metadata=holds(WHOLE, "num_logged"))
    stopped_because: str
    diverged: Tensor = field(metadata=holds(TRUTH, TARGETS))
    labels: Tensor = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.int64),
        metadata=holds(WHOLE, TARGETS, low=-1, high=CLASSES),
    )
    spread: Tensor = field(default_factory=lambda: torch.zeros(0), metadata=holds(NUMBERS, TARGETS))
    confidence: Tensor = field(
        default_factory=lambda: torch.zeros(0), metadata=holds(NUMBERS, TARGETS)
    )
    certified: Tensor = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.bool), metadata=holds(TRUTH, TARGETS)
    )
    calibrated: str = field(default_factory=str)

    @classmethod
    def of(
        cls,
        images: Tensor,
        fit: Tensor | None = None,
        *,
        prior: Tensor | None = None,
        trace: Tensor | None = None,
        trace_steps: Tensor | None = None,
        stopped_because: str = "answered",
        **others: Any,
    ) -> Self:
        """A reconstruction of images (N, C, H, W) whose other fields follow where none is given.

        Args:
            fit: (N,); none: the attack measures no match, which counts as 0.
            prior: none: grey, which depends on no upload.
            trace: none: the fit alone. trace_steps: none: 0, 1, ... along the trace.
            others: labels, spread, confidence, certified, calibrated.

        Returns:
            Rows of images that are not finite are marked as diverged.
        """
        if fit is None:
            fit = torch.zeros(len(images))
        if trace is None:
            trace = fit[None]
        return cls(
            images=images,
            prior=torch.full_like(images, 0.5) if prior is None else prior,
            fit=fit,
            trace=trace,
            trace_steps=torch.arange(len(trace)) if trace_steps is None else trace_steps,
            stopped_because=stopped_because,
            diverged=~images.isfinite().flatten(1).all(1),
            **others,
        )

    def without(self, lost: Tensor) -> Self:
        """The same answers, diverged where `lost` (N,) bool is true."""
        if not bool((lost & ~self.diverged).any()):
            return self
        images = self.images.masked_fill(lost[:, None, None, None], torch.nan)
        fit = self.fit.masked_fill(lost, torch.nan)
        return dataclasses.replace(self, images=images, fit=fit, diverged=self.diverged | lost)

    def problems(self, observation: Observation) -> list[str]:
        finite = self.images.isfinite().flatten(1).all(1)
        found = []
        if self.calibrated and bool(((self.confidence < 0) | (self.confidence > 1)).any()):
            found.append("returned a confidence outside [0, 1] as a probability.")
        if not bool((finite | self.diverged).all()):
            found.append("returned NaN without marking it as diverged.")
        return found

    @property
    def lost(self) -> bool:
        return not bool(self.images.isfinite().flatten(1).all(1).any())


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

    vectors: Tensor = field(metadata=holds(NUMBERS, "N", "d", single=True))
    clients: Tensor = field(metadata=holds(WHOLE, "N", low=0))
    labels: Tensor = field(metadata=holds(WHOLE, "N", low=0, high=CLASSES))
    rounds: Tensor = field(metadata=holds(WHOLE, "N", low=0))
    rounds_used: Tensor = field(metadata=holds(WHOLE, "N", low=0))
    s_min: Tensor = field(metadata=holds(NUMBERS, "N"))
    expected_error: Tensor = field(metadata=holds(NUMBERS, "N"))
    notes: tuple[str, ...]
    certified: Tensor = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.bool), metadata=holds(TRUTH, "N")
    )

    def problems(self, observation: Observation) -> list[str]:
        answered = torch.stack([self.clients, self.labels])
        if answered.unique(dim=1).shape[1] < len(self.clients):
            return ["returned two prototypes of one client and class."]
        return []

    @property
    def lost(self) -> bool:
        """Whether nothing is finite and nothing says why: uploads that determine no prototype
        are an answer, which the notes give."""
        return not self.notes and not bool(self.vectors.isfinite().all(1).any())


@dataclass(frozen=True, eq=False)
class RecoveredRepresentations(Outcome):
    """Representations of single images that an attack worked out of statistics over several.

    Shape:
        vectors (N, d): in no order within a client and class; as many as were found.
        clients, labels, rounds (N,) int64: whose, of which class, as of which round.
        expected_error (N,): relative error ||x - x'|| / ||x'|| that the attack itself expects.
        certified (N,) bool: whether a check without truth says that it is at most .01.
    Args:
        notes: what was found and what is left open, one sentence for each class.
    """

    vectors: Tensor = field(metadata=holds(NUMBERS, "N", "d", single=True))
    clients: Tensor = field(metadata=holds(WHOLE, "N", low=0))
    labels: Tensor = field(metadata=holds(WHOLE, "N", low=0, high=CLASSES))
    rounds: Tensor = field(metadata=holds(WHOLE, "N", low=0))
    expected_error: Tensor = field(metadata=holds(NUMBERS, "N"))
    certified: Tensor = field(metadata=holds(TRUTH, "N"))
    notes: tuple[str, ...]

    @property
    def lost(self) -> bool:
        """Whether nothing is finite and nothing says why."""
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

    clients: Tensor = field(metadata=holds(WHOLE, "K"))
    support: Tensor = field(metadata=holds(NUMBERS, "K", CLASSES, low=0, high=1))
    proportions: Tensor = field(metadata=holds(NUMBERS, "K", CLASSES))
    sizes: Tensor = field(metadata=holds(NUMBERS, "K"))
    notes: tuple[str, ...]

    def problems(self, observation: Observation) -> list[str]:
        observed = {upload.client for upload in (*observation.targets, *observation.uploads)}
        if not len(self.clients):
            return ["returned an estimate of no client."]
        if len(self.clients.unique()) < len(self.clients) or not observed >= set(
            self.clients.tolist()
        ):
            return ["returned clients that uploaded nothing, or a client twice."]
        return []


@dataclass(frozen=True, eq=False)
class MembershipScores(Outcome):
    """How strongly an attack believes that each candidate was trained on.

    Shape: scores (M,), higher means member, comparable within a client and class; NaN where the
    uploads say nothing.
    """

    scores: Tensor = field(metadata=holds(NUMBERS, CANDIDATES))
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CandidateScores(Outcome):
    """How strongly an attack believes that each candidate image went into each target.

    Shape: scores (N, M), higher means that it did, comparable between targets too; NaN where
    nothing is said.
    """

    scores: Tensor = field(metadata=holds(NUMBERS, TARGETS, CANDIDATES))
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class PropertyScores(Outcome):
    """How strongly an attack believes that each client's images have each property asked about.

    Shape: clients (K,) int64; scores (K, P), higher means that the client has it, comparable
    between clients; above 0.5 the attack says that it does. NaN where nothing is said.
    """

    clients: Tensor = field(metadata=holds(WHOLE, "K"))
    scores: Tensor = field(metadata=holds(NUMBERS, "K", PROPERTIES))
    notes: tuple[str, ...]

    def problems(self, observation: Observation) -> list[str]:
        asked = {upload.client for upload in observation.targets}
        if len(self.clients.unique()) < len(self.clients) or not asked >= set(
            self.clients.tolist()
        ):
            return ["returned clients that were not asked about, or a client twice."]
        return []
