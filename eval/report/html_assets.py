"""Style and script of report pages, written into each page so that it needs nothing else.

Colours: Okabe and Ito's blue and vermillion on white; no meaning is carried by colour alone.
"""

STYLE = """
:root { --ink: #1b1b1b; --soft: #565656; --line: #d4d4d4; --pale: #f5f5f3; --blue: #005a92;
  --red: #a84300; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem clamp(0.75rem, 3vw, 2rem) 3rem;
  background: #fff; color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; padding-bottom: 0.2rem;
  border-bottom: 2px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 0.4rem; }
a { color: var(--blue); }
nav { font-size: 0.9rem; }
nav a { display: inline-block; padding: 0.2rem 0.8rem 0.2rem 0; }
.verdict { border-left: 0.4rem solid var(--blue); background: var(--pale); padding: 0.7rem 1rem;
  margin: 1rem 0; }
.verdict strong { font-size: 1.1rem; }
.flag { border: 2px solid var(--red); border-left-width: 0.8rem; padding: 0.5rem 1rem;
  margin: 0.6rem 0; }
.flag strong { color: var(--red); }
dl.facts { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: 0.25rem 1rem;
  margin: 0.5rem 0; }
dl.facts dt { color: var(--soft); }
dl.facts dd { margin: 0; }
.box { overflow-x: auto; margin: 0.5rem 0; border: 1px solid var(--line); }
.box:focus-visible, button:focus-visible, summary:focus-visible, a:focus-visible {
  outline: 3px solid var(--blue); outline-offset: 1px; }
.tall { max-height: 34rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; overflow-wrap: normal;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: 0.4rem 0.6rem; }
th, td { padding: 0.35rem 0.6rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
thead th { background: var(--pale); vertical-align: bottom; }
.tall thead th { position: sticky; top: 0; }
td.number { text-align: right; white-space: nowrap; }
th.number { text-align: right; }
td:first-child:not(.words) { white-space: nowrap; }
td.words { min-width: 14rem; }
th button { all: unset; cursor: pointer; font: inherit; padding: 0.15rem 0; }
th button::after { content: " \\2195"; color: var(--soft); }
th[aria-sort=ascending] button::after { content: " \\25B2"; color: var(--blue); }
th[aria-sort=descending] button::after { content: " \\25BC"; color: var(--blue); }
figure { margin: 1rem 0; }
figure img { max-width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: 0.9rem; }
.zoom { all: unset; cursor: zoom-in; display: inline-block; max-width: 100%; }
.targets { display: grid; gap: 0.8rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); }
.target { border: 1px solid var(--line); padding: 0.6rem; break-inside: avoid; }
.target h3 { margin: 0 0 0.3rem; font-size: 0.9rem; }
.shots { display: grid; grid-template-columns: repeat(auto-fit, minmax(4rem, 1fr)); gap: 0.4rem; }
.shots div { font-size: 0.78rem; color: var(--soft); text-align: center; line-height: 1.3; }
.shots .zoom { width: 100%; }
img.pixels { width: 100%; height: auto; display: block; image-rendering: pixelated;
  border: 1px solid var(--line); }
.target p { margin: 0.4rem 0 0; font-size: 0.82rem; }
pre { margin: 0; padding: 0.6rem 0.8rem; font-size: 0.82rem; line-height: 1.4; white-space: pre; }
details { margin: 0.6rem 0; }
summary { cursor: pointer; font-weight: 600; padding: 0.3rem 0; }
.soft { color: var(--soft); font-size: 0.9rem; }
dialog { border: 0; padding: 0.5rem; width: min(96vw, 110rem); max-width: none; max-height: 96vh;
  background: #fff; cursor: zoom-out; }
dialog::backdrop { background: rgba(0, 0, 0, 0.65); }
dialog img { display: block; margin: 0 auto; width: 100%; max-height: 88vh; object-fit: contain; }
dialog img.pixels { border: 0; }
@media (max-width: 40rem) {
  dl.facts { grid-template-columns: 1fr; gap: 0; }
  dl.facts dd { margin-bottom: 0.5rem; }
  dialog { overflow: auto; }
  dialog img:not(.pixels) { width: 56rem; max-height: none; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav, dialog { display: none; }
  .box, .tall { overflow: visible; max-height: none; border: 0; }
  .tall thead th { position: static; }
  th button::after { content: "" !important; }
  h2, h3 { break-after: avoid; }
  figure, tr, .verdict, .flag { break-inside: avoid; }
  thead { display: table-header-group; }
}
"""

SCRIPT = """
"use strict";
(function () {
  // A cell's value: its number where it has one, else its text; nothing is "".
  function valueOf(cell) {
    var given = cell.getAttribute("data-value");
    if (given === null) { return cell.textContent.trim(); }
    return given === "" ? "" : Number(given);
  }

  // Empty cells stay last in both directions; numbers stand before words.
  function compare(a, b, down) {
    if (a === "" || b === "") { return (a === "" ? 1 : 0) - (b === "" ? 1 : 0); }
    var order;
    if (typeof a === "number" && typeof b === "number") {
      order = a - b;
    } else if (typeof a !== typeof b) {
      order = typeof a === "number" ? -1 : 1;
    } else {
      order = a.localeCompare(b, undefined, { numeric: true });
    }
    return down ? -order : order;
  }

  function sortBy(table, heads, column) {
    var down = heads[column].getAttribute("aria-sort") === "ascending";
    heads.forEach(function (head, at) {
      if (at === column) {
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
      } else {
        head.removeAttribute("aria-sort");
      }
    });
    var body = table.tBodies[0];
    var rows = Array.from(body.rows).map(function (row) {
      return { row: row, value: valueOf(row.cells[column]) };
    });
    rows.sort(function (a, b) { return compare(a.value, b.value, down); });
    rows.forEach(function (entry) { body.appendChild(entry.row); });
  }

  document.querySelectorAll("table.sortable").forEach(function (table) {
    var heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.title = "Sort by this column";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      button.addEventListener("click", function () { sortBy(table, heads, column); });
    });
  });

  var dialog = document.createElement("dialog");
  if (typeof dialog.showModal !== "function") { return; }
  var large = document.createElement("img");
  dialog.appendChild(large);
  document.body.appendChild(dialog);
  dialog.addEventListener("click", function () { dialog.close(); });
  document.querySelectorAll("img.enlarge").forEach(function (image) {
    var button = document.createElement("button");
    button.type = "button";
    button.className = "zoom";
    button.setAttribute("aria-label", "Enlarge: " + image.alt);
    image.parentNode.replaceChild(button, image);
    button.appendChild(image);
    button.addEventListener("click", function () {
      large.src = image.src;
      large.alt = image.alt;
      large.className = image.classList.contains("pixels") ? "pixels" : "";
      dialog.setAttribute("aria-label", image.alt);
      dialog.showModal();
    });
  });
})();
"""
