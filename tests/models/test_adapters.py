"""Adapters inside frozen backbones: formulas written out, what is trained, what is refused."""

import copy

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from fedre_privacy.core.errors import ConfigError, IncompatibleError, MissingInputError
from fedre_privacy.defenses.private_steps import obstacle, per_sample_gradients
from fedre_privacy.models import ModelSettings, build_model, num_parameters, representation_dim
from fedre_privacy.models.adapters import (
    AdaptedBackbone,
    Bottleneck,
    LowRank,
    SelfAttention,
    _freeze,
    _install,
    has_adapters,
)
from fedre_privacy.models.adapters import AdapterForm as Form
from fedre_privacy.models.norm import running_norms, take_statistics

SMALL, TOKENS = "shufflenet_v2_x0_5", "test_vit"
GREY = (1, 8, 8)


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory):
    """Settings of a small convolutional classifier with statistics of its own."""
    torch.manual_seed(3)
    net = torchvision.models.get_model(SMALL, weights=None)
    take_statistics(net, [torch.rand(16, 3, 32, 32)])
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file(net.state_dict(), path)
    return {"name": f"torchvision:{SMALL}", "checkpoint": str(path), "size": 32}


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """Settings of a small image transformer."""
    timm = pytest.importorskip("timm", reason="pip install timm")
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("weights") / "tokens.safetensors"
    save_file(timm.create_model(TOKENS, pretrained=False, img_size=32).state_dict(), path)
    return {"name": f"timm:{TOKENS}", "checkpoint": str(path), "size": 32}


def adapted(own, **given):
    return build_model(ModelSettings(**{**own, "trainable": "adapter", **given}), 0, GREY, 4)


def pixels(count=3):
    return torch.randint(256, (count, *GREY), generator=torch.Generator().manual_seed(1)) / 255


def stir(model):
    """Give every trained parameter another value."""
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=rng) * 0.1)


# --- the formulas -------------------------------------------------------------------------------


def test_a_low_rank_layer_is_the_frozen_one_and_b_a_x_by_alpha_over_rank():
    torch.manual_seed(0)
    plain = nn.Linear(7, 5)
    layer = LowRank(plain, Form(rank=3, alpha=12.0))
    x = torch.randn(2, 6, 7)
    assert torch.equal(layer(x), plain(x))
    nn.init.normal_(layer.up.weight)
    a, b = layer.down.weight, layer.up.weight
    assert a.shape == (3, 7) and b.shape == (5, 3)
    for one, made in zip(x.reshape(-1, 7), layer(x).reshape(-1, 5), strict=True):
        wanted = plain.weight @ one + plain.bias + 12.0 / 3 * b @ (a @ one)
        torch.testing.assert_close(made, wanted, rtol=0, atol=1e-5)


def test_a_bottleneck_adds_up_of_relu_of_down_in_each_place():
    torch.manual_seed(0)
    block = nn.Conv2d(3, 6, 3, padding=1)
    layer = Bottleneck(block, 6, Form(rank=2))
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(layer(x), block(x))
    for part in (layer.up.weight, layer.up.bias):
        nn.init.normal_(part)
    y, made = block(x), layer(x)
    down, up = layer.down.weight[:, :, 0, 0], layer.up.weight[:, :, 0, 0]
    for place in ((0, 1, 2), (1, 3, 3)):
        own = y[place[0], :, place[1], place[2]]
        wanted = own + up @ (down @ own + layer.down.bias).clamp(min=0) + layer.up.bias
        torch.testing.assert_close(made[place[0], :, place[1], place[2]], wanted)


def test_attention_of_single_layers_is_that_of_torch():
    torch.manual_seed(0)
    net = torchvision.models.VisionTransformer(
        image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=12, mlp_dim=20
    ).eval()
    nn.init.normal_(net.encoder.layers[0].self_attention.in_proj_bias)
    images = torch.rand(2, 3, 16, 16)
    expected = net(images)
    network, _ = _freeze(copy.deepcopy(net), 12)
    torch.testing.assert_close(network(images), expected)
    _install(network, "vit", 16, Form(rank=2))
    torch.testing.assert_close(network(images), expected)
    changed = [name for name, one in network.named_modules() if isinstance(one, LowRank)]
    own = ("self_attention.qkv", "self_attention.out", "mlp.0", "mlp.3")
    assert [name for name in changed if "encoder_layer_0" in name] == [
        f"encoder.layers.encoder_layer_0.{name}" for name in own
    ]
    cross = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
    with pytest.raises(IncompatibleError, match="keys or values of its own"):
        SelfAttention(cross)


# --- models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["convolutions", "transformer"])
def test_a_fresh_model_is_the_frozen_one_and_adapters_alone_are_trained(kind, request):
    own = request.getfixturevalue(kind)
    frozen = build_model(ModelSettings(**own, trainable="head"), 0, GREY, 4)
    model = adapted(own, rank=4)
    images = pixels()
    expected = frozen.extractor(images)
    apart = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(model.eval().extractor(images), expected, rtol=0, atol=apart)
    assert torch.equal(model.train().extractor(images), model.eval().extractor(images))
    part = LowRank if kind == "transformer" else Bottleneck
    layers = [one for one in model.modules() if isinstance(one, LowRank | Bottleneck)]
    assert layers and all(isinstance(one, part) for one in layers) and not running_norms(model)
    inside = sum(num_parameters(one) for one in layers)
    assert num_parameters(model) == inside + num_parameters(model.head)
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]
    stir(model)
    assert float((model.extractor(images) - expected).detach().abs().max()) > 100 * apart
    F.cross_entropy(model.train()(images), torch.arange(3)).backward()
    assert all(value.grad is not None and value.grad.any() for value in model.parameters())
    assert has_adapters(model) and not has_adapters(frozen)
    assert representation_dim(ModelSettings(**own, trainable="adapter"), GREY) == model.dim


def test_models_share_frozen_tensors_and_have_adapters_of_their_own(convolutions):
    torch.manual_seed(0)
    first = adapted(convolutions)
    torch.manual_seed(0)
    second = adapted(convolutions)
    third = copy.deepcopy(first)
    backbones = [one.extractor.backbone for one in (first, second, third)]
    assert all(isinstance(one, AdaptedBackbone) for one in backbones)
    frozen = [[value.data_ptr() for value in one.buffers()] for one in backbones]
    assert frozen[0] == frozen[1] == frozen[2]
    for other in (second, third):
        pairs = zip(first.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in pairs)
    stir(first)
    third.load_state_dict(first.state_dict())
    assert torch.equal(third(pixels()), first(pixels()))
    with torch.device("meta"):
        assert num_parameters(adapted(convolutions)) == num_parameters(first)


def test_numbers_of_parameters_are_those_of_the_formula(transformer):
    rank, width, inner, blocks = 4, 64, 192, 6
    ends = [(width, 3 * width), (width, width), (width, inner), (inner, width)]
    wanted = blocks * sum(rank * (a + b) for a, b in ends) + 4 * (width + 1)
    assert num_parameters(adapted(transformer, rank=rank)) == wanted


def test_gradients_of_an_update_have_a_second_derivative(transformer):
    model = adapted(transformer, rank=2)
    stir(model)
    images = pixels().requires_grad_()
    loss = F.cross_entropy(model(images), torch.arange(3))
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (twice,) = torch.autograd.grad(sum(one.square().sum() for one in slopes), images)
    assert twice.abs().max() > 0


@pytest.mark.parametrize("kind", ["convolutions", "transformer"])
def test_private_training_has_gradients_of_single_samples(kind, request):
    pytest.importorskip("opacus", reason="pip install 'fedre-privacy[dp]'")
    model = adapted(request.getfixturevalue(kind), rank=2).train()
    stir(model)
    assert obstacle(model) is None
    images, labels = pixels(), torch.arange(3)
    params = list(model.parameters())
    with per_sample_gradients([model], params):
        F.cross_entropy(model(images), labels).backward()
        found = [value.grad_sample.clone() for value in params]
    for i in range(3):
        alone = F.cross_entropy(model(images[i : i + 1]), labels[i : i + 1])
        slopes = torch.autograd.grad(alone, params)
        for own, wanted in zip(found, slopes, strict=True):
            apart = 1e-3 * float(wanted.abs().max()) + 1e-6
            torch.testing.assert_close(own[i], wanted, rtol=0, atol=apart)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"name": "cnn4", "checkpoint": None, "size": None}, ConfigError, "begins at random"),
        ({"checkpoint": None}, ConfigError, "model.checkpoint=FILE"),
        ({"checkpoint": "absent.pth"}, MissingInputError, "absent"),
        ({"adapter": "lora"}, IncompatibleError, "no linear layer before its last"),
        ({"rank": 100}, IncompatibleError, "more than the width of"),
        ({"trainable": "head", "rank": 4}, ConfigError, "no adapter is trained"),
        ({"trainable": "all", "adapter": "lora"}, ConfigError, "no adapter is trained"),
        ({"norm": "gn"}, ConfigError, "do not survive"),
    ],
)
def test_what_cannot_be_is_refused_in_words(convolutions, given, kind, says):
    with pytest.raises(kind, match=says):
        adapted(convolutions, **given)


def test_a_rank_above_the_width_and_blocks_that_are_not_there_are_refused(transformer):
    with pytest.raises(IncompatibleError, match="more than the width of 24 layers") as caught:
        adapted(transformer, rank=65)
    assert caught.value.next_step == "Use --set model.rank=64 at most."
    with pytest.raises(IncompatibleError, match="no block of convolutions"):
        adapted(transformer, adapter="bottleneck")


def test_a_norm_that_cannot_be_fixed_is_refused():
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4))
    with pytest.raises(IncompatibleError, match="BatchNorm1d, which adapters do not handle"):
        _freeze(net, 4)
