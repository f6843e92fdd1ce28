"""Multi-round disentanglement of FedRE's entangled uploads into class prototypes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import EntangledRep
from fedre_privacy.core.channels import (
    ClippingStep,
    LearntChange,
    Masking,
    Noise,
    RandomChange,
    RandomRounding,
    Rounding,
    Smoothing,
    StepsAt,
    UnknownNoise,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredPrototypes
from fedre_privacy.core.types import Knowledge, Observation
from fedre_privacy.core.units import plural

from .base import Attack, Context, SuiteEntry, attacks
from .common.channels import (
    LOUDEST_FIRST,
    encoding_error,
    is_masked,
    is_noisy,
    least_bound,
    noise_ratios,
)
from .mixtures.alignment_checks import along_head, can_align, head_of, weaker_alignment_reasons
from .mixtures.aux_features import aux_reps, class_means, has_lagging_round, knows_class_means
from .mixtures.certificates import certify_prototypes
from .mixtures.defended_mixtures import solved_of_parts
from .mixtures.linear_solver import (
    SolvedPrototypes,
    least_squares,
    non_negative,
    ridge,
    total_least_squares,
)
from .mixtures.mixing import Kind, Mixing, mixings
from .mixtures.random_walk import NOISES as WALK_NOISES
from .mixtures.random_walk import random_walk
from .mixtures.round_alignment import NOISES as ALIGNED_NOISES
from .mixtures.round_alignment import RoundAlignment, align, images_of, learn_maps, solve_aligned
from .mixtures.static_prototypes import static_prototypes

STATIC = "static"
SOLVERS = ("auto", "aligned", "kalman", "least-squares", "ridge", "non-negative", STATIC)
EXACT = ("least-squares", STATIC)
"""Solvers that have no answer where the weights leave a direction open."""
PRIORS = ("common", "class-mean")


@dataclass(frozen=True, eq=False)
class _ClientAnswer:
    """Prototypes of one client, the round each is of, the mixtures used, what was recognised."""

    solved: SolvedPrototypes
    rounds: Tensor
    used: Mixing
    notes: list[str]

    @property
    def certified(self) -> Tensor:
        """Which of them are right, by a check without truth."""
        return certify_prototypes(self.solved, self.used)


@attacks.register("disentangle")
@dataclass(frozen=True, kw_only=True)
class Disentangle(Attack):
    """Work a client's class prototypes out of its entangled uploads of several rounds.

    A round's upload is a mixture of the client's prototypes with the weights of its own label
    encoding, so rounds with other weights are further equations for the same prototypes. Solvers:

    ``aligned``
        carries past uploads to the last round by affine maps learned on auxiliary images pushed
        through both extractors (weights sum to one, so a map passes through the mixture), then
        generalised least squares with the covariance of what the maps get wrong on images left out
        and a common mean as prior. Needs ALL_EXTRACTORS and AUX_DATA.
    ``kalman``
        prototypes drift as a random walk; drift, common drift and noise by likelihood.
    ``ridge``, ``non-negative``, ``least-squares``
        prototypes stand still; the last is exact where they do and rank W = number of classes.
    ``static``
        the same, exact where nothing but rounding disturbs the equations; else the size of what
        does follows by likelihood.

    ``auto`` takes static where the threat model says that extractors are frozen and the weights
    have rank n, aligned for clients whose past extractors are there, and kalman otherwise.
    One class or one-hot encodings (RSR, RSP) hide nothing: the latest is returned, with static the
    mean over rounds. Fixed weights (VAR, VAP, or weights drawn once) cannot be told apart by
    anybody and come back as NaN.

    Of declared defences noise and rounding make class means of auxiliary images the prior; uploads
    shortened to a bound are lengthened and coordinates masked out left out of the equations, both
    with ``aligned`` only and without certificates. Other recovered prototypes have certificates,
    see `certificates.certified`.

    Shape:      uploads (d,), encodings (C,) of T rounds; vectors (N, d), one per client and class
    Needs:      UPLOADS (aligned: ALL_EXTRACTORS, AUX_DATA; head_prior: HEAD)
    Recovers:   prototypes
    Cost:       aligned: T extractor passes over the auxiliary images and T factorisations of their
                Gram matrix (m x m) per client, a second or so per ten rounds on a CPU core; the
                others a few hundred factorisations of a T x T matrix per client
    Reference:  the uploads: FedRE, CVPR 2026, Section 3; the filter: Kalman, 1960; generalised
                least squares: Aitken, 1936. The attack on them is this package's own.
    """

    when_to_use = "mixtures of several rounds: FedRE's uploads, before an attack on images"
    measured_on = ("disentangling", "frozen_extractors")
    consumes = (EntangledRep,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "prototypes"
    answers = "prototypes"
    adapts_to: ClassVar[StepsAt] = {
        "extractor": (LearntChange, RandomChange),
        "rows": (ClippingStep, Masking, Noise, UnknownNoise, RandomRounding),
        "encoding": (Smoothing, Rounding),
    }
    suite = (SuiteEntry(EntangledRep, "strong", place=10),)

    solver: str = knob("auto", help="how mixtures are solved", choices=SOLVERS)
    rounds: int | None = knob(None, help="latest rounds used; none: all", unit="rounds", ge=1)
    align_penalty: float | None = knob(
        None, help="penalty of the maps between rounds; none: by images left out", gt=0
    )
    solve_penalty: float | None = knob(
        None, help="penalty of ridge and non-negative; none: by rounds left out", gt=0
    )
    aux_limit: int = knob(500, help="auxiliary images used at most", unit="images", ge=10)
    head_prior: bool | None = knob(
        None,
        help="expect prototypes along the rows of the last broadcast head (needs HEAD); none: "
        "for solver kalman where a head was broadcast",
    )
    prior: str = knob(
        "common",
        help="what answers are drawn towards: the client's common mean, or beside it the class "
        "means of auxiliary images through the last extractor (needs EXTRACTOR, AUX_DATA); where "
        "noise is declared those are taken if they are known",
        choices=PRIORS,
    )
    clamp: bool = knob(
        True, help="cut answers at 0 where no upload of the client is negative (ReLU)"
    )

    def adapts(self, observation: Observation) -> StepsAt:
        """Smoothing always; the rest by what several rounds, the solver and class means allow."""
        found = [
            mixing
            for mixing in mixings(observation, rounds=self.rounds)
            if mixing.kind is Kind.MIXED and len(mixing.rounds) > 1
        ]
        usable: set[object] = {Smoothing}
        if found:
            usable |= {Rounding} if any(len(m.rounds) > len(m.classes) for m in found) else set()
        if found and self.solver in ("auto", "aligned", "kalman", STATIC):
            usable |= {Noise, UnknownNoise, RandomRounding}
        for mixing in found:
            means = knows_class_means(observation, mixing.client, int(mixing.rounds[-1]))
            if means and self.solver not in EXACT:
                usable |= {Noise, UnknownNoise, RandomRounding}
            if means and self.solver in ("auto", "aligned") and can_align(observation, mixing):
                usable |= {ClippingStep, Masking, LearntChange, RandomChange}
        own = super().adapts(observation)
        return {place: tuple(k for k in kinds if k in usable) for place, kinds in own.items()}

    def weakened(self, observation: Observation) -> tuple[str, ...]:
        if self.solver not in ("auto", "aligned"):
            return ()
        found = mixings(observation, rounds=self.rounds)
        moving = [one for one in found if self._solver(observation, one) != STATIC]
        return weaker_alignment_reasons(observation, moving)

    def run(self, observation: Observation, context: Context) -> RecoveredPrototypes:
        found = mixings(observation, rounds=self.rounds)
        if not found:
            raise IncompatibleError(
                "No attacked client has a finite entangled upload with a class in it.",
                next_step="Attack another round, or another run.",
            )
        self._check(observation, found)
        answers = [self._client(observation, context, mixing) for mixing in found]
        notes = [note for answer in answers for note in answer.notes]
        sizes = torch.tensor([len(mixing.classes) for mixing in found])

        def spread(values: list[float]) -> Tensor:
            return torch.tensor(values).repeat_interleave(sizes)

        used = torch.tensor([len(answer.used.rounds) for answer in answers])
        clients = torch.tensor([mixing.client for mixing in found])
        return RecoveredPrototypes(
            vectors=torch.cat([answer.solved.vectors for answer in answers]).float(),
            clients=clients.repeat_interleave(sizes),
            labels=torch.cat([mixing.classes for mixing in found]),
            rounds=torch.cat([answer.rounds for answer in answers]),
            rounds_used=used.repeat_interleave(sizes),
            s_min=spread([answer.used.s_min for answer in answers]),
            expected_error=torch.cat([answer.solved.relative_error for answer in answers]).float(),
            notes=tuple(notes),
            certified=torch.cat([answer.certified for answer in answers]),
        )

    def _check(self, observation: Observation, found: list[Mixing]) -> None:
        """Refuse settings that the threat model or the observation cannot serve."""
        problems = []
        granted = observation.threat.grants
        wanted: set[Knowledge] = {Knowledge.HEAD} if self.head_prior else set()
        if self.solver == "aligned":
            wanted |= {Knowledge.ALL_EXTRACTORS, Knowledge.AUX_DATA}
        if self.prior == "class-mean":
            wanted |= {Knowledge.EXTRACTOR, Knowledge.AUX_DATA}
        for missing in sorted(wanted - granted):
            problems.append(
                f"Attack 'disentangle' with these settings needs {missing.upper()}; threat model "
                f"'{observation.threat.name}' grants "
                f"{', '.join(sorted(k.upper() for k in granted))}."
            )
        if self.head_prior and not problems and head_of(observation) is None:
            problems.append("'attack.head_prior' is on and no broadcast holds a head's weight.")
        if self.solver == "aligned" and not problems:
            for mixing in found:
                if mixing.kind is Kind.MIXED and not can_align(observation, mixing):
                    problems.append(
                        f"Solver 'aligned' needs auxiliary images and the extractors of client "
                        f"{mixing.client} in round {int(mixing.rounds[-1])} and an earlier one."
                    )
        if self.prior == "class-mean" and not problems:
            for mixing in found:
                last = int(mixing.rounds[-1])
                if (mixing.client, last) not in observation.extractors:
                    problems.append(
                        f"Prior 'class-mean' needs the extractor of client {mixing.client} in "
                        f"round {last}; it was not given."
                    )
            if observation.aux_labels is None:
                problems.append("Prior 'class-mean' needs labels of the auxiliary images.")
        if problems:
            raise IncompatibleError(
                *problems,
                next_step="Use --threat strong, or --set attack.solver=kalman with "
                "attack.prior=common.",
            )

    def _solver(self, observation: Observation, mixing: Mixing) -> str:
        """The solver of a client's mixtures: what auto stands for."""
        if self.solver != "auto":
            return self.solver
        frozen = Knowledge.FROZEN_EXTRACTOR in observation.threat.grants
        alignable = can_align(observation, mixing)
        if frozen and mixing.rank == len(mixing.classes):
            return "aligned" if observation.channel.rows and alignable else STATIC
        return "aligned" if alignable else "kalman"

    def _client(self, observation: Observation, context: Context, mixing: Mixing) -> _ClientAnswer:
        classes, last = len(mixing.classes), mixing.rounds[-1]
        rounds = last.repeat(classes)
        kind = mixing.kind
        who = f"client {mixing.client}"
        solver, full = self._solver(observation, mixing), mixing
        repeated = solver == STATIC and len(mixing.rounds) > classes
        if kind is Kind.SINGLE and not repeated:
            note = f"{who}: one class, the upload is its prototype"
            latest = mixing.take(torch.tensor([-1]))
            return _ClientAnswer(_latest(mixing, [-1]), rounds, latest, [note])
        if kind is Kind.PURE and not repeated:
            shown = mixing.weights.argmax(1)
            at = [int((shown == c).nonzero()[-1]) for c in range(classes)]
            note = (
                f"{who}: one-hot encodings, each upload is a prototype or a single representation; "
                "the latest of each class is returned, as of its own round"
            )
            used = mixing.take(torch.tensor(at))
            return _ClientAnswer(_latest(mixing, at), mixing.rounds[at], used, [note])
        if kind is Kind.FIXED or len(mixing.rounds) == 1:
            why = "one upload" if len(mixing.rounds) == 1 else str(kind)
            note = f"{who}: {why}, {classes} classes cannot be told apart"
            return _ClientAnswer(_empty_answer(mixing), rounds, mixing, [note])
        notes = []
        channel = observation.channel
        if solver == "aligned":
            held = torch.tensor(
                [(mixing.client, r) in observation.extractors for r in mixing.rounds.tolist()]
            )
            mixing = full.take(held.nonzero().squeeze(1))
            if not bool(held.all()):
                notes.append(f"{who}: {int((~held).sum())} rounds without an extractor left out")
        if mixing.rank < len(mixing.classes):
            open_directions = len(mixing.classes) - mixing.rank
            notes.append(
                f"{who}: the weights of {len(mixing.rounds)} rounds have rank {mixing.rank} for "
                f"{len(mixing.classes)} classes; {open_directions} directions are "
                + ("open, nothing is returned" if solver in EXACT else "filled by the prior")
            )
            if solver in EXACT:
                return _ClientAnswer(_empty_answer(full), rounds, mixing, notes)
        reps: list[Tensor] = []
        if solver == "aligned":
            reps = self._aux_reps(observation, context, mixing, mixing.rounds.tolist())
            if has_lagging_round(reps):
                mixing, reps = mixing.take(torch.arange(len(reps) - 1)), reps[:-1]
                notes.append(f"{who}: its last upload left out, no extractor that young is held")
        by_round = self._class_means(observation, mixing, reps)
        alignment = None
        if reps:
            seen = [images_of(r) for r in reps]
            parts = is_masked(channel, "rows") or least_bound(channel.rows) is not None
            alone = is_noisy(channel) and not encoding_error(channel)
            if (parts or alone) and by_round:
                maps = learn_maps(seen, self.align_penalty)
                sent = (mixing.uploads != 0) | (not is_masked(channel, "rows"))
                solved = solved_of_parts(
                    mixing, maps, by_round, channel, sent, list(mixing.uploads[:, None])
                )
                placed = solved.placed(mixing.classes, full.classes)
                said = f"aligned, {plural(len(mixing.rounds), 'round')}, what clients did is undone"
                return _ClientAnswer(placed, rounds, mixing, [*notes, f"{who}: {said}"])
            alignment = align(seen, mixing.uploads, self.align_penalty)
        means = None
        noisy = is_noisy(channel) and knows_class_means(
            observation, mixing.client, int(mixing.rounds[-1])
        )
        if self.prior == "class-mean" or noisy:
            newest = by_round or self._class_means(
                observation,
                mixing,
                self._aux_reps(observation, context, mixing, [int(mixing.rounds[-1])]),
            )
            means = newest[-1] if newest else None
        solved, said = self.solve(
            solver,
            mixing,
            alignment=alignment,
            means=means,
            head=head_of(observation),
            error=encoding_error(channel),
            noises=LOUDEST_FIRST if noisy else noise_ratios(channel),
            centred=noisy,
        )
        placed = solved.placed(mixing.classes, full.classes)
        return _ClientAnswer(placed, rounds, mixing, [*notes, f"{who}: {said}"])

    def _class_means(
        self, observation: Observation, mixing: Mixing, reps: list[Tensor]
    ) -> list[Tensor]:
        """Class means (n, d) of auxiliary images in each round; none without their labels."""
        if observation.aux_labels is None:
            return []
        labels = observation.aux_labels[: self.aux_limit]
        return [class_means(r, labels, mixing.classes) for r in reps]

    def solve(
        self,
        solver: str,
        mixing: Mixing,
        *,
        alignment: RoundAlignment | None = None,
        means: Tensor | None = None,
        head: Tensor | None = None,
        error: float = 0.0,
        noises: tuple[float, ...] | None = None,
        centred: bool = False,
    ) -> tuple[SolvedPrototypes, str]:
        """Prototypes of one client from its mixtures, and in words how.

        Args:
            solver: one of `SOLVERS` but auto.
            alignment: the uploads carried to the last round, for solver aligned.
            means: (n, d) class means that answers are drawn towards, or None.
            head: (C, d) weight of the last head, or None.
            error: standard deviation of what encodings say about the weights used.
            noises: of the uploads over the prototypes' spread, to be tried; None: the usual ones.
            centred: about `means` prototypes are spread around 0, not around a mean to be found.
        """
        weights, uploads = mixing.weights, mixing.uploads
        if alignment is not None:
            uploads = alignment.uploads
        weights, uploads = total_least_squares(weights, uploads, error)
        said = f"{solver}, {plural(len(mixing.rounds), 'round')}"
        along = torch.zeros(len(mixing.classes), uploads.shape[1], dtype=torch.float64)
        if means is not None:
            uploads, along = uploads - weights @ means, means
            said += ", class means as prior"
        fits = head is not None and head.shape[1] == uploads.shape[1]
        if self.head_prior or (self.head_prior is None and solver == "kalman" and fits):
            beside = along_head(head, mixing, uploads)
            uploads, along = uploads - weights @ beside, along + beside
            said += ", head as prior"
        if alignment is not None:
            tried = noises or ALIGNED_NOISES
            solved = solve_aligned(weights, alignment, uploads, tried, centred=centred)
        elif solver == "kalman":
            tried = noises or WALK_NOISES
            solved = random_walk(weights, uploads, mixing.rounds, noises=tried, centred=centred)
        elif solver == STATIC:
            solved = static_prototypes(
                weights, uploads, mixing.rounds, noises=noises, centred=centred
            )
            if len(mixing.rounds) == len(mixing.classes):
                said += ", none to spare: nothing checks the answer"
        elif solver == "ridge":
            solved = ridge(weights, uploads, self.solve_penalty)
        elif solver == "non-negative":
            # the answer itself is not negative, not what is left of it beside a prior
            solved = non_negative(weights, uploads, self.solve_penalty, least=-along)
        else:
            solved = least_squares(weights, uploads)
        vectors = solved.vectors + along
        if self.clamp and bool((mixing.uploads >= 0).all()):
            vectors = vectors.clamp(min=0)
        # weights that were moved to fit the uploads predict them by construction
        return SolvedPrototypes(
            vectors, solved.error, math.nan if error else solved.predicted
        ), said

    def _aux_reps(
        self, observation: Observation, context: Context, mixing: Mixing, rounds: list[int]
    ) -> list[Tensor]:
        return aux_reps(
            observation, context.device, mixing.client, rounds, length=mixing.uploads.shape[1],
            limit=self.aux_limit,
        )  # fmt: skip


def _latest(mixing: Mixing, at: list[int]) -> SolvedPrototypes:
    vectors = mixing.uploads[at]
    return SolvedPrototypes(vectors, vectors.new_zeros(len(at)))


def _empty_answer(mixing: Mixing) -> SolvedPrototypes:
    vectors = mixing.uploads.new_full((len(mixing.classes), mixing.uploads.shape[1]), torch.nan)
    return SolvedPrototypes(vectors, vectors[:, 0])
