"""How many features of single samples does `head-features` read off a head, by size of the batch?

    python benchmarks/head_features.py --out heads.csv [--dataset digits|npz:FILE|tinyimagenet:ZIP]
        [--networks 100,101,102] [--batches 7] [--sizes 2,4,8,9,16,32,64]
        [--local-steps 1,2,4 --lr 0.05 [--frozen [--batch-size 2]]] [--noise 1e-4]

Gradients of mean cross-entropy by the head of a cnn4, untrained and trained, for batches of images
that it was not trained on. With `--local-steps` clients train the whole network by full batches
and upload the head instead: its change is taken for a gradient. With `--frozen` the steps, or
epochs of batches, move the head alone, and the attack is told so. With `--noise` normal noise comes
to the upload, as a share of its root mean square. A row for each batch; a table is printed.
Settings were chosen on networks 1 to 3 and on other images.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from itertools import product

import pandas as pd
import torch
from tools import dataset_of, options
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.gradients.head_features import (
    HeadFeatures,
    features_of_head_change,
    features_of_head_gradient,
)
from fedre_privacy.data.base import datasets, resize
from fedre_privacy.models.zoo.base import architectures

STEPS = 150
"""Steps of training, of 32 images, with a step size of .05."""
WITHIN = 0.01
"""Relative error of features that count as found."""


class Network(nn.Module):
    """A cnn4: images (n, C, H, W) to features (n, 512) to logits."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.extractor, width = architectures.get("cnn4")().backbone(shape)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes)."""
        logits: Tensor = self.head(self.extractor(images))
        return logits


def descend(model: nn.Module, images: Tensor, labels: Tensor, lr: float) -> None:
    """One step of training on a batch."""
    gradient = torch.autograd.grad(F.cross_entropy(model(images), labels), [*model.parameters()])
    with torch.no_grad():
        for value, slope in zip(model.parameters(), gradient, strict=True):
            value -= lr * slope


def uploaded(model: Network, images: Tensor, labels: Tensor, steps: int, lr: float) -> list[Tensor]:
    """Gradient of the head's weight and bias, or the change by local steps as one."""
    if not steps:
        loss = F.cross_entropy(model(images), labels)
        return list(torch.autograd.grad(loss, [model.head.weight, model.head.bias]))
    after = copy.deepcopy(model)
    for _ in range(steps):
        descend(after, images, labels, lr)
    both = zip(model.head.parameters(), after.head.parameters(), strict=True)
    return [((old - new) / (lr * steps)).detach() for old, new in both]


def trained_head(
    head: nn.Linear, features: Tensor, labels: Tensor, epochs: int, batch_size: int, lr: float,
    draws: torch.Generator,
) -> tuple[nn.Linear, int]:  # fmt: skip
    """A copy of a head that was trained over features (n, d), and in how many steps."""
    after, steps = copy.deepcopy(head), 0
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=draws).split(batch_size):
            descend(after, features[rows], labels[rows], lr)
            steps += 1
    return after, steps


def noisy(parts: Sequence[Tensor], noise: float, draws: torch.Generator) -> list[Tensor]:
    """Tensors with normal noise, as a share of the root mean square of them all."""
    size = torch.cat([part.flatten() for part in parts]).square().mean().sqrt()
    return [part + noise * size * torch.randn(part.shape, generator=draws) for part in parts]


def read(
    model: Network,
    images: Tensor,
    labels: Tensor,
    seed: int,
    steps: int,
    how: argparse.Namespace,
) -> HeadFeatures:
    """What the attack says of a batch."""
    draws, head = torch.Generator().manual_seed(seed), model.head
    tries = attacks.get("head-features")().tries
    if not how.frozen:
        sent = uploaded(model, images, labels, steps, how.lr)
        weight, bias = noisy(sent, how.noise, draws)
        return features_of_head_gradient(
            weight, bias, head.weight, head.bias, draws, tries=tries, count=len(labels)
        )
    with torch.no_grad():
        features = model.extractor(images)
    size = how.batch_size or len(labels)
    after, taken = trained_head(head, features, labels, steps, size, how.lr, draws)
    before = head.weight.detach(), head.bias.detach()
    moved = [new.detach() - old for new, old in zip(after.parameters(), before, strict=True)]
    moved = noisy(moved, how.noise, draws) if how.noise else moved
    return features_of_head_change(
        before,
        (before[0] + moved[0], before[1] + moved[1]),
        draws,
        tries=tries,
        lr=how.lr,
        steps=taken,
        count=len(labels),
    )


def measured(
    model: Network,
    images: Tensor,
    labels: Tensor,
    seed: int,
    steps: int,
    how: argparse.Namespace,
) -> dict[str, float]:
    """What the attack finds of a batch, what of it is wrong, and what the class means would."""
    with torch.no_grad():
        true = model.extractor(images).double()
    begun = time.process_time()
    found = read(model, images, labels, seed, steps, how)
    seconds = time.process_time() - begun
    lengths = true.norm(dim=1)
    gaps = (found.features[:, None] - true).norm(dim=2) / lengths
    named = labels[gaps.argmin(1)] == found.labels if len(gaps) else found.labels
    mean = torch.stack([true[labels == label].mean(0) for label in labels.tolist()])
    return {
        "rank": found.rank,
        "certified": len(gaps),
        "wrong": int((gaps.amin(1) > WITHIN).sum()) if len(gaps) else 0,
        "other class": int((~named).sum()) if len(gaps) else 0,
        "found": int((gaps.amin(0) <= WITHIN).sum()) if len(gaps) else 0,
        "class means": int(((mean - true).norm(dim=1) <= WITHIN * lengths).sum()),
        "seconds": round(seconds, 3),
    }


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each network, kind of upload and size of batch; shares of all samples."""
    groups = rows.groupby(["network", "local steps", "noise", "images"], sort=False)
    made = groups.agg(
        n=("found", "size"),
        samples=("images", "sum"),
        found=("found", "sum"),
        certified=("certified", "sum"),
        wrong=("wrong", "sum"),
        other=("other class", "sum"),
        means=("class means", "sum"),
        seconds=("seconds", "mean"),
    )
    made["found, share"] = made.found / made.samples
    made["class means, share"] = made.pop("means") / made.samples
    return made


def load(text: str, per_class: int | None) -> tuple[Tensor, Tensor, int, int]:
    """Images (n, C, 32, 32) in [0, 1], labels (n,), classes, and how many are for training.

    The rest, the original test images or two fifths, are victims'.
    """
    section = dataset_of(text, per_class)
    data = datasets.get(section.pop("name"))(**section).load()
    split = data.num_train if data.num_train < len(data) else len(data) * 3 // 5
    images = resize(data.images, 32).float() / 255
    return images, data.labels, len(data.classes), split


def numbers(text: str) -> list[int]:
    """Whole numbers of a comma list."""
    return [int(one) for one in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = options(__doc__)
    made.add_argument("--dataset", default="digits", help="its name, npz:FILE, tinyimagenet:ZIP")
    made.add_argument("--per-class", type=int, help="images of each class that are read")
    made.add_argument("--networks", default="100,101,102", help="seeds, comma list")
    made.add_argument("--batches", type=int, default=7, help="of each network and size")
    made.add_argument("--sizes", default="2,4,8,9,16,32,64", help="images of a batch, comma list")
    made.add_argument("--local-steps", default="0", help="comma list; 0: one gradient")
    made.add_argument("--lr", type=float, default=0.05, help="step size of local steps")
    made.add_argument("--frozen", action="store_true", help="local steps move the head alone")
    made.add_argument("--batch-size", type=int, default=0, help="of --frozen; 0: all images")
    made.add_argument("--noise", type=float, default=0.0, help="share of the upload's values")
    made.add_argument("--out", default="heads.csv", help="rows of batches")
    return made


def main() -> None:
    """Run as the command line says and print the table."""
    made = parser()
    given = made.parse_args()
    if given.frozen and 0 in numbers(given.local_steps):
        made.error("--frozen needs --local-steps of 1 and more")
    images, labels, classes, split = load(given.dataset, given.per_class)
    rows = []
    for seed, steps in product(numbers(given.networks), (0, STEPS)):
        torch.manual_seed(seed)
        model = Network((*images.shape[1:],), classes)
        for _ in range(steps):
            batch = torch.randint(split, (32,))
            descend(model, images[batch], labels[batch], 0.05)
        sizes = product(numbers(given.local_steps), numbers(given.sizes), range(given.batches))
        for local, size, place in sizes:
            if local and size >= classes:
                continue
            draw = torch.Generator().manual_seed(1000 * seed + place)
            mine = split + torch.randperm(len(labels) - split, generator=draw)[:size]
            one = measured(model, images[mine], labels[mine], 1000 * seed + place, local, given)
            name = "trained" if steps else "untrained"
            said = {"network": name, "seed": seed, "local steps": local, "noise": given.noise}
            rows.append({**said, "images": size, **one})
        pd.DataFrame(rows).to_csv(given.out, index=False)
    print(summary(pd.DataFrame(rows)).round(2).to_string())


if __name__ == "__main__":
    main()
