// Elements, words and tables that every part of the page is made of.

// Text is only ever set as text: nothing that a result says is read as HTML.
function el(tag, given, ...children) {
  const made = document.createElement(tag);
  Object.entries(given || {}).forEach(([name, value]) => {
    if (typeof value === "function") {
      made.addEventListener(name, value);
    } else if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? "" : value);
    }
  });
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(tag, given, ...children) {
  const made = document.createElementNS(drawing, tag);
  Object.entries(given || {}).forEach(([name, value]) => {
    if (typeof value === "function") {
      made.addEventListener(name, value);
    } else if (value !== null && value !== undefined) {
      made.setAttribute(name, value);
    }
  });
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// A verdict: its icon, its colour and its word.
function verdictOf(entry) {
  const word = entry.facets.verdict;
  return word ? el("strong", { class: "word " + entry.look },
    svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" },
      svg("path", { d: index.icons[entry.look] })), " " + word) : null;
}

function captionOf(entry) {
  return entry.thumbnail ? (index.truth ? "Truth above answer" : "Answers") + ", of the first targets."
    : entry.bars.map((bar) => bar.label + " " + short(bar.value, 3)).join(", ") + ".";
}

// A small picture of a result: its first targets, or its leading number beside what it is held to.
function small(entry) {
  if (entry.thumbnail) {
    return el("img", {
      class: "pixels small", alt: captionOf(entry),
      src: "data:image/png;base64," + entry.thumbnail,
    });
  }
  if (!entry.bars.length) { return null; }
  const most = Math.max(...entry.bars.map((bar) => bar.value)) || 1;
  const each = 10;
  return svg("svg", {
    class: "small", viewBox: "0 0 80 " + (each * entry.bars.length), role: "img",
    "aria-label": captionOf(entry),
  }, entry.bars.map((bar, at) => svg("rect", {
    class: at ? "beside" : entry.look, x: 0, y: at * each + 1, height: each - 3,
    width: Math.max(1, 80 * (bar.value === null ? most : bar.value) / most),
  }, svg("title", {}, bar.label + " " + short(bar.value, 3)))));
}

function say(words) { document.getElementById("said").textContent = words; }

function short(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) { return "-"; }
  if (typeof value !== "number") { return String(value); }
  if (Number.isInteger(value)) { return String(value); }
  const size = Math.abs(value);
  return size >= 1000 ? value.toFixed(0) : value.toPrecision(digits || 4);
}

function tick(value) { return String(Number(value.toPrecision(4))); }

function signed(value, digits) {
  return (value >= 0 ? "+" : "") + (Number.isFinite(value) ? value.toFixed(digits || 3) : "-");
}

function plural(count, noun) {
  return count.toLocaleString("en") + " " + noun + (count === 1 ? "" : "s");
}

function select(label, options, value, changed, wide) {
  const box = el("select", { change: (event) => changed(event.target.value) },
    options.map(([key, words]) => el("option", { value: key, selected: key === value }, words)));
  return el("label", wide ? { class: "wide" } : {}, label, box);
}

function table(title, heads, rows, more) {
  const number = (cell) => typeof cell === "number" || cell === null;
  const numbers = heads.map((_, at) => rows.length > 0 && rows.every((row) => number(row[at])));
  return el("div", { class: "box", role: "region", tabindex: "0", "aria-label": title },
    el("table", {}, el("thead", {}, el("tr", {}, heads.map((head, at) => el("th", {
      scope: "col", class: numbers[at] ? "number" : null,
    }, head)))),
      el("tbody", {}, rows.map((row) => el("tr", {},
        row.map((cell) => cell instanceof Node ? el("td", {}, cell) : el("td", {
          class: number(cell) ? "number" : String(cell).length > 44 ? "words" : null,
        }, short(cell))))))), more);
}

function facts(pairs) {
  return el("dl", { class: "facts" },
    pairs.flatMap(([name, words]) => [el("dt", {}, name), el("dd", {}, words)]));
}

function section(title, ...body) {
  const id = "s-" + title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  return el("section", { "aria-labelledby": id }, el("h2", { id }, title), ...body);
}

function pager(page, count, each, turned) {
  const pages = Math.max(1, Math.ceil(count / each));
  if (pages === 1) { return null; }
  const to = (wanted, words) => el("button", {
    type: "button", disabled: wanted < 0 || wanted >= pages || wanted === page,
    click: () => turned(wanted),
  }, words);
  return el("nav", { class: "bar", "aria-label": "Pages" },
    to(0, "First"), to(page - 1, "Previous"),
    el("p", {}, "page " + (page + 1) + " of " + pages), to(page + 1, "Next"),
    to(pages - 1, "Last"));
}
