"""Targets and their truth: every row is recomputed from the images said to have made it."""

import shutil

import pytest
import torch

from fedre_privacy.core.artifacts import Prototypes, Representations
from fedre_privacy.core.errors import DamagedInputError, IncompatibleError, MissingInputError
from fedre_privacy.experiments.attack import prepare_attack
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.runs.resolution import resolve_attack
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train

PROTOCOLS = ["fedre", "fedgh", "fedallrep", "local"]
KINDS = ["representations", "prototypes", "entangled"]
REAL = {"fedre": "entangled", "fedgh": "prototypes", "fedallrep": "representations"}


def _source(run, digits, *, seed=0, round=None):
    return TargetSource(run, digits, round=round, seed=seed)


def _rows(group):
    return torch.cat([artifact.rows() for u in group.uploads for artifact in u.artifacts])


def _indices(images, digits):
    """Where float images stand in the data set; every digit is unique."""
    known = {image.numpy().tobytes(): i for i, image in enumerate(digits.images)}
    assert len(known) == len(digits)
    levels = (images * 255).round().to(torch.uint8)
    assert torch.equal(levels.float() / 255, images)
    return [known[image.numpy().tobytes()] for image in levels]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_truth_recomputes_every_target(runs, digits, name, kind):
    run = runs[name]
    group = _source(run, digits).group(kind, 12)
    truth, rows = group.truth, _rows(group)
    assert group.counterfactual == (REAL.get(name) != kind)
    assert all(upload.counterfactual == group.counterfactual for upload in group.uploads)
    assert len(group) == len(rows) == truth.mixture.num_rows == len(truth.target_labels)
    owners = [u.client for u in group.uploads for a in u.artifacts for _ in a.rows()]
    assert truth.target_clients.tolist() == owners

    train_parts, _ = run.split_indices()
    where = _indices(truth.images, digits)
    for i, (index, client) in enumerate(zip(where, truth.clients.tolist(), strict=True)):
        assert index in train_parts[client].tolist()
        assert digits.labels[index] == truth.labels[i]

    reps = torch.empty(len(truth.images), 32)
    for client in set(truth.clients.tolist()):
        own = truth.clients == client
        reps[own] = run.model(client, 2).extractor(truth.images[own])
    mixture = truth.mixture
    entries = list(
        zip(mixture.row.tolist(), mixture.sample.tolist(), mixture.weight.tolist(), strict=True)
    )
    for row, target in enumerate(rows):
        mine = [(sample, weight) for r, sample, weight in entries if r == row]
        assert sum(weight for _, weight in mine) == pytest.approx(1, abs=1e-5)
        assert {int(truth.clients[sample]) for sample, _ in mine} == {owners[row]}
        rebuilt = sum(weight * reps[sample] for sample, weight in mine)
        torch.testing.assert_close(target, rebuilt, rtol=1e-4, atol=1e-4)
        classes = {int(truth.labels[sample]) for sample, _ in mine}
        label = classes.pop() if len(classes) == 1 else -1
        assert truth.target_labels[row] == label
        members = int((digits.labels[train_parts[owners[row]]] == label).sum())
        if kind == "representations":
            assert len(mine) == 1
        if kind == "prototypes":
            assert len(mine) == members and label >= 0


@pytest.mark.parametrize("name", list(REAL))
def test_real_targets_are_the_recorded_rows(runs, digits, name):
    run = runs[name]
    source = _source(run, digits)
    group = source.group(REAL[name], 10_000)
    recorded = {u.client: u for u in read_messages(run.folder / "uploads", [2])[0]}
    assert [u.client for u in group.uploads] == sorted(recorded) == [0, 1, 2]
    for upload in group.uploads:
        for mine, sent in zip(upload.artifacts, recorded[upload.client].artifacts, strict=True):
            assert mine.tensors().keys() == sent.tensors().keys()
            for key, tensor in mine.tensors().items():
                assert torch.equal(tensor, sent.tensors()[key])
    assert source.uploaded_kind() == REAL[name]
    few = source.group(REAL[name], 4)
    for upload in few.uploads:
        sent = recorded[upload.client].artifacts[0].rows()
        for row in upload.artifacts[0].rows():
            assert (sent == row).all(1).any()


def test_counterfactual_prototypes_are_what_fedgh_would_send(runs, digits):
    """Not the same numbers, for the models differ, but the same classes of the same samples."""
    real = _source(runs["fedgh"], digits).group("prototypes", 10_000)
    asked = _source(runs["fedre"], digits).group("prototypes", 10_000)
    assert asked.counterfactual and not real.counterfactual
    assert torch.equal(asked.truth.images, real.truth.images)
    assert torch.equal(asked.truth.mixture.weight, real.truth.mixture.weight)
    assert torch.equal(asked.truth.target_labels, real.truth.target_labels)


def test_counterfactual_entanglement_draws_the_weights_of_fedre(runs, digits):
    """Encodings depend on seed, client and round only, so they must equal the recorded ones."""
    real = _source(runs["fedre"], digits).group("entangled", 3)
    for name in ("fedgh", "local"):
        asked = _source(runs[name], digits).group("entangled", 3)
        assert asked.counterfactual
        for one, other in zip(asked.uploads, real.uploads, strict=True):
            assert torch.equal(one.artifacts[0].encoding, other.artifacts[0].encoding)


@pytest.mark.parametrize("kind", ["representations", "prototypes"])
def test_targets_are_spread_and_counted(runs, digits, kind):
    source = _source(runs["fedre"], digits)
    for count in (1, 3, 7, 12):
        group = source.group(kind, count)
        assert len(group) == count
        per_client = torch.bincount(group.truth.target_clients, minlength=3)
        assert per_client.max() - per_client.min() <= 1
        rows = {tuple(row.tolist()) for row in _rows(group)}
        assert len(rows) == count  # nothing twice
    every = source.group(kind, 10_000)
    counts = runs["fedre"].record["class_counts"]
    available = (
        sum(map(sum, counts))
        if kind == "representations"
        else sum(1 for own in counts for n in own if n)
    )
    assert len(every) == available


def test_one_upload_per_client_is_all_there_is(runs, digits):
    group = _source(runs["fedre"], digits).group("entangled", 24)
    assert group.truth.target_clients.tolist() == [0, 1, 2]
    assert len(_source(runs["fedre"], digits).group("entangled", 2)) == 2


@pytest.mark.parametrize("name", ["fedgh", "fedallrep"])
@pytest.mark.parametrize("kind", ["representations", "prototypes"])
def test_the_same_seed_chooses_the_same_targets(runs, digits, name, kind):
    def chosen(seed):
        group = _source(runs[name], digits, seed=seed).group(kind, 5)
        return _rows(group), group.truth.target_labels

    (one, labels), (other, again), (third, _) = chosen(0), chosen(0), chosen(1)
    assert torch.equal(one, other) and torch.equal(labels, again)
    assert not torch.equal(one, third)


def test_labels_travel_with_their_rows(runs, digits):
    for name in PROTOCOLS:
        for kind, cls in (("representations", Representations), ("prototypes", Prototypes)):
            group = _source(runs[name], digits).group(kind, 9)
            sent = [a for u in group.uploads for a in u.artifacts]
            assert all(isinstance(artifact, cls) for artifact in sent)
            assert torch.cat([a.labels for a in sent]).equal(group.truth.target_labels)


def test_uploaded_resolves_to_what_is_sent(runs, digits):
    for name, kind in REAL.items():
        assert _source(runs[name], digits).kind_of("uploaded") == kind
        assert _source(runs[name], digits).kind_of("prototypes") == "prototypes"
    with pytest.raises(IncompatibleError, match="uploads no representations") as refused:
        _source(runs["local"], digits).kind_of("uploaded")
    assert "counterfactual" in str(refused.value)


def test_a_round_that_was_not_recorded_names_the_nearest(runs, digits):
    with pytest.raises(MissingInputError) as refused:
        _source(runs["fedre"], digits, round=9)
    assert "1 to 2" in str(refused.value) and "--set eval.round=2" in str(refused.value)


def test_a_round_whose_truth_was_not_kept_is_refused(runs, digits):
    source = _source(runs["fedgh"], digits, round=1)
    for kind in ("prototypes", "representations"):  # the upload's own, and a counterfactual one
        with pytest.raises(MissingInputError, match=r"--set eval\.round=2"):
            source.group(kind, 3)


def test_an_earlier_round_is_attacked_with_its_own_models(tiny, digits, tmp_path):
    run = train(tiny(protocol="fedgh", record={"keep_every": 1}), runs=tmp_path)
    early, late = (_source(run, digits, round=r).group("prototypes", 3) for r in (1, 2))
    assert {u.round for u in early.uploads} == {1}
    extractor = run.model(0, 1).extractor
    own = early.truth.mixture.sample[early.truth.mixture.row == 0]
    weight = early.truth.mixture.weight[early.truth.mixture.row == 0]
    torch.testing.assert_close(
        _rows(early)[0], weight @ extractor(early.truth.images[own]), rtol=1e-4, atol=1e-4
    )
    assert not torch.allclose(_rows(early), _rows(late))
    assert torch.equal(early.truth.images, late.truth.images)


def test_partial_participation_attacks_those_who_uploaded(tiny, digits, tmp_path):
    run = train(tiny(protocol="fedgh", train={"join_ratio": 0.67}), runs=tmp_path)
    senders = {u.client for u in read_messages(run.folder / "uploads", [2])[0]}
    assert len(senders) == 2
    for kind in KINDS:
        group = _source(run, digits).group(kind, 12)
        assert {u.client for u in group.uploads} == senders
        assert set(group.truth.clients.tolist()) == senders


def test_updates_of_the_fewest_images_may_be_chosen_and_all_of_these_sought(tiny, digits, tmp_path):
    run = train(
        tiny(
            protocol="fedavg",
            train={"rounds": 1, "batch_size": 2, "seed": 1},
            partition={"name": "pra"},
        ),
        runs=tmp_path,
    )
    source = _source(run, digits, round=1)
    every, _ = source.updates(100, 1)
    images = [len(every.truth.mixture.support(row)) for row in range(len(every))]
    clients = every.truth.target_clients.tolist()
    fewest, second = sorted(images)[:2]
    assert fewest < second
    smallest, each = source.updates(fewest, 1000, fewest_first=True)
    assert each == fewest and [u.client for u in smallest.uploads] == [
        clients[images.index(fewest)]
    ]
    limited, _ = source.updates(100, 1, max_images=fewest)
    assert len(limited) == images.count(fewest)
    with pytest.raises(IncompatibleError, match=f"smallest was made of {fewest}"):
        source.updates(4, 1, max_images=fewest - 1)


def test_no_truth_no_score(tiny, digits, tmp_path):
    run = train(tiny(record={"truth": False}, train={"rounds": 1}), runs=tmp_path)
    assert not (run.folder / "private").exists()
    with pytest.raises(MissingInputError) as refused:
        _source(run, digits)
    assert "record.truth=false" in str(refused.value)
    assert "Train again without --no-truth" in str(refused.value)


def test_provenance_that_is_absent_is_refused(runs, digits, tmp_path):
    run = Run(shutil.copytree(runs["fedgh"].folder, tmp_path / runs["fedgh"].name))
    (run.folder / "private" / "mixtures-r0002.safetensors").unlink()
    with pytest.raises(DamagedInputError, match="mixtures-r0002.* is no longer there"):
        _source(run, digits).group("prototypes", 3)


@pytest.mark.parametrize("name", ["fedre", "fedallrep"])
def test_held_out_images_were_trained_on_by_nobody(runs, digits, name):
    problems = []
    values = {"attack": "pixel", "threat": "strong", "eval": {"metrics": "psnr", "targets": 6}}
    settings = resolve_attack(values, {}, problems)
    assert not problems
    trial = prepare_attack(runs[name], settings, data=digits)
    train_parts, test_parts = runs[name].split_indices()
    trained = set(torch.cat(train_parts).tolist())
    public = set(_indices(trial.public.images, digits))
    aux = set(_indices(trial.observation.aux, digits))
    assert public and aux and not public & trained and not aux & trained and not public & aux
    assert public | aux <= set(torch.cat(test_parts).tolist())
    for group in trial.groups.values():
        assert set(_indices(group.truth.images, digits)) <= trained
