"""Which room may import which, and what attack code may not even name."""

from __future__ import annotations

import ast
import dataclasses
import re
import typing
from collections.abc import Iterator

import pytest

from fedre_privacy.core import types
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.types import Observation

ROOT = "fedre_privacy"
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "data": {"core"},
    "loggers": {"core"},
    "models": {"core"},
    "partition": {"core"},
    "entanglement": {"core"},
    "defenses": {"core"},
    "eval": {"core"},
    "presets": {"core"},
    "threats": {"core"},
    "attacks": {"core", "models"},
    "active_server": {"core", "models"},
    "protocols": {"core", "models", "entanglement"},
    "protocols.blocks": {"core", "data", "models"},
    "federation": {
        "core", "data", "models", "protocols.blocks", "protocols.base", "defenses.base",
        "defenses.apply", "defenses.defended_modules", "defenses.learnt", "defenses.local_pass",
        "active_server.base", "active_server.behaviour",
    },
    "sandbox": {
        "core", "models", "attacks.base", "defenses.base", "defenses.defended_modules",
        "defenses.local_pass",
    },
    "runs": {
        "core", "data", "models", "partition", "protocols.blocks", "protocols.base", "federation",
        "attacks.base", "defenses.base", "defenses.defended_modules", "defenses.learnt",
        "defenses.local_pass", "defenses.statement", "eval.matching",
        "eval.metrics.base", "threats", "entanglement.base", "presets", "active_server.base",
        "active_server.detectors.base",
    },
    "flower": {
        "core", "models", "protocols.blocks", "federation", "defenses.base", "runs", "__version__",
    },
    "nvflare": {"core", "federation"},
    "experiments": {
        "core", "data", "models", "partition", "entanglement", "defenses", "eval", "attacks",
        "protocols", "federation", "sandbox", "runs", "threats", "active_server",
    },
    "auditing": {
        "core", "models", "protocols.blocks", "protocols.base", "defenses", "federation", "eval",
        "runs",
    },
    "reproduction": {
        "core", "data", "models", "partition", "protocols", "federation", "eval", "runs",
    },
    "benchmarking": {
        "core", "data.base", "entanglement", "protocols.base", "attacks.base", "eval", "runs",
        "experiments", "active_server.base", "active_server.detectors.base",
    },
    "reports": {
        "core", "data", "eval", "runs", "experiments", "benchmarking", "auditing",
        "active_server.base", "protocols.base", "defenses.base", "entanglement.base",
        "partition.base",
    },
    "publish": {
        "core", "eval", "runs", "experiments", "benchmarking", "reports", "sandbox.client",
        "defenses.base", "entanglement.base", "partition.base", "active_server.base",
    },
    "testing": {
        "core", "data", "models", "partition", "entanglement", "protocols", "defenses", "attacks",
        "eval", "threats", "active_server", "federation", "runs", "experiments",
        "benchmarking.suite", "reproduction.measured_traffic",
    },
    "api": {
        "runs", "experiments", "benchmarking", "reports", "auditing", "core", "attacks.base",
        "data.base", "data.loading", "publish", "defenses.base", "entanglement.base",
        "eval.metrics.base", "eval.lower_bounds", "models.families", "partition.base",
        "protocols.base", "sandbox.client", "active_server.base", "loggers.base",
    },
    "cli": {
        "api", "runs", "experiments", "benchmarking", "reports", "auditing", "reproduction", "core",
        "attacks.base", "attacks.shadow_attacks.base", "publish", "data.base",
        "entanglement.base", "eval.metrics.base", "eval.lower_bounds", "models.zoo",
        "partition.base", "protocols.base", "protocols.blocks.traffic", "defenses.base", "presets",
        "sandbox.client", "threats", "active_server.base", "active_server.detectors.base",
        "loggers.base",
    },
    "__main__": {"cli", "__version__"},
}  # fmt: skip
"""Rooms, or single modules of a room, that a room may import; always itself."""


def imported(name: str, tree: ast.Module) -> Iterator[str]:
    """Dotted names of ours that a module names: imports of any form, and strings like them."""
    package = name.split(".")[:-1]
    texts = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == ROOT)
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = package[: len(package) - node.level + 1] + base
            if base[:1] == [ROOT]:
                yield from (".".join([*base, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in texts and re.fullmatch(rf"{ROOT}(\.\w+)+", node.value):
                yield node.value
        elif isinstance(node, ast.Call) and (path := relative_text(node)):
            level = len(path) - len(path.lstrip("."))
            base = package[: len(package) - level + 1]
            yield ".".join([*base, *path.strip(".").split(".")])


def relative_text(call: ast.Call) -> str:
    """What ``import_module(".room.module", __package__)`` imports; of an f-string its beginning."""
    named = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if named != "import_module" or not call.args:
        return ""
    given = call.args[0]
    first = given.values[0] if isinstance(given, ast.JoinedStr) and given.values else given
    text = first.value if isinstance(first, ast.Constant) else ""
    return text if isinstance(text, str) and text.startswith(".") else ""


def violations(name: str, tree: ast.Module) -> list[str]:
    """Imports that a module is not allowed."""
    blocks = name.split(".")[1:3] == ["protocols", "blocks"]
    room = "protocols.blocks" if blocks else name.split(".")[1]
    if room == "__init__":  # the front door, when it is first asked for
        doors = {f"{ROOT}.api", f"{ROOT}.core.moved_modules.install"}
        return [target for target in imported(name, tree) if target not in doors]
    allowed = MAY_IMPORT[room] | {room}
    if room in {"runs", "cli"}:
        allowed = allowed | {"__version__"}
    bad = []
    for target in imported(name, tree):
        path = target.removeprefix(f"{ROOT}.")
        if not any(path == door or path.startswith(f"{door}.") for door in allowed):
            bad.append(target)
    return bad


def docstrings(tree: ast.AST) -> set[int]:
    """Identities of the constants that are docstrings (also of fields)."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def test_every_room_is_known(modules):
    rooms = {name.split(".")[1] for name in modules}
    assert rooms == {room.split(".")[0] for room in MAY_IMPORT} | {"__init__"}


def test_imports_go_one_way(modules):
    bad = {name: found for name, tree in modules.items() if (found := violations(name, tree))}
    assert bad == {}


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("attacks.dip", "from ..data.base import datasets", "data.base.datasets"),
        ("attacks.dip", "from .. import data", "data"),
        ("attacks.inversion.reconstruction", "from ...eval import evaluate", "eval.evaluate"),
        ("attacks.inversion.reconstruction", "from ...protocols.base import x", "protocols.base.x"),
        ("attacks.__init__", "from ..federation import loop", "federation.loop"),
        ("attacks.dip", "import fedre_privacy.data.base as d", "data.base"),
        ("attacks.dip", "from fedre_privacy import experiments", "experiments"),
        ("attacks.dip", "def f():\n    from fedre_privacy.eval import x", "eval.x"),
        ("attacks.dip", "import importlib as i\ni.import_module('fedre_privacy.data')", "data"),
        ("attacks.dip", "import importlib as i\ni.import_module('..data.base', p)", "data.base"),
        ("runs.run", "def f(name):\n    import_module(f'..cli.{name}', __package__)", "cli"),
        ("eval.metrics.psnr", "from fedre_privacy.attacks.base import a", "attacks.base.a"),
        ("eval.score", "from fedre_privacy.protocols.base import p", "protocols.base.p"),
        ("core.types", "from ..models.split import SplitModel", "models.split.SplitModel"),
        ("core.files", "import fedre_privacy", ""),
        ("data.base", "from ..models import split", "models.split"),
        ("federation.loop", "from fedre_privacy.protocols.fedre import F", "protocols.fedre.F"),
        ("federation.loop", "from fedre_privacy.attacks.base import a", "attacks.base.a"),
        ("federation.loop", "from fedre_privacy.protocols import base_two", "protocols.base_two"),
        ("protocols.blocks.local", "from ..base import P", "protocols.base.P"),
        ("protocols.fedre", "from fedre_privacy.federation import loop", "federation.loop"),
        ("runs.training", "from fedre_privacy.cli import output", "cli.output"),
        ("cli.attack", "from fedre_privacy.attacks.dip import D", "attacks.dip.D"),
        ("api", "from fedre_privacy.cli.options import gather", "cli.options.gather"),
        ("__init__", "from .core import types", "core.types"),
    ],
)
def test_a_planted_violation_is_caught(name, source, target):
    found = violations(f"{ROOT}.{name}", ast.parse(source))
    assert found == [f"{ROOT}.{target}".rstrip(".")]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("attacks.inversion.reconstruction", "from ...core.types import Observation"),
        ("attacks.inversion.reconstruction", "from ..base import Context"),
        ("attacks.dip", '"""See fedre_privacy.data."""'),
        ("attacks.dip", "from fedre_privacy.models.split import Normalise"),
        ("federation.loop", "from fedre_privacy.protocols.base import Protocol"),
        ("runs.folder", "from fedre_privacy import __version__"),
        ("core.config", "from .registry import Registry"),
    ],
)
def test_an_open_door_is_open(name, source):
    assert violations(f"{ROOT}.{name}", ast.parse(source)) == []


# --- no circles --------------------------------------------------------------------------------


def imports_between(modules) -> dict[str, set[str]]:
    """Each module's imports of ours as module names, lazy and type-only ones too."""
    out: dict[str, set[str]] = {}
    for name, tree in modules.items():
        found = set()
        for target in imported(name, tree):
            for own in (target, target.rpartition(".")[0]):
                own = f"{own}.__init__" if own == f"{ROOT}.api" else own
                if own in modules:
                    found |= {own} - {name}
                    break
        out[name] = found
    return out


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Groups of names that reach each other."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for target in edges.get(todo.pop(), set()) - seen:
                seen.add(target)
                todo.append(target)
        return seen

    reached = {name: reach(name) for name in edges}
    return [
        {other for other in reached[name] if name in reached.get(other, set())}
        for name in edges
        if name in reached[name]
    ]


def room_of(name: str) -> str:
    """Rooms of attacks are rooms of their own; what they all stand on is one too."""
    parts = name.split(".")[1:]
    if parts[:1] == ["attacks"] and len(parts) > 1:
        return ".".join(parts[:2]) if len(parts) > 2 or parts[1] == "base" else "attacks"
    return parts[0] if parts else ROOT


def test_no_circle_between_modules(modules):
    assert circles(imports_between(modules)) == []


def test_no_circle_between_rooms(modules):
    rooms: dict[str, set[str]] = {}
    for name, found in imports_between(modules).items():
        rooms.setdefault(room_of(name), set()).update(room_of(t) for t in found)
    assert circles({room: found - {room} for room, found in rooms.items()}) == []


@pytest.mark.parametrize(
    "lazy",
    [
        "def f():\n    from fedre_privacy.experiments.attack import attack",
        "def f():\n    from ..experiments import attack",
        "def f():\n    import_module('..experiments.attack', __package__)",
        "if TYPE_CHECKING:\n    import fedre_privacy.experiments.attack",
        "LATER = {'attack': 'fedre_privacy.experiments.attack'}",
    ],
)
def test_a_planted_circle_is_caught(lazy):
    one = ast.parse("from fedre_privacy.benchmarking import sweep")
    other = ast.parse(lazy)
    found = imports_between(
        {"fedre_privacy.experiments.attack": one, "fedre_privacy.benchmarking.sweep": other}
    )
    assert (
        circles(found)
        == [{"fedre_privacy.experiments.attack", "fedre_privacy.benchmarking.sweep"}] * 2
    )


LARGEST = 0.15
"""Share of the product that one room may have."""


def test_no_room_is_a_dumping_ground(repo, modules):
    sizes: dict[str, int] = {}
    for name, tree in modules.items():
        last = max((node.end_lineno or 0 for node in tree.body), default=0)
        sizes[room_of(name)] = sizes.get(room_of(name), 0) + last
    total = sum(sizes.values())
    assert {room: size for room, size in sizes.items() if size > LARGEST * total} == {}


FLOORS = 11
"""Rooms that stand on each other, from the types at the bottom to the commands at the top."""


def test_the_house_has_few_floors(modules):
    below: dict[str, set[str]] = {}
    for name, found in imports_between(modules).items():
        room = name.split(".")[1].replace("__main__", "cli")
        others = {target.split(".")[1].replace("__main__", "cli") for target in found}
        below.setdefault(room, set()).update(others - {room})

    def floor(room: str) -> int:
        return 1 + max((floor(other) for other in below[room]), default=0)

    assert max(map(floor, below)) == FLOORS


# --- the attacker's blindness ------------------------------------------------------------------

BLIND_TO = re.compile(r"truth|mixture|emission|private", re.IGNORECASE)


def named(tree: ast.Module) -> Iterator[str]:
    """Every identifier of a module, and every string that could be a name (prose has spaces)."""
    texts = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.keyword):
            yield node.arg or ""
        elif isinstance(node, ast.alias):
            yield from (node.name, node.asname or "")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in texts and " " not in node.value.strip():
                yield node.value


def test_attack_code_never_names_the_truth(modules):
    seen = {
        name: found
        for name, tree in modules.items()
        if name.startswith(f"{ROOT}.attacks.")
        and (found := [word for word in named(tree) if BLIND_TO.search(word)])
    }
    assert seen == {}


@pytest.mark.parametrize(
    "source",
    [
        "from fedre_privacy.core.types import Truth",
        "from fedre_privacy.core import types\ntypes.Mixture",
        "def run(self, observation, truth): ...",
        "load('truth.safetensors')",
        "x = getattr(observation, 'private_images')",
        "score(images, ground_truth=1)",
    ],
)
def test_a_planted_look_at_the_truth_is_caught(source):
    assert any(BLIND_TO.search(word) for word in named(ast.parse(source)))


def test_prose_about_truth_is_no_look_at_it():
    source = '"""Never sees truth."""\nclass A:\n    """No Mixture."""\n'
    assert not any(BLIND_TO.search(word) for word in named(ast.parse(source)))


BY_NAME = {"defenses", "KnownDefense"}
"""What attacks would tell a defence by: its name and settings. They read its channel instead."""


def test_attack_code_reads_channels_and_knows_no_defence(modules):
    seen = {
        name: found
        for name, tree in modules.items()
        if name.startswith(f"{ROOT}.attacks.")
        and (found := [word for word in named(tree) if word in BY_NAME])
    }
    assert seen == {}
    planted = ast.parse("known = [d.name for d in observation.defenses]")
    assert any(word in BY_NAME for word in named(planted))


EVALUATORS_ONLY = {types.Truth, types.Mixture, types.Emission}


def reachable(kind: type, seen: set[type] | None = None) -> set[type]:
    """Dataclasses that an instance of a dataclass may hold, however deep."""
    seen = seen if seen is not None else set()
    if kind in seen:
        return seen
    seen.add(kind)
    hints = typing.get_type_hints(kind)
    waiting = [hints[field.name] for field in dataclasses.fields(kind)]
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            reachable(hint, seen)
            for child in hint.__subclasses__():
                reachable(child, seen)
    return seen


def test_an_observation_cannot_hold_truth():
    held = reachable(Observation)
    assert Artifact in held and types.Upload in held  # the walk goes deep
    assert not held & EVALUATORS_ONLY
    assert types.Mixture in reachable(types.Truth)  # and would find it


def test_an_observation_has_no_other_fields():
    # A new field is a new thing the attacker sees: think, then add it here.
    assert [field.name for field in dataclasses.fields(Observation)] == [
        "threat", "targets", "uploads", "broadcasts", "extractors", "image_shape", "num_classes",
        "aux", "aux_labels", "training", "candidates", "models", "images_per_target",
        "defenses", "initial", "rehearse", "heads", "properties",
    ]  # fmt: skip
    assert {field.name for field in dataclasses.fields(types.Upload)} == {
        "client", "round", "artifacts", "counterfactual", "participants",
    }  # fmt: skip
