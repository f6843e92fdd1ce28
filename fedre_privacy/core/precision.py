"""In what precision a GPU computes matrix products and convolutions of float32 tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_products(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Run a block with float32 products in full precision, or in TF32; a CPU knows only the first.

    Args:
        tf32: fractions of operands are rounded to 10 bits. PyTorch's own default is that for
            convolutions alone.
    """
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
