"""Decoys: weight on classes that the client does not hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.config import knob, part

from .base import Draw, Entanglement, Mix, class_sizes, schemes


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

    when_to_use = "to hide which classes a client holds"

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
