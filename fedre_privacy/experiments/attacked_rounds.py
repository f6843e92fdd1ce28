"""Whether a training would have what an attack on one of its rounds reads."""

from __future__ import annotations

from fedre_privacy.core.artifact_schema import Holds
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.types import Knowledge
from fedre_privacy.core.units import plural
from fedre_privacy.runs.settings import AttackSettings, RecordSettings, TrainSettings

from .attacker_models import through_shared
from .observation import effective, stale
from .questions.base import question_of


def check_rounds(
    training: TrainSettings, settings: AttackSettings, record: RecordSettings | None = None
) -> None:
    """Refuse an attack on rounds that would not exist or not be kept.

    Args:
        record: what the run keeps, where that is known; None: models of all rounds, which a run
            keeps if they are small, are.

    Raises:
        ConfigError: they would not, or the truth would be missing.
        IncompatibleError: extractors would be asked for that are older than there are.
    """
    if record is None:
        record = training.keeping_all() if training.keeps_small else training.record
    last, every = training.train.rounds, record.keep_every
    wanted = settings.evaluation.round or (1 if settings.earliest else last)
    problems = []
    if wanted > last:
        problems.append(f"'eval.round' is {wanted}; the training has {plural(last, 'round')}.")
    elif not record.keeps(wanted, last) and (
        not record.records(wanted, last) or not only_recorded(training, settings)
    ):
        add = "record.keep_first=true" if wanted == 1 else f"record.keep_every={wanted}"
        asked = "'eval.round' is" if settings.evaluation.round else "The attack is on round"
        problems.append(
            f"{asked} {wanted}, whose extractors would not be kept: record.keep_every is {every}. "
            f"Add --set {add}."
        )
    if settings.attack.first_alone and wanted > 1:
        problems.append(
            f"Attack '{settings.attack.name}' reads the first round alone, and 'eval.round' is "
            f"{wanted}. Leave eval.round out."
        )
    if (
        settings.attack.several_rounds
        and wanted > 1
        and not any(record.keeps(r, last) for r in range(1, wanted))
    ):
        problems.append(
            f"Attack '{settings.attack.name}' reads several rounds through clients' models, and "
            f"those of one round would be kept: record.keep_every is {every}. Add --set "
            "record.keep_every=1, or read one round alone: --set attack.rounds=1."
        )
    if not record.truth:
        problems.append(
            "Without the truth (--no-truth) no attack can be scored. Leave it out, or train alone "
            "with fedre-train."
        )
    if problems:
        raise ConfigError(*problems)
    age = settings.evaluation.staleness
    if age:
        kept = [r for r in range(1, last + 1) if record.keeps(r, last)]
        shared = through_shared(training, settings)
        threat = effective(settings.threat, training, shared=shared)
        stale(threat, training.protocol, wanted, age, kept, shared=shared)


def only_recorded(training: TrainSettings, settings: AttackSettings) -> bool:
    """Whether any recorded round can be attacked, its extractors kept or not.

    So it is of images behind parameters, which hold what an attack reads, all of a client's images
    having made them; and of questions that ask about data alone, where no extractor is granted.
    """
    question = question_of(settings)
    if question.from_recording:
        threat = effective(settings.threat, training)
        return Knowledge.EXTRACTOR not in threat.grants
    kinds = question.kinds(training.protocol, settings)
    sent = all(kind.updates and kind.holds is not Holds.GRADIENT for kind in kinds)
    return settings.attack.answers == "images" and bool(kinds) and sent
