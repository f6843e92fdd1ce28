"""What no unbiased attack can beat on targets of a run whose vectors carry normal noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedre_privacy.core.channels import NOTHING, Bound, Channel, Noise
from fedre_privacy.core.types import Upload
from fedre_privacy.defenses.values import clip_rows
from fedre_privacy.eval.fisher_bounds import information, unbiased_error
from fedre_privacy.runs.run import Run

from .observe import known_defenses
from .targets import TargetGroup

WORTHLESS = 1.0
"""Mean squared error a pixel above which every image in [0, 1] is a better answer."""


def unbiased_limit(run: Run, group: TargetGroup, uploads: Sequence[Upload]) -> str:
    """A sentence on the targets of one image, or nothing where no such limit is known.

    It needs vectors that go out with normal noise of known size, after nothing but bounds on
    their length. What uploads of other rounds add is not in it.

    Args:
        uploads: what was sent in the attacked round, in full.
    """
    channel = NOTHING
    for known in known_defenses(run):
        channel = channel.then(known.channel or NOTHING)
    found = _noise_and_bound(channel)
    if found is None or group.counterfactual or group.kind not in ("representations", "prototypes"):
        return ""
    noise, bound = found
    errors = []
    for (client, round), images in _singles(group).items():
        sent = next(u for u in uploads if (u.client, u.round) == (client, round))
        rows = max(len(r) for a in sent.artifacts if (r := a.rows()) is not None)
        std = noise.std * math.sqrt(rows if noise.per_row else 1)
        encode = _encoder(run.extractor(client, round), bound)
        errors.append(unbiased_error(information(encode, images, std), images[0].numel()))
    if not errors:
        return ""
    every = torch.cat(errors)
    error = float(every.mean())
    who = "attack without a prior on images (unbiased)"
    given = f"n {len(every)} of one image, each alone, extractor given"
    if error >= WORTHLESS:
        return f"an {who} gets nothing from them: a squared error above 1 a pixel ({given})"
    return f"no {who} is nearer than {-10 * math.log10(error):.1f} dB on average ({given})"


def _noise_and_bound(channel: Channel) -> tuple[Noise, float] | None:
    """The first noise on vectors and the bound before it; None where there is no limit."""
    before: list[Bound] = []
    for step in channel.rows:
        if isinstance(step, Noise):
            if not step.normal or step.per_number or channel.round:
                return None
            bounds = [one.norm for one in (*channel.each, *before)]
            return step, min(bounds, default=math.inf)
        if not isinstance(step, Bound):
            return None
        before.append(step)
    return None


def _singles(group: TargetGroup) -> dict[tuple[int, int], Tensor]:
    """Images (n, C, H, W) of the targets that were made of one, by client and round."""
    found: dict[tuple[int, int], list[Tensor]] = {}
    row = 0
    for upload in group.uploads:
        for artifact in upload.artifacts:
            rows = artifact.rows()
            for _ in range(0 if rows is None else len(rows)):
                support = group.truth.mixture.support(row)
                if len(support) == 1:
                    image = group.truth.images[int(support[0])]
                    found.setdefault((upload.client, upload.round), []).append(image)
                row += 1
    return {owner: torch.stack(images) for owner, images in found.items()}


def _encoder(extractor: nn.Module, bound: float) -> Callable[[Tensor], Tensor]:
    def encode(images: Tensor) -> Tensor:
        sent: Tensor = extractor(images)
        return sent if math.isinf(bound) else clip_rows(sent, bound)

    return encode
