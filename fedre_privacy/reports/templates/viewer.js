// From the address to the page.

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
