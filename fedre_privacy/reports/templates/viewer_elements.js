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
