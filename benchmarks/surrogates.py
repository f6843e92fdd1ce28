"""Do networks trained to look like a client's extractor give its images away, after SDAR and FORA?

    python benchmarks/surrogates.py --dataset npz:FILE.npz [--seeds 11,12,13] [--steps 20000]
        [--device cuda] [--out FOLDER]

FedAllRep with private starts, ten rounds of `pra:0.1`; the last round's single representations of
the client of most images are attacked, by a server that holds labelled public images, all uploads
and its own broadcasts. `sdar` (Zhu et al., NDSS 2025) trains a surrogate on public images with the
head that the server broadcast, while a discriminator that sees the class tells it from the client.
`fora` (Xu et al., CVPR 2024) needs no labels: a multi-kernel distance of distributions and a
discriminator draw the surrogate to the client. A decoder learns from the surrogate's
representations of public images. `extractor` is the control: the same decoder on the client's own.
Printed are dB over the best floor and how many are found. These are the ideas of the papers, not
their programs: weights and networks are this file's, and its decoder does not see the class.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from experiments import attacking, federation, federation_options, seeds_of
from misses import Case, chosen_of
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.attacks.common.client_messages import received_by
from fedre_privacy.core.artifacts import HeadState, Representations
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.eval import evaluate
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.questions.images import TARGET, ImageTrial
from fedre_privacy.models.families import PRIVATE
from fedre_privacy.models.zoo.base import architectures

WAYS = ("sdar", "fora", "extractor")
TAKEN_FOR = 0.02
"""Weight of the discriminator's loss in `sdar`."""
ALIKE, DISCRIMINATED = 0.8, 0.2
"""Weights of the two losses of `fora`."""
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Widths of the kernels, in multiples of the median distance."""
BATCH = 64


@dataclass(frozen=True)
class Known:
    """What the server holds of one client, on the device.

    Shape: reps (n, d) and labels (n,) of the client; images (m, C, H, W) and classes (m,), public.
    head: weight (C, d) and bias (C,) that the client began the round with.
    """

    reps: Tensor
    labels: Tensor
    images: Tensor
    classes: Tensor
    head: tuple[Tensor, Tensor]


def known_of(case: Case, client: int, device: torch.device) -> Known:
    """Read it off an observation.

    Raises:
        ConfigError: no head was broadcast, or public images have no labels.
    """
    told = case.observation
    round_ = told.targets[0].round
    (upload,) = [u for u in told.uploads if (u.client, u.round) == (client, round_)]
    (sent,) = [a for a in upload.artifacts if isinstance(a, Representations)]
    got = received_by(told, client).get(upload.round, ())
    heads = [a.params for a in got if isinstance(a, HeadState)]
    if told.aux is None or told.aux_labels is None or not heads:
        raise ConfigError("It needs labelled public images and a head that was broadcast.")
    head = heads[0]["weight"].to(device), heads[0]["bias"].to(device)
    parts = (sent.reps, sent.labels, told.aux.float(), told.aux_labels)
    return Known(*(part.to(device) for part in parts), head)


def discriminator(width: int, device: torch.device) -> nn.Sequential:
    """Vectors (n, width) to a logit (n, 1)."""
    return nn.Sequential(
        nn.Linear(width, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2),
        nn.Linear(256, 1),
    ).to(device)  # fmt: skip


def kernel_distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """Squared maximum mean discrepancy by Gaussian kernels of several widths, biased."""
    both = torch.cat([ours, theirs])
    apart = torch.cdist(both, both).square()
    middle = apart.detach().median().clamp(min=1e-12)
    kernel = torch.stack([torch.exp(-apart / (scale * middle)) for scale in SCALES]).mean(0)
    count = len(ours)
    inside = kernel[:count, :count].mean() + kernel[count:, count:].mean()
    distance: Tensor = inside - 2 * kernel[:count, count:].mean()
    return distance


def surrogate(way: str, blank: nn.Module, known: Known, steps: int) -> nn.Module:
    """A network like the client's extractor, trained from random weights."""
    weight, bias = known.head
    seen = weight.shape[1] + (len(weight) if way == "sdar" else 0)
    judge = discriminator(seen, weight.device)
    own = torch.optim.Adam(blank.parameters(), 1e-3)
    others = torch.optim.Adam(judge.parameters(), 1e-3)

    def told(reps: Tensor, classes: Tensor) -> Tensor:
        given = [reps, F.one_hot(classes, len(weight)).to(reps)] if way == "sdar" else [reps]
        logits: Tensor = judge(torch.cat(given, 1))
        return logits

    for _ in range(steps):
        mine = torch.randint(len(known.images), (BATCH,), device=weight.device)
        theirs = torch.randint(len(known.reps), (BATCH,), device=weight.device)
        reps, classes = blank(known.images[mine]), known.classes[mine]
        fooled = F.softplus(-told(reps, classes)).mean()
        if way == "sdar":
            loss = F.cross_entropy(reps @ weight.T + bias, classes) + TAKEN_FOR * fooled
        else:
            distance = kernel_distance(reps, known.reps[theirs])
            loss = ALIKE * distance + DISCRIMINATED * fooled
        own.zero_grad()
        loss.backward()
        own.step()
        real = told(known.reps[theirs], known.labels[theirs])
        judged = F.softplus(-real).mean() + F.softplus(told(reps.detach(), classes)).mean()
        others.zero_grad()
        judged.backward()
        others.step()
    return blank.eval()


def decoder(extract: nn.Module, known: Known, steps: int) -> nn.Sequential:
    """Representations (n, d) to images, learnt from those of public images."""
    channels, height, _ = known.images.shape[1:]
    quarter, width = height // 4, known.reps.shape[1]
    net = nn.Sequential(
        nn.Linear(width, 64 * quarter * quarter), nn.ReLU(),
        nn.Unflatten(1, (64, quarter, quarter)),
        nn.Upsample(scale_factor=2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(64, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, channels, 3, padding=1), nn.Sigmoid(),
    ).to(known.images.device)  # fmt: skip
    with torch.no_grad():
        reps = torch.cat([extract(part) for part in known.images.split(512)])
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(steps):
        rows = torch.randint(len(reps), (BATCH,), device=reps.device)
        loss = F.mse_loss(net(reps[rows]), known.images[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


def measured(case: Case, way: str, steps: int, seed: int, device: torch.device) -> pd.DataFrame:
    """Scores of single targets beside their floors."""
    client = int(case.truth.target_clients[0])
    torch.manual_seed(seed)
    known, started = known_of(case, client, device), time.perf_counter()
    if way == "extractor":
        extract = case.observation.extractors[client, case.observation.targets[0].round].to(device)
    else:
        blank, width = architectures.get("cnn4")().backbone(case.observation.image_shape)
        if width != known.reps.shape[1]:
            raise ConfigError(f"cnn4 has {width} values, the uploads {known.reps.shape[1]}.")
        extract = surrogate(way, blank.to(device).train(), known, steps)
    net = decoder(extract, known, steps)
    targets = case.observation.target_rows()[0].to(device)
    with torch.no_grad():
        images = net(targets).cpu()
    seconds = time.perf_counter() - started
    found = Reconstruction.of(images)
    psnr = {"psnr": metrics.get("psnr")()}
    scores = evaluate(found, case.truth, case.public, metrics=psnr, seed=seed)
    return scores.rows.assign(way=way, seed=seed, seconds=seconds, chance=scores.get("hit1").floor)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = federation_options(
        __doc__, trained=10, targets=8, seeds="11,12,13", out=Path("runs/surrogates")
    )
    made.add_argument("--steps", type=int, default=20_000, help="of a surrogate and of a decoder")
    made.add_argument("--device", default="cpu", help="cpu or cuda")
    made.add_argument("--ways", default=",".join(WAYS), help="comma list")
    return made


def main() -> None:
    """Train, attack, and print a row for each way."""
    asked = parser().parse_args()
    rows = []
    for seed in seeds_of(parser(), asked, []):
        run = federation(
            "fedallrep", seed, asked, record={"keep_every": 1}, model={"init": PRIVATE}
        )
        values = {"target": "representations", "threat": "strong", "attack": {"name": "linear"}}
        evaluation = {"targets": 10_000, "round": asked.trained, "seed": seed}
        trial = prepare_attack(run, attacking({**values, "eval": evaluation}))
        assert isinstance(trial, ImageTrial)
        clients = trial.groups[TARGET].truth.target_clients
        most = clients == clients.mode().values
        case = chosen_of(trial, most.nonzero().squeeze(1)[: asked.targets])
        for way in asked.ways.split(","):
            rows.append(measured(case, way, asked.steps, seed, torch.device(asked.device)))
    table = pd.concat(rows, ignore_index=True)
    table.to_csv(asked.out / "surrogates.csv", index=False)
    for way, part in table.groupby("way", sort=False):
        over = part.psnr - part.psnr_floor
        by_seed = ", ".join(f"{one:+.1f}" for one in over.groupby(part.seed).mean())
        found = f"found {part.hit1.mean():.2f} (guess {part.chance.mean():.2f})"
        floor = f"floor {part.psnr_floor.mean():.1f} dB"
        print(
            f"{way:<10} n {len(part)}, {floor}, over {over.mean():+.2f}"
            f" (by seed {by_seed}), {found}, {part.seconds.mean():.0f} s"
        )


if __name__ == "__main__":
    main()
