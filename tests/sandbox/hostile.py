"""An attack that looks for the truth in place of working: at everything that it can reach."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import zlib
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context
from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation


@dataclass(frozen=True, kw_only=True)
class Hostile(Attack):
    """Search objects, closures, frames, paths, environment and other processes."""

    consumes = (EntangledRep, Prototypes, Representations)
    recovers = "inputs"

    told: str = knob("", help="a path that it was told, to be tried")

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        found = {
            "words": sorted(words(observation, context)),
            "modules": sorted(m for m in sys.modules if m.startswith("fedre_privacy.")),
            "numbers": sorted(numbers(context)),
            "images": sorted(pictures()),
            "opened": opened(self.told),
            "threads": torch.get_num_threads(),
        }
        count = observation.image_count()
        images = torch.full((count, *observation.image_shape), 0.5)
        return Reconstruction(
            images=images,
            prior=images.clone(),
            fit=torch.zeros(count),
            trace=torch.zeros(1, count),
            trace_steps=torch.zeros(1, dtype=torch.int64),
            stopped_because=b64encode(zlib.compress(json.dumps(found).encode())).decode(),
            diverged=torch.zeros(count, dtype=torch.bool),
        )


def words(observation: Observation, context: Context) -> set[str]:
    """Every text within reach: of all objects, frames, the environment, open files."""
    out = {*sys.argv, *sys.path, *sys.orig_argv, *os.environ.values(), os.getcwd()}
    frame = sys._getframe()
    while frame is not None:
        out |= {repr(value)[:100_000] for value in frame.f_locals.values()}
        frame = frame.f_back  # type: ignore[assignment]
    for thing in gc.get_objects():
        if isinstance(thing, dict):
            out |= {v for v in thing.values() if isinstance(v, str) and len(v) < 1000}
            out |= {str(v) for v in thing.values() if isinstance(v, Path)}
        elif isinstance(thing, list | tuple):
            out |= {v for v in thing if isinstance(v, str) and len(v) < 1000}
        elif isinstance(thing, FunctionType) and thing.__closure__:
            out |= {str(cell.cell_contents)[:1000] for cell in thing.__closure__ if _filled(cell)}
    for number in range(64):
        try:
            out.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return out | {repr(observation.threat), repr(context)}


def _filled(cell: object) -> bool:
    try:
        cell.cell_contents  # type: ignore[attr-defined]  # noqa: B018
    except ValueError:
        return False
    return True


def numbers(context: Context) -> set[int]:
    """Every whole number within reach that could be a seed."""
    out = {context.seed}
    for thing in gc.get_objects():
        if isinstance(thing, dict):
            out |= {v for v in thing.values() if type(v) is int}
        elif isinstance(thing, list | tuple | set):
            out |= {v for v in thing if type(v) is int}
    return {number for number in out if number >= 0}


def pictures() -> set[str]:
    """Hash of every picture in every tensor within reach."""
    out = set()
    for thing in gc.get_objects():
        if isinstance(thing, Tensor) and thing.dim() == 4 and thing.shape[1] in (1, 3):
            whole = thing.detach().cpu()
            if whole.untyped_storage().nbytes() != whole.numel() * whole.element_size():
                out.add("a view into something larger")
            for picture in whole:
                out.add(hashlib.sha256(picture.contiguous().numpy().tobytes()).hexdigest())
    return out


def opened(told: str) -> list[str]:
    """What could be opened or reached of all that should not be."""
    out = []
    parent, others = os.getppid(), []
    for _ in range(4):  # up the line of parents, as far as it can be seen
        others.append(parent)
        try:
            status = Path(f"/proc/{parent}/stat").read_text()
            parent = int(status.rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            break
    guesses = [f"/proc/{n}/{what}" for n in others for what in ("environ", "cwd/.", "mem") if n]
    if told:
        guesses += [told, f"{told}/record.json", f"{told}/private/split.safetensors"]
    for guess in guesses:
        try:
            if os.path.isdir(guess):
                os.listdir(guess)
            else:
                with open(guess, "rb") as handle:
                    handle.read(1)
            out.append(guess)
        except OSError:
            continue
    if told:
        try:
            Path(told, "changed").write_text("by the attack")
            out.append("written")
        except OSError:
            pass
    return out
