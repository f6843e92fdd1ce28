"""Where candidate images begin: one generator per victim and restart, whoever else is attacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedre_privacy.core.rng import stream

from .victims import Victim

Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return (0.5 + 0.25 * torch.randn(shape, generator=generator)).clamp(0, 1)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator)


def _grey(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 0.5 + 0.01 * torch.randn(shape, generator=generator)


def _free(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 0.5 + 0.5 * torch.randn(shape, generator=generator)


STARTS: dict[str, Draw] = {"normal": _normal, "uniform": _uniform, "grey": _grey}
"""Starts by name: N(0.5, 0.25) clipped to [0, 1], uniform, grey with 1 % of noise."""


def draw(
    victims: Sequence[Victim],
    shape: tuple[int, ...],
    seed: int,
    start: str,
    *,
    restarts: Sequence[int],
    purpose: str = "start",
) -> Tensor:
    """One start per victim and restart, restarts of a victim side by side: (n, *shape).

    Args:
        start: a name in `STARTS`, or "free" for N(0.5, 0.5) without a limit.
        restarts: numbers of the restarts to draw.
        purpose: tells streams of one victim and restart apart.
    """
    make = _free if start == "free" else STARTS[start]
    return torch.stack(
        [
            make(
                shape,
                stream(
                    seed,
                    f"gradient {purpose}",
                    client=victim.client,
                    round=victim.round,
                    index=restart,
                ),
            )
            for victim in victims
            for restart in restarts
        ]
    )
