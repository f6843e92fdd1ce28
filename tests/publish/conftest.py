"""A small recorded run, an attack on it, its claim, and claims that somebody has edited."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import fedre_privacy as fp
from fedre_privacy.api import AttackResult, Run
from fedre_privacy.publish.format import Claim, Verification, content_hash
from fedre_privacy.publish.names import SCORES, TOLERANCE
from fedre_privacy.publish.repetition import plan, verify_claim
from fedre_privacy.reports import attack as pages

TINY = {"data.size": 16, "data.per_class": 12}

Content = dict[str, Any]
Edit = Callable[[Content], object]


@dataclass(frozen=True)
class Published:
    """A run, an attack on it, and the file of its claim."""

    run: Run
    result: AttackResult
    path: Path

    def content(self) -> Content:
        """What the file holds."""
        found: Content = json.loads(self.path.read_text(encoding="utf-8"))
        return found


@contextmanager
def no_figures() -> Iterator[None]:
    """Empty files in place of figures, to save time."""

    def touch(figure: Figure, path: Path) -> list[Path]:
        made = [path.with_suffix(ending) for ending in (".png", ".pdf", ".svg")]
        for one in made:
            one.touch()
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "save_figure", touch)
        yield


@pytest.fixture(autouse=True)
def empty_figures() -> Iterator[None]:
    """No figures in these tests, and in no other."""
    with no_figures():
        yield


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """An inversion of prototypes that takes no time."""
    folder = tmp_path_factory.mktemp("publish")
    run = fp.train("fedgh", clients=4, rounds=2, set=TINY, runs=folder / "runs", device="cpu")
    with no_figures():
        result = fp.attack(
            run, "pixel", targets=6, set={"attack.steps": 2, "eval.ceiling": 0}, device="cpu",
            isolation="same-process",
        )  # fmt: skip
    (path,) = fp.claim(result.folder, folder / "claim.json", by="Ada")
    return Published(run, result, path)


def edited(content: Content, edit: Edit | None, *, hashed: bool = True) -> Content:
    """The content of a file after an edit, with a hash that fits unless told otherwise."""
    if edit is not None:
        edit(content)
    if hashed:
        content["sha256"] = content_hash(content)
    return content


@pytest.fixture
def forge(published: Published, tmp_path: Path) -> Callable[..., Path]:
    """Write an edited copy of the claim."""

    def write(edit: Edit | None = None, *, name: str = "forged.json", hashed: bool = True) -> Path:
        path = tmp_path / name
        made = edited(published.content(), edit, hashed=hashed)
        path.write_text(json.dumps(made), encoding="utf-8")
        return path

    return write


@pytest.fixture
def scored(published: Published) -> Callable[..., Verification]:
    """Verify a claim by the scores that the attack has already got, which takes no time."""

    def verify(claim: Claim, by: str = "") -> Verification:
        wanted = plan(claim, run=published.run.folder, part=SCORES)
        return verify_claim(wanted, published.run, published.result, tolerance=TOLERANCE, by=by)

    return verify
