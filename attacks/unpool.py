"""From class statistics to the single representations behind them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.channels import LeastCount, NoisySums, Shrinkage, StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredRepresentations
from fedre_privacy.core.rng import derive
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .statistics.declared import steps_used
from .statistics.decomposition import ClassAnswer, take_apart


@attacks.register("unpool")
@dataclass(frozen=True, kw_only=True)
class Unpool(Attack):
    """Take the mean and covariance of a class apart into the representations of its images.

    Mean and covariance of n images leave a rotation in n - 1 dimensions open and nothing else: the
    representations are the corners of a regular simplex of known size in a known span. Two images
    are its ends. Of more, representations behind a ReLU are non-negative and often zero, so each is
    a corner of the non-negative part of the span, and linear programs find these. A covariance that
    all classes of a client share is treated alike, in one span. Mean and covariance may be rounded,
    noisy, divided by n - 1, or shrunk towards a multiple of the identity. Declared shrinkage is
    undone, declared noise is expected, and samples of classes that were left out are counted by the
    rank of a second moment.

    A corner of three or more images is answered if it lies on the sphere, which nothing forces it
    to. It is certified if it is zero in eight coordinates more than any corner is, agrees with the
    others, and errors expected from what the statistics leave unexplained are under 1 %. One image
    is its class's mean. Of diagonal and
    spherical covariances nothing but single images is answered; the notes say what is left open.

    Shape:      means (m, d), covariance (d, d) each, diagonal or shared; vectors (N, d)
    Needs:      UPLOADS
    Recovers:   representations of single images
    Cost:       an eigendecomposition (d x d) and about n linear programs with n - 1 unknowns and d
                inequalities a class: .2 s for 8 images, 4 s for 32 (d = 1,280, one CPU core)
    Reference:  this package's own; non-negative independent components: Plumbley, 2003; linear
                programs: Huangfu, Hall, Parallelizing the dual revised simplex method, 2018.
    """

    when_to_use = "class means with covariances: single representations, before an attack on images"
    consumes = (ClassStatistics,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "representations"
    answers = "representations"
    measured_on = ("class_statistics",)
    assumes = "representations of three and more images are not negative and often zero (ReLU)"
    suite = (SuiteEntry(ClassStatistics, "strong", place=10),)

    adapts_to = {"statistics": (NoisySums, Shrinkage, LeastCount)}

    tries: int = knob(20, help="linear programs for each image of a class, at most", ge=1)
    most: int = knob(
        64, help="images of a class, or of all that share a covariance, tried at most", ge=1
    )

    def adapts(self, observation: Observation) -> StepsAt:
        return steps_used(observation, super().adapts(observation))

    def run(self, observation: Observation, context: Context) -> RecoveredRepresentations:
        found: list[tuple[int, int, ClassAnswer]] = []
        notes: list[str] = []
        for upload in observation.targets:
            seed = derive(context.seed, "unpool", client=upload.client, round=upload.round)
            for sent in upload.artifacts:
                if not isinstance(sent, ClassStatistics):
                    continue
                wrong = sent.problems()
                if wrong:
                    notes.append(f"client {upload.client}: {wrong[0]}")
                    continue
                steps = observation.channel.statistics
                answers = take_apart(
                    sent, seed % 2**63, tries=self.tries, most=self.most, steps=steps
                )
                found += [(upload.client, upload.round, one) for one in answers]
                notes += [f"client {upload.client}, {one.note}" for one in answers]
        if not found:
            raise IncompatibleError(
                "No attacked client has class statistics that can be read.", *notes[:3],
                next_step="Attack another round, or another run.",
            )  # fmt: skip
        sizes = torch.tensor([len(one.vectors) for *_, one in found])

        def spread(values: list[int]) -> torch.Tensor:
            return torch.tensor(values).repeat_interleave(sizes)

        return RecoveredRepresentations(
            vectors=torch.cat([torch.from_numpy(one.vectors) for *_, one in found]).float(),
            clients=spread([client for client, *_ in found]),
            labels=spread([one.label for *_, one in found]),
            rounds=spread([round for _, round, _ in found]),
            expected_error=torch.cat(
                [torch.from_numpy(one.expected_error) for *_, one in found]
            ).float(),
            certified=torch.cat([torch.from_numpy(one.certified) for *_, one in found]),
            notes=tuple(notes),
        )
