"""What is refused before anything is computed: the words, the exit code, and no folder left."""

import importlib.metadata
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedre_privacy.attacks.base import Attack, attacks
from fedre_privacy.core import registry
from fedre_privacy.core.artifacts import EntangledRep, HeadState, Prototypes
from fedre_privacy.core.types import Knowledge

# --- names, keys and values (2) ------------------------------------------------------------------

UNKNOWN = [
    (["--attack", "dipp"], "Unknown attack 'dipp'. Did you mean 'dip'? Available: ali"),
    (["--protocol", "fedr"], "Unknown protocol 'fedr'. Did you mean 'fedre'? Available: fd, fed"),
    (["--target", "proto"], "Unknown target 'proto'. Did you mean 'prototypes'? Available: up"),
    (["--dataset", "digit"], "Unknown data set 'digit'. Did you mean 'digits'? Available: "),
    (["--dataset", "CIFAR-10"], "Unknown data set 'CIFAR-10'. Did you mean 'cifar10'? Avail"),
    (["--dataset", "fmnist"], "Unknown data set 'fmnist'. Did you mean 'fashion-mnist'? Avail"),
    (["--partition", "dirichlet:0.1"], "Unknown partition 'dirichlet'. Did you mean 'pra'? A"),
    (["--partition", "Non_IID:1"], "Unknown partition 'Non_IID'. Did you mean 'pra'? Available"),
    (["--partition", "pathological:2"], "Unknown partition 'pathological'. Did you mean 'pat'?"),
    (["--partition", "prb:1"], "Unknown partition 'prb'. Did you mean 'pra'? Available: cla"),
    (["--scheme", "rapp"], "Unknown entanglement scheme 'rapp'. Did you mean 'rap'? Available: "),
    (["--threat", "strongg"], "Unknown threat model 'strongg'. Did you mean 'strong'? Available: "),
    (["--metrics", "psnr,sim"], "Unknown metric 'sim'. Did you mean 'ssim'? Available: lpips"),
    (["--models", "cnn44"], "Unknown architecture 'cnn44'. Did you mean 'cnn4'? Available: "),
    (["--set", "train.lrr=1"], "Unknown setting 'train.lrr'. Did you mean 'train.lr'? Settings"),
    (["--set", "trian.lr=1"], "Unknown section 'trian'. Did you mean 'train'? Sections: data"),
    (["--set", "attack.stps=1"], "Unknown setting 'attack.stps'. Did you mean 'attack.steps'?"),
    (["--set", "metrics.psnrr.a=1"], "'metrics.psnrr' has settings, but eval.metrics asks for "),
]
VALUES = [
    (["--rounds", "0"], "'train.rounds' is 0; it must be >= 1 and <= 1000000. Default: 20."),
    (["--set", "train.lr=-1"], "'train.lr' is -1; it must be > 0. Default: 0.06."),
    (["--set", "attack.average=1"], "'attack.average' is 1; it must be >= 0 and < 1. Default: 0.9"),
    (["--set", "attack.steps=many"], "'attack.steps' is 'many'; it must be a whole number. Def"),
    (["--set", "attack.precision=half"], "'attack.precision' is 'half'; it must be one of auto, "),
    (["--set", "eval.rule=any"], "'eval.rule' is 'any'; it must be one of auto, best, mean-im"),
    (["--set", "data.size=2"], "'data.size' is 2; it must be >= 4 and <= 1024 pixels"),
    (["--set", "train=5"], "'train' is a group of settings, not 5."),
    (["--set", "metrics=5"], "'metrics' holds a group of settings per metric, not 5."),
    (["--set", "attack.steps"], "--set takes KEY=VALUE, for example attack.steps=500; got 'attack"),
    (["--set", "attack.steps=[1"], "--set attack.steps=[1: '[1' is not a YAML value"),
    (["--partition", "pra:x"], "'partition.alpha' is 'x'; it must be a number. Default: 0.1."),
    (["--device", "tpu"], "Unknown device 'tpu'. Use auto, cpu, cuda or cuda:N."),
    (["--device", "mps"], "Device 'mps' is not supported. Use auto, cpu, cuda or cuda:N."),
    (["--device", "cuda:99"], f"Device 'cuda:99' was asked for; torch {torch.__version__} built"),
    (["--dataset", "digits:here"], "Data set 'digits' is built in and takes no path; got 'here'."),
    (["--rounds", "3", "--round", "9"], "'eval.round' is 9; the training has 3 rounds."),
    (
        ["--protocol", "fedgh", "--rounds", "3", "--round", "2"],
        "'eval.round' is 2, whose extractors",
    ),
    (["--no-truth"], "Without the truth (--no-truth) no attack can be scored."),
    (["--for", "x"], "--for x goes with list: fedre-attack list --for x."),
]


@pytest.mark.parametrize(("options", "text"), [*UNKNOWN, *VALUES], ids=lambda v: str(v)[:40])
def test_names_and_values(cli: Any, nowhere: Path, options: list[str], text: str) -> None:
    done = cli.attack(*options)
    assert done.code == 2 and text in done.err and done.out == ""
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--dataset", "mnist2"], "See fedre-attack list for every name, and when to use it."),
        (["--target", "images"], "Did you mean 'uploaded'?"),
        (["--target", "gradients"], "Did you mean 'update'?"),
        (["--protocol", "fedgh", "--scheme", "rsr"], "'fedgh' mixes nothing, so it takes no"),
        (["--scheme", "my_nothing:Foo"], "looked for in the working directory"),
        (["--plugin", "my_nothing"], "looked for in the working directory"),
    ],
    ids=lambda value: "-".join(value)[:30] if isinstance(value, list) else "",
)
def test_a_refusal_says_where_to_look(cli: Any, nowhere: Path, options: list[str], text: str):
    done = cli.attack(*options)
    assert done.code in (2, 3) and text in done.err and "entanglement'. Settings" not in done.err


def test_training_refuses_the_same_names(cli: Any, nowhere: Path) -> None:
    done = cli.train("--protocol", "fedr", "--models", "cnn44", "--rounds", "-1")
    assert done.code == 2 and len(done.err.splitlines()) == 4
    assert "Did you mean 'fedre'?" in done.err and done.err.endswith("for every setting.\n")
    other = cli.train("--set", "attack.steps=5")
    assert other.code == 2 and "is a setting of fedre-attack" in other.err
    assert list(nowhere.iterdir()) == []


def test_every_problem_is_listed_at_once(cli: Any, nowhere: Path) -> None:
    config = nowhere.parent / "mine.yaml"
    config.write_text(
        "protocol: fedr\ntrain:\n  rounds: 0\n  clints: 4\nattack: {name: dip, stepz: 3}\n"
        "evall: {targets: 3}\n5: true\n"
    )
    done = cli.attack("--config", config, "--threat", "nobody", "--set", "data.sise=3")
    assert done.code == 2 and list(nowhere.iterdir()) == []
    for text in (
        "Unknown section 'evall' (mine.yaml:6). Did you mean 'eval'?",
        "Unknown section '5' (mine.yaml:7).",
        "Unknown setting 'data.sise'. Did you mean 'data.size'?",
        "Unknown protocol 'fedr'. Did you mean 'fedre'?",
        "(mine.yaml:1)",
        "'train.rounds' (mine.yaml:3) is 0; it must be >= 1 and <= 1000000. Default: 20.",
        "Unknown setting 'train.clints' (mine.yaml:4). Did you mean 'train.clients'?",
        "Unknown setting 'attack.stepz' (mine.yaml:5). Did you mean 'attack.steps'?",
        "Unknown threat model 'nobody'.",
        "See fedre-attack --explain for every setting.",
    ):
        assert text in done.err


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        (None, 4, "No settings file at "),
        ("train: [1", 2, "is not valid YAML"),
        ("- a\n- b\n", 2, "must hold 'section: {setting: value}' pairs."),
    ],
)
def test_settings_file(cli: Any, nowhere: Path, content: str | None, code: int, text: str) -> None:
    config = nowhere.parent / "mine.yaml"
    if content is not None:
        config.write_text(content)
    done = cli.attack("--config", config)
    assert done.code == code and text in done.err and list(nowhere.iterdir()) == []
    assert (f"ls {nowhere.parent}" in done.err) == (content is None)


def test_argument_errors_are_short(cli: Any, nowhere: Path) -> None:
    for options in (["--targets", "x"], ["--metric", "psnr"], ["--json", "--quiet"]):
        done = cli.attack(*options)
        assert done.code == 2 and len(done.err.splitlines()) == 3, options
        assert "fedre-attack: error:" in done.err


@pytest.mark.parametrize(
    "extra",
    [
        ["--clients", "4"],
        ["--no-truth"],
        ["--set", "train.rounds=3"],
        ["--config", "other.yaml"],
        ["--protocol", "fedgh", "--dataset", "photos"],
    ],
    ids=" ".join,
)
def test_training_options_beside_a_run(cli: Any, run: Path, nowhere: Path, extra: Any) -> None:
    (nowhere.parent / "other.yaml").write_text("train: {rounds: 7}\n")
    extra = [nowhere.parent / text if text == "other.yaml" else text for text in extra]
    done = cli.attack(run, *extra)
    assert done.code == 2 and list(nowhere.iterdir()) == []
    assert f"would train a new run, but the recorded run {run} was given." in done.err
    assert "Leave out one or the other." in done.err
    assert extra[0] in done.err or "other.yaml" in done.err


# --- parts that do not fit (3) -------------------------------------------------------------------


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two attacks of somebody else: one reads heads, one needs no model."""
    attacks.names()
    monkeypatch.setattr(attacks, "_things", dict(attacks._things))

    @attacks.register("heads-only")
    @dataclass(frozen=True, kw_only=True)
    class HeadsOnly(Attack):
        """Read classifier updates."""

        consumes = (HeadState,)

    @attacks.register("wire-only")
    @dataclass(frozen=True, kw_only=True)
    class WireOnly(Attack):
        """Read what crosses the wire."""

        consumes = (EntangledRep, Prototypes)
        needs = frozenset({Knowledge.UPLOADS})

    yield


def test_attack_that_cannot_read_the_target(cli: Any, nowhere: Path, plugin: None) -> None:
    done = cli.attack("--attack", "heads-only")
    assert done.code == 3 and list(nowhere.iterdir()) == []
    said, step = done.err.splitlines()
    assert said.startswith(
        "Attack 'heads-only' reads HeadState; the targets are EntangledRep. Attacks for them: "
    )
    assert {"dip", "pixel", "wire-only"} <= set(re.findall(r"[a-z-]+", said))
    assert step == "Use --attack dip or pixel or wire-only."
    listed = cli.attack("list", "--threat", "eavesdropper")
    assert "heads-only" in listed.out


@pytest.mark.parametrize(
    ("protocol", "said", "step"),
    [
        (
            "fedavg",
            "are ModelState. Attacks for them: images: free-upstream, inverting-gradients, ",
            "Use --attack free-upstream or inverting-gradients or ",
        ),
        (
            "fedsgd",
            "are GradientState. Attacks for them: images: dlg, ",
            "Use --attack dlg or idlg or inverting-gradients or spear.",
        ),
        (
            "fedral",
            "labels: initial-matrix (MatrixBlocks, --threat public-init), matrix (MatrixBlocks, "
            "--threat strong); membership: loss-membership (MatrixBlocks, --threat strong); "
            "property: property (MatrixBlocks, --threat public-init); "
            "prototypes: head (MatrixBlocks, --threat strong).",
            "Use --attack head --threat strong, or ",
        ),
    ],
)
def test_what_is_beside_the_counts_is_what_is_attacked(
    cli: Any, nowhere: Path, protocol: str, said: str, step: str
) -> None:
    done = cli.attack("--protocol", protocol, "--attack", "dip")
    assert done.code == 3 and list(nowhere.iterdir()) == []
    assert said in done.err and f"\n{step}" in done.err


@pytest.mark.parametrize(
    ("options", "said", "step"),
    [
        (
            ("fedavg", "--attack", "membership"),
            "loss-membership (ModelState)",
            "Use --attack alignment or loss-membership",
        ),
        (
            ("fedsgd", "--attack", "membership"),
            "(GradientState)",
            "Use --attack alignment or loss-membership",
        ),
        (("fd",), "'membership' needs HEADS to read ClassLogits", "Use --threat strong."),
        (("fedral",), "needs HEADS to read MatrixBlocks", "Use --threat strong."),
        (("local",), "'local' uploads nothing, so target 'membership' is empty", "Ask what it"),
        (
            ("lg-fedavg", "--threat", "realistic"),
            "needs EXTRACTOR to read HeadState",
            "Use --target uploaded --attack head, or --threat fedre-paper.",
        ),
        (("fedmrl",), "through a projector that clients keep", "Use --attack span."),
        (
            ("fml", "--threat", "eavesdropper"),
            "needs HEAD",
            "Use --target uploaded --attack free-upstream, or --threat fedre-paper.",
        ),
    ],
)
def test_membership_that_cannot_be_told(
    cli: Any, nowhere: Path, options: tuple[str, ...], said: str, step: str
) -> None:
    protocol, *more = options
    done = cli.attack("--protocol", protocol, "--target", "membership", *more)
    assert done.code == 3 and list(nowhere.iterdir()) == []
    assert said in done.err and f"\n{step}" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("target", ["update", "uploaded"])
def test_training_that_nobody_can_repeat(cli: Any, nowhere: Path, target: str) -> None:
    options = ["--protocol", "fedmrl", "--target", target, "--attack", "update-inversion"]
    done = cli.attack(*options)
    assert done.code == 3 and list(nowhere.iterdir()) == []
    said, step = done.err.splitlines()
    assert said.endswith("'fedmrl' trains the shared model through a projector that clients keep.")
    assert step == "Use --attack free-upstream or spear."
    options[-1] = "free-upstream"
    assert cli.attack(*options, "--dry-run", "--rounds", "1").code == 0
    assert cli.attack(*options[:3], "labels", "--dry-run", "--rounds", "1").code == 0


def test_list_for_gives_the_reason_in_short(cli: Any, run: Path, plugin: None) -> None:
    done = cli.attack("list", "--for", run, "--threat", "realistic")
    rows = {tuple(r[:1] + r[-1:]): line for line in done.out.splitlines() if (r := line.split())}
    text = "\n".join(rows.values())
    assert "heads-only" not in text and "no: needs extractor" in text
    assert sum("wire-only" in line and line.endswith("yes") for line in done.out.splitlines()) == 3


@pytest.mark.parametrize("threat", ["eavesdropper", "realistic"])
def test_threat_model_too_weak(cli: Any, nowhere: Path, threat: str) -> None:
    done = cli.attack("--threat", threat, "--attack", "pixel")
    assert done.code == 3 and list(nowhere.iterdir()) == []
    assert f"Attack 'pixel' needs EXTRACTOR; threat model '{threat}' grants " in done.err
    assert "Use --attack disentangle, or --threat fedre-paper." in done.err
    assert cli.attack("--dry-run", "--threat", threat).code == 3


def test_threat_model_too_weak_names_an_attack_that_would_do(
    cli: Any, nowhere: Path, plugin: None
) -> None:
    done = cli.attack("--threat", "eavesdropper")
    assert done.code == 3
    assert "Use --threat fedre-paper, or --attack wire-only." in done.err


def test_local_uploads_nothing(cli: Any, nowhere: Path) -> None:
    for options in ([], ["--target", "uploaded"]):
        done = cli.attack("--protocol", "local", *options)
        assert done.code == 3 and list(nowhere.iterdir()) == []
        assert "Protocol 'local' uploads nothing, so target 'uploaded' is empty." in done.err
        assert "--target representations, prototypes or entangled (counterfactual)" in done.err


def npz(path: Path, low: float, high: float, count: int = 40) -> Path:
    rng = np.random.default_rng(0)
    images = rng.uniform(low, high, (count, 16, 16)).astype("float32")
    np.savez(path, x=images, y=np.arange(count) % 4)
    return path


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(-1, 1, "mean 0.5 / std 0.5"), (0, 255, "0-255 floats"), (-2, 3, "standardised")],
)
def test_images_outside_the_unit_range(
    cli: Any, nowhere: Path, low: float, high: float, text: str
) -> None:
    path = npz(nowhere.parent / "own.npz", low, high)
    done = cli.attack("--dataset", f"npz:{path}", "--clients", "2")
    assert done.code == 3 and list(nowhere.iterdir()) == []
    assert "'x' of own.npz: images range from " in done.err and text in done.err
    assert "Needed: uint8 0..255, or floats in [0, 1]" in done.err


def test_client_with_too_few_samples(cli: Any, nowhere: Path) -> None:
    options = ["--set", "data.per_class=2", "--partition", "iid", "--clients", "20"]
    done = cli.attack(*options)
    assert done.code == 3 and list(nowhere.iterdir()) == []
    assert "too few samples to train on at client 0 (1 sample), client 1 (1 sample)" in done.err
    assert "Use fewer clients (--clients), more images, or another --partition." in done.err
    more = cli.attack("--set", "data.per_class=1", "--clients", "20")
    assert more.code == 3 and "20 clients cannot share 10 samples." in more.err


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package whose attack cannot be imported."""
    point = importlib.metadata.EntryPoint(
        "far", "no_such_package.attacks:Far", "fedre_privacy.attacks"
    )
    real = registry.entry_points

    def points(*, group: str) -> Any:
        return [*real(group=group), *([point] if group == point.group else [])]

    monkeypatch.setattr(registry, "entry_points", points)
    attacks.names()
    monkeypatch.setattr(attacks, "_things", dict(attacks._things))
    monkeypatch.setattr(attacks, "_broken", {})
    monkeypatch.setattr(attacks, "_loaded", False)
    yield


def test_broken_plugin_stops_only_those_who_ask(
    cli: Any, run: Path, fast: list[str], nowhere: Path, broken: None
) -> None:
    listed = cli.attack("list")
    assert listed.code == 0
    assert listed.line("BROKEN") == (
        "attack far (no_such_package.attacks:Far): ModuleNotFoundError: No module named "
        "'no_such_package'"
    )
    assert max(len(text) for text in listed.out.splitlines()[:3]) < 140
    asked = cli.attack("--attack", "far")
    assert asked.code == 3 and "cannot be imported: ModuleNotFoundError" in asked.err
    assert "The other plugins are unaffected." in asked.err and list(nowhere.iterdir()) == []
    assert cli.attack(run, *fast).code == 0


def test_own_plugin_by_its_path(cli: Any, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = cli.attack("--attack", "no_such_package:Far")
    assert absent.code == 3 and "cannot be imported" in absent.err
    (nowhere.parent / "ownattack.py").write_text("class Mine:\n    pass\n")
    monkeypatch.syspath_prepend(nowhere.parent)
    wrong = cli.attack("--attack", "ownattack:Mien")
    sys.modules.pop("ownattack", None)
    assert wrong.code == 2 and "Did you mean 'Mine'?" in wrong.err
    assert list(nowhere.iterdir()) == []


# --- what is not there (4, 6) --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (["--dataset", "npz:gone.npz"], ["Data set 'npz' needs a .npz file", "gone.npz"]),
        (["--dataset", "npz"], ["Data set 'npz' needs a .npz file, and no path was given."]),
        (["--dataset", "imagefolder:gone"], ["Data set 'imagefolder' needs ", "gone"]),
        (["--dataset", "tinyimagenet:gone"], ["Data set 'tinyimagenet' needs ", "gone"]),
        (
            ["--dataset", "cifar10", "--data-dir", "here", "--set", "data.download=false"],
            ["Data set 'cifar10' is not (whole) in ", "download is off", "cifar-10-python.tar.gz"],
        ),
    ],
    ids=lambda v: " ".join(v)[:30],
)
def test_absent_data_set(cli: Any, nowhere: Path, options: list[str], texts: list[str]) -> None:
    for command in (cli.attack, cli.train):
        done = command(*options)
        assert done.code == 4 and list(nowhere.iterdir()) == []
        for text in [*texts, "Works now, without any file: --dataset digits", "--data-dir DIR"]:
            assert text in done.err


def test_data_set_that_cannot_be_fetched(
    cli: Any, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*arguments: Any, **options: Any) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr("torchvision.datasets.CIFAR10", offline)
    done = cli.train("--dataset", "cifar10")
    assert done.code == 4 and list(nowhere.iterdir()) == []
    assert "the download failed: Network is unreachable" in done.err


def test_folder_that_is_no_run(cli: Any, run: Path, runs: Path, nowhere: Path) -> None:
    near = str(run)[:-2]
    for options in ([near], [run.name[:-2], "--runs-dir", runs], ["list", "--for", near]):
        done = cli.attack(*options)
        assert done.code == 4 and list(nowhere.iterdir()) == [], options
        assert "record.json is not there." in done.err
        assert f"Did you mean {run}?" in done.err and f"Runs near it: {run}" in done.err
    inside = cli.attack(runs)
    assert inside.code == 4 and str(run) in inside.err
    alone = cli.attack("nothing")
    assert alone.code == 4 and "Runs near it" not in alone.err
    assert "Train one with fedre-train" in alone.err


def test_round_that_is_absent_or_was_not_kept(cli: Any, run: Path) -> None:
    for target in ("uploaded", "prototypes"):
        done = cli.attack(run, "--round", "1", "--target", target)
        assert done.code == 4 and "of round 1" in done.err and "kept: 2, 3." in done.err
        assert "Use --set eval.round=2, or train with --set record.keep_every=1." in done.err
        absent = cli.attack(run, "--round", "12", "--target", target)
        assert absent.code == 4
        assert "Round 12 was not recorded; recorded: 1 to 3." in absent.err
        assert "Use --set eval.round=3." in absent.err


def test_run_without_truth(cli: Any, tiny: list[str], tmp_path: Path) -> None:
    trained = cli.train(*tiny, "--rounds", "1", "--no-truth", "--quiet", "--runs-dir", tmp_path)
    folder = Path(trained.out.strip())
    assert trained.code == 0 and not (folder / "private").exists()
    done = cli.attack(folder)
    assert done.code == 4 and "has no truth to score against" in done.err
    assert "Train again without --no-truth" in done.err
    assert not (folder / "attacks").exists()


def test_optional_weights_are_missed_before_training(
    cli: Any, run: Path, tiny: list[str], nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(nowhere / "torch"))
    for options in ([*tiny], [run]):
        done = cli.attack(*options, "--metrics", "psnr,lpips")
        assert done.code == 6 and list(nowhere.iterdir()) == []
        assert "LPIPS with the 'alex' backbone needs the file alexnet-" in done.err
        assert "--set metrics.lpips.weights=FILE" in done.err
        assert "--metrics psnr,ssim,mse255 goes on without it." in done.err
    given = ["--metrics", "psnr,lpips", "--set", "metrics.lpips.weights=gone.pth"]
    named = cli.attack(*tiny, *given)
    assert named.code == 4 and "LPIPS weights: no file at gone.pth." in named.err
    assert list(nowhere.iterdir()) == []


# --- the machine ---------------------------------------------------------------------------------


def test_folder_that_cannot_be_written(cli: Any, tiny: list[str], nowhere: Path) -> None:
    (nowhere / "taken").write_text("a file")
    done = cli.train(*tiny, "--runs-dir", "taken")
    assert done.code == 4 and "taken" in done.err and "--runs-dir" in done.err
    assert "bug" not in done.err and [path.name for path in nowhere.iterdir()] == ["taken"]


def test_unexpected_error(cli: Any, tiny: list[str], nowhere: Path, monkeypatch: Any) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr("fedre_privacy.federation.loop.client_step", fail)
    done = cli.train(*tiny)
    assert done.code == 1 and done.err.splitlines() == [
        "Unexpected error: ZeroDivisionError: first line",
        "This is a bug in fedre-privacy; the traceback is in runs/log.txt.",
    ]
    logs = sorted(nowhere.rglob("log.txt"))
    assert len(logs) == 2  # of the folder of runs, and of the run
    for log in logs:
        assert "Traceback" in log.read_text() and "loop.py" in log.read_text()
    as_json = cli.train(*tiny, "--json", "--restart")
    (event,) = [event for event in as_json.events if event["event"] == "error"]
    assert as_json.code == event["exit"] == 1 and "ZeroDivisionError" in event["problems"][0]


def test_full_gpu(cli: Any, tiny: list[str], nowhere: Path, monkeypatch: Any) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore.")

    monkeypatch.setattr("fedre_privacy.federation.loop.client_step", fail)
    done = cli.train(*tiny)
    assert done.code == 5 and "Tried to allocate 2 GiB." in done.err and "--resume" in done.err


def test_training_that_diverges(cli: Any, tiny: list[str], nowhere: Path, read_json: Any) -> None:
    done = cli.train(*tiny, "--set", "train.lr=1e20")
    assert done.code == 5
    assert "Training diverged: " in done.err and "client 0 in round 1" in done.err
    assert "Lower the step size, for example --set train.lr=0.06." in done.err
    (folder,) = (nowhere / "runs").glob("fedre-*")
    record = read_json(folder / "record.json")
    assert record["status"] == "failed" and "diverged" in record["failure"]


def test_every_exit_code_is_documented(repo: Path) -> None:
    rows = (repo / "docs" / "errors.md").read_text().splitlines()
    codes = {row.split("|")[1].strip() for row in rows if row.startswith("| ")}
    assert set(map(str, itertools.chain(range(7), [130]))) <= codes


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--traget", "labels"], "unrecognized arguments: --traget. Did you mean --target?"),
        (["--out=mine"], "arguments: --out=mine. Folders of runs go to --runs-dir."),
        (["--protocol", "fedre", "--roudns=3"], "Did you mean --rounds?"),
        (["--protocol", "fedre", "--name=mine"], "unrecognized arguments: --name=mine.\n"),
    ],
)
def test_a_mistyped_option_is_shown_the_nearest(cli: Any, words: list[str], text: str) -> None:
    done = cli.attack(*words)
    assert done.code == 2 and text in done.err


def test_a_protocol_in_the_wrong_place_is_shown_its_option(cli: Any, nowhere: Path) -> None:
    done = cli.attack("fedavg")
    assert done.code != 0 and done.err.endswith("\nfedre-attack --protocol fedavg\n")
    done = cli.attack("attack")
    assert done.code == 4 and done.err.startswith("'attack' is the command itself")
    done = cli.train("fedavg")
    assert done.code == 2 and "'fedavg' is a protocol: --protocol fedavg." in done.err
    assert list(nowhere.iterdir()) == []


def test_explain_finds_settings_by_a_word(cli: Any, nowhere: Path) -> None:
    done = cli.train("--explain", "step size", "--protocol", "fedgh")
    shown = [line.split()[0] for line in done.out.splitlines()[1:] if line.strip()]
    assert done.code == 0 and {"train.lr", "protocol.server.lr"} <= set(shown)
    assert "train.rounds" not in shown and list(nowhere.iterdir()) == []
    done = cli.train("--explain", "roundz", "--protocol", "fedgh")
    assert done.code == 2 and "Did you mean" in done.err and "Give --explain" in done.err
