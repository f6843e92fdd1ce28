from __future__ import annotations

import pytest
import torch
from torch import nn

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.models import (
    ModelSettings,
    Normalise,
    SplitModel,
    build_model,
    load_parameters,
    num_parameters,
    parameters_of,
)


def small_model(num_classes: int = 3) -> SplitModel:
    return SplitModel(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 6)),
        nn.Identity(),
        dim=6,
        num_classes=num_classes,
    )


def test_normalise_maps_the_unit_interval_to_minus_one_and_one():
    images = torch.tensor([0.0, 0.25, 1.0]).reshape(3, 1, 1, 1).expand(3, 3, 2, 2)
    assert Normalise()(images)[:, 0, 0, 0].tolist() == [-1.0, -0.5, 1.0]


def test_normalise_per_channel():
    images = torch.ones(1, 3, 2, 2)
    out = Normalise(mean=(0.0, 0.5, 1.0), std=(1.0, 0.5, 0.25))(images)
    assert out[0, :, 0, 0].tolist() == [1.0, 1.0, 0.0]


def test_normalise_is_neither_trained_nor_saved():
    module = Normalise()
    assert list(module.parameters()) == [] and module.state_dict() == {}
    assert module.double().mean.dtype == torch.float64


def test_normalise_leaves_its_input_alone():
    images = torch.rand(2, 3, 4, 4)
    before = images.clone()
    Normalise()(images)
    assert torch.equal(images, before)


def test_parts_of_a_model():
    model = small_model()
    assert [name for name, _ in model.extractor.named_children()] == [
        "normalise", "backbone", "mapping",
    ]  # fmt: skip
    assert (model.dim, model.num_classes) == (6, 3)
    assert model.head.bias is not None
    images = torch.rand(5, 3, 8, 8)
    assert model.extractor(images).shape == (5, 6)
    assert torch.equal(model(images), model.head(model.extractor(images)))


@pytest.mark.parametrize("mapping", ["ap", "mp", "fc"])
def test_images_are_normalised_exactly_once(mapping):
    model = build_model(ModelSettings(mapping=mapping, dim=100), 0, (3, 32, 32), 10).eval()
    images = torch.rand(2, 3, 32, 32)
    by_hand = model.extractor.mapping(model.extractor.backbone(images * 2 - 1))
    assert torch.allclose(model.extractor(images), by_hand, atol=1e-6)
    assert not torch.allclose(
        model.extractor(images),
        model.extractor.mapping(model.extractor.backbone(images)),
        atol=1e-3,
    )


def test_parameters_leave_buffers_out_and_share_nothing():
    model = small_model()
    params = parameters_of(model)
    assert set(params) == {name for name, _ in model.named_parameters()}
    assert not any("running" in name for name in params)
    for name, value in model.named_parameters():
        assert not params[name].requires_grad
        assert params[name].data_ptr() != value.data_ptr()
        params[name].fill_(7.0)
        assert not (value == 7.0).any()


def test_loading_copies_and_keeps_storage():
    model, other = small_model(), small_model()
    pointers = {name: value.data_ptr() for name, value in model.named_parameters()}
    given = parameters_of(other)
    load_parameters(model, given)
    for name, value in model.named_parameters():
        assert value.data_ptr() == pointers[name] != given[name].data_ptr()
        assert value.requires_grad and value.is_leaf
        assert torch.equal(value, given[name])
    given["head.bias"].fill_(9.0)
    assert not (model.head.bias == 9.0).any()


def test_loading_live_parameters_does_not_tie_two_models():
    model, other = small_model(), small_model()
    load_parameters(model.head, dict(other.head.named_parameters()))
    with torch.no_grad():
        other.head.weight.zero_()
    assert model.head.weight.abs().sum() > 0


def test_loading_leaves_buffers_alone():
    model = small_model()
    norm = model.extractor.backbone[1]
    norm.running_mean.fill_(3.0)
    load_parameters(model, parameters_of(small_model()))
    assert (norm.running_mean == 3.0).all()


def test_loading_reports_every_misfit_and_writes_nothing():
    model = small_model(num_classes=3)
    given = parameters_of(small_model(num_classes=5))
    given["extra"] = given.pop("extractor.backbone.0.bias")
    before = parameters_of(model)
    with pytest.raises(IncompatibleError) as caught:
        load_parameters(model, given)
    assert caught.value.problems == (
        "Parameter 'extractor.backbone.0.bias' of shape (4,) was given no value.",
        "Parameter 'head.weight' has shape (3, 6) but was given (5, 6).",
        "Parameter 'head.bias' has shape (3,) but was given (5,).",
        "A value of shape (4,) was given for 'extra', which SplitModel does not have.",
    )
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_loading_refuses_shapes_that_would_broadcast():
    with pytest.raises(IncompatibleError, match=r"\(3,\) but was given \(1,\)"):
        load_parameters(nn.Linear(2, 3), {"weight": torch.zeros(3, 2), "bias": torch.zeros(1)})


def test_counting():
    assert num_parameters(small_model().head) == 3 * 6 + 3
    assert num_parameters(nn.BatchNorm2d(4)) == 8
