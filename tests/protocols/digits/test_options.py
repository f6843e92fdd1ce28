"""Options that are off by default: each against its formula, or against the protocol it becomes."""

import pytest
import torch
from torch.nn import functional as F

from fedre_privacy.core.artifacts import (
    Counts,
    HeadState,
    LowRankChange,
    LowRankModel,
    ModelState,
    Prototypes,
    SmallModelState,
)
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Upload
from fedre_privacy.federation import loop
from fedre_privacy.federation.steps import server_step
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.models.split import num_parameters, parameters_of
from fedre_privacy.protocols.blocks.state import Task

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
UNEVEN = {"per_class": 7, "train": {"rounds": 1}}  # numbers of samples differ


def _mean(states, weights):
    share = [w / sum(weights) for w in weights]
    return {n: sum(w * s[n] for w, s in zip(share, states, strict=True)) for n in states[0]}


def _sizes(fed):
    sizes = [len(client.train) for client in fed.clients]
    assert len(set(sizes)) > 1
    return sizes


# --- every protocol: loader, recipients, origin --------------------------------------------------


@pytest.mark.parametrize("name", ["fedgh", "fedproto", "fedre", "fedallrep", "fd"])
@pytest.mark.slow
def test_reference_loader_leaves_out_the_last_short_batch(world, name):
    fed = world(name, train={"rounds": 1, "reference_loader": True, "batch_size": 9})
    for client in fed.clients:  # nobody may look at these
        kept = len(client.train) - len(client.train) % 9
        assert 0 < kept < len(client.train)
        client.train.images[kept:] = 255
        client.train.labels[kept:] = 9
    other = world(name, train={"rounds": 1, "reference_loader": True, "batch_size": 9})
    for client in other.clients:
        client.train = client.upload_samples(other.settings.train)
    for client in (*fed.clients, *other.clients):  # the weights of a mix depend on every sample
        client.fingerprint = client.id
    fed.run(), other.run()
    for one, two in zip(fed.uploads(1), other.uploads(1), strict=True):
        torch.testing.assert_close(one.artifacts[0].tensors(), two.artifacts[0].tensors())
    torch.testing.assert_close(fed.parameters(), other.parameters())


def test_broadcasts_to_all(world):
    train = {"rounds": 4, "join_ratio": 0.34, "broadcast_to": "all"}
    fed = world("fedavg", train=train)

    def equal(rows):
        server = parameters_of(fed.server.modules["model"])
        for client in fed.clients:
            torch.testing.assert_close(parameters_of(client.model), server, rtol=0, atol=0)

    rows = fed.run(on_row=equal)
    assert [fed.broadcasts(r)[0].recipients for r in range(1, 6)] == [(0, 1, 2)] * 5
    assert [row["clients"] for row in rows] == [1] * 4
    assert all(row["down_scalars"] == 3 * row["up_scalars"] for row in rows)


def test_with_broadcasts_to_all_nobody_needs_the_whole_student_again(world):
    fed = world("fedkd", train={"rounds": 4, "join_ratio": 0.34, "broadcast_to": "all"})
    fed.run()
    kinds = [type(b.artifacts[0]) for r in range(1, 6) for b in fed.broadcasts(r)]
    assert kinds == [SmallModelState] + [LowRankChange] * 4
    server = parameters_of(fed.server.modules["small"])
    for client in fed.clients:
        mine = parameters_of(client.memory["small"])
        torch.testing.assert_close(mine, server, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fedavg", "lg-fedavg", "fedgen", "fedkd", "fedral", "fedapen"])
def test_parameters_come_from_the_samples_that_were_in_batches(world, name):
    fed = world(name, train={"rounds": 1})
    seen = {}
    loss = type(fed.protocol).loss

    def watch(self, client, images, labels, message):
        pixels = client.train.images.float() / 255
        for image in images:
            match = (pixels == image).flatten(1).all(1).nonzero()
            seen.setdefault(client.id, set()).update(match.flatten().tolist())
        return loss(self, client, images, labels, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(fed.protocol), "loss", watch)
        fed.run()
    for k, (emission,) in fed.emissions[1].items():
        mixture, count = emission.mixture, len(emission.mixture.sample)
        assert set(mixture.sample.tolist()) == seen[k] and count == len(seen[k])
        assert mixture.num_rows == 1 and not mixture.row.any()
        assert mixture.weight.tolist() == pytest.approx([1 / count] * count)
        assert count < len(fed.clients[k].train)


# --- buffers ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedala", "fedavgdbe", "fedapen"])
def test_buffers_travel_and_are_averaged(world, name):
    options = {"small": ModelSettings(name="resnet4", dim=8)} if name == "fedapen" else {}
    fed = world(name, models="resnet4", buffers=True, **options, **UNEVEN)
    rows = fed.run()
    states = [dict(upload.artifacts[0].params) for upload in fed.uploads(1)]
    running = [n for n in states[0] if n.endswith(("running_mean", "running_var"))]
    assert running and not torch.equal(states[0][running[0]], states[1][running[0]])
    weights = [1, 1, 1] if name == "fedapen" else _sizes(fed)
    sent = dict(fed.sent(2, 0)[0].params)
    torch.testing.assert_close(sent, _mean(states, weights), **CLOSE)
    module = fed.clients[1].memory["small"] if name == "fedapen" else fed.clients[1].model
    state = module.state_dict()
    assert all(torch.equal(state[n], sent[n]) for n in running)
    counted = num_parameters(module) + sum(state[n].numel() for n in running)
    assert rows[0]["up_scalars_paper"] == 3 * counted


def test_without_buffers_statistics_stay(world):
    fed = world("fedavg", models="resnet4", train={"rounds": 1})
    fed.run()
    assert not any("running" in name for name in fed.uploads(1)[0].artifacts[0].params)
    states = [client.model.state_dict() for client in fed.clients]
    running = [name for name in states[0] if name.endswith("running_mean")]
    assert running and not any(torch.equal(states[0][n], states[1][n]) for n in running)


# --- single protocols --------------------------------------------------------------------------


def test_fedproto_by_samples(world):
    fed = world("fedproto", mean="samples", per_class=7, train={"rounds": 2})
    rows = fed.run()
    found = {}
    for upload, client in zip(fed.uploads(1), fed.clients, strict=True):
        table, counts = upload.artifacts
        for c, row, n in zip(table.labels.tolist(), table.means, counts.values, strict=True):
            assert n == (client.train.labels == c).sum()
            found.setdefault(c, []).append((row, int(n)))
    (sent,) = fed.sent(2, 0)
    assert any(len({n for _, n in own}) > 1 for own in found.values())
    for c, row in zip(sent.labels.tolist(), sent.means, strict=True):
        expected = sum(n * r for r, n in found[c]) / sum(n for _, n in found[c])
        torch.testing.assert_close(row, expected)
    pairs = sum(len(u.artifacts[0].labels) for u in fed.uploads(1))
    assert rows[0]["up_scalars"] == pairs * (16 + 2) and rows[0]["up_scalars_paper"] == pairs * 16
    assert fed.protocol.uploads == (Prototypes, Counts)


def test_fml_by_samples(world):
    fed = world("fml", mean="samples", **UNEVEN)
    fed.run()
    states = [dict(upload.artifacts[0].params) for upload in fed.uploads(1)]
    sent = dict(fed.sent(2, 0)[0].params)
    torch.testing.assert_close(sent, _mean(states, _sizes(fed)), **CLOSE)
    assert [int(u.artifacts[0].values) for u in fed.uploads(0)] == _sizes(fed)


def test_fpl_with_models_averaged(world):
    fed = world("fpl", aggregate_model=True, **UNEVEN)
    rows = fed.run()
    assert [type(a) for a in fed.sent(1, 0)] == [ModelState]
    table, model = fed.sent(2, 0)
    assert isinstance(table, Prototypes) and isinstance(model, ModelState)
    states = [dict(upload.artifacts[1].params) for upload in fed.uploads(1)]
    torch.testing.assert_close(dict(model.params), _mean(states, _sizes(fed)), **CLOSE)
    for client in fed.clients:
        mine = parameters_of(client.model)
        torch.testing.assert_close(mine, dict(model.params), rtol=0, atol=0)
        assert client.tensors["classes"].tolist() == table.labels.tolist()
    pairs = sum(len(u.artifacts[0].labels) for u in fed.uploads(1))
    size = num_parameters(fed.clients[0].model)
    assert rows[0]["up_scalars_paper"] == pairs * 16 + 3 * size
    with pytest.raises(IncompatibleError, match="averages whole models"):
        world("fpl", aggregate_model=True, models="cnn4,resnet4")


def test_fedgen_that_averages_models_without_its_generator_is_fedavg(world):
    train = {"rounds": 2, "join_ratio": 0.67}
    one = world("fedgen", average="model", weight=0.0, train=train)
    other = world("fedavg", train=train)
    one.run(), other.run()
    torch.testing.assert_close(one.parameters(), other.parameters(), rtol=0, atol=1e-6)
    with pytest.raises(IncompatibleError, match="averages whole models"):
        world("fedgen", average="model", models="cnn4,resnet4")


def test_fedgen_trains_its_generator_on_the_same_heads_either_way(world):
    heads, models = (world("fedgen", average=average) for average in ("head", "model"))
    generator = heads.server.modules["generator"].state_dict()
    start = generator["net.0.weight"].clone()
    models.server.modules["generator"].load_state_dict(generator)
    for fed in (heads, models):
        fed.server.tensors |= {"counts": torch.tensor([5, 7, 9]), "classes": torch.arange(10)}
    whole = [parameters_of(client.model) for client in heads.clients]
    whole = [{n: v + k for n, v in state.items()} for k, state in enumerate(whole)]
    cut = [{n: state[f"head.{n}"] for n in ("weight", "bias")} for state in whole]
    for fed, kind, states in ((heads, HeadState, cut), (models, ModelState, whole)):
        uploads = [Upload(k, 1, (kind(state),)) for k, state in enumerate(states)]
        server_step(fed.protocol, fed.server, uploads, Task(fed.setting, 1))
    one, two = (fed.server.modules["generator"].state_dict() for fed in (heads, models))
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert not torch.equal(one["net.0.weight"], start)


def test_fedkd_parameters_at_full_energy_are_averaged(world):
    fed = world("fedkd", compress="params", energy_start=1.0, energy_end=1.0, train={"rounds": 2})
    fed.run()
    students = [dict(c.memory["small"].named_parameters()) for c in fed.kept[2]]
    for name, value in fed.server.modules["small"].named_parameters():
        mean = sum(s[name] for s in students) / 3
        torch.testing.assert_close(value, mean, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_fedkd_parameters_in_low_rank_need_no_resynchronisation(world):
    fed = world(
        "fedkd", compress="params", energy_start=0.5, train={"rounds": 4, "join_ratio": 0.67}
    )

    def follow(rows):
        round = rows[-1]["round"] + 1
        server = parameters_of(fed.server.modules["small"])
        for k in range(3) if round > 4 else loop.select(fed.settings.train, round):
            mine = parameters_of(fed.clients[k].memory["small"])
            torch.testing.assert_close(mine, server, rtol=0, atol=0)

    fed.run(on_row=follow)
    for round in range(2, 6):
        assert all(type(sent.artifacts[0]) is LowRankModel for sent in fed.broadcasts(round))
    rank = torch.linalg.matrix_rank(fed.server.modules["small"].head.weight)
    assert int(rank) < 8


def test_fedkd_joint_gradients(world):
    fed = world("fedkd", joint_grad=True, hidden=2.0, train={"rounds": 1})
    fed.run()
    client = fed.clients[0]
    own, student, bridge = fed.protocol.modules(client)
    images, labels = client.train.batch(slice(0, 10))
    value = fed.protocol.loss(client, images, labels, ())
    a, b = own.extractor(images), student.extractor(images)
    p, q = own.head(a).log_softmax(1), student.head(b).log_softmax(1)
    mine, theirs = F.nll_loss(p, labels), F.nll_loss(q, labels)
    scale = mine + theirs
    apart = (a - b @ bridge.weight.T).square().mean()
    one = (q.exp() * (q - p)).sum() / 10 / scale + apart / scale
    two = (p.exp() * (p - q)).sum() / 10 / scale + apart / scale
    expected = mine + one + (theirs + two)
    params = [x for m in (own, student, bridge) for x in m.parameters()]
    torch.testing.assert_close(value, expected, **CLOSE)
    joint = torch.autograd.grad(value, params)
    torch.testing.assert_close(joint, torch.autograd.grad(expected, params), **CLOSE)
    plain = world("fedkd", hidden=2.0, train={"rounds": 1})
    apart = plain.protocol.loss(client, images, labels, ())
    torch.testing.assert_close(apart, value)
    detached = torch.autograd.grad(apart, params)
    assert not all(torch.allclose(x, y, **CLOSE) for x, y in zip(joint, detached, strict=True))


def test_fedtgp_stale_prototypes_are_one_round_late(world):
    late, fresh = (world("fedtgp", weight=0.0, stale_protos=s) for s in (True, False))
    client = late.clients[2]
    with torch.no_grad():
        reps = client.model.eval().extractor(client.train.images.float() / 255)
    first = torch.stack(
        [reps[client.train.labels == c].mean(0) for c in client.train.labels.unique()]
    )
    late.run(), fresh.run()
    torch.testing.assert_close(late.uploads(1)[2].artifacts[0].means, first, **CLOSE)
    for one, two in zip(late.uploads(2), fresh.uploads(1), strict=True):
        assert torch.equal(one.artifacts[0].means, two.artifacts[0].means)
    assert not (late.folder / "uploads" / "r0000.safetensors").exists()


@pytest.mark.parametrize("name", ["fedproto", "fedtgp"])
def test_predictions_by_the_own_head(world, name):
    nearest, head = (world(name, predict=p) for p in ("nearest", "head"))
    nearest.run(), head.run()
    torch.testing.assert_close(nearest.parameters(), head.parameters(), rtol=0, atol=0)
    client = head.clients[0]
    images, _ = client.test.batch(slice(0, 6))
    own = client.model(images)
    torch.testing.assert_close(head.protocol.logits(client, images), own)
    other = nearest.protocol.logits(nearest.clients[0], images)
    assert not torch.allclose(other, own)


def test_fedtgp_server_at_the_local_step_size(world):
    one, other = (world("fedtgp", server_lr=lr, train={"rounds": 1}) for lr in (None, 0.1))
    one.run(), other.run()
    assert torch.equal(one.sent(2, 0)[0].means, other.sent(2, 0)[0].means)


OPTIONS = [
    ("fpl", {"aggregate_model": True}),
    ("fedkd", {"compress": "params"}),
    ("fedgen", {"average": "model"}),
    ("fedproto", {"mean": "samples"}),
    ("fml", {"mean": "samples"}),
    ("fedtgp", {"stale_protos": True}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_interrupted_or_not_the_same_state(world, monkeypatch, name, options):
    train = {"rounds": 3, "join_ratio": 0.67}
    whole = world(name, train=train, **options)
    whole.run()
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    stopped = world(name, train=train, **options)

    def stop(event):
        if event.data["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.run(report=stop)
    resumed = world(name, train=train, folder=stopped.folder, **options)
    resumed.run(resume=True)
    one, two = whole.state(), resumed.state()
    assert one.keys() == two.keys()
    assert [key for key in one if not torch.equal(one[key], two[key])] == []
