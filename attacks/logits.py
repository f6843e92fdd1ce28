"""Inversion of mean outputs by class, over the rounds in which they were uploaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import ClassLogits
from fedre_privacy.core.channels import ClippingStep, Masking, Noise, RandomRounding
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.channels import rows_resent
from .common.class_outputs import ClassOutputs
from .common.explained_share import rows_explained
from .common.frozen_modules import frozen_copy, outputs
from .common.objectives import l2rel
from .common.tiling import Piece, Tick, in_groups, reconstruction
from .inversion.linear_map import Linear
from .inversion.map_jobs import LEAST_AUX, MapJob, aux_codes, label_codes
from .inversion.ridge_fit import fit_views
from .inversion.simulated_uploads import views
from .inversion.training_pairs import FOLDS, AuxPairs, simulate_averages

AVERAGED_VIEWS = 2
"""Views that enter simulated means: plain and mirrored."""


@attacks.register("logits")
@dataclass(frozen=True, kw_only=True)
class LogitsDecoder(Linear, Attack):
    """Recover images from a client's mean outputs by class, by ridge regression over rounds.

    The logarithm of the mean softmax of a class of one image is C - 1 numbers about the image, and
    every round, whose model is another one, tells C - 1 more. So the features of an image x are
    log softmax f_t(x), side by side over the rounds t in which the class was uploaded, with f_t the
    client's whole model of the round. A ridge regression from features to pixels is fitted to
    auxiliary images, and to simulated means of several of a class, whose answer is the mean image.
    Outputs that are no shares of classes enter as they are; probabilities of 0 are taken as half
    the least positive one of the client.

    Shape:      outputs (m, C) of T rounds; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, ALL_EXTRACTORS, HEADS, AUX_DATA          Recovers: inputs
    Cost:       for each client `views` times T forward passes over the auxiliary images, and
                (T C)^2 times pixels multiplications; nothing per target
    Reference:  Hoerl and Kennard, Ridge regression, Technometrics 1970; the uploads: Jeong et al.,
                Communication-efficient on-device machine learning, 2018. The attack is this
                package's own.
    """

    when_to_use = (
        "mean outputs of each class (FD) over several rounds, with every client's model held"
    )
    measured_on = ("gradients",)
    consumes = (ClassLogits,)
    needs = frozenset(
        {
            Knowledge.UPLOADS,
            Knowledge.ALL_EXTRACTORS,
            Knowledge.HEADS,
            Knowledge.AUX_DATA,
        }
    )
    recovers = "inputs"
    adapts_to = {"rows": (ClippingStep, Masking, Noise, RandomRounding)}  # noqa: RUF012
    suite = (SuiteEntry(ClassLogits, "strong", place=30, fewest_first=True),)

    rounds: int | None = knob(
        None, help="latest rounds read, the attacked one among them; none: all", ge=1
    )

    @property
    def several_rounds(self) -> bool:
        return self.rounds != 1

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        """Outputs of the client's model of the attacked round, see `rows_explained`."""
        rows, owners = observation.target_rows()
        shares = ClassOutputs.of(rows).shares
        models = {
            owner: nn.Sequential(
                observation.extractors[owner],
                observation.heads[owner],
                nn.Softmax(1) if shares else nn.Identity(),
            )
            for owner in set(owners)
            if _known_labels(observation, *owner)
        }
        return rows_explained(observation, images, models)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        if observation.aux is None or len(observation.aux) < LEAST_AUX:
            raise IncompatibleError(
                f"Maps from outputs to images need at least {LEAST_AUX} auxiliary images; "
                f"{0 if observation.aux is None else len(observation.aux)} were given.",
                next_step="Use a data set with more held-out images.",
            )
        aux = observation.aux.float().to(context.device)
        jobs = {job.name: job for job in _jobs(observation, self.rounds)}

        def answer(name: str, tick: Tick) -> Piece:
            return _answer(observation, context, jobs[name], aux, self, tick)

        with single_threaded(context.device) as cores:
            groups = {name: job.index for name, job in jobs.items()}
            found = in_groups(answer, groups, context, steps=1, cores=cores)
        read = ", ".join(map(str, sorted({len(job.rounds) for job in jobs.values()})))
        return reconstruction(found, f"closed form; rounds read: {read}")


@dataclass(frozen=True, eq=False)
class _Job:
    """Classes of one client that were uploaded in the same rounds.

    Args:
        owner: client and attacked round.
        rounds: those read, ascending.
        index: rows of the targets in the observation (n,).
        codes: of these classes, see `MapJob`.
        sent: outputs of these classes in each round, (n, T, C).
        uploads: all that the client uploaded in each round.
    """

    owner: tuple[int, int]
    rounds: tuple[int, ...]
    index: Tensor
    codes: Tensor
    sent: Tensor
    uploads: tuple[Tensor, ...]

    @property
    def name(self) -> str:
        """What its piece is kept under."""
        return f"outputs-{self.owner[0]:06d}-{self.owner[1]:06d}-{int(self.index[0]):06d}"


def _jobs(observation: Observation, limit: int | None) -> list[_Job]:
    """Sort targets by client and by the rounds in which their class was uploaded.

    Raises:
        IncompatibleError: several rounds are asked for and one has the client's model.
    """
    found: list[_Job] = []
    first = 0
    for target in observation.targets:
        owner = target.client, target.round
        tables = {
            upload.round: table
            for upload in observation.uploads
            if upload.client == target.client and upload.round <= target.round
            for table in upload.artifacts
            if isinstance(table, ClassLogits)
        }
        known = [r for r in sorted(tables) if _known_labels(observation, target.client, r)]
        if owner[1] not in known or (len(known) == 1 < len(tables) and limit != 1):
            raise IncompatibleError(
                f"Attack 'logits' reads outputs of several rounds through the client's model of "
                f"each; client {target.client} uploaded in {len(tables)} rounds, and models of "
                f"{len(known)} were kept.",
                next_step="Train with --set record.keep_every=1, or read one round alone: --set "
                "attack.rounds=1.",
            )
        classes: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for artifact in target.artifacts:
            if not isinstance(artifact, ClassLogits):
                continue
            for label in artifact.labels.tolist():
                held = [r for r in known if bool((tables[r].labels == label).any())]
                classes.setdefault(tuple(held[-(limit or len(held)) :]), []).append((first, label))
                first += 1
        for rounds, rows in classes.items():
            labels = torch.tensor([label for _, label in rows])
            parts = [_rows_of(tables[r], labels) for r in rounds]
            found.append(
                _Job(
                    owner,
                    rounds,
                    torch.tensor([row for row, _ in rows]),
                    label_codes(observation, labels),
                    torch.stack(parts, 1),
                    tuple(tables[r].outputs.float() for r in rounds),
                )
            )
    return found


def _known_labels(observation: Observation, client: int, round: int) -> bool:
    return (client, round) in observation.extractors and (client, round) in observation.heads


def _rows_of(table: ClassLogits, labels: Tensor) -> Tensor:
    """Outputs of these classes, (n, C)."""
    return table.outputs[(labels[:, None] == table.labels).int().argmax(1)].float()


def _answer(
    observation: Observation,
    context: Context,
    job: _Job,
    aux: Tensor,
    linear: Linear,
    tick: Tick,
) -> Piece:
    """Fit the map of one client and answer its targets."""
    client, round = job.owner
    device = context.device
    models = [
        nn.Sequential(
            frozen_copy(observation.extractors[client, r], device),
            frozen_copy(observation.heads[client, r], device),
        )
        for r in job.rounds
    ]
    sent = torch.cat(job.uploads)
    how = ClassOutputs.of(sent)

    def made(images: Tensor) -> Tensor:
        """Outputs of each round's model side by side, (n, T * C)."""
        found = [outputs(model, images) for model in models]
        return torch.cat([how.made(one) for one in found], 1)

    draws = stream(context.seed, "simulate outputs", client=client, round=round)
    fresh = stream(context.seed, "defended outputs", client=client, round=round)

    def anew(values: Tensor) -> Tensor:
        """Outputs (n, T * C) as they would be sent, and their features."""
        parts = [
            rows_resent(observation.channel, part, upload.to(part), fresh)
            for part, upload in zip(
                values.split(observation.num_classes, 1), job.uploads, strict=True
            )
        ]
        return how.features(torch.cat(parts, 1))

    clean = [made(moved) for moved in views(aux, linear.views)]
    codes = aux_codes(observation, job.codes.shape[1]).to(device)
    fit = fit_views([anew(one) for one in clean], aux, linear.penalty, codes)
    if not linear.match_targets:
        usual = anew(clean[0][::FOLDS]), codes[::FOLDS]
    else:
        like = MapJob("prototypes", job.owner, job.index, sent, job.codes, None, None, first=0)

        def averages(views: int, folds: Sequence[int] = range(FOLDS)) -> AuxPairs:
            means = simulate_averages(observation, like, aux, clean[:views], codes, draws, folds)
            return replace(means, reps=anew(means.reps))

        held = averages(1, [0])
        fit = fit.with_averages(averages(AVERAGED_VIEWS), held)
        usual = held.reps, held.codes
    wanted, told = how.features(job.sent.flatten(1).to(device)), job.codes.to(device)
    fit = fit.checked((wanted, told), usual, context, client)
    answer = fit.whole(torch.cat([wanted, told], 1)).reshape(-1, *aux.shape[1:]).clamp(0, 1)
    prior = aux.mean(0, keepdim=True).expand_as(answer)
    fits = [l2rel(how.features(made(one)), wanted) for one in (prior, answer)]
    tick(0, fits[-1])
    return {
        "images": answer.cpu(),
        "prior": prior.cpu().contiguous(),
        "fit": fits[-1].cpu(),
        "trace": torch.stack(fits).cpu(),
    }
