(function () {
  // A cell's value: its number where it has one, else its text; nothing is "".
  function valueOf(cell) {
    var given = cell.getAttribute("data-value");
    if (given === null) { return cell.textContent.trim(); }
    return given === "" ? "" : Number(given);
  }

  function sortBy(table, heads, column) {
    var down = heads[column].getAttribute("aria-sort") === "ascending";
    heads.forEach(function (head, at) {
      if (at === column) {
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
      } else {
        head.removeAttribute("aria-sort");
      }
    });
    var body = table.tBodies[0];
    var rows = Array.from(body.rows).map(function (row) {
      return { row: row, value: valueOf(row.cells[column]) };
    });
    rows.sort(function (a, b) { return compare(a.value, b.value, down); });
    rows.forEach(function (entry) { body.appendChild(entry.row); });
  }

  document.querySelectorAll("table.sortable").forEach(function (table) {
    var heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.title = "Sort by this column";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      button.addEventListener("click", function () { sortBy(table, heads, column); });
    });
  });

  var dialog = document.createElement("dialog");
  if (typeof dialog.showModal !== "function") { return; }
  document.body.appendChild(dialog);
  dialog.addEventListener("click", function (event) {
    if (!event.target.closest("button, .target")) { dialog.close(); }
  });

  function button(words, act) {
    var made = document.createElement("button");
    made.type = "button";
    made.textContent = words;
    made.addEventListener("click", act);
    return made;
  }

  function show(label, shown, buttons) {
    var bar = document.createElement("div");
    bar.className = "bar";
    buttons.concat(button("Close", function () { dialog.close(); })).forEach(function (one) {
      bar.appendChild(one);
    });
    dialog.replaceChildren(shown, bar);
    dialog.setAttribute("aria-label", label);
    if (!dialog.open) { dialog.showModal(); }
  }

  document.querySelectorAll("img.enlarge").forEach(function (image) {
    var opener = button("", function () {
      var large = document.createElement("img");
      large.src = image.src;
      large.alt = image.alt;
      dialog.onkeydown = dialog.onclose = null;
      show(image.alt, large, []);
    });
    opener.className = "zoom";
    opener.setAttribute("aria-label", "Enlarge: " + image.alt);
    image.parentNode.replaceChild(opener, image);
    opener.appendChild(image);
  });

  document.querySelectorAll(".targets").forEach(function (gallery) {
    var tiles = Array.from(gallery.children);
    gallery.className = "targets tiles";

    function open(at) {
      var large = tiles[at].cloneNode(true);
      var title = large.querySelector("h3");
      title.textContent = title.textContent;
      function go(by) {
        return function () { if (tiles[at + by]) { open(at + by); } };
      }
      var back = button("Previous", go(-1)), next = button("Next", go(1));
      back.disabled = at === 0;
      next.disabled = at === tiles.length - 1;
      dialog.onkeydown = function (event) {
        if (event.key === "ArrowLeft") { go(-1)(); }
        if (event.key === "ArrowRight") { go(1)(); }
      };
      dialog.onclose = function () { tiles[at].querySelector("button").focus(); };
      title.tabIndex = -1;
      show(title.textContent, large, [back, next]);
      title.focus(); // the arrow keys go on from here
    }

    tiles.forEach(function (tile, at) {
      var title = tile.querySelector("h3");
      var opener = button(title.textContent, function () { open(at); });
      opener.title = "Enlarge";
      title.textContent = "";
      title.appendChild(opener);
    });
  });
})();
