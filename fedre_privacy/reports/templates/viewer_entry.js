// One result with its tables, facts and settings.

function one(entry, given, path) {
  const more = detail(entry.id);
  const parent = byId.get(more.parent);
  const below = entries.filter((other) => other.parent === entry.id);
  const order = ["protocol", "scheme", "defence", "server", "data", "partition", "attack", "target", "adversary"];
  const known = order.filter((name) => entry.facets[name]).map((name) => [NAMES[name] || name, entry.facets[name]]);
  if (entry.seed !== null) { known.push(["seed", String(entry.seed)]); }
  if (entry.started) { known.push(["started", entry.started]); }
  const about = el("div", {},
    el("p", {}, known.filter(([name, words]) => !["partition", "started"].includes(name) && words !== "none")
      .map(([name, words]) => name + " " + words).join(" · ")),
    el("p", { class: "soft" }, entry.kind + " in " + entry.path,
      more.report ? [", ", el("a", { href: more.report }, "its own report")] : null,
      entry.pairs ? [", ", el("button", {
        type: "button", "aria-pressed": String(chosen.has(entry.id)),
        click: (event) => {
          chosen.add(entry.id);
          event.target.textContent = plural(chosen.size, "attack") + " chosen: go to the list to compare";
          event.target.setAttribute("aria-pressed", "true");
        },
      }, "Choose to compare")] : null));
  main.replaceChildren(...[
    el("nav", { class: "crumbs", "aria-label": "Where this is" }, el("a", { href: "#/" }, "All results"),
      parent ? [" / ", el("a", { href: "#/entry/" + parent.id }, parent.title)] : null),
    el("h1", { tabindex: "-1" }, entry.title),
    entry.status === "complete" ? null : el("div", { class: "flag" },
      el("strong", {}, entry.status.toUpperCase()), ": " + entry.problem),
    ...Object.entries(more.flags).map(([name, words]) => el("div", { class: "flag" },
      el("strong", {}, name), ": " + words)),
    entry.facets.verdict ? el("div", { class: "lead" },
      el("div", { class: "verdict " + entry.look }, verdictOf(entry),
        ...more.because.split("\n").map((line) => el("p", {}, line))),
      small(entry) ? el("figure", {}, small(entry), el("figcaption", {}, captionOf(entry))) : null,
      about) : about,
    more.panels.length ? frontier(more.panels) : null,
    ...more.tables.slice(0, 1).map((t) => section(t.title, table(t.title, t.heads, t.rows))),
    more.targets ? gallery(entry, given, path) : null,
    below.length ? section("Attacks and audits of this run", table("Attacks and audits of this run",
      ["result", "verdict", "over floor", "n"], below.map((other) => [
        el("a", { href: "#/entry/" + other.id }, other.title),
        verdictOf(other) || other.status, other.score ? other.score.title + " " + other.score.text : "", other.n]))) : null,
    ...more.tables.slice(1).map((t) => section(t.title, table(t.title, t.heads,
      t.rows.map((cells) => cells.map((cell, at) => t.heads[at] === "run" ? linked(cell) : cell))))),
    section("Facts", facts([...known, ...Object.entries(more.facts)])),
    more.settings ? section("Settings", el("details", {}, el("summary", {}, "All settings"),
      el("div", { class: "box", role: "region", tabindex: "0", "aria-label": "Settings" },
        el("pre", {}, more.settings)))) : null,
  ].filter((part) => part !== null));
}

function linked(name) { // the run of a name, where this page shows it
  const run = entries.find((entry) => entry.kind === "run" && entry.name === name);
  return run ? el("a", { href: "#/entry/" + run.id }, name) : name;
}
