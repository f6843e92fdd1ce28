"""The device that training and attacks run on."""

from __future__ import annotations

import os

import torch

from fedre_privacy.core.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Environment variable with the GPUs that a process may use."""


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, as `VISIBLE` names them."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return tuple(named or map(str, range(count)))[:count]


def choose_device(name: str) -> torch.device:
    """Turn auto, cpu, cuda or cuda:N into a device that exists.

    Raises:
        ConfigError: unknown name, or no such GPU here.
    """
    device = parse_device(name)
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            build = f"torch {torch.__version__} built for CUDA {torch.version.cuda or 'none'}"
            raise ConfigError(
                f"Device '{name}' was asked for; {build} sees {count} GPUs here.",
                next_step="Use --device cpu (add --dry-run for an estimate of the time it takes).",
            )
    return device


def parse_device(name: str) -> torch.device | None:
    """The device of a name, wherever that is; None for auto.

    Raises:
        ConfigError: unknown name.
    """
    if name == "auto":
        return None
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"Unknown device '{name}'. Use auto, cpu, cuda or cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"Device '{name}' is not supported. Use auto, cpu, cuda or cuda:N.")
    return device
