"""Metrics against scikit-image, hand-computed constants and their own contracts."""

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.eval.metrics import DEFAULT_METRICS, metrics
from fedre_privacy.eval.metrics.psnr import psnr_from_mse

NAMES = ("psnr", "ssim", "mse", "mse255")


def pair(shape=(5, 3, 16, 20), spread=0.2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    original = torch.rand(shape, generator=rng)
    return (original + spread * torch.randn(shape, generator=rng)).clamp(0, 1), original


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [11, 16, 32])
def test_psnr_and_ssim_agree_with_scikit_image(channels, side):
    recovered, original = pair((4, channels, side, side + 3))
    psnr = metrics.get("psnr")()(recovered, original)
    ssim = metrics.get("ssim")()(recovered, original)
    for i in range(4):
        a, b = recovered[i].double().numpy(), original[i].double().numpy()
        assert psnr[i].item() == pytest.approx(peak_signal_noise_ratio(b, a, data_range=1.0))
        expected = structural_similarity(
            a, b, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0,
            channel_axis=0,
        )  # fmt: skip
        assert ssim[i].item() == pytest.approx(expected, abs=1e-9)


def test_constants_by_hand():
    half, zero = torch.full((1, 1, 12, 12), 0.5), torch.zeros(1, 1, 12, 12)
    assert metrics.get("mse")()(half, zero).item() == pytest.approx(0.25)
    assert metrics.get("mse255")()(half, zero).item() == pytest.approx(255**2 / 4)
    assert metrics.get("psnr")()(half, zero).item() == pytest.approx(6.0206, abs=1e-4)
    tenth = torch.full((1, 1, 12, 12), 0.1)
    assert metrics.get("psnr")()(tenth, zero).item() == pytest.approx(20.0, abs=1e-5)
    # With two constant images only the luminance term is left: (2ab + C1) / (a^2 + b^2 + C1).
    expected = (2 * 0.5 * 0.1 + 1e-4) / (0.25 + 0.01 + 1e-4)
    assert metrics.get("ssim")()(half, tenth).item() == pytest.approx(expected, abs=1e-6)


def test_perfect_images():
    _, original = pair()
    assert metrics.get("ssim")()(original, original).tolist() == pytest.approx([1.0] * 5)
    assert metrics.get("psnr")()(original, original).tolist() == [100.0] * 5
    assert metrics.get("mse")()(original, original).tolist() == [0.0] * 5


@pytest.mark.parametrize("name", NAMES)
def test_swapping_the_images_changes_nothing(name):
    recovered, original = pair()
    metric = metrics.get(name)()
    assert torch.allclose(metric(recovered, original), metric(original, recovered))


def test_mean_of_psnr_is_not_below_psnr_of_mean():
    _, original = pair((6, 3, 16, 16))
    spread = torch.linspace(0.02, 0.5, 6).reshape(-1, 1, 1, 1)
    recovered = (original + spread * torch.randn(original.shape)).clamp(0, 1)
    mean_of_psnr = metrics.get("psnr")()(recovered, original).mean()
    psnr_of_mean = psnr_from_mse(metrics.get("mse")()(recovered, original).mean())
    assert mean_of_psnr > psnr_of_mean + 0.5
    same = (original[:1].repeat(6, 1, 1, 1) * 0.5, original[:1].repeat(6, 1, 1, 1))
    equal = metrics.get("psnr")()(*same).mean()
    assert equal == pytest.approx(psnr_from_mse(metrics.get("mse")()(*same).mean()).item())


@pytest.mark.parametrize("name", NAMES)
def test_diverged_rows_score_nan_and_leave_the_others_alone(name):
    recovered, original = pair()
    metric = metrics.get(name)()
    clean = metric(recovered, original)
    broken = recovered.clone()
    broken[1, 0, 0, 0] = float("nan")
    broken[3] = float("inf")
    scores = metric(broken, original)
    assert scores.isnan().tolist() == [False, True, False, True, False]
    assert torch.equal(scores[[0, 2, 4]], clean[[0, 2, 4]])
    assert metric(torch.full_like(original, float("nan")), original).isnan().all()


@pytest.mark.parametrize(
    ("scale", "hint"),
    [
        (lambda x: x * 255, "divide by 255"),
        (lambda x: x * 2 - 1, r"\[-1, 1\]"),
        (lambda x: (x - 0.5) / 0.25, "per channel"),
    ],
)
def test_another_scale_is_refused_with_its_likely_cause(scale, hint):
    recovered, original = pair()
    for arguments in ((scale(recovered), original), (recovered, scale(original))):
        with pytest.raises(IncompatibleError, match=hint) as caught:
            metrics.get("psnr")()(*arguments)
        assert "range from" in str(caught.value)


def test_rounding_outside_the_range_is_clamped():
    _, original = pair()
    assert metrics.get("mse")()(original * 0 + 1.00001, original * 0 + 1).tolist() == [0.0] * 5


def test_shapes_that_differ_are_refused():
    recovered, original = pair()
    with pytest.raises(IncompatibleError, match=r"\(4, 3, 16, 20\)"):
        metrics.get("mse")()(recovered[:4], original)


def test_ssim_refuses_images_below_its_window():
    small = torch.rand(2, 1, 10, 16)
    with pytest.raises(IncompatibleError, match="11 px window.*10 x 16"):
        metrics.get("ssim")()(small, small)


def test_every_metric_declares_what_it_is():
    assert set(DEFAULT_METRICS) <= set(metrics.names())
    for name in NAMES:
        metric = metrics.get(name)()
        assert metric.title and metric.definition((3, 32, 32))
        assert isinstance(metric.higher_leaks, bool)
        rng = np.random.default_rng(0)
        original = torch.from_numpy(rng.random((3, 3, 16, 16), dtype=np.float32))
        near, far = original * 0.95, original * 0.3
        closer = metric(near, original) > metric(far, original)
        assert closer.all() if metric.higher_leaks else not closer.any()
