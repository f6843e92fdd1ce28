"""Federations of several seeds and attacks on them, for benchmarks that print one table."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tools import dataset_of, options

from fedre_privacy.core.config import merge
from fedre_privacy.experiments.attack import AttackResult, attack
from fedre_privacy.runs.resolution import require_resolved, resolve_attack, resolve_training
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings
from fedre_privacy.runs.training import train


def federation_options(text: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Options of a benchmark that trains federations of several seeds and attacks them.

    Args:
        text: the benchmark's docstring.
        defaults: of an option each; one whose default is a number takes numbers.
    """
    given = {"dataset": "digits", "per_class": None, "clients": 10, **defaults}
    helps = {
        "dataset": "its name, or npz:FILE",
        "per_class": "images of each class",
        "trained": "rounds of training",
        "targets": "attacked for each seed",
    }
    made = options(text)
    for name, default in given.items():
        kind = int if name == "per_class" or isinstance(default, int) else type(default)
        flag = f"--{name.replace('_', '-')}"
        made.add_argument(flag, type=kind, default=default, help=helps.get(name))
    return made


def seeds_of(parser: argparse.ArgumentParser, asked: Any, tuned: Collection[int]) -> list[int]:
    """The seeds asked for; ends the program where one of them served to choose settings."""
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    if wrong := sorted(set(seeds) & set(tuned)):
        parser.error(f"settings were chosen on seeds {wrong}; report others")
    return seeds


def training(values: Mapping[str, Any], runs: Path) -> Run:
    """The run of these settings; what was trained before is read back."""
    problems: list[str] = []
    settings = require_resolved(resolve_training(values, {}, problems), problems)
    return train(settings, runs=runs, wait=True)


def federation(protocol: str, seed: int, asked: Any, **more: Any) -> Run:
    """A run of clients of `pra:0.1`, of the data set, clients and rounds asked for.

    Args:
        more: further sections of settings.
    """
    values = {
        "data": dataset_of(asked.dataset, asked.per_class),
        "partition": {"name": "pra", "alpha": 0.1},
        "protocol": {"name": protocol},
        "train": {"clients": asked.clients, "rounds": asked.trained, "seed": seed},
    }
    return training(merge(values, more), asked.out)


def attacking(values: Mapping[str, Any]) -> AttackSettings:
    """The settings of an attack."""
    problems: list[str] = []
    return require_resolved(resolve_attack(values, {}, problems), problems)


def attacked(run: Run, values: Mapping[str, Any]) -> AttackResult:
    """An attack on a run; what was attacked before is read back."""
    return attack(run, attacking(values), wait=True)


def targets(result: AttackResult) -> pd.DataFrame:
    """Scores of an attack's own targets, without what stands beside them."""
    rows = result.frame()
    return rows[rows["group"] == "target"]


def pooled(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Targets of all seeds; a client of another seed is another `unit`."""
    return pd.concat([p.assign(unit=p["client"] + 1000 * i) for i, p in enumerate(parts)])
