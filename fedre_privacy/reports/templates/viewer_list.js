// The list of all results: filtered, sorted, chosen from.

const COLUMNS = [
  ["name", "result", (e) => e.path, ""],
  ["kind", "kind", (e) => e.kind, "rare"],
  ["protocol", "protocol", (e) => e.facets.protocol, "rare"],
  ["scheme", "scheme", (e) => e.facets.scheme, "rare"],
  ["defence", "defence", (e) => e.facets.defence, "rare"],
  ["attack", "attack", (e) => e.facets.attack, "rare"],
  ["adversary", "adversary", (e) => e.facets.adversary, "rare"],
  ["data", "data set", (e) => e.facets.data, "rare"],
  ["verdict", "verdict", (e) => e.facets.verdict, ""],
  ["score", "over floor", (e) => e.score ? e.score.over : null, ""],
  ["n", "n", (e) => e.n, "seldom"],
  ["accuracy", "accuracy", (e) => e.accuracy, "seldom"],
  ["started", "started", (e) => e.started, "rare"],
];

function list(given) {
  const bodies = el("div", {});
  const set = (name, value) => {
    put(given, name, value);
    if (name !== "page") { given.delete("page"); }
    stay([], given);
    draw();
  };
  const facet = (name) => {
    const counts = new Map();
    entries.forEach((entry) => {
      const value = valueOf(entry, name);
      if (value) { counts.set(value, (counts.get(value) || 0) + 1); }
    });
    const options = [...counts].sort((a, b) => compare(a[0], b[0]));
    return select(NAMES[name] || name,
      [["", "any"], ...options.map(([value, n]) => [value, value + " (" + n + ")"])],
      given.get(name) || "", (value) => set(name, value));
  };
  let waiting = 0;
  const search = el("label", { class: "wide" }, "search", el("input", {
    type: "search", id: "search", value: given.get("q") || "", placeholder: "words, in any order",
    input: (event) => {
      clearTimeout(waiting);
      const value = event.target.value;
      waiting = setTimeout(() => set("q", value), 120);
    },
  }));

  function head([key, title, , rarely]) {
    const [sorted, down] = sorting();
    const order = sorted === key ? (down ? "descending" : "ascending") : null;
    return el("th", { scope: "col", class: (rarely + (["score", "n", "accuracy"].includes(key) ? " number" : "")).trim(), "aria-sort": order },
      el("button", {
        type: "button", class: "plain", title: "Sort by this column", "data-sort": key,
        click: () => {
          set("sort", order === "ascending" ? "-" + key : key);
          bodies.querySelector("[data-sort=" + key + "]").focus();
        },
      }, title));
  }

  function sorting() {
    const sort = given.get("sort") || "name";
    return [sort.replace(/^-/, ""), sort.startsWith("-")];
  }

  function row(entry) {
    const words = [entry.kind, entry.facets.protocol, entry.facets.scheme,
      entry.facets.defence === "none" ? "" : entry.facets.defence, entry.facets.attack,
      entry.facets.target].filter(Boolean).join(" · ");
    const bad = entry.status !== "complete";
    return el("tr", bad ? { class: "bad" } : {},
      el("td", { class: "tick" }, entry.pairs ? el("input", {
        type: "checkbox", "aria-label": "Choose " + entry.path + " to compare",
        checked: chosen.has(entry.id),
        change: (event) => {
          if (event.target.checked) { chosen.add(entry.id); } else { chosen.delete(entry.id); }
          bar();
        },
      }) : null),
      COLUMNS.map(([key, , value, rarely]) => {
        if (key === "name") {
          return el("td", { class: "name" },
            el("a", { href: "#/entry/" + entry.id }, entry.name),
            el("span", { class: "sub" }, words + (entry.seed === null ? "" : " · seed " + entry.seed)),
            bad ? el("span", { class: "sub" }, el("span", { class: "state" }, entry.status), " ", entry.problem.slice(0, 140)) : null);
        }
        if (key === "score") {
          return el("td", { class: "number", title: entry.score ? entry.score.title + " " + entry.score.text : null },
            entry.score ? [signed(entry.score.over, 2), el("span", { class: "sub" }, entry.score.title)] : null);
        }
        if (key === "verdict") {
          return el("td", {}, el("span", { class: "word" }, value(entry) || ""));
        }
        if (key === "started") {
          return el("td", { class: rarely }, (value(entry) || "").slice(0, 16).replace("T", " "));
        }
        const shown = value(entry);
        return el("td", { class: (rarely + (key === "n" || key === "accuracy" ? " number" : "")).trim() },
          shown === null || shown === undefined ? "" : short(shown, 3));
      }));
  }

  const comparing = el("div", { class: "bar chosen", hidden: true });
  function bar() {
    comparing.hidden = chosen.size === 0;
    comparing.replaceChildren(
      el("p", {}, plural(chosen.size, "attack") + " chosen"),
      chosen.size < 2 ? el("p", { class: "soft" }, "choose another one to compare") :
        el("a", { href: "#/compare/" + [...chosen].join(",") }, "Compare target by target"),
      el("button", { type: "button", click: () => { chosen.clear(); draw(); } }, "Clear"));
  }

  function draw() {
    const [key, down] = sorting();
    const column = COLUMNS.find((one) => one[0] === key) || COLUMNS[0];
    const found = filtered(given);
    found.sort((a, b) => compare(column[2](a), column[2](b), down) || compare(a.path, b.path));
    const last = Math.max(0, Math.ceil(found.length / PAGE) - 1);
    const page = Math.min(Number(given.get("page")) || 0, last);
    const turned = (wanted) => { set("page", wanted || ""); main.scrollIntoView(); };
    const words = plural(found.length, "result") + " of " + entries.length.toLocaleString("en");
    bodies.replaceChildren(
      el("p", { class: "soft", id: "count" }, words),
      el("div", { class: "box", role: "region", tabindex: "0", "aria-label": "Results" },
        el("table", { class: "results" },
          el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "unseen" }, "compare")), COLUMNS.map(head))),
          el("tbody", {}, found.slice(page * PAGE, (page + 1) * PAGE).map(row)))),
      pager(page, found.length, PAGE, turned) || "");
    say(words);
    bar();
  }

  const by = el("div", { class: "field" }, select("compare by", [["", "choose ..."],
    ...["attack", "scheme", "defence", "protocol", "adversary"].map((f) => [f, f])], "", (value) => {
    if (!value) { return; }
    const next = new URLSearchParams(given);
    ["sort", "page", value].forEach((name) => next.delete(name));
    next.set("by", value);
    location.hash = "#/compare?" + next;
  }));
  main.replaceChildren(
    el("h1", { tabindex: "-1" }, "All results"),
    el("form", { class: "filters", role: "search", submit: (event) => event.preventDefault() },
      search, el("details", { class: "all", open: window.innerWidth > 640 || [...given.keys()].some((key) => key !== "q") },
        el("summary", {}, "Filters"),
        el("div", { class: "filters" }, ["kind", ...FACETS, "status"].map(facet), by)),
      el("button", { type: "button", click: () => { location.hash = "#/"; if (!location.hash.includes("?")) { render(); } } }, "Show all")),
    bodies, comparing);
  draw();
}
