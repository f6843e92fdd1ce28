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
