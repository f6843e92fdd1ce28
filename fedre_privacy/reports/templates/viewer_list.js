// The list of all results: filtered, sorted, chosen from.

// Name, title, value, and the class that says from which width on it is shown.
const COLUMNS = [
  ["name", "result", (e) => e.path, ""],
  ["verdict", "verdict", (e) => e.facets.verdict, ""],
  ["score", "over floor", (e) => e.score ? e.score.over : null, "seldom"],
  ["accuracy", "accuracy", (e) => e.accuracy, "seldom"],
  ["n", "n", (e) => e.n, "seldom"],
  ["scheme", "scheme", (e) => e.facets.scheme, "rare"],
  ["defence", "defence", (e) => e.facets.defence === "none" ? "" : e.facets.defence, "rare"],
  ["adversary", "adversary", (e) => e.facets.adversary, "rare"],
  ["data", "data set", (e) => e.facets.data, "rare"],
  ["started", "started", (e) => e.started, "rare"],
];
const NUMBERS = ["score", "n", "accuracy"];

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
    return el("th", { scope: "col", class: (rarely + (NUMBERS.includes(key) ? " number" : "")).trim(), "aria-sort": order },
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

  function cell(entry, [key, , value, rarely]) {
    if (key === "name") {
      return el("td", { class: "name" }, el("a", { href: "#/entry/" + entry.id }, entry.title),
        el("span", { class: "sub" }, el("span", { class: "folder" }, entry.name),
          entry.seed === null ? "" : " · seed " + entry.seed,
          el("span", { class: "instead" }, [entry.facets.scheme, entry.facets.defence]
            .filter((words) => words && words !== "none").map((words) => " · " + words))),
        entry.status === "complete" ? null : el("span", { class: "sub" },
          el("span", { class: "state" }, entry.status), " ", entry.problem.slice(0, 140)));
    }
    if (key === "verdict") {
      return el("td", {}, verdictOf(entry), entry.score ? el("span", { class: "sub narrow" },
        signed(entry.score.over, 2) + " " + entry.score.title) : null);
    }
    if (key === "score") {
      return el("td", { class: rarely + " number", title: entry.score ? entry.score.title + " " + entry.score.text : null },
        entry.score ? [signed(entry.score.over, 2), el("span", { class: "sub" }, entry.score.title)] : null);
    }
    const shown = value(entry);
    return el("td", { class: (rarely + (NUMBERS.includes(key) ? " number" : "")).trim() },
      shown === null || shown === undefined || shown === "" ? ""
        : key === "started" ? shown.slice(0, 16).replace("T", " ") : short(shown, 3));
  }

  function row(entry, columns) {
    const kinds = [entry.status === "complete" ? "" : "bad", entry.kind, entry.parent ? "inside" : ""];
    return el("tr", { class: kinds.filter(Boolean).join(" ") },
      el("td", { class: "tick" }, entry.pairs ? el("input", {
        type: "checkbox", "aria-label": "Choose " + entry.path + " to compare",
        checked: chosen.has(entry.id),
        change: (event) => {
          if (event.target.checked) { chosen.add(entry.id); } else { chosen.delete(entry.id); }
          bar();
        },
      }) : null),
      el("td", { class: "shot" }, small(entry)),
      columns.map((column) => cell(entry, column)));
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

  const hidden = (words) => el("th", { scope: "col" }, el("span", { class: "unseen" }, words));

  function draw() {
    const [key, down] = sorting();
    const column = COLUMNS.find((one) => one[0] === key) || COLUMNS[0];
    const found = filtered(given);
    found.sort((a, b) => compare(column[2](a), column[2](b), down) || compare(a.path, b.path));
    const last = Math.max(0, Math.ceil(found.length / PAGE) - 1);
    const page = Math.min(Number(given.get("page")) || 0, last);
    const turned = (wanted) => { set("page", wanted || ""); main.scrollIntoView(); };
    const columns = COLUMNS.filter(([, , value], at) => at === 0
      || found.some((entry) => ![null, undefined, ""].includes(value(entry))));
    const words = plural(found.length, "result") + " of " + entries.length.toLocaleString("en");
    bodies.replaceChildren(
      el("p", { class: "soft", id: "count" }, words),
      el("div", { class: "box", role: "region", tabindex: "0", "aria-label": "Results" },
        el("table", { class: given.has("sort") ? "results" : "results nested" },
          el("thead", {}, el("tr", {}, hidden("compare"), hidden("picture"), columns.map(head))),
          el("tbody", {}, found.slice(page * PAGE, (page + 1) * PAGE).map((entry) => row(entry, columns))))),
      pager(page, found.length, PAGE, turned) || "");
    say(words);
    bar();
    const set_now = [...given.keys()].filter((name) => !["q", "sort", "page"].includes(name)).length;
    summary.textContent = set_now ? "Filters (" + set_now + " set)" : "Filters";
    clear.hidden = [...given.keys()].length === 0;
  }

  const summary = el("summary", {}, "Filters");
  const clear = el("button", { type: "button", click: () => { location.hash = "#/"; if (!location.hash.includes("?")) { render(); } } }, "Show all");
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
      search, clear, el("details", { class: "all" }, summary,
        el("div", { class: "filters" }, ["kind", ...FACETS, "status"].map(facet), by))),
    bodies, comparing);
  draw();
}
