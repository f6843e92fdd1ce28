"""Every benchmark command that a page or the Makefile shows runs at a small size."""

from __future__ import annotations

import itertools
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedre_privacy import api
from fedre_privacy.models.families import members_of
from fedre_privacy.protocols.base import protocols

ROOT = Path(__file__).parents[2]
SHARED = ("tools", "scheduling", "kit", "tables", "experiments")
"""Modules of benchmarks that are no command."""
BENCHMARKS = tuple(
    sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in SHARED)
)
PAGES = (
    ROOT / "Makefile",
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(page for folder in ("docs", "results") for page in sorted((ROOT / folder).glob("*.md"))),
)
FILE = rf"(?:benchmarks/)?(?:{'|'.join(BENCHMARKS)})\.py"
FENCE = re.compile(r"^ *```\w*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LINE = re.compile(rf"^ *(?:.* && )?(?:\S*/)?python ({FILE}\b.*)$", re.MULTILINE)
RECIPE = re.compile(rf"^\t.*?/python ({FILE}\b.*)$", re.MULTILINE)
SPAN = re.compile(rf"(?<!`)`(?:python ({FILE}\b[^`]*)|({FILE}\s[^`]*))`")
OPTIONS = re.compile(r"(?<!`)`([a-z]+\s+--[^`]*)`")
CPU_SECONDS = 150


@dataclass(frozen=True)
class Command:
    """A documented command: the page, the benchmark, and its arguments as they stand there."""

    page: str
    benchmark: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((f"{self.page}: {self.benchmark}.py", *self.words))


def command(page: str, text: str) -> Command:
    file, *words = shlex.split(text.replace("$(DATA)", "FILE.npz"))
    return Command(page, Path(file).stem, tuple(word for word in words if word != "..."))


def commands_in(page: str, text: str) -> Iterator[Command]:
    """Lines of code blocks, recipes of a Makefile, spans, and options of a PART on its page."""
    for line in RECIPE.finditer(text):
        yield command(page, line[1].removesuffix(")") if "$(if" in line[0] else line[1])
    for block in FENCE.finditer(text):
        for line in LINE.finditer(re.sub(r"\s*\\\n\s*", " ", block[1])):
            yield command(page, re.split(r"\s{3,}|\s#", line[1])[0])
    spoken = FENCE.sub("", text)
    for span in SPAN.finditer(spoken):
        found = command(page, span[1] or span[2])
        if "PART" not in found.words:
            yield found
            continue
        parts = [form.when for form in FORMS if form.benchmark == found.benchmark and form.when]
        told = [tuple(shlex.split(options[1])) for options in OPTIONS.finditer(spoken)]
        for words in [*((part,) for part in parts), *(w for w in told if w[0] in parts)]:
            rest = tuple(word for word in found.words if word != "PART")
            yield Command(page, found.benchmark, words + rest)


@dataclass(frozen=True)
class Form:
    """The smallest size of the commands of a benchmark that hold the word `when`.

    Args:
        options: set in place of what is documented.
        prints: what must stand in the output, with the number that was measured.
        needs: packages without which it cannot run.
    """

    benchmark: str
    when: str
    options: str
    prints: str
    needs: tuple[str, ...] = ()


INVERSION = "--quick --steps 5 --targets 1 --sizes 32 --architectures cnn4 --device cpu"
GRADIENTS = "--images 1 --steps 2 --warm-up 1 --models cnn4"
SCORE = r"n {} diverged 0; PSNR [\d.]+ .*, floor [\d.]+, above it .*; SSIM"
FORMS = (
    Form(
        "fingerprints", "--compare", "--only linear --compare before.json", r"^(\d) of \1 as before"
    ),
    Form("fingerprints", "", "--only linear --out before.json", r"^3 prints$"),
    Form("gpu", "--table", "", r"^## kit$"),
    Form("gpu", "--list", "", r"^kit: tests: (done|to do)$"),
    Form("gpu", "cpu", "--minutes 0 --results rehearsed", r"^cpu: 0 of \d+ done$"),
    Form("gpu", "", "--rehearse --only stacking --results rehearsed", r"^kit: 1 of 1 done$"),
    Form("campaign", "", "", r"^fedre-pra0.1-s0: found.json$"),
    Form("travel", "", "--no-wheels --to travel", r"^ +[\d.]+ MiB  in all, of 50$"),
    Form(
        "federations",
        "protocols",
        "--protocols fedre --rounds 1",
        r"^fedre +equal( +[\d.]+){2} ",
        needs=("flwr",),
    ),
    Form(
        "federations",
        "simulation",
        "--protocols fedre --rounds 1",
        r"^fedre +equal +[\d.]+$",
        needs=("flwr", "ray"),
    ),
    Form(
        "federations",
        "growth",
        "--sizes 2 --protocols fedre",
        r"^fedre +2 +[\d.]+ +\d+ +[\d,]+ +\d +[\d,]+$",
    ),
    Form("first_picture", "", "--steps 2 --out pictures", r"^pictures/first-dark.png$"),
    Form("startup", "", "--repeats 1", r"^fedre-attack list +[\d.]+ +[\d.]+$"),
    Form("load", "", "--axes rounds --sizes 2 --limit 50", r"^\| rounds \| 2 \| [\d.]+ \(data "),
    Form(
        "cores",
        "",
        "--protocols fedre --cores 2 --repeats 1 --rounds 1 --clients 2 --samples 40",
        r"^fedre +0 busy  threads [\d.]+ .*(.|\n)*^fedre +bytes of 1, 2 and 4 cores equal$",
    ),
    Form(
        "cores",
        "--against",
        f"--against {ROOT} --protocols fedre --repeats 1 --rounds 1 --clients 2 --samples 40",
        r"^fedre +clock +other [\d.]+ .*this [\d.]+ .*\n"
        r"fedre +processor +other [\d.]+ .*this/other [\d.]+ ",
    ),
    Form("rounds", "--memory", "--clients 2 --protocols fedre", "^2 clients of cnn-5, fedre: "),
    Form(
        "rounds",
        "",
        "--clients 2 --samples 12 --batch 4 --repeats 1 --architecture cnn-5 --threads 1 "
        "--protocols fedre,fedavg --device cpu",
        r'"clients": 2, "samples": 12(.|\n)*^fedre +wall +[\d.]+(.|\n)*^fedavg +wall +[\d.]+',
    ),
    Form(
        "captured",
        "",
        "--architectures cnn4 --clients 2 --steps 3 --device cpu",
        r"^cnn4 +46 +276 +6$(.|\n)*^cnn4 +\d+ +30$",
    ),
    Form("waits", "", "--protocols fedgh --clients 2", r"^fedgh +4 +2 +2$"),
    Form("image_memory", "", "--images 60 --size 16 --clients 2", r"^all batches equal$"),
    Form("audits", "", "--repetitions 1 --out audits", r"^ *noise alone, z 1 +1 +0 +"),
    Form("inversion", "ratio", INVERSION, r"^cnn4 +32 +1( +[\d.]+){5}$"),
    Form("inversion", "limits", f"{INVERSION} --rows 2", r"^cnn4 +32 +2 .*%"),
    Form("inversion", "profile", f"{INVERSION} --rows 2", r"^cnn4, 32 px, 2 rows: .*%"),
    Form("inversion", "stacking", f"{INVERSION} --rows 2", r"^ +32 +2 +float32 +[\d.]+ ms"),
    Form("inversion", "memory", f"{INVERSION} --many 2", r"^cnn4 +32 +2 +\d+ .*MiB$"),
    Form("inversion", "whole", INVERSION, r"^cnn4, 32 px, 1 targets, 5 steps: [\d.]+ s; half "),
    Form("inversion", "decoder", INVERSION, r"^32 px, 10 extractors: .*held-out loss [\d.]+"),
    Form(
        "gradients",
        "dlg",
        "--images 1 --steps 2 --attacks dlg,idlg --restarts 1",
        r"^dlg, restarts=1\n +n 1, .*floor(.|\n)*^idlg, restarts=1\n +n 1, .*floor",
    ),
    Form("gradients", "single", f"{GRADIENTS},cnn4-trained", SCORE.format("1,")),
    Form("gradients", "batch", f"{GRADIENTS},cnn4-trained", SCORE.format("8,")),
    Form("gradients", "analytic", "--images 1", SCORE.format("32,")),
    Form(
        "gradients",
        "spear",
        f"{GRADIENTS} --attacks linear",
        r"batch of 8, by linear\n +n 8, .*floor(.|\n)*of 8 inputs have a certificate",
    ),
    Form(
        "whole_batches",
        "",
        "--networks 0 --batches 1 --sizes 3 --out batches.csv",
        r"^0\S* +dense, untrained +3 +1 +1 +3 +0 ",
    ),
    Form(
        "head_features",
        "",
        "--networks 0 --batches 1 --sizes 3 --out heads.csv",
        r"^untrained +[01] +0\.\d+ +3 +1 +3 +[23] +[23] +0 ",
    ),
    Form("gradients", "imprint", "--images 1 --models cnn4", r"to 0.001: \d+ of 64 inputs have"),
    Form("gradients", "labels", f"{GRADIENTS},cnn4-trained", r" n 8 B=32 +joint +labels right \d"),
    Form("gradients", "update", GRADIENTS, SCORE.format("4,")),
    Form(
        "gradients",
        "modes",
        f"{GRADIENTS}-dropout",
        r"4 images, dropout=off(.|\n)*less the first way",
    ),
    Form("gradients", "head", GRADIENTS, r"^cnn4 +2 classes, .*cosine.*classes 2 of 2"),
    Form("gradients", "speed", GRADIENTS, r"^cnn4 .*8 victims one after another [\d.]+, together"),
    Form(
        "gradients_prior",
        "",
        "--seeds 21 --sizes 2,1 --victims 1,1 --warm-up 1 --steps 2 --out prior.csv",
        r"^untrained, 2 images, n 2 \(1 victims\), floor [\d.]+\n +smooth [\d.]+ dB",
    ),
    Form(
        "gradients_beside",
        "",
        "--images 2 --batches 1 --steps 2 --sizes 1,2 --warm-up 1 --models cnn4",
        r"^cnn4, 2 batches of 1, n 2\n +ours, 2 iterations: [\d.]+ dB",
    ),
    Form(
        "priors",
        "",
        "--drawn 20 --targets 2 --setting steps=4 --setting steps=5",
        r"^steps=4 +n \d(.|\n)*^steps=5 +n \d(.|\n)*less the first",
    ),
    Form(
        "heads",
        "",
        "--seeds 0 --rounds 1 --clients 3 --methods combined,ratio --out runs",
        r"^lg-(cifar|digits), seed 0: accuracy(.|\n)*^ +combined +answers +\d+ of +\d+: cosine",
    ),
    Form(
        "active_servers",
        "",
        "--seeds 1 --trained 2 --round 2 --set data.size=16 --set data.per_class=12 "
        "--set model.dim=16 --set train.clients=4 --out runs --attacks=",
        r"ACTIVE SERVER(.|\n)*post_broadcast(.|\n)*(^ *norm |nothing was steered)",
    ),
    Form(
        "active_servers",
        "--data",
        "--seeds 1 --trained 2 --round 2 --set data.per_class=12 --set model.dim=16 "
        "--set train.clients=4 --out runs --attacks=",
        r"ACTIVE SERVER(.|\n)*post_broadcast(.|\n)*(^ *norm |nothing was steered)",
    ),
    Form(
        "surrogates",
        "",
        "--seeds 11 --per-class 20 --clients 3 --trained 2 --steps 3 --targets 2 --out runs",
        r"^sdar +n 2, (.|\n)*^fora +n 2, (.|\n)*^extractor +n 2, .*found \d",
    ),
    Form("fuzz", "--input", "--subjects fedproto", r"^all +1 "),
    Form("fuzz", "", "--seconds 5 --jobs 1 --subjects fedproto", r"^all +\d+ "),
    Form("kills", "", "--moments 1 --of draw", r"^ *all +1 +\d +\d +1 +0$"),
    Form(
        "learnt_priors",
        "",
        "--targets 2 --drawn 12 --ways linear;dip",
        r"^way +n +PSNR(.|\n)*^linear +[26] (.|\n)*^dip +[26] ",  # two of each RUN
    ),
    Form(
        "maps", "", "--architectures cnn4 --size 16 --quick", r"passes \d+ and \d+; numbers equal$"
    ),
    Form(
        "maps",
        "--pixels",
        "--size 64 --aux 16 --extractors 1 --repeats 1",
        r"in pixels, .*in coordinates, .*numbers equal$",
    ),
    Form("large_images", "", "--quick", r'"over_floor_db": [3-9](.|\n)*"n": 4'),
    Form("misses", "", "--targets 3 --drawn 12 --half report", r"below 12 dB(.|\n)*first start"),
    Form(
        "membership_models",
        "",
        "--per-class 30 --clients 3 --rounds 1 --runs runs",
        r"setting +score +seeds +n (.|\n)*difference",
    ),
    Form("disentangle", "--unseen", "", r"^ImageData\('npz': 1000 images 3x32x32"),
    Form("disentangle", "--rows", "", r"prototype: all, n = 40\n(.|\n)*^aligned +0.900 / 0.100"),
    Form(
        "disentangle",
        "RUN",
        "--out scored.csv",
        r"prototype: all, n = \d\d?\n(.|\n)*^aligned +-?\d\.\d+ / \d",
    ),
    Form("disentangle", "", "--repeats 1 --first 3", r"^means of 1 draws(.|\n)*^ 10   10 .*1\.0"),
    Form(
        "learning",
        "--data",
        "--rounds 1 --per-class 12 --first 1 --jobs 1 --device cpu --out trained",
        r": local 0.*\n\d rows, 0 left of this form, 0 failed: trained",
    ),
    Form(
        "public_backbones",
        "",
        "--rounds 1 --per-class 12 --first 1 --out trained",
        r"^local pra:1.0 lite0 seed 1 of 10 clients on .*: own .*\n1 rows, \d+ left: trained",
        needs=("efficientnet_lite_pytorch",),
    ),
    *(
        Form(
            "public_backbones",
            word,
            f"--data FILE.npz --clients {clients} --rounds 1 --per-class 9 --first 1 --out trained",
            rf"^local pra:1.0 lite0 seed 1 of {clients} clients on FILE: own .*\n1 rows, \d+ left:",
            needs=("efficientnet_lite_pytorch",),
        )
        for word, clients in (("--clients", 3), ("tinyimagenet:tiny-imagenet-200", 2))
    ),
    Form(
        "backbone_leakage",
        "",
        "--rounds 1 --per-class 12 --only fedcgs --first 1 --out trained",
        r"^fedcgs pra:1.0 lite0-head seed 1 of .*: members 1.0000, representations [\d.]+$",
        needs=("efficientnet_lite_pytorch",),
    ),
    Form(
        "frozen_mixtures",
        "",
        "--rounds 4 --clients 2 --per-class 12 --size 32 --first 1 --out mixed",
        r"^head rap pra:1.0 seed 1: \d of 2 clients solved, \d certified",
        needs=("efficientnet_lite_pytorch",),
    ),
    Form(
        "adapters",
        "",
        "--brief --seeds 1 --only test_vit-head:loss --out adapted",
        r"^test_vit-head loss-membership auc, seed 1: n \d+, [\d.]+, floor [\d.]+, noise [\d.]+$",
        needs=("timm",),
    ),
    Form(
        "imprinted_adapters",
        "",
        "--seeds 1 --only 32-16-32-g --out imprinted",
        r"^32-16-32-gradient seed 1: \d+ of 32 vectors right, \d+ with a certificate, 0 on noise; ",
        needs=("efficientnet_lite_pytorch",),
    ),
    Form("learning", "--table", "", r"^\| fedre, mean \|.*\| 2 \| .* \(n 2\) \|$"),
    Form("learning", "--figure", "", r"^runs/learning/server.png$"),
    Form(
        "costs",
        "",
        "--clients 2 --samples 12 --batch 4 --repeats 1 --device cpu",
        r"^\w+ +0\.\d+ +0\.\d+( +[\d.]+){5} +[\d.]+%$",
    ),
    Form("disentangle_figure", "", "--out .", r"^recovered prototype +n +\d+ +PSNR [\d.]+"),
    Form(
        "backbone_depth",
        "",
        "--size 32 --public 40 --targets 10 --floors 20 --places 3 3x4 --seeds 1 --out depth.csv",
        r"^block 3, 4x4, 40 public, seed 1, none: [\d.]+ dB, floor [\d.]+, found [\d.]+$",
        needs=("efficientnet_lite_pytorch",),
    ),
    Form(
        "backbone_attacks",
        "",
        "--size 32 --public 40 --targets 3 --floors 20 --places 3 --attacks linear --seeds 1 "
        "--out attacks.csv",
        r"^block 3, 1x1, linear, seed 1: [\d.]+ dB, floor [\d.]+, found [\d.]+, [\d.]+ s$",
        needs=("efficientnet_lite_pytorch",),
    ),
    Form(
        "retrieval",
        "",
        "--size 32 --per-class 20 --clients 3 --targets 8 --gallery 5 --depths 3 --seeds 1 "
        "--kinds representations --runs runs --out retrieval.csv",
        r"^block 3, representations of 1, none, seed 1: 1.0 first, guess [\d.]+, n 8$",
        needs=("efficientnet_lite_pytorch",),
    ),
    Form(
        "class_statistics",
        "",
        "--brief --seeds 1 --out statistics.csv",
        r"^full, float16, none, 4 images: found 40 of 40, seed 1$",
    ),
    Form(
        "class_statistics",
        "--backbone",
        "--backbone cnn4 --brief --seeds 1 --out of_features.csv",
        r"^full, float16, none, 4 images: found \d+ of \d+, seed 1$",
    ),
    Form(
        "statistics_membership",
        "",
        "--only float16 --seeds 1 --out membership.csv --table table.csv",
        r"^full float16 none 32 images, seed 1: AUC 1.000$",
    ),
    Form(
        "statistics_defences",
        "",
        "--only identity --seeds 1 --out defences.csv --table table.csv",
        r"^full, shrink-covariance:.*: found (\d+) and \1 of \d+, accuracy",
    ),
    Form(
        "backbone_features",
        "",
        "--backbone cnn4 --data FILE.npz --out features.npz",
        r"^\d+ features of \d+ values in features.npz$",
    ),
    Form(
        "property",
        "",
        "--protocols lg-fedavg --per-class 20 --clients 5 --seeds 11 --out runs",
        r"^lg-fedavg +classes +n +\d+, +\d+ pairs: AUC [\d.]+",
    ),
    Form(
        "shadow",
        "",
        "--protocols fedgh --seeds 1 --rounds 1 --clients 3 --per-class 30 --targets 3 "
        "--starts shared --out runs",
        r"^fedgh, shared start: accuracy(.|\n)*^fedgh, shared, round 1: shadow +n +\d+, floor",
    ),
    Form(
        "confidence",
        "",
        "--attacks linear --seeds 1 --clients 3 --targets 8 --dataset digits --out runs",
        r"^linear, digits, seeds 1: (.|\n)*^  all +n +\d+, found [\d.]+, said [\d.]+",
    ),
    Form(
        "certificates",
        "",
        "--seeds 2 --rounds 6 --cases clean --clients 3 --trained 8 --out runs",
        r"^aligned, clean, 6 rounds +n +\d+, right [\d.]+, certified +\d+",
    ),
    Form(
        "defences",
        "",
        "--seeds 0 --targets 2 --rounds 2 --clients 3 --jobs 1 --only fedre --defences none "
        "--steps 2 --out out --runs-dir runs",
        r"^\| fedre, none \| 0\.\d+ \|.* \| no bound \| none \| 1 \|$",
    ),
)


def forms_of(found: Command) -> list[Form]:
    """The forms of a command, one for each of its parts; none where nobody wrote one."""
    own = [form for form in FORMS if form.benchmark == found.benchmark]
    named = [form for form in own if form.when in found.words]
    return named or [form for form in own if not form.when]


def smallest(found: Command, form: Form) -> tuple[str, ...]:
    """A command's arguments at the smallest size, of one of its parts."""
    sized = form.options.split()
    others = {
        other.when
        for other in FORMS
        if other.benchmark == form.benchmark and other.when.isalpha() and other.when.islower()
    } - {form.when}
    words = [word for word in found.words if word not in others]
    names = {word for word in sized if word.startswith("--")}
    kept, dropped = [], False
    for word in words:  # an option that the form sets goes with all its values
        dropped = word in names if word.startswith("--") else dropped
        kept += [] if dropped else [word]
    return (form.benchmark, *kept, *sized)


COMMANDS = [c for page in PAGES for c in commands_in(page.name, page.read_text(encoding="utf-8"))]
RUNS = {smallest(found, form): form for found in COMMANDS for form in forms_of(found)}
"""What is run, each once however often it is documented, and its form."""


# --- what the pages show --------------------------------------------------------------------------


@pytest.mark.parametrize("found", COMMANDS, ids=str)
def test_a_documented_command_is_understood_and_has_a_smallest_form(found, load):
    given = vars(load(found.benchmark).parser().parse_args(found.words))
    for key in ("architecture", "architectures", "models"):
        for name in (given.get(key) or "cnn4").split(","):
            for more in ("-trained", "-published", "-bn", "-dropout"):  # said by benchmarks alone
                name = name.removesuffix(more)
            members_of(name)
    for key in ("protocols", "only"):
        assert set((given.get(key) or "fedre").split(",")) <= set(protocols.names())
    assert forms_of(found), f"no smallest form of: {found}"


def test_every_benchmark_is_documented_and_every_form_is_used():
    assert {found.benchmark for found in COMMANDS} == set(BENCHMARKS)
    assert set(RUNS.values()) == set(FORMS)


def test_no_command_of_a_page_is_overlooked():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        shown = len(re.findall(r"python benchmarks/\w+\.py", text))
        assert len([c for c in COMMANDS if c.page == page.name]) >= shown, page.name


def test_commands_are_cut_out_of_a_page():
    page = (
        "`rounds.py` and `python benchmarks/rounds.py`, `benchmarks/gradients.py`\n"
        "```\npython benchmarks/disentangle.py RUN ... \\\n    --out a.csv   why\nother\n```\n"
        "`inversion.py ratio\n--steps 3` `python benchmarks/gradients.py PART --data D.npz`\n"
        "| `single --images 8` | `fedre-attack --threat strong` | `other --images 8` |\n"
        "\t$(BIN)/python benchmarks/captured.py --clients 3\n"
        "\t$(if $(DATA),$(BIN)/python benchmarks/gradients.py speed --data $(DATA))\n"
    )
    found = [(one.benchmark, *one.words) for one in commands_in("x", page)]
    parts = [form.when for form in FORMS if form.benchmark == "gradients"]
    assert found == [
        ("captured", "--clients", "3"),
        ("gradients", "speed", "--data", "FILE.npz"),
        ("disentangle", "RUN", "--out", "a.csv"),
        ("rounds",),
        ("inversion", "ratio", "--steps", "3"),
        *(("gradients", part, "--data", "D.npz") for part in parts),
        ("gradients", "single", "--images", "8", "--data", "D.npz"),
    ]


def test_sizes_are_replaced_and_all_else_is_kept():
    found = Command("x", "inversion", ("limits", "ratio", "--eager", "--targets", "8"))
    (first, second) = forms_of(found)
    assert (first.when, second.when) == ("ratio", "limits")
    kept = smallest(found, first)
    assert kept[:3] == ("inversion", "ratio", "--eager") and kept.count("--targets") == 1
    assert kept[kept.index("--targets") + 1] == "1"


@pytest.mark.parametrize(
    "words", [("ratios",), ("--target", "8"), ("ratio", "--repeats", "many")], ids=str
)
def test_a_command_that_is_wrong_is_found(words, load):
    with pytest.raises(SystemExit):
        load("inversion").parser().parse_args(words)


def test_a_command_without_a_form_is_found():
    assert not forms_of(Command("x", "inversion", ("--quick",)))
    assert not forms_of(Command("x", "gradients", ("another", "--data", "FILE.npz")))


LEARNT = """\
way,partition,models,step,clients,seed,per_class,rounds,local,broadcast,best_local,best_broadcast,seconds
"fedre, mean",pra:0.1,cnn4,0.06,10,1,100,20,0.7,0.75,0.7,0.75,60
"fedre, mean",pra:0.1,cnn4,0.06,10,2,100,20,0.7,0.73,0.7,0.75,60
local,pra:0.1,cnn4,0.06,10,1,100,20,0.74,0.74,0.75,0.75,60
local,pra:0.1,cnn4,0.06,10,2,100,20,0.73,0.73,0.75,0.75,60
"""
"""Rows of a campaign, as `learning.py` writes them."""


# --- run them -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Path:
    """The folder of somebody who follows the pages: images, a run, its scores and figures."""
    folder = tmp_path_factory.mktemp("reader")
    rng = np.random.default_rng(0)
    labels = np.arange(3000) % 10
    tints = rng.integers(60, 196, (10, 1, 1, 3))
    images = (tints[labels] + rng.integers(-60, 60, (3000, 32, 32, 3))).astype(np.uint8)
    for name in ("FILE.npz", "cifar10-6k.npz"):
        np.savez(folder / name, x_train=images, y_train=labels)
    run = api.train(
        "fedre",
        clients=3,
        rounds=6,
        seed=2,
        partition="pra:0.5",
        runs=folder,
        set={"data.size": 16, "data.per_class": 12, "record.keep_every": 1},
    )
    run.folder.rename(folder / "RUN")
    rows = [
        (solver, rounds, 0.9, 0.1, 1.0, 1 + i, i // 10, i % 10)
        for solver, rounds in itertools.product(
            ("aligned", "last upload"), ("1 n", "2 n", "3 n", "all")
        )
        for i in range(40)
    ]
    columns = ["solver", "rounds", "centred_cosine", "relative_error", "identified", "counts"]
    table = pd.DataFrame(rows, columns=[*columns, "clients", "labels"])
    table.assign(run="made", seed=7, kind="made", drift=0.1, drift_max=0.2).to_csv(
        folder / "rows.csv", index=False
    )
    (folder / "before.json").write_text("{}")
    (folder / "runs" / "learning").mkdir(parents=True)
    (folder / "runs" / "learning" / "learning.csv").write_text(LEARNT)
    (folder / "docs" / "images").mkdir(parents=True)
    shutil.copytree(ROOT / "results" / "data", folder / "results" / "data")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_a_documented_command_runs_and_prints_its_table(words, reader):
    benchmark, *arguments = words
    for package in RUNS[words].needs:
        pytest.importorskip(package, reason="not installed: extras 'flower,ray,backbones'")
    shutil.rmtree(reader / "trained", ignore_errors=True)  # forms of one campaign share rows
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{benchmark}.py"), *arguments],
        cwd=reader,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert re.search(RUNS[words].prints, done.stdout, re.MULTILINE), done.stdout
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert took < CPU_SECONDS, f"{took:.0f} s of one core"
