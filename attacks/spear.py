"""Whole batches, exactly, through a linear layer that a ReLU follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import UPDATES
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Knowledge, Observation
from fedre_privacy.models.hidden import HiddenLayer, first_hidden

from .base import Attack, Context, attacks
from .gradients.explained_share import layer_explained
from .gradients.hidden_inputs import UploadReading, pictures
from .gradients.victims import Victim, victims_of

SECOND = ("dip", "linear", "diffusion", "ensemble-kalman")


@attacks.register("spear")
@dataclass(frozen=True, kw_only=True)
class Spear(Attack):
    """Take a batch apart by the rank and the sparsity of a linear layer's gradient.

    The layer is the model's first linear one, with a ReLU behind it. Its gradient has the rank of
    the batch, and the basis that switched-off units make sparse is the samples' own. An input of
    the layer has a certificate if by the layer's own weights it switches on just the units that its
    gradient says. Where the layer sees pixels the image follows in closed form, certificate
    included; behind convolutions another attack turns the layer's input into an image. What has no
    certificate is answered with grey.

    Shape:      one gradient by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target, certain ones first
    Needs:      UPLOADS, and the model that the protocol's own messages hold    Recovers: inputs
    Cost:       one singular value decomposition, then draws that double with each sample of the
                batch: 8 take seconds, 12 half a minute; behind convolutions that of `by`
    Reference:  Dimitrov, Baader, Mueller, Vechev, SPEAR: Exact gradient inversion of batches in
                federated learning, NeurIPS 2024.
    Deviations: vectors are refitted to all units that they leave at zero; the certificate compares
                signs of all units, where the paper scores whole batches.
    """

    consumes = UPDATES
    needs = frozenset({Knowledge.UPLOADS})
    simulates: ClassVar[bool] = False
    recovers = "inputs"

    most: int = knob(12, help="largest batch that is taken apart", ge=1, le=24)
    tries: int = knob(16384, help="draws of units for each gradient, at most", ge=1)
    by: str = knob(
        "auto",
        help="attack that turns the layer's input into an image, where convolutions stand before "
        "it; auto: ensemble-kalman where public images are known, and dip elsewhere",
        choices=("auto", *SECOND),
    )

    @property
    def required(self) -> frozenset[Knowledge]:
        if self.by == "auto":
            return self.needs
        given = {Knowledge.EXTRACTOR, Knowledge.ALL_EXTRACTORS}  # it is in the broadcast model
        return self.needs | (attacks.get(self.by).needs - given)

    def weakened(self, observation: Observation) -> tuple[str, ...]:
        """Dip where public images are granted and there are none."""
        granted = Knowledge.AUX_DATA in observation.threat.grants
        if self.by != "auto" or observation.aux is not None or not granted:
            return ()
        return ("no public images, so dip takes the place of ensemble-kalman",)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        victims = victims_of(observation)
        size = observation.images_per_target
        seen, ranks = [], set()
        for victim in victims:
            hidden = _first_linear(victim)
            found = self._decompose(victim, hidden.name, hidden.layer, context)
            ranks.add(found.rank)
            seen.append(UploadReading(victim, hidden.before, found.inputs[found.certified][:size]))
        taken = sum(len(one.inputs) for one in seen)
        by = self.by
        if by == "auto":
            by = "dip" if observation.aux is None else "ensemble-kalman"
        made = pictures(seen, attacks.get(by)(), observation, context, together=True)
        said = (
            f"{taken} of {made.fit.numel()} inputs of the first linear layer have a certificate; "
            f"ranks {', '.join(map(str, sorted(ranks)))}"
        )
        return made.answers(said, made.exact)  # inputs without a certificate were left out

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        """See `layer_explained`; no label is known."""
        return layer_explained(observation, images, lambda one: _first_linear(one).name)

    def _decompose(
        self, victim: Victim, name: str, layer: nn.Linear, context: Context
    ) -> LayerInputs:
        weight, bias = victim.sent(f"{name}.weight", f"{name}.bias")
        if not victim.finite():
            return LayerInputs(weight[:0], torch.zeros(0, dtype=torch.bool), 0)
        rng = stream(context.seed, "spear", client=victim.client, round=victim.round)
        return decompose_gradient(layer, weight, bias, rng, most=self.most, tries=self.tries)


def _first_linear(victim: Victim) -> HiddenLayer:
    """The layer that is read."""
    found = first_hidden(victim.model)
    if isinstance(found, HiddenLayer):
        return found
    raise IncompatibleError(
        f"Attack 'spear' needs a linear layer with bias and a ReLU behind it; the model of client "
        f"{victim.client} {found}.",
        next_step="Use inverting-gradients, or train --model cnn4.",
    )


RANK = 1e-5
"""Singular values below this share of the largest are rounding."""
ZERO = 1e-4
"""Entries of a basis vector below this share of its largest are zeros. Samples of one class err
much alike in an untrained network, so that their rows nearly cancel: that is no zero."""
LEAK = 1e-4
"""Of a sample's largest drive, what units that it leaves off may show."""
SPARE = 8
"""Zeros beyond those that a vector was made from, that it must have to be more than an accident."""
SPARSE = 0.3
"""Share of units that a sample must leave off; mixtures of two samples have about a quarter."""
ALIKE = 0.999
"""Cosine above which two vectors are the same."""
MOST = 60
"""Vectors refitted of each draw, at most."""
AT_ONCE = 2048
"""Vectors tried at once."""


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """Inputs of a layer, sample by sample, and which of them are certain.

    Shape:
        inputs (r, n): in no order; r is 0 where the batch could not be taken apart.
        certified (r,) bool: the units that every input of the batch switches on, by the layer's own
            weights, are just those with a gradient. Many would differ if an input were another.
        rank: numeric rank of the gradient, which is the number of samples.
    """

    inputs: Tensor
    certified: Tensor
    rank: int


def decompose_gradient(
    layer: nn.Linear, weight: Tensor, bias: Tensor, rng: torch.Generator, *, most: int, tries: int
) -> LayerInputs:
    """Take the gradient of a linear layer before a ReLU apart.

    Args:
        layer: with the parameters at which the gradient was taken; it has a bias.
        weight, bias: gradients (m, n) and (m,), up to one factor for both.
        rng: draws the units that are taken for switched off.
        most: samples that are tried; the work doubles with each.
        tries: draws of units, at most.
    """
    both = torch.cat([weight, bias[:, None]], 1).double()
    none = both.new_zeros(0, weight.shape[1]), torch.zeros(0, dtype=torch.bool)
    left, values, right = torch.linalg.svd(both, full_matrices=False)
    rank = int((values > RANK * values[0]).sum()) if bool(values[0] > 0) else 0
    if not 0 < rank <= most or len(bias) < rank + SPARE or layer.bias is None:
        return LayerInputs(*none, rank)
    span, rows = left[:, :rank], values[:rank, None] * right[:rank]
    best = LayerInputs(*none, rank)
    for mix in _sparse_bases(span, rng, tries):
        inputs, certain = _inputs_with_certainty(layer, span, rows, mix)
        for _ in range(rank):
            better = _refit_mix(layer, span, inputs, mix)
            if better is None:
                break
            mix = better
            inputs, certain = _inputs_with_certainty(layer, span, rows, mix)
        best = LayerInputs(inputs.to(weight.dtype), certain, rank)
        if bool(certain.all()):
            break
    return best


def _inputs_with_certainty(
    layer: nn.Linear, span: Tensor, rows: Tensor, mix: Tensor
) -> tuple[Tensor, Tensor]:
    """The inputs (r, n) that columns of `mix` say, and which may be certain, (r,).

    An input hangs on the vectors of all other samples, so that one wrong vector leaves none.
    """
    found = torch.linalg.solve(mix, rows)  # each row a multiple of a sample's (x, 1)
    inputs = found[:, :-1] / found[:, -1:]
    z, drives = _through(layer, inputs), (span @ mix).T * found[:, -1:]
    clear = z.abs() > ZERO * z.abs().amax(1, keepdim=True)
    drives = drives.abs() / drives.abs().amax(1, keepdim=True)
    leak = torch.where((z < 0) & clear, drives, 0.0).amax(1)
    dumb = ((z > 0) & clear & (drives < LEAK)).sum(1)
    right = (leak < LEAK) & (dumb <= max(1, z.shape[1] // 50)) & z.isfinite().all(1)
    return inputs, right & right.all()


def _through(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """What a layer makes of inputs (r, n), (r, m)."""
    bias = 0.0 if layer.bias is None else layer.bias.detach().double()
    return inputs @ layer.weight.detach().double().T + bias


def _refit_mix(layer: nn.Linear, span: Tensor, inputs: Tensor, mix: Tensor) -> Tensor | None:
    """`mix` with columns refitted to the units that the inputs (r, n) leave off, or None.

    An input is right as soon as the vectors of all other samples are, and its units that are off
    then give its own vector.
    """
    z, out = _through(layer, inputs), mix.clone()
    for place, own in enumerate(z):
        off = own < -ZERO * own.abs().max()
        if len(z) == 1 or int(off.sum()) < len(z) - 1 + SPARE:
            continue
        _, values, right = torch.linalg.svd(span[off], full_matrices=True)
        if float(values[-1]) < ZERO * float(values[-2]):
            out[:, place] = right[-1] * torch.sign(right[-1] @ mix[:, place])
    moved = float((out - mix).abs().max()) > 1e-12
    return out if moved and float(torch.linalg.svdvals(out)[-1]) > 1e-6 else None


def _sparse_bases(span: Tensor, rng: torch.Generator, tries: int) -> Iterator[Tensor]:
    """Columns (r, r) that give `span` (m, r) most zeros, better ones later.

    A vector is zero on r - 1 units drawn at random; it is right if they were all off for one sample
    and then it is zero on that sample's other units too.
    """
    rank = span.shape[1]
    if rank == 1:
        yield span.new_ones(1, 1)
        return
    size = span.norm(dim=1)
    alive = span[size > 1e-7 * size.max()]
    dead = len(span) - len(alive)
    if len(alive) < rank + SPARE:
        return
    kept = span.new_zeros(0, rank)
    for _ in range(max(1, tries // AT_ONCE)):
        drawn = torch.rand(AT_ONCE, len(alive), generator=rng).topk(rank - 1, dim=1).indices
        tried = torch.linalg.svd(alive[drawn], full_matrices=True).Vh[:, -1]
        fresh = _distinct(alive, tried, kept, max(rank - 1 + SPARE, int(SPARSE * len(span)) - dead))
        if not len(fresh):
            continue
        kept = torch.cat([kept, fresh])
        chosen = _independent(kept[_zeros(alive, kept).argsort(descending=True)])
        if chosen is not None:
            yield chosen


def _zeros(alive: Tensor, vectors: Tensor) -> Tensor:
    """How many units of `alive` (m, r) each of `vectors` (k, r) leaves at zero, (k,)."""
    return _off(alive @ vectors.T).sum(0)


def _distinct(alive: Tensor, tried: Tensor, kept: Tensor, least: int) -> Tensor:
    """Those of `tried` (k, r) with most zeros, fitted to all of them, and not in `kept` yet."""
    counts = _zeros(alive, tried)
    order = counts.argsort(descending=True)
    tried = tried[order[counts[order] >= least]]
    out: list[Tensor] = []
    while len(tried) and len(out) < MOST:
        off = _off(alive @ tried[:1].T)[:, 0]
        vector = torch.linalg.svd(alive[off], full_matrices=True).Vh[-1]
        tried = tried[1:]
        if not bool(((kept @ vector).abs() > ALIKE).any()):
            out.append(vector)
            kept = torch.cat([kept, vector[None]])
        tried = tried[(tried @ vector).abs() < ALIKE]
    return torch.stack(out) if out else kept[:0]


def _off(reached: Tensor) -> Tensor:
    """Which units (m, k) a vector leaves at zero."""
    return reached.abs() < ZERO * reached.abs().amax(0)


def _independent(vectors: Tensor) -> Tensor | None:
    """The first independent rows of `vectors` (k, r), r of them as columns, or None without."""
    chosen: list[Tensor] = []
    basis = vectors[:0]
    for vector in vectors:
        rest = vector - basis.T @ (basis @ vector)
        if float(rest.norm()) > 1e-3:
            basis = torch.cat([basis, rest[None] / rest.norm()])
            chosen.append(vector)
        if len(chosen) == vectors.shape[1]:
            return torch.stack(chosen, 1)
    return None
