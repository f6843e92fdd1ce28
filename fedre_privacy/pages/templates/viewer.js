(function () {
  // --- what the page holds --------------------------------------------------------------------
  const index = JSON.parse(document.getElementById("index").textContent);
  const entries = index.entries;
  const byId = new Map(entries.map((entry) => [entry.id, entry]));
  const main = document.getElementById("main");
  const large = document.getElementById("large");
  const drawing = document.getElementById("drawing").namespaceURI;
  const details = new Map();
  const chosen = new Set();

  const KINDS = ["run", "attack", "audit", "membership", "benchmark"];
  const FACETS = ["protocol", "scheme", "defence", "attack", "adversary", "data", "verdict"];
  const NAMES = { data: "data set", adversary: "adversary (threat)", kind: "kind", status: "status" };
  const PAGE = 100;
  const KINDS_OF_PICTURE = [
    ["truth", "truth (match)", true], ["answer", "answer", false], ["floor", "floor", false],
    ["difference", "difference x4", true],
  ];

  function detail(id) {
    if (!details.has(id)) {
      details.set(id, JSON.parse(document.getElementById("e" + id).textContent));
    }
    return details.get(id);
  }

  // --- small helpers --------------------------------------------------------------------------
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

  // Nothing stays last in both directions; numbers stand before words.
  function compare(a, b, down) {
    const none = (value) => value === null || value === undefined || value === "";
    if (none(a) || none(b)) { return (none(a) ? 1 : 0) - (none(b) ? 1 : 0); }
    let order;
    if (typeof a === "number" && typeof b === "number") {
      order = a - b;
    } else if (typeof a !== typeof b) {
      order = typeof a === "number" ? -1 : 1;
    } else {
      order = a.localeCompare(b, undefined, { numeric: true });
    }
    return down ? -order : order;
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

  // --- where we are ---------------------------------------------------------------------------
  function here() {
    const [path, query] = (location.hash.slice(1) || "/").split("?");
    return { path: path.split("/").slice(1), given: new URLSearchParams(query || "") };
  }

  function stay(path, given) { // the address follows what is set, so that a reload keeps it
    const query = given.toString();
    history.replaceState(null, "", "#/" + path.join("/") + (query ? "?" + query : ""));
  }

  function put(given, name, value) {
    if (value === "" || value === null) { given.delete(name); } else { given.set(name, value); }
  }

  function valueOf(entry, facet) {
    return facet === "kind" || facet === "status" ? entry[facet] : entry.facets[facet];
  }

  function filtered(given) {
    const words = (given.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
    const facets = ["kind", "status", ...FACETS].filter((facet) => given.has(facet));
    return entries.filter((entry) => facets.every((f) => valueOf(entry, f) === given.get(f))
      && words.every((word) => entry.text.includes(word)));
  }

  entries.forEach((entry) => {
    entry.text = [entry.path, entry.kind, entry.status, entry.problem,
      ...Object.values(entry.facets), "seed " + entry.seed].join(" ").toLowerCase();
  });

  // --- the list -------------------------------------------------------------------------------
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

  // --- pictures -------------------------------------------------------------------------------
  const loaded = new Map();
  function sheet(id, name, number) {
    const key = id + " " + name + " " + number;
    if (!loaded.has(key)) {
      const from = detail(id).targets.pictures[name].from[number];
      const image = new Image();
      loaded.set(key, new Promise((done, failed) => {
        image.onload = () => done(image);
        image.onerror = () => failed(new Error("a sheet of pictures is absent"));
        image.src = from.startsWith("#")
          ? "data:image/png;base64," + document.getElementById(from.slice(1)).textContent : from;
      }));
      if (loaded.size > 60) { loaded.delete(loaded.keys().next().value); }
    }
    return loaded.get(key);
  }

  function has(targets, name) {
    return name === "difference" ? Boolean(targets.pictures.truth && targets.pictures.answer)
      : Boolean(targets.pictures[name]);
  }

  function place(context, id, name, target) {
    const layout = detail(id).targets.pictures[name];
    const at = layout.which ? layout.which[target] : target;
    const inside = at % layout.each;
    const x = (inside % layout.across) * layout.width;
    const y = Math.floor(inside / layout.across) * layout.height;
    return sheet(id, name, Math.floor(at / layout.each)).then((image) => () => context.drawImage(
      image, x, y, layout.width, layout.height, 0, 0, layout.width, layout.height));
  }

  function picture(id, name, target, words) {
    const layout = detail(id).targets.pictures[name === "difference" ? "truth" : name];
    const canvas = el("canvas", {
      class: "picture", width: layout.width, height: layout.height, role: "img", "aria-label": words,
    });
    const context = canvas.getContext("2d");
    const parts = name === "difference" ? ["truth", "answer"] : [name];
    Promise.all(parts.map((part) => place(context, id, part, target))).then((draws) => {
      draws[0]();
      if (draws.length > 1) {
        context.globalCompositeOperation = "difference";
        draws[1]();
        context.globalCompositeOperation = "lighter"; // twice double is four times
        context.drawImage(canvas, 0, 0);
        context.drawImage(canvas, 0, 0);
      }
      canvas.dataset.drawn = "yes";
    }).catch((error) => canvas.setAttribute("aria-label", words + ": " + error.message));
    return canvas;
  }

  function shots(id, target, title, names) {
    const targets = detail(id).targets;
    return KINDS_OF_PICTURE.filter(([name]) => names.includes(name) && has(targets, name))
      .map(([name, words, secret]) => el("div", {}, picture(id, name, target, words + ", " + title),
        words, secret ? el("span", { class: "mark" }, " private") : null));
  }

  function titleOf(targets, i) {
    const c = targets.columns;
    const at = c.target ? c.target[i] : i;
    const label = c.label && c.label[i] >= 0 ? ", class " + c.label[i] : "";
    const size = c.support_size ? ", of " + plural(c.support_size[i], "image") : "";
    return "Target " + at + (c.client ? ": client " + c.client[i] : "") + label + size;
  }

  function enlarge(entry, order, at, from) {
    const targets = detail(entry.id).targets;
    let now = at;
    function show() {
      const i = order[now];
      const title = titleOf(targets, i);
      const told = Object.entries(targets.columns)
        .filter(([, values]) => values[i] !== null)
        .map(([name, values]) => [named(targets, name), short(values[i])]);
      const step = (by, words) => el("button", {
        type: "button", disabled: now + by < 0 || now + by >= order.length,
        click: () => { now += by; show(); },
      }, words);
      large.replaceChildren(
        el("h2", { id: "large-title", tabindex: "-1" }, title),
        el("div", { class: "shots" }, shots(entry.id, i, title, KINDS_OF_PICTURE.map((one) => one[0]))),
        el("div", { class: "bar" }, step(-1, "Previous"),
          el("p", {}, (now + 1) + " of " + order.length), step(1, "Next"),
          el("button", { type: "button", click: () => large.close() }, "Close")),
        facts(told));
      large.querySelector("h2").focus();
    }
    large.onkeydown = (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by && order[now + by] !== undefined) { now += by; show(); event.preventDefault(); }
    };
    large.onclose = () => { if (from && from.isConnected) { from.focus(); } };
    if (!large.open) { large.showModal(); }
    show();
  }

  function named(targets, column) {
    if (targets.scores[column]) { return targets.scores[column][0]; }
    if (column === "behind") { return "images behind it"; }
    return targets.doubts.includes(column) ? column.replace(/_/g, " ") + " (the attack's own)"
      : column.replace(/_/g, " ");
  }

  // --- the targets of an attack ---------------------------------------------------------------
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

  // --- charts ---------------------------------------------------------------------------------
  function ticks(low, high, count) {
    const raw = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
    const out = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) {
      out.push(Math.abs(at) < step * 1e-9 ? 0 : at);
    }
    return out;
  }

  function frame(width, height, x, y, titles) {
    const box = { left: 62, right: width - 14, top: 14, bottom: height - 48 };
    const across = (v) => box.left + (v - x.low) / (x.high - x.low) * (box.right - box.left);
    const up = (v) => box.bottom - (v - y.low) / (y.high - y.low) * (box.bottom - box.top);
    const parts = [
      ...ticks(x.low, x.high, width / 110).flatMap((v) => [
        svg("path", { class: "rule", d: "M" + across(v) + " " + box.top + "V" + box.bottom }),
        svg("text", { x: across(v), y: box.bottom + 18, "text-anchor": "middle" }, x.words ? x.words(v) : tick(v)),
      ]),
      ...ticks(y.low, y.high, height / 70).flatMap((v) => [
        svg("path", { class: "rule", d: "M" + box.left + " " + up(v) + "H" + box.right }),
        svg("text", { x: box.left - 8, y: up(v) + 4, "text-anchor": "end" }, tick(v)),
      ]),
      svg("path", { class: "axis", d: "M" + box.left + " " + box.top + "V" + box.bottom + "H" + box.right }),
      svg("text", { x: (box.left + box.right) / 2, y: height - 8, "text-anchor": "middle" }, titles[0]),
      svg("text", { transform: "translate(14 " + (box.top + box.bottom) / 2 + ") rotate(-90)", "text-anchor": "middle" }, titles[1]),
    ];
    return { across, up, parts, box };
  }

  function range(values, room) {
    const known = values.filter((v) => Number.isFinite(v));
    let low = Math.min(...known), high = Math.max(...known);
    if (!known.length) { low = 0; high = 1; }
    const more = (high - low) * room || Math.abs(high) * 0.1 || 1;
    return { low: low - more, high: high + more };
  }

  function roomFor(node, most) {
    return Math.max(300, Math.min(most, (node.clientWidth || main.clientWidth) - 4));
  }

  // Draws now, and again where the window becomes wider or narrower.
  function chart(most, draw) {
    const box = el("div", { class: "chartbox" });
    let wide = 0;
    new ResizeObserver(() => {
      if (!box.isConnected) { return; }
      const width = roomFor(box, most);
      if (width !== wide) {
        wide = width;
        box.replaceChildren(draw(width));
      }
    }).observe(box);
    return box;
  }

  function frontier(panels) {
    const axes = { accuracy: "test accuracy", scalars: "scalars uploaded per round (log)" };
    let panel = panels[0], axis = "accuracy";
    const told = el("p", { class: "soft", "aria-live": "polite", id: "pointed" },
      "Point at a variant, or reach it with the Tab key. A ring marks the Pareto set; a hollow point "
      + "was read by no attack, which does not mean that it is safe.");
    const holder = el("div", {});
    function words(p) {
      const leak = p.over === null ? "no attack could read its uploads" : signed(p.over, 2)
        + (p.over_sd === null ? "" : " +- " + p.over_sd.toFixed(2)) + " over the floor by " + p.attack;
      return p.label + ": accuracy " + p.accuracy.toFixed(3) + ", " + Math.round(p.scalars).toLocaleString("en")
        + " scalars up, " + leak + ", " + plural(p.seeds, "seed") + (panel.best.includes(p.label) ? "; in the Pareto set" : "");
    }
    function draw(width) {
      const height = Math.round(Math.max(300, width * 0.55));
      const placed = panel.points.filter((p) => p.accuracy !== null && p.scalars !== null);
      const xOf = (p) => axis === "accuracy" ? p.accuracy : Math.log10(Math.max(p.scalars, 1));
      const x = { ...range(placed.map(xOf), 0.15), words: axis === "accuracy" ? null : (v) => tick(Number((10 ** v).toPrecision(2))) };
      const y = range([0, ...placed.filter((p) => p.over !== null)
        .flatMap((p) => [p.over - (p.over_sd || 0), p.over + (p.over_sd || 0)])], 0.1);
      const { across, up, parts } = frame(width, height, x, y, [axes[axis], "over the floor: " + panel.title]);
      const taken = [];
      const marks = placed.map((p) => {
        const cx = across(xOf(p)), cy = up(p.over === null ? 0 : p.over);
        const left = cx > width * 0.6;
        const wide = p.label.length * 7;
        const label = { x: left ? cx - 11 - wide : cx + 11, y: cy - 9, w: wide, h: 16 };
        const free = taken.every((o) => label.x > o.x + o.w || o.x > label.x + label.w
          || label.y > o.y + o.h || o.y > label.y + label.h) && label.x > 50 && label.x + wide < width;
        if (free) { taken.push(label); }
        const point = () => { told.textContent = words(p); };
        const sd = p.over_sd !== null && p.over !== null ? svg("path", {
          class: "whisker", d: "M" + cx + " " + up(p.over - p.over_sd) + "V" + up(p.over + p.over_sd),
        }) : null;
        return svg("g", {
          class: p.over === null ? "point none" : "point", tabindex: "0", role: "img",
          "aria-label": words(p), "data-label": p.label, mouseenter: point, focus: point, click: point,
        }, sd, svg("circle", { cx, cy, r: 6 }),
        panel.best.includes(p.label) ? svg("circle", { class: "ring", cx, cy, r: 9 }) : null,
        free ? svg("text", { x: left ? cx - 11 : cx + 11, y: cy + 4, "text-anchor": left ? "end" : "start" }, p.label) : null);
      });
      const zero = svg("path", { class: "axis", "stroke-dasharray": "4 4", d: "M62 " + up(0) + "H" + (width - 14) });
      return svg("svg", {
        class: "chart", width, height, viewBox: "0 0 " + width + " " + height, role: "group",
        "aria-label": "Frontier: " + axes[axis] + " against leakage over the floor, " + plural(placed.length, "variant"),
      }, parts, zero, marks);
    }
    function redraw() { holder.replaceChildren(chart(900, draw)); }
    redraw();
    return section("Frontier",
      el("form", { class: "filters", submit: (event) => event.preventDefault() },
        select("leakage by", panels.map((p, i) => [String(i), p.title]), "0", (value) => {
          panel = panels[Number(value)];
          redraw();
        }, true),
        select("against", Object.entries(axes), axis, (value) => { axis = value; redraw(); }, true)),
      holder, told);
  }

  // --- one result -----------------------------------------------------------------------------
  function one(entry, given, path) {
    const more = detail(entry.id);
    const parent = byId.get(more.parent);
    const below = entries.filter((other) => other.parent === entry.id);
    const order = ["protocol", "scheme", "defence", "server", "data", "partition", "attack", "target", "adversary"];
    const known = order.filter((name) => entry.facets[name]).map((name) => [NAMES[name] || name, entry.facets[name]]);
    if (entry.seed !== null) { known.push(["seed", String(entry.seed)]); }
    if (entry.started) { known.push(["started", entry.started]); }
    main.replaceChildren(...[
      el("nav", { class: "crumbs", "aria-label": "Where this is" }, el("a", { href: "#/" }, "All results"),
        parent ? [" / ", el("a", { href: "#/entry/" + parent.id }, parent.name)] : null),
      el("h1", { tabindex: "-1" }, entry.name),
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
        }, "Choose to compare")] : null),
      entry.status === "complete" ? null : el("div", { class: "flag" },
        el("strong", {}, entry.status.toUpperCase()), ": " + entry.problem),
      ...Object.entries(more.flags).map(([name, words]) => el("div", { class: "flag" },
        el("strong", {}, name), ": " + words)),
      entry.facets.verdict ? el("div", { class: "verdict" }, el("strong", {}, entry.facets.verdict),
        el("br"), more.because) : null,
      more.panels.length ? frontier(more.panels) : null,
      ...more.tables.slice(0, 1).map((t) => section(t.title, table(t.title, t.heads, t.rows))),
      more.targets ? gallery(entry, given, path) : null,
      below.length ? section("Attacks and audits of this run", table("Attacks and audits of this run",
        ["result", "verdict", "over floor", "n"], below.map((other) => [
          el("a", { href: "#/entry/" + other.id }, other.name),
          other.facets.verdict || other.status, other.score ? other.score.title + " " + other.score.text : "", other.n]))) : null,
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

  // --- two or more, target by target ----------------------------------------------------------
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

  // --- from address to page -------------------------------------------------------------------
  let shown = null;
  function render() {
    const { path, given } = here();
    if (large.open) { large.close(); }
    if (path[0] === "entry" && byId.has(path[1])) {
      one(byId.get(path[1]), given, path);
    } else if (path[0] === "compare") {
      comparing(path[1] || "", given);
    } else if (path[0] === "" || path[0] === undefined) {
      list(given);
    } else {
      main.replaceChildren(el("h1", { tabindex: "-1" }, "Not here"),
        el("p", {}, "This page holds no such result. ", el("a", { href: "#/" }, "All results")));
    }
    const heading = main.querySelector("h1");
    document.title = heading.textContent + " - " + index.title;
    if (shown !== null) { // the first page is read from its top
      heading.focus();
      window.scrollTo(0, 0);
    }
    shown = path.join("/");
  }
  window.addEventListener("hashchange", () => { if (location.hash !== "#main") { render(); } });
  render();
})();
