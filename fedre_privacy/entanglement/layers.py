"""Schemes that are built on another one: they change what it mixes, or what it says."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.channels import NOTHING, Channel, Rounding
from fedre_privacy.core.config import knob, part

from .base import Draw, Entanglement, Mix, by_class, class_sizes, schemes


def on_some(scheme: Entanglement, draw: Draw, keep: Tensor) -> Mix | None:
    """Let a scheme see only the samples in keep (n,) bool; the others get weight 0.

    None, so no upload, where nothing is kept.
    """
    if not bool(keep.any()):
        return None
    mix = scheme.mix(draw.only(keep))
    if mix is None:
        return None
    weights = torch.zeros(len(keep), dtype=torch.float64)
    weights[keep] = mix.weights
    return dataclasses.replace(mix, weights=weights)


def blend(one: Mix, other: Mix, share: float) -> Mix:
    """Mix two mixes of the same samples: (1 - share) of one, share of the other."""

    def between(a: Tensor, b: Tensor) -> Tensor:
        return (1 - share) * a + share * b

    if one.decoy is None or other.decoy is None:
        decoy = one.decoy if other.decoy is None else other.decoy
        if decoy is not None:
            decoy = decoy * (share if one.decoy is None else 1 - share)
    else:
        decoy = between(one.decoy, other.decoy)
    return Mix(between(one.weights, other.weights), between(one.encoding, other.encoding), decoy)


@schemes.register("m-of-n")
@dataclass(frozen=True, kw_only=True)
class MOfN(Entanglement):
    """Mix only m of the client's classes, drawn anew every round; all of them if it has fewer.

    One upload shows m of its classes; over rounds all of them show, and the weights are further
    apart than those over all classes, so prototypes are easier to work out, not harder.

    Reference: FedRE (CVPR 2026), Table 6: between its RSP (m = 1) and its RAP (m = n).
    Deviations: nothing between the ends is published.
    """

    m: int = knob(3, help="classes in each upload", ge=1)
    base: Entanglement = part(schemes, "rap", help="scheme that mixes them")

    def mix(self, draw: Draw) -> Mix | None:
        # One draw for every class id, so that a class missing for a round moves no other.
        rank = torch.rand(draw.num_classes, generator=draw.rng("m-of-n"), dtype=torch.float64)
        held = draw.labels.unique()
        chosen = held[rank[held].argsort(stable=True)[: self.m]]
        return on_some(self.base, draw, torch.isin(draw.labels, chosen))

    def channel(self) -> Channel:
        return NOTHING


@schemes.register("min-count")
@dataclass(frozen=True, kw_only=True)
class MinCount(Entanglement):
    """Leave out the classes of which a client has too few samples.

    The prototype of a class of one image is that image's representation, so rare classes are
    what leaks most. A client without any class large enough uploads nothing. What is left out is
    not taught to the shared head, and that a client uploads nothing can be seen.

    Reference: minimum-frequency rule of statistical disclosure control (Hundepool et al.,
        Statistical Disclosure Control, 2012).
    """

    min_count: int = knob(5, help="samples a class needs to be mixed in", ge=1)
    base: Entanglement = part(schemes, "rap", help="scheme that mixes the others")

    def mix(self, draw: Draw) -> Mix | None:
        sizes = class_sizes(draw.labels, draw.num_classes)
        return on_some(self.base, draw, (sizes >= self.min_count)[draw.labels])

    def channel(self) -> Channel:
        return NOTHING


@schemes.register("refuse-single")
@dataclass(frozen=True, kw_only=True)
class RefuseSingle(Entanglement):
    """Upload nothing in a round in which too few classes would be mixed.

    An upload of one class is that class's prototype: entanglement protects nothing there. Classes
    are counted in what the base mixes, so what another scheme left out does not count, and bases
    that send one class by design (rsp, rsr) never upload. The server sees who is silent.

    Reference: FedRE (CVPR 2026), Section 3: with one class, what is mixed is its prototype.
    Deviations: FedRE uploads it.
    """

    min_classes: int = knob(2, help="classes that an upload needs", ge=1)
    base: Entanglement = part(schemes, "rap", help="scheme that mixes them")

    def mix(self, draw: Draw) -> Mix | None:
        mix = self.base.mix(draw)
        if mix is None or int((by_class(mix.weights, draw) > 0).sum()) < self.min_classes:
            return None
        return mix

    def channel(self) -> Channel:
        return NOTHING


@schemes.register("slow")
@dataclass(frozen=True, kw_only=True)
class Slow(Entanglement):
    """Vary a scheme's weights only a little from round to round.

    w_t = (1 - spread) w_0 + spread v_t, with w_0 the base's weights for the whole run and v_t
    those it would use in round t. Spread 0 is fixed sampling, spread 1 is the base; the smallest
    singular value of the weights over rounds, which decides how well prototypes can be worked
    out, is proportional to it. A random base is needed: vap and var do not vary anyway.

    Reference: FedRE (CVPR 2026), Table 8: its fixed and its re-sampled weights are the two ends.
    Deviations: nothing between the ends is published.
    """

    spread: float = knob(0.1, help="share of each round's own weights", ge=0, le=1)
    base: Entanglement = part(schemes, "rap", help="scheme whose weights are slowed down")

    def mix(self, draw: Draw) -> Mix | None:
        kept, fresh = self.base.mix(draw.of_run()), self.base.mix(draw)
        return None if kept is None or fresh is None else blend(kept, fresh, self.spread)

    def channel(self) -> Channel:
        return NOTHING


@schemes.register("quantised")
@dataclass(frozen=True, kw_only=True)
class Quantised(Entanglement):
    """Round the label encoding to multiples of 1/levels that still sum to one.

    Only what is said is rounded: the representation is mixed with the exact weights, so the
    server knows them up to 1/levels a class and solves for the prototypes with errors in its
    matrix, and classes of little weight vanish from the encoding. Mixing with the rounded weights
    too would make the encoding exact again and protect nothing. The recorded mixture holds the
    weights that were used.

    Channel:   rounding of the encoding
    Reference: largest-remainder rounding (Hamilton's method of apportionment).
    """

    exact = False

    levels: int = knob(16, help="steps between 0 and 1", ge=1)
    base: Entanglement = part(schemes, "rap", help="scheme whose encoding is rounded")

    def mix(self, draw: Draw) -> Mix | None:
        mix = self.base.mix(draw)
        if mix is None:
            return None
        return dataclasses.replace(mix, encoding=largest_remainder(mix.encoding, self.levels))

    def channel(self) -> Channel:
        return Channel(encoding=(Rounding(self.levels),))


def largest_remainder(shares: Tensor, levels: int) -> Tensor:
    """Round shares that sum to 1 to multiples of 1/levels that sum to 1 (both (C,) float64).

    All are rounded down, then those that lost most get one step back; on a tie, the first. No
    share moves by 1/levels or more and none leaves 0.
    """
    steps = shares * levels
    low = steps.floor()
    missing = levels - int(low.sum())
    back = (steps - low).argsort(descending=True, stable=True)[:missing]
    low[back] += 1
    return low / levels


@schemes.register("decoy")
@dataclass(frozen=True, kw_only=True)
class Decoy(Entanglement):
    """Mix in random vectors under the labels of classes that the client does not hold.

    A client's decoy classes are drawn once: were they drawn every round, the classes it truly
    holds would be those that never miss. Their weights are as random as the others', and the
    vectors (non-negative, of the length of the client's mean representation) stay too: "public"
    ones are the same at all clients and known to whoever knows the run's seed, "private" ones are
    the client's own. A vector that never drifts and that the shared head does not recognise can
    still be told from a prototype; measure it. In the recorded mixture the weights of an upload
    sum to less than 1: a decoy is no sample.

    Channel:   none: attacks take a decoy for the prototype of its class
    Reference: the idea of decoys, Juels and Rivest, Honeywords, CCS 2013.
    """

    count: int = knob(2, help="decoy classes, as far as classes are absent", ge=1)
    vectors: str = knob(
        "public", help="where decoy vectors come from", choices=("public", "private")
    )
    base: Entanglement = part(schemes, "rap", help="scheme that mixes the samples")

    def mix(self, draw: Draw) -> Mix | None:
        mix = self.base.mix(draw)
        absent = class_sizes(draw.labels, draw.num_classes) == 0
        if mix is None or not bool(absent.any()):
            return mix
        run = draw.of_run()
        rank = torch.rand(draw.num_classes, generator=run.rng("decoy classes"), dtype=torch.float64)
        chosen = rank.masked_fill(~absent, 2.0).argsort(stable=True)[: self.count]
        chosen = chosen[absent[chosen]]

        # As if one weight had been drawn for every class, true or not: no total stays constant.
        drawn = torch.rand(
            draw.num_classes, generator=draw.rng("decoy weights"), dtype=torch.float64
        )
        true = int((mix.encoding > 0).sum())
        others = torch.rand(true, generator=draw.rng("decoy share"), dtype=torch.float64)
        weights = drawn[chosen] / (drawn[chosen].sum() + others.sum())
        kept = 1 - weights.sum()

        encoding = mix.encoding * kept
        encoding[chosen] += weights
        vectors = weights @ self._vectors(run)[chosen]
        before = 0.0 if mix.decoy is None else mix.decoy * kept
        return Mix(mix.weights * kept, encoding, before + vectors)

    def _vectors(self, run: Draw) -> Tensor:
        """One non-negative vector of length 1 for every class, (num_classes, dim) float64."""
        public = self.vectors == "public"
        rng = run.shared_rng("decoy vectors") if public else run.rng("decoy vectors")
        shape = (run.num_classes, run.dim)
        drawn = torch.randn(shape, generator=rng, dtype=torch.float64).abs()
        return torch.nn.functional.normalize(drawn)
