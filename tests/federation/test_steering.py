"""A server that is not honest: what it may change, what it sees, and how a killed run goes on."""

import copy
import shutil
from dataclasses import dataclass, replace

import pytest
import torch

from fedre_privacy.active_server.base import Steering, declaration, steerings
from fedre_privacy.core.artifacts import ClassLogits, HeadState, Prototypes
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.defenses.base import defenses
from fedre_privacy.federation import loop
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolution import resolve_training


def steering(name, **settings):
    return steerings.get(name)(**settings)


def head(broadcast):
    (artifact,) = broadcast.artifacts
    return artifact.params


def centred(rows):
    return rows - rows.mean(0)


# --- what is sent ------------------------------------------------------------------------------


def test_a_null_head_has_equal_rows_and_the_norm_of_the_honest_one(federation):
    honest, steered = (federation(protocols.get("fedgh")()) for _ in range(2))
    honest.run()
    steered.run(steering=[steering("null-head", rounds="1")])
    (sent,), (plain,) = steered.broadcasts(1), honest.broadcasts(1)
    assert sent.recipients == plain.recipients == (0, 1, 2)  # equal messages are one record
    for name, value in head(sent).items():
        assert float(centred(value).norm()) < 1e-6 < float(centred(head(plain)[name]).norm())
        assert float(value.norm()) == pytest.approx(float(head(plain)[name].norm()), rel=1e-6)
    (second,) = steered.broadcasts(2)
    assert float(centred(head(second)["weight"]).norm()) > 0.1  # the server's own state went on


def test_equal_rows_are_the_zero_head_to_every_client(federation):
    flat, zero = (federation(protocols.get("fedgh")(), dropout=0.0) for _ in range(2))
    flat.run(steering=[steering("null-head", rounds="1")])
    zero.run(steering=[steering("null-head", rounds="1", norm="zero")])
    assert float(head(zero.broadcasts(1)[0])["weight"].norm()) < 1e-6
    for one, other in zip(flat.uploads(1), zero.uploads(1), strict=True):
        torch.testing.assert_close(
            one.artifacts[0].means, other.artifacts[0].means, rtol=1e-4, atol=1e-5
        )


def test_a_share_of_the_honest_head_may_be_kept(federation):
    honest, steered = (federation(protocols.get("fedgh")()) for _ in range(2))
    honest.run()
    steered.run(steering=[steering("null-head", rounds="1", keep=0.1)])
    sent, plain = (head(fed.broadcasts(1)[0])["weight"] for fed in (steered, honest))
    torch.testing.assert_close(centred(sent), 0.1 * centred(plain), rtol=1e-4, atol=1e-6)
    assert float(sent.norm()) == pytest.approx(float(plain.norm()), rel=1e-5)


def test_under_a_null_matrix_the_first_step_changes_the_matrix_and_the_bias_alone(federation):
    fed = federation(protocols.get("fedral")(blocks=(2,)), rounds=1, batch_size=64, dropout=0.0)
    before = [copy.deepcopy(client.model) for client in fed.clients]
    fed.run(steering=[steering("null-matrix")])
    ((sent,),) = (b.artifacts for b in fed.broadcasts(1))
    assert torch.equal(sent.blocks, -torch.eye(sent.blocks.shape[1]).expand_as(sent.blocks))
    for model, client, upload in zip(before, fed.clients, fed.uploads(1), strict=True):
        after = dict(client.model.named_parameters())
        for name, value in model.named_parameters():
            assert torch.equal(value, after[name]) == (name != "head.bias"), name
        changed = torch.block_diag(*upload.artifacts[0].blocks) + torch.eye(
            len(torch.block_diag(*sent.blocks))
        )
        assert float(changed.norm()) > 1e-4


def test_a_share_of_the_honest_matrix_may_be_kept(federation):
    honest, whole = (federation(protocols.get("fedral")()) for _ in range(2))
    honest.run()
    whole.run(steering=[steering("null-matrix", rounds="1", keep=1.0)])
    for one, other in zip(honest.broadcasts(1), whole.broadcasts(1), strict=True):
        torch.testing.assert_close(one.artifacts[0].blocks, other.artifacts[0].blocks)


@dataclass(frozen=True, kw_only=True)
class OwnPrototypes(Steering):
    """Sends each client its own newest prototypes."""

    name = "own-prototypes"
    alters = (Prototypes,)

    def steer(self, view, round, client, honest, rng):
        own = next(u for u in reversed(view.uploads) if u.client == client).artifacts[0]
        rows = dict(zip(own.labels.tolist(), own.means, strict=True))
        (sent,) = honest
        means = [
            rows.get(c, mean) for c, mean in zip(sent.labels.tolist(), sent.means, strict=True)
        ]
        return (Prototypes(torch.stack(means), sent.labels),)


def test_messages_may_differ_between_clients(federation):
    fed = federation(protocols.get("fedproto")(), rounds=3)
    fed.run(steering=[OwnPrototypes(rounds="2")])
    sent = fed.broadcasts(2)
    assert [b.recipients for b in sent] == [(0,), (1,), (2,)]
    for broadcast, upload in zip(sent, fed.uploads(1), strict=True):
        own, got = upload.artifacts[0], broadcast.artifacts[0]
        for label, row in zip(own.labels, own.means, strict=True):
            assert torch.equal(got.means[got.labels == label][0], row)
    assert [b.recipients for b in fed.broadcasts(3)] == [(0, 1, 2)]
    for client in range(3):
        assert torch.equal(
            fed.clients[client].tensors["prototypes"], fed.clients[0].tensors["prototypes"]
        )


@dataclass(frozen=True, kw_only=True)
class KeepsRows(Steering):
    """Leaves all but the first rows of labelled classes out."""

    name = "keeps-rows"
    alters = (Prototypes, ClassLogits)
    kept: int = 0

    def steer(self, view, round, client, honest, rng):
        return tuple(
            a.take(torch.arange(len(a.labels))[: self.kept]) if isinstance(a, self.alters) else a
            for a in honest
        )


LABELLED = [
    name
    for name in protocols.names()
    if any(issubclass(kind, KeepsRows.alters) for kind in protocols.get(name).broadcasts)
]


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("name", LABELLED)
def test_a_protocol_takes_a_message_without_some_classes_or_refuses_it(federation, name, kept):
    fed = federation(protocols.get(name)(), rounds=3)
    if name == "fd":  # its counts have no labels, so none of them can be left out
        with pytest.raises(IncompatibleError, match="needs two counts for each class"):
            fed.run(steering=[KeepsRows(kept=kept)])
        fed = federation(protocols.get(name)(target="library"), rounds=3)
    fed.run(steering=[KeepsRows(kept=kept)])
    for upload in fed.uploads(3):
        assert all(not artifact.problems() for artifact in upload.artifacts)


# --- the contract ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hostile(Steering):
    """Sends what a test tells it to."""

    name = "hostile"
    alters = (HeadState, Prototypes)

    def steer(self, view, round, client, honest, rng):
        return BREACHES[self.rounds_of](honest[0])

    rounds_of: str = "shape"


def changed(artifact, **tensors):
    return (type(artifact).from_tensors(artifact.tensors() | tensors),)


BREACHES = {
    "shape": lambda a: changed(a, **{"params/weight": a.params["weight"][:, :2]}),
    "type of numbers": lambda a: changed(a, **{"params/weight": a.params["weight"].double()}),
    "not finite": lambda a: changed(a, **{"params/bias": a.params["bias"] * torch.nan}),
    "names": lambda a: (HeadState({"weight": a.params["weight"]}),),
    "more": lambda a: (a, a),
    "nothing": lambda a: (),
    "another kind": lambda a: (Prototypes(torch.zeros(1, 2), torch.zeros(1).long()),),
    "no tuple": lambda a: a,
    "an unknown class": lambda a: (Prototypes(a.means, a.labels + 90),),
    "a class twice": lambda a: (Prototypes(a.means[[0, 0]], a.labels[[0, 0]]),),
    "more rows": lambda a: (Prototypes(a.means[[0, 0, *range(len(a.means))]], a.labels),),
}
SAID = {
    "shape": "a HeadState whose 'params/weight' is float32 [4, 2]",
    "type of numbers": "'params/weight' is float64 [4, 6]; clients take float32 [4, 6]",
    "not finite": "holds values that are not finite numbers",
    "names": "a HeadState of params/weight; clients take",
    "more": "a message of HeadState, HeadState; clients take HeadState",
    "nothing": "a message of nothing",
    "another kind": "a message of Prototypes; clients take HeadState",
    "no tuple": "a HeadState; clients take a tuple of artifacts",
    "an unknown class": "classes that the honest message does not name",
    "a class twice": "classes that the honest message does not name",
    "more rows": "a Prototypes whose 'means'",
}


@pytest.mark.parametrize("how", SAID)
def test_anything_else_is_refused(federation, how):
    prototypes = "class" in how or how == "more rows"
    fed = federation(protocols.get("fedproto" if prototypes else "fedgh")())
    with pytest.raises(IncompatibleError) as refused:
        fed.run(steering=[Hostile(rounds_of=how)])
    said = str(refused.value)
    assert "Steering 'hostile' sends client 0 in round" in said and SAID[how] in said


class Trespasses(Hostile):
    """Says that it replaces prototypes, and replaces a head."""

    alters = (Prototypes,)

    def steer(self, view, round, client, honest, rng):
        return changed(honest[0], **{"params/bias": honest[0].params["bias"] + 1})


class Chooses(Steering):
    """Chooses what a test tells it to."""

    name = "chooses"
    chosen = ()

    def choose(self, view, round, honest, rng):
        return self.chosen


def test_only_declared_kinds_are_replaced(federation):
    with pytest.raises(IncompatibleError, match="another HeadState; clients take the honest one"):
        federation(protocols.get("fedgh")()).run(steering=[Trespasses()])


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ((0,), "chose 1 clients in round 1; clients take 2"),
        ((0, 7), "different ones of 0 to 2"),
        ((1, 1), "different ones of 0 to 2"),
        ((), "chose 0 clients in round 1; clients take 2"),
    ],
)
def test_clients_that_cannot_be_chosen_are_refused(federation, chosen, said):
    fed = federation(protocols.get("fedgh")(), join_ratio=0.7)
    one = type("Chosen", (Chooses,), {"chosen": chosen})()
    with pytest.raises(IncompatibleError) as refused:
        fed.run(steering=[one])
    assert said in str(refused.value)


# --- who takes part ----------------------------------------------------------------------------


def test_the_victim_takes_part_in_every_round(federation):
    fed = federation(protocols.get("fedgh")(), join_ratio=0.7, rounds=6)
    fed.run(steering=[steering("isolate", victim=2)])
    honest = [loop.select(fed.training, r) for r in range(1, 7)]
    assert not all(2 in chosen for chosen in honest)
    for round in range(1, 7):
        sent = [upload.client for upload in fed.uploads(round)]
        assert 2 in sent and len(sent) == 2
        assert [k for b in fed.broadcasts(round) for k in b.recipients] == sent


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("lg-fedavg", {}),
        ("fedproto", {}),
        ("fedproto", {"mean": "samples"}),
        ("fedre", {"super_pair": True}),
    ],
)
def test_among_sybils_the_sum_gives_the_victims_upload(federation, protocol, settings):
    fed = federation(protocols.get(protocol)(**settings), dropout=0.0)
    secagg = defenses.get("secagg")()
    fed.run(defenses=[secagg], steering=[steering("isolate", victim=1, helpers=2)])
    for round in (1, 2):
        (seen,) = fed.uploads(round)
        assert seen.client == 1 and not seen.participants
        sent = {type(e.artifact): e.artifact for e in fed.emissions[round][1]}
        assert {type(a) for a in seen.artifacts} == sent.keys()
        for artifact in seen.artifacts:
            for name, value in artifact.tensors().items():
                true = sent[type(artifact)].tensors()[name]
                torch.testing.assert_close(value, true, rtol=1e-5, atol=1e-5)
    few = federation(protocols.get(protocol)(**settings), dropout=0.0)
    few.run(defenses=[secagg], steering=[steering("isolate", victim=1, helpers=1)])
    assert [upload.client for upload in few.uploads(1)] == [-1]  # still a sum over two


# --- a killed run ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Remembers(Steering):
    """Sends a head that depends on all that was seen so far, and on its stream."""

    name = "remembers"
    alters = (HeadState,)

    def steer(self, view, round, client, honest, rng):
        shift = sum(float(u.artifacts[0].tensors()["means"].sum()) for u in view.uploads)
        shift += 10 * len(view.broadcasts) + float(torch.rand(1, generator=rng)) + client
        return changed(honest[0], **{"params/bias": honest[0].params["bias"] + shift / 1000})


class Killed(Exception):
    """Stands for a kill between two rounds."""


def test_a_killed_run_goes_on_to_the_same_end(federation, monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    given = [Remembers(), steering("isolate", victim=2), steering("null-head", rounds="3-4")]
    options = {"join_ratio": 0.7, "rounds": 5}
    whole = federation(protocols.get("fedgh")(), **options)
    rows = whole.run(steering=given)

    folder = tmp_path / "killed"
    first = federation(protocols.get("fedgh")(), folder=folder, **options)

    def killed(round, clients, emissions):
        if round == 4:
            raise Killed

    with pytest.raises(Killed):
        first.run(steering=given, keep=killed)
    again = federation(protocols.get("fedgh")(), folder=folder, **options)
    found = again.run(steering=given, resume=True)
    for row, other in zip(found, rows, strict=True):
        assert row | {"wall_s": 0} == other | {"wall_s": 0}
    for file in sorted((whole.folder / "uploads").iterdir()):
        assert file.read_bytes() == (folder / "uploads" / file.name).read_bytes(), file.name
    shutil.rmtree(folder)


# --- settings ----------------------------------------------------------------------------------

TINY = {"data": {"name": "digits", "size": 16, "per_class": 12}, "train": {"clients": 3}}


def resolved(**sections):
    problems = []
    made = resolve_training({**TINY, **sections}, {}, problems)
    if problems:
        raise ConfigError(*problems)
    return made


def test_an_honest_run_keeps_its_name_and_a_steered_one_has_its_own():
    honest = resolved(protocol={"name": "fedgh"})
    assert honest.run_name == "fedgh-digits-9e48f036" and "steering" not in honest.plain()
    given = ("null-head:rounds=1", {"name": "null-head", "rounds": 1}, [{"name": "null-head",
             "rounds": "1"}], ["null-head:rounds=1"])  # fmt: skip
    names = {resolved(protocol={"name": "fedgh"}, steering=one).run_name for one in given}
    assert len(names) == 1 and honest.run_name not in names
    steered = resolved(protocol={"name": "fedgh"}, steering=given[0])
    assert steered.active == "ACTIVE SERVER (null-head, round 1)"
    assert replace(steered, steering=()).run_name == honest.run_name
    assert resolve_training(steered.plain(), {}, []) == steered


@pytest.mark.parametrize("rounds", ["0", "3-2", "first", "1,2", "-1", "1-"])
def test_rounds_that_cannot_be_are_refused(rounds):
    with pytest.raises(ConfigError, match="give all, a round such as 1, or a span"):
        resolved(steering={"name": "null-head", "rounds": rounds})


def test_declarations_say_when():
    assert declaration(()) == ""
    given = (steering("null-head", rounds="2-3"), steering("isolate"))
    assert declaration(given) == "ACTIVE SERVER (null-head, rounds 2 to 3; isolate, all rounds)"
    assert [given[0].acts(r) for r in (1, 2, 3, 4)] == [False, True, True, False]
