"""Rules of single protocols, mostly where a public implementation went wrong."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fedre_privacy.core.artifacts import (
    ClassLogits,
    Counts,
    LowRankChange,
    MatrixBlocks,
    ModelState,
    Prototypes,
    SmallModelState,
)
from fedre_privacy.core.types import Upload
from fedre_privacy.federation import loop
from fedre_privacy.federation.steps import client_step, next_broadcast, server_step
from fedre_privacy.models.split import num_parameters, parameters_of
from fedre_privacy.protocols.blocks.state import Task, only_artifact
from fedre_privacy.protocols.fedral import FedRAL, diagonal_blocks, nearest_divisor
from fedre_privacy.protocols.fedtgp import adaptive_margin, safe_distance


@pytest.mark.parametrize("name", ["fedavg", "lg-fedavg", "fml", "fedmrl", "fedapen", "fedala"])
def test_identical_clients_leave_the_average_unchanged(world, name):
    fed = world(name, train={"rounds": 1})
    fed.run()
    (sent,) = fed.uploads(1)[0].artifacts
    same = [Upload(k, 2, (sent,)) for k in range(3)]
    (answer,) = server_step(fed.protocol, fed.server, same, Task(fed.setting, 2)).usual
    torch.testing.assert_close(dict(answer.params), dict(sent.params), rtol=1e-6, atol=1e-7)


# --- FedKD -----------------------------------------------------------------------------------


def test_fedkd_student_is_the_servers_also_after_a_missed_broadcast(world):
    fed = world("fedkd", train={"rounds": 5, "join_ratio": 0.67})
    dense = num_parameters(fed.clients[0].memory["small"])
    held = {}

    def keep(round, clients, emissions):
        held[round] = {c.id: copy.deepcopy(c) for c in clients}

    def follow(rows):  # after delivery: every receiver's student is the server's, bit for bit
        round = rows[-1]["round"] + 1
        chosen = range(3) if round > 5 else loop.select(fed.settings.train, round)
        server = parameters_of(fed.server.modules["small"])
        for k in chosen:
            mine = parameters_of(fed.clients[k].memory["small"])
            torch.testing.assert_close(mine, server, rtol=0, atol=0)

    fed.run(keep=keep, on_row=follow)
    whole = 0
    for round in range(2, 7):
        before = set(loop.select(fed.settings.train, round - 1))
        for sent in fed.broadcasts(round):
            (artifact,) = sent.artifacts
            kind = LowRankChange if set(sent.recipients) <= before else SmallModelState
            assert type(artifact) is kind and (set(sent.recipients) <= before) == (
                bool(set(sent.recipients) & before)
            )
            numbers = sum(t.numel() for t in artifact.tensors().values())
            assert numbers == dense if kind is SmallModelState else numbers < dense
            whole += kind is SmallModelState
    assert whole > 0


def test_fedkd_keeps_more_energy_every_round(world):
    fed = world("fedkd", train={"rounds": 10})
    kept = [fed.protocol._energy(Task(fed.setting, r)) for r in range(1, 11)]
    assert kept == pytest.approx([0.95 + 0.03 * t / 10 for t in range(10)])


# --- FedMRL ----------------------------------------------------------------------------------


def test_fedmrl_predicts_in_four_ways_of_one_training(world):
    fed = world("fedmrl", train={"rounds": 2})
    fed.run()
    client = fed.clients[0]
    images, _ = client.test.batch(slice(0, 8))
    small, own = client.memory["small"], client.model
    with torch.no_grad():
        joined = torch.cat([small.extractor(images), own.extractor(images)], 1)
        nested = client.memory["projector"](joined)
        wanted = {
            "mix-large": own.head(nested),
            "mix-small": small.head(nested[:, : small.dim]),
            "single-large": own.head(own.extractor(images)),
            "single-small": small.head(small.extractor(images)),
        }
        for name, logits in wanted.items():
            protocol = replace(fed.protocol, predict=name)
            torch.testing.assert_close(protocol.logits(client, images), logits)


# --- FedTGP ----------------------------------------------------------------------------------


def test_margin():
    points = torch.tensor([[0.0, 0], [0, 2], [3, 1], [3, 1], [0, 11]])
    labels = torch.tensor([2, 2, 5, 5, 0])  # means (0, 1), (3, 1), (0, 11)
    assert float(adaptive_margin(points, labels, 6, 100, "nearest")) == pytest.approx(10)
    assert float(adaptive_margin(points, labels, 6, 100, "max-pair")) == pytest.approx(109**0.5)
    assert float(adaptive_margin(points, labels, 6, 7, "nearest")) == 7
    for rule in ("nearest", "max-pair"):
        assert float(adaptive_margin(points[:2], labels[:2], 6, 100, rule)) == 0


def test_gradient_at_zero_distance_is_finite():
    points = torch.randn(3, 4)
    centres = points.clone().requires_grad_()
    distance = safe_distance(points, centres)
    distance.sum().backward()
    assert centres.grad.isfinite().all() and distance.diagonal().abs().max() < 1e-2
    torch.testing.assert_close(
        safe_distance(points, points + 1), torch.cdist(points, points + 1), rtol=1e-3, atol=1e-4
    )


def test_fedtgp_with_one_class_stays_finite(world):
    fed = world("fedtgp")
    sent = Prototypes(torch.ones(1, 16), torch.tensor([3]))
    uploads = [Upload(k, 1, (sent,)) for k in range(3)]
    (answer,) = server_step(fed.protocol, fed.server, uploads, Task(fed.setting, 1)).usual
    assert answer.means.shape == (10, 16)


# --- FedProto and FD -------------------------------------------------------------------------


def _rows(name, means, labels):
    made = Prototypes if name == "fedproto" else ClassLogits
    return made(means, torch.tensor(labels))


@pytest.mark.parametrize("name", ["fedproto", "fd"])
def test_classes_that_nobody_refreshed_keep_their_entries(world, name):
    fed = world(name)
    width = 16 if name == "fedproto" else 10
    a, b, c = torch.rand(3, width)
    first = [
        Upload(0, 1, (_rows(name, torch.stack([a, b]), [1, 4]),)),
        Upload(1, 1, (_rows(name, c[None], [4]),)),
    ]
    server_step(fed.protocol, fed.server, first, Task(fed.setting, 1))
    second = [Upload(2, 2, (_rows(name, a[None], [7]),))]
    table = server_step(fed.protocol, fed.server, second, Task(fed.setting, 2)).usual[0]
    means = table.means if name == "fedproto" else table.outputs
    assert table.labels.tolist() == [1, 4, 7]
    torch.testing.assert_close(means, torch.stack([a, (b + c) / 2, a]))
    third = [Upload(2, 3, (_rows(name, c[None], [1]),))]
    table = server_step(fed.protocol, fed.server, third, Task(fed.setting, 3)).usual[0]
    means = table.means if name == "fedproto" else table.outputs
    torch.testing.assert_close(means, torch.stack([c, (b + c) / 2, a]))


def test_absent_prototypes_neither_pull_nor_win(world):
    fed = world("fedproto")
    client = fed.clients[0]
    reps = torch.randn(4, 16)
    table = Prototypes(reps[:2] + 1, torch.tensor([2, 6]))
    fed.protocol.receive(client, (table,), Task(fed.setting, 2, 0))
    from fedre_privacy.protocols.blocks.global_prototypes import pull

    # two of four samples have a prototype, at squared distance 16 each, over 4 * 16
    assert float(pull(client, reps, torch.tensor([2, 6, 0, 9]))) == pytest.approx(32 / 64)
    images, _ = client.train.batch(slice(0, 8))
    logits = fed.protocol.logits(client, images)
    assert set(logits.argmax(1).tolist()) <= {2, 6}
    with torch.no_grad():
        r = client.model.extractor(images)
    expected = -((r[:, None] - table.means) ** 2).mean(2)
    torch.testing.assert_close(logits[:, [2, 6]], expected, rtol=1e-3, atol=1e-4)


def test_fd_target_is_the_mean_of_the_others(world):
    fed = world("fd", train={"rounds": 1})
    fed.run()
    uploads = {u.client: u.artifacts[0] for u in fed.uploads(1)}
    for client in fed.clients:
        for c in range(10):
            others = [
                table.outputs[(table.labels == c).nonzero()[0, 0]]
                for k, table in uploads.items()
                if k != client.id and (table.labels == c).any()
            ]
            assert bool(client.tensors["usable"][c]) == bool(others)
            if others:
                target = client.tensors["target"][c]
                torch.testing.assert_close(target, sum(others) / len(others), rtol=1e-4, atol=1e-6)


def test_fd_removes_its_part_only_where_it_took_part(world):
    fed = world("fd")
    client = fed.clients[0]
    mine, other = torch.rand(2, 10)
    table = torch.zeros(10, 10)
    table[3], table[5] = mine, mine
    client.tensors |= {"mine": table, "sent_in": torch.where(table.sum(1) > 0, 1, -1)}
    means = torch.stack([(mine + other) / 2, other])
    counts = Counts(torch.tensor([[2, 1], [1, 2]]))  # class 5 was refreshed later, by another
    sent = (ClassLogits(means, torch.tensor([3, 5])), counts)
    fed.protocol.receive(client, sent, Task(fed.setting, 3, 0))
    torch.testing.assert_close(client.tensors["target"][3], other)
    torch.testing.assert_close(client.tensors["target"][5], other)
    assert client.tensors["usable"].nonzero().flatten().tolist() == [3, 5]


# --- FedRAL ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 12])
def test_blocks_there_and_back(count):
    matrix = torch.randn(12, 12)
    blocks = diagonal_blocks(matrix, count)
    assert blocks.shape == (count, 12 // count, 12 // count) and blocks.numel() == 144 // count
    dense = torch.block_diag(*blocks)
    index = torch.arange(12) // (12 // count)
    kept = index[:, None] == index
    assert torch.equal(dense, torch.where(kept, matrix, 0)) and int(kept.sum()) == 144 // count
    assert torch.equal(diagonal_blocks(dense, count), blocks)


@pytest.mark.parametrize("rule", ["weighted", "supplier-mean"])
def test_fedral_elements_that_few_supply(world, rule):
    fed = world("fedral", aggregation=rule, blocks=(1, 2, 16))
    fed.server.tensors["counts"] = torch.tensor([10, 30, 60])
    ones = [
        Upload(k, 1, (MatrixBlocks(diagonal_blocks(torch.full((16, 16), v), m)),))
        for k, (m, v) in enumerate(((1, 1.0), (2, 2.0), (16, 4.0)))
    ]
    (sent,) = server_step(fed.protocol, fed.server, ones, Task(fed.setting, 1)).usual
    matrix = torch.block_diag(*sent.blocks)
    values = matrix[0, 15], matrix[0, 7], matrix[9, 9]  # one, two and three suppliers
    weighted = (0.1, 0.1 + 0.6, 0.1 + 0.6 + 2.4)
    expected = weighted if rule == "weighted" else (1.0, 1.5, 7 / 3)
    assert [float(v) for v in values] == pytest.approx(expected)
    part = server_step(fed.protocol, fed.server, ones[1:], Task(fed.setting, 2)).usual[0]
    assert part.blocks.shape == (2, 8, 8)  # half is enough without client 0
    if rule == "weighted":  # n is the participants' total
        assert float(part.blocks[0, 0, 1]) == pytest.approx(2 * 30 / 90)


def test_fedral_client_uses_the_matrix_it_was_sent(world):
    fed = world("fedral")
    client, a = fed.clients[0], torch.randn(16, 16)
    fed.protocol.receive(client, (MatrixBlocks(a[None]),), Task(fed.setting, 1, 0))
    images, _ = client.train.batch(slice(0, 5))
    r = client.model.extractor(images)
    expected = client.model.head(r + r @ a)
    torch.testing.assert_close(fed.protocol.logits(client, images), expected)


# --- FedALA ----------------------------------------------------------------------------------


def test_fedala_mixes_only_the_top(world):
    fed = world("fedala", train={"rounds": 3}, eta=20.0)
    fed.run()
    theta = parameters_of(fed.server.modules["model"])
    inside = 0
    for client in fed.clients:
        own = parameters_of(client.model)
        mixes = {name: value for name, value in client.tensors.items() if name != "joined"}
        assert set(mixes) == {"mix/head.weight", "mix/head.bias"}
        for name, value in own.items():
            assert torch.equal(value, theta[name]) != name.startswith("head")
        for mix in mixes.values():
            assert mix.min() >= 0 and mix.max() <= 1
            inside += int(((mix > 0) & (mix < 1)).sum() + (mix == 0).sum())
    assert inside > 0


def test_fedala_takes_its_first_broadcast_whole_and_leaves_an_equal_one_alone(world):
    fed = world("fedala")
    client = fed.clients[0]
    sent = {name: value + 1 for name, value in parameters_of(client.model).items()}
    for round in (3, 4):
        fed.protocol.receive(client, (ModelState(sent),), Task(fed.setting, round, 0))
        torch.testing.assert_close(parameters_of(client.model), sent, rtol=0, atol=0)
        assert set(client.tensors) == {"joined"}


def test_fedala_first_broadcast_overwrites(world):
    fed = world("fedala", train={"rounds": 1})
    client = fed.clients[0]
    message = next_broadcast(fed.protocol, fed.server).usual
    fed.protocol.receive(client, message, Task(fed.setting, 1, 0))
    torch.testing.assert_close(
        parameters_of(client.model), dict(only_artifact(message, ModelState).params), rtol=0, atol=0
    )


# --- FedAvgDBE, FedAPEN, FedTGP, FedGen ---------------------------------------------------------


def test_fedavgdbe_keeps_its_shift_private(world):
    fed = world("fedavgdbe", train={"rounds": 2})
    fed.run()
    shifts = [c.memory["shift"].bias.detach() for c in fed.clients]
    assert all(s.abs().sum() > 0 for s in shifts) and not torch.equal(shifts[0], shifts[1])
    theta = parameters_of(fed.server.modules["model"])
    for upload in fed.uploads(2):
        assert set(only_artifact(upload.artifacts, ModelState).params) == set(theta)
    for client in fed.clients:
        torch.testing.assert_close(parameters_of(client.model), theta, rtol=0, atol=0)


def test_fedapen_never_trains_on_what_it_held_out(world):
    fed = world("fedapen", held_out=0.2)
    for client in fed.clients:
        count = len(client.train)
        assert len(client.held) == round(0.2 * count) and len(client.held.unique()) == len(
            client.held
        )
        keep = sorted(set(range(count)) - set(client.held.tolist()))
        assert torch.equal(client.fitted.images, client.train.images[keep])
        assert torch.equal(client.fitted.labels, client.train.labels[keep])
    client = fed.clients[0]
    message = next_broadcast(fed.protocol, fed.server).usual
    other = copy.deepcopy(client)
    other.train.images[other.held] = 255 - other.train.images[other.held]
    for one in (client, other):
        fed.protocol.receive(one, message, Task(fed.setting, 1, 0))
        client_step(fed.protocol, one, message, Task(fed.setting, 1, 0))
        assert float(one.tensors["lambda"]) == 0.5  # until something was learnt
    torch.testing.assert_close(parameters_of(client.model), parameters_of(other.model))
    torch.testing.assert_close(
        parameters_of(client.memory["small"]), parameters_of(other.memory["small"])
    )


@pytest.mark.parametrize("step", [1e4, 1e-3])
def test_fedapen_weight_stays_between_0_and_1(world, step):
    fed = world("fedapen", lambda_lr=step, train={"rounds": 2})
    fed.run()
    found = [float(c.tensors["lambda"]) for c in fed.clients]
    assert all(0 <= v <= 1 for v in found)
    assert all(v in (0, 1) for v in found) if step > 1 else all(0.4 < v < 0.6 for v in found)
    client = fed.clients[0]
    images, _ = client.test.batch(slice(0, 5))
    a, b, share = client.model(images), client.memory["small"](images), found[0]
    torch.testing.assert_close(fed.protocol.logits(client, images), share * a + (1 - share) * b)


def test_fedtgp_sends_nothing_before_it_learnt_anything(world):
    fed = world("fedtgp", train={"rounds": 1})
    fed.run()
    assert [b.artifacts for b in fed.broadcasts(1)] == [()]
    (sent,) = fed.sent(2, 0)
    assert sent.means.shape == (10, 16)


def test_fedgen_size_and_single_samples(world):
    from fedre_privacy.protocols.fedgen import Generator

    sizes = [
        num_parameters(Generator(512, c, 512, d)) for c, d in ((10, 512), (100, 512), (200, 2048))
    ]
    assert sizes == [531_456, 577_536, 1_416_704]
    fed = world("fedgen", train={"rounds": 1, "batch_size": 1})
    assert fed.run()[0]["loss"] > 0


def test_fedmrl_keeps_its_projector(world):
    fed = world("fedmrl", train={"rounds": 2})
    start = fed.clients[0].memory["projector"].weight.detach().clone()
    fed.run()
    one, two = (fed.kept[r][0].memory["projector"].weight for r in (1, 2))
    assert not torch.equal(start, one) and not torch.equal(one, two)
    assert torch.equal(two, fed.clients[0].memory["projector"].weight)


def test_two_broadcasts_of_one_round_are_both_recorded(world):
    fed = world("fedkd", train={"rounds": 4, "join_ratio": 0.67})
    fed.run()
    pairs = [fed.broadcasts(r) for r in range(1, 6) if len(fed.broadcasts(r)) == 2]
    assert pairs
    for one, two in pairs:
        assert not set(one.recipients) & set(two.recipients)
        assert {type(b.artifacts[0]) for b in (one, two)} == {LowRankChange, SmallModelState}


def test_fedkd_counts_the_hidden_loss_once_in_each_models_own_loss(world):
    """The gradient of each model is that of its own loss, as the paper writes the losses."""
    fed = world("fedkd", train={"rounds": 1})
    client = fed.clients[0]
    own, student, bridge = fed.protocol.modules(client)
    images, labels = client.train.batch(slice(0, 10))
    total = fed.protocol.loss(client, images, labels, ())
    a, b = own.extractor(images), student.extractor(images)
    p, q = own.head(a).log_softmax(1), student.head(b).log_softmax(1)
    mine, theirs = F.nll_loss(p, labels), F.nll_loss(q, labels)
    scale = (mine + theirs).detach()
    hidden = (a - b @ bridge.weight.T).square().mean()

    def apart(teacher, pupil):
        return (teacher.detach().exp() * (teacher.detach() - pupil)).sum() / 10

    mentor = mine + apart(q, p) / scale + hidden / scale
    mentee = theirs + apart(p, q) / scale + hidden / scale
    for module, loss in ((own, mentor), (student, mentee), (bridge, mentee)):
        params = list(module.parameters())
        found = torch.autograd.grad(total, params, retain_graph=True)
        wanted = torch.autograd.grad(loss, params, retain_graph=True)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


def test_fedavgdbe_forms_its_consensus_from_the_model_that_training_starts_from(world):
    fed = world("fedavgdbe", train={"rounds": 1})
    start = dict(fed.server.modules["model"].named_parameters())
    for client in fed.clients:
        for name, value in client.model.named_parameters():
            torch.testing.assert_close(value, start[name], rtol=0, atol=0)


@pytest.mark.parametrize(("dim", "blocks"), [(512, 4), (500, 4), (50, 5), (49, 1), (7, 1), (8, 4)])
def test_fedral_takes_the_number_of_blocks_that_divides(dim, blocks):
    assert nearest_divisor(4, dim) == blocks and dim % blocks == 0
    assert FedRAL()._count(3, dim) == blocks
    assert FedRAL(blocks=(2, 6))._count(3, dim) == 6
