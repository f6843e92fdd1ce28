"""What tests of several rooms share: checkout, browser, real digits, a small known inversion."""

import math
import os
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from urllib.parse import unquote
from zlib import crc32

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import Artifact, Representations
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.data.base import ImageData, datasets
from fedre_privacy.federation import loop
from fedre_privacy.models.split import Normalise
from fedre_privacy.sandbox import client as door
from fedre_privacy.threats.base import threats

Owner = tuple[int, int]
MANY, SHARE = 8, 6
"""Of a test with more than 8 slow cases about one in 6 is asked."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A sixth of the slow cases of tests that have many; FEDRE_ALL_CASES=1 asks all.

    With FEDRE_SLOW_SHARE=3 a third of the slow tests is asked at all. What is asked follows from
    the names of tests and cases alone, so that a new part does not change which others are.
    """
    if os.environ.get("FEDRE_ALL_CASES"):
        return
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: set[pytest.Item] = set()
    share = int(os.environ.get("FEDRE_SLOW_SHARE", "1"))
    for name, cases in tests.items():
        if crc32(name.encode()) % share:
            left.update(cases)
        elif len(cases) > MANY:
            numbers = {item: crc32(item.nodeid.encode()) for item in cases}
            first = min(cases, key=numbers.__getitem__)
            left |= {item for item in cases if numbers[item] % SHARE and item is not first}
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Layers that a test makes have the same weights whichever test ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _clients_in_this_process() -> None:
    """Whether a step is worth copies of the process depends on how busy a machine is."""
    loop.WORTH_COPIES_S = math.inf


@pytest.fixture(scope="session", autouse=True)
def _attacks_in_this_process() -> None:
    """A process for each attack takes two seconds, and there are hundreds; see tests/sandbox."""
    door.strictest = lambda: door.SAME  # type: ignore[assignment]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Pages that a browser was asked to open, none of which is."""
    asked: list[Path] = []

    def note(url: str) -> bool:
        asked.append(Path(unquote(url.removeprefix("file://"))))
        return True

    monkeypatch.setattr(webbrowser, "open", note)
    return asked


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def chromium() -> str:
    """A headless browser."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if (found := shutil.which(name)) is not None:
            return found
    pytest.skip("no Chromium on this machine: install chromium to test pages in a browser")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as a site."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", out]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="session")
def digits() -> ImageData:
    """120 real digits, 12 of each class, 16x16."""
    return datasets.get("digits")(size=16, per_class=12).load()


@pytest.fixture(scope="session")
def originals(digits: ImageData) -> Tensor:
    """Ten digits, one of each class, (10, 1, 16, 16) in [0, 1]."""
    return digits.images[:10].float() / 255


@cache
def orthogonal(size: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, generator=rng)).Q


@pytest.fixture
def rotation() -> Callable[[int], nn.Module]:
    """Extractors that lose nothing: 256 pixels times a random orthogonal matrix."""

    def make(seed: int = 0) -> nn.Module:
        linear = nn.utils.skip_init(nn.Linear, 256, 256, bias=False)
        with torch.no_grad():
            linear.weight.copy_(orthogonal(256, seed))
        return nn.Sequential(Normalise(), nn.Flatten(), linear).eval().requires_grad_(False)

    return make


class Noisy(nn.Flatten):
    """Draws much noise in half of the directions, and a little in all."""

    def sample(self, images: Tensor, generator: torch.Generator) -> Tensor:
        made = self(images)
        loud = torch.arange(made.shape[1]) % 2 * 2.0 + 0.01
        drawn = loud * torch.randn(made.shape, generator=generator)
        return made + drawn @ orthogonal(made.shape[1], 1)


@pytest.fixture
def noisy() -> nn.Module:
    """An extractor that draws noise, little of it in half of the directions."""
    return Noisy()


@pytest.fixture
def observe() -> Callable[..., Observation]:
    """Make an observation of representations, one upload per owner in the order given."""

    def make(
        reps: Sequence[Tensor],
        extractors: dict[Owner, nn.Module],
        *,
        threat: str = "fedre-paper",
        artifacts: Sequence[Artifact] | None = None,
        image_shape: tuple[int, int, int] = (1, 16, 16),
    ) -> Observation:
        if artifacts is None:
            artifacts = [Representations(r, torch.zeros(len(r), dtype=torch.int64)) for r in reps]
        targets = tuple(
            Upload(client, round, (artifact,))
            for (client, round), artifact in zip(extractors, artifacts, strict=True)
        )
        return Observation(
            threat=threats.get(threat),
            targets=targets,
            uploads=targets,
            broadcasts=(),
            extractors=dict(extractors),
            image_shape=image_shape,
            num_classes=10,
        )

    return make
