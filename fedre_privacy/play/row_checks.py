"""Are uploaded vectors what an extractor returns? They are held against what it makes of images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedre_privacy.core.channels import Channel, Masking
from fedre_privacy.core.contents import Role
from fedre_privacy.core.types import KnownDefense, Upload
from fedre_privacy.sealed.modules import Key

from .checks import Shape
from .foreign_checks import whole_numbers

MASKED = KnownDefense("masked vectors", {}, Channel(rows=(Masking(),)))
"""What is assumed where most numbers of vectors are zero and those of the extractor are not."""
IMAGES = 16
"""Images whose outputs are looked at, at most."""
LONG, LONG_UNSEEN = 3.0, 6.0
"""Vectors so many times longer than any output are told: of public images, and of plain ones."""
EMPTY, USED = 0.5, 0.1
"""Vectors with more zeros than the one, of an extractor with fewer than the other, are masked."""


@torch.no_grad()
def rows_said(
    targets: tuple[Upload, ...],
    extractors: Mapping[Key, nn.Module],
    image_shape: Shape,
    public: Tensor | None,
) -> tuple[list[tuple[int, str]], bool]:
    """What is said of each client's vectors, and whether some are masked.

    Args:
        public: images (n, C, H, W) in [0, 1]; without any, plain ones and noise are made.
    """
    seen = _plain(image_shape) if public is None or not len(public) else public[:IMAGES]
    most = LONG_UNSEEN if public is None or not len(public) else LONG
    said: list[tuple[int, str]] = []
    masked = False
    for upload in targets:
        made = extractors[upload.client, upload.round](seen.clone()).double()
        for artifact in upload.artifacts:
            rows = artifact.rows()
            if rows is None or Role.COLLECTED not in artifact.roles:
                continue
            rows = rows.double()
            longest = float(made.norm(dim=1).max())
            ratio = float(rows.norm(dim=1).median()) / longest if longest else 0.0
            found = []
            if ratio > most:
                found.append(
                    f"{artifact.kind} are {ratio:.2g} times as long as the longest output of the "
                    "extractor: sums in place of means, or scaled?"
                )
            codes = whole_numbers([rows])
            if codes is not None and whole_numbers([made]) is None:
                found.append(
                    f"{artifact.kind} are whole numbers ({codes[0]} to {codes[1]}), which the "
                    "extractor does not return: codes of a quantiser?"
                )
            empty = float((rows == 0).double().mean())
            if empty > EMPTY and float((made == 0).double().mean()) < USED:
                masked = True
                found.append(
                    f"{empty:.0%} of {artifact.kind} are zero, which the extractor does not "
                    "return: taken as masked, and zeros are not compared"
                )
            said += [(upload.client, clause) for clause in found]
    return said, masked


def _plain(shape: Shape) -> Tensor:
    """Black, grey and white images, a ramp, and noise."""
    ramp = torch.linspace(0, 1, shape[2]).expand(shape)
    plain = [torch.full(shape, level) for level in (0.0, 0.5, 1.0)]
    noise = torch.rand((4, *shape), generator=torch.Generator().manual_seed(0))
    return torch.cat([torch.stack([*plain, ramp]), noise])
