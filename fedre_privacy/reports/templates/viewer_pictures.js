// Pictures of targets, cut from sheets, enlarged on a click.

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
