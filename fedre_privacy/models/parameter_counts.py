"""Number of parameters of a model, without allocating it."""

from __future__ import annotations

import torch

from .families import ModelSettings, build_model
from .split import num_parameters


def count_parameters(
    name: str,
    image_shape: tuple[int, int, int],
    num_classes: int,
    dim: int | None = None,
    mapping: str = "ap",
    *,
    client: int = 0,
) -> dict[str, int]:
    """Count the parameters of a model without allocating it.

    Args:
        name: architecture, family or comma list; `client` picks the entry.

    Returns:
        ``base`` (extractor with its mapping), ``head`` and ``total``, in scalars.

    Raises:
        ConfigError: unknown name or mapping.
        IncompatibleError: the architecture does not take such images.
    """
    settings = ModelSettings(name=name, mapping=mapping, dim=dim)
    with torch.device("meta"):
        model = build_model(settings, client, image_shape, num_classes)
    base, head = num_parameters(model.extractor), num_parameters(model.head)
    return {"base": base, "head": head, "total": base + head}
