"""What an attack is: a declared need for knowledge, and a way from uploads to reconstructions.

Attack code receives an `Observation` and nothing else; it never sees data, protocols or truth.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, final

import torch
from torch import Tensor, nn

from fedre_privacy.core.answers import typed_answer
from fedre_privacy.core.artifacts import Artifact, is_read_as
from fedre_privacy.core.channels import StepsAt
from fedre_privacy.core.errors import DivergedError, IncompatibleError
from fedre_privacy.core.events import Report, silent
from fedre_privacy.core.outcomes import Outcome, Reconstruction
from fedre_privacy.core.plugin_errors import attribute_errors
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation, ThreatModel, channel_places
from fedre_privacy.models.frozen_copies import FrozenCopies
from fedre_privacy.models.shared_passes import SharedPasses

attacks: Registry[Attack] = Registry("attack", "fedre_privacy.attacks", see="fedre-attack list")


RECOVERED = "recovered-prototypes"
"""The target of attacks on what another attack has recovered."""


class ResultCache(Protocol):
    """Where finished pieces of an attack are kept, so that a killed one can go on."""

    def load(self, name: str) -> dict[str, Tensor] | None:
        """Return a piece saved before under the same settings, or None."""
        ...

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Keep a finished piece."""
        ...


class NoCache:
    """Keeps nothing."""

    def load(self, name: str) -> dict[str, Tensor] | None:
        return None

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        return None


@dataclass(frozen=True)
class Context:
    """How to run: seed, device, who listens, where finished pieces and passes are kept."""

    seed: int = 0
    device: torch.device = torch.device("cpu")
    report: Report = silent
    cache: ResultCache = NoCache()  # noqa: RUF009
    passes: SharedPasses = field(default_factory=SharedPasses)


@dataclass(frozen=True)
class SuiteEntry:
    """One use of an attack in the suite that a benchmark runs unless it is told which.

    Args:
        reads: the kind of upload for which it is run.
        threat: name of the threat model.
        target: what is attacked, as for ``--target``.
        place: entries run in ascending order. Built-in ones: 10 prototypes, 20 and 30 images, 40
            images of updates, 50 membership, 60 labels.
        via: the attack that recovers the prototypes which are attacked, for target
            ``recovered-prototypes``; empty: the usual one.
        fewest_first: attack the targets that were made of the fewest images.
        unknown_start: run it only where nobody knows the weights that clients began with.
        settings: of the attack, beside its defaults.
    """

    reads: type[Artifact]
    threat: str
    target: str = "uploaded"
    place: int = 100
    via: str = ""
    fewest_first: bool = False
    unknown_start: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


@attacks.base
@dataclass(frozen=True, kw_only=True)
class Attack:
    """Base of all attacks. Authors write `run`; calling an attack adds the checks."""

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another attack: a clause of at most 100 characters."""
    consumes: ClassVar[tuple[type[Artifact], ...]] = ()
    """Kinds of artifacts it reads."""
    needs: ClassVar[frozenset[Knowledge]] = frozenset({Knowledge.UPLOADS})
    """Knowledge that it cannot do without."""
    needs_for: ClassVar[Mapping[type[Artifact], frozenset[Knowledge]]] = {}
    """What it needs beyond that to read some kinds of artifacts."""
    recovers: ClassVar[str] = ""
    """What it returns, in words."""
    answers: ClassVar[str] = "images"
    """The question it answers: images, prototypes, labels, membership or a plugin's."""
    adapts_to: ClassVar[StepsAt] = {}
    """Steps of declared channels that it takes into account, by the place where they act."""
    assumes: ClassVar[str] = ""
    """What it takes for granted beyond any threat model, in words; empty: nothing."""
    loops: ClassVar[Mapping[str, int]] = {"steps": 2}
    """Settings that say how often something is repeated, each with the few repetitions of a dry
    run. Those that an attack does not have do not count."""
    simulates: ClassVar[bool] = True
    """Whether it computes the loss that clients trained on, where it reads parameters; some
    protocols hide that (`Protocol.unseen`)."""
    differentiates: ClassVar[bool] = False
    """Whether it needs the gradient by the image of what the client's module returns."""
    steered: ClassVar[tuple[str, ...]] = ()
    """Steerings of which an active server must have used one; empty: it attacks any server."""
    particular: ClassVar[bool] = False
    """Whether it attacks networks of a particular form only, which it finds out when it runs; no
    hint names it."""
    earliest: ClassVar[bool] = False
    """Whether it attacks the first round that was recorded, unless it is told which."""
    first_alone: ClassVar[bool] = False
    """Whether it reads the first round and no other."""
    adds_rounds: ClassVar[bool] = False
    """Whether it reads the uploads of earlier rounds itself, as far as they were observed."""
    signals: ClassVar[bool] = False
    """Whether attacks on shadow federations read the losses that it reads."""
    usual_for: ClassVar[Mapping[str, int]] = {}
    """Targets for which it is the usual attack, each with its place: where none is named, the first
    is taken that can read what was sent and is granted what it needs. ``images``: all targets that
    are images. Subclasses do not inherit it."""
    measured_on: ClassVar[tuple[str, ...]] = ()
    """Names of the pages in ``results/`` that have its numbers, the one about it first."""
    suite: ClassVar[tuple[SuiteEntry, ...]] = ()
    """How a benchmark uses it by default; empty: only where it is asked for."""

    @property
    def required(self) -> frozenset[Knowledge]:
        """Knowledge that it cannot do without under its settings; `needs` and maybe more."""
        return self.needs

    def adapts(self, observation: Observation) -> StepsAt:
        """Steps of `adapts_to` that change its answer here, if a channel holds them.

        Override it where settings or what is known decide.
        """
        here = channel_places(observation)
        return {place: kinds for place, kinds in self.adapts_to.items() if place in here}

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        """How much of each target any images would make again, by what the attacker holds.

        The evaluator asks it of the answers and of floors' answers alike. Override it where the
        attack computes from images what clients would send. Attacks on vectors need not: what is
        compared there is what the extractors make of images (`running/explained.py`).

        Args:
            images: (N, C, H, W) in [0, 1]; a row that is not finite is no answer.
            labels: (N,) classes that the attack took its images to be of, or (0,).

        Returns:
            (N,) shares, 1 for all of a target, at most 0 for nothing; NaN for no answer. None: it
            computes nothing of the kind.
        """
        return None

    def weakened(self, observation: Observation) -> tuple[str, ...]:
        """Why it finds less here than it could, a clause each.

        Override it where the attack falls back on something weaker because the observation lacks
        what the threat model grants: models of past rounds that were not kept, public images.
        """
        return ()

    @property
    def several_rounds(self) -> bool:
        """Whether it is of no use without clients' models of several rounds."""
        return False

    def run(self, observation: Observation, context: Context) -> Outcome:
        """Attack all targets of an observation at once."""
        raise TypeError(f"{type(self).__name__} does not define run")

    @final
    def __call__(self, observation: Observation, context: Context | None = None) -> Any:
        """Check the observation, run on copies of its modules, and check what came back.

        Returns:
            What `run` returns: the outcome that its question asks for; images with the
            confidence of `confidence_of` where the attack gave none of its own, and NaN where the
            target is not finite.

        Raises:
            IncompatibleError: missing knowledge, an upload it cannot read, or a result whose
                type, shape or range is not as promised.
            DivergedError: no target is finite, or none came to a finite result.
            AttackFailedError: the attack is a plug-in and raised an error of its own.
        """
        kinds = {type(a) for upload in observation.targets for a in upload.artifacts}
        problems = mismatch(self, observation.threat, kinds)
        carried = [a.rows() for upload in observation.targets for a in upload.artifacts]
        if not problems and all(rows is not None and len(rows) == 0 for rows in carried):
            problems = ["There is nothing to attack: the targets hold no representation."]
        if problems:
            raise IncompatibleError(*problems)
        lost = observation.lost_targets(by_row=self.answers == "images")
        if bool(lost.all()):
            raise DivergedError(
                f"There is nothing to attack: all {len(lost)} targets hold no finite number.",
                next_step="Look whether the training diverged, and train with a lower step size.",
            )
        how = context or Context()
        with attribute_errors(self):
            answer = self.run(with_copies(observation), how)
        found = check_outcome(self, observation, answer)
        if isinstance(found, Reconstruction):
            if not observation.images_per_target:
                found = found.without(lost)
            found = self.with_confidence(observation, found, how)
        return found

    def with_confidence(
        self, observation: Observation, answers: Reconstruction, context: Context
    ) -> Reconstruction:
        """The answers with a confidence: the attack's own, else that of `confidence_of`."""
        if len(answers.confidence):
            return answers
        with single_threaded(context.device):  # sums do not depend on the number of threads
            sure = confidence_of(observation, answers, context.device)
        return replace(answers, confidence=sure)


def with_copies(observation: Observation) -> Observation:
    """The same observation whose modules are copies, which an attack may do with as it likes."""
    names = ("extractors", "models", "initial", "heads")
    given = {name: getattr(observation, name) for name in names}
    copies: dict[str, Any] = {name: FrozenCopies(some) for name, some in given.items() if some}
    return replace(observation, **copies)


def check_outcome(
    attack: Attack, observation: Observation, outcome: Any, kind: type[Outcome] = Outcome
) -> Any:
    """Return what an attack answered, in its declared types, if it is what was promised.

    Raises:
        IncompatibleError: it is no `kind`, or a type, shape or range is not as promised.
        DivergedError: no target came to a finite result.
    """
    if not isinstance(outcome, kind):
        raise IncompatibleError(
            f"Attack '{attack.name}' returned a {type(outcome).__name__}; "
            f"{'an' if kind is Outcome else 'a'} {kind.__name__} is needed."
        )
    outcome, found = typed_answer(outcome, observation)
    found = found or outcome.problems(observation)
    if found:
        raise IncompatibleError(*(f"Attack '{attack.name}' {problem}" for problem in found))
    if outcome.lost:
        carried = [a.rows() for upload in observation.targets for a in upload.artifacts]
        count = sum(1 if rows is None else len(rows) for rows in carried)
        raise DivergedError(
            f"Attack '{attack.name}' diverged on all {count} targets.",
            next_step="Lower its step size, for example --set attack.lr=0.005."
            if hasattr(attack, "lr")
            else "Look whether the training diverged, and train with a lower step size.",
        )
    return outcome


HELD_AGAINST = 256
"""Auxiliary images that an answer is held against, at most."""
LARGE = 3 * 128 * 128
"""Values of an image from which few of them go through an extractor at once."""


def confidence_of(observation: Observation, found: Reconstruction, device: torch.device) -> Tensor:
    """A score in [0, 1] for each answer (N,), higher is surer; NaN where there is no answer.

    Where the attacker holds the extractor behind a target r, it is b / (a + b): a is the squared
    distance from r to the representation of the answer, b that to the nearest representation of an
    auxiliary image or of the attack's answer to another target of the same upload. 0.5 says that
    some other image explains the target as well. Elsewhere it is 1 / (1 + fit), with the match that
    the attack attained. It orders answers; it is no probability.
    """
    lost = found.diverged.bool() | ~found.images.isfinite().flatten(1).all(1)
    score = _extractor_confidence(observation, found.images, device)
    if score is None:
        score = 1 / (1 + found.fit.float().clamp(min=0))
    return score.masked_fill(lost, torch.nan)


def _extractor_confidence(
    observation: Observation, images: Tensor, device: torch.device
) -> Tensor | None:
    """b / (a + b) of every target (N,), or None without the extractors behind all targets."""
    if observation.images_per_target:
        return None
    rows, owners = observation.target_rows()
    if not set(owners) <= set(observation.extractors):
        return None
    score = torch.full((len(rows),), torch.nan)
    for owner in dict.fromkeys(owners):
        where = torch.tensor([i for i, other in enumerate(owners) if other == owner])
        extractor = copy.deepcopy(observation.extractors[owner]).to(device).eval()
        own = _represent_on_cpu(extractor, images[where].float().nan_to_num(0.5), device)
        if own.shape[1] != rows.shape[1]:
            return None
        sought = rows[where].double()
        apart = torch.cdist(sought, own.double()).square()
        others = apart.clone().fill_diagonal_(torch.inf)
        if observation.aux is not None and len(observation.aux):
            public = _represent_on_cpu(extractor, observation.aux[:HELD_AGAINST], device).double()
            others = torch.cat([others, torch.cdist(sought, public).square()], 1)
        nearest, mine = others.amin(1), apart.diagonal()
        share = (nearest / (nearest + mine).clamp(min=1e-30)).float()
        score[where] = share.masked_fill(nearest.isinf(), torch.nan)
    return score


@torch.no_grad()
def _represent_on_cpu(extractor: nn.Module, images: Tensor, device: torch.device) -> Tensor:
    """Representations (n, d) of images, on the CPU."""
    some = 256 if images[:1].numel() <= LARGE else 16
    return torch.cat([extractor(part.to(device)).cpu() for part in images.split(some)])


def mismatch(
    attack: Attack | type[Attack],
    threat: ThreatModel,
    kinds: Collection[type[Artifact]],
    *,
    listed: bool = True,
) -> list[str]:
    """Every reason why an attack cannot read these kinds of uploads under a threat model.

    A class stands for the attack with its default settings.

    Args:
        listed: name the attacks that read them.
    """
    unread = [kind for kind in kinds if not can_read(attack, kind)]
    problems = []
    if unread or not kinds:
        reads = ", ".join(kind.__name__ for kind in attack.consumes)
        given = ", ".join(sorted(kind.__name__ for kind in unread)) or "nothing"
        others = f" Attacks for them: {_attacks_reading(kinds) or 'none'}." if listed else ""
        problems.append(f"Attack '{attack.name}' reads {reads}; the targets are {given}.{others}")
    return problems + missing_knowledge(attack, threat, kinds)


def missing_knowledge(
    attack: Attack | type[Attack], threat: ThreatModel, kinds: Collection[type[Artifact]]
) -> list[str]:
    """What an attack needs to know to read these kinds and a threat model does not grant."""
    problems = []
    for missing in sorted(needed_for(attack, kinds) - threat.grants):
        read = [k.__name__ for k, known in attack.needs_for.items() if k in kinds]
        why = f" to read {', '.join(read)}" if missing not in needed_for(attack, ()) else ""
        problems.append(
            f"Attack '{attack.name}' needs {missing.upper()}{why}; threat model '{threat.name}' "
            f"grants {', '.join(sorted(k.upper() for k in threat.grants))}."
        )
    return problems


def usual_attacks(target: str) -> list[str]:
    """Names of the attacks that declare to be the usual ones for a target, in their order."""
    places = {name: vars(attacks.get(name)).get("usual_for", {}) for name in attacks.names()}
    return sorted((n for n in places if target in places[n]), key=lambda n: places[n][target])


def can_read(attack: Attack | type[Attack], kind: type[Artifact]) -> bool:
    """Whether an attack reads a kind of artifact: it names it, or one that the kind is like."""
    return is_read_as(kind, attack.consumes)


def needed_for(
    attack: Attack | type[Attack], kinds: Collection[type[Artifact]]
) -> frozenset[Knowledge]:
    """Knowledge that an attack cannot do without when it reads these kinds."""
    needed = attack.needs if isinstance(attack, type) else attack.required
    alike = {one for kind in kinds for one in (kind, *kind.like)}
    more = [known for kind, known in attack.needs_for.items() if kind in alike]
    return needed.union(*more)


def readers(kinds: Collection[type[Artifact]]) -> list[str]:
    """Names of the attacks that read all of these kinds."""
    return [name for name, read in readers_of_any(kinds).items() if len(read) == len(set(kinds))]


def readers_of_any(kinds: Collection[type[Artifact]]) -> dict[str, list[type[Artifact]]]:
    """The attacks that read some of these kinds: name to the kinds that it reads."""
    ordered = sorted(set(kinds), key=lambda one: one.__name__)
    found = {
        name: [kind for kind in ordered if can_read(attacks.get(name), kind)]
        for name in attacks.names()
    }
    return {name: read for name, read in found.items() if read}


def without_gradients(kinds: Collection[type[Artifact]], threat: ThreatModel) -> list[str]:
    """Attacks on images that read these kinds and need no gradient through the client's module.

    Those are left out that need to know more than is granted, public images aside, and those that
    read what an active server prepared.
    """
    told = replace(threat, grants=threat.grants | {Knowledge.AUX_DATA})
    found = {name: attacks.get(name) for name in readers(kinds)}
    return [
        name
        for name, one in found.items()
        if one.answers == "images"
        and not one.differentiates
        and not one.steered
        and not missing_knowledge(one, told, kinds)
    ]


def _attacks_reading(kinds: Collection[type[Artifact]]) -> str:
    """Attacks by the question that they answer, with the kinds that each reads if not all."""
    by_question: dict[str, list[str]] = {}
    for name, read in readers_of_any(kinds).items():
        some = "" if len(read) == len(set(kinds)) else f" ({', '.join(k.__name__ for k in read)})"
        by_question.setdefault(attacks.get(name).answers, []).append(f"{name}{some}")
    return "; ".join(
        f"{question}: {', '.join(by_question[question])}" for question in sorted(by_question)
    )
