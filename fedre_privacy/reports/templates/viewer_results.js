// The results that the page holds, and what is chosen of them.

const index = JSON.parse(document.getElementById("index").textContent);
const entries = index.entries;
const byId = new Map(entries.map((entry) => [entry.id, entry]));
const main = document.getElementById("main");
const large = document.getElementById("large");
const drawing = document.getElementById("drawing").namespaceURI;
const details = new Map();
const chosen = new Set();

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
