// Two or more attacks compared target by target.

const SAME = ["protocol", "scheme", "defence", "attack", "target", "adversary", "data"];

function sidesOf(path, given) {
  const by = given.get("by");
  if (!by) {
    const found = path.split(",").map((id) => byId.get(id)).filter((entry) => entry && entry.pairs);
    const apart = SAME.filter((facet) => new Set(found.map((entry) => entry.facets[facet])).size > 1);
    const names = found.map((entry) => apart.map((facet) => facet === "defence"
      && entry.facets.defence === "none" ? "no defence" : entry.facets[facet]).filter(Boolean).join(", "));
    return found.map((entry, i) => ({
      ids: [entry.id], same: () => "",
      name: new Set(names).size === names.length && names[i] ? names[i]
        : [names[i], entry.path].filter(Boolean).join(", "),
    }));
  }
  const fixed = SAME.filter((facet) => facet !== by && !(by === "protocol" && facet === "scheme"));
  const sides = new Map();
  filtered(given).filter((entry) => entry.pairs && entry.facets[by]).forEach((entry) => {
    const value = entry.facets[by];
    if (!sides.has(value)) {
      sides.set(value, { name: value, ids: [],
        same: (id) => fixed.map((facet) => byId.get(id).facets[facet] || "").join("\n") });
    }
    sides.get(value).ids.push(entry.id);
  });
  return [...sides.values()];
}

function valuesOf(side, measure, group) { // truth (and what must agree) to its mean score
  const out = new Map();
  side.ids.forEach((id) => {
    const targets = detail(id).targets;
    const values = targets.columns[measure];
    if (!values) { return; }
    const same = side.same(id);
    values.forEach((value, i) => {
      if (value === null || (group && targets.columns.behind && targets.columns.behind[i] !== group)) { return; }
      const key = targets.keys[i] + "\n" + same;
      const own = out.get(key) || { sum: 0, count: 0, cluster: targets.clusters[i], id, i };
      own.sum += value;
      own.count += 1;
      out.set(key, own);
    });
  });
  return out;
}

// Pairs of the same truth on both sides: a is the baseline's score, b the other's.
function paired(base, other, measure, group) {
  const a = valuesOf(base, measure, group), b = valuesOf(other, measure, group);
  const out = [];
  a.forEach((own, key) => {
    const met = b.get(key);
    if (met) {
      out.push({ a: own.sum / own.count, b: met.sum / met.count, cluster: own.cluster,
        from: [own.id, own.i], to: [met.id, met.i] });
    }
  });
  return out;
}

function estimate(pairs, measure) {
  const bounds = ["hit1", "hit5", "rr", "ssim", "jaccard", "identified"].includes(measure) ? [-1, 1] : null;
  return intervals.clustered(pairs.map((p) => p.b - p.a), pairs.map((p) => p.cluster), bounds);
}

function comparing(path, given) {
  const sides = sidesOf(path, given);
  const measures = new Map();
  const scored = sides.map((side) => new Set(side.ids.flatMap((id) => {
    const targets = detail(id).targets;
    return Object.entries(targets.scores).filter(([key]) => targets.columns[key]).map(([key, told]) => {
      measures.set(key, told);
      return key;
    });
  })));
  const sharing = (key) => scored.filter((keys) => keys.has(key)).length;
  const usual = [...measures.keys()].sort((a, b) => sharing(b) - sharing(a))[0];
  const groups = [...new Set(sides.flatMap((side) => side.ids.flatMap(
    (id) => [...new Set(detail(id).targets.columns.behind || [])])))].sort();
  const body = el("div", {});
  const crumbs = el("nav", { class: "crumbs", "aria-label": "Where this is" }, el("a", { href: "#/" }, "All results"));
  const heading = el("h1", { tabindex: "-1" }, given.get("by")
    ? "Compared by " + given.get("by") + ", target by target" : "Compared target by target");
  if (sides.length < 2 || !measures.size) {
    main.replaceChildren(crumbs, heading, el("p", {}, "There are not two sides to compare: choose "
      + "two or more finished attacks whose targets were scored."));
    return;
  }
  const chosenOf = () => {
    const number = (name, usual) => {
      const value = Number(given.get(name));
      return given.has(name) && sides[value] ? value : usual;
    };
    const measure = measures.has(given.get("measure")) ? given.get("measure") : usual;
    const having = (not) => Math.max(0, scored.findIndex((keys, i) => i !== not && keys.has(measure)));
    const base = number("base", having(-1));
    const other = number("other", having(base));
    return { measure, base, other: other === base ? (base === 0 ? 1 : 0) : other, group: given.get("group") || "" };
  };
  const set = (name, value) => {
    put(given, name, value);
    stay(["compare", ...(path ? [path] : [])], given);
    draw();
  };
  const options = sides.map((side, i) => [String(i), side.name]);

  function draw() {
    const { measure, base, other, group } = chosenOf();
    const [title, higher] = measures.get(measure);
    const rows = [];
    sides.forEach((side, i) => {
      if (i === base) { return; }
      const pairs = paired(sides[base], side, measure, group);
      const found = estimate(pairs, measure);
      const mean = (which) => pairs.reduce((sum, p) => sum + p[which], 0) / pairs.length;
      const bounded = Number.isFinite(found.low);
      const apart = bounded && (found.low > 0 || found.high < 0);
      const leaks = (found.mean > 0) === higher;
      rows.push([side.name, pairs.length, found.units, pairs.length ? mean("b") : null,
        pairs.length ? mean("a") : null,
        pairs.length ? signed(found.mean) + (bounded ? " [" + signed(found.low) + ", " + signed(found.high) + "]" : "") : "-",
        !scored[i].has(measure) ? "has no such score" : !pairs.length ? "no target with the same truth" : !bounded ? "too few to say"
          : !apart ? "no difference shown" : leaks ? "leaks more" : "leaks less"]);
    });
    const pairs = paired(sides[base], sides[other], measure, group);
    body.replaceChildren(
      section("Paired differences",
        el("p", { class: "soft" }, title + (higher ? " (more is more leakage)" : " (less is more leakage)")
          + ", each less that of " + sides[base].name + " on the same truth. Intervals are of 95 % over clients, "
          + "each by itself" + (given.get("by") ? "; pairs agree in everything else that results are filtered by." : ".")),
        table("Paired differences", ["", "pairs", "clients", "mean", "mean of the baseline",
          "difference [95 %]", "reads as"], rows)),
      section("Target by target", ...scatter(pairs, sides[base], sides[other], title)));
    say(rows.map((row) => row[0] + ": " + row[5]).join("; "));
  }

  main.replaceChildren(crumbs, heading,
    el("form", { class: "filters", submit: (event) => event.preventDefault() },
      select("measure", [...measures].map(([key, told]) => [key, told[0]]), chosenOf().measure, (value) => set("measure", value)),
      select("baseline", options, String(chosenOf().base), (value) => set("base", value), true),
      select("against it below", options, String(chosenOf().other), (value) => set("other", value), true),
      groups.length > 1 ? select("group", [["", "all"], ...groups.map((g) => [g, g])],
        given.get("group") || "", (value) => set("group", value)) : null),
    body);
  draw();
}

function scatter(pairs, base, other, title) {
  if (!pairs.length) {
    return [el("p", {}, "No target of the two has the same truth. Attacks are paired where their targets "
      + "are made of the same images, or belong to the same client and class of the same split; compare "
      + "attacks on the same run, or on runs of the same data, partition and seed.")];
  }
  const sorted = [...pairs].sort((p, q) => (q.b - q.a) - (p.b - p.a));
  let at = 0;
  const told = el("div", { "aria-live": "polite", id: "pair" });
  let mark = null, spot = null;
  function show(i) {
    at = Math.max(0, Math.min(sorted.length - 1, i));
    const pair = sorted[at];
    const [from, k] = pair.from, [to, m] = pair.to;
    const name = titleOf(detail(from).targets, k);
    const shot = (id, i2, which, words, secret) => has(detail(id).targets, which)
      ? el("div", {}, picture(id, which, i2, words + ", " + name), words, secret ? el("span", { class: "mark" }, " private") : null) : null;
    told.replaceChildren(
      el("h3", {}, name),
      el("p", {}, title + ": " + short(pair.b) + " by " + other.name + ", " + short(pair.a) + " by " + base.name
        + ": " + signed(pair.b - pair.a) + " (pair " + (at + 1) + " of " + sorted.length + ", by difference)"),
      el("div", { class: "shots" }, shot(from, k, "truth", "truth", true), shot(to, m, "answer", other.name, false),
        shot(from, k, "answer", base.name, false), shot(from, k, "floor", "floor", false)),
      el("div", { class: "bar" },
        el("button", { type: "button", disabled: at === 0, click: () => show(at - 1) }, "Previous pair"),
        el("button", { type: "button", disabled: at === sorted.length - 1, click: () => show(at + 1) }, "Next pair"),
        el("a", { href: "#/entry/" + to }, "the one attack"), el("a", { href: "#/entry/" + from }, "the baseline's")));
    if (mark) { mark.setAttribute("cx", spot.across(pair.a)); mark.setAttribute("cy", spot.up(pair.b)); }
  }
  const box = chart(576, (width) => {
    const both = range(pairs.flatMap((p) => [p.a, p.b]), 0.06);
    spot = frame(width, width, both, both, [title + ", " + cut(base.name), title + ", " + cut(other.name)]);
    const d = pairs.map((p) => {
      const x = spot.across(p.a) - 3, y = spot.up(p.b);
      return "M" + x.toFixed(1) + " " + y.toFixed(1) + "a3 3 0 1 0 6 0a3 3 0 1 0 -6 0";
    }).join("");
    mark = svg("circle", { class: "here", r: 8, cx: spot.across(sorted[at].a), cy: spot.up(sorted[at].b) });
    const diagonal = svg("path", { class: "axis", "stroke-dasharray": "4 4",
      d: "M" + spot.across(both.low) + " " + spot.up(both.low) + "L" + spot.across(both.high) + " " + spot.up(both.high) });
    const drawn = svg("svg", {
      class: "chart", id: "scatter", width, height: width, viewBox: "0 0 " + width + " " + width, tabindex: "0", role: "img",
      "aria-label": "Scatter of " + plural(pairs.length, "pair") + " of scores: " + base.name + " across, "
        + other.name + " up; above the diagonal it is higher. Arrow keys go from pair to pair.",
      keydown: (event) => {
        const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (by) { show(at + by); event.preventDefault(); }
      },
      click: (event) => {
        const seen = drawn.getBoundingClientRect();
        const x = (event.clientX - seen.left) * width / seen.width;
        const y = (event.clientY - seen.top) * width / seen.height;
        let best = 0, least = Infinity;
        sorted.forEach((p, i) => {
          const far = (spot.across(p.a) - x) ** 2 + (spot.up(p.b) - y) ** 2;
          if (far < least) { least = far; best = i; }
        });
        show(best);
      },
    }, spot.parts, diagonal, svg("path", { class: "dots", d }), mark);
    return drawn;
  });
  show(0);
  return [el("p", { class: "soft" }, "Click near a point, or use the arrow keys on the chart. Above the "
    + "diagonal " + other.name + " is higher."), el("div", { class: "beside" }, box, told)];
}

function cut(words) { return words.length > 34 ? words.slice(0, 32) + "..." : words; }
