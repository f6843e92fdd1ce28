"""Learned perceptual distance; optional, because its backbone is a separate download."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import DamagedInputError, MissingExtraError, MissingInputError
from fedre_privacy.core.files import file_sha256

from .base import Metric, metrics

BACKBONES = {
    "alex": ("alexnet-owt-7be5be79.pth", "233 MiB"),
    "vgg": ("vgg16-397923af.pth", "528 MiB"),
    "squeeze": ("squeezenet1_1-b8a52dc0.pth", "5 MiB"),
}
"""The torchvision file of each backbone and its size."""

_URL = "https://download.pytorch.org/models/"
_BATCH = 64


@metrics.register("lpips")
@dataclass(frozen=True, kw_only=True)
class Lpips(Metric):
    """Distance between deep features of two images, LPIPS version 0.1; lower leaks more.

    Grey images are repeated to three channels and values scaled to [-1, 1]. Images whose shorter
    side is under `min_side` are doubled (bilinear) until they reach it. Values of different
    backbones or sizes are not comparable; `definition` names both, and the backbone's hash.
    Nothing is ever downloaded.

    Reference: Zhang, Isola, Efros, Shechtman and Wang, CVPR 2018.
    """

    when_to_use = "nearness as people see it; needs a weight file, and colour images say most"
    title: ClassVar[str] = "LPIPS"
    higher_leaks: ClassVar[bool] = False

    net: str = knob("alex", help="backbone", choices=tuple(BACKBONES))
    weights: str | None = knob(
        None, help="torchvision state dict of the backbone; default: torch's checkpoint folder"
    )
    min_side: int = knob(
        64, help="images with a shorter side are doubled until they reach it", unit="px", ge=32
    )

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Look for the package and the backbone's file.

        Raises:
            MissingExtraError: one of them is absent.
            MissingInputError: no file at `weights`.
        """
        self._path()
        _package()

    def score(self, recovered: Tensor, original: Tensor) -> Tensor:
        network = _network(self.net, self._path())
        parts = []
        with torch.inference_mode():
            for start in range(0, len(recovered), _BATCH):
                pair = (self._prepare(x[start : start + _BATCH]) for x in (recovered, original))
                parts.append(network(*pair).flatten())
        return torch.cat(parts)

    def definition(self, image_shape: tuple[int, int, int]) -> str:
        path = self._path()
        factor = self._factor(image_shape[1:])
        resized = f", images resized x{factor} (bilinear)" if factor > 1 else ""
        return f"LPIPS 0.1, {self.net} backbone (SHA-256 {_hash(path)[:8]}){resized}"

    def _prepare(self, images: Tensor) -> Tensor:
        images = images.float()
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        factor = self._factor(images.shape[2:])
        if factor > 1:
            images = functional.interpolate(
                images, scale_factor=factor, mode="bilinear", align_corners=False
            )
        return images * 2 - 1

    def _factor(self, sides: tuple[int, ...] | torch.Size) -> int:
        factor = 1
        while factor * min(sides) < self.min_side:
            factor *= 2
        return factor

    def _path(self) -> Path:
        if self.weights is not None:
            given = Path(self.weights).expanduser()
            if not given.is_file():
                raise MissingInputError(
                    f"LPIPS weights: no file at {given}.",
                    next_step=f"Give the torchvision state dict of '{self.net}' "
                    f"({BACKBONES[self.net][0]}), or use --metrics psnr,ssim,mse255.",
                )
            return given
        name, size = BACKBONES[self.net]
        path = Path(torch.hub.get_dir()) / "checkpoints" / name
        if not path.is_file():
            raise MissingExtraError(
                f"LPIPS with the '{self.net}' backbone needs the file {name} ({size}) in "
                f"$TORCH_HOME/hub/checkpoints/; it is not at {path}.",
                next_step=f"Fetch {_URL}{name} into that folder, or name a local copy with "
                "--set metrics.lpips.weights=FILE. --metrics psnr,ssim,mse255 goes on without it.",
            )
        return path


def _package() -> Any:
    try:
        import lpips
    except ImportError:
        raise MissingExtraError(
            "LPIPS needs the package 'lpips', which is not installed.",
            next_step="pip install lpips, or use --metrics psnr,ssim,mse255.",
        ) from None
    return lpips


@lru_cache(maxsize=4)
def _hash(path: Path) -> str:
    return file_sha256(path)


@lru_cache(maxsize=2)
def _network(net: str, path: Path) -> nn.Module:
    """Build the network around a local backbone; its linear heads come with the package."""
    package = _package()
    state = _state_dict(path)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # lpips calls torchvision by its old arguments
        network: nn.Module = package.LPIPS(
            net=net, version="0.1", pretrained=False, pnet_rand=True, verbose=False
        )
    filled = {}
    for key in network.state_dict():
        part, _, rest = key.partition(".")
        if part == "net":
            source = "features." + rest.partition(".")[2]
            if source not in state:
                raise DamagedInputError(
                    f"{path} has no '{source}': it is not the torchvision state dict of '{net}'.",
                    next_step=f"The file wanted is {_URL}{BACKBONES[net][0]}.",
                )
            filled[key] = state[source]
    heads = _state_dict(Path(package.__file__).parent / "weights" / "v0.1" / f"{net}.pth")
    try:
        missing = network.load_state_dict(filled | heads, strict=False).missing_keys
    except RuntimeError as error:
        raise DamagedInputError(f"{path} does not fit the '{net}' backbone: {error}") from None
    absent = [key for key in missing if key.startswith("lin") and not key.startswith("lins.")]
    if absent:
        raise DamagedInputError(f"The installed package 'lpips' lacks {', '.join(absent)}.")
    return network.eval().requires_grad_(False)


def _state_dict(path: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for a damaged file; all are reported
        raise DamagedInputError(
            f"{path} is not a readable state dict: {str(error).partition(chr(10))[0]}"
        ) from None
    if not isinstance(state, dict):
        raise DamagedInputError(f"{path} holds a {type(state).__name__}, not a state dict.")
    return state
