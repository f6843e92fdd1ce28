from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.models import MAPPINGS, build_mapping


def ramp(length: int) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float32).unsqueeze(0)


@pytest.mark.parametrize(
    ("native", "average", "maximum"),
    [
        (768, [0.5, 1.5, 3.5, 4.5], [1, 2, 4, 5]),
        (1280, [1, 3, 6, 8], [2, 4, 7, 9]),
        (1024, [0.5, 2.5, 4.5, 6.5], [1, 3, 5, 7]),
        (2048, [1.5, 5.5, 9.5, 13.5], [3, 7, 11, 15]),
    ],
)
def test_first_bins_of_a_ramp(native, average, maximum):
    assert build_mapping("ap", native, 512)(ramp(native))[0, :4].tolist() == average
    assert build_mapping("mp", native, 512)(ramp(native))[0, :4].tolist() == maximum


@pytest.mark.parametrize("native", [512, 768, 1024, 1280, 2048, 500, 64, 7])
@pytest.mark.parametrize("dim", [512, 100, 3])
def test_pooling_agrees_with_torch(native, dim):
    features = torch.randn(4, native)
    average = F.adaptive_avg_pool1d(features.unsqueeze(1), dim).squeeze(1)
    maximum = F.adaptive_max_pool1d(features.unsqueeze(1), dim).squeeze(1)
    assert torch.allclose(build_mapping("ap", native, dim)(features), average, atol=1e-6)
    assert torch.equal(build_mapping("mp", native, dim)(features), maximum)


@pytest.mark.parametrize("name", ["ap", "mp"])
def test_pooling_gradients_agree_with_torch(name):
    pool = {"ap": F.adaptive_avg_pool1d, "mp": F.adaptive_max_pool1d}[name]
    features = torch.randn(3, 1280, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 512, dtype=torch.float64)
    ours = (build_mapping(name, 1280, 512).double()(features) * weight).sum()
    theirs = (pool(features.unsqueeze(1), 512).squeeze(1) * weight).sum()
    assert torch.allclose(
        torch.autograd.grad(ours, features)[0], torch.autograd.grad(theirs, features)[0]
    )


@pytest.mark.parametrize("name", ["ap", "mp"])
def test_pooling_can_be_differentiated_twice(name):
    features = torch.randn(2, 7, dtype=torch.float64, requires_grad=True)
    pool = build_mapping(name, 7, 3).double()
    assert torch.autograd.gradgradcheck(lambda x: pool(x) ** 2, features)


def test_pooling_to_the_same_length_is_the_identity():
    assert isinstance(build_mapping("ap", 512, 512), nn.Identity)
    assert isinstance(build_mapping("mp", 512, 512), nn.Identity)


def test_pooling_to_a_longer_vector_repeats():
    assert build_mapping("ap", 3, 6)(ramp(3)).tolist() == [[0, 0, 1, 1, 2, 2]]


def test_pooling_has_no_parameters_and_saves_nothing():
    for name in ("ap", "mp"):
        module = build_mapping(name, 768, 512)
        assert list(module.parameters()) == [] and module.state_dict() == {}


def test_trained_mapping_is_a_layer_of_its_own_even_at_equal_length():
    module = build_mapping("fc", 512, 512)
    assert sum(p.numel() for p in module.parameters()) == 512 * 513
    assert all(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("name", list(MAPPINGS))
def test_shapes_down_to_no_sample_at_all(name):
    module = build_mapping(name, 20, 8)
    assert module(torch.rand(5, 20)).shape == (5, 8)
    assert module(torch.rand(0, 20)).shape == (0, 8)


def test_unknown_mapping():
    with pytest.raises(ConfigError) as caught:
        build_mapping("app", 20, 8)
    assert str(caught.value) == ("Unknown mapping 'app'. Did you mean 'ap'? Available: ap, mp, fc.")
