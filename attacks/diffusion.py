"""Inversion of representations with a learnt model of images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from threading import Event

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Smoothing, StepsAt, join_steps, without
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation

from .base import RECOVERED, Context, SuiteEntry, attacks
from .calibration.base import CalibratedAttack
from .common.channels import ROWS_REPEATED, row_as_compared, rows_as_sent
from .common.drawn_noise import weighted_extractors, weighted_rows, weights_by_owner
from .common.frozen_modules import frozen_copy, outputs
from .common.gradient_check import check_gradients
from .common.objectives import l2rel
from .common.tiles import cpu_tile, each, progress
from .common.tiling import Piece, Tick, cached, in_tiles_of, join, reconstruction
from .common.told_masks import left_by_mask, unmasked_extractors
from .inversion.auxiliary_images import AuxImages
from .inversion.denoiser import Denoiser, DenoiserTraining, blank, train_denoiser
from .inversion.gradient_descent import by_owner, spread_of
from .inversion.linear_map import Linear
from .inversion.map_fitting import MapWork, pairs_that_fit, piece_of, prepare_work, weighted_work
from .inversion.map_jobs import MapJob, jobs_of
from .inversion.posterior_sampling import Sampling, sample_posterior
from .inversion.reconstruction import seeds_for
from .inversion.ridge_fit import Latest, RidgeFit


@attacks.register("diffusion")
@dataclass(frozen=True, kw_only=True)
class Diffusion(Linear, DenoiserTraining, Sampling, CalibratedAttack):
    """Recover images with a small diffusion model trained on auxiliary images.

    The model is trained when the attack runs. From the answer of `linear` an image is drawn step by
    step: the picture under noise is denoised, moved until its representation is the one uploaded,
    and given less noise. The answer is the mean of several such images; how far they are apart is
    told as `spread`. The error that an upload has (declared noise, or the mean of several images)
    is measured on auxiliary images and allowed for, in each direction where clients draw it.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR, AUX_DATA          Recovers: inputs
    Cost:       that of `linear`; `updates` steps of a small network; for each target and sample
                `steps` times (2 `solves` + 5) passes of the extractor
    Reference:  Song et al., Pseudoinverse-Guided Diffusion Models for Inverse Problems, ICLR 2023;
                Karras et al., NeurIPS 2022 (the model); Wang et al., DRAG, ICML 2025 (diffusion
                models guided by representations).
    Deviations: the model is trained on the few hundred auxiliary images and not fetched; it begins
                from the linear answer at medium noise; the representation is approximated
                linearly in each step; means of several samples are returned.
    """

    when_to_use = "vectors with public images, when answers should look like images of that kind"
    measured_on = ("priors", "benchmarks")
    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.AUX_DATA})
    recovers = "inputs"
    differentiates = True
    loops = {"steps": 2, "updates": 2}
    suite = (
        SuiteEntry(Representations, "strong", place=35),
        SuiteEntry(Prototypes, "strong", place=35, fewest_first=True),
        SuiteEntry(EntangledRep, "strong", RECOVERED, 35, fewest_first=True),
    )
    adapts_to = join_steps(ROWS_REPEATED, {"encoding": (Smoothing,)})

    match_targets: bool = knob(
        False,
        help="take prototypes and mixtures for means of images, not for those of one image",
    )

    def __post_init__(self) -> None:
        if self.cleanest > self.noisiest:
            raise ConfigError(
                f"'attack.cleanest' ({self.cleanest:g}) is above 'attack.noisiest' "
                f"({self.noisiest:g}); noise has to fall."
            )

    def adapts(self, observation: Observation) -> StepsAt:
        found = super().adapts(observation)
        return found if self.match_targets else without(found, "encoding")

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        return diffusion_answers(observation, context, self)


MEASURED = 512
"""Pairs of an extractor from which the error of its representations is measured."""
GPU_TILE = 64
"""Targets at once on a GPU."""


def diffusion_answers(observation: Observation, context: Context, how: Diffusion) -> Reconstruction:
    """Answer every target with the mean of images drawn from a model of its kind.

    Raises:
        IncompatibleError: too few auxiliary images, or an extractor that does not fit.
    """
    jobs: dict[str, list[MapJob]] = {}
    for job in jobs_of(observation, how):
        jobs.setdefault(job.family, []).append(job)
    owners = {job.owner for kind in jobs.values() for job in kind}
    check_gradients(
        observation,
        {key: frozen_copy(observation.extractors[key], context.device) for key in owners},
        twice=True,
    )
    with single_threaded(context.device) as cores:
        kinds = {name: _Kind(observation, context, mine, how, cores) for name, mine in jobs.items()}
        models = {name: kind.model() for name, kind in kinds.items()}
        numbers = torch.cat([kind.index for kind in kinds.values()])
        begun = join([kind.first() for kind in kinds.values()], numbers)
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            drawn = [_draw_answers(kind, models[name], begun) for name, kind in kinds.items()]
    return reconstruction(join(drawn, numbers), "budget spent")


@dataclass(eq=False)
class _Kind:
    """Targets of one kind: what is learnt for them, made when first asked for."""

    observation: Observation
    context: Context
    jobs: list[MapJob]
    how: Diffusion
    cores: int

    @property
    def name(self) -> str:
        """Of the kind."""
        return self.jobs[0].family

    @cached_property
    def index(self) -> Tensor:
        """Numbers of the targets, by job."""
        return torch.cat([job.index for job in self.jobs])

    @cached_property
    def aux(self) -> AuxImages:
        """The auxiliary images."""
        return AuxImages.of(self.observation, self.context.device, self.how.resolution)

    @cached_property
    def works(self) -> list[MapWork]:
        """Maps of each extractor, with the pairs that they learnt from."""
        aux = self.aux
        room, fits = pairs_that_fit(aux, len(self.jobs)), Latest[RidgeFit]()
        seen, context, how, weights = self.observation, self.context, self.how, self.weights

        def work(job: MapJob) -> MapWork:
            made = prepare_work(seen, context, job, aux, how, room=room, crossed="no", fits=fits)
            return weighted_work(made, weights.get(job.owner))

        return each(work, self.jobs, self.cores)

    @cached_property
    def weights(self) -> dict[tuple[int, int], Tensor]:
        """How directions count where clients change representations at random, by extractor."""
        if rows_as_sent(self.observation) is not None:
            return {}
        seen, device = self.observation.extractors, self.context.device
        owners = sorted({job.owner for job in self.jobs})
        return weights_by_owner(
            {owner: frozen_copy(seen[owner], device) for owner in owners}, self.aux.images
        )

    def first(self) -> Piece:
        """The linear answers, and the error that an upload has, in the order of `index`."""

        def make() -> Piece:
            return join([_first(self.observation, one, self.aux) for one in self.works])

        return cached(self.context, f"first-{self.name}", make)

    def model(self) -> Denoiser:
        """The denoiser, trained on images of this kind."""
        context, count = self.context, len(self.index)

        def make() -> Piece:
            seen = [one.pairs.images for one in self.works if one.pairs is not None]
            images = seen[0] if self.name == "single" else torch.cat(seen)
            tick = progress(context, Event(), of=self.how.updates, first=0, rows=count, total=count)
            net = train_denoiser(images, self.how, seed=context.seed, purpose=self.name, tick=tick)
            return {key: value.cpu() for key, value in net.state_dict().items()}

        shape = (self.observation.image_shape[0], *self.aux.resolution.picture)
        net = blank(shape, self.how).to(context.device)
        net.load_state_dict(cached(context, f"denoiser-{self.name}", make))
        return net.eval().requires_grad_(False)


def _first(observation: Observation, work: MapWork, aux: AuxImages) -> Piece:
    """The linear answers of one extractor, and the relative error of what is uploaded of images."""
    assert work.pairs is not None
    reps, images = work.pairs.reps[:MEASURED], work.pairs.images[:MEASURED]
    made = outputs(work.extract, images)
    if work.upload is not None:
        made = row_as_compared(observation.channel, made, reps)
    error = ((made - reps).square().sum() / reps.square().sum().clamp(min=1e-30)).sqrt()
    return {**piece_of(work, aux), "error": error.cpu().expand(len(work.answer)).contiguous()}


def _as_it_is(reps: Tensor, wanted: Tensor) -> Tensor:
    """Representations where clients declared nothing."""
    return reps


def _draw_answers(kind: _Kind, net: Denoiser, begun: Piece) -> Piece:
    """Answers to the targets of one kind, in the order of its index."""
    observation, context, order = kind.observation, kind.context, kind.index.tolist()
    how, device, count = kind.how, context.device, kind.how.samples
    rows, owners = observation.target_rows()
    seeds = seeds_for(owners, context.seed, count)
    sent = rows_as_sent(observation) or _as_it_is
    extractors = {
        key: frozen_copy(observation.extractors[key], device) for key in {owners[i] for i in order}
    }
    bare = unmasked_extractors(observation, extractors)
    if bare is not None:
        extractors, sent = bare, left_by_mask
    seen = weighted_extractors(extractors, kind.weights)
    resolution = kind.aux.resolution

    def draw(places: list[int], tick: Tick) -> Piece:
        some = [order[place] for place in places]
        repeated = [i for i in some for _ in range(count)]
        behind = [owners[i] for i in repeated]
        through = resolution.through(by_owner(seen, behind))
        wanted = weighted_rows(rows[repeated].float().to(device), behind, kind.weights)

        def told(step: int, errors: Tensor) -> None:
            tick(step, errors.reshape(-1, count).mean(1))

        images, trace = sample_posterior(
            net,
            lambda x: sent(through(x), wanted),
            wanted,
            begun["error"][repeated].to(device),
            resolution.reduce(begun["images"][repeated]).to(device),
            how,
            seeds=[seeds[i * count + one] for i in some for one in range(count)],
            tick=told,
        )
        apart = images.unflatten(0, (len(some), count))
        answer = resolution.enlarge(apart.mean(1))
        alone = rows[some].float().to(device)
        with torch.no_grad():
            fit = l2rel(sent(by_owner(extractors, [owners[i] for i in some])(answer), alone), alone)
        return {
            "images": answer.cpu(),
            "prior": begun["prior"][some],
            "fit": fit.cpu(),
            "spread": spread_of(apart).cpu(),
            "trace": trace.reshape(len(trace), -1, count).mean(2).cpu(),
        }

    return in_tiles_of(
        draw,
        range(len(order)),
        context,
        steps=how.steps,
        cpu=cpu_tile(len(order), count),
        gpu=how.chunk or GPU_TILE,
        name=f"drawn-{kind.name}",
    )
