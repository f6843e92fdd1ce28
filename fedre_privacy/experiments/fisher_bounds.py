"""What no unbiased attack can beat on targets of a run whose vectors carry normal noise.

An image x is sent as e(x) + N(0, std^2 I). With J = de/dx its Fisher information is J'J / std^2,
and the mean squared error of an answer that is right on average has a lower limit. It holds
whatever the attack, and for no attack that leans on a prior: where the limit lies above the error
of a plain floor, the floor is the better answer.

References: Hannun, Guo, van der Maaten, Measuring data leakage in machine-learning models with
Fisher information, UAI 2021; Guo et al., Bounding training data reconstruction in private (deep)
learning, ICML 2022; Maeng et al., Bounding the invertibility of privacy-preserving instance
encoding using Fisher information, NeurIPS 2023 (encodings).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedre_privacy.core.channels import NOTHING, Channel, ClippingStep, Noise
from fedre_privacy.core.types import Upload
from fedre_privacy.core.units import plural
from fedre_privacy.defenses.base import RECORD
from fedre_privacy.defenses.values import clip_rows
from fedre_privacy.eval.measures import SINGLE, Measure
from fedre_privacy.runs.kept_models import facts_of_run
from fedre_privacy.runs.run import Run

from .observation import known_defenses
from .targets import TargetGroup

PROBES = 32
"""Passes back through an encoder for each image, shared among the rounds."""
WORTHLESS = 1.0
"""Mean squared error a pixel above which every image in [0, 1] is a better answer."""


@dataclass(frozen=True)
class Limit:
    """What no unbiased attack can beat on targets of one image.

    Args:
        error: mean squared error a pixel, mean over targets; infinite where nothing is told.
        n: targets. rounds: most rounds whose uploads of a target are counted.
    """

    error: float
    n: int
    rounds: int

    @property
    def decibels(self) -> float:
        """The error as a peak signal-to-noise ratio; minus infinity where nothing is told."""
        return -10 * math.log10(self.error) if math.isfinite(self.error) else -math.inf

    def says(self) -> str:
        """A sentence."""
        who = "attack without a prior on images (unbiased)"
        given = f"n {self.n} of one image, {plural(self.rounds, 'round')}, extractors given"
        if self.error >= WORTHLESS:
            return f"an {who} gets nothing from them: a squared error above 1 a pixel ({given})"
        return f"no {who} is nearer than {self.decibels:.1f} dB on average ({given})"

    def measure(self) -> Measure:
        """As a row beside the scores of targets of one image."""
        return Measure(
            key="unbiased_limit",
            title="no unbiased attack above",
            definition="mean squared error below which no attack that is right on average comes, "
            "by Fisher information, in dB",
            unit="dB",
            digits=1,
            group=SINGLE,
            value=self.decibels if math.isfinite(self.decibels) else None,
            n=self.n,
            note="" if math.isfinite(self.decibels) else "the uploads tell it nothing",
        )


def unbiased_limit(run: Run, group: TargetGroup, uploads: Sequence[Upload]) -> Limit | None:
    """The limit on the targets of one image, or None where none is known.

    It needs vectors that go out with normal noise of known size, after nothing but bounds on
    their length. What uploads of rounds add whose extractors were not kept is not in it.

    Args:
        uploads: all that the attacker sees, in full.
    """
    if group.counterfactual or group.kind not in ("representations", "prototypes"):
        return None
    channel = NOTHING
    for known in known_defenses(run):
        channel = channel.then(known.channel or NOTHING)
    found = _noise_and_bound(channel) or _record_noise(run)
    if found is None:
        return None
    noise, bound = found
    errors, most = [], 0
    for (client, round), images in _singles(group).items():
        kept = {round, *run.kept_rounds()}
        sent = [u for u in uploads if u.client == client and u.round in kept and _rows(u)]
        most = max(most, len(sent))
        traces = torch.zeros(len(images), dtype=torch.float64)
        for upload in sent:
            std = noise.std * math.sqrt(_rows(upload) if noise.per_row else 1)
            extractor = run.extractor(client, upload.round)

            def encode(images: Tensor, extractor: nn.Module = extractor) -> Tensor:
                sent: Tensor = extractor(images)
                return sent if math.isinf(bound) else clip_rows(sent, bound)

            probes = max(PROBES // len(sent), 4)
            traces += information(encode, images, std, probes=probes, seed=upload.round)
        errors.append(unbiased_error(traces, images[0].numel()))
    if not errors:
        return None
    every = torch.cat(errors)
    return Limit(float(every.mean()), len(every), most)


def information(
    encode: Callable[[Tensor], Tensor],
    images: Tensor,
    std: float,
    *,
    probes: int = 32,
    seed: int = 0,
) -> Tensor:
    """Trace of the Fisher information of each image, (n,) float64, by Hutchinson's estimate.

    Args:
        encode: images (n, ...) to vectors (n, k), each from its image alone, differentiable.
        images: in [0, 1].
        std: standard deviation of the noise on a number, above 0.
        probes: normal vectors that are sent back through the encoder, one pass each.

    Raises:
        ValueError: no noise; without it nothing bounds an error.
    """
    if not std > 0:
        raise ValueError(f"Fisher information needs noise; its standard deviation is {std:g}.")
    generator = torch.Generator().manual_seed(seed)
    at = images.detach().clone().requires_grad_()
    sent = encode(at)
    total = torch.zeros(len(images), dtype=torch.float64)
    for _ in range(probes):
        probe = torch.randn(sent.shape, generator=generator).to(sent)
        (back,) = torch.autograd.grad(sent, at, probe, retain_graph=True)
        total += back.detach().double().square().flatten(1).sum(1).cpu()
    return total / probes / std**2


def unbiased_error(traces: Tensor, pixels: int) -> Tensor:
    """Mean squared error per pixel below which no unbiased attack comes, of each image.

    An encoder that turns with no change of the image has none: infinity.

    Args:
        traces: of the information of each image, (n,); of independent uploads they add up.
        pixels: numbers in an image.
    """
    return pixels / traces


def _rows(upload: Upload) -> int:
    """Vectors in an upload."""
    return max((len(r) for a in upload.artifacts if (r := a.rows()) is not None), default=0)


def _record_noise(run: Run) -> tuple[Noise, float] | None:
    """The noise for one record on a row that is one record's alone, and the bound before it."""
    facts = facts_of_run(run)
    found = None
    for defense in run.acting:
        cost, channel = defense.cost(facts), defense.channel(facts) or NOTHING
        if cost is None or cost.unit != RECORD or not defense.adds_noise:
            if channel.rows or channel.each or channel.round:
                return None
            continue
        bound = next((s.norm for s in channel.each if isinstance(s, ClippingStep)), math.inf)
        z = next((own[0].noise for own in cost.releases if own), 0.0)
        if math.isinf(bound) or not z:
            return None
        found = Noise(2 * bound * z, per_row=False, normal=True), bound
    return found


def _noise_and_bound(channel: Channel) -> tuple[Noise, float] | None:
    """The first noise on vectors and the bound before it; None where there is no limit."""
    before: list[ClippingStep] = []
    for step in channel.rows:
        if isinstance(step, Noise):
            if not step.normal or step.per_number or channel.round:
                return None
            bounds = [one.norm for one in (*channel.each, *before)]
            return step, min(bounds, default=math.inf)
        if not isinstance(step, ClippingStep):
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
