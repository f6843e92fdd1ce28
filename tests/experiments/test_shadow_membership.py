"""Membership without the client's extractor, on real trainings, and its controls."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from fedre_privacy.attacks.base import Context
from fedre_privacy.benchmarking.suite import default_suite
from fedre_privacy.core.artifacts import EntangledRep
from fedre_privacy.core.channels import Channel, ClippingStep
from fedre_privacy.core.errors import ConfigError, DivergedError, IncompatibleError
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.types import Knowledge, KnownDefense
from fedre_privacy.eval.membership import GRANTED, WITHHELD
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.models.families import PRIVATE, SHARED
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.training import train


def trained(folder, protocol, init=SHARED):
    problems: list[str] = []
    values = {
        "data": {"name": "digits", "size": 16, "per_class": 60},
        "partition": {"name": "pra", "alpha": 0.1},
        "model": {"init": init},
        "protocol": {"name": protocol},
        "train": {"rounds": 2, "clients": 5, "seed": 1},
        "record": {"keep_first": True},
    }
    settings = resolve_training(values, {}, problems)
    assert settings is not None and not problems, problems
    return train(settings, runs=folder)


def ask(threat="public-init", target="membership", uploads=(), **own):
    problems: list[str] = []
    values = {"threat": threat, "target": target, **({"attack": own} if own else {})}
    settings = resolve_attack(values, {}, problems, uploads=uploads)
    if settings is None or problems:
        raise ConfigError(*problems)
    return settings


QUICK = {"name": "shadow-membership", "shadows": 4, "tries": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def prototypes(folder):
    return trained(folder, "fedgh")


@pytest.fixture(scope="module")
def mixtures(folder):
    return trained(folder, "fedre")


@pytest.fixture(scope="module")
def outputs(folder):
    return trained(folder, "fd")


def auc_of(card, group=""):
    return next(m for m in card.measures if m.key == "auc" and m.group == group)


def noised(observation, seed):
    """The same observation with noise of the same mean and spread in place of every row."""
    rng = torch.Generator().manual_seed(seed)

    def blurred(upload):
        made = []
        for one in upload.artifacts:
            rows = one.rows()
            noise = rows.mean() + rows.std() * torch.randn(rows.shape, generator=rng)
            if isinstance(one, EntangledRep):
                made.append(dataclasses.replace(one, rep=noise[0]))
            else:
                name = next(n for n in ("means", "outputs", "reps") if hasattr(one, n))
                made.append(dataclasses.replace(one, **{name: noise}))
        return dataclasses.replace(upload, artifacts=tuple(made))

    return dataclasses.replace(
        observation,
        targets=tuple(map(blurred, observation.targets)),
        uploads=tuple(map(blurred, observation.uploads)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prototypes", "mixtures"])
def test_members_are_told_without_any_extractor(kind, request):
    trial = prepare_attack(request.getfixturevalue(kind), ask(**QUICK))
    seen, attack, context = trial.observation, trial.settings.attack, Context(trial.attack_seed)
    assert trial.round == 1 and len(seen.extractors) == len(seen.models) == 0
    assert not seen.threat.grants & {Knowledge.EXTRACTOR, Knowledge.ALL_EXTRACTORS}
    found = attack(seen, context)
    card = trial.score(found)
    auc = auc_of(card)
    assert auc.floor_name == "image alone" and auc.over > 0.08
    assert auc_of(card, "1").value > 0.85
    noise = [auc_of(trial.score(attack(noised(seen, s), context))).value for s in range(4)]
    by_noise = sum(noise) / len(noise)
    assert abs(by_noise - 0.5) < 0.1 and auc.value > by_noise + 0.08
    random = dataclasses.replace(attack, start="random")
    by_random = auc_of(trial.score(random(seen, context))).value
    assert auc.value > by_random + 0.1
    for shift in (1, 2, 3):
        rolled = MembershipScores(found.scores.roll(shift), found.notes)
        assert auc_of(trial.score(rolled)).value < 0.6


@pytest.mark.slow
def test_mean_outputs_tell_members_of_small_classes_without_any_model(outputs):
    trial = prepare_attack(outputs, ask(**QUICK))
    seen, attack, context = trial.observation, trial.settings.attack, Context(trial.attack_seed)
    assert trial.round == 1 and not seen.extractors and not seen.heads and not seen.models

    def small(observation, how=attack):
        return auc_of(trial.score(how(observation, context)), "2-30").value

    told = small(seen)
    noise = sum(small(noised(seen, s)) for s in range(4)) / 4
    random = small(seen, dataclasses.replace(attack, start="random"))
    assert auc_of(trial.score(attack(seen, context))).over > 0.08
    clipped = KnownDefense("stub", {}, Channel(rows=(ClippingStep(0.3),)))
    declared = dataclasses.replace(seen, defenses=(clipped,))
    assert "rows" not in attack.adapts(declared)
    assert attack(declared, context).scores.equal(attack(seen, context).scores)
    assert told > 0.65 and told > noise + 0.12 and told > random + 0.12 and abs(noise - 0.5) < 0.1


def test_the_same_seed_gives_the_same_scores_for_any_candidates(mixtures):
    trial = prepare_attack(mixtures, ask(**{**QUICK, "shadows": 2, "tries": 1}))
    attack, context = trial.settings.attack, Context(trial.attack_seed)
    whole = attack(trial.observation, context).scores
    assert whole.equal(attack(trial.observation, context).scores)
    asked = trial.observation.candidates
    keep = asked.clients == 2
    fewer = dataclasses.replace(
        asked, images=asked.images[keep], labels=asked.labels[keep], clients=asked.clients[keep]
    )
    alone = attack(dataclasses.replace(trial.observation, candidates=fewer), context).scores
    assert torch.allclose(alone, whole[keep], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_sources_are_told_without_any_extractor(prototypes):
    trial = prepare_attack(prototypes, ask(target="source", **QUICK))
    card = trial.score(trial.settings.attack(trial.observation, Context(trial.attack_seed)))
    source = next(m for m in card.measures if m.key == "source")
    assert source.over > 0.1


def test_a_server_that_holds_the_model_is_measured_against_it(prototypes):
    settings = ask(**QUICK)
    assert prepare_attack(prototypes, settings).beside is WITHHELD
    held = dataclasses.replace(
        settings.threat, grants=settings.threat.grants | {Knowledge.EXTRACTOR}
    )
    trial = prepare_attack(prototypes, dataclasses.replace(settings, threat=held))
    assert trial.beside is GRANTED


def test_it_is_the_usual_attack_of_a_server_without_extractors(prototypes):
    kinds = prototypes.settings.protocol.uploads
    assert ask(uploads=kinds).attack.name == "shadow-membership"
    assert ask("strong", uploads=kinds).attack.name == "membership"
    assert ask("realistic", uploads=kinds).attack.name == "membership"  # the refusal's words


@pytest.mark.parametrize(
    ("threat", "own", "said"),
    [
        ("realistic", {}, "INITIAL-MODEL"),
        ("no-extractor", {}, "INITIAL-MODEL"),
        ("public-init", {"shadows": 1}, "shadows"),
        ("public-init", {"start": "guessed"}, "start"),
    ],
)
def test_what_cannot_be_asked_is_refused_ahead(prototypes, threat, own, said):
    with pytest.raises((ConfigError, IncompatibleError), match=said):
        check_ahead(prototypes.settings, ask(threat, **{**QUICK, **own}))


def test_private_starts_are_refused_ahead(folder):
    run = trained(folder, "fedgh", PRIVATE)
    with pytest.raises(IncompatibleError, match="init"):
        check_ahead(run.settings, ask(**QUICK))


def test_rows_that_are_not_finite_tell_nothing(mixtures):
    trial = prepare_attack(mixtures, ask(**{**QUICK, "shadows": 2, "tries": 1}))
    seen = trial.observation

    def lost(upload):
        if upload.client != 0:
            return upload
        made = [
            dataclasses.replace(one, rep=torch.full_like(one.rep, torch.nan))
            for one in upload.artifacts
        ]
        return dataclasses.replace(upload, artifacts=tuple(made))

    broken = dataclasses.replace(
        seen, targets=tuple(map(lost, seen.targets)), uploads=tuple(map(lost, seen.uploads))
    )
    scores = trial.settings.attack(broken, Context(trial.attack_seed)).scores
    first = seen.candidates.clients == 0
    assert scores[first].isnan().all() and scores[~first].isfinite().all()


def test_copies_that_diverge_are_one_error(mixtures):
    trial = prepare_attack(mixtures, ask(**{**QUICK, "shadows": 2, "tries": 1}))
    seen = trial.observation
    lost = {}
    for owner, model in seen.initial.items():
        lost[owner] = copy.deepcopy(model)
        for value in lost[owner].parameters():
            value.data.fill_(torch.nan)
    with pytest.raises(DivergedError):
        trial.settings.attack(dataclasses.replace(seen, initial=lost), Context(trial.attack_seed))


def test_a_benchmark_asks_about_members_from_random_weights_where_starts_are_private():
    for init, threat, start in (
        (SHARED, "public-init", "known"),
        (PRIVATE, "no-extractor", "random"),
    ):
        problems: list[str] = []
        training = resolve_training({"model": {"init": init}}, {}, problems)
        (mine,) = [
            values
            for values in default_suite(training)
            if values["attack"]["name"] == "shadow-membership"
        ]
        assert (mine["threat"], mine["attack"].get("start", "known")) == (threat, start)
