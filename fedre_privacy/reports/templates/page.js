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
  var large = document.createElement("img");
  dialog.appendChild(large);
  document.body.appendChild(dialog);
  dialog.addEventListener("click", function () { dialog.close(); });
  document.querySelectorAll("img.enlarge").forEach(function (image) {
    var button = document.createElement("button");
    button.type = "button";
    button.className = "zoom";
    button.setAttribute("aria-label", "Enlarge: " + image.alt);
    image.parentNode.replaceChild(button, image);
    button.appendChild(image);
    button.addEventListener("click", function () {
      large.src = image.src;
      large.alt = image.alt;
      large.className = image.classList.contains("pixels") ? "pixels" : "";
      dialog.setAttribute("aria-label", image.alt);
      dialog.showModal();
    });
  });
})();
