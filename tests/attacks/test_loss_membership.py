"""Membership inference on models that learnt known samples, and on models that did not."""

from __future__ import annotations

import copy
import importlib.util
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Attack, attacks, mismatch
from fedre_privacy.attacks.gradients.model_pairs import exchanges, losses, settle
from fedre_privacy.attacks.loss_membership import AUTO
from fedre_privacy.core.artifacts import (
    Artifact,
    Counts,
    GradientState,
    HeadState,
    LowRankChange,
    LowRankModel,
    ModelState,
    Prototypes,
    SmallModelState,
)
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import (
    Broadcast,
    Candidates,
    Knowledge,
    LocalTrainingFacts,
    Observation,
    Upload,
)
from fedre_privacy.eval.membership import auc
from fedre_privacy.models.split import parameters_of
from fedre_privacy.protocols.fedkd import pack
from fedre_privacy.runs.settings import Evaluation
from fedre_privacy.threats.base import threats

CLASSES, SIDE, EACH, CLIENTS = 4, 12, 20, 3
SCORES = ("loss", "difference", "reference")


def net(seed: int = 0, normed: bool = False) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Flatten(), nn.Linear(SIDE * SIDE, 48), nn.ReLU(), nn.Linear(48, CLASSES)]
        if normed:
            layers.insert(2, nn.BatchNorm1d(48))
        return nn.Sequential(*layers).eval()


def learn(model: nn.Module, images: Tensor, labels: Tensor, steps: int = 60) -> nn.Module:
    """A copy after full-batch steps; labels without a rule can only be learnt by heart."""
    own = copy.deepcopy(model).train()
    optimiser = torch.optim.SGD(own.parameters(), lr=0.5)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(own(images), labels).backward()
        optimiser.step()
    return own.eval()


class World:
    """Clients with pictures whose labels follow no rule; as many others are asked about."""

    def __init__(self, seed: int = 0, normed: bool = False) -> None:
        rng = stream(seed, "world")
        count = 2 * CLIENTS * EACH
        self.images = (torch.rand(count, 1, SIDE, SIDE, generator=rng) > 0.5).float()
        self.labels = torch.randint(CLASSES, (count,), generator=rng)
        self.clients = torch.arange(CLIENTS).repeat_interleave(2 * EACH)
        self.members = torch.arange(count) % 2 == 0
        self.before = net(seed, normed)

    def own(self, client: int) -> tuple[Tensor, Tensor]:
        mine = (self.clients == client) & self.members
        return self.images[mine], self.labels[mine]

    def trained(self, steps: int = 60) -> list[nn.Module]:
        return [learn(self.before, *self.own(k), steps) for k in range(CLIENTS)]

    def elsewhere(self) -> list[nn.Module]:
        """Models of clients whose data are nobody's candidates."""
        other = World(seed=77)
        return [learn(self.before, *other.own(k)) for k in range(CLIENTS)]

    def observe(self, sent: list[Artifact], threat: str = "realistic", **more) -> Observation:
        uploads = tuple(
            Upload(k, 1, (artifact, Counts(torch.tensor([EACH]))))
            for k, artifact in enumerate(sent)
        )
        given = {
            "threat": threats.get(threat),
            "targets": uploads,
            "uploads": uploads,
            "broadcasts": (),
            "extractors": {},
            "image_shape": (1, SIDE, SIDE),
            "num_classes": CLASSES,
            "candidates": Candidates(self.images, self.labels, self.clients),
            "models": {(k, 1): self.before for k in range(len(sent))},
        }
        targets = tuple(replace(u, artifacts=u.artifacts[:1]) for u in uploads)
        return Observation(**{**given, "targets": targets, **more})

    def auc(self, found: MembershipScores) -> float:
        areas = [
            auc(found.scores[mine], self.members[mine])
            for k in range(CLIENTS)
            if bool((mine := self.clients == k).any())
        ]
        return sum(areas) / len(areas)


def made(**settings) -> Attack:
    return attacks.get("loss-membership")(**settings)


def states(models: list[nn.Module]) -> list[Artifact]:
    return [ModelState(parameters_of(model)) for model in models]


@pytest.mark.parametrize("score", SCORES)
def test_what_was_learnt_by_heart_is_told_apart(score):
    world = World()
    found = made(score=score)(world.observe(states(world.trained())))
    assert world.auc(found) > 0.9
    assert found.notes == (f"score: {score}",)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.slow
def test_models_trained_without_the_records_tell_nothing(score):
    areas = []
    for seed in range(6):
        world = World(seed)
        areas.append(world.auc(made(score=score)(world.observe(states(world.elsewhere())))))
    assert (
        abs(sum(areas) / len(areas) - 0.5) < 0.07
    )  # 360 pictures of each kind: a standard deviation of 0.02


@pytest.mark.parametrize("score", SCORES)
def test_noise_for_an_upload_tells_nothing(score):
    areas = []
    for seed in range(6):
        world = World(seed)
        rng = stream(seed, "noise")
        sent = [
            ModelState(
                {n: v.std() * torch.randn(v.shape, generator=rng) for n, v in sent.params.items()}
            )
            for sent in states(world.trained())
        ]
        areas.append(world.auc(made(score=score)(world.observe(sent))))
    assert abs(sum(areas) / len(areas) - 0.5) < 0.07


def test_the_scores_are_the_differences_of_losses():
    world = World()
    models = world.trained()
    observation = world.observe(states(models))
    mine = world.clients == 1
    images, labels = world.images[mine], world.labels[mine]
    own, first = losses(models[1], images, labels), losses(world.before, images, labels)
    others = (losses(models[0], images, labels) + losses(models[2], images, labels)) / 2
    for score, expected in (
        ("loss", -own),
        ("difference", first - own),
        ("reference", others - own),
    ):
        found = made(score=score)(observation).scores[mine]
        torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5)
    direct = nn.functional.cross_entropy(models[1](images), labels, reduction="none")
    torch.testing.assert_close(own.float(), direct, rtol=1e-4, atol=1e-5)
    auto = made()(observation)
    assert torch.equal(auto.scores, made(score=AUTO)(observation).scores)


# --- what is uploaded ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ModelState, SmallModelState])
def test_low_rank_and_small_models_are_read_like_whole_ones(kind):
    world = World()
    models = world.trained(4)
    whole = made()(world.observe(states(models))).scores
    other = made()(world.observe([kind(parameters_of(m)) for m in models])).scores
    torch.testing.assert_close(whole, other)
    start = parameters_of(world.before)
    for packed, before in ((LowRankChange, 1), (LowRankModel, 0)):
        sent = [
            packed(pack({n: v - start[n] * before for n, v in parameters_of(m).items()}, 1.0))
            for m in models
        ]
        found = made(score="difference")(world.observe(sent)).scores
        exact = made(score="difference")(world.observe(states(models))).scores
        torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-3)


def test_a_gradient_is_one_step():
    world = World()
    sent: list[Artifact] = []
    for k in range(CLIENTS):
        images, labels = world.own(k)
        own = copy.deepcopy(world.before)
        nn.functional.cross_entropy(own(images), labels).backward()
        sent.append(GradientState({n: p.grad.clone() for n, p in own.named_parameters()}))
    training = LocalTrainingFacts(0.1, 1, EACH, dict.fromkeys(range(CLIENTS), EACH))
    observation = world.observe(sent, training=training)
    found = made(score="difference")(observation)
    assert world.auc(found) > 0.7
    stepped = exchanges(observation)[0].after
    for (name, after), first in zip(
        stepped.named_parameters(), world.before.parameters(), strict=True
    ):
        torch.testing.assert_close(after, first - 0.1 * sent[0].params[name])
    assert world.auc(made(score="loss")(observation)) < world.auc(found)


def test_a_head_is_read_with_the_granted_extractor():
    world = World()
    models = world.trained()
    heads = [HeadState(parameters_of(model[-1])) for model in models]
    first = HeadState(parameters_of(world.before[-1]))
    observation = world.observe(
        heads,
        threat="fedre-paper",
        models={},
        broadcasts=(Broadcast(1, tuple(range(CLIENTS)), (first,)),),
        extractors={(k, 1): model[:-1] for k, model in enumerate(models)},
    )
    whole = made(score="loss")(world.observe(states(models))).scores
    torch.testing.assert_close(made(score="loss")(observation).scores, whole)
    refused = {name: mismatch(made(), threats.get(name), {HeadState}) for name in threats.names()}
    assert refused["fedre-paper"] == refused["strong"] == []
    assert "needs EXTRACTOR to read HeadState" in refused["realistic"][0]
    assert mismatch(made(), threats.get("realistic"), {ModelState, HeadState}) != []
    assert mismatch(made(), threats.get("realistic"), {ModelState}) == []
    with pytest.raises(IncompatibleError, match="No broadcast head of client 0 in round 1"):
        made()(replace(observation, broadcasts=()))
    with pytest.raises(IncompatibleError, match="No extractor of client 0 in round 1"):
        made()(replace(observation, extractors={}))


def test_statistics_of_batchnorm_are_settled_or_sent():
    world = World(normed=True)
    models = world.trained()
    unsent = world.observe(states(models))
    exchange = exchanges(unsent)[0]
    assert not exchange.settled
    settled = settle(exchange, world.images)
    layer = settled.after[2]
    torch.testing.assert_close(
        layer.running_mean, models[0][1](models[0][0](world.images)).mean(0), rtol=1e-4, atol=1e-5
    )
    assert not settled.after.training and not layer.training
    assert torch.equal(exchange.after[2].running_mean, world.before[2].running_mean)  # a copy
    assert world.auc(made(score="difference")(unsent)) > 0.9
    with_buffers = [
        ModelState(
            parameters_of(m) | {n: b for n, b in m.named_buffers() if b.dtype.is_floating_point}
        )
        for m in models
    ]
    sent = exchanges(world.observe(with_buffers))[0]
    assert sent.settled and settle(sent, world.images) is sent
    assert torch.equal(sent.after[2].running_mean, models[0][2].running_mean)


def test_nothing_given_is_changed():
    world = World(normed=True)
    observation = world.observe(states(world.trained()))
    kept = {n: v.clone() for n, v in world.before.state_dict().items()}
    first, second = made()(observation), made()(observation)
    assert torch.equal(first.scores, second.scores)
    assert all(torch.equal(v, kept[n]) for n, v in world.before.state_dict().items())


# --- refusals ------------------------------------------------------------------------------------


def test_what_is_absent_is_named():
    world = World()
    observation = world.observe(states(world.trained()))
    with pytest.raises(IncompatibleError, match="given no candidates"):
        made()(replace(observation, candidates=None))
    with pytest.raises(IncompatibleError, match="No model of client 0 in round 1"):
        made()(replace(observation, models={}))
    alone = replace(observation, targets=observation.targets[:1])
    with pytest.raises(IncompatibleError, match="1 client's was observed"):
        made(score="reference")(alone)
    found = made()(alone)
    assert found.notes[0] == "score: difference"
    assert torch.equal(found.scores.isnan(), world.clients > 0)
    assert "clients [1, 2]" in found.notes[-1]
    with pytest.raises(IncompatibleError, match="disagree on 2 parameters"):
        made()(replace(observation, models={(k, 1): nn.Linear(2, 2) for k in range(3)}))
    odd = world.observe([ModelState({"0.weight": torch.ones(2)})] * 3)
    with pytest.raises(IncompatibleError, match="disagree on 4 parameters"):
        made()(odd)


def test_knowledge_and_uploads_are_checked_first():
    world = World()
    sent = states(world.trained())
    with pytest.raises(IncompatibleError, match="needs HEAD"):
        made()(world.observe(sent, threat="eavesdropper"))
    rows = Prototypes(torch.ones(1, 4), torch.zeros(1).long())
    with pytest.raises(IncompatibleError) as refusal:
        made()(replace(world.observe(sent), targets=(Upload(0, 1, (rows,)),)))
    assert "membership: membership" in str(refusal.value)
    assert Knowledge.EXTRACTOR not in made().required


def test_scores_are_chosen_on_other_seeds_than_reported(repo, monkeypatch):
    name = "membership_models"
    spec = importlib.util.spec_from_file_location(name, repo / "benchmarks" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    spec.loader.exec_module(script)
    assert len(script.REPORT) >= 2 and not set(script.TUNING) & set(script.REPORT)
    assert Evaluation().seed not in script.TUNING  # the default must not be a tuning seed
    assert script.SEEDS == {"tuning": script.TUNING, "report": script.REPORT}
    assert AUTO in script.SCORES
