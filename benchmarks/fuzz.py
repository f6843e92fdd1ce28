"""Mutated run and upload folders, opened by the real readers: what ends in anything but a result
or a clear error?

Small valid folders are made first (`make_subjects`). Every input is one of them with one or a few
changes: to the structure or the bytes of a JSON, YAML or CSV file, to the header, the tensors or
the bytes of a safetensors or npz file, or to the files themselves. It is then read, attacked or
drawn in one process, as the commands do it, and ends in one of `OUTCOMES`.

    python benchmarks/fuzz.py --seconds 600 --jobs 2
    python benchmarks/fuzz.py --input 4711          one input again, with its traceback

Input n of a seed is always the same. The command prints a table and, for every kind of failure, the
input with the fewest changes; it returns 1 where there was one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import safetensors.torch
import tools
import torch
import yaml

from fedre_privacy import api
from fedre_privacy.benchmarking.jobs import Place
from fedre_privacy.benchmarking.results import frame
from fedre_privacy.benchmarking.sweep import run_job
from fedre_privacy.cli.output import Output
from fedre_privacy.cli.shared.explain import list_for
from fedre_privacy.core.artifacts import ModelState
from fedre_privacy.core.config import load_yaml
from fedre_privacy.core.errors import FedreError, OutOfMemoryError
from fedre_privacy.core.events import Event
from fedre_privacy.core.files import file_sha256
from fedre_privacy.core.os_errors import os_error_message
from fedre_privacy.core.types import Broadcast, Upload
from fedre_privacy.data.base import datasets
from fedre_privacy.experiments import attack as attacking
from fedre_privacy.experiments.external_recording import (
    ExternalRecording,
    external_folder,
    read_external_uploads,
)
from fedre_privacy.experiments.external_trial import prepare_external
from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import Recorder
from fedre_privacy.federation.training_info import write_training_info
from fedre_privacy.reports.attack import attack_page
from fedre_privacy.reports.run_figures import draw
from fedre_privacy.reproduction.measured_traffic import measure_traffic
from fedre_privacy.runs.folder import begin
from fedre_privacy.runs.resolution import require_resolved, resolve_attack, resolve_training
from fedre_privacy.runs.verification import verify
from fedre_privacy.threats.base import threats

SAME, CLEAN, CHANGED, UNSEEN, UNCAUGHT, HANG, MEMORY = OUTCOMES = (
    "without effect",
    "clean error",
    "changed result",
    "unseen change",
    "uncaught error",
    "hang",
    "memory",
)
"""`UNSEEN`: another result, without a word, of a folder that hashes cover. `CHANGED`: of one that
they do not: an unfinished run, uploads of another system, results of a benchmark, or a folder whose
hashes were made anew after the change."""
AGAIN = "covered again"
BAD = (UNSEEN, UNCAUGHT, HANG, MEMORY)
MOST_SECONDS, MOST_BYTES = 20, 1 << 30
"""Processor time of one input, and memory above that of the process before it."""
FIGURES_EVERY = 20
"""One attack in so many draws its figures, which take longer than everything else."""

CPU = torch.device("cpu")
TINY: dict[str, Any] = {
    "data": {"name": "digits", "size": 16, "per_class": 6},
    "partition": {"name": "pra", "alpha": 0.5},
    "model": {"name": "cnn4", "dim": 8},
    "train": {"clients": 2, "rounds": 2, "batch_size": 8},
    "record": {"keep_every": 1},
}
EVAL = {"targets": 2, "ceiling": 1, "per_update": 1, "candidates": 4, "metrics": ["psnr"]}
EXTRACTOR = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8))

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.Sigmoid(), nn.Linear(8, 10))
"""


# --- what is read -----------------------------------------------------------------------------

Read = Callable[[Path], Any]
"""Opens a subject's folder; what it returns decides whether the result is the same."""


@dataclass(frozen=True)
class Subject:
    """A small valid folder and the ways in which it is opened.

    Args:
        reads: by name; with how often each is taken, since some are slow.
    """

    name: str
    folder: Path
    reads: dict[str, tuple[Read, float]]


def _run(folder: Path) -> api.Run:
    (found,) = [path for path in folder.iterdir() if path.name != "sweep.yaml"]
    return api.Run(found)


def _everything(folder: Path) -> Any:
    run = _run(folder)
    told = {k: v for k, v in run.provenance().items() if "manifest" not in k}
    known = [repr(run), run.settings.plain(), told, run.headline(), run.notes]
    known += [run.table(), run.frame().to_csv(), run.class_names, run.image_shape]
    uploads, broadcasts = run.messages().of()
    known += [(type(a).__name__, one.round, a.tensors()) for one in uploads for a in one.artifacts]
    known += [(one.recipients, one.round) for one in broadcasts]
    known += [run.split_indices()]
    for round in run.kept_rounds():
        known += [vars(mixture) for mixture in run.mixtures(round).values()]
        known += [run.extractor(client, round).state_dict() for client in range(2)]
    return known


def _listed(folder: Path) -> None:
    list_for(_run(folder), threats.get("fedre-paper"), Output(as_json=False, quiet=True))


def _settings(target: str, attack: dict[str, Any], threat: str = "strong") -> Any:
    problems: list[str] = []
    values = {"target": target, "attack": attack, "threat": threat, "eval": EVAL}
    return require_resolved(resolve_attack(values, {}, problems), problems)


def _attacked(settings: Any) -> Read:
    def read(folder: Path) -> Any:
        run = _run(folder)
        attacking.require_complete(run)
        result = api.run_attack(run, settings, device=CPU, isolation="same-process")
        return [result.outcome.save(), result.table(), result.verdict()]

    return read


def _drawn(folder: Path) -> None:
    run = _run(folder)
    for picture in run.folder.glob("*.png"):
        picture.unlink()
    draw(run)


def _resumed(folder: Path) -> Any:
    (place,) = folder.iterdir()
    problems: list[str] = []
    loaded = load_yaml(place / "config.yaml")
    settings = require_resolved(resolve_training(loaded.values, loaded.where, problems), problems)
    if settings.run_name != place.name:
        begin(folder / settings.run_name, resume=True, restart=False, what="Run")
        return settings.plain()
    run = api.run_training(settings, runs=folder, device=CPU, resume=True)
    return [run.messages().of()[0][-1].artifacts[0].tensors(), run.record["final"]]


def _foreign(settings: Any, *, updates: bool = False) -> Read:
    def read(folder: Path) -> Any:
        weights = folder / "weights.safetensors"
        modules: dict[str, Any] = {"extractor": "fuzz_extractor:make", "weights": weights}
        if updates:
            modules = {"network": "fuzz_extractor:network"}
        recorded = ExternalRecording(
            folder / "uploads", (1, 16, 16), **modules,
            aux=f"npz:{folder / 'aux.npz'}", truth=f"npz:{folder / 'truth.npz'}",
        )  # fmt: skip
        if settings.attack.answers == "labels":
            recorded = dataclasses.replace(recorded, aux=None, truth=None)
        trial = prepare_external(read_external_uploads(recorded, None), settings)
        place = external_folder(recorded, settings, trial, folder / "out")
        result = attacking.attack_into(
            place, settings, lambda: trial, device=CPU, isolation="same-process"
        )
        attack_page(result)
        return [result.outcome.save(), result.table(), result.verdict()]

    return read


def _compared(folder: Path) -> Any:
    problems: list[str] = []
    wanted = api.comparison({}, problems, sweep=folder / "sweep.yaml")
    return [job.plain() for job in wanted.jobs]


def _results(folder: Path) -> Any:
    problems: list[str] = []
    place = Place(folder, folder)
    wanted = api.comparison({}, problems, sweep=folder / "sweep.yaml")
    found = [result for job in wanted.jobs if (result := place.read(job)) is not None]
    return frame(found).to_csv()


PROTOCOLS: dict[str, dict[str, Any]] = {
    "fedre": {},
    "fedproto": {},
    "fedavg": {},
    "fedsgd": {},
    "fedkd": {},
    "fedgh": {"defense": [{"name": "gaussian", "clip": 1.0, "noise": 1.0}]},
}
"""Runs, with what differs from `TINY`."""


OTHERS = ("unfinished", "uploads", "updates", "benchmark")
"""Subjects that are no run; `uploads` needs fedproto."""


def make_subjects(root: Path, names: Sequence[str] = (*PROTOCOLS, *OTHERS)) -> None:
    """Train and attack what is then changed."""
    labels = _settings("uploaded", {"name": "labels"})
    for name in (one for one in names if one in PROTOCOLS):
        folder, attacked = root / name, root / f"{name}, attacked"
        values = {**TINY, **PROTOCOLS[name], "protocol": {"name": name}}
        run = api.run_training(_training(values), runs=folder, device=CPU)
        draw(run)
        shutil.copytree(folder, attacked)
        run = api.Run(attacked / run.name)
        api.run_attack(run, labels, device=CPU, isolation="same-process")
    if "unfinished" in names:
        _unfinished(root / "unfinished")
    if "uploads" in names:
        _foreign_folder(root / "uploads", root / "fedproto")
    if "updates" in names:
        _foreign_updates(root / "updates")
    if "benchmark" in names:
        _benchmark(root / "benchmark", root / "trained")


def _benchmark(folder: Path, trained: Path) -> None:
    (folder / "jobs").mkdir(parents=True)
    base = {**TINY, "train": {"clients": 2, "rounds": 1, "batch_size": 8}}
    sweep = {"base": base, "protocols": ["fedre", "fedgh"], "seeds": [0], "attacks": ["labels"]}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    for job in api.comparison({}, [], sweep=folder / "sweep.yaml").jobs:
        run_job(job, Place(folder, trained), CPU, lambda result: None)


def subjects(root: Path) -> list[Subject]:
    """What `make_subjects` made, and how it is read."""
    labels = _attacked(_settings("uploaded", {"name": "labels"}))
    pixel = _settings("uploaded", {"name": "pixel", "steps": 1})
    membership = _settings("uploaded", {"name": "membership"})
    update = _settings("update", {"name": "inverting-gradients", "steps": 1})
    inversion = _settings("update", {"name": "update-inversion", "steps": 1})
    more: dict[str, dict[str, tuple[Read, float]]] = {
        "fedre": {"images": (_attacked(pixel), 0.7), "membership": (_attacked(membership), 0.7)},
        "fedproto": {"images": (_attacked(pixel), 0.7)},
        "fedsgd": {"update": (_attacked(update), 0.3)},
    }
    shared: dict[str, tuple[Read, float]] = {
        "everything": (_everything, 4),
        "list": (_listed, 1),
        "labels": (labels, 3),
        "traffic": (lambda folder: vars(measure_traffic(_run(folder))), 1),
        "figures": (_drawn, 0.1),
    }
    again: dict[str, tuple[Read, float]] = {"again": (labels, 1)}
    reads = {name: {**shared, **more.get(name, {})} for name in PROTOCOLS}
    reads |= {f"{name}, attacked": again for name in PROTOCOLS}
    reads["unfinished"] = {"resume": (_resumed, 1)}
    reads["benchmark"] = {"plan": (_compared, 1), "results": (_results, 1)}
    reads["uploads"] = {
        "labels": (_foreign(_settings("uploaded", {"name": "labels"})), 1),
        "images": (_foreign(pixel), 1),
    }
    reads["updates"] = {
        "labels": (_foreign(_settings("uploaded", {"name": "labels"}), updates=True), 1),
        "images": (_foreign(inversion, updates=True), 1),
    }
    found = {path.name for path in root.iterdir()}
    return [Subject(name, root / name, own) for name, own in reads.items() if name in found]


def _training(values: dict[str, Any]) -> Any:
    problems: list[str] = []
    return require_resolved(resolve_training(values, {}, problems), problems)


def _unfinished(folder: Path) -> None:
    """A training that stopped after its first round, with a checkpoint."""

    def stop(event: Event) -> None:
        if event.name == "train.round" and event.data["round"] == 2:
            raise KeyboardInterrupt

    usual, loop.CHECKPOINT_SECONDS = loop.CHECKPOINT_SECONDS, -1.0
    values = {**TINY, "protocol": {"name": "fedgh"}, "train": {**TINY["train"], "rounds": 3}}
    with contextlib.suppress(KeyboardInterrupt):
        api.run_training(_training(values), runs=folder, device=CPU, report=stop)
    loop.CHECKPOINT_SECONDS = usual


def _foreign_folder(folder: Path, run: Path) -> None:
    folder.mkdir()
    (found,) = run.iterdir()
    shutil.copytree(found / "uploads", folder / "uploads")
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 8)
    state = {f"1.{name}": value for name, value in layer.state_dict().items()}
    safetensors.torch.save_file(state, folder / "weights.safetensors")
    random_images = np.random.default_rng(0).random((12, 1, 16, 16), dtype=np.float32)
    labels = np.arange(12) % 10
    np.savez(folder / "aux.npz", images=random_images, labels=labels)
    np.savez(folder / "truth.npz", images=random_images, labels=labels, row=np.arange(12) % 2)


def _foreign_updates(folder: Path) -> None:
    """Two clients' models after a step, what they started from, and how they trained."""
    torch.manual_seed(0)
    names = ("1.weight", "1.bias", "3.weight", "3.bias")
    shapes = ((8, 256), (8,), (10, 8), (10,))
    before = {name: torch.randn(shape) / 8 for name, shape in zip(names, shapes, strict=True)}
    recorder = Recorder(folder / "uploads")
    for round in (1, 2):
        sent = [
            Upload(
                k,
                round,
                (ModelState({n: t - torch.randn_like(t) / 99 for n, t in before.items()}),),
            )
            for k in (0, 1)
        ]
        recorder.write(round, sent, [Broadcast(round, (0, 1), (ModelState(before),))])
    recorder.save()
    write_training_info(folder / "uploads", {"lr": 0.1, "epochs": 1, "sizes": {"0": 6, "1": 6}})
    images = np.random.default_rng(0).random((12, 1, 16, 16), dtype=np.float32)
    labels = np.arange(12) % 10
    np.savez(folder / "aux.npz", images=images, labels=labels)
    np.savez(folder / "truth.npz", images=images, labels=labels, row=np.arange(12) % 2)


# --- changes ----------------------------------------------------------------------------------

DEEP = 100_000
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 255, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -1.5,
    1e-300, 1e308, math.inf, -math.inf, math.nan, "", "x", "0", "-1", "1e5", "none", "nan", "..",
    "../../../etc/passwd", "/dev/zero", "a" * 5000, "$x^{2$", "$\\frac$", "=1+1",
    "<script>x</script>",
    "\x1b[2J\0\u202e", "\ud800", "os:system", "a:b", "🦊" * 50, [], {}, [[]], [None], [0], ["x"],
    [1, 2, 3], {"x": 1}, {"name": "x"}, [0] * 5000, {"name": None}, [[0] * 10] * 10,
)  # fmt: skip

Change = Callable[[random.Random, Path], str | None]
"""Changes a folder in place and says how, or returns None where it finds nothing to change."""


def _files(folder: Path, *endings: str) -> list[Path]:
    """Files with these endings; those that are read most come first in no case."""
    found = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    return [p for p in found if not endings or p.suffix in endings]


def _own(path: Path, data: bytes) -> None:
    """Replace a file, which may be a link to the original."""
    path.unlink()
    path.write_bytes(data)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value)
    if isinstance(value, dict | list):
        for key, item in items:
            yield from _places(item, (*at, key))


def _at(value: Any, place: Sequence[Any]) -> Any:
    for key in place:
        value = value[key]
    return value


def _structure(rng: random.Random, root: Any) -> tuple[Any, str]:
    """Change one place of a nested value."""
    place = rng.choice(list(_places(root)))
    shown = "$" + "".join(f".{key}" for key in place)
    new = rng.choice(VALUES)
    if not place:
        return new, f"{shown} := {new!r:.40}"
    parent, key = _at(root, place[:-1]), place[-1]
    old = parent[key]
    match rng.randrange(8):
        case 0:
            del parent[key]
            return root, f"del {shown}"
        case 1 if isinstance(parent, dict):
            name = rng.choice((f"{key}x", "", "name", 5, "../x", "__class__"))
            parent[name] = parent.pop(key)
            return root, f"{shown} renamed {name!r}"
        case 2 if isinstance(old, int | float) and not isinstance(old, bool):
            new = rng.choice((-old, old + 1, old - 1, old * 1000, old / 3, str(old), [old], -0.0))
        case 3:
            other = rng.choice(list(_places(root)))
            new = json.loads(json.dumps(_at(root, other), default=str))
        case 4:
            new = [old] if rng.random() < 0.5 else {"x": old}
        case 5 if isinstance(old, list) and old:
            new = rng.choice((old[::-1], old[1:], old * 2, [*old, rng.choice(VALUES)]))
        case 6 if isinstance(old, dict):
            new = {**old, rng.choice(("x", "name", "files", "step")): new}
        case _:
            pass
    parent[key] = new
    return root, f"{shown} := {new!r:.40}"


def change_text(rng: random.Random, folder: Path) -> str | None:
    """One place of a JSON or YAML file."""
    found = _files(folder, ".json", ".yaml")
    if not found:
        return None
    path = rng.choice(found)
    is_json = path.suffix == ".json"
    try:
        read: Any = json.loads if is_json else yaml.safe_load
        value, how = _structure(rng, read(path.read_text()))
        text = json.dumps(value) if is_json else yaml.safe_dump(value, allow_unicode=True)
        _own(path, text.encode("utf-8", "surrogatepass"))
    except (ValueError, TypeError, OSError, yaml.YAMLError, RecursionError, KeyError):
        return None
    return f"{path.relative_to(folder)}: {how}"


def change_bytes(rng: random.Random, folder: Path) -> str | None:
    """The bytes of any file."""
    found = [p for p in _files(folder) if p.suffix not in (".png", ".pdf", ".txt", ".html")]
    if not found:
        return None
    path = rng.choice(found)
    data = bytearray(path.read_bytes())
    at = (
        rng.randrange(len(data) + 1)
        if rng.random() < 0.5
        else rng.randrange(min(len(data), 200) + 1)
    )
    kind = rng.choice(("cut", "flip", "insert", "repeat", "empty", "zeros", "garbage", "drop"))
    match kind:
        case "cut":
            del data[at:]
        case "flip" if data:
            for _ in range(rng.choice((1, 1, 4, 50))):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case "insert":
            extra = rng.choice(
                (b"\0", b"\xff\xfe", b"{", b"]", b'"', b"9" * 5000, b"\n- x\n", b"&a *a")
            )
            data[at:at] = extra
        case "repeat":
            data += bytes(data)
        case "empty":
            data.clear()
        case "zeros":
            data[at : at + 8] = bytes(8)
        case "drop":
            del data[at : at + rng.choice((1, 2, 8, 100))]
        case _:
            data = bytearray(rng.randbytes(rng.choice((1, 8, 100, 5000))))
    _own(path, bytes(data))
    return f"{path.relative_to(folder)}: bytes {kind} at {at}"


def _bomb() -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(rows)


TEXTS: tuple[str, ...] = (
    "[" * DEEP, '{"a":' * DEEP, "- " * DEEP, "[" * DEEP + "]" * DEEP,
    '{"a":' * 900 + "1" + "}" * 900,
    "9" * 10_000, '{"schema": ' + "9" * 5000 + "}", "null", "[]", "{}", "0", '""', "NaN",
    "!!python/object/apply:os.getcwd []", "a: &a [*a]", "&a {a: *a}", "? [1, 2]\n: x",
    "? {a: b}\n: x",
    "<<: [1]", "a: 2020-01-01\n", "a: !!binary x", "a: 1:60:60:60", "\ufeff{}",
    "%YAML 9.9\n---\n{}",
    "--- 1\n--- 2\n", "a: 0x" + "f" * 20_000, '{"a": 1, "a": 2}', "a: 1_000_000\n", "=: 1", _bomb(),
)  # fmt: skip


def change_whole(rng: random.Random, folder: Path) -> str | None:
    """A whole text replaced by one that is hard to read."""
    found = _files(folder, ".json", ".yaml")
    if not found:
        return None
    path, text = rng.choice(found), rng.choice(TEXTS)
    if rng.random() < 0.4 and path.suffix == ".yaml":
        text = f"{path.read_text(errors='replace')}\nmore: {text[:4000]}\n"
    _own(path, text.encode())
    return f"{path.relative_to(folder)} := {text[:30]!r}..."


def change_table(rng: random.Random, folder: Path) -> str | None:
    """A cell, row or column of a CSV file."""
    found = _files(folder, ".csv")
    if not found:
        return None
    path = rng.choice(found)
    rows = [line.split(",") for line in path.read_text(errors="replace").splitlines()]
    if not rows:
        return None
    row = rng.choice(rows)
    if row and rng.random() < 0.7:
        row[rng.randrange(len(row))] = str(rng.choice(VALUES))[:200]
    else:
        rows.remove(row)
    text = "\n".join(",".join(row) for row in rows)
    _own(path, text.encode("utf-8", "surrogatepass"))
    return f"{path.relative_to(folder)}: one cell or row"


def _other_tensor(rng: random.Random, value: torch.Tensor) -> tuple[torch.Tensor, str]:
    kinds = ("dtype", "shape", "nan", "inf", "huge", "negative", "empty", "0-d", "more", "fewer",
             "zero", "swap", "large", "bool")  # fmt: skip
    kind = rng.choice(kinds)
    value = value.clone()
    flat = value.reshape(-1)
    at = rng.randrange(len(flat)) if len(flat) else 0
    floats = value.is_floating_point()
    match kind:
        case "dtype":
            to = rng.choice((torch.float64, torch.float16, torch.int64, torch.int8, torch.uint8))
            value = value.nan_to_num().to(to) if floats else value.to(to)
        case "shape":
            value = rng.choice((value.unsqueeze(0), value.flatten(), value.unsqueeze(-1)))
        case "nan" | "inf" | "huge" if floats and len(flat):
            flat[at] = {"nan": math.nan, "inf": math.inf, "huge": 1e30}[kind]
        case "huge" if len(flat):
            flat[at] = (
                min(2**62, torch.iinfo(value.dtype).max) if not value.dtype == torch.bool else 1
            )
        case "negative" if len(flat) and value.dtype not in (torch.bool, torch.uint8):
            flat[at] = -flat[at] - 1
        case "empty":
            value = value[:0] if value.dim() else value.new_zeros(0)
        case "0-d":
            value = flat[0].clone() if len(flat) else value
        case "more":
            value = torch.cat([value, value]) if value.dim() else value.repeat(3)
        case "fewer":
            value = value[1:] if value.dim() else value
        case "swap" if value.dim() and len(value) > 1:
            value = value.flip(0)
        case "large":
            value = value.new_zeros(100_000)
        case "bool":
            value = value.bool()
        case _:
            value = torch.zeros_like(value)
    return value.contiguous(), kind


def change_tensors(rng: random.Random, folder: Path) -> str | None:
    """One tensor of a safetensors file; half the time the index gets the new hash."""
    found = _files(folder, ".safetensors")
    if not found:
        return None
    path = rng.choice(found)
    try:
        with safetensors.safe_open(path, "pt") as handle:
            meta = handle.metadata()
        tensors = safetensors.torch.load_file(path)
    except Exception:
        return None
    if not tensors:
        return None
    name = rng.choice(sorted(tensors))
    match rng.randrange(8):
        case 0:
            del tensors[name]
            how = "removed"
        case 1:
            other = rng.choice((f"{name}x", "x", "client-1/0/row", "client9/model", "9/9/9", ""))
            tensors[other] = tensors.pop(name)
            how = f"renamed {other!r}"
        case 2 if meta:
            key = rng.choice(sorted(meta))
            meta = {**meta, key: str(rng.choice(VALUES))[:100]}
            how = f"metadata {key} changed, not"
        case 3:
            other = rng.choice(sorted(tensors))
            tensors[name] = tensors[other].clone()
            how = f"replaced by {other}"
        case _:
            tensors[name], how = _other_tensor(rng, tensors[name])
    path.unlink()
    try:
        safetensors.torch.save_file(tensors, path, metadata=meta)
    except Exception:
        return None
    return f"{path.relative_to(folder)}: {name} {how}{_rehashed(rng, path)}"


def _rehashed(rng: random.Random, path: Path) -> str:
    """Give the index the hash of a changed file, half the time."""
    index = path.with_name("index.json")
    if not index.is_file() or rng.random() < 0.5:
        return ""
    values = json.loads(index.read_text())
    values["files"][path.name] = file_sha256(path)
    _own(index, json.dumps(values).encode())
    return " (and its hash)"


def change_header(rng: random.Random, folder: Path) -> str | None:
    """The header of a safetensors file."""
    found = _files(folder, ".safetensors")
    if not found:
        return None
    path = rng.choice(found)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    try:
        header, how = _structure(rng, json.loads(data[8 : 8 + size]))
        text = json.dumps(header).encode("utf-8", "surrogatepass")
    except (ValueError, TypeError, RecursionError):
        return None
    told = rng.choice((len(text), len(text), len(text), 2**63, len(text) + 5, 0))
    _own(path, told.to_bytes(8, "little") + text + data[8 + size :])
    return f"{path.relative_to(folder)}: header {how}{_rehashed(rng, path)}"


def change_npz(rng: random.Random, folder: Path) -> str | None:
    """An array or the archive of an npz file."""
    found = _files(folder, ".npz")
    if not found:
        return None
    path = rng.choice(found)
    try:
        with np.load(path) as read:
            arrays = {name: read[name] for name in read.files}
    except Exception:
        return None
    name = rng.choice(sorted(arrays))
    kind = rng.choice(("bomb", "header", "pickle", "removed", "array", "array", "array", "name"))
    path.unlink()
    if kind in ("bomb", "header", "pickle"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, array in arrays.items():
                buffer = io.BytesIO()
                np.save(buffer, array)
                raw = buffer.getvalue()
                if key == name and kind == "bomb":
                    raw = _npy_header((40_000, 1, 160, 160)) + bytes(1 << 27)
                elif key == name and kind == "header":
                    raw = _npy_header(rng.choice(((2**40,), (-1,), (2**62, 4), (12, 1, 16, 16, 9))))
                elif key == name:
                    raw = b"\x93NUMPY\x01\x00" + pickle.dumps([1])
                archive.writestr(f"{key}.npy", raw)
        return f"{path.relative_to(folder)}: {name} {kind}"
    if kind == "removed":
        del arrays[name]
    elif kind == "name":
        arrays[rng.choice(("x", "images", "row", "labels"))] = arrays.pop(name)
    else:
        value, how = _other_tensor(rng, torch.from_numpy(np.ascontiguousarray(arrays[name])))
        arrays[name], kind = value.numpy(), how
        if rng.random() < 0.2:
            arrays[name], kind = rng.choice((
                (np.array(["a"] * 12), "text"), (np.zeros(12, complex), "complex"),
                (np.zeros((12, 1, 16, 16), "M8[s]"), "dates"), (np.full(12, 2**63, "u8"), "uint64"),
            ))  # fmt: skip
    np.savez(path, **arrays)
    return f"{path.relative_to(folder)}: {name} {kind}"


def _npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape!r}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def change_files(rng: random.Random, folder: Path) -> str | None:
    """Files removed, added, exchanged or made links."""
    found = _files(folder)
    path, other = rng.choice(found), rng.choice(found)
    kind = rng.choice(("removed", "folder", "link", "loop", "device", "exchanged", "added", "fifo"))
    match kind:
        case "removed":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
        case "link":
            path.unlink()
            path.symlink_to(rng.choice((other, folder, Path("/nowhere"), Path("/etc/hostname"))))
        case "loop":
            path.unlink()
            path.symlink_to(path.name)
        case "device":
            path.unlink()
            path.symlink_to(
                rng.choice(("/dev/zero", "/dev/null", "/dev/urandom", "/proc/self/mem"))
            )
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "exchanged":
            one, two = path.read_bytes(), other.read_bytes()
            _own(path, two)
            _own(other, one)
        case _:
            new = path.with_name(rng.choice((
                "rx.safetensors", "r9999.safetensors", "r-001.safetensors",
                "mixtures-rx.safetensors",
                "mixtures-r0009.safetensors", "x.npz", "r\u0661.safetensors",
            )))  # fmt: skip
            shutil.copyfile(path, new)
            path = new
    return f"{path.relative_to(folder)}: {kind}"


CHANGES: tuple[tuple[Change, float], ...] = (
    (change_text, 8), (change_bytes, 3), (change_whole, 2), (change_table, 0.5),
    (change_tensors, 5), (change_header, 1), (change_npz, 1), (change_files, 2),
)  # fmt: skip


# --- inputs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How an input ended.

    Args:
        key: names the kind of failure: the error and the place in this package.
    """

    number: int
    subject: str
    read: str
    changes: tuple[str, ...]
    outcome: str
    key: str = ""
    text: str = ""


class _TooLong(BaseException):
    """The time of an input is over."""


def _expired(signum: int, frame: FrameType | None) -> None:
    raise _TooLong


def _digest(value: Any) -> str:
    digest = hashlib.sha256()

    def add(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            digest.update(str((one.dtype, tuple(one.shape))).encode())
            digest.update(one.detach().contiguous().numpy().tobytes())
        elif isinstance(one, dict):
            for key, item in one.items():
                digest.update(repr(key).encode())
                add(item)
        elif isinstance(one, list | tuple):
            for item in one:
                add(item)
        else:
            digest.update(repr(one).encode("utf-8", "surrogatepass"))

    add(value)
    return digest.hexdigest()


def _opened(read: Read, folder: Path) -> tuple[str, str, str]:
    """Outcome (or the digest of a result), key and traceback."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = read(folder)
        return _digest(found), "", ""
    except _TooLong:
        return HANG, _place(sys.exc_info()[2]), traceback.format_exc()
    except FedreError as error:
        return CLEAN, type(error).__name__, str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        refused = os_error_message(error)
        full = isinstance(refused, OutOfMemoryError)
        if refused is not None and not full:
            return CLEAN, type(error).__name__, str(error)
        key = f"{type(error).__name__} {_place(error.__traceback__)}"
        return MEMORY if full else UNCAUGHT, key, traceback.format_exc()[-3000:]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _place(trace: Any) -> str:
    """The innermost line of this package in a traceback."""
    inner = [f for f in traceback.extract_tb(trace) if "fuzz.py" not in f.filename]
    own = [f for f in inner if not {"site-packages", "lib"} & set(Path(f.filename).parts)]
    last = (own or inner)[-1:]
    return "".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in last)


def _linked(source: str, target: str) -> None:
    """Link a file; copy one that is appended to, or that lies on another disk."""
    if not source.endswith((".txt", ".log")):
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def changed(subject: Subject, rng: random.Random, folder: Path) -> tuple[str, ...]:
    """Link a subject into a folder and change it."""
    shutil.copytree(subject.folder, folder, copy_function=_linked)
    kinds, often = zip(*CHANGES, strict=True)
    wanted, made = rng.choice((1, 1, 1, 2, 3)), list[str]()
    for _ in range(20):
        how = None
        with contextlib.suppress(Exception):  # what was changed before may be beyond changing
            how = rng.choices(kinds, often)[0](rng, folder)
        if how:
            made.append(how)
        if len(made) == wanted:
            break
    if rng.random() < 0.6:  # else the manifest finds nearly everything
        for record in folder.glob("*/record.json"):
            with contextlib.suppress(Exception):
                verify(record.parent, accept=True)
                made.append(AGAIN)
    return tuple(made)


def one_input(
    number: int, seed: int, known: Sequence[Subject], usual: dict[tuple[str, str], str], room: Path
) -> Ended:
    """Make input `number` and open it."""
    rng = random.Random(f"{seed}/{number}")
    subject = rng.choice(known)
    names = list(subject.reads)
    name = rng.choices(names, [subject.reads[n][1] for n in names])[0]
    read, _ = subject.reads[name]
    place = room / "input"
    if (subject.name, name) not in usual:
        shutil.copytree(subject.folder, place)
        usual[subject.name, name], key, text = _opened(read, place)
        if usual[subject.name, name] in OUTCOMES:
            raise RuntimeError(f"{subject.name}, {name}: the unchanged folder fails: {text}")
        shutil.rmtree(place)
    changes = changed(subject, rng, place)
    try:
        outcome, key, text = _opened(read, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if outcome not in OUTCOMES:
        covered = subject.name.partition(",")[0] in PROTOCOLS and AGAIN not in changes
        another = UNSEEN if covered else CHANGED
        outcome = SAME if outcome == usual[subject.name, name] else another
        key = "" if outcome == SAME else f"{subject.name} {name}"
    return Ended(number, subject.name, name, changes, outcome, key, text)


def _limit_memory() -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MOST_BYTES, resource.RLIM_INFINITY))


def _work(
    root: Path, seed: int, first: int, step: int, until: float, only: int | None, line: Any
) -> None:
    """The process of a job: inputs first, first + step, ... until the time is over."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(root))
    signal.signal(signal.SIGPROF, _expired)
    os.environ["MPLBACKEND"] = "Agg"
    known = subjects(root / "subjects")
    _limit_memory()
    usual: dict[tuple[str, str], str] = {}
    quiet = io.StringIO()
    drawn = attacking.AttackResult.figures
    Digits = type(datasets.get("digits")())
    Digits.load = functools.cache(Digits.load)  # type: ignore[method-assign]
    number = first
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_fast()) as made:
        while time.time() < until:
            line.send(number)
            with_figures = number % FIGURES_EVERY == 0
            attacking.AttackResult.figures = drawn if with_figures else _no_figures  # type: ignore[method-assign]
            try:
                with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                    ended = one_input(number, seed, known, usual, Path(made))
            except Exception:  # of the fuzzer itself
                line.send(traceback.format_exc())
                return
            line.send(ended)
            quiet.seek(0)
            quiet.truncate()
            if only is not None:
                break
            number += step
    line.send(None)


def _no_figures(result: attacking.AttackResult) -> dict[str, Any]:
    return {}


def _fast() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class Tally:
    """What came of all inputs."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: dict[tuple[str, str], list[Ended]] = field(default_factory=dict)

    def add(self, ended: Ended) -> None:
        """Count an input; of each kind of failure the one with the fewest changes comes first."""
        self.outcomes[ended.subject, ended.outcome] += 1
        if ended.outcome in (*BAD, CHANGED):
            kept = self.failures.setdefault((ended.outcome, ended.key), [])
            if not kept and ended.outcome in BAD:  # at once: a long run may be watched
                where = f"input {ended.number}: {ended.outcome}: {ended.key}"
                print(where, ended.subject, ended.read, *ended.changes, sep="\n  ", file=sys.stderr)
            kept.append(ended)
            kept.sort(key=lambda one: len(one.changes))

    @property
    def bad(self) -> int:
        """Inputs that ended as none may."""
        return sum(n for (_, outcome), n in self.outcomes.items() if outcome in BAD)

    def lines(self) -> Iterator[str]:
        """The table, and a minimal case of each kind of failure."""
        names = sorted({subject for subject, _ in self.outcomes})
        yield f"{'':28}{'inputs':>8}" + "".join(f"{name:>17}" for name in OUTCOMES)
        for name in [*names, "all"]:
            counts = [
                sum(
                    n
                    for (own, o), n in self.outcomes.items()
                    if o == outcome and name in (own, "all")
                )
                for outcome in OUTCOMES
            ]
            yield f"{name:28}{sum(counts):>8}" + "".join(f"{n:>17}" for n in counts)
        for (outcome, key), kept in sorted(self.failures.items(), key=lambda one: -len(one[1])):
            if outcome in BAD:
                least = kept[0]
                yield f"\n{outcome} ({len(kept)}): {key}"
                yield f"  input {least.number}, {least.subject}, {least.read}"
                yield from (f"  {change}" for change in least.changes)


def fuzz(
    seconds: float,
    seed: int = 0,
    jobs: int = 1,
    *,
    only: int | None = None,
    start: int = 0,
    kept: Path | None = None,
    names: Sequence[str] = (*PROTOCOLS, *OTHERS),
) -> Tally:
    """Try inputs for some time, in several processes; return what came of them.

    Args:
        only: try this input alone.
        start: number of the first input.
        kept: folder of the subjects, which are made where they are not there yet.
        names: subjects.
    """
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_fast()) as made:
        root = kept or Path(made)
        if not (root / "subjects").is_dir():
            root.mkdir(parents=True, exist_ok=True)
            (root / "fuzz_extractor.py").write_text(EXTRACTOR)
            make_subjects(root / "making", names)
            (root / "making").rename(root / "subjects")
        until = time.time() + seconds
        with ThreadPoolExecutor(jobs) as pool:
            first = start if only is None else only
            list(
                pool.map(
                    lambda job: _watched(root, seed, first + job, jobs, until, only, tally),
                    range(jobs),
                )
            )
    return tally


def _watched(
    root: Path, seed: int, first: int, step: int, until: float, only: int | None, tally: Tally
) -> None:
    """Follow one job; where an input stops its process, count that and go on behind it."""
    number = first
    while time.time() < until:
        ours, theirs = get_context("fork").Pipe()
        process = get_context("fork").Process(
            target=_work, args=(root, seed, number, step, until, only, theirs)
        )
        process.start()
        theirs.close()
        outcome = ""
        try:
            while ours.poll(10 * MOST_SECONDS):
                told = ours.recv()
                if told is None:
                    process.join()
                    return
                if isinstance(told, str):
                    raise RuntimeError(told)
                if isinstance(told, Ended):
                    tally.add(told)
                else:
                    number = told
            outcome = HANG
        except EOFError:
            outcome = UNCAUGHT
        process.kill()
        process.join()
        tally.add(Ended(number, "?", "?", ("the process ended",), outcome, "process"))
        number += step
        if only is not None:
            return


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = tools.options(__doc__)
    made.add_argument("--seconds", type=float, default=60, help="time for inputs (default: 60)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    made.add_argument("--start", type=int, default=0, metavar="N", help="number of the first input")
    made.add_argument("--input", type=int, metavar="N", help="input N alone, with its traceback")
    made.add_argument(
        "--subjects", default=",".join((*PROTOCOLS, *OTHERS)), metavar="A,B", help="(default: all)"
    )
    made.add_argument("--keep", type=Path, metavar="DIR", help="keep the valid folders here")
    return made


def main() -> int:
    """Run the command; return 1 where an input ended as none may."""
    options = parser().parse_args()
    started = time.time()
    jobs = 1 if options.input is not None else options.jobs
    tally = fuzz(
        options.seconds, options.seed, jobs, only=options.input, start=options.start,
        kept=options.keep, names=options.subjects.split(","),
    )  # fmt: skip
    for line in tally.lines():
        print(line)
    if options.input is not None:
        for kept in tally.failures.values():
            print(kept[0].text)
    count = sum(tally.outcomes.values())
    rate, took = count / options.seconds, time.time() - started
    print(f"\n{count} inputs, {rate:.1f} a second, {took:.0f} s in all")
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
