// Where we are: the address, and the results that it asks for.

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
  entry.text = [entry.title, entry.path, entry.kind, entry.status, entry.problem,
    ...Object.values(entry.facets), "seed " + entry.seed].join(" ").toLowerCase();
});
