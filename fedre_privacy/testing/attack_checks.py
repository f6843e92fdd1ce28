"""What every attack promises, whatever it answers; on the recorded run of a tiny federation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Attack, Context, attacks, can_read
from fedre_privacy.core.answers import typed_answer
from fedre_privacy.core.artifacts import (
    Artifact,
    EntangledRep,
    GradientState,
    HeadState,
    Prototypes,
)
from fedre_privacy.core.config import build, knobs
from fedre_privacy.core.errors import DivergedError, IncompatibleError
from fedre_privacy.core.outcomes import Outcome, Reconstruction
from fedre_privacy.core.plugin_errors import is_plugin
from fedre_privacy.core.types import Knowledge, Observation, Upload
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.experiments.questions.base import Trial, questions
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.settings import AttackSettings, target_names
from fedre_privacy.threats.base import threats

from .federation import (
    NotApplicable,
    equal,
    expect,
    name_of,
    once,
    settings_of,
    survives,
    trained_run,
)

BRIEF: dict[str, dict[str, Any]] = {
    "decoder": {"updates": 4, "width": 4},
    "diffusion": {"updates": 4, "width": 4, "samples": 2},
    "ensemble-kalman": {"members": 20, "steps": 2, "views": 1},
    "dip": {"channels": (4, 4), "depth": 4},
    "dlg": {"inner": 2},
    "idlg": {"inner": 2},
    "joint-disentangle": {"channels": (4, 4)},
    "mean": {
        "first": {"name": "linear", "views": 1, "victims": 0},
        "second": {"name": "ensemble-kalman", "members": 20, "steps": 2, "views": 1},
    },
    "property": {"shadows": 10},
    "shadow": {"shadows": 2, "views": 1},
    "spear": {"by": "linear", "tries": 2048},
}
"""Short settings of built-in attacks, beside the few repetitions that `Attack.loops` names."""
EVAL = {"targets": 3, "ceiling": 0, "per_update": 1, "candidates": 6, "gallery": 4, "public": 60}
SEED = 3
MODULES = ("extractors", "models", "initial", "heads")
UNREAD: tuple[Callable[[], Artifact], ...] = (
    lambda: HeadState({"weight": torch.ones(10, 16)}),
    lambda: Prototypes(torch.ones(1, 16), torch.zeros(1, dtype=torch.int64)),
    lambda: EntangledRep(torch.ones(16), torch.ones(10) / 10),
)


@dataclass(frozen=True, eq=False)
class Scene:
    """An attack with short settings, and what it observes.

    Args:
        trial: the recorded run's evaluation, None where no architecture is of the attack's form.
    """

    attack: Attack
    observation: Observation
    trial: Trial | None


def brief(cls: type[Attack]) -> dict[str, Any]:
    """Settings with which an attack takes seconds."""
    known = {knob.name for knob in knobs(cls)}
    return {
        **{name: few for name, few in cls.loops.items() if name in known},
        **BRIEF.get(cls.name, {}),
    }


def protocol_to_attack(cls: type[Attack]) -> tuple[str, AttackSettings]:
    """A protocol that an attack can be run on, and how it is asked; ``strong`` where that does.

    Raises:
        AssertionError: no protocol uploads what it reads, or none of its settings can be built.
    """
    name = name_of(cls, attacks)
    needed = cls().required
    able = [one for one in ("strong", *threats.names()) if needed <= threats.get(one).grants]
    expect(bool(able), f"No threat model grants all that it needs: {', '.join(sorted(needed))}.")
    steered = list(cls.steered[:1])
    for protocol in protocols.names():
        for target in ("uploaded", "update") if cls.answers == "images" else ("uploaded",):
            problems: list[str] = []
            values = {
                "attack": {"name": name, **brief(cls)},
                "target": target, "threat": able[0], "eval": EVAL,
            }  # fmt: skip
            settings = resolve_attack(values, {}, problems)
            if settings is None:
                raise AssertionError(" ".join(problems))
            try:
                check_ahead(settings_of(protocol, steering=steered), settings)
            except IncompatibleError:
                continue
            return protocol, settings
    raise AssertionError("No protocol uploads what it reads.")


@once
def scene(cls: type[Attack]) -> Scene:
    """What an attack is checked on."""
    name_of(cls, attacks)
    if cls.particular:
        made = build(cls, brief(cls), at="attack", problems=[])
        assert made is not None
        return Scene(made, linear_first(), None)
    protocol, settings = protocol_to_attack(cls)
    trial = prepare_attack(trained_run(protocol, *cls.steered[:1]), settings)
    return Scene(settings.attack, trial.observation, trial)


@once
def first_answer(cls: type[Attack]) -> Outcome:
    """What an attack answers in its scene."""
    torch.manual_seed(7)
    one = scene(cls)
    answer: Outcome = one.attack(one.observation, Context(seed=SEED))
    return answer


def linear_first() -> Observation:
    """The gradient of one image by a network that begins with a linear layer."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    image = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    loss = nn.functional.cross_entropy(model(image), torch.tensor([1]))
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    sent = {name: slope for (name, _), slope in zip(model.named_parameters(), slopes, strict=True)}
    uploads = (Upload(0, 1, (GradientState(sent),)),)
    return Observation(
        threat=threats.get("strong"), targets=uploads, uploads=uploads, broadcasts=(),
        extractors={}, image_shape=(1, 8, 8), num_classes=4, models={(0, 1): model.eval()},
        images_per_target=1,
    )  # fmt: skip


def different(one: Outcome, other: Outcome) -> list[str]:
    """Fields in which two answers are not the same, bit for bit."""
    own, texts = one.save()
    theirs, other_texts = other.save()
    found = [key for key in own if key not in theirs or not equal(own[key], theirs[key])]
    return found + [key for key in texts if texts[key] != other_texts.get(key)]


def with_values(
    seen: Observation, change: Callable[[Tensor], Tensor], *, encodings: bool = False
) -> Observation:
    """The same observation of uploads whose numbers are changed, label encodings where asked."""

    def changed(upload: Upload) -> Upload:
        artifacts = []
        for artifact in upload.artifacts:
            tensors = {
                key: change(value)
                if value.is_floating_point() and (encodings or "encoding" not in key)
                else value
                for key, value in artifact.tensors().items()
            }
            artifacts.append(type(artifact).from_tensors(tensors))
        return replace(upload, artifacts=tuple(artifacts))

    targets, uploads = (tuple(map(changed, some)) for some in (seen.targets, seen.uploads))
    return replace(seen, targets=targets, uploads=uploads)


def in_training(seen: Observation) -> Observation:
    """The same observation whose modules are in training and take gradients."""
    live: dict[str, Any] = {
        name: {
            key: copy.deepcopy(module).train().requires_grad_(True)
            for key, module in getattr(seen, name).items()
        }
        for name in MODULES
    }
    return replace(seen, **live)


def contents(seen: Observation) -> list[Tensor]:
    """Copies of all that an attack could change in place: uploads, images, modules."""
    sent = [a for u in (*seen.targets, *seen.uploads) for a in u.artifacts]
    tensors = [tensor for artifact in sent for tensor in artifact.tensors().values()]
    tensors += [one for one in (seen.aux, seen.aux_labels) if one is not None]
    for name in MODULES:
        for module in getattr(seen, name).values():
            tensors += [*module.parameters(), *module.buffers()]
            tensors += [torch.tensor([part.training for part in module.modules()])]
    return [tensor.detach().clone() for tensor in tensors]


# --- the promises --------------------------------------------------------------------------------


def declarations(cls: type[Attack]) -> None:
    """It says what it reads, needs, answers and how a benchmark uses it, and keeps its settings."""
    name = name_of(cls, attacks)
    made = cls()
    expect(cls.name == name, f"Its name is '{cls.name}' and it is registered as '{name}'.")
    expect(bool(cls.__doc__), "It has no docstring, which --explain would print.")
    expect(bool(cls.consumes), "It does not say in 'consumes' which artifacts it reads.")
    expect(isinstance(cls.recovers, str) and bool(cls.recovers), "'recovers' is no text.")
    expect(Knowledge.UPLOADS in cls.needs, "Its 'needs' leave out UPLOADS.")
    expect(cls.answers in questions.names(), f"No question is called '{cls.answers}'.")
    expect(all(kind in cls.consumes for kind in cls.needs_for), "'needs_for' names kinds unread.")
    for entry in cls.suite:
        reads = can_read(cls, entry.reads) or entry.target == "recovered-prototypes"
        expect(reads, f"Its suite runs it on {entry.reads.__name__}, which it does not read.")
        known = entry.target in target_names()
        expect(known, f"Its suite has the unknown target '{entry.target}'.")
        expect(entry.threat in threats.names(), f"No threat model is called '{entry.threat}'.")
        if entry.via:
            sought = attacks.get(entry.via).answers
            known = sought in ("prototypes", "representations")
            expect(known, f"'{entry.via}' of its suite recovers no prototypes or representations.")
    survives(attacks, made, "attack")


def answers_what_is_asked(cls: type[Attack]) -> None:
    """Its answer is of its question's kind, in range, saved and read back, and can be scored."""
    one, answer = scene(cls), first_answer(cls)
    kind = questions.get(cls.answers)().outcome()
    expect(isinstance(answer, kind), f"It returned a {type(answer).__name__}, no {kind.__name__}.")
    converted, problems = typed_answer(answer, one.observation)
    problems = problems or answer.problems(one.observation)
    expect(not problems, f"It {' '.join(problems)}")
    expect(not answer.lost, "Nothing in its answer to a sound observation is finite.")
    if not is_plugin(cls.__module__):
        own, same = answer.save()[0], converted.save()[0]
        expect(all(own[k].dtype == same[k].dtype for k in own), "A field has to be converted.")
    again = type(answer).load(*answer.save())
    expect(not different(again, answer), "Its answer is another after it was saved and read.")
    if one.trial is not None:
        expect(bool(one.trial.lines()["Unknown"]), "The page would not say what is unknown.")
        expect(bool(questions.get(cls.answers)().score(one.trial, answer)), "It has no score.")


def same_question_same_answer(cls: type[Attack]) -> None:
    """Its answer depends on nothing but the observation and the seed, and it leaves both alone."""
    one, first = scene(cls), first_answer(cls)
    live = in_training(one.observation)
    before = contents(live)
    torch.manual_seed(8)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        second = one.attack(live, Context(seed=SEED))
        expect(torch.get_num_threads() == threads + 1, "It changes the number of torch's threads.")
    finally:
        torch.set_num_threads(threads)
    expect(
        torch.equal(torch.random.get_rng_state(), state),
        "It draws from torch's global generator; draw from core.rng.stream(context.seed, ...).",
    )
    apart = different(first, second)
    expect(not apart, f"The same seed gave another answer the second time: {', '.join(apart)}.")
    after = contents(live)
    expect(
        all(equal(one, other) for one, other in zip(before, after, strict=True)),
        "It changes what it was given: uploads, images or modules.",
    )
    grads = [p.grad for n in MODULES for m in getattr(live, n).values() for p in m.parameters()]
    expect(all(grad is None for grad in grads), "It leaves gradients in modules it was given.")


def before_fitting_nothing_is_known(cls: type[Attack]) -> None:
    """What an attack on images calls `prior`, a floor, does not change with the upload."""
    if cls.answers != "images":
        raise NotApplicable("it answers no images")
    one = scene(cls)
    attack, own = one.attack, first_answer(cls)
    if "restarts" in {knob.name for knob in knobs(cls)}:
        attack = replace(attack, restarts=2)  # type: ignore[call-arg]
        own = attack(one.observation, Context(seed=SEED))
    other = with_values(one.observation, lambda v: v.flatten().flip(0).reshape(v.shape))
    others = attack(other, Context(seed=SEED))
    assert isinstance(own, Reconstruction)
    expect(torch.equal(own.prior, others.prior), "Its 'prior' depends on the upload.")


def missing_knowledge_is_refused(cls: type[Attack]) -> None:
    """Under a threat model that grants too little it says what is missing."""
    one = scene(cls)
    for name in threats.names():
        threat = threats.get(name)
        lacking = one.attack.required - threat.grants
        if not lacking:
            continue
        try:
            one.attack(replace(one.observation, threat=threat))
        except IncompatibleError as error:
            said = all(f"needs {known.upper()}" in str(error) for known in lacking)
            expect(said, f"Under '{name}' it does not say that {', '.join(lacking)} is missing.")
            continue
        raise AssertionError(f"It runs under '{name}', which does not grant what it needs.")


def unreadable_uploads_are_refused(cls: type[Attack]) -> None:
    """Kinds that it does not read, and no targets at all, are refused by name."""
    one = scene(cls)
    made = [make() for make in UNREAD]
    unread = [artifact for artifact in made if not can_read(cls, type(artifact))][:1]
    cases = [(type(a).__name__, (Upload(0, 1, (a,)),)) for a in unread]
    for what, targets in (*cases, ("nothing", ())):
        try:
            one.attack(replace(one.observation, targets=targets))
        except IncompatibleError as error:
            expect(f"the targets are {what}" in str(error), f"It does not refuse {what} by name.")
            continue
        raise AssertionError(f"It attacks {what}, which it does not read.")


def targets_without_a_number_are_refused(cls: type[Attack]) -> None:
    """Uploads of NaN end in one error with a next step."""
    one = scene(cls)
    lost = with_values(one.observation, lambda value: value * torch.nan, encodings=True)
    try:
        one.attack(lost, Context(seed=SEED))
    except DivergedError as error:
        expect(bool(error.next_step), "The error about NaN has no next step.")
        return
    except Exception as error:
        raise AssertionError(f"Uploads of NaN end in a {type(error).__name__}.") from error
    raise AssertionError("It answers uploads that hold no number.")


def budgets_of_nothing_are_refused(cls: type[Attack]) -> None:
    """Settings that say how long it searches have a least value above 0."""
    known = {knob.name for knob in knobs(cls)}
    for key in {"steps", "lr", "restarts", "chunk"} & known:
        problems: list[str] = []
        made = build(cls, {key: 0}, at="attack", problems=problems)
        expect(made is None and bool(problems), f"It takes {key}=0, with which it does nothing.")


class _Interruption(Exception):
    """An interruption."""


class Box:
    """A cache in memory that can end the attack when something was kept."""

    def __init__(self, pieces: dict[str, dict[str, Tensor]], *, deadly: bool = False) -> None:
        self.pieces, self.deadly = dict(pieces), deadly
        self.saved: list[str] = []

    def load(self, name: str) -> dict[str, Tensor] | None:
        return self.pieces.get(name)

    def save(self, name: str, tensors: dict[str, Tensor]) -> None:
        self.saved.append(name)
        self.pieces[name] = tensors
        if self.deadly:
            raise _Interruption


def what_is_kept_is_taken_up_again(cls: type[Attack]) -> None:
    """An attack that keeps pieces goes on from them, does none twice, and ends the same."""
    one, whole = scene(cls), Box({})
    first = one.attack(one.observation, Context(seed=SEED, cache=whole))
    if not whole.saved:
        raise NotApplicable("it keeps no pieces")
    apart = different(first, first_answer(cls))
    expect(not apart, f"Keeping pieces changes its answer: {', '.join(apart)}.")
    expect(len(set(whole.saved)) == len(whole.saved), "It keeps two pieces under one name.")
    again = Box(whole.pieces)
    read = one.attack(one.observation, Context(seed=SEED, cache=again))
    expect(not again.saved, f"It does kept pieces again: {', '.join(again.saved)}.")
    expect(not different(read, first), "Read back from its pieces, it gives another answer.")
    dead = Box({}, deadly=True)
    try:
        one.attack(one.observation, Context(seed=SEED, cache=dead))
    except Exception as error:
        killed = isinstance(error, _Interruption) or isinstance(error.__cause__, _Interruption)
        expect(killed, f"An interruption became a {type(error).__name__}.")
    rest = Box(dead.pieces)
    resumed = one.attack(one.observation, Context(seed=SEED, cache=rest))
    twice = set(rest.saved) & set(dead.saved)
    expect(not twice, f"It does kept pieces again: {', '.join(sorted(twice))}.")
    expect(not different(resumed, first), "Resumed after an interruption, it answers otherwise.")


CHECKS: tuple[Callable[[type[Attack]], None], ...] = (
    declarations,
    answers_what_is_asked,
    same_question_same_answer,
    before_fitting_nothing_is_known,
    missing_knowledge_is_refused,
    unreadable_uploads_are_refused,
    targets_without_a_number_are_refused,
    budgets_of_nothing_are_refused,
    what_is_kept_is_taken_up_again,
)
