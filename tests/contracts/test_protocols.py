"""What every protocol promises; a new one is tested by being registered."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.config import build_plugin, plain_plugin
from fedre_privacy.core.contents import Holds, Role, Sum
from fedre_privacy.federation.ledger import measure
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.play.fit import check_ahead
from fedre_privacy.protocols.base import protocols
from fedre_privacy.reproduction.recorded import sizes_of_run
from fedre_privacy.runs.resolving import resolve_attack
from fedre_privacy.runs.training import train
from fedre_privacy.study.suite import default_suite

settings_of = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["settings_of"]
NAMES = protocols.names()
SELDOM = {
    "fd", "fedala", "fedallrep", "fedapen", "fedavgdbe", "fedgen", "fedgh", "fedproto",
    "fedral", "fedsgd", "fml", "fpl", "lg-fedavg", "local",
}  # fmt: skip
"""Trained twice in the slow tests only; a protocol of your own always is."""


@pytest.mark.parametrize("name", NAMES)
def test_declarations(name):
    made = protocols.get(name)()
    assert made.name == name and type(made).__doc__
    assert made.headline in ("post_local", "post_broadcast")
    assert made.sums in ("", "samples", "classes", "clients")
    assert all(issubclass(kind, Artifact) and kind.kind for kind in made.uploads)
    problems: list[str] = []
    assert build_plugin(protocols, plain_plugin(made), at="protocol", problems=problems) == made


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_declared_goes_out_and_it_is_finite(name, trained):
    run = trained(name)
    declared = protocols.get(name)().uploads
    uploads, broadcasts = read_messages(run.folder / "uploads")
    sent = [artifact for message in (*uploads, *broadcasts) for artifact in message.artifacts]
    assert {type(a) for upload in uploads for a in upload.artifacts} <= set(declared)
    assert all(bool(t.isfinite().all()) for artifact in sent for t in artifact.tensors().values())
    once = {type(a) for u in uploads if u.round == 0 for a in u.artifacts}
    assert all(kind in once for kind in declared if Role.ONCE in kind.roles)


@pytest.mark.parametrize("name", NAMES)
def test_rows_come_with_their_provenance(name, trained):
    """Without it the evaluator cannot say which images an attack should have found."""
    run = trained(name)
    last = run.settings.train.rounds
    mixtures = run.mixtures(last)
    for upload in read_messages(run.folder / "uploads", [last])[0]:
        for number, artifact in enumerate(upload.artifacts):
            rows = artifact.rows()
            if rows is not None and Role.COLLECTED in artifact.roles:
                assert mixtures[upload.client, number].num_rows == len(rows)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SELDOM else n for n in NAMES]
)
def test_same_seed_same_bytes(name, trained, tmp_path):
    first = trained(name)
    again = train(settings_of(name), runs=tmp_path)
    assert again.name == first.name
    for file in sorted((first.folder / "uploads").glob("*.safetensors")):
        assert file.read_bytes() == (again.folder / "uploads" / file.name).read_bytes(), file.name


@pytest.mark.parametrize("name", NAMES)
def test_a_formula_of_traffic_is_what_is_sent(name, trained):
    run = trained(name)
    sizes = sizes_of_run(run)
    found = run.settings.protocol.traffic(sizes) if sizes else None
    if found is None:
        pytest.skip(f"{name} has no formula for these settings")
    uploads, broadcasts = read_messages(run.folder / "uploads", [2])
    for count, ledger in (
        (found.up, measure((u.artifacts, 1) for u in uploads)),
        (found.down, measure((b.artifacts, len(b.recipients)) for b in broadcasts)),
    ):
        if count is not None:
            counted = (count.paper, count.complete, count.nbytes)
            assert counted == (ledger.scalars_paper, ledger.scalars_complete, ledger.nbytes)


@pytest.mark.parametrize("name", NAMES)
def test_the_default_suite_can_be_run(name):
    training = settings_of(name)
    problems: list[str] = []
    for values in default_suite(training):
        settings = resolve_attack(dict(values), {}, problems)
        assert settings is not None and not problems
        check_ahead(training, settings)


@pytest.mark.parametrize("kind", [kind for kind in Artifact.kinds.values() if kind.kind])
def test_kinds_declare_what_fits_together(kind):
    assert kind.roles <= set(Role) and kind.summed in Sum and kind.holds in (None, *Holds)
    assert all(issubclass(other, Artifact) and other is not kind for other in kind.like)
    assert not {Role.VECTORS, Role.TRAINED} <= kind.roles
    if Role.COLLECTED in kind.roles:
        assert Role.VECTORS in kind.roles and kind.rows is not Artifact.rows
    if kind.holds is not None:
        assert kind.updates
