"""What an attack can be asked, what it is given for it, and what is made of its answer.

One question per kind of outcome. A question chooses the targets and keeps the truth; the attack
sees the observation only; `fedre_privacy.eval` scores its answer beside floors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.attacks.base import RECOVERED, Attack, can_read
from fedre_privacy.attacks.common.explained_share import rows_explained
from fedre_privacy.core.artifacts import Artifact, is_read_as
from fedre_privacy.core.outcomes import Outcome, Reconstruction
from fedre_privacy.core.plugin_errors import attribute_errors, is_plugin
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation, Upload
from fedre_privacy.core.units import human_bytes, plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Card
from fedre_privacy.eval.explained_share import ExplainedShare
from fedre_privacy.eval.report.measures import measure_chart
from fedre_privacy.eval.verdict import weakened_verdict
from fedre_privacy.experiments.adaptation import Adaptation, adaptations, sentence
from fedre_privacy.experiments.external_uploads import ExternalUploads
from fedre_privacy.experiments.targets import KINDS, TargetSource
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.run import SECRET, Run
from fedre_privacy.runs.settings import NAIVE, AttackSettings

NAMES = {
    "entangled": "entangled representations",
    "recovered-prototypes": "prototypes recovered from the uploads",
    "update": "gradients or updates",
    "class-logits": "mean outputs of classes",
}
"""Kinds whose name does not say what they are."""


@dataclass(frozen=True, eq=False)
class Trial:
    """An attack ready to run: what the attacker gets, and what the evaluator keeps.

    Args:
        run: what is attacked: a run's folder, or what was given in its place. The attack itself
            gets none of it.
        attack_seed: the seed that the attack is given.
        kind: what is attacked, in the words of ``--target``.
        counterfactual: the protocol does not upload it.
        departs: how what was uploaded differs from what is declared (`declared.departure`).
    """

    run: Run | ExternalUploads
    settings: AttackSettings
    attack_seed: int
    observation: Observation
    kind: str
    counterfactual: bool
    round: int
    departs: str = field(default="", kw_only=True)

    @classmethod
    def of(
        cls,
        source: TargetSource,
        settings: AttackSettings,
        observation: Observation,
        kind: str,
        counterfactual: bool = False,
        **more: Any,
    ) -> Self:
        """The trial of a recorded round; `more` is what a question's own trial holds."""
        return cls(
            source.run, settings, source.attack_seed, observation, kind, counterfactual,
            source.round, **more,
        )  # fmt: skip

    def hidden(self) -> list[Path]:
        """What the attack must not be able to open."""
        return self.run.secrets()

    def lines(self) -> dict[str, str]:
        """The trial in words: what was uploaded, who attacks, what is sought."""
        threat = self.observation.threat
        attacker = f"{self.run.active}: {threat.summary}" if self.run.active else threat.summary
        given = sorted(threat.grants - self.settings.threat.grants)
        if given:
            attacker += f"; this protocol hands over {', '.join(given)}"
        attacker += self._unkept() + self._defence_words()
        attacker += "".join(f"; weakened: {why}" for why in self.weaknesses())
        named = f"{NAMES.get(self.kind, self.kind)} of round {self.round}"
        if self.counterfactual:
            named += f"   COUNTERFACTUAL: not uploaded by {self.run.system}"
        return {
            "Uploaded": self._upload_words(),
            "Attacker": attacker,
            "Target": named,
            **({"Note": self.departs} if self.departs else {}),
            **self._guessable(),
            "Unknown": self.unknown(),
        }

    def _guessable(self) -> dict[str, str]:
        """What hidden draws follow from, where the attack is not one of ours."""
        told = self.run.provenance() if is_plugin(type(self.settings.attack).__module__) else {}
        return {SECRET: told[SECRET]} if SECRET in told else {}

    def _upload_words(self) -> str:
        """What a client uploaded in the attacked round, in words and sizes."""
        uploads = [upload for upload in self.observation.uploads if upload.round == self.round]
        first = next((u for u in uploads if u.artifacts), None)
        if first is None:
            return f"nothing: {self.run.system} uploads no artifact"
        what = " + ".join(
            f"{count} {content.replace('_', ' ')} values"
            for artifact in first.artifacts
            for content, count in artifact.scalars().items()
        )
        names = " + ".join(type(a).__name__ for a in first.artifacts)
        size = sum(a.nbytes() for a in first.artifacts)
        sizes = {sum(a.nbytes() for a in u.artifacts) for u in uploads}
        whom = "per client and round"
        if first.participants:
            whom = f"in one sum over {len(first.participants)} clients a round"
        elif len(sizes) > 1:
            whom = f"by client {first.client} in round {self.round}, others differ"
        return f"{names}: {what} {whom} ({human_bytes(size)})"

    def adaptations(self) -> list[tuple[Adaptation, ...]]:
        """What the attack makes of each declared defence; first the one that finds its targets.

        What stands beside the targets for comparison is left out.
        """
        return [adaptations(attack, seen) for attack, seen in self._stages()]

    def weaknesses(self) -> tuple[str, ...]:
        """Why the attack, or the one that finds its targets, finds less here than it could."""
        said: list[str] = []
        for attack, seen in self._stages():
            with attribute_errors(attack):
                said += attack.weakened(seen)
        return tuple(dict.fromkeys(said))

    def _stages(self) -> list[tuple[Attack, Observation]]:
        """The attacks that are run, each with what it attacks; first the one that finds targets."""
        seen = self.observation
        if self.kind in KINDS:
            seen = replace(seen, targets=only_kinds(seen.targets, {KINDS[self.kind]}))
        stages = [(self.settings.attack, seen)]
        via = self.settings.via
        if self.kind == RECOVERED and via is not None:
            sent = [upload for upload in seen.uploads if upload.round == self.round]
            first = replace(seen, targets=only_kinds(sent, set(via.consumes)))
            stages.insert(0, (via, first))
        return stages

    def score(self, outcome: Any) -> Card:
        """Compare an outcome with the truth; what weakened the attack stands in the verdict."""
        card = question_of(self.settings).score(self, outcome)
        why = (*self.weaknesses(), *([self.departs] if self.departs else []))
        notes = (self.departs, *card.notes) if self.departs else card.notes
        return replace(card, verdict=weakened_verdict(card.verdict, why), notes=notes)

    def figures(self, outcome: Any, card: Card) -> dict[str, Figure]:
        """Figures by file name, the main one first."""
        return question_of(self.settings).figures(self, outcome, card)

    def write(self, folder: Path, outcome: Any) -> None:
        """Write what the question keeps beside scores and figures."""
        question_of(self.settings).write(folder, self, outcome)

    def _defence_words(self) -> str:
        """What is known of the defences, and what is made of them."""
        declared = [defense.name for defense in self.run.defenses]
        if self.settings.evaluation.attacker == NAIVE:
            return f"; naive: does not know {', '.join(declared)}" if declared else ""
        stages = [found for found in self.adaptations() if found]
        if len(stages) < 2:
            return "".join(f"; {sentence(found)}" for found in stages)
        return "".join(f"; {found[0].attack}: {sentence(found)}" for found in stages)

    def _unkept(self) -> str:
        """What the attacker may hold of earlier rounds and the recording did not keep."""
        seen = self.observation
        sent = {u.round for u in seen.uploads if 0 < u.round <= self.round}
        combined = any(a.over_rounds for u in seen.uploads for a in u.artifacts)
        if not combined or Knowledge.ALL_EXTRACTORS not in seen.threat.grants:
            return ""
        held = sent & {round for _, round in seen.extractors}
        if len(held) == len(sent):
            return ""
        return (
            f"; held: extractors of {len(held)} of {plural(len(sent), 'round')}, which weakens "
            "attacks over rounds (train with record.keep_every=1 for all)"
        )

    def unknown(self) -> str:
        """What is sought, with its size."""
        channels, height, width = self.run.image_shape
        count = self.observation.image_count()
        sought = f"{count} x {channels}x{height}x{width} values"
        if self.observation.images_per_target:
            return f"{sought} in {len(self.observation.targets)} uploads"
        rows, _ = self.observation.target_rows()
        return f"{sought} from {count} x {rows.shape[1]} observed"


class Question(ABC):
    """What is asked of an attack, from the choice of targets to figures."""

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another question: a clause of at most 100 characters."""
    is_target: ClassVar[bool] = False
    """Whether its name is a ``--target``: it is asked of whatever was uploaded."""
    answered_by: ClassVar[str] = ""
    """What an attack has to answer (`Attack.answers`); empty: the question's own name."""
    simulates: ClassVar[bool] = False
    """Whether attacks on parameters answer it by computing as the clients did, which is refused
    where a protocol hides how (`Protocol.unseen`)."""
    from_recording: ClassVar[bool] = False
    """Whether its truth needs no trained model, so that a round whose extractors were not kept can
    be asked about by an attacker who holds none."""

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        """Kinds of artifacts that the attack must be able to read.

        Those of the target that it reads; all of them where it reads none.
        """
        return readable(settings.attack, kinds_of(protocol, settings.target))

    @abstractmethod
    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> Trial:
        """Choose targets and build the observation."""

    @abstractmethod
    def outcome(self) -> type[Outcome]:
        """What the attack returns, for reading a finished attack back."""

    @abstractmethod
    def score(self, trial: Any, outcome: Any) -> Card:
        """Compare an outcome with the truth."""

    def figures(self, trial: Any, outcome: Any, card: Any) -> dict[str, Figure]:
        """Figures by file name, the main one first; none where no measure has a value."""
        listed = card.listed()
        if all(measure.value is None for measure in listed):
            return {}
        title = f"{trial.settings.attack.name} on {trial.kind} ({trial.run.name})"
        caption = f"Compared with: {card.compared_with}. Means with 95 % intervals over clients."
        return {"figure": measure_chart(listed, title=title, caption=caption)}

    def write(self, folder: Path, trial: Any, outcome: Any) -> None:  # noqa: B027 (nothing more)
        """Write further files."""


questions: Registry[Question] = Registry("question", "fedre_privacy.experiments.questions")


def question_of(settings: AttackSettings) -> Question:
    """The question that an attack is asked: that of the target, where the attack answers it."""
    named = asked_by(settings.target)
    if named is not None and (named.answered_by or named.name) == settings.attack.answers:
        return named()
    return questions.get(settings.attack.answers)()


def asked_by(target: str) -> type[Question] | None:
    """The question that a ``--target`` names, or None where it names uploads."""
    if target not in questions.names() or not questions.get(target).is_target:
        return None
    return questions.get(target)


def questions_for(answers: str) -> list[str]:
    """Questions that an attack with these answers can be asked, its own first."""
    others = [n for n in questions.names() if questions.get(n).answered_by == answers]
    return [answers, *others]


def kinds_of(protocol: Protocol, target: str) -> set[type[Artifact]]:
    """Kinds of artifacts behind a ``--target``; those of ``uploaded`` are the protocol's own."""
    if target in KINDS:
        return {KINDS[target]}
    carried = set(protocol.uploads)
    return {k for k in carried if k.updates} if target == "update" else carried


def readable(attack: Attack, kinds: Iterable[type[Artifact]]) -> set[type[Artifact]]:
    """What an attack reads of some kinds; all of them where it reads none."""
    every = set(kinds)
    return {kind for kind in every if can_read(attack, kind)} or every


def is_uploaded(target: str) -> bool:
    """Whether a target means whatever was uploaded: it is "uploaded", or names a question."""
    return target == "uploaded" or asked_by(target) is not None


def only_kinds(uploads: Iterable[Upload], kinds: set[type[Artifact]]) -> tuple[Upload, ...]:
    """Uploads reduced to artifacts of some kinds; clients without any are left out."""
    kept = (
        Upload(
            u.client,
            u.round,
            tuple(a for a in u.artifacts if is_read_as(type(a), kinds)),
            u.counterfactual,
        )
        for u in uploads
    )
    return tuple(upload for upload in kept if upload.artifacts)


def explained_by(
    attack: Attack, observation: Observation, found: Reconstruction
) -> ExplainedShare | None:
    """The measure of an attack's answers to the targets of an observation, and of any others.

    Vectors are compared with what extractors make of images, or as the attack says
    (`Attack.explained`); gradients and updates as the attack says, with the labels it found.

    Returns:
        None where the attacker cannot compute what images would come to, or answered nothing.
    """

    def share(images: Tensor) -> Tensor:
        with single_threaded(torch.device("cpu")):  # sums do not depend on the number of threads
            with attribute_errors(attack):
                told = attack.explained(observation, images, found.labels)
            if told is None and not observation.images_per_target:
                told = rows_explained(observation, images, observation.extractors)
        return torch.full((len(images),), torch.nan) if told is None else told

    if not bool(share(found.images).isfinite().any()):
        return None
    compared = (
        "the squared cosine between it and what the client would send of the answer; of an attack "
        "in closed form, the share of its layer's gradient in the span of the answer's inputs"
    )
    if not observation.images_per_target:
        compared = "1 - ||f(x) - r||^2 / ||r||^2, with f(x) by the extractor or model that is held"
    return ExplainedShare(share=share, compared=compared)
