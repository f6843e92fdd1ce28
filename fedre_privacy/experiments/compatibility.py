"""Whether an attack fits a training, found out before either is run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from fedre_privacy.active_server.base import steerings
from fedre_privacy.active_server.behaviour import alone
from fedre_privacy.attacks.base import (
    RECOVERED,
    Attack,
    attacks,
    can_read,
    mismatch,
    missing_knowledge,
    needed_for,
    readers_of_any,
    usual_attacks,
)
from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.errors import FedreError, IncompatibleError
from fedre_privacy.core.types import Knowledge
from fedre_privacy.defenses.base import Defense
from fedre_privacy.federation.loop import select
from fedre_privacy.runs.resolution import DEFAULTS
from fedre_privacy.runs.settings import AttackSettings, TrainSettings
from fedre_privacy.threats.base import threats, threats_granting

from .attacked_rounds import check_rounds
from .attacker_models import through_shared
from .observation import effective
from .questions.base import asked_by, is_uploaded, question_of
from .suite import entries_for, first_stages, hides_its_head, hides_its_loss
from .targets import KINDS


def check_ahead(training: TrainSettings, settings: AttackSettings) -> None:
    """Refuse, before anything is trained, an attack that the trained run could not serve.

    Raises:
        IncompatibleError: see `check_fit`.
        ConfigError: the round would not exist or not be kept, or the truth would be missing.
    """
    check_fit(training, settings)
    check_sums(training, settings)
    check_rounds(training, settings)


def check_fit(training: TrainSettings, settings: AttackSettings) -> None:
    """Refuse an attack that cannot read the target, before anything is trained or loaded.

    Raises:
        IncompatibleError: with the attacks or the threat model that would do.
    """
    found = misfit(training, settings)
    if found is None:
        return
    kinds = question_of(settings).kinds(training.protocol, settings)
    problems = found.problems
    if found.listed:
        problems = (f"{problems[0]} Attacks for them: {_list_attacks(training, settings, kinds)}.",
                    *problems[1:])  # fmt: skip
    step = found.step or _next_step(training, settings, kinds)
    raise IncompatibleError(*problems, next_step=step)


@dataclass(frozen=True)
class Misfit:
    """Why an attack does not fit a training.

    Args:
        step: what to change; empty: what `ways` finds.
        listed: whether the first problem is followed by the attacks that read the targets.
    """

    problems: tuple[str, ...]
    step: str = ""
    listed: bool = False


def misfit(training: TrainSettings, settings: AttackSettings) -> Misfit | None:
    """Why an attack cannot read the target of a training; None: it can."""
    protocol = training.protocol
    sent = ", ".join(kind.__name__ for kind in protocol.uploads) or "nothing"
    if not protocol.uploads and is_uploaded(settings.target):
        empty = f"so target '{settings.target}' is empty."
        return Misfit((f"Protocol '{protocol.name}' uploads nothing, {empty}",))
    question, named = question_of(settings), asked_by(settings.target)
    if named is not None and not isinstance(question, named):
        wanted = named.answered_by or named.name
        able = [n for n in attacks.names() if attacks.get(n).answers == wanted]
        says = (
            f"Attack '{settings.attack.name}' answers {settings.attack.answers}; target "
            f"'{settings.target}' needs one that answers {wanted}: {', '.join(able)}."
        )
        return Misfit((says,), _answering(training, settings, able))
    kinds = question.kinds(protocol, settings)
    if not kinds:
        says = (
            f"Protocol '{protocol.name}' uploads {sent}, none of which is a target "
            f"'{settings.target}'."
        )
        return Misfit((says,))
    if hides_its_loss(training, settings.attack, kinds):
        says = (
            "Attacks on parameters repeat the training of clients, or compute its loss, on images "
            f"they try; '{protocol.name}' {training.unseen}."
        )
        return Misfit((says,))
    if hides_its_head(protocol, settings.attack, kinds) or (
        settings.via is not None and hides_its_head(protocol, settings.via, protocol.uploads)
    ):
        says = (
            "The change of a head tells of representations where it reads those of the extractor "
            f"beside it; '{protocol.name}' {protocol.unseen}."
        )
        return Misfit((says,))
    if lacks_steering(training, settings.attack):
        return _steering_problems(training, settings)
    threat = effective(settings.threat, training, shared=through_shared(training, settings))
    unread = any(not can_read(settings.attack, kind) for kind in kinds)
    problems = mismatch(settings.attack, threat, kinds, listed=False)
    readable, first_stage = not unread, True
    if settings.via is not None:
        read = {kind for kind in protocol.uploads if can_read(settings.via, kind)}
        problems += missing_knowledge(settings.via, threat, read)
        if not read:
            readable = first_stage = False
            problems.append(
                f"Attack '{settings.via.name}', which would recover the prototypes, reads "
                f"{', '.join(k.__name__ for k in settings.via.consumes)}; '{protocol.name}' "
                f"uploads {sent}."
            )
    if not problems:
        return None
    step = ""
    needed = needed_for(settings.attack, kinds)
    lost = needed & settings.threat.grants - threat.grants
    if readable and Knowledge.FROZEN_EXTRACTOR in needed - threat.grants:
        step = "It is for extractors that nobody trains. Use "
        if not training.public_extractors:
            step += "--models efficientnet-lite0 --set model.trainable=head "
        step += "--threat public-backbone."
    elif not readable or not needed <= settings.threat.grants:
        pass  # it does not fit however clients train
    elif Knowledge.EXTRACTOR in lost:
        step = (
            "Clients' extractors are public where nobody trains them: train with "
            "--models efficientnet-lite0 --set model.trainable=head, or use --threat strong."
        )
    elif lost:
        step = (
            "Each client draws its own initial weights (model.init=private), so nobody knows them. "
            "Train with model.init=shared."
        )
        if hasattr(settings.attack, "start"):
            step += (
                " Or attack from random weights, as that attacker has to: --threat no-extractor "
                "--set attack.start=random."
            )
    return Misfit(tuple(problems), step, listed=unread and first_stage)


def _answering(training: TrainSettings, settings: AttackSettings, names: Collection[str]) -> str:
    """The attacks of a list that pass on the target, or one with a threat model; empty: none."""
    made = [replace(settings, attack=attacks.get(name)()) for name in names]
    if able := [one.attack.name for one in made if passes(training, one)]:
        return f"Use --attack {' or '.join(able)}."
    for one in made:
        kinds = question_of(one).kinds(training.protocol, one)
        for name in threats_granting(needed_for(one.attack, kinds)):
            other = replace(one, threat=threats.get(name))
            if passes(training, other):
                return f"Use {_options(settings, other)}."
    return ""


def passes(training: TrainSettings, settings: AttackSettings) -> bool:
    """Whether nothing that is known before a training refuses an attack on it."""
    if misfit(training, settings) is not None or _sum_problem(training, settings):
        return False
    try:
        check_rounds(training, settings)
    except FedreError:
        return False
    return True


def ways(training: TrainSettings, settings: AttackSettings) -> list[str]:
    """Options that turn a refused attack into one that `passes`, the nearest first."""
    question = question_of(settings)
    kinds = question.kinds(training.protocol, settings)
    needed = needed_for(settings.attack, kinds)
    if settings.via is not None:
        needed |= needed_for(settings.via, training.protocol.uploads)

    def able(others: Iterable[AttackSettings]) -> Iterator[AttackSettings]:
        return (other for other in others if passes(training, other))

    def another(name: str, **more: Any) -> AttackSettings:
        return replace(settings, attack=attacks.get(name)(), **more)

    stages = () if settings.via is None else first_stages(training.protocol)
    vias = able(replace(settings, via=attacks.get(name)()) for name in stages)
    stronger = able(
        replace(settings, threat=threats.get(name)) for name in threats_granting(needed)
    )
    read = _readers(kinds)
    alike = [name for name in read if attacks.get(name).answers == settings.attack.answers]
    others = list(able(another(name) for name in alike if name != settings.attack.name))
    granted_as_asked: Iterable[AttackSettings] = ()
    if is_uploaded(settings.target) and settings.threat.name != DEFAULTS["threat"]:
        usual = usual_ones(training, settings)
        granted_as_asked = (other for other in usual if other.threat == settings.threat)
    out = [*map(partial(_options, settings), (*vias, *islice(stronger, 1)))]
    if others:
        out.append("--attack " + " or ".join(other.attack.name for other in others))
    else:
        out = [*map(partial(_options, settings), islice(granted_as_asked, 1)), *out]
    if not out:
        granted = [
            another(name, threat=threats.get(threat))
            for name in alike
            for threat in threats_granting(needed_for(attacks.get(name), kinds))[:1]
        ]
        out = [_options(settings, other) for other in islice(able(granted), 1)]
    if not out and settings.target != RECOVERED:
        out = [_options(settings, other) for other in islice(usual_ones(training, settings), 2)]
    return out


def usual_ones(training: TrainSettings, settings: AttackSettings) -> Iterator[AttackSettings]:
    """Attacks of the suite on what is uploaded that pass, those on images first.

    Those that pass with the threat model come before those that need their own.
    """
    made = [
        (attacks.get(name)(**entry.settings), threats.get(entry.threat))
        for name, entry in entries_for(training)
        if entry.target in ("uploaded", "update")
    ]
    made.sort(key=lambda one: one[0].answers != "images")
    asked = replace(settings, target="uploaded", via=None)
    found: list[str] = []
    for known in (True, False):
        for attack, own in made:
            other = replace(asked, attack=attack, threat=asked.threat if known else own)
            if attack.name not in found and passes(training, other):
                found.append(attack.name)
                yield other


def _readers(kinds: Collection[type[Artifact]]) -> dict[str, list[type[Artifact]]]:
    """The attacks that a hint may name, with the kinds that each reads.

    Numbers of samples alone are nothing to attack, and attacks on networks of a particular form
    find out too late whether these are of it.
    """
    return {
        name: read
        for name, read in readers_of_any(kinds).items()
        if not attacks.get(name).particular and any(Role.OPEN not in kind.roles for kind in read)
    }


def _list_attacks(
    training: TrainSettings, settings: AttackSettings, kinds: Collection[type[Artifact]]
) -> str:
    """Attacks that pass on the targets by the question that they answer, with what each needs."""
    by_question: dict[str, list[str]] = {}
    first = settings.via
    before = frozenset() if first is None else needed_for(first, training.protocol.uploads)
    for name, read in _readers(kinds).items():
        needed = needed_for(attacks.get(name), read) | before
        for threat in (settings.threat, *map(threats.get, threats_granting(needed))):
            other = replace(settings, attack=attacks.get(name)(), threat=threat)
            if passes(training, other):
                some = [] if len(read) == len(set(kinds)) else [k.__name__ for k in read]
                some += [] if threat == settings.threat else [f"--threat {threat.name}"]
                said = f"{name} ({', '.join(some)})" if some else name
                by_question.setdefault(other.attack.answers, []).append(said)
                break
    listed = (f"{question}: {', '.join(by_question[question])}" for question in sorted(by_question))
    return "; ".join(listed) or "none"


def _options(before: AttackSettings, after: AttackSettings) -> str:
    """The options that turn one attack into another."""
    options = []
    if after.target != before.target:
        options.append(f"--target {after.target}")
    if after.attack.name != before.attack.name:
        options.append(f"--attack {after.attack.name}")
    if after.threat != before.threat:
        options.append(f"--threat {after.threat.name}")
    if after.via is not None and after.via != before.via:
        options.append(f"--set via.name={after.via.name}")
    return " ".join(options)


def _next_step(
    training: TrainSettings, settings: AttackSettings, kinds: Collection[type[Artifact]]
) -> str:
    """What to type in place of an attack that does not fit: options that pass every check."""
    found = ways(training, settings)
    if found:
        return f"Use {', or '.join(found)}."
    sought = [replace(settings, target=one, via=None) for one in KINDS if one != RECOVERED]
    sought = [one for one in sought if one.target != settings.target]
    asked = [one for one in sought if passes(training, one)]
    usual = attacks.get(DEFAULTS["attack"])()
    for threat in (settings.threat, threats.get(DEFAULTS["threat"])):
        if not asked:
            others = [replace(one, attack=usual, threat=threat) for one in sought]
            asked = [one for one in others if passes(training, one)]
    if not asked:
        return "See: fedre-attack list."
    *most, last = [one.target for one in asked]
    named = " or ".join([", ".join(most), last] if most else [last])
    alike = replace(asked[0], target=settings.target)
    attack = f" {options}" if (options := _options(settings, alike)) else ""
    more = "uploaded them" if training.protocol.uploads else "did"
    return f"Ask what it would leak if it {more}: --target {named} (counterfactual){attack}."


def lacks_steering(training: TrainSettings, attack: Attack) -> bool:
    """Whether an attack reads what an active server prepared by a steering that was not used."""
    used = {one.name for one in training.steering}
    return bool(attack.steered) and not used.intersection(attack.steered)


def _steering_problems(training: TrainSettings, settings: AttackSettings) -> Misfit:
    attack, used = settings.attack, [one.name for one in training.steering]
    says = (
        f"Attack '{attack.name}' reads what a server prepared by steering "
        f"{' or '.join(attack.steered)}; the server of this run "
        f"{'steers by ' + ', '.join(used) if used else 'is honest'}."
    )
    clients, sent = training.train.clients, training.protocol.broadcasts
    for name in attack.steered:
        steering = steerings.get(name)()
        steered = replace(training, steering=(steering,))
        if steering.check(clients, sent):
            continue
        if passes(steered, settings):
            return Misfit((says,), f"Train with --steering {name}.")
        for threat in threats_granting(attack.required):
            if passes(steered, replace(settings, threat=threats.get(threat))):
                return Misfit((says,), f"Train with --steering {name} --threat {threat}.")
    return Misfit((says,))


def check_sums(training: TrainSettings, settings: AttackSettings) -> None:
    """Refuse an attack on single clients where the server sees their sum only.

    A sum of gradients or parameters is that of one larger batch and can be attacked as such.

    Raises:
        IncompatibleError: the attack asks about single clients.
    """
    says = _sum_problem(training, settings)
    if not says:
        return
    step = f"Attack a run without {_sums_only(training)[0]}."
    if any(kind.updates for kind in training.protocol.uploads):
        alike = replace(settings, target="update", via=None)
        made = (replace(alike, attack=attacks.get(name)()) for name in usual_attacks("update"))
        found = [_options(settings, other) for other in made if passes(training, other)]
        if found:
            step = (
                f"Attack the sum as one update of more images ({found[0]}), or a run without "
                f"{_sums_only(training)[0]}."
            )
    raise IncompatibleError(says, next_step=step)


def _sums_only(training: TrainSettings) -> list[str]:
    return [d.name for d in training.defense if type(d).seen is not Defense.seen]


def _sum_problem(training: TrainSettings, settings: AttackSettings) -> str:
    """Why a sum over clients is all there is for an attack on single ones; empty: it is not."""
    summed = _sums_only(training)
    joined = len(select(training.train, 1))
    last = settings.evaluation.round or training.train.rounds
    if alone(training.steering, training.train.clients, joined, range(1, last + 1)):
        return ""  # the server took what its own clients sent out of every sum
    updates = any(kind.updates for kind in training.protocol.uploads)
    on_updates = settings.target == "update" or (settings.target == "uploaded" and updates)
    if not summed or (on_updates and settings.attack.answers == "images"):
        return ""
    return (
        f"Under defence '{summed[0]}' the server sees one sum over clients a round; attack "
        f"'{settings.attack.name}' on target '{settings.target}' asks about single clients."
    )
