"""Pages in a real browser, driven over WebDriver's plain HTTP: skipped where there is none."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


class Browser:
    """One session of a headless Chromium."""

    def __init__(self, port: int, binary: str, profile: Path, width: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update",
            f"--user-data-dir={profile}",
        ]  # fmt: skip
        options: dict[str, Any] = {"binary": binary, "args": flags}
        # a phone's width needs an emulated device: windows are not narrower than 500 px
        metrics = {"width": width, "height": 900, "pixelRatio": 1.0}
        options["mobileEmulation"] = {"deviceMetrics": metrics}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self.call("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.root += f"/session/{made['sessionId']}"

    def call(self, path: str, body: dict[str, Any] | None = None, method: str = "") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, method=method or None)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def script(self, text: str) -> Any:
        return self.call("/execute/sync", {"script": text, "args": []})

    def click(self, selector: str) -> None:
        found = self.call("/element", {"using": "css selector", "value": selector})
        self.call(f"/element/{next(iter(found.values()))}/click", {})

    def log(self, kind: str) -> list[dict[str, Any]]:
        return self.call("/se/log", {"type": kind})


@pytest.fixture(scope="module")
def driver(chromium: str) -> Iterator[int]:
    """The port of a running chromedriver."""
    found = shutil.which("chromedriver")
    if found is None:
        pytest.skip("no chromedriver on this machine: install it to click on pages")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [found, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.parametrize("width", [1400, 390])
def test_a_page_is_read_sorted_and_enlarged(attacked, chromium, driver, tmp_path, width):
    browser = Browser(driver, chromium, tmp_path / "profile", width)
    try:
        browser.call("/url", {"url": "about:blank"})
        browser.log("performance")  # the browser's own first page
        browser.call("/url", {"url": (attacked.folder / "report.html").as_uri()})
        seen = browser.script(
            "const root = document.documentElement; return {wide: root.scrollWidth,"
            "shown: root.clientWidth, images: document.images.length,"
            "broken: [...document.images].filter(i => i.src && !i.naturalWidth).length}"
        )
        assert seen["shown"] == width and seen["wide"] <= width
        assert seen["images"] > 10 and seen["broken"] == 0

        # a click on a heading sorts by number, a second one turns the order round
        mark = (
            "const t = [...document.querySelectorAll('table.sortable')].find("
            "t => t.getAttribute('id') === 'probe' ||"
            "[...t.tHead.rows[0].cells].some(c => c.textContent === 'psnr_floor'));"
            "t.id = 'probe'; const at = [...t.tHead.rows[0].cells].findIndex("
            "c => c.textContent === 'psnr'); t.tHead.rows[0].cells[at].id = 'head';"
            "return [...t.tBodies[0].rows].map(r => r.cells[at].dataset.value)"
        )
        browser.script(mark)
        for order in ("ascending", "descending"):
            browser.click("#head button")
            values = [float(v) for v in browser.script(mark) if v]
            assert values == sorted(values, reverse=order == "descending") and len({*values}) > 2
            said = "return document.getElementById('head').getAttribute('aria-sort')"
            assert browser.script(said) == order

        browser.click("button.zoom")
        assert browser.script("return document.querySelector('dialog').open")
        assert browser.script("return document.querySelector('dialog img').naturalWidth") > 0
        browser.click("dialog")
        assert not browser.script("return document.querySelector('dialog').open")

        assert browser.log("browser") == []
        asked = [json.loads(entry["message"])["message"] for entry in browser.log("performance")]
        urls = [
            event["params"]["request"]["url"]
            for event in asked
            if event["method"] == "Network.requestWillBeSent"
        ]
        assert urls and all(url.startswith(("file:", "data:")) for url in urls)
    finally:
        browser.call("", method="DELETE")
