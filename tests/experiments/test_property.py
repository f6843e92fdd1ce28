"""What a client's images are like as a whole: what is asked, what it tells, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context
from fedre_privacy.core.artifacts import HeadState
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.outcomes import PropertyScores
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.eval.property_scores import NOTHING
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.experiments.questions.property import LARGE, MOST, NAMED
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.training import train
from fedre_privacy.sandbox.observation_files import pack, unpack

SEEDS = (0, 1, 2, 3)


def ask(threat: str = "public-init", **own: Any) -> Any:
    problems: list[str] = []
    values = {"attack": {"name": "property", **own}, "target": "property", "threat": threat}
    settings = resolve_attack(values, {}, problems)
    if settings is None or problems:
        raise ConfigError(*problems)
    return settings


def trained(folder: Any, protocol: str = "lg-fedavg", seed: int = 0, **sections: Any) -> Any:
    problems: list[str] = []
    values = {
        "data": {"name": "digits", "size": 16, "per_class": 60},
        "partition": {"name": "pra", "alpha": 0.1},
        "protocol": {"name": protocol},
        "train": {"clients": 10, "rounds": 1, "seed": seed},
        "record": {"keep_first": True},
        **sections,
    }
    settings = resolve_training(values, {}, problems)
    assert settings is not None and not problems, problems
    return train(settings, runs=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("property")


@pytest.fixture(scope="module")
def trials(folder):
    return [prepare_attack(trained(folder, seed=seed), ask()) for seed in SEEDS]


def test_what_is_asked_follows_from_public_images_and_is_scored_by_the_clients_own(trials):
    trial = trials[0]
    seen, run = trial.observation, trial.run
    *classes, dark = seen.properties
    assert [one.label for one in classes] == list(range(10)) and dark.label == -1
    assert all(one.above == LARGE for one in classes) and dark.above == MOST
    counts = torch.tensor(run.record["class_counts"]).double()
    true = counts[trial.clients] / counts[trial.clients].sum(1, keepdim=True)
    assert torch.allclose(trial.shares[:, :10], true)
    data = run.settings.data.load()
    for row, client in enumerate(trial.clients.tolist()):
        index = run.split_indices()[0][client]
        images, labels = data.floats(index), data.labels[index].tolist()
        darker = [
            float(image.double().mean()) < dark.darker[label]
            for image, label in zip(images, labels, strict=True)
        ]
        assert float(trial.shares[row, 10]) == pytest.approx(sum(darker) / len(darker))
    assert seen.extractors == {} and seen.candidates is None
    assert not hasattr(seen, "shares") and not hasattr(dark, "shares")


def test_what_is_asked_goes_into_a_process_of_its_own(trials, tmp_path):
    pack(trials[0].observation, tmp_path)
    assert unpack(tmp_path).properties == trials[0].observation.properties


def over_runs(trials: list[Any], answer: Callable[[Any], PropertyScores]) -> tuple[float, float]:
    """AUC of classes and of images, over the pairs of all runs."""
    won, pairs = [0.0, 0.0], [0.0, 0.0]
    for trial in trials:
        card = trial.score(answer(trial))
        has = trial.shares > torch.tensor([one.above for one in trial.observation.properties])
        both = (has.sum(0) * (~has).sum(0)).double()
        for place, (key, n) in enumerate((("classes", both[:10]), ("images", both[10:]))):
            measure = card.find(f"property_auc_{key}")
            if measure is not None:
                won[place] += float(n.sum()) * measure.value
                pairs[place] += float(n.sum())
    return won[0] / pairs[0], won[1] / pairs[1]


def answered(trial: Any) -> PropertyScores:
    return trial.settings.attack(trial.observation, Context(trial.attack_seed))


def noised(upload: Upload) -> Upload:
    """Noise of the same mean and spread in place of every tensor."""
    rng = torch.Generator().manual_seed(5 + upload.client)
    made = [
        a.from_tensors(
            {n: t.mean() + t.std() * torch.randn(t.shape, generator=rng)
             for n, t in a.tensors().items()}
        )
        for a in upload.artifacts
    ]  # fmt: skip
    return replace(upload, artifacts=tuple(made))


def with_noise(trial: Any) -> PropertyScores:
    targets = tuple(noised(one) for one in trial.observation.targets)
    seen = replace(trial.observation, targets=targets, uploads=())
    return trial.settings.attack(seen, Context(trial.attack_seed))


@pytest.mark.slow
def test_heads_tell_their_classes_and_noise_in_their_place_tells_nothing(trials):
    some = trials[:2]
    classes, _ = over_runs(some, answered)
    assert classes >= 0.9  # floor: 0.5, as a head names no class
    card = some[0].score(PropertyCheat()(some[0].observation))
    assert card.find("property_auc_classes").floor == 0.5
    assert card.find("property_auc_classes").floor_name == NOTHING
    quiet, _ = over_runs(some, with_noise)
    assert 0.3 < quiet < 0.7


@pytest.mark.slow
def test_it_does_as_well_as_was_promised_on_digits(folder):
    """AUC at least .75 where labels tell nothing, over clients and properties of three seeds."""
    runs = [
        trained(folder, seed=seed, data={"name": "digits", "size": 28}) for seed in (21, 22, 23)
    ]
    made = [prepare_attack(run, ask()) for run in runs]
    assert sum(trial.shares.numel() for trial in made) >= 40
    classes, images = over_runs(made, answered)
    assert classes >= 0.9 and images > 0.5
    assert over_runs(made, with_noise)[0] < 0.75


# --- cheats --------------------------------------------------------------------------------------


def columns(clients: Tensor, one: Tensor, seen: Observation) -> Tensor:
    return one.double()[:, None].expand(len(clients), len(seen.properties))


Rule = Callable[[Observation, Tensor], Tensor]


def memory(seen: Observation, clients: Tensor) -> Tensor:
    where = {u.client: next(iter(u.artifacts[0].tensors().values())) for u in seen.targets}
    return torch.tensor([where[int(k)].data_ptr() for k in clients])


CHEATS: dict[str, Rule] = {
    "first": lambda seen, clients: -torch.arange(len(clients)),
    "parity": lambda seen, clients: clients % 2,
    "number of the client": lambda seen, clients: clients,
    "order of uploads": lambda seen, clients: torch.tensor(
        [[u.client for u in seen.targets].index(int(k)) for k in clients]
    ),
    "memory address": memory,
    "number of images": lambda seen, clients: torch.tensor(
        [seen.training.sizes[int(k)] for k in clients]
    ),
}


@dataclass(frozen=True, kw_only=True)
class PropertyCheat(Attack):
    name = "cheat"
    consumes = (HeadState,)
    answers = "property"
    rule: Rule = field(default=lambda seen, clients: clients)

    def run(self, observation: Observation, context: Context) -> PropertyScores:
        clients = torch.tensor(sorted(u.client for u in observation.targets))
        scores = columns(clients, self.rule(observation, clients), observation)
        return PropertyScores(clients, scores, ())


@pytest.mark.parametrize("name", CHEATS)
def test_answers_from_anything_but_uploads_are_at_chance(trials, name):
    cheat = PropertyCheat(rule=CHEATS[name])
    classes, _ = over_runs(trials, lambda trial: cheat(trial.observation))
    if name != "number of images":  # how many there are is told, and goes along with classes
        assert classes == pytest.approx(0.5, abs=0.1)
    leaking = [trial.score(cheat(trial.observation)).verdict.word for trial in trials]
    assert leaking.count("leaks") <= 1


def test_the_truth_behind_the_curtain_would_be_found(trials):
    """The scale on which the cheats are at chance."""
    clients = [trial.clients for trial in trials]
    found = iter(range(len(trials)))

    def truth(trial: Any) -> PropertyScores:
        return PropertyScores(clients[next(found)], trial.shares, ())

    assert over_runs(trials, truth) == (1.0, 1.0)


# --- floors and refusals -------------------------------------------------------------------------


def test_where_uploads_name_classes_the_floor_reads_them(folder):
    trial = prepare_attack(trained(folder, "fedproto"), ask())
    present = (trial.shares[:, :10] > 0).double()
    named = trial.told[NAMED][:, :10]
    assert torch.allclose(named, present / present.sum(1, keepdim=True))
    card = trial.score(PropertyScores(trial.clients, named.new_zeros(10, 11), ()))
    assert card.find("property_auc_classes").floor > 0.8


@pytest.mark.parametrize(
    ("init", "threat", "own", "said", "step"),
    [
        ("shared", "realistic", {}, "needs INITIAL-MODEL", "--threat public-init"),
        ("private", "public-init", {}, "Each client draws its own", "attack.start=random"),
    ],
)
def test_an_unknown_start_is_refused_before_training(folder, init, threat, own, said, step):
    run = trained(folder, model={"init": init})
    with pytest.raises((ConfigError, IncompatibleError)) as caught:
        check_ahead(run.settings, ask(threat, **own))
    assert said in str(caught.value) and step in str(caught.value)


def test_a_round_that_was_not_kept_is_asked_about(folder):
    kept = trained(folder).settings
    later = replace(kept, train=replace(kept.train, rounds=3))
    check_ahead(replace(later, record=replace(later.record, keep_first=False)), ask("public-init"))


def test_nothing_asked_is_nothing_answered(trials):
    bare = replace(trials[0].observation, properties=())
    with pytest.raises(IncompatibleError, match="no property to ask about"):
        trials[0].settings.attack(bare)
