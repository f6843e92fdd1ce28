// Charts drawn by hand: axes, points, frontiers.

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
  const axes = { accuracy: "accuracy on clients' own test images", shared: "accuracy on the shared test set", scalars: "scalars uploaded per round (log)" };
  let panel = panels[0], axis = "accuracy";
  const told = el("p", { class: "soft", "aria-live": "polite", id: "pointed" },
    "Point at a variant, or reach it with the Tab key. A ring marks the Pareto set; a hollow point "
    + "was read by no attack, which does not mean that it is safe.");
  const holder = el("div", {});
  function words(p) {
    const leak = p.over === null ? "no attack could read its uploads" : signed(p.over, 2)
      + (p.over_sd === null ? "" : " +- " + p.over_sd.toFixed(2)) + " over the floor by " + p.attack;
    return p.label + ": accuracy " + p.accuracy.toFixed(3)
      + (p.shared === null ? "" : " (shared test set " + p.shared.toFixed(3) + ")") + ", " + Math.round(p.scalars).toLocaleString("en")
      + " scalars up, " + leak + ", " + plural(p.seeds, "seed") + (panel.best.includes(p.label) ? "; in the Pareto set" : "");
  }
  function draw(width) {
    const height = Math.round(Math.max(300, width * 0.55));
    const placed = panel.points.filter((p) => p[axis] !== null && p.scalars !== null);
    const xOf = (p) => axis === "scalars" ? Math.log10(Math.max(p.scalars, 1)) : p[axis];
    const x = { ...range(placed.map(xOf), 0.15), words: axis !== "scalars" ? null : (v) => tick(Number((10 ** v).toPrecision(2))) };
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
