"""What a protocol says of its own channel, and what is said where an upload is something else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedre_privacy.core.channels import NOTHING, Channel, Masking
from fedre_privacy.core.registry import allow_module_paths
from fedre_privacy.experiments.attack import attack, prepare_attack
from fedre_privacy.experiments.declaration_check import departure
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.fedproto import FedProto
from fedre_privacy.runs.preparation import load_images
from fedre_privacy.runs.resolution import require_resolved, resolve_attack
from fedre_privacy.runs.training import train

UNSAID = '''

class Unsaid(SparseProto):
    """The same without a word of it."""

    def channel(self):
        return Channel()
'''
DIM = 128
SMALL = {
    "data": {"size": 16, "per_class": 12}, "model": {"name": "cnn4", "dim": DIM},
    "train": {"clients": 3, "rounds": 2, "batch_size": 8},
    "partition": {"name": "pra", "alpha": 0.5},
}  # fmt: skip


@pytest.fixture(scope="module")
def sparse(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs of the documented protocol that sends a sparse vector: as shown, and without channel."""
    page = (repo / "docs" / "add_your_own.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "SparseProto" in b)
    folder = tmp_path_factory.mktemp("sparse")
    (folder / "sparse_protocols.py").write_text(block + UNSAID, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield {name: f"sparse_protocols:{name}" for name in ("SparseProto", "Unsaid")}


def trained(tiny: Any, folder: Path, protocol: Any) -> Any:
    if isinstance(protocol, str):
        allow_module_paths({"protocol": protocol})
    return train(tiny(**{**SMALL, "protocol": protocol}), runs=folder)


def asked(**more: Any) -> Any:
    problems: list[str] = []
    own = {"targets": 6, "ceiling": 0, "fewest_first": True, "public": 60, "gallery": 20}
    values = {
        "attack": {"name": "dip", "steps": 2},
        "eval": {**own, **more.pop("eval", {})},
        **more,
    }
    return require_resolved(resolve_attack(values, {}, problems), problems)


def departs(run: Any) -> str:
    return departure(TargetSource(run, load_images(run.settings)[0], round=None, seed=0))


def test_a_declared_channel_is_told_and_nothing_departs_from_it(
    tiny: Any, sparse: Any, tmp_path: Path
) -> None:
    run = trained(tiny, tmp_path, sparse["SparseProto"])
    trial = prepare_attack(run, asked())
    assert trial.observation.channel == Channel(rows=(Masking(),))
    assert "adaptive to sparse_protocols:SparseProto" in trial.lines()["Attacker"]
    assert not trial.departs and "Note" not in trial.lines()
    naive = prepare_attack(run, asked(eval={"attacker": "naive"}))
    assert naive.observation.channel == NOTHING and not naive.departs


def test_an_upload_that_is_not_what_was_declared_is_said_in_notes_and_verdict(
    tiny: Any, sparse: Any, tmp_path: Path
) -> None:
    run = trained(tiny, tmp_path, sparse["Unsaid"])
    result = attack(run, asked(), isolation="same-process")
    said = result.trial.departs
    assert re.match(r"(\d+) of \1 uploaded vectors are not the class prototypes that ", said)
    assert said.endswith("attacks are not adapted to what is uploaded")
    assert result.trial.lines()["Note"] == said and said in result.card.notes
    assert result.card.verdict.because.endswith(f"; weakened: {said}")
    assert said in result.record["trial"]["Note"]
    seen = prepare_attack(run, asked(target="representations"))
    assert seen.counterfactual and not seen.departs
    members = prepare_attack(run, asked(attack={"name": "membership"}, threat="strong"))
    assert members.departs == said


@pytest.mark.slow
def test_an_attack_that_is_told_of_a_sparse_vector_recovers_more(
    tiny: Any, sparse: Any, tmp_path: Path
) -> None:
    found = {}
    for name, protocol in {**sparse, "plain": "fedproto"}.items():
        run = trained(tiny, tmp_path, protocol)
        settings = asked(attack={"name": "dip", "steps": 100})
        found[name] = attack(run, settings, isolation="same-process").card.get("psnr").value
    assert found["SparseProto"] > found["Unsaid"] + 1.5, found
    assert abs(found["SparseProto"] - found["plain"]) < 1.5, found


@pytest.mark.parametrize("name", [n for n in protocols.names() if protocols.get(n)().uploads])
@pytest.mark.slow
def test_built_in_protocols_upload_what_they_declare(tiny: Any, tmp_path: Path, name: str) -> None:
    own = {"small": {"dim": 16}} if name == "fedmrl" else {}
    assert departs(train(tiny(protocol={"name": name, **own}), runs=tmp_path)) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": "fedre"},
        {"protocol": "fedgh", "defense": "clip:norm=0.1"},
        {"protocol": "fedgh", "defense": "mask"},
        {"protocol": "fedgh", "defense": "gaussian:clip=1,noise=1"},
        {"protocol": "fedallrep"},
        {"protocol": "fedallrep", "defense": "shredder:strength=1"},
        {"protocol": "fedgh", "defense": "cem:noise=1"},
    ],
)
def test_declared_bounds_masks_and_noise_are_no_departure(
    tiny: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert departs(train(tiny(**changes), runs=tmp_path)) == ""


def test_a_single_client_that_sends_something_else_is_counted(tiny: Any, runs: Any) -> None:
    run = runs["fedgh"]
    source = TargetSource(run, load_images(run.settings)[0], round=None, seed=0)
    client = source.clients[0]
    (artifact,) = source.uploads[client].artifacts
    count = sum(len(u.artifacts[0].labels) for u in source.uploads.values())
    other = replace(artifact, means=artifact.means.flip(1))
    source.uploads[client] = replace(source.uploads[client], artifacts=(other,))
    assert departure(source).startswith(f"{len(artifact.labels)} of {count} uploaded vectors")
    half = replace(artifact, means=artifact.means.half().float())
    source.uploads[client] = replace(source.uploads[client], artifacts=(half,))
    assert departure(source) == ""


def test_a_protocol_declares_nothing_by_default() -> None:
    assert FedProto().channel() == NOTHING
    assert all(protocols.get(name)().channel() is not None for name in protocols.names())
