"""Federations under defences: they run, resume, repeat, learn, and are recorded."""

import json

import pytest
import torch

from fedre_privacy.cli.attack import main
from fedre_privacy.core import files
from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.defenses.base import defenses
from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import read_messages
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.resolution import resolve_training, set_listed
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.training import train

CASES = {
    "clip": ("fedavg", "clip:norm=0.5"),
    "clip-reps": ("fedgh", "clip:norm=0.5,where=representation"),
    "gaussian-model": ("fedavg", "gaussian:clip=1,noise=0.001"),
    "gaussian-head": ("lg-fedavg", "gaussian:clip=1,noise=0.001"),
    "gaussian-proto": ("fedproto", "gaussian:clip=1,noise=0.001"),
    "gaussian-mix": ("fedre", "gaussian:clip=1,noise=0.001"),
    "gaussian-matrix": ("fedral", "gaussian:clip=1,noise=0.001"),
    "gaussian-statistic": ("fedavgdbe", "gaussian:clip=1,noise=0.001"),
    "laplace": ("fd", "laplace:clip=1,epsilon=100"),
    "dp-sgd": ("fedavg", "dp-sgd:clip=1,noise=0.5,delta=1e-3"),
    "dp-sgd-gradient": ("fedsgd", "dp-sgd:clip=1,noise=0.5,delta=1e-3"),
    "dp-sgd-two-models": ("fml", "dp-sgd:clip=1,noise=0.5,delta=1e-3"),
    "dp-mf": ("fedavg", "dp-mf:clip=1,noise=0.5,delta=1e-3"),
    "prune": ("fedavg", "prune:keep=0.2"),
    "quantise": ("fedkd", "quantise:bits=8"),
    "mask": ("fedgh", "mask:keep=0.5,fixed=true"),
    "secagg": ("fedavg", "secagg"),
    "minimum-count": ("fedpft", "minimum-count:count=2"),
    "shrink-covariance": ("fedpft", "shrink-covariance"),
    "statistics-noise": ("fedcgs", "statistics-noise:clip=1,noise=1,delta=1e-3"),
    "label-smoothing": ("fedre", "label-smoothing:alpha=0.1"),
    "nopeek": ("fedgh", "nopeek"),
    "adversarial-decoder": ("fedallrep", "adversarial-decoder"),
    "information-bottleneck": ("fedre", "information-bottleneck"),
    "shredder": ("fedproto", "shredder"),
    "cem": ("fedallrep", "cem"),
    "disco": ("fedgh", "disco"),
    "soteria": ("fedgh", "soteria"),
    "soteria-gradient": ("fedsgd", "soteria"),
    "mixup": ("fedre", "mixup:images=4,flip=true"),
    "mixup-gradient": ("fedsgd", "mixup"),
    "both": (
        "fedre",
        [
            "dp-sgd:clip=1,noise=0.5,delta=1e-3",
            "gaussian:unit=record,clip=2,noise=5,delta=1e-3",
            "quantise:bits=8",
        ],
    ),
}


def _uploads(run):
    return json.loads((run.folder / "uploads" / "index.json").read_text())["files"]


def settings_of(tiny, case, **train):
    protocol, given = CASES[case]
    return tiny(protocol=protocol, defense=given, train=train)


def test_every_defence_has_a_case():
    assert {case.split(":")[0] for _, given in CASES.values() for case in (
        [given] if isinstance(given, str) else given
    )} == set(defenses.names())  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.slow
def test_it_runs_is_recorded_and_resumes_to_the_same_bytes(case, tiny, tmp_path, monkeypatch):
    settings = settings_of(tiny, case)
    whole = train(settings, runs=tmp_path / "whole")
    assert whole.settings == settings
    assert [d["name"] for d in whole.record["defense"]] == [d.name for d in settings.defense]
    assert whole.record["privacy"]["says"]

    def stop(event):
        if event.name == "train.round":
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    with pytest.raises(KeyboardInterrupt):
        train(settings, runs=tmp_path / "cut", report=stop)
    assert Run(tmp_path / "cut" / settings.run_name).record["status"] == "partial"
    resumed = train(settings, runs=tmp_path / "cut", resume=True)
    assert _uploads(resumed) == _uploads(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "given", "least"),
    [
        ("fedavg", "gaussian:clip=1,noise=0.001", 0.6),
        ("fedavg", "dp-sgd:clip=1,noise=0.5,delta=1e-3", 0.25),
        ("fedavg", "prune:keep=0.5", 0.6),
        ("fedavg", "quantise:bits=8", 0.6),
        ("fedavg", "mask:keep=0.5", 0.3),
        ("fedgh", "clip:norm=1,where=representation", 0.5),
    ],
)
def test_something_is_learnt(protocol, given, least, tiny, tmp_path):
    run = train(
        tiny(
            protocol=protocol,
            defense=given,
            data={"per_class": 30},
            partition={"alpha": 100},
            train={"rounds": 12, "epochs": 3, "lr": 0.1, "eval_every": 12},
        ),
        runs=tmp_path,
    )
    assert run.record["final"]["acc_post_local_pooled"] > least  # ten classes: chance is 0.1


def test_a_run_without_defences_is_the_run_that_it_was(tiny, tmp_path):
    plain = tiny()
    assert "defense" not in plain.plain()
    assert plain == tiny(defense=[]) == tiny(defense=None) == tiny(defense="none")
    digest = files.settings_hash({key: plain.plain()[key] for key in plain.plain()})
    assert plain.run_name == f"fedre-digits-{digest}"
    run = train(plain, runs=tmp_path)
    assert not {"defense", "privacy"} & set(run.record)
    assert tiny(defense="quantise").run_name != plain.run_name


def test_ways_to_write_the_same_defence(tiny):
    written = "gaussian:clip=1,noise=2"
    spelled = {"name": "gaussian", "clip": 1.0, "noise": 2}
    both = [written, "quantise"]
    assert tiny(defense=written) == tiny(defense=[written]) == tiny(defense=spelled)
    assert [d.name for d in tiny(defense=both).defense] == ["gaussian", "quantise"]
    assert tiny(defense=both).run_name != tiny(defense=both[::-1]).run_name


def test_set_reaches_one_of_several_defences_and_never_guesses():
    one = set_listed("defense", "gaussian:clip=1,noise=2", {"noise": 3})
    assert one == [{"name": "gaussian", "clip": 1, "noise": 3}]
    both = ["gaussian:clip=1,noise=2", "quantise"]
    named = set_listed("defense", both, {"quantise": {"bits": 4}, "0": {"clip": 5}})
    assert named == [{"name": "gaussian", "clip": 5, "noise": 2}, {"name": "quantise", "bits": 4}]
    for changes in ({"clip": 5}, {"prune": {"keep": 0.1}}, {"2": {"bits": 1}}):
        with pytest.raises(ConfigError, match=r"2 defences are given \(gaussian, quantise\)"):
            set_listed("defense", both, changes)
    with pytest.raises(ConfigError, match="does not say whose"):
        set_listed("defense", ["mask:keep=0.5", "mask:keep=0.1"], {"mask": {"keep": 0.2}})


def test_the_command_line_describes_and_lists_defences(capsys):
    given = ["--defense", "gaussian:clip=1,noise=2", "--defense", "quantise"]
    assert main(["--explain", *given, "--set", "defense.quantise.bits=4"]) == 0
    text = capsys.readouterr().out
    for part in ("defence gaussian", "defense.gaussian.noise", "defence quantise", "Guarantee:"):
        assert part in text
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "defences" in listed and "secagg" in listed
    assert main([*given, "--set", "defense.bits=4"]) == 2
    assert "whose setting it is" in capsys.readouterr().err.replace("\n", " ")


def test_mistakes_are_reported_together():
    problems = []
    given = ["gausian", "quantise:bit=3", "mask:keep=2", "dp-sgd:noise=0"]
    assert resolve_training({"defense": given}, {}, problems) is None
    text = "\n".join(problems)
    for part in ("Did you mean 'gaussian'", "defense.1.bit", "'defense.2.keep' is 2", "clip"):
        assert part in text


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"model": {"name": "resnet4"}, "defense": "dp-sgd:clip=1,noise=1"}, "BatchNorm2d"),
        ({"protocol": "fedavg", "defense": "gaussian:clip=1,noise=1,delta=0.4"}, "below 1/3"),
        ({"protocol": "fedre", "defense": "prune"}, "sends EntangledRep"),
    ],
)
def test_what_cannot_work_is_refused_before_training(sections, says, tiny, tmp_path):
    with pytest.raises(IncompatibleError, match=says):
        train(tiny(**sections), runs=tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fedgen", "couples the samples"),
        ("fedkd", "couples the samples"),
        ("fedavgdbe", "a module of the protocol is Shift"),
    ],
)
def test_a_protocol_without_per_sample_losses_is_refused_at_its_first_batch(
    name, says, tiny, tmp_path
):
    settings = tiny(protocol=name, defense="dp-sgd:clip=1,noise=1,delta=1e-3")
    with pytest.raises(IncompatibleError, match=f"client 0 of protocol '{name}'.*{says}"):
        train(settings, runs=tmp_path)


def test_updates_are_bounded_against_what_was_received(tiny, tmp_path):
    run = train(tiny(protocol="fedavg", defense="clip:norm=0.05"), runs=tmp_path)
    free = train(tiny(protocol="fedavg"), runs=tmp_path)
    lengths = []
    for found in (run, free):
        uploads, broadcasts = read_messages(found.folder / "uploads", [1])
        sent = {name: t for name, t in broadcasts[0].artifacts[0].params.items()}
        lengths += [
            torch.cat([(u.artifacts[0].params[n] - t).flatten() for n, t in sent.items()]).norm()
            for u in uploads
        ]
    assert max(lengths[:3]) <= 0.05 * 1.001 and min(lengths[3:]) > 0.05


def test_representations_are_bounded_before_means_are_taken(federation):
    clip = defenses.get("clip")(norm=0.3, where="representation")
    free, bound = (federation(protocols.get("fedgh")(), rounds=1) for _ in range(2))
    free.run()
    bound.run(defenses=[clip])
    for upload in bound.uploads(1):
        client = bound.clients[upload.client]
        images = client.train.images.float() / 255
        with torch.no_grad():
            reps = bound.kept[1][upload.client].extractor(images)  # the hook is gone
        assert reps.norm(dim=1).max() > 0.3
        short = reps * (0.3 / reps.norm(dim=1, keepdim=True)).clamp(max=1)
        for mean, label in zip(upload.artifacts[0].means, upload.artifacts[0].labels, strict=True):
            torch.testing.assert_close(mean, short[client.train.labels == label].mean(0))


def test_the_order_of_clients_changes_no_noise(federation):
    noisy = defenses.get("gaussian")(clip=1.0, noise=1.0)
    full = federation(protocols.get("fedallrep")(), rounds=1)
    full.run(defenses=[noisy])
    some = federation(protocols.get("fedallrep")(), rounds=1, join_ratio=0.34)
    some.run(defenses=[noisy])
    (alone,) = some.uploads(1)
    same = next(u for u in full.uploads(1) if u.client == alone.client)
    assert torch.equal(alone.artifacts[0].reps, same.artifacts[0].reps)


def test_the_mixture_of_private_training_names_the_samples_that_were_drawn(federation):
    model = protocols.get("lg-fedavg")()
    fed = federation(model, rounds=1, sizes=(24, 20, 16))
    for client in fed.clients:  # without BatchNorm
        backbone = client.model.extractor.backbone
        client.model.extractor.backbone = torch.nn.Sequential(backbone[0], backbone[1])
    defense = defenses.get("dp-sgd")(clip=1.0, noise=1.0)
    fed.run(defenses=[defense])
    for k, sent in fed.emissions[1].items():
        task = loop.Task(fed.setting, 1, k)
        drawn = torch.cat(
            list(
                defense.batches(
                    len(fed.clients[k].train), 8, 1, task.secret_rng(fed.clients[k], "batches")
                )
            )
        )
        assert sent[0].mixture.support(0).tolist() == drawn.unique().tolist()
