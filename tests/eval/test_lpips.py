"""LPIPS without its download: refusals, and a local file in its place."""

import pytest
import torch
from torchvision import models

from fedre_privacy.core.errors import DamagedInputError, MissingExtraError, MissingInputError
from fedre_privacy.eval.metrics import metrics

Lpips = metrics.get("lpips")


@pytest.fixture
def backbone(tmp_path):
    """A random network's state dict under the names that torchvision uses."""

    def write(net="squeeze"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            build = {"squeeze": models.squeezenet1_1, "alex": models.alexnet}[net]
            state = build(weights=None).state_dict()
        state = {key: value for key, value in state.items() if key.startswith("features.")}
        path = tmp_path / f"{net}.pth"
        torch.save(state, path)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("net", "name"),
    [("alex", "alexnet-owt-7be5be79.pth"), ("vgg", "vgg16-397923af.pth"),
     ("squeeze", "squeezenet1_1-b8a52dc0.pth")],
)  # fmt: skip
def test_without_the_file_it_says_what_to_fetch_and_downloads_nothing(
    net, name, tmp_path, monkeypatch
):
    def refuse(*args, **kwargs):
        raise AssertionError("a download was tried")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuse)
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    images = torch.rand(2, 3, 32, 32)
    for use in (lambda m: m.check((3, 32, 32)), lambda m: m(images, images)):
        with pytest.raises(MissingExtraError) as caught:
            use(Lpips(net=net))
        text = str(caught.value)
        assert name in text and "$TORCH_HOME/hub/checkpoints/" in text
        assert str(tmp_path / "hub" / "checkpoints" / name) in text
        assert "--metrics psnr,ssim,mse255" in text


def test_the_cached_file_is_found(tmp_path, monkeypatch, backbone):
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    source = backbone()
    (folder / "squeezenet1_1-b8a52dc0.pth").write_bytes(open(source, "rb").read())
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(Lpips(net="squeeze")(images, images), torch.zeros(2).double())


@pytest.mark.filterwarnings("error")
def test_a_local_alexnet_file_works(backbone):
    metric = Lpips(weights=backbone("alex"))
    rng = torch.Generator().manual_seed(0)
    original = torch.rand(4, 3, 32, 32, generator=rng)
    before = torch.random.get_rng_state()
    near = metric((original * 0.95).clamp(0, 1), original)
    far = metric(torch.rand(4, 3, 32, 32, generator=rng), original)
    assert torch.equal(before, torch.random.get_rng_state()), "it leaves the global stream alone"
    assert near.shape == (4,) and (near > 0).all() and (near < far).all()
    assert metric(original, original).tolist() == [0.0] * 4
    broken = original.clone()
    broken[2] = float("nan")
    assert metric(broken, original * 0.9).isnan().tolist() == [False, False, True, False]
    assert metric.definition((3, 32, 32)).endswith("images resized x2 (bilinear)")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_equals_the_package_on_resized_images(backbone):
    import lpips

    path = backbone()
    metric = Lpips(net="squeeze", weights=path)
    reference = lpips.LPIPS(net="squeeze", pnet_rand=True, verbose=False)
    state = torch.load(path, weights_only=True)
    own = {key: state["features." + key.split(".", 2)[2]] for key in reference.state_dict()
           if key.startswith("net.")}  # fmt: skip
    reference.load_state_dict(own, strict=False)
    images, others = torch.rand(2, 3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    big = [torch.nn.functional.interpolate(x, scale_factor=4, mode="bilinear").expand(-1, 3, -1, -1)
           for x in (images, others)]  # fmt: skip
    with torch.no_grad():
        expected = reference(*big, normalize=True).flatten().double()
    assert torch.allclose(metric(images, others), expected, atol=1e-6)
    assert "resized x4" in metric.definition((1, 16, 16))


def test_wrong_files_are_refused(tmp_path, backbone):
    images = torch.rand(1, 3, 32, 32)
    with pytest.raises(MissingInputError, match="no file at"):
        Lpips(weights=str(tmp_path / "absent.pth")).check((3, 32, 32))
    with pytest.raises(
        DamagedInputError, match="not the torchvision state dict of 'alex'|does not"
    ):
        Lpips(net="alex", weights=backbone("squeeze"))(images, images)
    (tmp_path / "junk.pth").write_bytes(b"not a file of tensors")
    with pytest.raises(DamagedInputError, match="not a readable state dict"):
        Lpips(net="squeeze", weights=str(tmp_path / "junk.pth"))(images, images)
