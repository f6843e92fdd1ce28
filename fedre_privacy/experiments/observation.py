"""From a recorded run to an observation: what the threat model lets through, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from fedre_privacy.attacks.common.hidden_masks import with_masks_shown
from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.channels import NOTHING, Channel
from fedre_privacy.core.config import plain, plain_plugin
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import (
    AGGREGATE,
    Broadcast,
    Candidates,
    Knowledge,
    KnownDefense,
    LocalTrainingFacts,
    Observation,
    Property,
    ThreatModel,
    Upload,
)
from fedre_privacy.core.units import plural
from fedre_privacy.eval import PublicImages
from fedre_privacy.federation.shadow_training import ShadowTraining
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.initial_state import shared_start
from fedre_privacy.runs.kept_models import facts_of_run
from fedre_privacy.runs.public_images import halves
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import ADAPTIVE, AttackSettings, TrainSettings
from fedre_privacy.sandbox.module_recipes import HEAD, LazyModule, Modules

from .attacker_models import kept_extractors, models_before, recipe_of, through_shared
from .targets import TargetSource


def effective(threat: ThreatModel, training: TrainSettings, *, shared: bool = False) -> ThreatModel:
    """A threat model in a federation: what it grants there, more or less.

    Who uploads whole models gives away extractors. Initial weights that each client draws for
    itself nobody knows, and extractors that clients train are not public.

    Args:
        shared: the extractors asked for are those of small models that were sent
            (`through_shared`).
    """
    if training.private_start and Knowledge.INITIAL_MODEL in threat.grants:
        grants = threat.grants - {Knowledge.INITIAL_MODEL}
        own = "; here each client drew its own initial weights, which it does not know"
        threat = dataclasses.replace(threat, grants=grants, summary=threat.summary + own)
    if Knowledge.FROZEN_EXTRACTOR in threat.grants and not training.public_extractors:
        grants, own = threat.grants - {Knowledge.FROZEN_EXTRACTOR}, "; here clients train theirs"
        if threat.public_extractors:
            own = "; here clients train their extractors, which it does not hold"
            grants -= {Knowledge.EXTRACTOR, Knowledge.ALL_EXTRACTORS}
        threat = dataclasses.replace(threat, grants=grants, summary=threat.summary + own)
    if not shared and not _sends_whole(training.protocol):
        return threat
    given = {Knowledge.EXTRACTOR, Knowledge.HEAD}
    if threat.rounds == "all":
        given.add(Knowledge.ALL_EXTRACTORS)
    return dataclasses.replace(threat, grants=threat.grants | given)


def observe(
    source: TargetSource,
    settings: AttackSettings,
    targets: Collection[Upload],
    aux: PublicImages,
    *,
    candidates: Candidates | None = None,
    properties: tuple[Property, ...] = (),
    images_per_target: int = 0,
) -> Observation:
    """Build the observation of an attack on some uploads of the round of a source.

    With ``eval.staleness`` the newest extractor held is so many rounds older than the attacked
    uploads; it stands in for the extractor of their round, those of rounds between are not held.
    A ``naive`` attacker (``eval.attacker``) does not know the defences that the run declares.

    Args:
        settings: of the attack: its threat model, and how it is evaluated.
        aux: held-out images, passed on if the threat model grants auxiliary data.
        images_per_target: images sought in each upload that carries no rows; what is attacked
            then holds the parameters itself, and extractors are given where they were kept.

    Raises:
        MissingInputError: the extractors of the round were not kept.
        IncompatibleError: staleness where no extractor is granted or the uploads hold it, or
            before the first round.
    """
    run, round, staleness = source.run, source.round, settings.evaluation.staleness
    shared = through_shared(run.settings, settings)
    threat = effective(settings.threat, run.settings, shared=shared)
    if run.active:
        says = threat.summary.removeprefix("honest-but-curious ")
        threat = dataclasses.replace(threat, behaviour="malicious", summary=says)
    if staleness:
        threat = stale(
            threat, run.settings.protocol, round, staleness, run.kept_rounds(), shared=shared
        )
    observed = [0, round] if threat.rounds == "last" else None
    uploads, broadcasts = source.messages.of(observed)
    broadcasts = [b for b in broadcasts if b.round <= round]
    senders = sorted({upload.client for upload in targets})
    clients = [client for client in senders if client != AGGREGATE]
    extractors = heads = Modules({})
    if Knowledge.EXTRACTOR in threat.grants and shared:
        extractors = source.shared
    elif Knowledge.EXTRACTOR in threat.grants and clients:
        newest = round - staleness
        kept = run.kept_rounds()
        if not staleness and not images_per_target:
            run.state(clients[0], round)  # refuses a round that was not kept, naming the nearest
        past = Knowledge.ALL_EXTRACTORS in threat.grants
        held = {r: r for r in kept if past and r <= newest}
        if newest in kept:
            held[round] = newest
        adaptive = settings.evaluation.attacker == ADAPTIVE
        extractors = kept_extractors(run, clients, held, defended=adaptive)
        if Knowledge.HEADS in threat.grants:
            heads = kept_extractors(run, clients, held, HEAD)
    aux_granted = Knowledge.AUX_DATA in threat.grants
    observation = Observation(
        threat=threat,
        targets=tuple(targets),
        uploads=tuple(u for u in uploads if u.round <= round),
        broadcasts=tuple(broadcasts) if Knowledge.HEAD in threat.grants else (),
        extractors=extractors,
        image_shape=run.image_shape,
        num_classes=len(run.record["classes"]),
        aux=aux.images if aux_granted else None,
        aux_labels=aux.labels if aux_granted else None,
        training=_training_in_round(run, round) if Knowledge.TRAINING in threat.grants else None,
        candidates=candidates,
        models=models_before(
            run,
            round,
            senders,
            source.messages,
            defended=settings.evaluation.attacker == ADAPTIVE,
        )
        if Knowledge.HEAD in threat.grants
        else Modules({}),
        images_per_target=images_per_target,
        defenses=known_defenses(run) if settings.evaluation.attacker == ADAPTIVE else (),
        initial=_initial(run, clients) if Knowledge.INITIAL_MODEL in threat.grants else Modules({}),
        rehearse=_rehearsal(run, settings, broadcasts)
        if KNOWN_FOR_SHADOWS <= threat.grants
        else None,
        heads=heads,
        properties=properties,
    )
    return with_masks_shown(observation)


KNOWN_FOR_SHADOWS = {Knowledge.HEAD, Knowledge.TRAINING, Knowledge.ARCHITECTURE}
"""What a server must know to repeat a client's training on its own images."""


def _initial(run: Run, clients: Collection[int]) -> Modules:
    """The models that clients began with, where all of one architecture began alike."""
    classes = len(run.record["classes"])

    def state(client: int) -> dict[str, Tensor]:
        return shared_start(run.settings, client, run.image_shape, classes).state_dict()

    return Modules({(k, 0): LazyModule(recipe_of(run, k), partial(state, k)) for k in clients})


def _rehearsal(run: Run, settings: AttackSettings, sent: Sequence[Broadcast]) -> ShadowTraining:
    """How clients train, in settings and broadcasts, with the defences that the attacker knows."""
    adaptive = settings.evaluation.attacker == ADAPTIVE
    protocol = run.settings.protocol
    training = plain(run.settings.train)
    for hidden in ("seed", "secret"):
        training.pop(hidden, None)
    return ShadowTraining(
        protocol=plain_plugin(protocol if adaptive else _with_true_encodings(protocol)),
        model=plain(run.settings.model),
        training=training,
        defense=tuple(plain_plugin(one) for one in run.acting) if adaptive else (),
        image_shape=run.image_shape,
        num_classes=len(run.record["classes"]),
        broadcasts=tuple(sent),
    )


def _with_true_encodings(protocol: Protocol) -> Protocol:
    """The protocol with the outermost layer of its scheme that declares no change of encodings."""
    scheme = protocol.scheme()
    for layer in scheme.layers() if scheme else ():
        if all(one.channel() in (None, NOTHING) for one in layer.layers()):
            fields = [f.name for f in dataclasses.fields(protocol)]
            (name,) = [n for n in fields if getattr(protocol, n) is scheme]
            return dataclasses.replace(protocol, **{name: layer})
    return protocol


def stale(
    threat: ThreatModel,
    protocol: Protocol,
    round: int,
    staleness: int,
    kept: Sequence[int],
    *,
    shared: bool = False,
) -> ThreatModel:
    """Say in the threat model that its extractors are old; refuse where that means nothing.

    Args:
        kept: rounds whose extractors are, or will be, kept.
        shared: see `effective`.

    Raises:
        IncompatibleError: no extractor is granted, or the uploads hold it, or that of the round
            asked for is not kept.
    """
    asked = f"'eval.staleness' is {staleness}"
    problem, step = None, "Leave eval.staleness out."
    kept = [r for r in kept if r < round]
    if Knowledge.EXTRACTOR not in threat.grants:
        problem = f"{asked}, but threat model '{threat.name}' grants no extractor."
        step = "Leave it out, or use --threat fedre-paper or strong."
    elif shared or _sends_whole(protocol):
        problem = f"{asked}, but {protocol.name} uploads whole models: no extractor is ever old."
    elif staleness >= round:
        problem = f"{asked}, but round {round} is attacked: the oldest extractor is of round 1."
        step = f"Use --set eval.staleness={round - 1} at most."
    elif round - staleness not in kept:
        listed = ", ".join(map(str, kept)) or "none"
        problem = (
            f"{asked}: the extractors of round {round - staleness} were not kept; kept before "
            f"round {round}: {listed}."
        )
        step = "Train with --set record.keep_every=1."
        if kept:
            near = round - min(kept, key=lambda r: abs(r - (round - staleness)))
            step = f"Use --set eval.staleness={near}, or train with --set record.keep_every=1."
    if problem is not None:
        raise IncompatibleError(problem, next_step=step)
    age = f"the newest extractor held is {plural(staleness, 'round')} old"
    return dataclasses.replace(threat, summary=f"{threat.summary}; {age}")


def _sends_whole(protocol: Protocol) -> bool:
    return any(Role.WHOLE in kind.roles for kind in protocol.uploads)


def known_defenses(run: Run) -> tuple[KnownDefense, ...]:
    """Protocol, defences and entanglement schemes as the run declares them, with their channels.

    A scheme that wraps another is followed by it. A protocol that sends what its artifacts say is
    left out.
    """
    protocol = run.settings.protocol
    own = protocol.channel()
    found = [] if own == NOTHING else [_known_channel(plain_plugin(protocol), own)]
    if run.settings.defense:
        facts = facts_of_run(run)
        found += [
            _known_channel(settings, defense.channel(facts))
            for settings, defense in zip(run.record["defense"], run.acting, strict=True)
        ]
    scheme = protocol.scheme()
    layers = scheme.layers() if scheme else ()
    found += [_known_channel(plain_plugin(layer), layer.channel()) for layer in layers]
    return tuple(found)


def _known_channel(settings: Mapping[str, Any], channel: Channel | None) -> KnownDefense:
    own = {key: value for key, value in settings.items() if key != "name"}
    return KnownDefense(settings["name"], own, channel)


def _training_in_round(run: Run, round: int) -> LocalTrainingFacts:
    """What the server knows of local training in a round; earlier rounds' steps were longer."""
    training = run.settings.train
    sizes = {k: sum(counts) for k, counts in enumerate(run.record["class_counts"])}
    sizes[AGGREGATE] = sum(sizes.values())
    lr = run.settings.protocol.shared_lr(training.lr) * training.decay(round)
    return LocalTrainingFacts(lr, training.epochs, training.batch_size, sizes)


def held_out(source: TargetSource, limit: int) -> tuple[PublicImages, PublicImages]:
    """Images that no client trained on, in two halves: for floors, and for the attacker.

    Raises:
        IncompatibleError: the clients' test parts hold fewer than two images.
    """
    if sum(map(len, source.test)) < 2:
        raise IncompatibleError(
            "No held-out images are left for the floors: the clients' test parts are empty.",
            next_step="Lower train.train_ratio, or use more images.",
        )
    parts = [half[:limit] for half in halves(source.test, source.seed)]
    made = [PublicImages(source.data.floats(p), source.data.labels[p]) for p in parts]
    return made[0], made[1]
