"""Attacks without the client's extractor, on real trainings: what leaks, and when it does not."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.errors import ConfigError, FedreError, IncompatibleError
from fedre_privacy.core.files import read_tensors
from fedre_privacy.core.types import Knowledge
from fedre_privacy.experiments.attack import attack, prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.models.families import PRIVATE, SHARED
from fedre_privacy.runs.initial_state import build_clients, shared_start
from fedre_privacy.runs.preparation import prepare
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.training import train
from fedre_privacy.sandbox.observation_files import HEAD, pack

CPU = torch.device("cpu")


def trained(folder, init=SHARED, seed=1, size=16, protocol="fedgh", **sections):
    problems: list[str] = []
    values = {
        "data": {"name": "digits", "size": size, **({"per_class": 60} if size == 16 else {})},
        "partition": {"name": "pra", "alpha": 0.1},
        "model": {"init": init},
        "protocol": {"name": protocol},
        "train": {"rounds": 2, "clients": 5 if size == 16 else 10, "seed": seed},
        "record": {"keep_first": True},
        **sections,
    }
    settings = resolve_training(values, {}, problems)
    assert settings is not None and not problems, problems
    return train(settings, runs=folder)


def ask(threat="public-init", target="prototypes", evaluation=None, **own):
    problems: list[str] = []
    values = {
        "attack": {"name": "shadow", **own},
        "threat": threat,
        "target": target,
        "eval": {"targets": 40, "ceiling": 0, **(evaluation or {"fewest_first": True})},
    }
    settings = resolve_attack(values, {}, problems)
    if settings is None or problems:
        raise ConfigError(*problems)
    return settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(folder):
    return trained(folder)


@pytest.fixture(scope="module")
def private(folder):
    return trained(folder, PRIVATE)


def psnr_of(card, group=""):
    return next(m for m in card.measures if m.key == "psnr" and m.group == group)


def noised(observation):
    """The same observation with noise of the same mean and spread in place of every row."""
    rng = torch.Generator().manual_seed(5)

    def blurred(upload):
        made = []
        for one in upload.artifacts:
            rows = one.rows()
            noise = rows.mean(0) + rows.std() * torch.randn(rows.shape, generator=rng)
            name = "means" if isinstance(one, Prototypes) else "reps"
            made.append(dataclasses.replace(one, **{name: noise}))
        return dataclasses.replace(upload, artifacts=tuple(made))

    return dataclasses.replace(
        observation,
        targets=tuple(map(blurred, observation.targets)),
        uploads=tuple(map(blurred, observation.uploads)),
    )


# --- the leak, and its controls ------------------------------------------------------------------


@pytest.mark.slow
def test_uploads_of_the_first_round_leak_without_any_extractor(run):
    trial = prepare_attack(run, ask(target="representations", evaluation={"round": None}))
    seen = trial.observation
    assert trial.round == 1 and len(seen.extractors) == len(seen.models) == 0
    assert not seen.threat.grants & {Knowledge.EXTRACTOR, Knowledge.ALL_EXTRACTORS}
    attack = dataclasses.replace(trial.settings.attack, members=300, tries=4)
    context = Context(trial.attack_seed)
    found = attack(seen, context)
    card = trial.score(found)
    over = psnr_of(card).over
    assert over > 1.5 and psnr_of(card).n == 40
    linear = dataclasses.replace(attack, moves=0)(seen, context)
    assert over > psnr_of(trial.score(linear)).over + 0.3
    other = dataclasses.replace(found, images=found.images.roll(1, 0))
    assert psnr_of(trial.score(other)).over < 0.0
    assert psnr_of(trial.score(attack(noised(seen), context))).over < 0.25
    random = dataclasses.replace(attack, start="random")
    assert psnr_of(trial.score(random(seen, context))).over < 0.25
    assert found.spread.shape == (len(found.images),)


@pytest.mark.slow
def test_it_does_as_well_as_was_promised_on_three_seeds(folder):
    values = []
    for seed in (0, 1, 2):
        run = trained(folder, seed=seed, size=28)
        result = attack(run, ask(evaluation={"max_images": 1}, tries=8))
        rows = result.frame()
        values.append(rows)
        assert (rows["psnr_mismatched"] - rows["psnr_floor"]).mean() < 0
    overs = torch.cat([torch.tensor((v["psnr"] - v["psnr_floor"]).to_numpy()) for v in values])
    found = torch.cat([torch.tensor(v["hit1"].to_numpy()) for v in values])
    assert len(overs) >= 20 and overs.mean() >= 5.0 and found.mean() >= 0.9


@pytest.mark.slow
def test_a_private_start_takes_it_all_away(folder):
    run = trained(folder, PRIVATE, size=28)
    threat, evaluation = "no-extractor", {"max_images": 1}
    result = attack(run, ask(threat, evaluation=evaluation, start="random"))
    measure = psnr_of(result.card)
    rows = result.frame()
    assert measure.over_interval[1] < 0.5 and measure.n >= 6
    assert rows["hit1"].mean() <= 1 / 23 + 0.05


# --- private starts ------------------------------------------------------------------------------


def test_a_private_start_is_each_clients_own(run, private):
    def starts(settings):
        made = build_clients(settings, prepare(settings, CPU))
        return [client.model.state_dict()["head.weight"] for client in made]

    shared, own = starts(run.settings), starts(private.settings)
    assert all(one.equal(shared[0]) for one in shared)
    assert not any(a.equal(b) for i, a in enumerate(own) for b in (*own[:i], *shared))
    assert all(a.equal(b) for a, b in zip(own, starts(private.settings), strict=True))
    # it follows from the client's images: one of them changed, one start changed
    prepared = prepare(private.settings, CPU)
    index = int(prepared.split.train[2][0])
    images = prepared.data.images.clone()
    images[index] = 255 - images[index]
    other = dataclasses.replace(prepared, data=dataclasses.replace(prepared.data, images=images))
    changed = [
        not client.model.state_dict()["head.weight"].equal(weights)
        for client, weights in zip(build_clients(private.settings, other), own, strict=True)
    ]
    assert changed == [False, False, True, False, False]


def test_a_shared_start_is_not_in_the_settings(run, private):
    assert "init" not in run.settings.plain()["model"]
    assert private.settings.plain()["model"]["init"] == "private"
    assert run.settings.run_name != private.settings.run_name


@pytest.mark.parametrize("protocol", ["fedavg", "fedsgd", "fedala", "fedavgdbe"])
def test_whole_models_have_no_private_start(tmp_path, protocol):
    with pytest.raises(IncompatibleError, match="model.init=private has no meaning") as caught:
        trained(tmp_path, PRIVATE, protocol=protocol)
    assert len(caught.value.problems) == 1 and not list(tmp_path.iterdir())


# --- what the attacker sees ----------------------------------------------------------------------


def test_the_initial_models_are_those_that_clients_began_with(run):
    seen = prepare_attack(run, ask()).observation
    clients = {upload.client for upload in seen.targets}
    assert set(seen.initial) == {(client, 0) for client in clients}
    for client in clients:
        true = shared_start(run.settings, client, run.image_shape, 10).state_dict()
        given = seen.initial[client, 0].state_dict()
        assert all(value.equal(true[name]) for name, value in given.items())


@pytest.mark.parametrize("init", [SHARED, PRIVATE])
def test_nobody_is_shown_more_than_is_granted(run, private, init):
    one = run if init == SHARED else private
    plainly = prepare_attack(one, ask("no-extractor", start="random"))
    assert len(plainly.observation.initial) == 0 and plainly.observation.rehearse is not None
    problems: list[str] = []
    for threat in ("realistic", "strong", "fedre-paper"):
        values = {"attack": "labels", "target": "labels", "threat": threat}
        seen = prepare_attack(one, resolve_attack(values, {}, problems)).observation
        assert seen.rehearse is None and len(seen.initial) == 0


def test_what_is_packed_holds_nothing_private(run, tmp_path):
    trial = prepare_attack(run, ask())
    pack(trial.observation, tmp_path)
    data = run.settings.data.load()
    private = {
        hashlib.sha256(picture.numpy().tobytes()).hexdigest()
        for index in run.split_indices()[0]
        for picture in (*data.floats(index), *data.images[index])
    }
    kept = {
        hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
        for round in (1, 2)
        for client in range(5)
        for name, value in run.state(client, round).items()
        if name.startswith("extractor.")
    }
    initial = shared_start(run.settings, 0, run.image_shape, 10).state_dict()
    kept -= {hashlib.sha256(v.contiguous().numpy().tobytes()).hexdigest() for v in initial.values()}
    seen = set()
    for path in tmp_path.glob("*.safetensors"):
        for value in read_tensors(path).values():
            parts = value if value.dim() == 4 else [value]
            for one in (*parts, value):
                seen.add(hashlib.sha256(one.contiguous().numpy().tobytes()).hexdigest())
    assert seen and not seen & private and not seen & kept
    head = json.loads((tmp_path / HEAD).read_text())
    told = head["rehearse"]["settings"]
    assert "seed" not in told["training"] and "partition" not in told
    assert run.name not in json.dumps(head)


@pytest.mark.slow
def test_an_attack_in_a_process_of_its_own_answers_alike(run):
    evaluation = {"max_images": 1, "targets": 3}
    settings = ask(evaluation=evaluation, views=1, shadows=2)
    alone = attack(run, settings, isolation="process", restart=True).outcome
    here = attack(run, settings, isolation="same-process", restart=True).outcome
    assert torch.allclose(alone.images, here.images, atol=1e-4)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "threat", "own", "said", "step"),
    [
        (SHARED, "realistic", {}, "needs INITIAL-MODEL", "--threat public-init"),
        (SHARED, "no-extractor", {}, "needs INITIAL-MODEL", "--threat public-init"),
        (PRIVATE, "public-init", {}, "Each client draws its own", "attack.start=random"),
        (SHARED, "eavesdropper", {"start": "random"}, "needs ARCHITECTURE", "no-extractor"),
    ],
)
def test_an_unknown_start_is_refused_before_training(run, private, init, threat, own, said, step):
    chosen = run if init == SHARED else private
    with pytest.raises(FedreError) as caught:
        check_ahead(chosen.settings, ask(threat, **own))
    assert said in str(caught.value) and step in str(caught.value)


def test_too_few_public_images_are_refused(run):
    trial = prepare_attack(run, ask())
    few = dataclasses.replace(
        trial.observation, aux=trial.observation.aux[:3], aux_labels=torch.arange(3)
    )
    with pytest.raises(IncompatibleError, match="at least 8 auxiliary images with labels; 3 were"):
        trial.settings.attack(few)
    blind = dataclasses.replace(trial.observation, rehearse=None)
    with pytest.raises(IncompatibleError, match="how these clients train"):
        trial.settings.attack(blind)


def test_the_first_round_must_be_kept(run, folder):
    settings = dataclasses.replace(
        run.settings, record=dataclasses.replace(run.settings.record, keep_first=False)
    )
    with pytest.raises(ConfigError, match="record.keep_first=true"):
        check_ahead(settings, ask())
    check_ahead(run.settings, ask())
    last = ask(evaluation={"round": 2, "max_images": 1})
    check_ahead(settings, last)
    assert prepare_attack(run, last).round == 2
    assert run.kept_rounds() == [1, 2]


def test_other_attacks_still_attack_the_last_round(run):
    problems: list[str] = []
    settings = resolve_attack({"attack": "linear", "threat": "strong"}, {}, problems)
    assert prepare_attack(run, settings).round == 2
