"""Published weights of backbones: which file, its hash, and reading it without running its code."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedre_privacy.core.errors import (
    ConfigError,
    DamagedInputError,
    IncompatibleError,
    MissingInputError,
)
from fedre_privacy.core.files import file_sha256, read_tensors
from fedre_privacy.core.units import first_few

WRAPPED = ("state_dict", "model", "model_state_dict", "net")
"""Names under which training scripts keep a state beside other things."""

SAFETENSORS = ".safetensors"

SAFE_PICKLES = (2, 6)
"""The PyTorch from which `torch.load(weights_only=True)` runs nothing that a file holds."""

HASHED = re.compile(r".*#[0-9a-f]{64}", re.DOTALL)
"""A file named with its hash, see `with_hash`."""


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights and the SHA-256 (hex) of its bytes.

    Args:
        sha256: what the file must have, all of it or its first digits.
    """

    path: Path
    sha256: str

    def read(self) -> dict[str, Tensor]:
        """The tensors by name, on the CPU.

        Raises:
            MissingInputError: no such file.
            DamagedInputError: another file than the one that was asked for, or no weights.
        """
        found = hash_of(self.path)
        if not found.startswith(self.sha256):
            raise DamagedInputError(
                f"{self.path} holds other weights than asked for: SHA-256 {found[:12]}..., "
                f"needed {self.sha256[:12]}....",
                next_step="Restore the file, or install its package again.",
            )
        return read_state(self.path)


def hash_of(path: Path) -> str:
    """SHA-256 (hex) of a file of weights.

    Raises:
        MissingInputError: no such file.
    """
    if not path.is_file():
        raise MissingInputError(
            f"There are no weights at {path}.",
            next_step="Give a .safetensors file, or a .pth file that holds tensors only, with "
            "--set model.checkpoint=FILE.",
        )
    return file_sha256(path)


def with_hash(text: str) -> str:
    """``PATH`` as ``PATH#SHA``: in full, and the file's SHA-256 (64 hexadecimal digits).

    Raises:
        MissingInputError: no such file.
    """
    path = Path(text).expanduser().resolve()
    return f"{path}#{hash_of(path)}"


def named_file(text: str) -> WeightsFile:
    """Undo `with_hash`."""
    path, _, sha256 = text.rpartition("#")
    return WeightsFile(Path(path), sha256)


def carry_weights(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Copy the weights that settings of a model name into a folder, for another process.

    Returns:
        The settings, in which the file is named by its place in the folder.
    """
    if settings.get("checkpoint") is None:
        return dict(settings)
    file = named_file(str(settings["checkpoint"]))
    name = f"{file.sha256}{file.path.suffix}"
    if not (folder / name).is_file():
        hash_of(file.path)
        shutil.copyfile(file.path, folder / name)
    return {**settings, "checkpoint": f"{name}#{file.sha256}"}


def find_weights(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Undo `carry_weights`: the settings with the file's path."""
    if settings.get("checkpoint") is None:
        return dict(settings)
    return {**settings, "checkpoint": str(folder / str(settings["checkpoint"]))}


def read_state(path: Path) -> dict[str, Tensor]:
    """Tensors by name of a safetensors file, or of one that `torch.save` wrote with tensors only.

    Pickles are read by `torch.load(weights_only=True)`, which runs none of their code; before
    PyTorch 2.6 a file could make it run some (CVE-2025-32434), and pickles are refused.

    Raises:
        DamagedInputError: it holds anything but tensors, or cannot be read.
    """
    if path.suffix == SAFETENSORS:
        return read_tensors(path)
    if tuple(map(int, torch.__version__.split(".")[:2])) < SAFE_PICKLES:
        raise IncompatibleError(
            f"{path} is a pickle, and PyTorch {torch.__version__} cannot read it safely.",
            next_step="Use PyTorch 2.6 or newer, or save the weights by "
            "safetensors.torch.save_file.",
        )
    try:
        with torch.device("cpu"):
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise DamagedInputError(
            f"{path} cannot be read as weights: {(str(error).splitlines() or ['?'])[0][:160]}",
            next_step="Save model.state_dict() alone, best by safetensors.torch.save_file.",
        ) from None
    for name in WRAPPED:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise DamagedInputError(
            f"{path} holds no state of a module: a mapping of names to tensors is needed.",
            next_step="Save model.state_dict() alone, best by safetensors.torch.save_file.",
        )
    return {str(name).removeprefix("module."): value for name, value in found.items()}


def load_backbone(module: nn.Module, state: Mapping[str, Tensor], file: Path, head: str) -> None:
    """Put published weights into a module whose last linear layer was taken away.

    Args:
        head: name of that layer, whose tensors are left out.

    Raises:
        IncompatibleError: the weights are another model's.
    """
    own = {name: v for name, v in state.items() if not name.startswith(f"{head}.")}
    wanted = module.state_dict()
    counter = "num_batches_tracked"  # some files leave it out; nothing is computed with it
    own = {n: v for n, v in wanted.items() if n.endswith(counter)} | own
    problems = [f"{name} is absent" for name in wanted if name not in own]
    problems += [
        f"{name} has shape {tuple(v.shape)}, needed {tuple(wanted[name].shape)}"
        for name, v in own.items()
        if name in wanted and wanted[name].shape != v.shape
    ]
    if problems:
        raise IncompatibleError(
            f"{file} does not fit this architecture: {first_few(problems, 3)}.",
            next_step="Give the weights of this very model, or name the model that they are of.",
        )
    module.load_state_dict({name: own[name] for name in wanted})


def checkpoint_of(architecture: str, checkpoint: str | None) -> WeightsFile:
    """The file that ``model.checkpoint`` names.

    Raises:
        ConfigError: it was not given.
    """
    if checkpoint is None:
        raise ConfigError(
            f"Architecture '{architecture}' needs a file of weights: --set model.checkpoint=FILE "
            "(.safetensors, or tensors saved by torch.save). Nothing is downloaded."
        )
    return named_file(checkpoint)
