"""Secure aggregation: training unchanged, sums recorded, single clients out of reach."""

import pytest
import torch

from fedre_privacy.core import files
from fedre_privacy.core.artifacts import Counts, EntangledRep, HeadState, ModelState, Prototypes
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import AGGREGATE, Upload
from fedre_privacy.defenses.base import defenses
from fedre_privacy.defenses.secagg import aggregate_upload
from fedre_privacy.defenses.statement import check_all, state
from fedre_privacy.experiments.attack import attack
from fedre_privacy.experiments.compatibility import check_ahead
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.preparation import facts_of, prepare
from fedre_privacy.runs.resolution import resolve_attack, resolve_training
from fedre_privacy.runs.training import train

SECAGG = defenses.get("secagg")()
SUPER = {"name": "fedre", "super_pair": True}
SUMS = [name for name in protocols.names() if protocols.get(name).sums]


def test_the_protocols_named_are_those_that_need_sums():
    settings = resolve_training({"protocol": "fedgh"}, {}, [])
    assert settings is not None
    facts = facts_of(settings, prepare(settings, torch.device("cpu")).setting)
    fedre = f"fedre with protocol.{protocols.get('fedre').sums_with}"
    assert set(facts.summing) == {*SUMS, fedre} and fedre in SECAGG.check(facts)[0]
    assert protocols.get("fedre")(super_pair=True).sums == "clients"
    assert not protocols.get("fedre")().sums


@pytest.mark.parametrize(
    "name",
    [
        SUPER,
        *(
            name if name in ("fedavg", "fedproto") else pytest.param(name, marks=pytest.mark.slow)
            for name in SUMS
        ),
    ],
    ids=str,
)
def test_training_is_the_same_and_the_server_sees_one_sum_a_round(name, tiny, tmp_path):
    free = train(tiny(protocol=name, train={"rounds": 2}), runs=tmp_path)
    summed = train(tiny(protocol=name, defense="secagg", train={"rounds": 2}), runs=tmp_path)
    for key, value in free.record["final"].items():
        assert summed.record["final"][key] == value, key
    before = files.read_tensors(next((free.folder / "models").glob("*.safetensors")))
    after = files.read_tensors(next((summed.folder / "models").glob("*.safetensors")))
    assert all(torch.equal(before[key], after[key]) for key in before)
    uploads, sent = read_messages(summed.folder / "uploads")
    assert [u.client for u in uploads] == [AGGREGATE] * len(uploads)
    assert {u.round for u in uploads if u.round} == {1, 2}
    assert all(u.participants == (0, 1, 2) for u in uploads)
    alone, _ = read_messages(free.folder / "uploads")
    assert len(alone) == 3 * len(uploads)


def test_the_sum_is_all_that_the_server_needs(tiny, tmp_path):
    run = train(tiny(protocol="fedavg", defense="secagg", train={"rounds": 2}), runs=tmp_path)
    uploads, sent = read_messages(run.folder / "uploads")
    for upload in uploads:
        for artifact in upload.artifacts:
            if isinstance(artifact, ModelState):
                (after,) = [b for b in sent if b.round == upload.round + 1]
                for name, value in after.artifacts[0].params.items():
                    torch.testing.assert_close(artifact.params[name], value, rtol=1e-6, atol=1e-7)
            else:
                assert artifact.values.tolist() == [sum(map(sum, run.record["class_counts"]))]


def test_the_super_pair_is_what_the_server_learns_from(tiny, tmp_path):
    single = train(tiny(protocol="fedre", train={"rounds": 1}), runs=tmp_path)
    run = train(tiny(protocol=SUPER, defense="secagg", train={"rounds": 1}), runs=tmp_path)
    alone, _ = read_messages(single.folder / "uploads")
    (summed,), _ = read_messages(run.folder / "uploads")
    pairs = [u.artifacts[0] for u in alone]
    (pair,) = summed.artifacts
    torch.testing.assert_close(pair.rep, torch.stack([p.rep for p in pairs]).mean(0))
    torch.testing.assert_close(pair.encoding, torch.stack([p.encoding for p in pairs]).mean(0))
    assert float(pair.encoding.sum()) == pytest.approx(1)
    assert len(alone) == 3 and summed.participants == (0, 1, 2)


def test_means_are_weighted_by_samples():
    one, two = ({"w": torch.full((2,), v)} for v in (1.0, 4.0))
    upload = aggregate_upload(
        [Upload(0, 3, (HeadState(one),)), Upload(2, 3, (HeadState(two),))], [2, 9, 1]
    )
    assert (upload.client, upload.round, upload.participants) == (AGGREGATE, 3, (0, 2))
    assert upload.artifacts[0].params["w"].tolist() == [2.0, 2.0]
    rows = [torch.tensor([[2.0], [8.0]]), torch.tensor([[5.0]])]
    labels = [torch.tensor([0, 3]), torch.tensor([3])]
    plain = [Upload(k, 1, (Prototypes(rows[k], labels[k]),)) for k in (0, 1)]
    means, counts = aggregate_upload(plain, [1, 1]).artifacts
    assert means.means.flatten().tolist() == [2.0, 6.5] and means.labels.tolist() == [0, 3]
    assert counts.values.tolist() == [1, 2]
    sized = [
        Upload(k, 1, (Prototypes(rows[k], labels[k]), Counts(torch.tensor(n))))
        for k, n in ((0, [4, 1]), (1, [2]))
    ]
    means, counts = aggregate_upload(sized, [1, 1]).artifacts
    assert means.means.flatten().tolist() == [2.0, 6.0] and counts.values.tolist() == [4, 3]


def test_protocols_that_need_single_uploads_are_refused_with_the_reason(facts):
    (pairs,) = check_all(
        [SECAGG], facts(protocol="fedre", kinds=(EntangledRep,), summing=("fedavg",))
    )
    assert "learns from single pairs" in pairs and "fedavg" in pairs
    (single,) = check_all([SECAGG], facts(protocol="fedgen", kinds=(HeadState, Counts)))
    assert "uses single uploads" in single
    clip = defenses.get("clip")()
    fedavg = facts(protocol="fedavg", kinds=(ModelState, Counts), sums="samples")
    assert "must come last" in check_all([SECAGG, clip], fedavg)[0]
    assert check_all([clip, SECAGG], fedavg) == []
    assert state([SECAGG], fedavg).lines() == ["secagg: no formal privacy"]


@pytest.mark.slow
def test_a_sum_of_gradients_is_one_update_of_more_images(tiny, tmp_path):
    settings = tiny(protocol="fedsgd", defense="secagg", train={"rounds": 1})
    run = train(settings, runs=tmp_path)
    problems = []
    wanted = resolve_attack(
        {
            "attack": {"name": "inverting-gradients", "steps": 2}, "target": "update",
            "eval": {"targets": 4, "per_update": 2, "metrics": ("psnr",)},
        }, {}, problems,
    )  # fmt: skip
    assert not problems
    result = attack(run, wanted)
    (target,) = result.trial.observation.targets
    assert target.client == AGGREGATE
    truth = result.trial.groups["target"].truth
    assert len(truth.images) == sum(
        min(settings.train.batch_size, sum(counts)) for counts in run.record["class_counts"]
    )
    assert "one sum over 3 clients" in result.trial.lines()["Uploaded"]


@pytest.mark.parametrize(
    ("protocol", "values"),
    [
        ("fedavg", {"attack": "head", "target": "uploaded"}),
        ("fedproto", {"attack": "dip", "target": "uploaded"}),
        (SUPER, {"attack": "disentangle", "target": "uploaded", "threat": "strong"}),
        ("fedavg", {"attack": "dip", "target": "representations"}),
        ("fedsgd", {"attack": "labels", "target": "labels", "threat": "realistic"}),
    ],
)
def test_attacks_on_single_clients_are_refused(protocol, values, tiny):
    training = tiny(protocol=protocol, defense="secagg")
    with pytest.raises(IncompatibleError, match="sees one sum over clients"):
        check_ahead(training, resolve_attack(values, {}, []))
