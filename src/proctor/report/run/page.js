(() => {
  const {
    byId, el, svg, pair, copyable, fixed, count, percent, interval, plural, seconds, sorted, sortableHead,
    startTheme, showProgress, notice, follow, playback, download,
  } = parts;
  const { labelField, startLabels } = labels;
  const { plots, showFailures } = failures;
  const { showRobustness } = robustness;
  const run = JSON.parse(document.getElementById("run").textContent);
  const OUTCOMES = ["failure", "diverged", "error", "success", "ended"];
  const KINDS = {
    open: "opening simulators",
    simulate: "simulating",
    render: "rendering",
    wait: "waiting for the policy",
    other: "the rest of episodes (scripted policies act here)",
    idle: "between episodes, and failed attempts",
  };
  const FIRST_ROWS = 20, FIRST_FILMS = 12, FIRST_WARNINGS = 5;

  // ---- Episodes: from columns to records ----

  const columns = Object.entries(run.episodes);
  const episodes = run.episodes.task.map((_, place) => {
    const episode = Object.fromEntries(columns.map(([name, values]) => [name, values[place]]));
    episode.task = run.tasks[episode.task];
    episode.error = episode.error === null ? null : run.errors[episode.error];
    episode.place = place;
    episode.labels ??= [];
    return episode;
  });
  const name = (episode) => `${episode.task.name} episode ${episode.index}`;
  const singleCommand = (episode) =>
    `${run.episode_command[0]} ${episode.task.flags} ${run.episode_command[1]}${episode.index}`;
  const searched = (episode) => (episode.text ??= [
    episode.task.group, episode.task.name, episode.index, episode.seed, episode.digest, episode.error,
    ...episode.labels,
  ].join(" ").toLowerCase());

  // ---- The chart of a rate: posterior, interval, point ----

  const starts = (tally) => (tally.starts === tally.n ? "" : ` (${plural(tally.starts, "start")})`);
  const across = (rate) => `${(100 * rate).toFixed(3)}%`;

  function violin(k, n) {
    // The density of Beta(1 + k, 1 + n - k) over its height at the mode, k / n.
    const log = (weight, x) => (weight === 0 ? 0 : weight * Math.log(x));
    const peak = log(k, k / n) + log(n - k, 1 - k / n);
    const spread = Math.sqrt(((k + 1) * (n - k + 1)) / ((n + 2) ** 2 * (n + 3)));
    const low = Math.max(0, k / n - 6 * spread), high = Math.min(1, k / n + 6 * spread);
    const above = [], below = [];
    for (let i = 0; i <= 60; i += 1) {
      const x = low + ((high - low) * i) / 60;
      const height = 48 * Math.exp(log(k, x) + log(n - k, 1 - x) - peak);
      above.push(`${(1000 * x).toFixed(1)} ${(50 - height).toFixed(1)}`);
      below.unshift(`${(1000 * x).toFixed(1)} ${(50 + height).toFixed(1)}`);
    }
    return svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", width: "100%", height: "100%" },
      svg("path", { class: "violin", d: `M${above.join("L")}L${below.join("L")}Z` }));
  }

  function rateChart(tally, reference) {
    const upright = (rate, kind) =>
      svg("line", { class: kind, x1: across(rate), x2: across(rate), y1: 0, y2: "100%" });
    const chart = svg("svg", { class: "chart", role: "img",
      "aria-label": `${percent(tally.rate)} ${interval(tally.interval)}` },
      ...[0, 0.25, 0.5, 0.75, 1].map((rate) => upright(rate, "grid")));
    if (reference !== null) chart.append(upright(reference, "overall"));
    if (tally.rate === null) return chart;
    const [low, high] = tally.interval.map(across);
    chart.append(violin(tally.rate * tally.worth, tally.worth),
      svg("line", { class: "whisker", x1: low, x2: high, y1: "50%", y2: "50%" }),
      svg("circle", { cx: across(tally.rate), cy: "50%", r: 4.5 }));
    return chart;
  }
  const axis = () => el("div", { class: "axis" },
    ...["0%", "25%", "50%", "75%", "100%"].map((label) => el("span", {}, label)));

  // ---- Header and headline ----

  function showHead() {
    byId("title").textContent = run.title;
    byId("about").textContent = [run.started, run.sessions > 1 ? `${run.sessions} sessions` : null,
      plural(run.tasks.length, "task"), `fingerprint ${run.fingerprint}`].filter(Boolean).join(" · ");
    const identity = [["Checkpoint", run.checkpoint], ["Folder", run.place]].filter(([, value]) => value !== null);
    byId("about").after(el("dl", { class: "identity" },
      ...identity.flatMap(([label, value]) => [el("dt", {}, label), el("dd", {}, value)])));
    showProgress(run, run.recorded, run.unit);
    const notices = [];
    if (run.status === "stopped early") {
      const planned = run.planned === null ? "" : ` of ${count(run.planned)} planned`;
      notices.push(`This run stopped itself early, after ${count(run.recorded)}${planned} episodes: ` +
        `${run.stopped}. Its intervals allow for that.`);
    }
    if (run.status === "incomplete") byId("notices").append(notice(whyIncomplete(), run.resume));
    if (run.damaged.length) {
      const lines = run.damaged.slice(0, 20).join(", ") + (run.damaged.length > 20 ? " …" : "");
      notices.push(`${plural(run.damaged.length, "line")} of episodes.jsonl could not be read and ` +
        `${run.damaged.length === 1 ? "is" : "are"} left out: number ${lines}.`);
    }
    notices.push(...run.warnings.map((text) => `${text[0].toUpperCase()}${text.slice(1)}.`));
    if (run.status === "running" || run.status === "incomplete") {
      byId("rate").append(el("div", { class: "quiet" }, "So far: successes end first, so this rate is mostly too high."));
    }
    byId("notices").append(...notices.map((text) => notice(text)));
  }

  function whyIncomplete() {
    // Only a served page knows that no process works on the run.
    const reason = run.interrupted !== null ? ` What stopped it: ${run.interrupted}.`
      : run.live ? " Its process ended without a word: it was killed, ran out of memory, or the machine went down." : "";
    return `This run is not complete: ${count(run.recorded)} of ${count(run.planned)} ${run.unit} are finished.${reason} To go on:`;
  }

  function showHeadline() {
    const all = run.overall;
    byId("rate").append(
      el("div", { class: "big" }, percent(all.rate)),
      el("div", { class: "interval" }, all.rate === null ? (all.n ? "the environment defines no success: rewards only" : "no episode has ended with a result") :
        `${interval(all.interval)} `, el("span", { class: "quiet" }, all.rate === null ? "" : `95% interval (${run.interval}), n=${count(all.n)}${starts(all)}`)),
      el("div", { class: "quiet" }, `${run.history[0].toUpperCase()}${run.history.slice(1)}.`));
    byId("posterior").append(rateChart(all, null), axis());
    if (run.headline !== "success") byId("rate").append(el("div", { class: "quiet" }, run.headline));
    const figures = [all.n && all.rate === null ? ["Ended", count(all.n)] : ["Succeeded", `${count(all.k)} of ${count(all.n)}`]];
    if (all.suite_interval) figures.push(["Mean over tasks like these", interval(all.suite_interval)]);
    if (all.at_end !== null) figures.push(["Solved at the end", `${percent(all.at_end)} ${interval(all.at_end_interval)}`]);
    figures.push(...run.repeats.map((one) => [`pass^${one.k}: all of ${one.k} attempts`, `${percent(one.rate)} ${interval(one.interval)}, ${plural(one.starts, "start")}`]));
    if (all.diverged) figures.push(["Simulation diverged, failed", count(all.diverged)]);
    figures.push(["Errors, not in the rate", count(all.errors)]);
    if (run.judge) {
      const { k, n, agreement, compared } = run.judge;
      figures.push(["Succeeded by the judge", `${count(k)} of ${count(n)}`]);
      if (compared) figures.push(["Judge agrees with the simulator", `${percent(agreement)} ${interval(run.judge.interval)} n=${count(compared)}`],
        ["Judge: false – missed successes", `${count(run.judge.false)} – ${count(run.judge.missed)}`]);
    }
    if (all.bounds) figures.push(["If those all failed – succeeded", all.bounds.map(percent).join(" – ")]);
    figures.push(["Mean reward", fixed(all.reward, 1)], ...run.scores.map(({ name, label }) => [`Mean ${label}`, fixed(all.scores[name] ?? null, 3)]),
      ["Mean episode length, steps", fixed(all.length, 0)], ["Mean steps to success", fixed(all.steps, 0)],
      ["Time worked", seconds(run.time.total)]);
    byId("figures").append(...figures.map(([label, value]) => pair(label, value)));
  }

  // ---- Results by group and task ----

  const group = (task) => (task.group === task.name ? null : el("span", { class: "group" }, task.group));

  const ratio = (row) => `${row.k === null ? "" : `${row.k}/`}${row.n}${starts(row)}` +
    (row.planned && row.n + row.errors < row.planned ? ` of ${count(row.planned)}` : "");

  function rateColumns(nameCell) {
    const columns = [
      { name: "Task", key: (row) => row.name, cell: nameCell },
      { name: "", class: "plot", head: axis, cell: (row) => rateChart(row, run.overall.rate) },
      { name: "Success", class: "number percent", key: (row) => row.rate, cell: (row) => percent(row.rate) },
      { name: "95% interval", class: "number secondary", key: (row) => row.interval && row.interval[0], cell: (row) => interval(row.interval) },
      { name: "k/n", class: "number", key: (row) => row.k, cell: ratio },
      { name: "Reward", class: "number secondary", key: (row) => row.reward, cell: (row) => fixed(row.reward, 1) },
      ...run.scores.map(({ name, label }) => ({ name: label[0].toUpperCase() + label.slice(1), class: "number secondary",
        key: (row) => row.scores[name] ?? null, cell: (row) => fixed(row.scores[name] ?? null, 3) })),
      { name: "Episode steps", class: "number secondary", key: (row) => row.length, cell: (row) => fixed(row.length, 0) },
      { name: "Steps to success", class: "number secondary", key: (row) => row.steps, cell: (row) => fixed(row.steps, 0) },
    ];
    for (const [name, key] of [["Diverged", "diverged"], ["Errors", "errors"]]) {
      if (run.overall[key]) columns.push({ name, class: "number secondary", descending: true, key: (row) => row[key],
        cell: (row) => (row[key] ? String(row[key]) : "–") });
    }
    return columns;
  }

  function rateTable(columns, parts) {
    const order = { column: columns[2], descending: false };
    const bodies = parts.map(() => el("tbody"));
    const row = (tally) =>
      el("tr", {}, ...columns.map((column) =>
        el("td", { class: column.class ?? "", "data-label": column.name }, column.cell(tally))));
    const draw = () => parts.forEach((tallies, place) =>
      bodies[place].replaceChildren(...sorted(tallies, order.column.key, order.descending).map(row)));
    draw();
    return el("table", { class: "rates" }, sortableHead(columns, order, draw), ...bodies);
  }

  function showResults() {
    if (!run.tasks.length) byId("results").hidden = true;
    const nameCell = (row) => (row.flags === undefined ? el("strong", {}, `${row.name}, all`) : el("div", {},
      el("button", { type: "button", class: "link", title: row.instruction || "Show its episodes",
        onclick: () => showTask(row) }, row.name), group(row)));
    const parts = [run.groups, run.tasks].filter((tallies) => tallies.length);
    byId("tasks").append(rateTable(rateColumns(nameCell), parts));
  }

  // ---- Starts in the training data ----

  function showContamination() {
    const found = run.contamination;
    if (!found) return;
    byId("contamination").hidden = false;
    byId("contamination-text").textContent = `${found.text[0].toUpperCase()}${found.text.slice(1)}.`;
    if (!found.nearest) return;
    const { edges, seen, unseen } = found.nearest.histogram;
    const tallest = Math.max(1, ...seen.map((n, place) => n + unseen[place]));
    const width = 100 / seen.length;
    const bar = (kind, n, place, below) => svg("rect", { class: kind, width: `${width - 0.5}%`, x: `${place * width}%`,
      height: `${(100 * n) / tallest}%`, y: `${100 - (100 * (n + below)) / tallest}%` });
    const chart = svg("svg", { class: "histogram", role: "img", "aria-label":
      `Distances to the nearest training start: ${seen.map((n, place) => `${plural(n + unseen[place], "episode")} up to ${edges[place + 1].toPrecision(2)}`).join(", ")}` },
      ...seen.flatMap((n, place) => [bar("wait", n, place, 0), bar("simulate", unseen[place], place, n)]));
    const ends = [edges[0], edges[edges.length - 1]].map((edge) => el("span", {}, String(Number(edge.toPrecision(2)))));
    byId("nearest").append(chart, el("div", { class: "axis" }, ...ends), el("figcaption", {},
      "Episodes by the distance of their start to the nearest training start of the task: the largest difference of any of " +
      `its numbers (logarithmic; median ${Number(found.nearest.median.toPrecision(3))}).`, el("ul", { class: "legend" },
        el("li", {}, el("span", { class: "swatch wait" }), "in the training data"),
        el("li", {}, el("span", { class: "swatch simulate" }), "unseen"))));
  }

  // ---- Videos ----

  const place = (path) => `${run.folder}/${path}`.split("/").map(encodeURIComponent).join("/");

  function video(episode) {
    return el("video", { src: place(episode.video), controls: "", preload: "metadata", playsinline: "",
      "aria-label": name(episode) });
  }

  // A video with what happens in it: actions, rewards, and what a person says about it.
  function watched(episode) {
    const film = video(episode);
    return [film, plots(run, episode, film), labelField(episode)];
  }

  function warned(warnings) {
    const shown = warnings.slice(0, FIRST_WARNINGS).map((text) => el("p", { class: "notice" }, text));
    const left = warnings.length - shown.length;
    return left > 0 ? [...shown, el("p", { class: "quiet" }, `${count(left)} more in videos/warnings.json`)] : shown;
  }

  function showFilms() {
    const filmed = sorted(episodes.filter((episode) => episode.video), (episode) => episode.outcome, false);
    byId("films").hidden = !filmed.length && !run.film_warnings.length;
    byId("film-warnings").append(...warned(run.film_warnings));
    if (filmed.length) byId("playback").append(playback());
    let next = 0;
    function add() {
      byId("film-list").append(...filmed.slice(next, next + FIRST_FILMS).map((episode) => el("figure", {},
        el("figcaption", {}, outcome(episode), ` ${name(episode)}`), ...watched(episode))));
      next += FIRST_FILMS;
      byId("film-more").replaceChildren(...(next < filmed.length
        ? [el("button", { type: "button", onclick: add }, `Show more of ${count(filmed.length)}`)] : []));
    }
    if (filmed.length) add();
  }

  // ---- All episodes ----

  const outcome = (episode) =>
    el("span", { class: `outcome ${OUTCOMES[episode.outcome]}` }, OUTCOMES[episode.outcome]);
  const EPISODE_COLUMNS = [
    { name: "Outcome", key: (e) => e.outcome, cell: outcome },
    { name: "Task", key: (e) => e.task.name, cell: (e) => el("div", {}, e.task.name, group(e.task)) },
    { name: "Episode", class: "number", key: (e) => e.index, cell: (e) => String(e.index) },
    { name: "Seed", class: "number secondary", key: (e) => e.seed, cell: (e) => String(e.seed) },
    { name: "Steps", class: "number", key: (e) => e.steps, cell: (e) => fixed(e.steps, 0) },
    { name: "Reward", class: "number secondary", key: (e) => e.reward, cell: (e) => fixed(e.reward, 1) },
    { name: "Time", class: "number secondary", key: (e) => e.duration, cell: (e) => seconds(e.duration) },
    { name: "Worker", class: "number secondary", key: (e) => e.worker, cell: (e) => String(e.worker) },
    { name: "Attempts", class: "number secondary", descending: true, key: (e) => e.attempts, cell: (e) => String(e.attempts) },
  ];
  const view = { order: { column: EPISODE_COLUMNS[0], descending: false }, outcome: null, filmed: false, only: null, limit: FIRST_ROWS };
  const open = new Set();
  const body = el("tbody");

  function details(episode) {
    const facts = [["Seed", String(episode.seed)], ["Worker", String(episode.worker)],
      ["Tries", String(episode.attempts)], ["Started at", seconds(episode.start)]];
    if (episode.task.instruction) facts.unshift(["Instruction", episode.task.instruction]);
    if (episode.init_state !== null) facts.unshift(["Initial state", String(episode.init_state)]);
    if (OUTCOMES[episode.outcome] !== "error") {
      facts.push(["Reward", fixed(episode.reward, 3)], ["Best reward", fixed(episode.best, 3)],
        ["Solved at the end", episode.at_end ? "yes" : "no"], ["Steps out of the action range", count(episode.clipped)],
        ["Images", count(episode.renders)], ["Open", seconds(episode.open)], ["Simulate", seconds(episode.simulate)],
        ["Render", seconds(episode.render)], ["Wait", seconds(episode.wait)]);
    }
    if (episode.digest !== null) facts.push(["Digest", el("code", {}, episode.digest)]);
    return el("td", { colspan: EPISODE_COLUMNS.length },
      ...(episode.video === null ? [labelField(episode)] : watched(episode)),
      el("dl", {}, ...facts.map(([label, value]) => pair(label, value))),
      episode.error === null ? null : el("pre", { class: "text" }, episode.error),
      copyable(singleCommand(episode)));
  }

  function episodeRow(episode) {
    const toggle = el("button", { type: "button", class: "toggle", "aria-expanded": "false",
      "aria-label": `Details of ${name(episode)}` });
    const row = el("tr", { class: "row" }, ...EPISODE_COLUMNS.map((column, place) =>
      el("td", { class: column.class ?? "" }, place ? null : toggle, column.cell(episode))));
    function expand(opened) {
      if (opened) open.add(episode); else open.delete(episode);
      toggle.setAttribute("aria-expanded", String(opened));
      if (opened) row.after(el("tr", { class: "detail" }, details(episode)));
      else row.nextSibling.remove();
    }
    row.addEventListener("click", () => {
      if (getSelection().isCollapsed) expand(!open.has(episode));
    });
    return { row, expand };
  }

  function chosenEpisodes() {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    return episodes.filter((episode) =>
      (view.outcome === null || episode.outcome === view.outcome) && (!view.filmed || episode.video !== null) &&
      (view.only === null || view.only.has(episode)) &&
      (!words.length || words.every((word) => searched(episode).includes(word))));
  }

  function drawEpisodes() {
    const chosen = sorted(chosenEpisodes(), view.order.column.key, view.order.descending);
    const drawn = chosen.slice(0, view.limit);
    body.replaceChildren();
    for (const episode of drawn) {
      const { row, expand } = episodeRow(episode);
      body.append(row);
      if (open.has(episode)) expand(true);
    }
    byId("shown").textContent = `${count(chosen.length)} of ${count(episodes.length)}`;
    const more = (label, limit) => el("button", { type: "button", onclick: () => redraw(limit) }, label);
    byId("more").replaceChildren(...(chosen.length > drawn.length
      ? [more("Show 100 more", view.limit + 100), more(`Show all ${count(chosen.length)}`, Infinity)] : []));
  }

  function redraw(limit = FIRST_ROWS) {
    view.limit = limit;
    drawEpisodes();
  }

  function showTask(task) {
    byId("search").value = task.name;
    chooseFilmed(false);
    chooseOutcome(null);
    byId("all").scrollIntoView();
  }

  function searchFor(text) {
    byId("search").value = text;
    redraw();
  }

  function chooseOutcome(chosen) {
    view.outcome = chosen;
    for (const button of byId("outcomes").children) {
      button.setAttribute("aria-pressed", String(button.dataset.kind === String(chosen)));
    }
    redraw();
  }

  // Show chosen episodes only; null shows all again. One episode is opened.
  function chooseOnly(chosen, label) {
    view.only = chosen && new Set(chosen);
    byId("only").hidden = chosen === null;
    byId("only").textContent = `${label} ✕`;
    if (chosen === null) return redraw();
    byId("search").value = "";
    if (chosen.length === 1) open.add(chosen[0]);
    chooseFilmed(false);
    chooseOutcome(null);
    byId("all").scrollIntoView();
  }

  function chooseFilmed(only) {
    view.filmed = only;
    byId("filmed").setAttribute("aria-pressed", String(only));
    redraw();
  }

  // The names are those of `proctor report --csv`; of the rest, see episodes.jsonl.
  const CSV = {
    suite: (e) => e.task.group, task: (e) => e.task.name, task_id: (e) => e.task.id, episode_index: (e) => e.index,
    seed: (e) => e.seed, init_state: (e) => e.init_state, outcome: (e) => OUTCOMES[e.outcome],
    success_at_end: (e) => e.at_end, steps: (e) => e.steps, sum_reward: (e) => e.reward, max_reward: (e) => e.best,
    worker: (e) => e.worker, attempts: (e) => e.attempts, renders: (e) => e.renders, clipped_steps: (e) => e.clipped,
    open_s: (e) => e.open, sim_s: (e) => e.simulate, render_s: (e) => e.render, wait_s: (e) => e.wait,
    digest: (e) => e.digest, error: (e) => e.error, video: (e) => e.video,
    labels: (e) => e.labels.join("; "),
  };
  function saveCsv() {
    const names = Object.keys(CSV);
    download("episodes.csv", [names, ...chosenEpisodes().map((e) => names.map((name) => CSV[name](e)))]);
  }

  function showEpisodes() {
    const totals = OUTCOMES.map((_, kind) => episodes.filter((episode) => episode.outcome === kind).length);
    const labels = ["Failures", "Diverged", "Errors", "Successes"];
    const kinds = labels.map((_, kind) => kind).filter((kind) => OUTCOMES[kind] !== "diverged" || totals[kind]);
    byId("outcomes").append(...[null, ...kinds].map((kind) => el("button", { type: "button",
      "data-kind": String(kind), onclick: () => chooseOutcome(kind) },
      kind === null ? "All" : `${labels[kind]} ${count(totals[kind])}`)));
    const filmed = episodes.filter((episode) => episode.video !== null).length;
    byId("filmed").hidden = !filmed;
    byId("filmed").textContent = `With video ${count(filmed)}`;
    byId("filmed").addEventListener("click", () => chooseFilmed(!view.filmed));
    byId("only").addEventListener("click", () => chooseOnly(null, ""));
    byId("csv").hidden = !episodes.length;
    byId("csv").addEventListener("click", saveCsv);
    byId("search").addEventListener("input", () => redraw());
    byId("episodes").append(el("table", { class: "log" },
      sortableHead(EPISODE_COLUMNS, view.order, () => redraw(view.limit)), body));
    chooseOutcome(null);
  }

  // ---- Time ----

  function showLimit() {
    const { limit, mean_batch: meanBatch } = run.time;
    if (!limit) return;
    const busy = `the workers simulated or rendered ${percent(limit.workers)} of their time` +
      (meanBatch ? `, the policy worked ${percent(limit.policy)} of the time` : "");
    byId("limit").append(el("strong", {}, `${percent(limit.fraction)} of the limit`), ` – ${busy}. `,
      el("span", { class: "quiet" }, meanBatch
        ? "The busier of the two sets the limit: a run with this many workers cannot be faster."
        : "A run with this many workers cannot be faster."));
  }

  function showSpent() {
    const total = Object.values(run.time.spent).reduce((sum, value) => sum + value, 0);
    const spent = Object.entries(run.time.spent).filter(([, value]) => value > 0.0005 * total);
    byId("time-about").textContent = `${plural(run.time.workers.length, "worker")}, ` +
      `${seconds(run.time.total)} from the first episode to the last; ${seconds(total)} of worker time in all.` +
      (run.time.mean_batch ? ` The policy worked ${seconds(run.time.infer)}, for ${fixed(run.time.mean_batch, 1)} ` +
        "episodes at a time on average." : "") +
      (run.time.latency ? ` A call of it took ${fixed(run.time.latency.p50_ms, 1)} ms at the median, ` +
        `${fixed(run.time.latency.p95_ms, 1)} ms at 95%, ${fixed(run.time.latency.p99_ms, 1)} ms at 99%.` : "");
    const bars = spent.map(([kind, value]) => {
      const bar = el("div", { class: kind, title: `${KINDS[kind]} ${seconds(value)}` });
      bar.style.flexGrow = value / total;
      return bar;
    });
    byId("spent").append(el("div", { class: "stack" }, ...bars), el("ul", { class: "legend" },
      ...spent.map(([kind, value]) => el("li", {}, el("span", { class: `swatch ${kind}` }), `${KINDS[kind]} `,
        el("span", { class: "quiet" }, `${seconds(value)}, ${percent(value / total)}`)))));
  }

  function segments(episode) {
    if (episode.duration === null) return [];
    const known = ["open", "simulate", "render", "wait"].map((kind) => [kind, episode[kind] ?? 0]);
    const rest = episode.duration - known.reduce((sum, [, value]) => sum + value, 0);
    return [...known, ["other", Math.max(0, rest)]];
  }

  function showTimeline() {
    const { workers, total, breaks } = run.time;
    const lane = new Map(workers.map((worker, place) => [worker, place]));
    const height = Math.max(8, Math.min(22, 320 / workers.length));
    const unit = total ? 10000 / total : 0;
    const errors = episodes.filter((episode) => OUTCOMES[episode.outcome] === "error");
    const shapes = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, []]));
    for (const episode of episodes) {
      let x = episode.start * unit;
      for (const [kind, value] of segments(episode)) {
        const y = lane.get(episode.worker) * height + 1, width = value * unit;
        if (width > 0) shapes[kind].push(`M${x.toFixed(1)} ${y}h${width.toFixed(1)}v${height - 2}h${(-width).toFixed(1)}z`);
        x += width;
      }
    }
    const drawing = svg("svg", { viewBox: `0 0 10000 ${workers.length * height}`, preserveAspectRatio: "none",
      height: workers.length * height, role: "img", "aria-label": "Timeline of the workers" },
      ...workers.map((_, place) => svg("rect", { class: "lane", x: 0, y: place * height + 1, width: 10000, height: height - 2 })),
      ...Object.entries(shapes).map(([kind, parts]) => svg("path", { class: kind, d: parts.join("") })),
      ...errors.map((episode) => svg("line", { class: "broke", x1: episode.start * unit, x2: episode.start * unit,
        y1: lane.get(episode.worker) * height, y2: (lane.get(episode.worker) + 1) * height })),
      ...breaks.map((end) => svg("line", { class: "break", x1: end * unit, x2: end * unit, y1: 0, y2: workers.length * height })));
    drawing.addEventListener("pointermove", (event) => point(event, drawing, workers, total));
    byId("timeline").append(el("div", { class: "lanes" },
      el("div", { class: "names" }, ...workers.map((worker) => el("span", {}, String(worker)))), drawing,
      el("div", { class: "scale" }, ...[0, 0.25, 0.5, 0.75, 1].map((part) => el("span", {}, seconds(part * total))))));
    byId("pointed").textContent = "One lane for each worker. An episode's parts are drawn one after the other; " +
      `in reality they alternate.${errors.length ? " Thick upright line: an episode given up as an error." : ""}` +
      `${breaks.length ? " Dashed line: the run was stopped here and resumed." : ""} Point at an episode to read it.`;
  }

  function point(event, drawing, workers, total) {
    const box = drawing.getBoundingClientRect();
    const worker = workers[Math.floor(((event.clientY - box.top) / box.height) * workers.length)];
    const at = ((event.clientX - box.left) / box.width) * total;
    const hit = episodes.find((e) => e.worker === worker && e.start <= at && at <= e.start + e.duration);
    if (!hit) return;
    const parts = segments(hit).filter(([, value]) => value > 0).map(([kind, value]) => `${kind} ${seconds(value)}`);
    byId("pointed").textContent = `Worker ${worker}, ${name(hit)}: ${OUTCOMES[hit.outcome]}, ${parts.join(", ")}`;
  }

  function showTime() {
    byId("time").hidden = !episodes.length;
    if (!episodes.length) return;
    showLimit();
    showSpent();
    showTimeline();
  }

  // ---- How ----

  function showHow() {
    byId("command").append(copyable(run.command));
    byId("fingerprint").textContent = run.fingerprint;
    byId("files").append("Files: ", ...run.files.flatMap((file) => [el("a", { href: place(file) }, file), " "]));
    byId("facts").append(...Object.entries(run.facts).map(([heading, lines]) => el("details", {},
      el("summary", {}, heading), el("dl", { class: "facts" },
        ...lines.flatMap(([label, value]) => [el("dt", {}, label), el("dd", {}, value)])))));
  }

  // ---- Live: served while the run goes on ----

  const KEPT = "proctor-live-view";
  function keepView() {
    const kept = { search: byId("search").value, outcome: view.outcome, filmed: view.filmed };
    try { sessionStorage.setItem(KEPT, JSON.stringify(kept)); } catch { /* not kept */ }
  }
  function restoreView() {
    let kept = null;
    try { kept = JSON.parse(sessionStorage.getItem(KEPT)); } catch { /* nothing kept */ }
    if (!kept) return;
    byId("search").value = kept.search;
    chooseFilmed(kept.filmed);
    chooseOutcome(kept.outcome);
  }
  startTheme();
  showHead();
  showHeadline();
  startLabels(run, episodes, { searchFor, changed: (episode) => { episode.text = undefined; } });
  showResults();
  showContamination();
  showRobustness(run, episodes, { name, kinds: OUTCOMES, choose: chooseOnly, source: place });
  showFailures(run, episodes, { name, kinds: OUTCOMES, choose: chooseOnly });
  showFilms();
  showEpisodes();
  showTime();
  showHow();
  if (run.live) restoreView();
  follow(run, keepView);
})();
