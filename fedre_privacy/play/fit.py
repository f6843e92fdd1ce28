"""Whether an attack fits a training, found out before either is run."""

from __future__ import annotations

from collections.abc import Collection

from fedre_privacy.attacks.base import (
    Attack,
    attacks,
    can_read,
    lacking,
    mismatch,
    needed_for,
    readers_of_any,
)
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.contents import Holds
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.types import Knowledge
from fedre_privacy.core.units import plural
from fedre_privacy.defenses.base import Defense
from fedre_privacy.federation.loop import select
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.resolving import ATTACKS_FOR
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.steering.apply import alone
from fedre_privacy.threats.base import granting

from .held import through_shared
from .observe import effective, stale
from .questions.base import asked_by, is_uploaded, question_of, questions


def check_ahead(training: TrainSettings, settings: AttackSettings) -> None:
    """Refuse, before anything is trained, an attack that the trained run could not serve.

    Raises:
        IncompatibleError: see `check_fit`.
        ConfigError: the round would not exist or not be kept, or the truth would be missing.
    """
    check_fit(training, settings)
    check_sums(training, settings)
    last, every = training.train.rounds, training.record.keep_every
    wanted = settings.evaluation.round or (1 if settings.earliest else last)
    problems = []
    if wanted > last:
        problems.append(f"'eval.round' is {wanted}; the training has {plural(last, 'round')}.")
    elif not training.record.keeps(wanted, last) and (
        not training.record.records(wanted, last) or not only_recorded(training, settings)
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
        and not any(training.record.keeps(r, last) for r in range(1, wanted))
    ):
        problems.append(
            f"Attack '{settings.attack.name}' reads several rounds through clients' models, and "
            f"those of one round would be kept: record.keep_every is {every}. Add --set "
            "record.keep_every=1, or read one round alone: --set attack.rounds=1."
        )
    if not training.record.truth:
        problems.append(
            "Without the truth (--no-truth) no attack can be scored. Leave it out, or train alone "
            "with fedre-train."
        )
    if problems:
        raise ConfigError(*problems)
    age = settings.evaluation.staleness
    if age:
        kept = [r for r in range(1, last + 1) if training.record.keeps(r, last)]
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


def check_fit(training: TrainSettings, settings: AttackSettings) -> None:
    """Refuse an attack that cannot read the target, before anything is trained or loaded.

    Raises:
        IncompatibleError: with the attacks or the threat model that would do.
    """
    protocol = training.protocol
    if not protocol.uploads and is_uploaded(settings.target):
        raise IncompatibleError(
            f"Protocol '{protocol.name}' uploads nothing, so target '{settings.target}' is empty.",
            next_step="Ask what it would leak if it did: --target representations, prototypes or "
            "entangled (counterfactual).",
        )
    question, named = question_of(settings), asked_by(settings.target)
    if named is not None and not isinstance(question, named):
        wanted = named.answered_by or named.name
        able = [n for n in attacks.names() if attacks.get(n).answers == wanted]
        raise IncompatibleError(
            f"Attack '{settings.attack.name}' answers {settings.attack.answers}; target "
            f"'{settings.target}' needs one that answers {wanted}: {', '.join(able)}.",
            next_step="Name one of them, or leave the attack out.",
        )
    kinds = question.kinds(protocol, settings)
    if not kinds:
        raise IncompatibleError(
            f"Protocol '{protocol.name}' uploads "
            f"{', '.join(kind.__name__ for kind in protocol.uploads) or 'nothing'}, none of which "
            f"is a target '{settings.target}'.",
            next_step="Attack what it uploads (--target uploaded), or ask what it would leak if "
            "it uploaded more: --target representations, prototypes or entangled (counterfactual).",
        )
    if hides_its_loss(training, settings.attack, kinds):
        raise IncompatibleError(
            "Attacks on parameters repeat the training of clients, or compute its loss, on images "
            f"they try; '{protocol.name}' {training.unseen}.",
            next_step=f"Ask for what can be read: {_without_a_loss(protocol, settings, kinds)}.",
        )
    if hides_its_head(protocol, settings.attack, kinds) or (
        settings.via is not None and hides_its_head(protocol, settings.via, protocol.uploads)
    ):
        raise IncompatibleError(
            "The change of a head tells of representations where it reads those of the extractor "
            f"beside it; '{protocol.name}' {protocol.unseen}.",
            next_step=f"Ask for what can be read: {_without_a_loss(protocol, settings, kinds)}.",
        )
    check_steered(training, settings.attack)
    shared = through_shared(training, settings)
    threat = effective(settings.threat, training, shared=shared)
    problems = mismatch(settings.attack, threat, kinds)
    if settings.via is not None:
        read = {kind for kind in protocol.uploads if can_read(settings.via, kind)}
        problems += lacking(settings.via, threat, read)
        if not read:
            problems.append(
                f"Attack '{settings.via.name}', which would recover the prototypes, reads "
                f"{', '.join(k.__name__ for k in settings.via.consumes)}; '{protocol.name}' "
                f"uploads {', '.join(k.__name__ for k in protocol.uploads) or 'nothing'}."
            )
    if not problems:
        return
    step = "See: fedre-attack list."
    first = [] if settings.via is None or read else first_stages(protocol)
    fitting = [
        name
        for name, read in readers_of_any(kinds).items()
        if attacks.get(name).answers == settings.attack.answers and name != settings.attack.name
    ]
    needed = needed_for(settings.attack, kinds)
    if first:
        step = f"Use --set via.name={' or '.join(first)}."
    elif needed & settings.threat.grants - threat.grants:
        step = (
            "Each client draws its own initial weights (model.init=private), so nobody knows them. "
            "Train with model.init=shared."
        )
        if hasattr(settings.attack, "start"):
            step += (
                " Or attack from random weights, as that attacker has to: --threat no-extractor "
                "--set attack.start=random."
            )
    elif needed - threat.grants:
        options = [f"--threat {name}" for name in granting(needed)[:1]]
        options += [
            f"--attack {n}" for n in fitting if needed_for(attacks.get(n), kinds) <= threat.grants
        ]
        step = f"Use {', or '.join(options)}." if options else step
    elif fitting and settings.target == "uploaded" and all(kind.updates for kind in kinds):
        step = f"Use --target update, or --attack {' or '.join(fitting)}."
    elif fitting and settings.target in ATTACKS_FOR:
        step = f"Use --attack {' or '.join(fitting)}."
    elif not fitting:
        step = (
            "Ask what it would leak if it uploaded them: --target representations, prototypes or "
            "entangled (counterfactual)."
        )
    raise IncompatibleError(*problems, next_step=step)


def check_steered(training: TrainSettings, attack: Attack) -> None:
    """Refuse an attack that reads what an active server prepared where it did not.

    Raises:
        IncompatibleError: none of the steerings that it needs was used.
    """
    used = [one.name for one in training.steering]
    if not attack.steered or set(attack.steered) & set(used):
        return
    raise IncompatibleError(
        f"Attack '{attack.name}' reads what a server prepared by steering "
        f"{' or '.join(attack.steered)}; the server of this run "
        f"{'steers by ' + ', '.join(used) if used else 'is honest'}.",
        next_step=f"Train with --steering {attack.steered[0]}.",
    )


def first_stages(protocol: Protocol | type[Protocol]) -> list[str]:
    """Attacks that recover prototypes from what a protocol uploads."""
    return [
        name
        for name in readers_of_any(protocol.uploads)
        if attacks.get(name).answers == "prototypes"
        and not hides_its_head(protocol, attacks.get(name), protocol.uploads)
    ]


def hides_its_loss(
    training: TrainSettings, attack: Attack | type[Attack], kinds: Collection[type[Artifact]]
) -> bool:
    """Whether an attack on these kinds would compute a loss that nobody but the clients can."""
    simulates = questions.get(attack.answers).simulates and attack.simulates
    return bool(training.unseen) and simulates and any(kind.updates for kind in kinds)


def hides_its_head(
    protocol: Protocol | type[Protocol],
    attack: Attack | type[Attack],
    kinds: Collection[type[Artifact]],
) -> bool:
    """Whether an attack would take a head's inputs for those of an extractor that is not before it.

    Args:
        kinds: that are attacked, of which the attack reads some.
    """
    reads = any(kind.updates and can_read(attack, kind) for kind in kinds)
    return bool(protocol.unseen) and attack.answers == "prototypes" and reads


def _without_a_loss(
    protocol: Protocol, settings: AttackSettings, kinds: Collection[type[Artifact]]
) -> str:
    """A command that asks the question of a protocol whose training is hidden, or another one."""
    read = {name: attacks.get(name) for name in readers_of_any(kinds)}
    answers = settings.attack.answers
    blind = [n for n, kind in read.items() if not kind.simulates and kind.answers == answers]
    blind.sort(key=lambda name: not read[name].suite)  # those that benchmarks use first
    asked = f"--target {settings.target} --attack {blind[0]}" if blind else "--target labels"
    return f"fedre-attack --protocol {protocol.name} {asked}"


def check_sums(training: TrainSettings, settings: AttackSettings) -> None:
    """Refuse an attack on single clients where the server sees their sum only.

    A sum of gradients or parameters is that of one larger batch and can be attacked as such.

    Raises:
        IncompatibleError: the attack asks about single clients.
    """
    summed = [d.name for d in training.defense if type(d).seen is not Defense.seen]
    joined = len(select(training.train, 1))
    last = settings.evaluation.round or training.train.rounds
    if alone(training.steering, training.train.clients, joined, range(1, last + 1)):
        return  # the server took what its own clients sent out of every sum
    updates = any(kind.updates for kind in training.protocol.uploads)
    on_updates = settings.target == "update" or (settings.target == "uploaded" and updates)
    if not summed or (on_updates and settings.attack.answers == "images"):
        return
    raise IncompatibleError(
        f"Under defence '{summed[0]}' the server sees one sum over clients a round; attack "
        f"'{settings.attack.name}' on target '{settings.target}' asks about single clients.",
        next_step="Attack the sum as one update of more images (--attack inverting-gradients "
        "--target update, for protocols that send gradients or parameters), or a run without "
        f"{summed[0]}.",
    )
