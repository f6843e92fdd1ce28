"""What is done on another device, in a process of its own: ``cases.py KIND FOLDER [DEVICE]``.

It prints JSON. The device is the stand-in, unless another is named: ``cases.py attacks out cuda``.

Each line has the case's name and what went wrong, or null.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import stand_in
import torch
import yaml
from torch import Tensor

from fedre_privacy.attacks.base import attacks
from fedre_privacy.core.config import merge
from fedre_privacy.core.files import read_tensors
from fedre_privacy.defenses import private_steps
from fedre_privacy.experiments.attack import attack
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train

if len(sys.argv) > 3:
    DEVICE, NOISE = torch.device(sys.argv[3]), "1e-6"  # a GPU draws noise of its own
else:
    DEVICE, NOISE = stand_in.install(), "1"
    private_steps._on = lambda device, rng: rng  # the stand-in has no generators of its own

TINY: dict[str, Any] = {
    "data": {"name": "digits", "size": 16, "per_class": 12},
    "partition": {"name": "pra", "alpha": 0.5},
    "model": {"name": "cnn4", "dim": 32},
    "train": {"clients": 3, "rounds": 1, "batch_size": 8},
    "record": {"keep_every": 1},
}
TRAININGS: dict[str, dict[str, Any]] = {
    **{name: {"protocol": {"name": name}} for name in protocols.names()},
    "fedmrl": {"protocol": {"name": "fedmrl", "small": {"dim": 16}}},
    "several architectures": {"model": {"name": "resnet8,resnet4,cnn-1"}},
    "private training": {
        "protocol": {"name": "fedgh"},
        "defense": [f"dp-sgd:clip=1,noise={NOISE}", f"gaussian:clip=1,noise={NOISE},unit=record"],
    },
    "sums only": {"protocol": {"name": "fedavg"}, "defense": ["secagg"]},
    "changed uploads": {
        "protocol": {"name": "fedproto"},
        "defense": ["clip", "laplace:clip=1,epsilon=50", "mask", "quantise"],
    },
}
"""Every protocol, one registered tomorrow too, and ways of training with code of their own."""
SHORT = Path(__file__).parents[2] / "benchmarks" / "short_attacks.yaml"
ATTACKS: dict[str, dict[str, Any]] = yaml.safe_load(SHORT.read_text(encoding="utf-8"))
"""How an attack is run; one without an entry is run on fedre as it is."""
ELSEWHERE = {"analytic"}
"""Solved on the host, and for networks that no built-in architecture is."""


def training(**sections: Any) -> Any:
    problems: list[str] = []
    settings = resolve_training(merge(TINY, sections), {}, problems)
    assert settings is not None and not problems, problems
    return settings


def question(name: str, values: dict[str, Any]) -> Any:
    problems: list[str] = []
    given = {
        "attack": {"name": name, **values.get("attack", {})},
        "threat": values.get("threat", "fedre-paper"),
        "eval": {
            "targets": 3,
            "ceiling": 0,
            "per_update": 2,
            "candidates": 10,
            "metrics": ["psnr"],
        },
        **({"target": values["target"]} if "target" in values else {}),
    }
    settings = resolve_attack(given, {}, problems)
    assert settings is not None and not problems, problems
    return settings


def run_of(values: dict[str, Any], folder: Path, device: torch.device) -> Run:
    """A training of an attack's row, trained once."""
    protocol, rounds = values.get("protocol", "fedre"), values.get("rounds", 1)
    settings = training(
        protocol={"name": protocol},
        train={"rounds": rounds},
        defense=values.get("defense", []),
        steering=values.get("steering", []),
    )
    return train(settings, runs=folder / device.type, device=device)


UNSETTLED = (".weight.U", ".weight.V", "params/net.0.bias")
"""Settled by rounding alone: the signs of singular vectors (fedkd), and the bias before the batch
norm of the generator (fedgen), whose gradient is zero."""


def far(one: dict[str, Tensor], other: dict[str, Tensor], *, most: float = 1e-3) -> str | None:
    """What differs by more than rounding that training, or a search, has made larger."""
    for name, tensor in one.items():
        if name.endswith(UNSETTLED):
            continue
        if tensor.shape != other[name].shape:
            return f"{name}: {tuple(tensor.shape)} and {tuple(other[name].shape)}"
        a, b = (t.double().nan_to_num(nan=-1e9) for t in (tensor, other[name]))
        gap, size = float((a - b).norm()), float(b.norm())
        if not gap <= most * size + 1e-6:
            return f"{name}: apart by {gap:.3g} of {size:.3g}"
    return None


def trainings(folder: Path) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Uploads and models are those of a CPU."""

    def case(sections: dict[str, Any]) -> str | None:
        settings = training(**sections)
        here, there = (
            train(settings, runs=folder / device.type, device=device)
            for device in (torch.device("cpu"), DEVICE)
        )
        for path in sorted(here.folder.rglob("*.safetensors")):
            other = there.folder / path.relative_to(here.folder)
            if why := far(read_tensors(path), read_tensors(other)):
                return f"{path.name}: {why}"
        return None

    def away() -> str | None:
        """A GPU too small for all models: each travels there and back."""
        with mock.patch("fedre_privacy.runs.initial_state.free_bytes", lambda device: 0):
            return case({"protocol": {"name": "fedproto"}, "train": {"rounds": 2}})

    for name, sections in TRAININGS.items():
        yield name, lambda sections=sections: case(sections)
    yield "models kept on the host", away


def attacked(folder: Path) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Answers are those of a CPU."""

    def case(name: str) -> str | None:
        values = ATTACKS.get(name, {})
        run = run_of(values, folder, torch.device("cpu"))
        answers, asked = [], question(name, values)
        for device in (torch.device("cpu"), DEVICE):
            result = attack(run, asked, device=device, restart=True, isolation="same-process")
            answers.append(result.outcome.save()[0])
        return far(*answers, most=1e-2)

    for name in attacks.names():
        if name not in ELSEWHERE:
            yield name, lambda name=name: case(name)


def counted(work: Callable[[], object]) -> Counter[str]:
    stand_in.reads.clear()
    work()
    return Counter(stand_in.reads)


def waits(folder: Path) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """The host waits no more often for more steps."""

    def compare(work: Callable[[int], object], short: int, long: int) -> str | None:
        few, many = counted(lambda: work(short)), counted(lambda: work(long))
        if not sum(few.values()):
            return "nothing was read at all: nothing ran there"
        more = {line: count - few[line] for line, count in many.items() if count > few[line]}
        return f"{long} steps in place of {short} read {more} more" if more else None

    def epochs(protocol: str) -> Callable[[int], object]:
        def work(count: int) -> object:
            settings = training(protocol={"name": protocol}, train={"epochs": count})
            return train(settings, runs=folder / "waits", device=DEVICE)

        return work

    def steps(name: str, key: str = "steps") -> Callable[[int], object]:
        values = ATTACKS.get(name, {})

        def work(count: int) -> object:
            run = run_of(values, folder, torch.device("cpu"))
            brief = {"channels": (4,), "depth": 2, "skip": 2} if name == "dip" else {}
            brief |= {"width": 4, "stages": 1, "patience": 99} if name == "decoder" else {}
            asked = question(name, {**values, "attack": {**brief, key: count}})
            return attack(run, asked, device=DEVICE, restart=True, isolation="same-process")

        return work

    for protocol in ("fedre", "fedproto", "fedavg", "fedgen"):
        yield f"training {protocol}", lambda p=protocol: compare(epochs(p), 1, 3)
    for name in ("dip", "pixel", "inverting-gradients"):
        yield name, lambda n=name: compare(steps(n), 100, 150)  # both are logged 50 times
    yield "decoder", lambda: compare(steps("decoder", "updates"), 24, 48)


def main(kind: str, folder: str, device: str = "") -> None:
    torch.set_num_threads(1)
    cases = {"trainings": trainings, "attacks": attacked, "waits": waits}[kind]
    for name, case in cases(Path(folder)):
        try:
            problem = case()
        except Exception:
            problem = traceback.format_exc()
        print(json.dumps([name, problem]), flush=True)
    stand_in.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
