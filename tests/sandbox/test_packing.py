"""What is packed comes out again, equal and by itself."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

from fedre_privacy.core.artifacts import Artifact, Counts, EntangledRep, HeadState, Prototypes
from fedre_privacy.core.channels import (
    NOTHING,
    PLACES,
    Channel,
    ClippingStep,
    CorrelatedSteps,
    LearntChange,
    LeastCount,
    Masking,
    Noise,
    NoisySteps,
    NoisySums,
    RandomChange,
    RandomRounding,
    Rounding,
    Shrinkage,
    Smoothing,
    SummingStep,
    TrainingTerm,
    UnknownNoise,
)
from fedre_privacy.core.config import plain
from fedre_privacy.core.errors import DamagedInputError, IncompatibleError
from fedre_privacy.core.types import (
    Broadcast,
    Candidates,
    KnownDefense,
    LocalTrainingFacts,
    Observation,
    Property,
    Upload,
)
from fedre_privacy.federation.shadow_training import ShadowTraining
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.sandbox.module_recipes import EXTRACTOR, LazyModule, Modules, Recipe
from fedre_privacy.sandbox.observation_files import HEAD, pack, unpack
from fedre_privacy.threats.base import threats

SHAPE = (1, 16, 16)
EVERY_STEP = Channel(
    each=(ClippingStep(1.5),),
    rows=(
        ClippingStep(1.0),
        Masking(2.0),
        Noise(0.3, per_row=True),
        UnknownNoise(),
        RandomRounding(4),
    ),
    updates=(Noise(0.1, per_number=True), Masking()),
    statistics=(NoisySums(2.0, 1.0, 0.5), Shrinkage(0.5, "diagonal"), LeastCount(3)),
    encoding=(Smoothing(0.1), Rounding(6)),
    training=(NoisySteps(1.0, 0.5), CorrelatedSteps(1.0, 0.5, (1.0, 0.5)), TrainingTerm()),
    extractor=(LearntChange(random=True), RandomChange(mixes=True)),
    round=(SummingStep(),),
)


REHEARSED = ShadowTraining(
    protocol={"name": "fedgh"},
    model=plain(ModelSettings(dim=8)),
    training={"clients": 2, "lr": 0.1},
    defense=({"name": "dp-sgd", "noise": 1.0, "clip": 1.0},),
    image_shape=SHAPE,
    num_classes=10,
    broadcasts=(),
)


def recipe(part: str = EXTRACTOR) -> Recipe:
    return Recipe(plain(ModelSettings(dim=8)), 0, SHAPE, 10, part)


@pytest.fixture
def model() -> nn.Module:
    return build_model(ModelSettings(dim=8), 0, SHAPE, 10).eval()


@pytest.fixture
def whole(model: nn.Module) -> Observation:
    """An observation with something in every field."""
    large = torch.rand(9, 8)
    means = Upload(1, 2, (Prototypes(large[2:4], torch.tensor([0, 3])), Counts(torch.ones(10))))
    mixed = Upload(0, 1, (EntangledRep(large[5], torch.full((10,), 0.1)),), True, (0, 1))
    state = model.extractor.state_dict()
    return Observation(
        threat=threats.get("strong"),
        targets=(means,),
        uploads=(means, mixed),
        broadcasts=(Broadcast(2, (0, 1), (HeadState({"weight": torch.rand(10, 8)}),)),),
        extractors=Modules({(1, 2): LazyModule(recipe(), lambda: state)}),
        image_shape=SHAPE,
        num_classes=10,
        aux=torch.rand(4, *SHAPE),
        aux_labels=torch.arange(4),
        training=LocalTrainingFacts(0.1, 2, 8, {0: 5, -1: 9}),
        candidates=Candidates(torch.rand(3, *SHAPE), torch.arange(3), torch.arange(3)),
        models=Modules({(1, 2): LazyModule(recipe("model"), model.state_dict)}),
        images_per_target=3,
        initial=Modules({(1, 0): LazyModule(recipe("model"), model.state_dict)}),
        rehearse=REHEARSED,
        properties=(Property("dark", 0.5, darker=(0.1, 0.2)), Property("large", 0.3, label=1)),
        defenses=(
            KnownDefense("gaussian", {"clip": 1.0, "noise": 0.5}, EVERY_STEP),
            KnownDefense("rap", {}, NOTHING),
            KnownDefense("unsaid", {}),
        ),
    )


def artifacts(observation: Observation) -> list[Artifact]:
    holders = (*observation.targets, *observation.uploads, *observation.broadcasts)
    return [artifact for one in holders for artifact in one.artifacts]


def test_everything_comes_out_again(whole, model, tmp_path):
    pack(whole, tmp_path)
    found = unpack(tmp_path)
    for item in dataclasses.fields(Observation):
        if item.name not in ("extractors", "models", "targets", "uploads", "broadcasts",
                             "aux", "aux_labels", "candidates", "initial", "rehearse"):  # fmt: skip
            assert getattr(found, item.name) == getattr(whole, item.name), item.name
    for one, other in zip(artifacts(found), artifacts(whole), strict=True):
        assert type(one) is type(other)
        for name, value in other.tensors().items():
            assert one.tensors()[name].equal(value)
    bare = [(u.client, u.round, u.counterfactual, u.participants) for u in whole.uploads]
    assert [(u.client, u.round, u.counterfactual, u.participants) for u in found.uploads] == bare
    images = torch.rand(2, *SHAPE)
    assert found.extractors[1, 2](images).equal(model.extractor(images))
    assert found.models[1, 2](images).equal(model(images))
    assert found.initial[1, 0](images).equal(model(images)) and set(found.initial) == {(1, 0)}
    assert found.rehearse.plain() == REHEARSED.plain()
    assert found.rehearse.broadcasts == found.broadcasts
    assert not any(p.requires_grad for p in found.models[1, 2].parameters())
    assert found.aux is not None and found.aux.equal(whole.aux)
    assert found.candidates is not None and found.candidates.images.equal(whole.candidates.images)


def test_a_channel_with_every_step_is_the_one_that_is_packed():
    held = {type(step) for place in PLACES for step in EVERY_STEP.at(place)}
    assert held == {kind for kinds in PLACES.values() for kind in kinds}
    assert Channel.from_plain(json.loads(json.dumps(EVERY_STEP.plain()))) == EVERY_STEP
    with pytest.raises(
        TypeError, match=r"Channel.encoding was given ClippingStep.*; it holds Smoothing"
    ):
        Channel(encoding=(ClippingStep(1.0),))


def test_no_tensor_is_a_view_into_something_larger(whole, tmp_path):
    pack(whole, tmp_path)
    for artifact in artifacts(unpack(tmp_path)):
        for tensor in artifact.tensors().values():
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_what_is_written_are_json_and_tensors(whole, tmp_path):
    pack(whole, tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    json.loads((tmp_path / HEAD).read_text())


def test_modules_without_a_recipe_are_refused(whole, model, tmp_path):
    loose = dataclasses.replace(whole, extractors={(1, 2): model.extractor})
    with pytest.raises(IncompatibleError, match="cannot be handed to another process"):
        pack(loose, tmp_path)


def test_a_state_that_does_not_fit_is_said():
    modules = Modules({(0, 1): LazyModule(recipe(), lambda: {"x": torch.zeros(1)})})
    with pytest.raises(DamagedInputError, match="client 0 in round 1"):
        modules[0, 1]
    with pytest.raises(KeyError):
        modules[1, 1]
