"""Which client trained on this image: what is asked, what it tells, and who answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context
from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.types import Candidates, Observation
from fedre_privacy.eval.membership import RECEIVED
from fedre_privacy.eval.source_scores import evaluate_sources
from fedre_privacy.experiments.attack import attack, prepare_attack
from fedre_privacy.experiments.compatibility import check_fit
from fedre_privacy.experiments.questions.candidates import HOLDERS, draw_sources, images_per_client
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.training import train


def ask(name: str | None = None, threat: str = "strong", uploads: Any = (), **more: Any) -> Any:
    problems: list[str] = []
    values: dict[str, Any] = {"target": "source", "threat": threat, **more}
    if name:
        values["attack"] = {"name": name}
    settings = resolve_attack(values, {}, problems, uploads=uploads)
    assert settings is not None and not problems
    return settings


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    data = {"name": "digits", "size": 16, "per_class": 60}
    settings = tiny(
        protocol="fedproto",
        data=data,
        partition="iid",
        train={"rounds": 1, "clients": 6, "batch_size": 16},
    )
    return train(settings, runs=tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def trials(run):
    return [prepare_attack(run, ask(eval={"seed": seed})) for seed in range(8)]


def images_of(trial: Any) -> list[bytes]:
    return [image.numpy().tobytes() for image in trial.candidates.images]


def test_each_image_is_asked_about_every_client_that_holds_its_class(run, trials):
    counts = torch.tensor(run.record["class_counts"])
    trial = trials[0]
    asked, own, records = trial.candidates, trial.own, trial.records
    assert bool((counts[asked.clients, asked.labels] > 0).all())
    found: dict[bytes, list[int]] = {}
    for at, image in enumerate(images_of(trial)):
        found.setdefault(image, []).append(at)
    for rows in found.values():
        assert len({int(records[r]) for r in rows}) == 1 == sum(bool(own[r]) for r in rows)
        assert len({int(asked.clients[r]) for r in rows}) == len(rows) > 1
    # of each class every client is the source equally often, so that labels tell nothing
    for label in asked.labels.unique().tolist():
        here = asked.labels == label
        times = torch.bincount(asked.clients[here & own], minlength=6)
        assert len(times[times > 0].unique()) == 1
        assert set(asked.clients[here & own].tolist()) == set(asked.clients[here].tolist())
    assert trial.observation.candidates is asked
    assert not hasattr(asked, "own") and not hasattr(asked, "records")


Cheat = Callable[[Candidates], Tensor]


def position(asked: Candidates) -> Tensor:
    return torch.arange(len(asked)).double()


def times_asked(asked: Candidates) -> Tensor:
    return torch.bincount(asked.clients)[asked.clients].double()


CHEATS: dict[str, Cheat] = {
    "first": lambda asked: -position(asked),
    "last": position,
    "parity": lambda asked: position(asked) % 2,
    "how often the client is asked": times_asked,
    "number of the client": lambda asked: asked.clients.double(),
    "memory address": lambda asked: torch.tensor([i.data_ptr() for i in asked.images]).double(),
    "pixels and client": lambda asked: (asked.images.flatten(1).sum(1) * (1 + asked.clients)) % 1,
    "client of the row before": lambda asked: (asked.clients == asked.clients.roll(1)).double(),
}


@dataclass(frozen=True, kw_only=True)
class SourceCheat(Attack):
    name = "cheat"
    consumes = (Prototypes,)
    answers = "membership"
    rule: Cheat = field(default=position)

    def run(self, observation: Observation, context: Context) -> MembershipScores:
        assert observation.candidates is not None
        return MembershipScores(self.rule(observation.candidates).float(), ())


def found_by(trials: list[Any], rule: Cheat, order: Callable[[Any], Tensor] | None = None) -> float:
    """Share of sources that a rule finds less that of a guess, over all trials."""
    over, n = 0.0, 0
    for trial in trials:
        at = torch.arange(len(trial.own)) if order is None else order(trial)
        asked = trial.candidates
        asked = Candidates(asked.images[at], asked.labels[at], asked.clients[at])
        card = evaluate_sources(
            rule(asked), trial.own[at], trial.records[at], asked.clients, asked.labels,
            baseline=torch.zeros(len(at)), beside=RECEIVED,
        )  # fmt: skip
        over, n = over + card.get("source").over * card.n, n + card.n
    return over / n


@pytest.mark.parametrize("name", CHEATS)
def test_the_list_does_not_tell_the_source(trials, name):
    assert sum(int(trial.own.sum()) for trial in trials) > 1000
    assert abs(found_by(trials, CHEATS[name])) < 0.05


def test_the_cheats_find_what_is_planted(trials):
    def sources_first(trial: Any) -> Tensor:
        return trial.own.int().argsort(descending=True, stable=True)

    for name in ("first", "memory address"):
        first = CHEATS[name] if name == "first" else lambda asked: -CHEATS["memory address"](asked)
        assert found_by(trials, first, sources_first) > 0.5


def test_no_cheat_is_called_a_leak(run):
    for rule in CHEATS.values():
        settings = replace(ask(), attack=SourceCheat(rule=rule))
        trial = prepare_attack(run, settings)
        assert trial.score(settings.attack(trial.observation)).verdict.word != "leaks"


def test_prototypes_name_their_source_and_noise_does_not(run):
    trial = prepare_attack(run, ask())
    attacker = trial.settings.attack
    assert attacker.name == "membership"
    found = trial.score(attacker(trial.observation, Context(1))).get("source")
    assert found.over_interval[0] > 0.1

    def noisy(upload: Any, seed: int) -> Any:
        sent = upload.artifacts[0]
        means = torch.randn(sent.means.shape, generator=torch.Generator().manual_seed(seed))
        return replace(upload, artifacts=(Prototypes(means, sent.labels),))

    changed = tuple(noisy(u, 10 * u.client) for u in trial.observation.targets)
    told = replace(trial.observation, targets=changed, uploads=changed)
    lost = trial.score(attacker(told, Context(1))).get("source")
    assert lost.over < 0.06 < found.over


@pytest.mark.parametrize(
    "protocol, threat", [("fedavg", "realistic"), ("lg-fedavg", "fedre-paper")]
)
@pytest.mark.slow
def test_models_are_asked_by_alignment(tiny, tmp_path, protocol, threat):
    run = train(tiny(protocol=protocol, partition="iid", train={"clients": 6}), runs=tmp_path)
    settings = ask(threat=threat, uploads=run.settings.protocol.uploads)
    assert settings.attack.name == "alignment"
    result = attack(run, settings)
    found = result.card.get("source")
    assert found.n >= 6 and result.card.diverged == 0 and found.floor_name.startswith("a guess")
    assert result.figure().axes and {"right", "holders"} <= set(result.frame())
    again = attack(run, settings)
    assert again.table() == result.table() and again.folder == result.folder


def test_an_attack_that_answers_something_else_is_refused(tiny):
    with pytest.raises(
        IncompatibleError, match="target 'source' needs one that answers membership"
    ):
        check_fit(tiny(protocol="fedproto"), ask("dip"))


def held_by(*classes: int) -> Any:
    """Clients that hold twenty random pictures of one class each."""
    count = 20 * len(classes)
    images = torch.randint(
        256, (count, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    data = SimpleNamespace(
        images=images, labels=torch.tensor(classes).repeat_interleave(20), num_classes=4
    )
    train = list(torch.arange(count).split(20))
    return SimpleNamespace(
        data=data,
        train=train,
        test=[torch.tensor([], dtype=torch.int64)],
        clients=range(len(train)),
        run=SimpleNamespace(settings=SimpleNamespace(coins=None)),
    )


def test_classes_that_one_client_holds_are_not_asked_about():
    asked = draw_sources(held_by(0, 1, 1, 2), 100, 0)
    assert set(asked.candidates.labels.tolist()) == {1}
    assert set(asked.candidates.clients.tolist()) == {1, 2} and int(asked.own.sum()) == 40
    with pytest.raises(IncompatibleError, match="Only 0 training images .* 6 are needed"):
        draw_sources(held_by(0, 1, 2), 100, 0)


def test_copies_and_more_clients_than_are_asked_about():
    many = held_by(*[3] * 13)
    many.data.images[20] = many.data.images[0]
    asked = draw_sources(many, 100, 0)
    assert len(asked.candidates.clients.unique()) == HOLDERS
    shown = {image.numpy().tobytes() for image in asked.candidates.images}
    assert (many.data.images[0].float() / 255).numpy().tobytes() not in shown


@pytest.mark.parametrize(
    "counts, expected",
    [
        ({0: 3, 1: 3, 2: 1}, (3, [0, 1])),
        ({0: 9, 1: 2, 2: 2, 3: 2}, (2, [0, 1, 2, 3])),
        ({0: 9}, (0, [])),
        ({0: 9, 1: 0}, (0, [])),
        ({0: 2, 1: 1}, (1, [0, 1])),
    ],
)
def test_each_client_gives_as_many(counts, expected):
    assert images_per_client(counts) == expected
