"""What clients, server and launcher refuse, each with one clear error, and what comes twice."""

import importlib.metadata
import importlib.util
import json
import socket

import pytest
import torch

import fedre_privacy as fp
from fedre_privacy.core import engines
from fedre_privacy.core.errors import (
    DamagedInputError,
    IncompatibleError,
    InUseError,
    MissingExtraError,
    MissingInputError,
)
from fedre_privacy.flower import client, server, wire
from fedre_privacy.flower.client import Worker
from fedre_privacy.flower.local_federation import Loopback
from fedre_privacy.runs.training import train
from tests.flower.conftest import CPU, recorded, tiny

needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="Flower is not installed: extra 'flower'"
)


def hello(settings, **changed):
    head = wire.Order(
        run=settings.run_name, client=0, version=client.__version__, schema=wire.SCHEMA,
        image_shape=[1, 16, 16], num_classes=10, ask=wire.HELLO, rounds=[], train=0, test=False,
        shared=False,
    )  # fmt: skip
    return wire.pack({**head, **changed})


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"client": 1}, IncompatibleError, "this is client 0"),
        ({"version": "9.9"}, IncompatibleError, "Install the same version"),
        ({"schema": 99}, IncompatibleError, "schema 99"),
        ({"image_shape": [3, 32, 32]}, IncompatibleError, "the same data set"),
        ({"run": "fedre-digits-00000000"}, MissingInputError, "takes no part in a run"),
        ({"run": "../../etc/passwd"}, MissingInputError, "takes no part in a run"),
        ({"ask": 3}, DamagedInputError, "ask"),
    ],
)
def test_a_client_refuses(bytes_engine, changed, error, words):
    settings = tiny("fedre")
    bytes_engine.accept(settings)
    worker = Worker(bytes_engine.folder / "0", 0, CPU)
    assert wire.reply_of(wire.unpack(worker.answer(hello(settings)))[0])["trained"] == -1
    with pytest.raises(error, match=words):
        wire.reply_of(wire.unpack(worker.answer(hello(settings, **changed)))[0])


def test_a_client_refuses_settings_under_another_name(bytes_engine):
    settings, other = tiny("fedre"), tiny("fedre", train={"rounds": 3})
    bytes_engine.accept(settings)
    accepted = bytes_engine.folder / "0" / client.ACCEPTED
    (accepted / f"{settings.run_name}.yaml").rename(accepted / f"{other.run_name}.yaml")
    answer = Worker(bytes_engine.folder / "0", 0, CPU).answer(hello(other))
    with pytest.raises(Exception, match="are those of the run"):
        wire.reply_of(wire.unpack(answer)[0])


@pytest.mark.parametrize("data", [b"", b"\x80\x04pickle", b"\x08" + b"\0" * 30, bytes(100)])
def test_noise_is_no_message(data):
    with pytest.raises(DamagedInputError, match="cannot be read"):
        wire.unpack(data)


def test_an_unknown_kind_is_refused(tmp_path):
    meta = {"head": "{}", "kinds": json.dumps([[["no-such-kind", []]]])}
    with pytest.raises(DamagedInputError, match="no-such-kind"):
        wire.unpack(wire.safetensors.torch.save({}, metadata=meta))


@pytest.mark.slow
def test_a_message_that_comes_twice_is_answered_alike(tmp_path, bytes_engine):
    settings = tiny("fedtgp")
    bytes_engine.twice = True
    here = train(settings, runs=tmp_path / "here")
    there = train(settings, runs=tmp_path / "there", engine=bytes_engine)
    assert recorded(here.folder) == recorded(there.folder)


@pytest.mark.parametrize(
    "fatal", [6, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 9, 14))]
)
def test_a_server_that_died_goes_on(tmp_path, bytes_engine, fatal):
    """It dies at the so-many-th message: in the first exchange, in training, in the last test."""
    settings = tiny("fedtgp", train={"rounds": 3, "join_ratio": 0.67, "broadcast_to": "all"})
    here = train(settings, runs=tmp_path / "here")
    sent = []

    def die(k, data):
        sent.append(k)
        if len(sent) == fatal:
            raise KeyboardInterrupt

    bytes_engine.before = die
    with pytest.raises(KeyboardInterrupt):
        train(settings, runs=tmp_path / "there", engine=bytes_engine)
    there = train(settings, runs=tmp_path / "there", engine=bytes_engine, resume=True)
    assert recorded(here.folder) == recorded(there.folder)


@pytest.mark.slow
def test_a_client_that_lost_its_state_is_named(tmp_path, bytes_engine):
    settings = tiny("fedavg", train={"rounds": 3})

    def stop(event):
        if event.data.get("round") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            settings,
            runs=tmp_path,
            engine=bytes_engine,
            report=lambda e: "round" in e.data and stop(e),
        )  # noqa: E501
    (bytes_engine.folder / "1" / settings.run_name / client.STATE).unlink()
    with pytest.raises(IncompatibleError, match="Client 1 has lost its state"):
        train(settings, runs=tmp_path, engine=bytes_engine, resume=True)


def test_a_server_has_uploads_and_broadcasts_alone(tmp_path, bytes_engine):
    settings = tiny("fedre", record={"truth": False})
    run = train(settings, runs=tmp_path, engine=bytes_engine)
    assert {path.split("/")[0] for path in recorded(run.folder)} == {"uploads"}
    kept = list(bytes_engine.folder.glob("*/*/models/*"))
    assert kept == []


def test_the_server_knows_no_class_count(tmp_path, bytes_engine, monkeypatch):
    seen = []
    lead = server.loop.lead
    monkeypatch.setattr(
        server.loop, "lead", lambda *a, **o: (seen.append(a[3].class_counts), lead(*a, **o))[1]
    )
    train(tiny("fedavg", train={"rounds": 1}), runs=tmp_path, engine=bytes_engine)
    assert seen == [((0,) * 10,) * 3]


def test_what_cannot_have_clients_elsewhere():
    assert server.refusal_reason(tiny("fedavg")) == []
    (told,) = server.refusal_reason(tiny("fedavg", defense=["secagg"]))
    assert "single uploads" in told
    (told,) = server.refusal_reason(tiny("fedavg", train={"together": "always"}))
    assert "together" in told
    assert server.refusal_reason(tiny("fedgh", steering=["null-head"])) == []
    (told,) = server.refusal_reason(tiny("fedavg", steering=["imprint"]))
    assert "the server holds messages alone" in told


def test_without_flower_there_is_one_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="fedre-privacy\\[flower\\]"):
        Loopback(tmp_path / "fed", 2, CPU).__enter__()
    assert not (tmp_path / "fed").exists()
    monkeypatch.setattr(
        engines.importlib.util, "find_spec", lambda name: None if name == "ray" else object()
    )
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.42.0")
    with pytest.raises(MissingExtraError, match=r"needs the package ray(.|\n)*flower,ray"):
        engines.BUILT_IN["flower-simulation"].check()


@pytest.mark.parametrize("found", ["1.9.0", "1.50.1", "2.0"])
def test_other_versions_of_flower_are_refused(monkeypatch, found):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    with pytest.raises(MissingExtraError, match=found):
        engines.BUILT_IN["flower"].check()


@needs_flower
def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InUseError, match=f"Port {port} "):
            Loopback(tmp_path, 2, torch.device("cpu"), port=port).__enter__()


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="Flower is installed")
def test_without_flower_nothing_is_begun_and_nothing_goes(tmp_path):
    for restart in (False, True):
        with pytest.raises(MissingExtraError, match="needs the package flwr"):
            fp.train("fedre", engine="flower", runs=tmp_path, restart=restart)
    assert list(tmp_path.iterdir()) == []
