"""Whole batches, exactly, through a linear layer that a ReLU follows."""

from __future__ import annotations

import math
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
    gradient says; it hangs on the vectors of all other samples, so that a batch is certified whole
    or not at all. Where the layer sees pixels the image follows in closed form, certificate
    included; behind convolutions another attack turns the layer's input into an image. What has no
    certificate is answered with grey.

    Shape:      one gradient by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target, certain ones first
    Needs:      UPLOADS, and the model that the protocol's own messages hold    Recovers: inputs
    Cost:       one singular value decomposition, then draws of units, 16,384 in about a second; the
                chance of one falls by a fifth to a half with each sample, see `draws_needed`;
                behind convolutions that of `by`
    Reference:  Dimitrov, Baader, Mueller, Vechev, SPEAR: Exact gradient inversion of batches in
                federated learning, NeurIPS 2024.
    Deviations: units are drawn from those with the smallest gradient, which are off for most of the
                batch, and those that say nothing new are passed over; vectors are refitted to all
                units that they leave at zero; the next layer's weights tell right vectors; the
                certificate compares signs of all units, where the paper scores whole batches.
    """

    when_to_use = (
        "gradients of batches up to about 16 with a ReLU layer, when "
        "exact answers must be certified"
    )
    measured_on = ("gradients",)
    consumes = UPDATES
    needs = frozenset({Knowledge.UPLOADS})
    simulates: ClassVar[bool] = False
    recovers = "inputs"

    most: int = knob(16, help="largest batch that is taken apart", ge=1, le=24)
    tries: int = knob(32768, help="draws of units for each gradient, at most", ge=1)
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
            found = self._decompose(victim, hidden, context)
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

    def _decompose(self, victim: Victim, hidden: HiddenLayer, context: Context) -> LayerInputs:
        weight, bias = victim.sent(f"{hidden.name}.weight", f"{hidden.name}.bias")
        if not victim.finite():
            return LayerInputs(weight[:0], torch.zeros(0, dtype=torch.bool), 0)
        rng = stream(context.seed, "spear", client=victim.client, round=victim.round)
        return decompose_gradient(
            hidden.layer,
            weight,
            bias,
            rng,
            most=self.most,
            tries=self.tries,
            following=_following(victim, hidden),
        )


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


def _following(victim: Victim, hidden: HiddenLayer) -> Tensor | None:
    """Weights (C, m) of the linear layer that takes the ReLU's output as it is, if one does."""
    behind = [one for _, one in hidden.after if not isinstance(one, nn.Identity)]
    layer = behind[0] if behind else getattr(victim.model, "head", None)
    fits = isinstance(layer, nn.Linear) and layer.in_features == hidden.layer.out_features
    return layer.weight if fits and isinstance(layer, nn.Linear) else None


RANK = 1e-5
"""Singular values below this share of the largest are rounding."""
ZERO = 1e-4
"""Entries of a basis vector below this share of its largest are zeros, at most. Samples of one
class err much alike in an untrained network, so that their rows nearly cancel: that is no zero."""
FAR = 30.0
"""Standard deviations of the gradient's noise that a zero may be away from 0, at most."""
LEAK = 1e-4
"""Of a sample's largest drive, what units that it leaves off may show."""
SENT_BACK = 1e-3
"""Share of a vector that what the next layer sends back may leave unexplained."""
DEAD = 1e-7
"""Units whose gradient is below this share of the largest are off for the whole batch."""
SPARE = 8
"""Zeros beyond those that a vector was made from, that it must have to be more than an accident."""
SPARSE = 0.3
"""Share of units that a sample must leave off; mixtures of two samples have about a quarter."""
ALIKE = 0.999
"""Cosine above which two vectors are the same."""
MOST = 400
"""Vectors kept that are only sparse; those that one sample explains come on top."""
POOLS = (3, 6, 12, 24)
"""Units that are drawn from, in multiples of the rank."""
NEW = 1e-2
"""Share of a unit's row that units before it must leave over, if it is to count."""
ORDER = 4
"""Units looked at for a vector, in multiples of the rank."""
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


def draws_needed(rank: int, off: float, chance: float = 0.95) -> int:
    """Draws that find the vectors of all samples, stated beforehand.

    A draw of r - 1 units gives a sample's vector if all are off for it: with chance off^(r - 1)
    where units are off independently. `off` is largest among units with small gradients.

    Args:
        rank: samples r, at least 1.
        off: share of samples in (0, 1] for which a drawn unit is off.
        chance: in (0, 1), of finding all of them, by the union bound over samples.
    """
    return math.ceil(math.log(rank / (1 - chance)) / off ** (rank - 1))


def decompose_gradient(
    layer: nn.Linear,
    weight: Tensor,
    bias: Tensor,
    rng: torch.Generator,
    *,
    most: int,
    tries: int,
    following: Tensor | None = None,
) -> LayerInputs:
    """Take the gradient of a linear layer before a ReLU apart.

    Args:
        layer: with the parameters at which the gradient was taken; it has a bias.
        weight, bias: gradients (m, n) and (m,), up to one factor for both.
        rng: draws the units that are taken for switched off.
        most: samples that are tried.
        tries: draws of units, at most; see `draws_needed`.
        following: weights (C, m) of the linear layer behind the ReLU, where one follows at once.
            They tell right vectors by themselves, and cost no certificate if they are wrong.
    """
    both = torch.cat([weight, bias[:, None]], 1).double()
    none = both.new_zeros(0, weight.shape[1]), torch.zeros(0, dtype=torch.bool)
    left, values, right = torch.linalg.svd(both, full_matrices=False)
    rank = int((values > RANK * values[0]).sum()) if bool(values[0] > 0) else 0
    if not 0 < rank <= most or len(bias) < rank + SPARE or layer.bias is None:
        return LayerInputs(*none, rank)
    rows = values[:rank, None] * right[:rank]
    rounding = values[rank] if rank < len(values) else values[0] * 0
    noise = rounding / sum(size**0.5 for size in both.shape)  # of an entry of the gradient
    units = _Units(
        left[:, :rank],
        (FAR * noise / values[:rank]).clamp(min=1e-12),
        values[:rank],
        None if following is None else following.detach().double(),
    )
    best = LayerInputs(*none, rank)
    for mix in _sparse_bases(units, rng, tries):
        inputs, certain = _inputs_with_certainty(layer, units.span, rows, mix)
        for _ in range(rank):
            better = None if bool(certain.all()) else _refit_mix(layer, units.span, inputs, mix)
            if better is None:
                break
            mix = better
            inputs, certain = _inputs_with_certainty(layer, units.span, rows, mix)
        best = LayerInputs(inputs.to(weight.dtype), certain, rank)
        if bool(certain.all()):
            break
    return best


@dataclass(frozen=True, eq=False)
class _Units:
    """A layer's units in the space of the batch.

    Args:
        span: (m, r), orthonormal columns; each sample's gradient by the units is a mixture of them.
        doubt: (r,), how far from 0 the noise of the gradient may move a zero of a column.
        values: (r,), singular values of the gradient.
        following: weights (C, m) of the next layer, or None.
    """

    span: Tensor
    doubt: Tensor
    values: Tensor
    following: Tensor | None

    def alive(self) -> _Units:
        """Those that have a gradient."""
        size = self.left_over(self.span[:, :0])
        on = size > DEAD * size.max()
        following = None if self.following is None else self.following[:, on]
        return _Units(self.span[on], self.doubt, self.values, following)

    def left_over(self, known: Tensor) -> Tensor:
        """Norms (m,) of the gradient less what known samples' own vectors (m, k) explain of it."""
        rest = self.span
        if known.shape[1]:
            rest = rest - known @ torch.linalg.lstsq(known, rest).solution
        size: Tensor = torch.linalg.vector_norm(rest * self.values, dim=1)
        return size

    def off(self, vectors: Tensor) -> Tensor:
        """Which units vectors (k, r) leave at zero, (k, m)."""
        reached = (vectors @ self.span.T).abs()
        unsure = (vectors * self.doubt).norm(dim=1, keepdim=True)
        return reached < torch.minimum(unsure, ZERO * reached.amax(1, keepdim=True))

    def explained(self, vectors: Tensor, off: Tensor) -> Tensor:
        """Which of vectors (k, r) a single sample sent back through the next layer, (k,).

        Its gradient by the units that it switches on is in the range of the next layer's weights,
        which that of a mixture is not. False where the next layer is not known.
        """
        if self.following is None:
            return torch.zeros(len(vectors), dtype=torch.bool)
        seen = (vectors @ self.span.T).masked_fill(off, 0.0)
        back, on = self.following, (~off).double()
        square = torch.einsum("ku,cu,du->kcd", on, back, back)
        errs = torch.linalg.pinv(square, hermitian=True) @ (seen @ back.T)[:, :, None]
        rest = seen - (errs[:, :, 0] @ back) * on
        small: Tensor = rest.norm(dim=1) < SENT_BACK * seen.norm(dim=1)
        return small & (on.sum(1) >= 2 * len(back))


def _inputs_with_certainty(
    layer: nn.Linear, span: Tensor, rows: Tensor, mix: Tensor
) -> tuple[Tensor, Tensor]:
    """The inputs (r, n) that columns of `mix` say, and which may be certain, (r,).

    An input hangs on the vectors of all other samples: one wrong vector leaves none certain.
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
        _, values, right = torch.linalg.svd(span[off], full_matrices=False)
        if float(values[-1]) < ZERO * float(values[-2]):
            out[:, place] = right[-1] * torch.sign(right[-1] @ mix[:, place])
    moved = float((out - mix).abs().max()) > 1e-12
    return out if moved and float(torch.linalg.svdvals(out)[-1]) > 1e-6 else None


def _sparse_bases(every: _Units, rng: torch.Generator, tries: int) -> Iterator[Tensor]:
    """Columns (r, r) that give the units' span most zeros, better ones later.

    A vector is zero on r - 1 units drawn at random; it is right if all were off for one sample.
    They come in turn from units with the smallest gradient, and the smallest left by known samples.
    """
    rank = every.span.shape[1]
    if rank == 1:
        yield every.span.new_ones(1, 1)
        return
    units = every.alive()
    if len(units.span) < rank + SPARE:
        return
    dead = len(every.span) - len(units.span)
    least = max(rank - 1 + SPARE, int(SPARSE * len(every.span)) - dead)
    kept, sure = units.span.new_zeros(0, rank), torch.zeros(0, dtype=torch.bool)
    zeros, last = torch.zeros(0, dtype=torch.int64), kept
    quiet = [units.left_over(units.span[:, :0]).argsort()]
    for number in range(max(1, tries // AT_ONCE)):
        first = quiet[0] if number % 2 else quiet[-1]
        pool = first[: rank * POOLS[number // 2 % len(POOLS)]]
        fresh = _distinct(units, _zero_on_drawn(units, pool, rng), kept, least)
        if not len(fresh):
            continue
        off = units.off(fresh)
        kept = torch.cat([kept, fresh])
        sure = torch.cat([sure, units.explained(fresh, off)])
        zeros = torch.cat([zeros, off.sum(1)])
        order = (zeros + len(units.span) * sure).argsort(descending=True, stable=True)
        order = order[: int(sure.sum()) + MOST]
        kept, sure, zeros = kept[order], sure[order], zeros[order]
        if bool(sure.any()):
            quiet = [quiet[0], units.left_over(units.span @ kept[sure].T).argsort()]
        chosen = _independent(kept)
        if chosen is not None and not torch.equal(chosen, last):
            yield (last := chosen)


def _zero_on_drawn(units: _Units, pool: Tensor, rng: torch.Generator) -> Tensor:
    """Vectors (k, r) that are zero on r - 1 independent units drawn from `pool` at random.

    Units that are on for few samples are often multiples of each other, so that r - 1 of them say
    too little; those that add nothing to the units before them are passed over.
    """
    rank = units.span.shape[1]
    count = min(len(pool), rank * ORDER)
    order = torch.rand(AT_ONCE, len(pool), generator=rng).topk(count, dim=1).indices
    basis = units.span.new_zeros(AT_ONCE, rank, rank)
    every, done = torch.arange(AT_ONCE), torch.zeros(AT_ONCE, dtype=torch.int64)
    limit = units.doubt.norm()
    for column in pool[order].T:
        row = units.span[column]
        rest = row - (basis.mT @ (basis @ row[:, :, None]))[:, :, 0]
        size = rest.norm(dim=1)
        new = (size > torch.maximum(limit, NEW * row.norm(dim=1))) & (done < rank - 1)
        basis[every[new], done[new]] = rest[new] / size[new, None]
        done += new
        if bool((done == rank - 1).all()):
            break
    basis = basis[done == rank - 1]
    start = torch.randn(len(basis), rank, 1, generator=rng, dtype=basis.dtype)
    for _ in range(2):
        start = start - basis.mT @ (basis @ start)
        start = start / start.norm(dim=1, keepdim=True)
    return start[:, :, 0]


def _distinct(units: _Units, tried: Tensor, kept: Tensor, least: int) -> Tensor:
    """Those of `tried` (k, r) with enough zeros, fitted to all of them, and not in `kept` yet."""
    tried = _apart(tried[units.off(tried).sum(1) >= least], kept)
    off = units.off(tried).double()
    square = torch.einsum("ku,ui,uj->kij", off, units.span, units.span)
    fitted = torch.linalg.eigh(square).eigenvectors[:, :, 0]
    return _apart(fitted, kept)


def _apart(vectors: Tensor, kept: Tensor) -> Tensor:
    """Those of `vectors` (k, r) that are like none of `kept` and none before them."""
    vectors = vectors[~((vectors @ kept.T).abs() > ALIKE).any(1)]
    return vectors[~((vectors @ vectors.T).abs() > ALIKE).tril(-1).any(1)]


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
