from __future__ import annotations

import pytest
import torch

from fedre_privacy.core.config import build
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.models import (
    FAMILIES,
    ModelSettings,
    architecture_of,
    architectures,
    assemble,
    build_model,
    count_parameters,
    members_of,
    parameters_of,
    representation_dim,
)

CIFAR = (3, 32, 32)


def test_every_member_is_registered():
    for members in FAMILIES.values():
        assert set(members) <= set(architectures.names())
    assert {name: len(members) for name, members in FAMILIES.items()} == {
        "het10": 10, "cnn5": 5, "resnets": 5, "high-het": 11,
    }  # fmt: skip


def test_kaiming_weights_have_their_spread_and_the_default_does_not():
    for weights, close in (("kaiming", True), ("default", False)):
        with seeded_generators(0, "model"):
            model = build_model(ModelSettings(name="cnn-1", weights=weights), 0, CIFAR, 10)
        for module in model.modules():
            layer = isinstance(module, torch.nn.Conv2d | torch.nn.Linear)
            if layer and module.weight.numel() > 999:
                spread = float(module.weight.detach().std()) * (module.weight[0].numel() / 2) ** 0.5
                assert (abs(spread - 1) < 0.1) == close


def test_clients_cycle_through_a_family():
    assert [architecture_of("het10", k) for k in range(11)] == [
        "cnn4", "googlenet", "mobilenet-v2", "resnet18", "resnet34", "resnet50", "resnet101",
        "resnet152", "vit-b-16", "vit-b-32", "cnn4",
    ]  # fmt: skip
    assert architecture_of("cnn5", 7) == "cnn-3"


def test_clients_cycle_through_a_list():
    assert [architecture_of("cnn4, resnet18", k) for k in range(3)] == ["cnn4", "resnet18", "cnn4"]
    assert architecture_of("resnet18", 12) == "resnet18"
    assert members_of("resnet4") == ("resnet4",)


def test_unknown_names_are_all_reported_with_every_known_one():
    with pytest.raises(ConfigError) as caught:
        architecture_of("cnn4,resnet81,vit", 0)
    first, second = caught.value.problems
    assert first.startswith("Unknown architecture 'resnet81'. Did you mean 'resnet8'? Available: ")
    assert second.startswith("Unknown architecture 'vit'.")
    for name in [*architectures.names(), *FAMILIES]:
        assert f" {name}" in first


def test_settings_refuse_an_unknown_name_before_any_work():
    problems: list[str] = []
    assert build(ModelSettings, {"name": "het11"}, at="model", problems=problems) is None
    assert problems and problems[0].startswith(
        "Unknown architecture 'het11'. Did you mean 'het10'?"
    )


def test_settings_refuse_values_out_of_range():
    problems: list[str] = []
    values = {"dim": 0, "mapping": "max", "stem": "tiny"}
    assert build(ModelSettings, values, at="model", problems=problems) is None
    assert [text.split(" is ")[0] for text in problems] == [
        "'model.dim'", "'model.mapping'", "'model.stem'",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "image_shape", "dim"),
    [
        ("cnn4", CIFAR, 512),
        ("resnet50", CIFAR, 2048),
        ("cnn5", CIFAR, 500),
        ("cnn5", (1, 28, 28), 50),
        ("resnets", CIFAR, 512),
        ("het10", CIFAR, 512),
        ("cnn4,resnet18", CIFAR, 512),
        ("cnn4,resnet50", CIFAR, 512),
    ],
)
def test_common_length(name, image_shape, dim):
    assert representation_dim(ModelSettings(name=name), image_shape) == dim
    assert representation_dim(ModelSettings(name=name, dim=77), image_shape) == 77


def test_family_members_share_the_shape_of_the_head():
    settings = ModelSettings(name="cnn4,resnet4,mobilenet-v2", mapping="mp")
    models = [build_model(settings, client, CIFAR, 10) for client in range(3)]
    assert {model.head.weight.shape for model in models} == {torch.Size((10, 512))}
    images = torch.rand(2, *CIFAR)
    assert {model.eval().extractor(images).shape for model in models} == {torch.Size((2, 512))}


def test_a_family_member_that_takes_no_such_images_stops_the_family():
    with pytest.raises(IncompatibleError, match="'vit-b-16' was given images of 1x28x28"):
        count_parameters("cnn4,vit-b-16", (1, 28, 28), 10)


@pytest.mark.parametrize("name", ["cnn4", "cnn4,resnet4"])
def test_clients_of_one_architecture_start_equal_under_one_seed(name):
    settings = ModelSettings(name=name)
    models = []
    for client in (0, 2):
        with seeded_generators(3, "model"):
            models.append(build_model(settings, client, CIFAR, 10))
    first, second = map(parameters_of, models)
    assert all(torch.equal(first[key], second[key]) for key in first)
    with seeded_generators(4, "model"):
        other = parameters_of(build_model(settings, 0, CIFAR, 10))
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_initialisation_does_not_depend_on_what_was_asked_before():
    settings = ModelSettings(name="cnn4,resnet6")
    built = []
    for image_shape in ((3, 36, 36), (3, 36, 36)):  # the second time the length is known already
        with seeded_generators(5, "model"):
            built.append(build_model(settings, 1, image_shape, 10).head.weight)
    assert torch.equal(*built)


def test_settings_of_the_architectures_reach_those_that_have_them():
    settings = ModelSettings(name="cnn-5,resnet4", width=128, stem="small")
    assert settings.architecture(0) == architectures.get("cnn-5")(width=128)
    assert settings.architecture(1) == architectures.get("resnet4")(stem="small")


def test_a_setting_that_nobody_has_is_refused():
    with pytest.raises(ConfigError) as caught:
        ModelSettings(name="cnn4", stem="small", width=9)
    assert caught.value.problems == (
        "'model.width' is 9, but cnn4 has no such setting. "
        "Leave it out, or choose another model.name.",
        "'model.stem' is small, but cnn4 has no such setting. "
        "Leave it out, or choose another model.name.",
    )


def test_assemble_keeps_the_width_of_the_backbone_unless_told():
    assert assemble(architectures.get("cnn-5")(width=60), CIFAR, 10).dim == 60
    assert assemble(architectures.get("cnn-5")(), CIFAR, 10, mapping="fc", dim=64).dim == 64


def test_unknown_mapping_is_refused():
    with pytest.raises(ConfigError, match="Unknown mapping 'avg'"):
        build_model(ModelSettings(mapping="avg"), 0, CIFAR, 10)
