(() => {
  const { byId, el, svg, pair, fixed, count, percent, interval, points, plural, sorted, sortableHead, startTheme, notice, playback, sideBySide, showWayBack } = parts;
  const page = JSON.parse(byId("run").textContent);
  const KINDS = ["Only A", "Only B", "Neither", "Both"]; // who solved it; after these come errors
  const FIRST_ROWS = 20, FIRST_FILMS = 8;

  // ---- Numbers as text ----

  const difference = (value) => (value === null ? "n/a" : points(value));
  const range = (ends) => (ends === null ? "n/a" : `[${ends.map(points).join(", ")}]`);
  const ratio = ([k, n]) => `${count(k)}/${count(n)}`;
  const rate = ([k, n]) => (n ? k / n : null);

  // ---- The chart of a difference: zero, interval, point ----

  function direction(change, significant) {
    if (!significant) return "same";
    return change.difference > 0 ? "better" : "worse";
  }

  /** Half the width of all charts of a section, such that every interval fits. */
  function reach(changes) {
    const ends = changes.flatMap((change) => change.interval ?? []).map(Math.abs);
    return [0.05, 0.1, 0.25, 0.5, 1].find((half) => ends.every((end) => end <= half)) ?? 2;
  }

  function differenceChart(change, half, kind) {
    const across = (value) => `${(50 + (50 * value) / half).toFixed(3)}%`;
    const upright = (value, name) =>
      svg("line", { class: name, x1: across(value), x2: across(value), y1: 0, y2: "100%" });
    const chart = svg("svg", { class: `chart ${kind}`, role: "img",
      "aria-label": `${difference(change.difference)} ${range(change.interval)} points` },
      ...[-half, -half / 2, half / 2, half].map((value) => upright(value, "grid")), upright(0, "zero"));
    if (change.difference === null) return chart;
    const [low, high] = change.interval.map(across);
    chart.append(svg("line", { class: "whisker", x1: low, x2: high, y1: "50%", y2: "50%" }),
      svg("circle", { cx: across(change.difference), cy: "50%", r: 4.5 }));
    return chart;
  }

  const axis = (half) => el("div", { class: "axis" }, ...[-1, -0.5, 0, 0.5, 1].map((part) =>
    el("span", {}, `${part > 0 ? "+" : part < 0 ? "−" : ""}${Number((100 * half * Math.abs(part)).toFixed(1))}`)));

  // ---- Headline ----

  function side(letter, run) {
    const report = run.report === null ? [] : [" · ", el("a", { href: run.report }, "report")];
    return [el("dt", {}, letter), el("dd", {}, run.path, ...report,
      el("span", { class: "quiet" }, ` · fingerprint ${run.fingerprint}`))];
  }

  // Differences between the policies; differences between the environments are warnings.
  function policies(section) {
    if (!section.policies.length) {
      return el("p", { class: "quiet" }, "The policies of A and B are defined alike.");
    }
    return el("details", {}, el("summary", {}, `${plural(section.policies.length, "difference")} between the policies`),
      el("ul", {}, ...section.policies.map((line) => el("li", {}, line))));
  }

  function figures(section) {
    const { overall, detectable, left_out: alone } = section;
    const found = [["a", "A"], ["b", "B"]].map(([key, letter], place) => [`Rate of ${letter}, ${page.level} interval`,
      `${percent(overall.rates[place])} ${interval(overall.rate_intervals[place])} ${ratio(overall[key])}`]);
    if (page.paired) {
      const kinds = section.pairs.kind;
      found.push(["Solved by only A · only B", [0, 1].map((kind) =>
        count(kinds.filter((one) => one === kind).length)).join(" · ")]);
    }
    found.push(["P(B > A)", fixed(overall.better, 3)]);
    if (detectable !== null) {
      found.push(["Minimum detectable difference, 80% power", `${(100 * detectable).toFixed(1)} points`]);
    }
    for (const [label, [ofA, ofB]] of [["Diverged, counted as failed, A · B", overall.diverged],
      ["Errors, left out, A · B", overall.errors]]) {
      if (ofA || ofB) found.push([label, `${count(ofA)} · ${count(ofB)}`]);
    }
    if (alone[0] || alone[1]) {
      found.push([page.paired ? "Without a pair, A · B" : "Not compared, A · B", alone.map(count).join(" · ")]);
    }
    if (section.gate !== null) found.push(["Gate", section.gate]);
    return found;
  }

  function headline(section) {
    const { overall } = section;
    const kind = direction(overall, section.differs);
    const half = reach([overall]);
    return el("div", { class: "headline" },
      el("div", {}, el("div", { class: `words ${kind}` }, section.verdict),
        el("div", { class: "interval" }, `B − A ${difference(overall.difference)} ${range(overall.interval)} points, `,
          el("span", { class: "quiet" }, `${page.level} interval, ${section.p_equals}`))),
      el("div", { class: "overview" }, differenceChart(overall, half, kind), axis(half)),
      el("dl", { class: "figures" }, ...figures(section).map(([label, value]) => pair(label, value))));
  }

  // ---- Tasks ----

  function taskCell(task, choose) {
    const kind = direction(task, task.flagged);
    const name = choose === null ? task.name : el("button", { type: "button", class: "link",
      title: "Show its pairs", onclick: () => choose(task) }, task.name);
    return el("span", {}, name, " ", task.flagged ? el("span", { class: `flag ${kind}` }, kind) : null);
  }

  function taskColumns(section, choose) {
    const half = reach(section.tasks);
    return [
      { name: "Task", key: (task) => task.name, cell: (task) => taskCell(task, choose) },
      { name: "", class: "plot", head: () => axis(half),
        cell: (task) => differenceChart(task, half, direction(task, task.flagged)) },
      { name: "B − A", class: "number percent", key: (task) => task.difference, cell: (task) => difference(task.difference) },
      { name: `${page.level} interval`, class: "number secondary", key: (task) => task.interval && task.interval[0],
        cell: (task) => range(task.interval) },
      { name: "A", class: "number", key: (task) => rate(task.a), cell: (task) => ratio(task.a) },
      { name: "B", class: "number", key: (task) => rate(task.b), cell: (task) => ratio(task.b) },
      { name: "p", class: "number secondary", key: (task) => task.p, cell: (task) => task.p_text },
      { name: "p (Holm)", class: "number secondary", key: (task) => task.p_holm, cell: (task) => task.p_holm_text },
    ];
  }

  function tasks(section, choose) {
    const columns = taskColumns(section, choose);
    const order = { column: columns[2], descending: false };
    const body = el("tbody");
    const draw = () => body.replaceChildren(...sorted(section.tasks, order.column.key, order.descending).map((task) =>
      el("tr", {}, ...columns.map((column) =>
        el("td", { class: column.class ?? "", "data-label": column.name }, column.cell(task))))));
    draw();
    const flagged = section.tasks.filter((task) => task.flagged).length;
    return el("section", {}, el("h2", {}, "Differences by task"),
      el("p", { class: "quiet" }, `Dot: rate of B minus rate of A, in points; bar: ${page.level} interval; A and B: ` +
        `successes / episodes. ${flagged ? plural(flagged, "task") : "No task"} changed significantly ` +
        `(Holm-corrected${page.corrected === null ? "" : " over the tasks of all runs,"} p at most ${page.alpha}).`),
      el("table", { class: "rates differences" }, sortableHead(columns, order, draw), body));
  }

  // ---- Drops under perturbation ----

  function drops(found) {
    if (!found) return null;
    const rows = found.dimensions.flatMap((total) => {
      const cells = found.cells.filter((cell) => cell.dimension === total.dimension);
      return cells.length > 1 ? [...cells, { ...total, name: `${total.name}, all`, total: true }] : cells;
    });
    if (found.dimensions.length > 1) rows.push({ ...found.all, total: true, flagged: false, p_holm_text: "–" });
    const half = reach(rows);
    const kind = (row) => (!row.flagged ? "same" : row.difference > 0 ? "worse" : "better");
    const row = (one) => el("tr", {},
      el("td", {}, one.total ? el("strong", {}, one.name) : one.name, " ",
        one.flagged ? el("span", { class: `flag ${kind(one)}` }, `B ${kind(one)}`) : null),
      el("td", { class: "plot" }, differenceChart(one, half, kind(one))),
      ...[["Drop of A", "number", difference(one.drop_a)], ["Drop of B", "number", difference(one.drop_b)],
        ["B − A", "number percent", difference(one.difference)], [`${page.level} interval`, "number secondary", range(one.interval)],
        ["p", "number secondary", one.p_text], ["p (Holm)", "number secondary", one.p_holm_text], ["Pairs", "number secondary", count(one.n)],
      ].map(([label, style, text]) => el("td", { class: style, "data-label": label }, text)));
    const left = found.left_out.some(Boolean) ? ` Pairs that the other run does not have: ${found.left_out.map(count).join(" in A, ")} in B.` : "";
    return el("section", {}, el("h2", {}, "Robustness"),
      el("p", { class: "quiet" }, "Drop: clean rate minus perturbed rate of a run, in points. Dot: drop of B minus drop of A; to the right, the perturbation " +
        `costs B more. P-values are Holm-corrected over cells and over dimensions; each interval is of its row alone.${left}`),
      el("table", { class: "rates differences drops-of-two" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Perturbation"),
        el("th", { class: "plot", scope: "col" }, axis(half)),
        ...[["Drop of A", ""], ["Drop of B", ""], ["B − A", ""], [`${page.level} interval`, " secondary"], ["p", " secondary"], ["p (Holm)", " secondary"], ["Pairs", " secondary"]]
          .map(([label, style]) => el("th", { class: `number${style}`, scope: "col" }, label)))),
      el("tbody", {}, ...rows.map(row))));
  }

  // ---- Pairs ----

  function pairsOf(section) {
    const columns = Object.entries(section.pairs);
    return section.pairs.task.map((_, place) => {
      const one = Object.fromEntries(columns.map(([name, values]) => [name, values[place]]));
      one.task = section.tasks[one.task].name;
      one.start = `seed ${one.seed}${one.init_state === null ? "" : `, init state ${one.init_state}`}`;
      one.text = `${one.task} ${one.start}`.toLowerCase();
      return one;
    });
  }

  const outcome = (name) => el("span", { class: `outcome ${name}` }, name);
  const PAIR_COLUMNS = [
    { name: "Task", key: (one) => one.task, cell: (one) => one.task },
    { name: "Seed", class: "number", key: (one) => one.seed, cell: (one) => String(one.seed) },
    { name: "Init state", class: "number secondary", key: (one) => one.init_state,
      cell: (one) => (one.init_state === null ? "–" : String(one.init_state)) },
    { name: "A", key: (one) => one.outcome_a, cell: (one) => outcome(one.outcome_a) },
    { name: "B", key: (one) => one.outcome_b, cell: (one) => outcome(one.outcome_b) },
    { name: "Steps A", class: "number secondary", key: (one) => one.steps_a, cell: (one) => fixed(one.steps_a, 0) },
    { name: "Steps B", class: "number secondary", key: (one) => one.steps_b, cell: (one) => fixed(one.steps_b, 0) },
  ];

  const pairRow = (one) => el("tr", { class: "row" }, ...PAIR_COLUMNS.map((column) =>
    el("td", { class: column.class ?? "" }, column.cell(one))));

  function chosenPairs(all, view) {
    const words = view.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = all.filter((one) => (view.kind === null || one.kind === view.kind) &&
      words.every((word) => one.text.includes(word)));
    return view.order.column === null ? found : sorted(found, view.order.column.key, view.order.descending);
  }

  function kindButtons(all, choose) {
    const labels = KINDS.map((label, kind) => `${label} ${count(all.filter((one) => one.kind === kind).length)}`);
    return ["All", ...labels].map((label, place) => el("button", { type: "button",
      onclick: () => choose(place ? place - 1 : null) }, label));
  }

  /** A table of pairs with its filters, and a function that shows only those of a task. */
  function pairTable(all) {
    const search = el("input", { type: "search", placeholder: "Task or seed", "aria-label": "Search pairs", oninput: () => redraw() });
    const view = { search, order: { column: null, descending: false }, kind: null, limit: FIRST_ROWS };
    const body = el("tbody"), shown = el("span", { class: "quiet shown", role: "status" }), more = el("p", { class: "more" });
    const buttons = kindButtons(all, choose);
    function redraw(limit = FIRST_ROWS) {
      view.limit = limit;
      const found = chosenPairs(all, view);
      body.replaceChildren(...found.slice(0, limit).map(pairRow));
      shown.textContent = `${count(found.length)} of ${count(all.length)}`;
      const button = (label, next) => el("button", { type: "button", onclick: () => redraw(next) }, label);
      more.replaceChildren(...(found.length > limit
        ? [button("Show 100 more", limit + 100), button(`Show all ${count(found.length)}`, Infinity)] : []));
    }
    function choose(kind) {
      view.kind = kind;
      buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(kind === (place ? place - 1 : null))));
      redraw();
    }
    const node = el("section", {}, el("h2", {}, "Pairs"),
      el("p", { class: "quiet" }, "Episodes of the same task, seed and init state. Those that only one run solved come first: " +
        "only these make the difference."),
      el("div", { class: "controls" }, search,
        el("div", { class: "choices", role: "group", "aria-label": "Solved by" }, ...buttons), shown),
      el("table", { class: "log pairs" }, sortableHead(PAIR_COLUMNS, view.order, () => redraw(view.limit)), body), more);
    function showTask(task) {
      search.value = task.name;
      choose(null);
      node.scrollIntoView();
    }
    choose(null);
    return { node, showTask };
  }

  // ---- Videos side by side ----

  const duo = (one) => sideBySide(`${one.task}, ${one.start}`, [
    { title: "A", source: one.video_a, outcome: one.outcome_a }, { title: "B", source: one.video_b, outcome: one.outcome_b }]);

  function films(all) {
    const filmed = all.filter((one) => one.video_a !== null || one.video_b !== null);
    // Pairs that can be seen side by side first, among those of the same outcomes.
    const ordered = sorted(filmed, (one) => 2 * one.kind + (one.video_a === null || one.video_b === null), false);
    if (!ordered.length) return null;
    const list = el("div", { class: "duos" }), more = el("p", { class: "more" });
    let next = 0;
    function add() {
      list.append(...ordered.slice(next, next + FIRST_FILMS).map(duo));
      next += FIRST_FILMS;
      more.replaceChildren(...(next < ordered.length
        ? [el("button", { type: "button", onclick: add }, `Show more of ${count(ordered.length)}`)] : []));
    }
    add();
    return el("section", {}, el("h2", {}, "Videos side by side"), playback(), list, more);
  }

  // ---- Success against latency, or against training step ----

  const HUES = 6; // of the page's colours, one a curve
  const LATENCY = { key: "latency", class: "latency", title: "Success against latency", head: "Latency, steps", group: "Policy", unit: "latency, steps",
    point: (value) => plural(value, "step"), zero: true,
    about: "Latency: simulator steps during one inference; the policy executes its previous chunk meanwhile." };
  const STEPS = { key: "step", class: "latency steps", title: "Success against training step", head: "Training step", group: "Training", unit: "training step",
    point: (value) => `step ${count(value)}`, zero: false,
    about: "Each point is a checkpoint of a training; runs of the same checkpoint with several seeds are pooled." };

  /** Round numbers that the axis names: at most eight of them. */
  function ticks(least, most) {
    const sizes = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
    const every = sizes.find((size) => (most - least) / size <= 7) ?? sizes[sizes.length - 1];
    const first = Math.ceil(least / every);
    return Array.from({ length: Math.floor(most / every) - first + 1 }, (_, n) => (first + n) * every);
  }

  const pointText = (what, name, one) => `${name}, ${what.point(one[what.key])}: ${percent(one.rate)} ` +
    `${interval(one.interval)} ${one.successes}/${one.episodes}`;

  function curve(what, one, place, across) {
    // Curves beside each other by a hair, so that their whiskers do not cover each other.
    const x = (point) => `${(across(point[what.key]) + 0.5 * (place % 3)).toFixed(3)}%`;
    const down = (rate) => `${(100 - 100 * rate).toFixed(3)}%`;
    const drawn = one.points.filter((point) => point.rate !== null);
    return svg("g", { class: `curve hue${place % HUES}` },
      ...drawn.slice(1).map((point, n) => svg("line", { class: "joined", x1: x(drawn[n]), x2: x(point),
        y1: down(drawn[n].rate), y2: down(point.rate) })),
      ...drawn.map((point) => svg("line", { class: "whisker", x1: x(point), x2: x(point),
        y1: down(point.interval[0]), y2: down(point.interval[1]) })),
      ...drawn.map((point) => svg("circle", { cx: x(point), cy: down(point.rate), r: 4.5 },
        svg("title", {}, pointText(what, one.name, point)))));
  }

  function curveTable(what, curves) {
    const rows = curves.flatMap((one) => one.points.map((point) => el("tr", {},
      curves.length > 1 ? el("td", {}, one.name) : null, el("td", { class: "number" }, count(point[what.key])),
      el("td", { class: "number percent" }, percent(point.rate)), el("td", { class: "number" }, interval(point.interval)),
      el("td", { class: "number" }, ratio([point.successes, point.episodes])))));
    const names = [...(curves.length > 1 ? [what.group] : []), what.head, "Success", "95% interval", "Episodes"];
    return el("table", { class: "latencies" },
      el("thead", {}, el("tr", {}, ...names.map((name) =>
        el("th", { scope: "col", class: name === what.group ? "" : "number" }, name)))), el("tbody", {}, ...rows));
  }

  function leftOut(curves) {
    const missing = curves.reduce((sum, one) => sum + one.left_out, 0);
    return missing ? ` All points use the same episodes: ${plural(missing, "episode")} that not all runs of a curve completed ` +
      "are left out." : "";
  }

  function curvesOf(what, curves) {
    if (!curves.length) return null;
    const places = curves.flatMap((one) => one.points.map((point) => point[what.key]));
    const least = what.zero ? 0 : Math.min(...places), most = Math.max(...places);
    const across = (value) => 4 + (92 * (value - least)) / (most - least);
    const rates = [0, 0.25, 0.5, 0.75, 1];
    const chart = svg("svg", { class: "chart", role: "img", "aria-label": what.title },
      ...rates.map((rate) => svg("line", { class: "grid", x1: 0, x2: "100%", y1: `${100 - 100 * rate}%`, y2: `${100 - 100 * rate}%` })),
      ...curves.map((one, place) => curve(what, one, place, across)));
    const upright = el("div", { class: "upright" }, ...[...rates].reverse().map((rate) => el("span", {}, `${100 * rate}%`)));
    const below = svg("svg", { class: "below", "aria-hidden": "true" }, ...ticks(least, most).map((value) =>
      svg("text", { x: `${across(value)}%`, y: "1em", "text-anchor": "middle" }, count(value))));
    const legend = curves.length < 2 ? null : el("p", { class: "legend" }, ...curves.map((one, place) =>
      el("span", { class: `curve hue${place % HUES}` }, one.name)));
    return el("section", { class: what.class }, el("h2", {}, what.title),
      el("p", { class: "quiet" }, `${what.about} Dot: success rate; bar: 95% interval.` + leftOut(curves)), legend,
      el("div", { class: "plane" }, upright, chart, below, el("span", { class: "quiet unit" }, what.unit)),
      curveTable(what, curves));
  }

  // ---- Overview of several runs ----

  function overview(rows) {
    if (rows === null) return null;
    const columns = [
      { name: "Run", key: (row) => row.name, cell: (row) => (row.report === null ? row.name : el("a", { href: row.report }, row.name)) },
      ...(rows.some((row) => row.step !== null) ? [{ name: "Training step", class: "number", key: (row) => row.step,
        cell: (row) => (row.step === null ? "–" : count(row.step)) }] : []),
      { name: "Success", class: "number percent", key: (row) => row.rate, cell: (row) => percent(row.rate) },
      { name: "95% interval", class: "number secondary", key: (row) => row.interval && row.interval[0], cell: (row) => interval(row.interval) },
      { name: "k/n", class: "number", key: (row) => row.counts[0], cell: (row) => ratio(row.counts) },
      { name: "Difference from the first", class: "number", key: (row) => row.change && row.change.difference,
        cell: (row) => (row.change === null ? "–" : `${difference(row.change.difference)} ${range(row.change.interval)}`) },
      { name: "p (Holm)", class: "number secondary", key: (row) => row.change && row.change.p_holm,
        cell: (row) => (row.change === null ? "–" : row.change.p_holm_text) },
    ];
    const order = { column: null, descending: false };
    const body = el("tbody");
    const draw = () => body.replaceChildren(...(order.column === null ? rows
      : sorted(rows, order.column.key, order.descending)).map((row) => el("tr", { class: row.differs ? "differs" : "" },
      ...columns.map((column) => el("td", { class: column.class ?? "", "data-label": column.name }, column.cell(row))))));
    draw();
    return el("section", { class: "overview-of-runs" }, el("h2", {}, "Overview"),
      el("p", { class: "quiet" }, "Success: of all episodes of a run. Difference: in points, of the episodes that both runs completed."),
      el("table", { class: "rates" }, sortableHead(columns, order, draw), body));
  }

  // ---- The page ----

  function comparison(section) {
    const all = page.paired ? pairsOf(section) : null;
    const table = all === null ? null : pairTable(all);
    return el("article", { class: "comparison" },
      page.comparisons.length > 1 ? el("h2", {}, `${section.b.name} against ${page.a.name}`) : null,
      ...section.warnings.map((text) => notice(text)),
      el("dl", { class: "sides" }, ...side("A", page.a), ...side("B", section.b)), policies(section),
      headline(section), drops(section.robustness), tasks(section, table && table.showTask),
      all && films(all), table && table.node);
  }

  startTheme();
  byId("title").textContent = page.title;
  showWayBack(page);
  byId("about").textContent = (page.paired ? "Compared episode by episode: the same task, seed and init state."
    : "Compared as separate samples of each task: there are no pairs.") +
    (page.corrected === null ? "" : ` In each section B is the run it names. ${page.corrected}.`);
  byId("comparisons").append(...[overview(page.overview), curvesOf(STEPS, page.steps), curvesOf(LATENCY, page.curves),
    ...page.comparisons.map(comparison)].filter(Boolean));
})();
