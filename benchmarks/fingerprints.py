"""SHA-256 of what small runs write: every protocol, scheme, defence and attack, on digits.

Two versions of the package whose lists are equal compute the same uploads, models, answers and
scores, bit for bit, on one machine. Take a list before a change and compare after it:

    python benchmarks/fingerprints.py --out before.json
    python benchmarks/fingerprints.py --out after.json --compare before.json

Only the commands are used, so that versions with other insides can be compared. Attack `analytic`
is not among them: it reads networks that no built-in architecture is.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import tools
import torch
import yaml

from fedre_privacy.attacks.base import attacks
from fedre_privacy.cli import attack as attack_command
from fedre_privacy.cli import train as train_command
from fedre_privacy.defenses.base import defenses
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.protocols.base import protocols

Values = dict[str, Any]

TINY: Values = {
    "data": {"name": "digits", "size": 16, "per_class": 12},
    "partition": {"name": "pra", "alpha": 0.5},
    "model": {"name": "cnn4", "dim": 32},
    "train": {"clients": 3, "rounds": 2, "batch_size": 8},
    "record": {"keep_every": 1},
}
PROTOCOLS: dict[str, Values] = {"fedmrl": {"protocol": {"name": "fedmrl", "small": {"dim": 16}}}}
"""Protocols that need more than their name."""
DEFENCES: dict[str, tuple[str, str]] = {
    "adversarial-decoder": ("fedgh", "adversarial-decoder"),
    "cem": ("fedgh", "cem"),
    "clip": ("fedproto", "clip"),
    "disco": ("fedgh", "disco"),
    "dp-sgd": ("fedgh", "dp-sgd:clip=1,noise=1"),
    "dp-mf": ("fedgh", "dp-mf:clip=1,noise=1"),
    "gaussian": ("fedgh", "gaussian:clip=1,noise=1,unit=record"),
    "information-bottleneck": ("fedgh", "information-bottleneck"),
    "label-smoothing": ("fedre", "label-smoothing"),
    "laplace": ("fedproto", "laplace:clip=1,epsilon=50"),
    "mask": ("fedproto", "mask"),
    "mixup": ("fedsgd", "mixup"),
    "nopeek": ("fedgh", "nopeek"),
    "prune": ("fedavg", "prune"),
    "quantise": ("fedproto", "quantise"),
    "secagg": ("fedavg", "secagg"),
    "minimum-count": ("fedpft", "minimum-count:count=2"),
    "shrink-covariance": ("fedpft", "shrink-covariance"),
    "shredder": ("fedgh", "shredder"),
    "soteria": ("fedgh", "soteria"),
    "statistics-noise": ("fedcgs", "statistics-noise:clip=1,noise=1,delta=1e-3"),
}
"""A protocol for each defence, and the defence's parameters."""
ATTACKS: dict[str, Values] = yaml.safe_load(
    Path(__file__).with_name("short_attacks.yaml").read_text(encoding="utf-8")
)
"""How an attack is run; one without an entry is run on fedre as it is."""
MORE: dict[str, Values] = {
    "dip on recovered prototypes": {
        "name": "dip", "rounds": 6, "threat": "strong", "target": "recovered-prototypes",
        "attack": {"steps": 3},
    },
    "dip on representations under noise": {
        "name": "dip", "protocol": "fedallrep", "attack": {"steps": 3},
        "defense": ["gaussian:clip=1,noise=1,unit=record"],
    },
    "average under mask and noise": {
        "name": "average", "protocol": "fedgh", "threat": "strong",
        "defense": ["gaussian:clip=1,noise=1", "mask"],
    },
    "inverting-gradients under pruning": {
        "name": "inverting-gradients", "protocol": "fedsgd", "target": "update",
        "attack": {"steps": 6}, "defense": ["clip", "prune"],
    },
    "disentangle, quantised and clipped": {
        "name": "disentangle", "rounds": 6, "threat": "strong", "defense": ["clip", "quantise"],
    },
    "update-inversion of a low-rank update": {
        "name": "update-inversion", "protocol": "fedkd", "target": "update",
        "attack": {"steps": 6},
    },
    "loss-membership of representations' heads": {
        "name": "loss-membership", "protocol": "lg-fedavg", "target": "membership",
    },
}  # fmt: skip
"""Attacks on changed uploads and in two stages."""
EVAL = {"targets": 3, "ceiling": 2, "per_update": 2, "candidates": 10, "metrics": ["psnr", "ssim"]}
ELSEWHERE = {"analytic"}


def laid(base: Values, over: Values) -> Values:
    """Settings over others, section by section."""
    out = {key: dict(value) for key, value in base.items()}
    for key, value in over.items():
        out[key] = {**out.get(key, {}), **value} if isinstance(value, dict) else value
    return out


def trainings() -> Iterator[tuple[str, Values]]:
    """Every training under its case's name."""
    for name in protocols.names():
        yield f"protocol {name}", PROTOCOLS.get(name, {"protocol": {"name": name}})
    for name in schemes.names():
        own = {"protocol": {"name": "fedre", "entanglement": {"name": name}}}
        yield f"scheme {name}", own
    for name in defenses.names():
        protocol, text = DEFENCES.get(name, ("fedgh", name))
        yield f"defence {name}", {"protocol": {"name": protocol}, "defense": [text]}
    mixed = {"model": {"name": "resnet8,resnet4,cnn-1"}, "protocol": {"name": "fedre"}}
    yield "several architectures", mixed


def asked() -> Iterator[tuple[str, str, Values]]:
    """Every attack: its case's name, its own name, how it is run."""
    for name in attacks.names():
        if name not in ELSEWHERE:
            yield f"attack {name}", name, ATTACKS.get(name, {})
    for title, values in MORE.items():
        yield f"attack {title}", values["name"], values


def command(main: Any, values: Values, folder: Path, *more: str) -> Path:
    """Run a command in this process; return the folder it wrote.

    Raises:
        SystemExit: it was refused; its message is on stderr.
    """
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(values))
    told = io.StringIO()
    with redirect_stdout(told):
        words = ["--config", str(config), "--runs-dir", str(folder / "runs"), "--quiet", *more]
        code = main(words)
    if code:
        raise SystemExit(f"{values} ended with code {code}")
    return Path(told.getvalue().split()[-1])


def digest(paths: Sequence[Path], root: Path) -> str:
    """SHA-256 over names and contents."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.relative_to(root).as_posix().encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def trained(case: str, values: Values, folder: Path) -> dict[str, str]:
    """Prints of a training's name, uploads and models."""
    run = command(train_command.main, laid(TINY, values), folder)
    return {
        f"{case}: run name": run.name,
        f"{case}: uploads": digest(list((run / "uploads").glob("*.safetensors")), run),
        f"{case}: models": digest(list((run / "models").rglob("*.safetensors")), run),
    }


def attacked(case: str, name: str, values: Values, folder: Path) -> dict[str, str]:
    """Prints of an attack's answer and scores."""
    settings = laid(
        TINY,
        {
            "protocol": {"name": values.get("protocol", "fedre")},
            "train": {"rounds": values.get("rounds", 2)},
            "attack": {"name": name, **values.get("attack", {})},
            "threat": values.get("threat", "fedre-paper"),
            "eval": EVAL,
        },
    )
    settings |= {key: values[key] for key in ("target", "defense", "steering") if key in values}
    done = command(attack_command.main, settings, folder, "--isolation", "same-process")
    return {
        f"{case}: folder": done.name,
        f"{case}: answer": digest([done / "recovered.safetensors"], done),
        f"{case}: scores": digest([done / "scores.csv"], done),
    }


def parser() -> argparse.ArgumentParser:
    """Make the option parser."""
    made = tools.options(__doc__)
    made.add_argument("--out", type=Path, help="write the list to this JSON file")
    made.add_argument("--compare", type=Path, help="say what differs from the list in this file")
    made.add_argument("--only", default="", help="cases whose names hold this text")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the list; return 1 if it differs from the one to compare with."""
    chosen = parser().parse_args(arguments)
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for case, values in trainings():
            if chosen.only in case:
                found |= trained(case, values, folder)
        for case, name, how in asked():
            if chosen.only in case:
                found |= attacked(case, name, how, folder)
    print(f"{len(found)} prints")
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    if not chosen.compare:
        return 0
    before = json.loads(chosen.compare.read_text())
    wanted = {key: value for key, value in before.items() if chosen.only in key.split(": ")[0]}
    differ = [key for key, value in wanted.items() if found.get(key) != value]
    new = [key for key in found if key not in wanted]
    for key in differ:
        print(f"differs: {key}" if key in found else f"absent: {key}")
    print(f"{len(wanted) - len(differ)} of {len(wanted)} as before, {len(new)} new")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
