"""What defences, steerings and detectors promise: those who change or watch messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.active_server.base import ServerKnowledge, ServerView, Steering, steerings
from fedre_privacy.active_server.behaviour import ServerBehaviour, breach, same
from fedre_privacy.active_server.detectors.base import Detector, Receipt, detectors
from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import (
    AdapterState,
    Artifact,
    ClassLogits,
    ClassStatistics,
    Counts,
    EntangledRep,
    GradientState,
    HeadState,
    LowRankChange,
    LowRankModel,
    MatrixBlocks,
    ModelChange,
    ModelState,
    Prototypes,
    Representations,
    RepStatistic,
    SmallModelState,
    is_one_of,
)
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.types import Broadcast, Mixture, Upload
from fedre_privacy.defenses.base import Defense, FederationFacts, Sending, defenses
from fedre_privacy.defenses.statement import state
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.protocols.base import protocols

from .federation import NotApplicable, expect, name_of, survives

NEEDED: dict[str, dict[str, Any]] = {
    "gaussian": {"clip": 1.0, "noise": 1.0},
    "laplace": {"clip": 1.0},
    "statistics-noise": {"clip": 1.0, "noise": 1.0},
    "dp-sgd": {"clip": 1.0, "noise": 1.0},
    "dp-mf": {"clip": 1.0, "noise": 1.0},
}
"""Settings that built-in defences cannot do without."""
LEARNT_HOOKS = ("training_term", "own_modules", "change", "change_images")
HOOKS = ("defend", "kept", "represent", "trainer", "seen", *LEARNT_HOOKS)
ROWS = torch.randn(4, 6, generator=stream(1, "rows"))


# --- defences ------------------------------------------------------------------------------------


def artifacts() -> dict[str, Artifact]:
    """One artifact of every kind, values of order 1."""

    def named(seed: int) -> dict[str, Tensor]:
        rng = torch.Generator().manual_seed(seed)
        return {"w": torch.randn(20, 30, generator=rng), "b": torch.randn(20, generator=rng)}

    rng = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 2, 3])
    rows = torch.randn(3, 40, generator=rng)
    made: list[Artifact] = [
        Representations(rows, labels),
        Prototypes(rows.clone(), labels),
        EntangledRep(rows[0].clone(), torch.tensor([0.5, 0.0, 0.3, 0.2])),
        ClassStatistics(rows.clone(), torch.tensor([2, 5, 3]), labels, {"diagonal": rows.square()}),
        ClassLogits(torch.randn(3, 4, generator=rng), labels),
        RepStatistic(rows[1].clone()),
        ModelState(named(1)),
        AdapterState(named(6)),
        HeadState(named(2)),
        SmallModelState(named(3)),
        GradientState(named(4)),
        MatrixBlocks(torch.randn(2, 5, 5, generator=rng)),
        LowRankModel({"w.dense": torch.randn(8, 4, generator=rng)}),
        LowRankChange({"w.dense": torch.randn(8, 4, generator=rng)}),
        ModelChange(named(5)),
        Counts(torch.tensor([3])),
    ]
    return {artifact.kind: artifact for artifact in made}


def sending_context(**changes: Any) -> Sending:
    """Client 0 sends in round 1 of 10; it has 2, 0, 5 and 3 samples of its classes."""
    mixture = Mixture(
        torch.tensor([0, 0, 1, 1, 1, 1, 1, 2, 2, 2]),
        torch.arange(10),
        torch.tensor([1 / 2] * 2 + [1 / 5] * 5 + [1 / 3] * 3),
        num_rows=3,
    )
    values = {
        "protocol": "test", "client": 0, "round": 1, "rounds": 10, "kinds": (Prototypes,),
        "class_counts": (2, 0, 5, 3), "mixture": mixture, "seed": 0, **changes,
    }  # fmt: skip
    return Sending(**values)


def facts(**changes: Any) -> FederationFacts:
    """Ten clients with 100 samples each, all in 100 rounds."""
    values = {
        "protocol": "fedre", "kinds": (EntangledRep,), "class_counts": ((50, 50),) * 10,
        "participations": (100,) * 10, "rounds": 100, "training_only": True, **changes,
    }  # fmt: skip
    return FederationFacts(**values)


def defense_of(cls: type[Defense]) -> Defense:
    """A defence with its defaults, and built-in ones with what they need."""
    return cls(**NEEDED.get(name_of(cls, defenses), {}))


def defense_declarations(cls: type[Defense]) -> None:
    """It says what it acts on, does something, and keeps its settings."""
    made = defense_of(cls)
    expect(made.name == name_of(cls, defenses) and bool(cls.__doc__), "It has no docstring.")
    known = (*Artifact.kinds.values(), *Role)
    expect(all(one in known for one in made.acts_on), "'acts_on' names no kind and no role.")
    changes = [hook for hook in HOOKS if getattr(cls, hook) is not getattr(Defense, hook)]
    expect(bool(changes), f"It does nothing: it overrides none of {', '.join(HOOKS)}.")
    needed = bool({"defend", "kept"} & set(changes))
    allowed = needed or any(hook in changes for hook in LEARNT_HOOKS)
    both = needed <= bool(made.acts_on) <= allowed
    expect(both, "Write 'defend' or 'kept' and say in 'acts_on' what it changes, or neither.")
    survives(defenses, made, "defense")


def the_form_of_what_is_sent_stays(cls: type[Defense]) -> None:
    """`defend` leaves kind, names and shapes, and what it was given; it draws from its stream."""
    made, before = defense_of(cls), torch.random.get_rng_state()
    for artifact in artifacts().values():
        if not is_one_of(type(artifact), made.acts_on):
            continue
        kind = type(artifact).__name__
        old = {name: value.clone() for name, value in artifact.tensors().items()}
        where = sending_context(kinds=(type(artifact),))
        one, two = (
            made.defend(artifact, where, torch.Generator().manual_seed(4)) for _ in range(2)
        )
        forms = [{n: t.shape for n, t in tensors.items()} for tensors in (one.tensors(), old)]
        expect(type(one) is type(artifact) and forms[0] == forms[1], f"It makes no {kind} of one.")
        for name, value in one.tensors().items():
            expect(bool(value.isfinite().all()), f"It makes '{name}' of {kind} infinite.")
            expect(torch.equal(value, two.tensors()[name]), "The same stream gives other numbers.")
            kept = torch.equal(artifact.tensors()[name], old[name])
            expect(kept, f"It changes the {kind} that it was given.")
    drawn = not torch.equal(torch.random.get_rng_state(), before)
    expect(not drawn, "It draws from torch's global generator; draw from `rng`.")


def it_states_what_it_costs(cls: type[Defense]) -> None:
    """It has a guarantee or a reason why not, or is named as a heuristic."""
    made, asked = defense_of(cls), facts(kinds=(Prototypes,))
    said = state([made], asked)
    if made.cost(asked) is None:
        expect(said.heuristics == (made.name,) and not said.guarantees, "It is no heuristic.")
    else:
        expect(bool(said.guarantees or said.reasons), "Its cost leads to no statement.")


DEFENSE_CHECKS: tuple[Callable[[type[Defense]], None], ...] = (
    defense_declarations,
    the_form_of_what_is_sent_stays,
    it_states_what_it_costs,
)


# --- steerings -----------------------------------------------------------------------------------


def blank(client: int = 0) -> nn.Module:
    """A model of the architecture that is sent."""
    with seeded_generators(3, "model"):
        return build_model(ModelSettings(name="cnn4", dim=16), client, (1, 16, 16), 4)


@cache
def honest() -> dict[type[Artifact], Artifact]:
    """What an honest server sends, by kind."""
    shipped = {name: value.detach().clone() for name, value in blank().named_parameters()}
    return {
        HeadState: HeadState({"weight": ROWS, "bias": ROWS[:, 0].clone()}),
        Prototypes: Prototypes(ROWS[:3].abs(), torch.tensor([0, 2, 3])),
        MatrixBlocks: MatrixBlocks(ROWS.reshape(2, 3, 4)[:, :, :3].contiguous()),
        ModelState: ModelState(shipped),
        SmallModelState: SmallModelState(shipped),
    }


def shown_to(one: Steering) -> ServerView:
    """What a server holds that shows a steering what it declares to need, and no more."""
    images = torch.rand(40, 1, 16, 16, generator=torch.Generator().manual_seed(2))
    sent = Prototypes(ROWS[:2].abs() + 1, torch.tensor([0, 3]))
    uploads = tuple(Upload(client, 1, (sent,)) for client in range(5))
    broadcasts = (Broadcast(1, tuple(range(5)), tuple(honest().values())),)
    held = ServerKnowledge(images, torch.arange(40) % 4, blank).shown(one.needs)
    return ServerView(uploads, broadcasts, 5, 4, held)


def steering_declarations(cls: type[Steering]) -> None:
    """It alters messages or chooses clients, says which kinds, and keeps its settings."""
    one: Any = cls()
    expect(one.name == name_of(cls, steerings) and bool(cls.__doc__), "It has no docstring.")
    expect(bool(one.alters or one.chooses), "It alters nothing and chooses nobody.")
    both = bool(one.alters) == (cls.steer is not Steering.steer)
    expect(both, "Write 'steer' and say in 'alters' which kinds it replaces, or neither.")
    expect(all(kind in Artifact.kinds.values() for kind in one.alters), "'alters' names no kind.")
    survives(steerings, one, "steering")


def clients_take_what_it_sends(cls: type[Steering]) -> None:
    """Its messages have the honest ones' form, come from its stream, and are other ones."""
    name_of(cls, steerings)
    one = cls()
    if not one.alters:
        raise NotApplicable("it chooses clients only")
    given = tuple(artifact for kind, artifact in honest().items() if issubclass(kind, one.alters))
    if not given:
        raise NotApplicable("it alters a kind of its own")
    before, rng = [a.detached_copy() for a in given], torch.random.get_rng_state()
    first, second = (
        one.steer(shown_to(one), 2, 3, given, torch.Generator().manual_seed(5)) for _ in range(2)
    )
    refusal = breach(first, given, one.alters)
    expect(refusal is None, f"Clients refuse what it sends: {refusal}")
    expect(same(first, second), "The same view and stream give another message.")
    expect(not same(first, given), "It sends what an honest server would send.")
    expect(same(given, tuple(before)), "It changes the honest message that it was given.")
    drawn = not torch.equal(torch.random.get_rng_state(), rng)
    expect(not drawn, "It draws from torch's global generator; draw from `rng`.")


def it_chooses_as_many_clients(cls: type[Steering]) -> None:
    """It picks as many clients as an honest server would."""
    name_of(cls, steerings)
    conduct = ServerBehaviour([cls()], seed=0, clients=5, num_classes=4)
    for drawn in ((0, 1), (2, 4), tuple(range(5))):
        count = len(conduct.participants(1, drawn))
        expect(count == len(drawn), f"It chooses {count} clients in place of {len(drawn)}.")


def protocols_without_its_messages_are_refused(cls: type[Steering]) -> None:
    """It fits the protocols that send a kind it alters, and no others."""
    name_of(cls, steerings)
    one = cls()
    for name in protocols.names():
        sent = protocols.get(name).broadcasts
        fits = not one.check(3, sent)
        should = not one.alters or any(issubclass(kind, one.alters) for kind in sent)
        if sent:
            expect(fits == should, f"It {'fits' if fits else 'refuses'} '{name}'.")


STEERING_CHECKS: tuple[Callable[[type[Steering]], None], ...] = (
    steering_declarations,
    clients_take_what_it_sends,
    it_chooses_as_many_clients,
    protocols_without_its_messages_are_refused,
)


# --- detectors -----------------------------------------------------------------------------------


def receipt(
    message: tuple[Artifact, ...], earlier: tuple[tuple[Artifact, ...], ...], **changes: Any
) -> Receipt:
    """What a client knows when a message has arrived after earlier ones."""
    means = (Prototypes(ROWS.abs(), torch.arange(4)),)
    values = {
        "client": 0, "round": len(earlier) + 1, "message": message, "earlier": earlier,
        "uploaded": (means,) * len(earlier),
        "losses": (2.0,) * (len(earlier) + 1), "share": 0.5, **changes,
    }  # fmt: skip
    return Receipt(**values)


def any_message_has_a_number_or_none(cls: type[Detector]) -> None:
    """A detector gives a number or NaN for any message, the first and the fifth, or none at all."""
    name = name_of(cls, detectors)
    made = cls()
    expect(made.name == name and bool(cls.__doc__), "It has no name or no docstring.")
    survives(detectors, made, "detector")
    head, means = honest()[HeadState], Prototypes(ROWS.abs(), torch.arange(4))
    for message in ((head,), (means,), ()):
        for past in (0, 1, 4):
            score = made.score(receipt(message, (message,) * past))
            number = isinstance(score, float) and not math.isinf(score)
            expect(number, f"It says {score!r} of a message.")
