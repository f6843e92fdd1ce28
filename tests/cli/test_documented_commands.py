"""Every command that a page shows is one that the commands accept as it stands."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fedre_privacy.cli import (
    attack,
    audit,
    benchmark,
    claim,
    communication,
    curves,
    leaderboard,
    membership,
    repeat,
    toy,
    train,
    verify,
    view,
)
from fedre_privacy.cli.output import Output
from fedre_privacy.cli.shared import external_uploads as foreign
from fedre_privacy.core.errors import FedreError, MissingInputError
from fedre_privacy.core.registry import import_plugins
from fedre_privacy.experiments import attack as pipeline
from fedre_privacy.models.zoo.base import architectures
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs import preparation as preparing
from fedre_privacy.runs.run import Run, find_run

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(page for folder in ("docs", "results") for page in sorted((ROOT / folder).glob("*.md"))),
]
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`(fedre-(?:train|attack|benchmark|audit|membership|view)\s[^`]*)`")
COMMAND = re.compile(r"(?:\.venv/bin/)?(fedre-(?:train|attack|benchmark|audit|membership|view))\b")
MODULES: dict[str, ModuleType] = {
    "fedre-train": train,
    "fedre-attack": attack,
    "fedre-benchmark": benchmark,
    "fedre-audit": audit,
    "fedre-membership": membership,
    "fedre-view": view,
}
STAND_INS = {  # a page's placeholder and what a reader could write there
    "RUN": "recorded",
    "FILE.yaml": "settings.yaml",
    "S": "1",
    "P": "fedre",
    "T": "representations",
    "A": "pixel",
}
NAMES = {"--protocol": "fedgh", "--preset": "quick"}  # what NAME may stand for


@dataclass(frozen=True)
class Command:
    """One command of one page."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """Its arguments, placeholders filled in."""
        words = shlex.split(self.text)[1:]
        filled = [STAND_INS.get(word, word) for word in words]
        for place, (before, word) in enumerate(itertools.pairwise(filled), start=1):
            key, _, value = word.partition("=")
            if word == "NAME":
                filled[place] = NAMES[before]
            elif before == "--set" and value in STAND_INS:
                filled[place] = f"{key}={STAND_INS[value]}"
        return filled

    def __str__(self) -> str:
        return f"{self.page}-{self.line}"


def commands_in(page: str, text: str) -> Iterator[Command]:
    """The commands of a page: lines of code blocks that start with one, and spans in the text."""

    def at(place: int) -> int:
        return text.count("\n", 0, place) + 1

    for block in FENCE.finditer(text):
        lines = enumerate(block[1].splitlines(), at(block.start(1)))
        for number, line in lines:
            if COMMAND.match(line):
                while line.endswith("\\"):
                    line = line[:-1].rstrip() + " " + next(lines)[1].strip()
                for shown in variants(re.split(r"\s{3,}|\s+#", line)[0]):
                    yield Command(page, number, shown)
    outside = FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)
    for span in SPAN.finditer(outside):
        yield Command(page, at(span.start()), " ".join(span[1].split()))
    for number, line in enumerate(outside.splitlines(), 1):
        if line.startswith("    fedre-"):
            yield Command(page, number, line.strip())


def variants(line: str) -> Iterator[str]:
    """The command without and with what stands in brackets."""
    bracket = re.search(r"\s*\[(.+?)\]", line)
    if bracket is None:
        yield line
    else:
        yield line[: bracket.start()] + line[bracket.end() :]
        yield line.replace(bracket[0], f" {bracket[1]}")


COMMANDS = [c for page in PAGES for c in commands_in(page.name, page.read_text(encoding="utf-8"))]


class Accepted(BaseException):
    """Raised where a command would start its work: everything was checked before."""


def stop(*given: Any, **_: Any) -> None:
    raise Accepted(*given)


def stop_after_preparing(run: Run, settings: Any, **_: Any) -> None:
    """Take the last step before the attack: everything it reads is there and fits."""
    raise Accepted(pipeline.prepare_attack(run, settings))


def classes_in(page: str, names: set[str]) -> str:
    """The code blocks of a page that define these classes."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = [block[1] for block in FENCE.finditer(text)]
    return "\n".join(b for b in blocks if any(f"class {name}(" in b for name in names))


@pytest.fixture(scope="module")
def reader(tmp_path_factory, cli, tiny) -> Path:
    """The folder of somebody who follows the pages: files they name, plugins, a recorded run."""
    folder = tmp_path_factory.mktemp("reader")
    fedre = ("--protocol", "fedre", "--set", "record.keep_every=1")
    made = cli.train(*tiny, *fedre, "--runs-dir", folder / "runs")
    assert made.code == 0, made.err
    (run,) = (folder / "runs").iterdir()
    run.rename(folder / "recorded")
    (folder / "settings.yaml").write_text("protocol: {name: fedgh}\n", encoding="utf-8")
    (folder / "weights.safetensors").write_bytes(b"hashed, and not read before a training")
    (folder / "my_schemes.py").write_text(classes_in("add_your_own.md", {"TopHeavy"}))
    (folder / "my_pair.py").write_text(classes_in("tutorial.md", {"Pair"}))
    (folder / "my_protocols.py").write_text(classes_in("add_your_own.md", {"MeanHead"}))
    (folder / "my_protocol.py").write_text(classes_in("my_protocol.md", {"ShortMeans"}))
    (folder / "my_attack.py").write_text(classes_in("add_your_own.md", {"NearestPublic"}))
    (folder / "my_defenses.py").write_text(classes_in("add_your_own.md", {"UniformNoise"}))
    (folder / "my_steering.py").write_text(classes_in("add_your_own.md", {"OneClass"}))
    net = classes_in("add_your_own.md", {"WideNet"}).replace(
        "@dataclass", '@architectures.register("wide-net")\n@dataclass'
    )
    base = "fedre_privacy.models.zoo.base"
    (folder / "my_model.py").write_text(f"from {base} import architectures\n{net}")
    mine = classes_in("add_your_own.md", {"TopHeavy"}).replace("TopHeavy", "MyScheme")
    (folder / "my_module.py").write_text(mine)
    (folder / "sweeps").symlink_to(ROOT / "sweeps")
    return folder


def found_or_named(path: Path, runs_dir: Path) -> Any:
    """A run of the reader's, or something that bears a name of the page."""
    try:
        return find_run(path, runs_dir)
    except MissingInputError:
        return SimpleNamespace(folder=path)


@pytest.fixture
def accepted(reader, monkeypatch) -> Callable[[str, list[str]], Any]:
    """Give a command up to where its work would start; return what it would work on."""
    monkeypatch.chdir(reader)
    monkeypatch.syspath_prepend(reader)
    architectures.names()  # loaded, so that what a page's own file adds goes with the test
    for kept in ("_things", "_origins"):
        monkeypatch.setattr(architectures, kept, dict(getattr(architectures, kept)))
    work = "fedre_privacy.cli.shared"
    monkeypatch.setattr("fedre_privacy.experiments.dry_run.dry_run", stop)
    monkeypatch.setattr(f"{work}.result.dry_run", stop)
    monkeypatch.setattr("fedre_privacy.auditing.recorded_run.plan_audit", stop)
    monkeypatch.setattr("fedre_privacy.api.run_membership", stop)
    monkeypatch.setattr(preparing, "prepare", stop)  # comes after the checks of attack and training
    monkeypatch.setattr("fedre_privacy.api.run_attack", stop_after_preparing)
    monkeypatch.setattr(foreign, "read_external_uploads", stop)
    monkeypatch.setattr("fedre_privacy.api.verify", stop)
    monkeypatch.setattr("fedre_privacy.api.view", stop)
    monkeypatch.setattr("fedre_privacy.api.run_benchmark", stop)
    monkeypatch.setattr("fedre_privacy.experiments.dry_run.dry_run_suite", stop)
    monkeypatch.setattr("fedre_privacy.reproduction.toy.run_toy", stop)
    monkeypatch.setattr("fedre_privacy.api.claim", stop)
    monkeypatch.setattr("fedre_privacy.publish.claims.read_claim", stop)
    monkeypatch.setattr("fedre_privacy.api.leaderboard", stop)
    tables = "fedre_privacy.reproduction"
    monkeypatch.setattr(f"{tables}.measured_traffic.measure_traffic", lambda run: run)
    monkeypatch.setattr("fedre_privacy.runs.run.find_run", found_or_named)
    monkeypatch.setattr(f"{tables}.communication.table_11", stop)
    labels = f"{tables}.data_shares.read_labels"
    monkeypatch.setattr(labels, lambda path: torch.arange(60_000) % 10)

    def give(program: str, words: list[str]) -> Any:
        module = MODULES[program]
        for option, other in (("--communication", communication), ("--toy", toy)):
            if module is benchmark and option in words:
                module = other
        for word, other in (("claim", claim), ("verify", repeat), ("leaderboard", leaderboard)):
            if module is benchmark and words[:1] == [word]:
                module, words = other, words[1:]
        if module is train and words[:1] == ["curves"]:
            module, words = curves, words[1:]
        if module is attack and words[:1] == ["verify"]:
            module, words = verify, words[1:]
        if module is train:
            monkeypatch.setattr("fedre_privacy.api.run_training", stop)
        run = module.run if hasattr(module, "run") else module._run
        try:
            options = module.parser().parse_args(words)
            import_plugins(getattr(options, "plugin", ()))
            if "list" in getattr(options, "preset", ()):
                return ()
            code = run(options, Output(as_json=False, quiet=True))
        except Accepted as reached:
            return reached.args
        except SystemExit as answered:  # argparse refuses with 2
            code = answered.code
        assert code == 0
        return ()

    return give


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_documented_command_is_accepted(command, accepted):
    accepted(COMMAND.match(command.text)[1], command.words)


def test_every_page_with_commands_is_read():
    pages = {command.page for command in COMMANDS}
    shown = {p.name for p in PAGES if re.search(r"^fedre-\w+ ", p.read_text(), re.MULTILINE)}
    assert shown <= pages and {"README.md", "presets.md", "defenses.md"} <= pages
    assert len(COMMANDS) > 40


def test_commands_are_cut_out_of_a_page_as_they_would_be_typed():
    page = (
        "text `fedre-attack\nlist` and `fedre-paper`\n```\nfedre-train --a 1 \\\n    --b 2   why\n"
        "other\nfedre-attack list [--for RUN]      all\nfedre-train --c  # what\n```\n"
    )
    found = [(command.line, command.text) for command in commands_in("x", page)]
    assert found == [
        (4, "fedre-train --a 1 --b 2"),
        (7, "fedre-attack list"),
        (7, "fedre-attack list --for RUN"),
        (8, "fedre-train --c"),
        (1, "fedre-attack list"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "fedre-train --protocols fedre",
        "fedre-train --set train.epoch=3",
        "fedre-train --preset cnn6",
        "fedre-attack RUN --attack linear",  # needs a stronger threat model
        "fedre-attack --protocol fedgh --scheme rap",
        "fedre-attack --protocol fedre --target update",
        "fedre-attack --protocol fedre --rounds 5 --round 6",
        "fedre-attack RUN --target recovered-prototypes --set eval.staleness=9 --threat strong",
        "fedre-benchmark --protocols fedre,fedxx",
        "fedre-benchmark --communication --dataset mnist",
        "fedre-benchmark --toy --set sees=3",
    ],
)
def test_a_command_that_is_wrong_is_found(wrong, accepted):
    command = Command("x", 1, wrong)
    with pytest.raises((FedreError, AssertionError)):
        accepted(COMMAND.match(command.text)[1], command.words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("fedre-attack --protocol fedre --target prototypes", "--dry-run"),
        ("fedre-attack --preset quick", "--dry-run"),
        ("fedre-attack --protocol fedsgd --target update", "--dry-run"),
        ("fedre-train --protocol fedgh --rounds 50", "--dry-run"),
        ("fedre-benchmark --communication", ""),
        ("fedre-benchmark --toy", "--set seeds=2 --set rounds=2"),
    ],
)
def test_commands_on_built_in_data_run(text, more, reader, monkeypatch, capsys):
    spoken = {" ".join(command.text.split()) for command in COMMANDS}
    assert text in spoken
    monkeypatch.chdir(reader)
    name, *words = shlex.split(f"{text} {more}")
    assert MODULES[name].main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_placeholders_for_a_protocol_stand_for_one():
    assert set(NAMES.values()) & set(protocols.names())
