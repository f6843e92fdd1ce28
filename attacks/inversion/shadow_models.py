"""Copies of a client ("shadows") that the server trains on auxiliary images from a known start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.channels import bounded_each, row_as_compared
from fedre_privacy.attacks.common.class_outputs import ClassOutputs
from fedre_privacy.attacks.common.frozen_modules import frozen_copy, outputs
from fedre_privacy.attacks.common.tiling import Tick
from fedre_privacy.attacks.common.upload_features import class_counts_of, classes_of
from fedre_privacy.core.artifacts import Artifact, ClassLogits, Prototypes
from fedre_privacy.core.channels import NOTHING, Channel
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.core.types import Knowledge, Observation, Upload

from .class_means import ClassMeans, Mixes
from .map_jobs import LEAST_AUX

CONCENTRATION = 0.5
"""Of the Dirichlet distribution that a shadow's class shares are drawn from where no upload tells
how many images a class has."""

STAGES, BEST, SPREAD = 3, 4, 0.5
"""Of the search for class shares: how often it draws, how many of the best are kept, and by how
much logarithms of shares then differ from theirs."""
AFTER_COPIES = 1_000
"""Number of the first copy of the search; those that are answered by have smaller ones."""

Owner = tuple[int, int]
"""A client and a round."""


@dataclass(frozen=True, kw_only=True)
class ShadowModelAttack:
    """What an attack needs that trains shadow models, and where these begin."""

    needs: ClassVar[frozenset[Knowledge]] = frozenset(
        {
            Knowledge.UPLOADS,
            Knowledge.HEAD,
            Knowledge.TRAINING,
            Knowledge.AUX_DATA,
            Knowledge.ARCHITECTURE,
            Knowledge.INITIAL_MODEL,
        }
    )

    start: str = knob(
        "known",
        help="weights that shadow models begin with: those before the first round, or random "
        "ones of the architecture",
        choices=("known", "random"),
    )

    @property
    def required(self) -> frozenset[Knowledge]:
        """Knowledge that it cannot do without: of random weights the initial ones are not."""
        unknown = {Knowledge.INITIAL_MODEL} if self.start == "random" else set()
        return self.needs - unknown


def require_shadow_models(observation: Observation, *, random: bool) -> None:
    """Refuse an observation of which no shadow model can be trained.

    Raises:
        IncompatibleError: it says what is absent, and the next command.
    """
    count = 0 if observation.aux is None else len(observation.aux)
    if count < LEAST_AUX or observation.aux_labels is None:
        raise IncompatibleError(
            f"A shadow model trains on at least {LEAST_AUX} auxiliary images with labels; {count} "
            "were given.",
            next_step="Use a data set with more held-out images.",
        )
    if observation.rehearse is None or observation.training is None:
        raise IncompatibleError(
            "Nothing is known of how these clients train, so no shadow model can be trained.",
            next_step="Attack a run that was trained here: fedre-attack RUN --threat public-init.",
        )
    clients = {upload.client for upload in observation.targets}
    unknown = sorted(clients - {client for client, _ in observation.initial})
    if unknown and not random:
        raise IncompatibleError(
            f"The initial models of clients {', '.join(map(str, unknown[:8]))} are not known.",
            next_step="Use --threat public-init, or random ones: --threat no-extractor --set "
            "attack.start=random.",
        )


@dataclass(frozen=True, eq=False)
class UploadComparison:
    """A client's uploads of a round, and what a copy of it makes of images to compare with them.

    Mean outputs of classes (`ClassLogits`) stand as prototypes of what `ClassOutputs` makes of
    them; what clients declare to do to them is not repeated.

    Args:
        sent: the uploads.
        channel: declared steps that they went through.
        outputs: how outputs are compared; None: representations are.
    """

    sent: list[Artifact]
    channel: Channel
    outputs: ClassOutputs | None

    @classmethod
    def by(cls, observation: Observation, owner: Owner) -> UploadComparison:
        """What the client uploaded in the round."""
        sent = upload_of(observation, owner)
        tables = [one for one in sent if isinstance(one, ClassLogits)]
        if not tables:
            return cls(sent, observation.channel, None)
        how = ClassOutputs.of(torch.cat([one.outputs for one in tables]))
        rows = [Prototypes(how.features(one.outputs), one.labels) for one in tables]
        return cls([*rows], NOTHING, how)

    def made(self, copy: nn.Module, images: Tensor) -> Tensor:
        """What a copy makes of each image (n, C, H, W), (n, d)."""
        if self.outputs is None:
            return bounded_each(self.channel, outputs(copy.get_submodule("extractor"), images))
        return self.outputs.features(self.outputs.made(outputs(copy, images)))


def class_shares(
    observation: Observation,
    context: Context,
    owner: Owner,
    *,
    told: Tensor | None = None,
    tries: int = 0,
    random: bool = False,
) -> Tensor | None:
    """Class shares (g, C) that a client may have, equally likely; None where nothing tells them.

    They are not divided by their sums: counts are returned as they are.

    Args:
        told: shares (C,) where its uploads do not count them; None: sought where class means or
            mixtures of them were uploaded.
        tries: shadow models of each stage of that search; 0: no search.
        random: begin with random weights; then nothing is sought.
    """
    sent = upload_of(observation, owner)
    counted = class_counts_of(sent, observation.num_classes, observation.channel)
    if counted is not None:
        return counted[None]
    if told is not None:
        return told[None]
    known = UploadComparison.by(observation, owner)
    mixes = Mixes.uploaded(known.sent, observation.num_classes, known.channel)
    if mixes is None or not tries or random:
        return None
    return _ShadowTraining(observation, context, owner, random).sought(known, mixes, tries)


def train_shadow_models(
    observation: Observation,
    context: Context,
    owner: Owner,
    count: int,
    shares: Tensor | None,
    *,
    random: bool = False,
    tick: Tick | None = None,
) -> list[nn.Module]:
    """Copies of a client that were trained on auxiliary images, as they are after the round.

    Args:
        count: how many.
        shares: of its classes (g, C), equally likely, of which the mean is taken; None: each copy
            draws its own.
        random: begin with random weights in place of the initial model.
        tick: told of each copy that is done.
    """
    train = _ShadowTraining(observation, context, owner, random)
    share = None if shares is None else shares.mean(0)
    made = []
    for number in range(count):
        made.append(train(number, share))
        if tick is not None:
            tick(number, torch.full((1,), torch.nan))
    return made


@dataclass(frozen=True, eq=False)
class _ShadowTraining:
    """A client's training up to a round, on auxiliary images of some class shares."""

    observation: Observation
    context: Context
    owner: Owner
    random: bool

    def __call__(self, number: int, share: Tensor | None) -> nn.Module:
        """The model after the round.

        Args:
            number: of the copy; copies of other numbers draw anew.
            share: weights of classes (C,); None: drawn among those that the client holds.
        """
        seen, device = self.observation, self.context.device
        assert seen.aux is not None and seen.aux_labels is not None
        assert seen.training is not None and seen.rehearse is not None
        client, round = self.owner
        sent_in = {u.round for u in seen.uploads if u.client == client} - {0} | {round}
        where = {"client": client, "round": round, "index": number}
        rng = stream(self.context.seed, "shadow", **where)
        seed = derive(self.context.seed, "rehearsal", **where)
        if share is None:
            share = classes_drawn(seen, upload_of(seen, self.owner), rng)
        index = _draw_stand_ins(seen, with_images(seen, share), seen.training.sizes[client], rng)
        start = seen.rehearse.blank(client, seed) if self.random else seen.initial[client, 0]
        after = seen.rehearse(
            client,
            frozen_copy(start, device),
            seen.aux[index],
            seen.aux_labels[index],
            [one for one in sorted(sent_in) if one <= round],
            seed,
        )
        return frozen_copy(after[round], device)

    def sought(self, known: UploadComparison, mixes: Mixes, tries: int) -> Tensor | None:
        """Shares of classes (`BEST`, C) under which copies make rows like those uploaded.

        Shares are drawn, then drawn anew about the best of them; the best of all are returned.
        None where there is nothing to compare. Copies are bounded and masked as the client
        declares to be.
        """
        seen = self.observation
        assert seen.aux is not None and seen.aux_labels is not None
        labels = seen.aux_labels.cpu()
        mixes = mixes.among(labels)
        classes = mixes.classes
        if len(classes) < 2:
            return None
        held = torch.isin(labels, classes)
        pictures = seen.aux[held].float().to(self.context.device)
        rng = stream(self.context.seed, "class shares", client=self.owner[0], round=self.owner[1])
        best: list[tuple[float, Tensor]] = []
        for stage in range(STAGES):
            about = [share for _, share in best]
            for one in range(tries):
                share = torch.zeros(seen.num_classes, dtype=torch.float64)
                if about:
                    spread = SPREAD * torch.randn(len(share), generator=rng, dtype=torch.float64)
                    share = about[one % len(about)] * spread.exp()
                else:
                    share[classes] = dirichlet(len(classes), rng)
                share = share / share.sum()
                copy = self(AFTER_COPIES + stage * tries + one, share)
                made = mixes.of(ClassMeans.of(known.made(copy, pictures), labels[held]))
                missed = row_as_compared(known.channel, made, mixes.rows) - mixes.rows
                best.append((float(missed.square().sum().nan_to_num(torch.inf)), share))
            best = sorted(best, key=lambda found: found[0])[:BEST]
        return torch.stack([share for _, share in best])


def dirichlet(count: int, rng: torch.Generator) -> Tensor:
    """Weights (count,) of a Dirichlet distribution, before they are divided by their sum."""
    shape = torch.full((count,), CONCENTRATION, dtype=torch.float64)
    return torch._standard_gamma(shape, generator=rng).clamp(min=1e-12)


def _draw_stand_ins(
    observation: Observation, share: Tensor, size: int, rng: torch.Generator
) -> Tensor:
    """Numbers of auxiliary images (size,) that stand in for a client's own.

    Args:
        share: weights of classes (C,).
    """
    assert observation.aux_labels is not None
    labels = observation.aux_labels.cpu()
    classes = torch.multinomial(share, size, replacement=True, generator=rng)
    picked = torch.rand(size, generator=rng)
    out = torch.empty(size, dtype=torch.int64)
    for label in classes.unique().tolist():
        pool, where = (labels == label).nonzero().flatten(), classes == label
        out[where] = pool[(picked[where] * len(pool)).long()]
    return out


def classes_drawn(
    observation: Observation, sent: Sequence[Artifact], rng: torch.Generator
) -> Tensor:
    """Weights of classes (C,) for a client: of those that its uploads name, as counted or drawn.

    Classes without an auxiliary image weigh nothing.
    """
    counted = class_counts_of(sent, observation.num_classes, observation.channel)
    if counted is not None:
        return with_images(observation, counted)
    share = classes_of(sent, observation.num_classes, observation.channel).double()
    if bool(share.any()):
        share[share > 0] = dirichlet(int(share.sum()), rng)
    else:
        share += 1.0
    return with_images(observation, share)


def with_images(observation: Observation, share: Tensor) -> Tensor:
    """Weights of classes (C,) without those that no auxiliary image has, and never all zero."""
    assert observation.aux_labels is not None
    held = torch.bincount(observation.aux_labels.cpu(), minlength=len(share))[: len(share)]
    left = share.double().masked_fill(held == 0, 0.0)
    return left if float(left.sum()) > 0 else held.double()


def upload_of(observation: Observation, owner: Owner) -> list[Artifact]:
    """What the client uploaded in the round; where that is not known, the targets."""
    for uploads in (observation.uploads, observation.targets):
        found: list[Upload] = [u for u in uploads if (u.client, u.round) == owner]
        if found:
            return [artifact for upload in found for artifact in upload.artifacts]
    return []
