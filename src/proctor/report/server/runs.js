(() => {
  const { byId, el, count, sorted, sortableHead, badge, startTheme } = parts;
  const page = JSON.parse(byId("run").textContent);
  const STATUSES = ["running", "complete", "stopped early", "incomplete"];
  const chosen = [];  // of two runs that are compared, the first is the reference

  const far = (run) => (run.planned === null ? `${count(run.done)} ${run.unit}`
    : `${count(run.done)} of ${count(run.planned)} ${run.unit}`);
  const searched = (run) => (run.text ??= [run.place, run.what, run.result, run.date, run.status, run.kind, run.error]
    .filter(Boolean).join(" ").toLowerCase());

  function tick(run) {
    if (run.error !== null || run.kind === "training") return null;
    const box = el("input", { type: "checkbox", "aria-label": `Compare ${run.place}` });
    box.checked = chosen.includes(run);
    box.addEventListener("change", () => {
      if (box.checked) chosen.push(run); else chosen.splice(chosen.indexOf(run), 1);
      if (chosen.length > 2) chosen.splice(1, 1);
      draw();
    });
    return box;
  }

  function progress(run) {
    if (run.planned === null || run.status === "complete") return null;
    return el("progress", { max: Math.max(1, run.planned), value: run.done, "aria-label": far(run) });
  }

  const files = (run) => el("details", { class: "files" }, el("summary", {}, "files"),
    ...run.files.flatMap((name) => [el("a", { href: `${run.href}${name}` }, name), " "]));

  // A path breaks between its folders; a folder's name breaks after "_", where it is too long for a line.
  const breakable = (place) => place.split(/(?<=[/])/).map((folder) =>
    el("span", { class: "folder" }, ...folder.split(/(?<=_)/).flatMap((word) => [word, el("wbr")]).slice(0, -1)));

  const COLUMNS = [
    { name: "", class: "tick", cell: tick },
    { name: "Run", class: "name", key: (run) => run.place, cell: (run) => el("div", {}, el("a", { href: run.href }, ...breakable(run.place)), files(run)) },
    { name: "What", key: (run) => run.what, cell: (run) => el("div", {},
      run.kind === "run" ? null : el("span", { class: "tag" }, run.kind), run.what) },
    { name: "Success", class: "result", descending: true, key: (run) => run.rate, cell: (run) => el("div", {},
      run.result.replace(/\[.*\]/, (ends) => ends.replaceAll(" ", "\u00a0")),
      run.kind === "recording" ? el("span", { class: "quiet" }, " of all attempts") : null) },
    { name: "Done", class: "far", descending: true, key: (run) => run.done, cell: (run) => el("div", {}, far(run), progress(run)) },
    { name: "Status", class: "status", key: (run) => STATUSES.indexOf(run.status), cell: (run) => badge(run.status) },
    { name: "Started", class: "date", descending: true, key: (run) => run.started, cell: (run) => run.date ?? "n/a" },
  ];
  const view = { order: { column: COLUMNS[6], descending: true }, status: null };
  const body = el("tbody");

  function row(run) {
    if (run.error === null) {
      return el("tr", {}, ...COLUMNS.map((column) => el("td", { class: column.class ?? "" }, column.cell(run) ?? "")));
    }
    return el("tr", {}, el("td", {}), el("td", { class: "name" }, ...breakable(run.place)), el("td", { class: "damaged error", colspan: COLUMNS.length - 2 }, run.error));
  }

  function draw() {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = page.runs.filter((run) => (view.status === null || run.status === view.status) &&
      words.every((word) => searched(run).includes(word)));
    const whole = found.filter((run) => run.error === null);
    body.replaceChildren(...sorted(whole, view.order.column.key, view.order.descending).map(row),
      ...found.filter((run) => run.error !== null).map(row));
    byId("shown").textContent = `${count(found.length)} of ${count(page.runs.length)}`;
    const link = byId("compare");
    link.hidden = chosen.length !== 2;
    if (chosen.length === 2) {
      link.href = `/compare?${chosen.map((run) => `run=${run.href}`).join("&")}`;
      link.textContent = `Compare ${chosen[1].place} with ${chosen[0].place}`;
    }
  }

  function choose(status) {
    view.status = status;
    for (const button of byId("statuses").children) {
      button.setAttribute("aria-pressed", String(button.dataset.kind === String(status)));
    }
    draw();
  }

  startTheme();
  byId("title").textContent = page.title;
  byId("hint").hidden = page.runs.filter((run) => run.kind !== "training").length < 2;
  if (!page.runs.length) byId("all").replaceChildren(el("p", {}, "No runs here yet."));
  else {
    const kinds = STATUSES.filter((status) => page.runs.some((run) => run.status === status));
    byId("statuses").append(...[null, ...kinds].map((status) => el("button", { type: "button", "data-kind": String(status),
      onclick: () => choose(status) }, status ?? "All")));
    byId("search").addEventListener("input", draw);
    byId("runs").append(el("table", {}, sortableHead(COLUMNS, view.order, draw), body));
    choose(null);
  }
})();
