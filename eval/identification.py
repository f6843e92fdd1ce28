"""Does an answer single out its original in a line-up? A score that blur cannot buy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Truth

from .floors import PublicImages
from .matching import support_pairs

_BLOCK = 1 << 23


@dataclass(frozen=True, eq=False)
class Galleries:
    """One line-up for each target; the same for every answer that is judged by it.

    Shape:
        index (N, G) int64: column 0 is the original; below M the truth's images, from M on the
        public ones; -1 pads a gallery that could not be filled.
        same_class (N,): distractors of the original's class.
        chosen_from (N,): images of which the answer itself chose its original; 1 where it was
            drawn before anything was answered.
    """

    index: Tensor
    same_class: Tensor
    chosen_from: Tensor

    @property
    def sizes(self) -> Tensor:
        """Images in each gallery, the original included, (N,) int64."""
        return (self.index >= 0).sum(dim=1)


@dataclass(frozen=True, eq=False)
class Identification:
    """How each answer did in its line-up, and what guessing would do.

    Shape:
        all (N,) float64. hit1, hit5 (0 to 1) and rr (reciprocal rank) are expected values over
        the order of images at equal distance; an answer that diverged stands last. NaN where the
        gallery holds no distractor. guess1, guess5, guess_rr: a guess by somebody who knows the
        original's class and puts the images of that class first, in random order; where the answer
        chose its original among m images, m times that, which no guess exceeds (union bound).
    """

    hit1: Tensor
    hit5: Tensor
    rr: Tensor
    guess1: Tensor
    guess5: Tensor
    guess_rr: Tensor


def draw_galleries(
    truth: Truth,
    public: PublicImages,
    *,
    size: int = 100,
    seed: int = 0,
    assigned: Tensor | None = None,
) -> Galleries:
    """Draw a gallery of `size` images for each target.

    One image is drawn at random from the target's support: the original. The other size - 1 come
    from images outside the support, the truth's and the public ones alike, without replacement:
    first images of the original's class, so that knowing the class alone helps as little as
    possible; when those run out, the other classes in turn, one image each, in random order. With
    fewer images than asked for the gallery is smaller.
    Each target has its own stream, keyed by (seed, target).

    Args:
        size: images in a gallery, the original included, at least 2.
        assigned: (N,) int64, the image of each target's support that its answer was matched with,
            among the answers to one upload, which may come in any order. It is the original; of
            more images than half a gallery nothing is asked, since a guess among so many is
            right as often as an attack can be. -1: it is drawn.

    Raises:
        ConfigError: `size` is below 2.
    """
    if size < 2:
        raise ConfigError(f"A gallery of {size} is no test; it needs at least 2 images.")
    labels = torch.cat([truth.labels.long().cpu(), public.labels.long().cpu()])
    by_class = {int(c): (labels == c).nonzero().squeeze(1) for c in torch.unique(labels)}
    rows, samples = support_pairs(truth)
    sizes = torch.bincount(rows, minlength=truth.mixture.num_rows).tolist()
    supports = torch.split(samples, sizes)
    index = torch.full((len(supports), size), -1, dtype=torch.int64)
    same_class = torch.zeros(len(supports), dtype=torch.int64)
    chosen_from = torch.ones(len(supports), dtype=torch.int64)
    for target, support in enumerate(supports):
        rng = stream(seed, "gallery", index=target)
        original = support[torch.randint(len(support), (1,), generator=rng)]
        if assigned is not None and int(assigned[target]) >= 0:
            original, chosen_from[target] = assigned[target : target + 1], len(support)
            if 2 * len(support) > size:
                index[target, 0] = original
                continue
        outside = torch.ones(len(labels), dtype=torch.bool)
        outside[support] = False
        alike = by_class[int(labels[original])]
        alike = alike[outside[alike]]
        chosen = alike[torch.randperm(len(alike), generator=rng)[: size - 1]]
        same_class[target] = len(chosen)
        if len(chosen) < size - 1:
            others = (outside & (labels != labels[original])).nonzero().squeeze(1)
            others = others[torch.randperm(len(others), generator=rng)]
            turns = _in_turn(labels[others], rng)
            chosen = torch.cat([chosen, others[turns[: size - 1 - len(chosen)]]])
        row = torch.cat([original, chosen])
        index[target, : len(row)] = row
    return Galleries(index, same_class, chosen_from)


def _in_turn(labels: Tensor, rng: torch.Generator) -> Tensor:
    """Order positions so that every class comes once before any comes again."""
    by_class = labels.argsort(stable=True)
    counts = torch.unique(labels, return_counts=True)[1]
    within = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    turn = torch.empty_like(within)
    turn[by_class] = within
    return (turn + torch.rand(len(labels), generator=rng, dtype=torch.float64)).argsort()


def identify(
    answers: Tensor, galleries: Galleries, truth: Truth, public: PublicImages
) -> Identification:
    """Rank each gallery by pixel MSE to the answer and see where the original stands.

    Args:
        answers: (N, C, H, W) in [0, 1]; rows with non-finite values diverged and find nothing.
    """
    index, sizes = galleries.index, galleries.sizes
    own, held = len(truth.images), index >= 0
    width = index.shape[1]
    ahead = torch.zeros(len(index), dtype=torch.int64)
    tied = torch.zeros(len(index), dtype=torch.int64)
    step = max(1, _BLOCK // (width * max(answers[0].numel(), 1)))
    for start in range(0, len(index), step):
        part = slice(start, start + step)
        wanted = index[part].clamp_min(0)
        images = answers.new_empty((*wanted.shape, *answers.shape[1:]))
        ours = wanted < own
        images[ours] = truth.images[wanted[ours]].to(images)
        images[~ours] = public.images[wanted[~ours] - own].to(images)
        gap = (images - answers[part].unsqueeze(1)).flatten(2).square().mean(dim=2)
        others = held[part].clone()
        others[:, 0] = False
        ahead[part] = ((gap < gap[:, :1]) & others).sum(dim=1)
        tied[part] = ((gap == gap[:, :1]) & others).sum(dim=1)
    lost = ~answers.isfinite().flatten(1).all(dim=1)
    ahead[lost], tied[lost] = sizes[lost] - 1, 0
    usable = sizes > 1
    inverse = 1 / torch.arange(1, width + 1, dtype=torch.float64)
    harmonic = torch.cat([inverse.new_zeros(1), inverse.cumsum(0)])
    ahead_of, places = ahead.double(), tied.double() + 1
    alike = 1 + galleries.same_class.double()
    times = galleries.chosen_from.double()

    def masked(values: Tensor) -> Tensor:
        return values.double().masked_fill(~usable, float("nan"))

    return Identification(
        hit1=masked(((1 - ahead_of) / places).clamp(0, 1)),
        hit5=masked(((5 - ahead_of) / places).clamp(0, 1)),
        rr=masked((harmonic[ahead + tied + 1] - harmonic[ahead]) / places),
        guess1=masked((times / alike).clamp_max(1)),
        guess5=masked((5 * times / alike).clamp_max(1)),
        guess_rr=masked((times * harmonic[alike.long()] / alike).clamp_max(1)),
    )
