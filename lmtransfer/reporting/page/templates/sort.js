// Sorts the rows of a table by the column whose heading was clicked; rows without a value come last.
for (const table of document.querySelectorAll("table.sorts")) {
  const headings = [...table.tHead.rows[0].cells];
  for (const heading of headings.filter((one) => one.dataset.first)) {
    heading.querySelector("button").addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const turned = { ascending: "descending", descending: "ascending" };
      const order = turned[before] || heading.dataset.first;
      for (const other of headings.filter((one) => one.dataset.first)) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", order);
      const column = headings.indexOf(heading);
      for (const body of table.tBodies) {
        const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
        rows.sort((one, other) => compare(one.cells[column].dataset.sort, other.cells[column].dataset.sort, order));
        body.append(...rows);
      }
    });
  }
}

function compare(one, other, order) {
  if (one === undefined || other === undefined) return (one === undefined) - (other === undefined);
  const numbers = [Number(one), Number(other)];
  const found = numbers.some(Number.isNaN) ? one.localeCompare(other, undefined, { numeric: true }) : numbers[0] - numbers[1];
  return order === "descending" ? -found : found;
}
