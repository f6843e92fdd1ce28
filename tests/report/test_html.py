"""Pieces of pages: escaping, what tables sort by, images, and the script itself."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image

from fedre_privacy.auditing.claims import REFUTED
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.eval.verdict import INCONCLUSIVE, LEAKS, NO_EVIDENCE
from fedre_privacy.reports import html
from fedre_privacy.reports.html import Html, Link, Target
from fedre_privacy.reports.page_parts import PageFigure
from fedre_privacy.reports.verdict_icons import FOUND, ICONS, NOT_FOUND, OPEN, look_of

STYLE = (html.TEMPLATES / "page.css").read_text(encoding="utf-8")
SCRIPT = (html.TEMPLATES / "page.js").read_text(encoding="utf-8")

NASTY = "<script>alert('x')</script> & \"quotes\" {{ 1 + 1 }} $x^2$ =1+1 \x1b[31m\0\u202egnp"
SHOWN = NASTY.replace("\x1b", r"\x1b").replace("\0", r"\x00").replace("\u202e", r"\u202e")


def page(*bodies: Html) -> str:
    return whole_page("A page", [(f"Part {n}", body) for n, body in enumerate(bodies)])


def whole_page(title: str, sections: list[tuple[str, Html]]) -> str:
    lead = html.pieces.paragraph("lead")
    return html.fill_template("page.html", title=title, lead=lead, sections=sections)


def test_every_text_is_escaped(read):
    dot = html.png(torch.zeros(1, 2, 2))
    target = Target(0, NASTY, {NASTY: dot}, {NASTY: NASTY}, NASTY)
    bodies = [
        html.pieces.paragraph(NASTY), html.pieces.heading(NASTY), html.pieces.bullets([NASTY]),
        html.pieces.facts({NASTY: NASTY}), html.pieces.preformatted(NASTY, label=NASTY),
        html.pieces.verdict(NASTY, NASTY), html.pieces.flag(NASTY, NASTY),
        html.pieces.details(NASTY, html.pieces.paragraph(NASTY)),
        html.table([{NASTY: NASTY, "link": Link(NASTY, NASTY)}], label=NASTY),
        html.pieces.figure(PageFigure(NASTY, NASTY, "png", dot, False)),
        html.pieces.gallery([target]), html.pieces.strip([target], NASTY),
        html.fragment([{NASTY: NASTY}], title=NASTY, foot=NASTY),
    ]  # fmt: skip
    whole = whole_page(NASTY, [(NASTY, body) for body in bodies])
    assert whole.count("<script>") == 1
    assert "alert('x')" not in whole.replace(SCRIPT, "")
    assert not set("\x1b\0\u202e") & set(whole)
    found = read(whole)
    assert found.ids[0] == "script-alert-x-script-quotes-1-1-x-2-1-1-31m-gnp"
    assert found.texts["title"] == SHOWN
    assert found.tables[0].heads == [SHOWN, "link"]
    assert [cell[0] for cell in found.tables[0].rows[0]] == [SHOWN, SHOWN]
    assert " ".join(found.words).count(SHOWN) >= 25 and "&amp;" not in " ".join(found.words)


def test_a_verdict_has_an_icon_and_a_class_beside_its_word():
    looks = {word: look_of(word) for word in (LEAKS, REFUTED, NO_EVIDENCE, INCONCLUSIVE)}
    assert looks == {LEAKS: FOUND, REFUTED: FOUND, NO_EVIDENCE: NOT_FOUND, INCONCLUSIVE: OPEN}
    assert len({*ICONS.values()}) == len(ICONS) == 3
    for word, look in looks.items():
        piece = html.pieces.verdict(word, "because")
        assert f'class="verdict {look}"' in piece and ICONS[look] in piece and word in piece


def test_sections_without_content_are_left_out(read):
    found = read(
        page(html.table([], label="none"), html.pieces.paragraph("here"), html.pieces.bullets([]))
    )
    assert found.ids == ["part-1"] and "#part-1" in found.links and "#part-0" not in found.links


def test_equal_titles_get_different_ids(read):
    body = html.pieces.paragraph("x")
    found = read(whole_page("t", [("Same", body), ("same!", body)]))
    assert found.ids == ["same", "same-2"]


@pytest.mark.parametrize(
    ("cell", "shown", "value"),
    [
        (3, "3", "3"),
        (np.float64(0.123456), "0.1235", "0.123456"),
        (12345.6, "12346", "12345.6"),
        ("8.80 +- 0.55", "8.80 +- 0.55", "8.8"),
        ("-11.32 dB under floor", "-11.32 dB under floor", "-11.32"),
        ("+7,958 over", "+7,958 over", "7958"),
        ("12.5 %", "12.5 %", "12.5"),
        (True, "yes", None),
        ("leaks", "leaks", None),
        (None, "", ""),
        (float("nan"), "", ""),
        ("-", "-", ""),
        ("- not a number", "- not a number", None),
    ],
)
def test_what_a_cell_shows_and_sorts_by(read, cell, shown, value):
    ((found,),) = read(page(html.table([{"a": cell}], label="t"))).tables[0].rows
    assert found == (shown, value)


def test_images_are_what_they_were():
    rng = torch.Generator().manual_seed(0)
    for channels in (1, 3):
        image = torch.rand(channels, 5, 7, generator=rng)
        with Image.open(io.BytesIO(html.png(image))) as opened:
            back = torch.from_numpy(np.array(opened)).float() / 255
        back = back.permute(2, 0, 1) if channels == 3 else back[None]
        assert (back - image).abs().max() <= 0.5 / 255 + 1e-6
    diverged = torch.full((1, 2, 2), float("nan"))
    with Image.open(io.BytesIO(html.png(diverged))) as opened:
        assert np.array(opened).max() == 0
    with pytest.raises(IncompatibleError, match=r"\(2, 4, 4\)"):
        html.png(torch.zeros(2, 4, 4))


def test_a_page_is_the_same_each_time():
    rows = [{"a": 1.5, "b": "x"}, {"a": 0.5, "b": "y"}]
    assert page(html.table(rows, label="t")) == page(html.table(rows, label="t"))


def test_the_page_scrolls_only_within_boxes(read):
    whole = page(html.table([{"a": 1}], label="t"), html.pieces.preformatted("x" * 500, label="p"))
    assert "overflow-x: auto" in STYLE and "max-width: 100%" in STYLE
    assert "width=device-width" in whole
    before_table = whole[: whole.index("<table")]
    assert before_table.rstrip().endswith('aria-label="t">') and 'tabindex="0"' in before_table


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_stands_out_from_its_ground():
    # WCAG 2.1 AA: 4.5 to 1, on both grounds, light and dark
    schemes = STYLE.split("prefers-color-scheme: dark")
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        for ground in ("pale", "ground"):
            for name in ("ink", "soft", "blue", "red"):
                low, high = sorted((luminance(colours[ground]), luminance(colours[name])))
                assert (high + 0.05) / (low + 0.05) > 4.5, (ground, name)


# A document with one table, as far as the script needs one.
DOM = r"""
class El {
  constructor(tag) { this.tag = tag; this.kids = []; this.attrs = {}; this.on = {};
    this.className = ""; this.text = ""; this.parentNode = null; }
  getAttribute(k) { return k in this.attrs ? this.attrs[k] : null; }
  setAttribute(k, v) { this.attrs[k] = v; }
  removeAttribute(k) { delete this.attrs[k]; }
  get textContent() { return this.text + this.kids.map((k) => k.textContent).join(""); }
  set textContent(v) { this.text = v; this.kids = []; }
  get rows() { return this.kids; }
  get cells() { return this.kids; }
  appendChild(k) {
    if (k.parentNode) { k.parentNode.kids = k.parentNode.kids.filter((x) => x !== k); }
    k.parentNode = this; this.kids.push(k); return k; }
  addEventListener(name, f) { this.on[name] = f; }
}
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
const row = (cells) => { const r = new El("tr"); cells.forEach(([text, value]) => {
  const c = new El("td"); c.text = text; if (value !== null) { c.attrs["data-value"] = value; }
  r.appendChild(c); }); return r; };
const table = new El("table"), head = new El("thead"), body = new El("tbody");
head.appendChild(row(given.heads.map((h) => [h, null])));
given.rows.forEach((r) => body.appendChild(row(r)));
table.tHead = head; table.tBodies = [body];
global.document = { createElement: (t) => new El(t), querySelectorAll: () => [table] };
new Function(given.script)();
const out = { orders: [], sorts: [] };
given.clicks.forEach((column) => {
  head.rows[0].cells[column].kids[0].on.click();
  out.orders.push(body.rows.map((r) => r.cells[0].textContent));
  out.sorts.push(head.rows[0].cells.map((c) => c.getAttribute("aria-sort")));
});
out.heads = head.rows[0].cells.map((c) => c.textContent);
process.stdout.write(JSON.stringify(out));
"""


def test_the_script_sorts(read, tmp_path):
    """In Node with a document of our own: no browser, but the script as it is on the page."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js on this machine to run the page's script")
    rows = [
        {"name": "b", "value": "10.0 +- 1", "word": "beta 10"},
        {"name": "a", "value": 9.5, "word": "beta 9"},
        {"name": "d", "value": None, "word": "-"},
        {"name": "c", "value": -3, "word": "alpha"},
    ]
    whole = page(html.table(rows, label="t"))
    (table,) = read(whole).tables
    (script,) = re.findall(r"<script>(.*?)</script>", whole, re.DOTALL)
    (tmp_path / "dom.js").write_text(DOM, encoding="utf-8")
    given = {"heads": table.heads, "rows": table.rows, "script": script, "clicks": [1, 1, 2, 0]}
    done = subprocess.run(
        [node, str(tmp_path / "dom.js")], input=json.dumps(given), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert ["".join(order) for order in out["orders"]] == ["cabd", "bacd", "cabd", "abcd"]
    assert out["sorts"] == [
        [None, "ascending", None],
        [None, "descending", None],
        [None, None, "ascending"],
        ["ascending", None, None],
    ]
    assert out["heads"] == ["name", "value", "word"]
