"""How fast is attacking many targets at once, and what keeps it from being faster?

ratio    the same searches (same starts, same steps) one after another and in one batch, taking
         turns in one process: ratios hold on a noisy machine where single times do not. One after
         another is a plain loop with all threads that the machine has.
limits   one step of one tile: floating-point operations, bytes that its operations read and write,
         and the share that it reaches of the rates measured for a matrix product and a copy
memory   the peak of whole attacks over the number of targets, each in a process of its own
profile  where the time of a step goes
stacking the two ways to compute many networks as one
whole    one attack from beginning to end, and when half of its targets reach a fixed match
decoder  updates of a decoder's network on the pairs of many extractors: a loop over the extractors
         of each batch, with all threads, and the pairs of all in one pool; same pairs, same start

Operations are counted by torch's flop counter on the step whose convolutions are written as matrix
products (it counts grouped convolutions several times over). Bytes are the sizes of all operands
and results of every operation but views: what would move if nothing stayed in a cache, so more
than moves. The nearer limit is said to bound the step, or neither where both are further than four
times away. On a CPU, limits and profile are of one core and its tile of eight.

Usage: python benchmarks/inversion.py [PART ...] [--quick] [--targets 8,16] [--device cuda]
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import tools
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.frozen_modules import frozen_copy
from fedre_privacy.attacks.common.objectives import OBJECTIVES
from fedre_privacy.attacks.common.tiles import CPU_TILE
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.inversion import decoder_net, dip_net
from fedre_privacy.attacks.inversion import search_settings as inversion
from fedre_privacy.attacks.inversion.decoder_net import (
    DecoderTraining,
    Examples,
    Pool,
    Refiner,
    train_refiner,
)
from fedre_privacy.attacks.inversion.gradient_descent import Search, fit_tile
from fedre_privacy.core.artifacts import Representations
from fedre_privacy.core.cuda_graphs import capture_for
from fedre_privacy.core.events import Event
from fedre_privacy.core.memory import peak_bytes
from fedre_privacy.core.outcomes import Outcome, Reconstruction
from fedre_privacy.core.rng import seeded_generators, stream
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.core.units import human_bytes
from fedre_privacy.data.photos import Photos
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.threats.base import threats

PARTS = ("ratio", "limits", "memory", "profile", "stacking", "whole", "decoder")
EXTRACTORS, PAIRS = 10, 200
"""Of the decoder part, and the pairs of each."""
FIXED_MATCH = 1e-3
"""Of the whole part: the relative squared distance of representations that is waited for."""
GROUPS = {
    "convolutions": ("conv",),
    "normalisation": ("norm",),
    "matrix products": ("mm", "::linear", "attention", "gemm"),
    "padding, resizing": ("pad", "upsample"),
    "copies, layout": ("copy_", "cat", "clone", "contiguous", "Memcpy"),
    "optimiser": ("foreach", "multi_tensor", "lerp_", "addcmul", "addcdiv", "sqrt"),
}


def observation(count: int, size: int, architecture: str, device: torch.device) -> Observation:
    """Representations of `count` photograph crops through an untrained extractor."""
    data = Photos(size=size, per_photo=max(2, count // 4)).load()
    images = data.floats(torch.arange(0, len(data), max(1, len(data) // count))[:count])
    with seeded_generators(0, "benchmark"):
        model = build_model(ModelSettings(name=architecture), 0, data.image_shape, 10).eval()
    with torch.no_grad():
        reps = torch.cat([model.extractor(piece) for piece in images.split(32)])
    upload = Upload(0, 1, (Representations(reps, torch.zeros(count, dtype=torch.int64)),))
    return Observation(
        threat=threats.get("fedre-paper"),
        targets=(upload,),
        uploads=(),
        broadcasts=(),
        extractors={(0, 1): model.extractor},
        image_shape=data.image_shape,
        num_classes=10,
    )


def one_by_one(attack: DeepImagePrior, obs: Observation, context: Context, count: int) -> Tensor:
    """The plain way: a loop over targets, each with a network and an optimiser of its own."""
    prior: Any = attack.prior_for(obs.image_shape, context.device)
    prior = replace(prior, net=replace(prior.net, stacking="grouped"))
    extract = frozen_copy(obs.extractors[0, 1], context.device)
    rows, owners = obs.target_rows()
    seeds = inversion.seeds_for(owners, context.seed, 1)
    return torch.cat(
        [
            fit_tile(
                prior,
                extract,
                row[None].to(context.device),
                OBJECTIVES[attack.objective],
                attack.budget,
                seeds=[seed],
            ).fit
            for row, seed in list(zip(rows, seeds, strict=True))[:count]
        ]
    )


def timed(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds, after one run that does not count."""
    taken = []
    for _ in range(repeats + 1):
        tools.wait(device)
        started = time.perf_counter()
        work()
        tools.wait(device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def settings(chosen: argparse.Namespace) -> list[tuple[str, int]]:
    """Extractors and sizes."""
    return [
        (a, s) for a in chosen.architectures.split(",") for s in map(int, chosen.sizes.split(","))
    ]


def ratio(chosen: argparse.Namespace, device: torch.device) -> None:
    """Print target steps per second, one after another and in one batch, and what both reached."""
    print(
        f"{'extractor':<11}{'px':>4}{'targets':>9}{'loop it/s':>11}{'batch it/s':>12}{'ratio':>8}"
        f"{'match: loop':>14}{'batch':>9}"
    )
    attack = DeepImagePrior(steps=chosen.steps, precision=chosen.precision)
    context = Context(device=device)
    for architecture, size in settings(chosen):
        for count in map(int, chosen.targets.split(",")):
            obs = observation(count, size, architecture, device)
            first = observation(min(count, CPU_TILE), size, architecture, device)
            attack(first, context)
            looped, loops, batches = min(count, chosen.loop), [], []
            for _ in range(chosen.repeats):
                started = time.perf_counter()
                alone = one_by_one(attack, obs, context, looped)
                middle = time.perf_counter()
                batch = attack(obs, context)
                loops.append((middle - started) / looped)
                batches.append((time.perf_counter() - middle) / count)
            ratios = [a / b for a, b in zip(loops, batches, strict=True)]
            rates = [chosen.steps / statistics.median(taken) for taken in (loops, batches)]
            print(
                f"{architecture:<11}{size:>4}{count:>9}{rates[0]:>11.0f}{rates[1]:>12.0f}"
                f"{statistics.median(ratios):>8.2f}"
                f"{float(alone.mean()):>14.4f}{float(batch.fit[:looped].mean()):>9.4f}",
                flush=True,
            )


def search_for(
    attack: DeepImagePrior,
    architecture: str,
    size: int,
    rows: int,
    device: torch.device,
    stacking: str | None = None,
) -> Search:
    """One tile that has made its first step."""
    obs = observation(rows, size, architecture, device)
    prior: Any = attack.prior_for(obs.image_shape, device)
    if stacking:
        prior = replace(prior, net=replace(prior.net, stacking=stacking))
    parameters, constants = prior.start([torch.Generator().manual_seed(i) for i in range(rows)])
    search = Search(
        prior,
        frozen_copy(obs.extractors[0, 1], device),
        OBJECTIVES[attack.objective],
        attack.budget,
        [p.to(device).requires_grad_() for p in parameters],
        [c.to(device) for c in constants],
        obs.target_rows()[0].to(device),
        capture_for(device),
    )
    search.turn_to(0)
    search.step()
    return search


class Traffic(TorchDispatchMode):
    """Adds up the bytes of operands and results."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        changes = any(a.alias_info and a.alias_info.is_write for a in func._schema.arguments)
        if changes or not func.is_view:
            used = tree_leaves((args, kwargs, out))
            self.bytes += sum(t.numel() * t.element_size() for t in used if isinstance(t, Tensor))
        return out


def prior_flops(search: Search) -> int:
    """Operations of the networks' forward and backward pass alone."""
    with FlopCounterMode(display=False) as counter:
        images = search.prior.images(search.parameters, search.constants, 0.0)
        torch.autograd.grad(images.sum(), search.parameters)
    return counter.get_total_flops()


def limits(chosen: argparse.Namespace, device: torch.device) -> None:
    """Print operations, bytes and shares of the device's measured rates."""
    names = ("float32",) if device.type == "cpu" else ("float32", "bfloat16")
    product: dict[str, float] = {}
    for name in names:
        square = torch.randn(2048, 2048, device=device, dtype=getattr(torch, name))
        product[name] = 2 * 2048**3 / timed(lambda one=square: one @ one, device, 5)
        print(f"matrix product, 2048, {name}: {product[name] / 1e9:.0f} GFLOP/s")
    copy = 0.0
    for megabytes in (1, 256):
        source = torch.zeros(megabytes << 18, device=device)
        target = torch.zeros_like(source)
        many = 256 // megabytes

        def moves(a: Tensor = target, b: Tensor = source, many: int = many) -> None:
            for _ in range(many):
                a.copy_(b)

        copy = 2 * 256 * 2**20 / timed(moves, device, 5)
        print(f"copy of {megabytes} MiB, read and written: {copy / 1e9:.1f} GB/s")
    print(
        f"{'extractor':<11}{'px':>4}{'rows':>6}{'prior GF':>10}{'extr. GF':>10}{'MB':>8}{'ms':>8}"
        f"{'GFLOP/s':>9}{'of product':>12}{'GB/s':>7}{'of copy':>9}"
        "  bound"
    )
    attack = DeepImagePrior(steps=100, precision=chosen.precision)
    low = attack.prior_for((3, 32, 32), device).low  # type: ignore[attr-defined]
    for architecture, size in settings(chosen):
        for rows in map(int, chosen.rows.split(",")):
            counted = search_for(attack, architecture, size, rows, device, "matmul")
            with FlopCounterMode(display=False) as counter:
                counted.step()
            flops, of_prior = counter.get_total_flops(), prior_flops(counted)
            search = search_for(attack, architecture, size, rows, device)
            with Traffic() as traffic:
                search.step()
            seconds = timed(search.ready(print), device, chosen.repeats * 3)
            least = of_prior / product["bfloat16" if low else "float32"]
            least += (flops - of_prior) / product["float32"]
            share, moved = least / seconds, traffic.bytes / seconds / copy
            nearest = "arithmetic" if share > moved else "memory"
            bound = nearest if max(share, moved) > 0.25 else "neither"
            print(
                f"{architecture:<11}{size:>4}{rows:>6}{of_prior / 1e9:>10.2f}"
                f"{(flops - of_prior) / 1e9:>10.2f}{traffic.bytes / 1e6:>8.0f}{seconds * 1e3:>8.1f}"
                f"{flops / seconds / 1e9:>9.1f}{share:>12.0%}{traffic.bytes / seconds / 1e9:>7.1f}"
                f"{moved:>9.0%}  {bound}",
                flush=True,
            )


def memory(chosen: argparse.Namespace, device: torch.device) -> None:
    """Print the peak of whole attacks, each in a new process."""
    print(f"{'extractor':<11}{'px':>4}{'targets':>9}{'chunk':>7}{'before':>12}{'peak':>12}")
    for architecture, size in settings(chosen):
        for count in chosen.many.split(","):
            own = ["--child", "--targets", count, "--architectures", architecture]
            more = [
                "--sizes",
                str(size),
                "--device",
                chosen.device,
                "--precision",
                chosen.precision,
            ]
            subprocess.run([sys.executable, __file__, "memory", *own, *more], check=True)


def child(chosen: argparse.Namespace, device: torch.device) -> None:
    """Attack once and print the peak of this process, or of its GPU memory."""
    (architecture, size), count = settings(chosen)[0], int(chosen.targets)
    chunk = CPU_TILE if device.type == "cpu" else 64
    obs = observation(count, size, architecture, device)

    before = peak_bytes(device)
    DeepImagePrior(steps=2, chunk=chunk, precision=chosen.precision)(obs, Context(device=device))
    print(
        f"{architecture:<11}{size:>4}{count:>9}{chunk:>7}{human_bytes(before):>12}"
        f"{human_bytes(peak_bytes(device)):>12}",
        flush=True,
    )


def where_time_goes(chosen: argparse.Namespace, device: torch.device) -> None:
    """Print shares of the time of a step by kind of operation."""
    attack = DeepImagePrior(steps=100, precision=chosen.precision)
    on_gpu = device.type == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    for architecture, size in settings(chosen):
        rows = int(chosen.rows.split(",")[0])
        search = search_for(attack, architecture, size, rows, device)
        search.step()
        with profile(activities=kinds) as found:
            for _ in range(chosen.repeats * 3):
                search.step()
            tools.wait(device)
        shares: Counter[str] = Counter()
        for one in found.key_averages():
            spent = one.self_device_time_total if on_gpu else one.self_cpu_time_total
            group = next(
                (g for g, marks in GROUPS.items() if any(m in one.key for m in marks)), "rest"
            )
            shares[group] += spent
        whole = sum(shares.values())
        told = ", ".join(f"{group} {spent / whole:.0%}" for group, spent in shares.most_common())
        print(f"{architecture}, {size} px, {rows} rows: {told}", flush=True)


def stacking(chosen: argparse.Namespace, device: torch.device) -> None:
    """Print the time of forward and backward of the networks alone."""
    print(f"{'px':>4}{'rows':>6}{'precision':>11}" + "".join(f"{n:>14}" for n in dip_net.STACKINGS))
    for size in map(int, chosen.sizes.split(",")):
        prior: Any = DeepImagePrior().prior_for((3, size, size), device)
        for rows in map(int, chosen.rows.split(",")):
            for low in (False, True):
                taken = [
                    dip_net.seconds(replace(prior.net, stacking=name), device, low, rows)
                    for name in dip_net.STACKINGS
                ]
                name = "bfloat16" if low else "float32"
                times = "".join(f"{one * 1e3:>11.1f} ms" for one in taken)
                print(f"{size:>4}{rows:>6}{name:>11}{times}", flush=True)


def whole(chosen: argparse.Namespace, device: torch.device) -> None:
    """Print the seconds of one attack."""

    def notes(event: Event) -> None:
        if event.name == "note":
            print(event.data["text"])

    for architecture, size in settings(chosen):
        for count in map(int, chosen.targets.split(",")):
            obs = observation(count, size, architecture, device)
            attack = DeepImagePrior(steps=chosen.steps, precision=chosen.precision)
            started = time.perf_counter()
            found = attack(obs, Context(device=device, report=notes))
            taken = time.perf_counter() - started
            what = f"{architecture}, {size} px, {count} targets, {chosen.steps} steps"
            print(f"{what}: {taken:.1f} s; {_reached(found, taken / chosen.steps)}", flush=True)


def _reached(found: Outcome, seconds: float) -> str:
    """When half of the targets came to `FIXED_MATCH`, at so many seconds a step."""
    if not isinstance(found, Reconstruction):
        raise TypeError(f"expected images, not {found}")
    middle = found.trace.median(dim=1).values
    there = (middle <= FIXED_MATCH).nonzero()
    if not len(there):
        return f"half of the targets end above a match of {FIXED_MATCH:g}: {float(middle[-1]):.1e}"
    step = int(found.trace_steps[there[0, 0]]) + 1
    return f"half of the targets at a match of {FIXED_MATCH:g} after {step * seconds:.1f} s"


def decoder_examples(size: int, device: torch.device) -> list[Examples]:
    """Blurred photographs to be sharpened, as pairs of several extractors."""
    data = Photos(size=size, per_photo=max(2, EXTRACTORS * PAIRS // 4)).load()
    images = data.floats(torch.arange(EXTRACTORS * PAIRS) % len(data)).to(device)
    blurred = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    held = torch.arange(PAIRS, device=device) % 5 == 0
    return [
        Examples(soft, sharp - soft, sharp, soft.flatten(1), held, lambda x: x.flatten(1))
        for soft, sharp in zip(blurred.split(PAIRS), images.split(PAIRS), strict=True)
    ]


def decoder_loop(examples: list[Examples], how: DecoderTraining) -> Refiner:
    """Train as `train_refiner` does, one extractor of a batch after another."""
    device, draws = examples[0].picture.device, stream(0, "refiner batches benchmark", index=0)
    with seeded_generators(0, "refiner benchmark", index=0):
        net = Refiner(examples[0].picture.shape[1], how.width).to(device)
    net.scale.copy_(torch.stack([one.correction.square().mean() for one in examples]).mean().sqrt())
    optimiser = torch.optim.AdamW(net.parameters(), lr=how.lr)
    kept = [(~one.held).nonzero().squeeze(1) for one in examples]
    owners = torch.arange(len(examples)).repeat_interleave(torch.tensor([len(k) for k in kept]))
    rows = torch.cat(kept)
    for update in range(how.updates):
        rate = 0.02 + 0.49 * (1 + math.cos(math.pi * update / how.updates))
        optimiser.param_groups[0]["lr"] = how.lr * rate * min(1.0, (update + 1) / 20)
        drawn = torch.randint(len(rows), (how.batch,), generator=draws)
        optimiser.zero_grad()
        for i, one in enumerate(examples):
            at = rows[drawn[owners[drawn] == i].to(rows.device)]
            if len(at):
                made = net(one.picture[at], one.correction[at])
                loss = (made - one.wanted[at]).square().flatten(1).mean(1).sum() / how.batch
                loss.backward()
        optimiser.step()
    return net


def decoder(chosen: argparse.Namespace, device: torch.device) -> None:
    """Print updates per second of both, and the held-out losses that they reach."""
    how = DecoderTraining(updates=chosen.updates, patience=99)
    for size in map(int, chosen.sizes.split(",")):
        examples = decoder_examples(size, device)
        pool, nets = Pool(examples, how), []
        loops, pools = [], []
        for _ in range(chosen.repeats + 1):
            started = time.perf_counter()
            alone = decoder_loop(examples, how)
            tools.wait(device)
            middle = time.perf_counter()
            with single_threaded(device) as cores:
                together = train_refiner(
                    examples,
                    how,
                    seed=0,
                    stage=0,
                    purpose="benchmark",
                    cores=cores,
                    tick=lambda update, loss: None,
                    capturer=capture_for(device),
                    note=print,
                )
            tools.wait(device)
            loops.append((middle - started) / how.updates)
            pools.append((time.perf_counter() - middle) / how.updates)
            nets = [alone.eval(), together]
        ratios = statistics.median(a / b for a, b in zip(loops[1:], pools[1:], strict=True))
        with torch.no_grad():
            losses = [float(pool.losses(net, pool.checked.to(device)).mean()) for net in nets]
        print(
            f"{size} px, {EXTRACTORS} extractors: updates per second {1 / min(loops[1:]):.1f} in a "
            f"loop, {1 / min(pools[1:]):.1f} pooled, ratio {ratios:.2f}; held-out loss "
            f"{losses[0]:.6f} and {losses[1]:.6f}",
            flush=True,
        )


def part(name: str) -> str:
    """A part's name (`choices` would refuse an empty list)."""
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"no part {name}; the parts are {', '.join(PARTS)}")
    return name


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = tools.options(__doc__)
    options.add_argument(
        "parts", nargs="*", type=part, metavar="PART", help=f"of {', '.join(PARTS)}; ratio"
    )
    options.add_argument("--targets", default="8,16")
    options.add_argument("--sizes", default="32")
    options.add_argument("--architectures", default="cnn4")
    options.add_argument("--loop", type=int, default=16, help="targets of the loop, at the most")
    options.add_argument("--steps", type=int, default=None, help="20 on a CPU, 100 on a GPU")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--rows", default=None, help="of a tile; 8 on a CPU, 64,256 on a GPU")
    options.add_argument("--many", default="16,64,256", help="targets of the memory part")
    options.add_argument("--precision", default="auto", help="auto, float32 or bfloat16")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--eager", action="store_true", help="do not capture steps on a GPU")
    options.add_argument("--quick", action="store_true", help="5 steps or updates, once")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts asked for."""
    chosen = parser().parse_args(arguments)
    device = torch.device(chosen.device)
    on_cpu = device.type == "cpu"
    chosen.steps = chosen.steps or (5 if chosen.quick else 20 if on_cpu else 100)
    chosen.updates = 5 if chosen.quick else 60 if on_cpu else 300
    chosen.repeats = 1 if chosen.quick else chosen.repeats
    chosen.rows = chosen.rows or (str(CPU_TILE) if on_cpu else "64,256")
    inversion.STUCK = math.inf  # no search is begun anew: both ways do the same work
    decoder_net.CHECKS = 1  # nor is a training looked at on its way
    if chosen.eager:
        inversion.capture_for = lambda device: None
        globals()["capture_for"] = lambda device: None
    if chosen.child:
        child(chosen, device)
        return
    name = platform.processor() if on_cpu else torch.cuda.get_device_name(device)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(
        f"torch {torch.__version__} on {name or device} ({torch.get_num_threads()} threads{load})"
    )
    works = (ratio, limits, memory, where_time_goes, stacking, whole, decoder)
    run = dict(zip(PARTS, works, strict=True))
    for part in chosen.parts or ["ratio"]:
        one_core = part in ("limits", "profile", "stacking")
        with single_threaded(device) if one_core else nullcontext():
            run[part](chosen, device)


if __name__ == "__main__":
    main()
