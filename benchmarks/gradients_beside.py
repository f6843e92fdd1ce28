"""How long until gradient matching is as near as the public implementation of Inverting Gradients?

Both attack the same gradients of the same networks with the same labels, in turn, on one core:
theirs for a number of iterations, ours for growing ones. Printed are processor seconds and PSNR of
each, and ours with the fewest iterations that is at least as near, as a ratio of seconds. Images
are those that no setting of ours was chosen on (see gradients.py).

Theirs is read from a checkout that you name (github.com/JonasGeiping/invertinggradients); its code
runs, so name one that you trust. Its settings are the published ones: signed gradients of Adam,
step 0.1 that falls in three steps, boxed images, total variation 0.1.

    python benchmarks/gradients_beside.py --data FILE.npz --public FOLDER [--models cnn4,resnet18]

Without --public, ours alone is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from gradients import BN, Images, Pairs, batches, gradient, load, observe, scores, spread, victims
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context, attacks
from fedre_privacy.core.artifacts import GradientState
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import seeded_generators

CONFIG = {
    "signed": True,
    "boxed": True,
    "cost_fn": "sim",
    "indices": "def",
    "weights": "equal",
    "lr": 0.1,
    "optim": "adam",
    "restarts": 1,
    "total_variation": 0.1,
    "init": "randn",
    "filter": "none",
    "lr_decay": True,
    "scoring_choice": "loss",
}
"""As its paper has it, but for the iterations."""
APART = 1000
"""Between the seeds of a victim's starts."""


def theirs(library: Any, model: nn.Module, pairs: Pairs, iterations: int, seed: int = 0) -> Tensor:
    """Answers (N, C, H, W) of the public implementation, one victim after another."""
    mean, std = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    found = []
    for number, (images, labels) in enumerate(pairs):
        sent = list(gradient(model, images, labels).values())
        with (
            seeded_generators(number + APART * seed, "public start"),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            made = library.GradientReconstructor(
                model, (mean, std), {**CONFIG, "max_iterations": iterations}, len(labels)
            )
            answers, _ = made.reconstruct(sent, labels, img_shape=tuple(images.shape[1:]))
        found.append(answers.clamp(0, 1))
    return torch.cat(found)


def ours(model: nn.Module, pairs: Pairs, iterations: int, seed: int = 0) -> Tensor:
    """Answers (N, C, H, W) of `inverting-gradients`, with the labels given."""
    sent = [GradientState(gradient(model, x, y)) for x, y in pairs]
    attack = attacks.get("inverting-gradients")(bn=BN, steps=iterations)
    found = attack(observe(model, sent, len(pairs[0][1])), Context(seed=seed))
    assert isinstance(found, Reconstruction)
    return found.images


def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """What a search answers, and its processor seconds."""
    started = time.process_time()
    answers = work()
    return answers, time.process_time() - started


def from_starts(
    work: Callable[[int], Tensor], starts: int, pairs: Pairs, data: Images
) -> tuple[Tensor, float]:
    """PSNR of each image (n,), mean over starts, and the processor seconds of all starts."""
    found = [timed(lambda seed=seed: work(seed)) for seed in range(starts)]  # type: ignore[misc]
    db = torch.stack([scores(answers, pairs, data)["psnr"] for answers, _ in found])
    return db.mean(0), sum(seconds for _, seconds in found)


def compare(
    name: str, model: nn.Module, data: Images, library: Any, chosen: argparse.Namespace, size: int
) -> None:
    """Print what both reach, and the ratio of seconds at equal PSNR; ours alone without theirs."""
    pairs = batches(data, chosen.images if size == 1 else chosen.batches, size)
    many = f", {chosen.starts} starts each" if chosen.starts > 1 else ""
    print(f"{name}, {len(pairs)} batches of {size}, n {len(pairs) * size}{many}", flush=True)
    wanted, seconds = None, 0.0
    if library is not None:

        def public(seed: int) -> Tensor:
            return theirs(library, model, pairs, chosen.iterations, seed)

        wanted, seconds = from_starts(public, chosen.starts, pairs, data)
        print(
            f"    public, {chosen.iterations} iterations: {float(wanted.mean()):.2f} dB "
            f"({spread(wanted, size)}), {seconds:.1f} s",
            flush=True,
        )
    for steps in map(int, chosen.steps.split(",")):

        def mine(seed: int, steps: int = steps) -> Tensor:
            return ours(model, pairs, steps, seed)

        db, own = from_starts(mine, chosen.starts, pairs, data)
        line = f"    ours, {steps} iterations: {float(db.mean()):.2f} dB ({spread(db, size)}), "
        line += f"{own:.1f} s"
        if wanted is None:
            print(line, flush=True)
            continue
        less = db - wanted
        print(
            f"{line}; less the public {float(less.mean()):+.2f} ({spread(less, size)})", flush=True
        )
        if float(db.mean()) >= float(wanted.mean()):
            print(f"    as near in {own / seconds:.2f} of its time", flush=True)
            return
    if wanted is not None:
        print("    not as near in these iterations", flush=True)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--data", required=True, metavar="FILE.npz")
    made.add_argument("--public", type=Path, metavar="FOLDER", help="a checkout of theirs")
    made.add_argument("--models", default="cnn4,cnn4-trained", help="as gradients.py takes them")
    made.add_argument("--warm-up", type=int, default=400, help="steps that -trained models train")
    made.add_argument("--training", default="", help="image folder or .zip they train on")
    made.add_argument("--iterations", type=int, default=200, help="of theirs")
    made.add_argument("--steps", default="25,50,75,100,150,200", help="of ours, growing")
    made.add_argument("--images", type=int, default=8, help="victims of one image")
    made.add_argument("--batches", type=int, default=5, help="victims of --size images")
    made.add_argument("--starts", type=int, default=1, help="of both, whose scores are averaged")
    made.add_argument("--sizes", default="1,8", help="images of a victim")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare on every network and batch size."""
    chosen = parser().parse_args(arguments)
    torch.set_num_threads(1)
    library = None
    if chosen.public is not None:
        if not (chosen.public / "inversefed").is_dir():
            parser().error(f"{chosen.public} holds no folder 'inversefed'; name a checkout of it")
        sys.path.insert(0, str(chosen.public))
        library = importlib.import_module("inversefed")
    data = load(chosen.data)
    for name, model in victims("", data, chosen):
        for size in map(int, chosen.sizes.split(",")):
            compare(name, model, data, library, chosen, size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
