// The targets of an attack one by one, as tiles or rows.

function gallery(entry, given, path) {
  const targets = detail(entry.id).targets;
  const pictures = Object.keys(targets.pictures).length > 0;
  const numbers = Object.keys(targets.columns)
    .filter((name) => targets.columns[name].some((value) => typeof value === "number"));
  const groups = targets.columns.behind ? [...new Set(targets.columns.behind)].sort() : [];
  const body = el("div", {});
  const set = (name, value) => {
    put(given, name, value);
    if (name !== "page") { given.delete("page"); }
    stay(path, given);
    draw();
  };
  const modes = [["", "side by side"], ...KINDS_OF_PICTURE.filter(([name]) => has(targets, name))
    .map(([name, words]) => [name, words])];
  const bound = (name, words) => el("label", {}, words, el("input", {
    type: "number", step: "any", value: given.get(name) || "",
    input: (event) => set(name, event.target.value),
  }));

  function order() {
    const sort = given.get("sort") || numbers[0] || "";
    const down = sort.startsWith("-");
    const values = targets.columns[sort.replace(/^-/, "")] || [];
    const least = given.get("from"), most = given.get("to");
    const out = [];
    for (let i = 0; i < targets.count; i += 1) {
      const inside = !given.get("group") || targets.columns.behind[i] === given.get("group");
      const above = !least || (values[i] !== null && values[i] >= Number(least));
      const below = !most || (values[i] !== null && values[i] <= Number(most));
      if (inside && above && below) { out.push(i); }
    }
    return out.sort((a, b) => compare(values[a], values[b], down) || a - b);
  }

  function draw() {
    const found = order();
    const mode = pictures ? given.get("show") || "" : "";
    const names = mode ? [mode] : KINDS_OF_PICTURE.map((one) => one[0]);
    const each = mode ? 120 : 48;
    const last = Math.max(0, Math.ceil(found.length / each) - 1);
    const page = Math.min(Number(given.get("page")) || 0, last);
    const scored = Object.keys(targets.scores);
    const main_score = scored.slice(0, mode ? 1 : 2);
    const some = found.slice(page * each, (page + 1) * each);
    const shown = KINDS_OF_PICTURE.filter(([n]) => names.includes(n) && has(targets, n)).length;
    const tiles = () => el("div", {
      class: mode ? "grid dense" : "grid", style: "--shots: " + Math.max(1, shown),
      keydown: (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const all = [...event.currentTarget.children];
        const next = all[all.indexOf(document.activeElement) + by];
        if (by && next) { next.focus(); event.preventDefault(); }
      },
    }, some.map((i, at) => {
      const title = titleOf(targets, i);
      return el("button", {
        type: "button", class: "tile", "data-target": i, "aria-label": "Enlarge " + title,
        click: (event) => enlarge(entry, found, page * each + at, event.currentTarget),
      },
      el("span", { class: "title" }, mode ? "Target " + (targets.columns.target ? targets.columns.target[i] : i) : title),
      el("div", { class: "shots" }, shots(entry.id, i, title, names)),
      main_score.map((key) => el("span", {}, targets.scores[key][0] + " " + short(targets.columns[key][i])
        + (targets.columns[key + "_floor"] ? " (floor " + short(targets.columns[key + "_floor"][i]) + ")" : ""))),
      targets.columns.diverged && targets.columns.diverged[i] ? el("span", { class: "state" }, "diverged") : null);
    }));
    const heads = Object.keys(targets.columns);
    const words = plural(found.length, "target") + " of " + targets.count.toLocaleString("en");
    body.replaceChildren(
      el("p", { class: "soft", id: "targets-count" }, words),
      pictures ? tiles() : table("Targets", heads.map((name) => named(targets, name)),
        some.map((i) => heads.map((name) => targets.columns[name][i]))),
      pager(page, found.length, each, (wanted) => {
        set("page", wanted || "");
        body.scrollIntoView();
      }) || "");
    say(words);
  }

  draw();
  return section("Targets",
    pictures && !targets.pictures.truth ? el("p", { class: "soft" }, index.truth
      ? "This result kept no pictures of the truth: an earlier version made it. Repeat it with --restart."
      : "The truth is left out of this page.") : null,
    pictures ? el("fieldset", { class: "modes" }, el("legend", {}, "Show"), modes.map(([value, words]) =>
      el("label", {}, el("input", {
        type: "radio", name: "show", value, checked: value === (given.get("show") || ""),
        change: () => set("show", value),
      }), words))) : null,
    el("form", { class: "filters", submit: (event) => event.preventDefault() },
      groups.length > 1 ? select("group", [["", "all"], ...groups.map((g) => [g, g])],
        given.get("group") || "", (value) => set("group", value)) : null,
      select("sort by", numbers.flatMap((name) => [[name, named(targets, name) + ", least first"],
        ["-" + name, named(targets, name) + ", most first"]]), given.get("sort") || numbers[0],
      (value) => set("sort", value), true),
      bound("from", "of at least"), bound("to", "of at most")),
    body);
}
