(() => {
  const {
    byId, el, svg, pair, copyable, fixed, count, percent, interval, plural, seconds, startTheme,
    showProgress, notice, follow, playback,
  } = parts;
  const run = JSON.parse(document.getElementById("run").textContent);
  const { curves, evaluations } = run;
  const FIRST_FILMS = 12, LOG_FROM = 30;
  const place = (path) => `${run.folder}/${path}`.split("/").map(encodeURIComponent).join("/");
  const short = (value) => (value === null ? "n/a"
    : value !== 0 && (Math.abs(value) < 0.0001 || Math.abs(value) >= 1e6) ? value.toExponential(2).replace(/\.?0+e/, "e")
      : String(Number(value.toPrecision(4))));
  const online = run.online;
  const lastStep = Math.max(1, ...curves.step, ...run.held_out.step, ...evaluations.map((one) => one.step),
    ...(online?.step ?? []));
  const across = (step) => (100 * step) / lastStep;

  // ---- Scales ----

  function roundSteps(low, high, wanted) {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const by = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
    const ticks = [];
    for (let n = Math.ceil(low / by - 1e-9) || 0; n * by <= high * (1 + 1e-9); n += 1) ticks.push(n * by);
    return ticks;
  }

  function logTicks(low, high) {
    const ticks = [], decades = Math.log10(high / low), factors = decades < 3 ? [1, 3] : [1];
    const every = Math.ceil(decades / 5);
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += every) {
      ticks.push(...factors.map((factor) => factor * 10 ** power));
    }
    return ticks.filter((tick) => tick >= low && tick <= high);
  }

  function scaleOf(values, linear) {
    let low = Math.min(...values), high = Math.max(...values);
    if (!linear && low > 0 && high / low >= LOG_FROM) {
      const pad = (high / low) ** 0.05, ends = [low / pad, high * pad].map(Math.log);
      return { log: true, ticks: logTicks(low / pad, high * pad),
        at: (value) => (value > 0 ? 100 * (ends[1] - Math.log(value)) / (ends[1] - ends[0]) : 100) };
    }
    if (low >= 0) low = 0;
    if (high === low) high = low + (Math.abs(low) || 1);
    high += 0.05 * (high - low);
    return { log: false, ticks: roundSteps(low, high, 4), at: (value) => 100 * (high - value) / (high - low) };
  }

  // ---- A chart against the steps ----

  function frame(title, scale, text, ...layers) {
    const upright = svg("svg", { "aria-hidden": "true" }, ...scale.ticks.map((tick) =>
      svg("line", { class: "grid", x1: 0, x2: "100%", y1: `${scale.at(tick)}%`, y2: `${scale.at(tick)}%` })));
    const up = scale.ticks.map((tick) => el("span", { "data-at": scale.at(tick) }, text(tick)));
    const along = roundSteps(0, lastStep, innerWidth < 640 ? 3 : 6).map((tick) =>
      el("span", { "data-at": across(tick), class: across(tick) > 96 ? "end" : "" }, count(Math.round(tick))));
    for (const label of up) label.style.top = `${label.dataset.at}%`;
    for (const label of along) label.style.left = `${label.dataset.at}%`;
    return el("figure", { class: "curve" }, el("h3", {}, scale.log ? `${title} (logarithmic)` : title),
      el("div", { class: "frame" }, el("div", { class: "up" }, ...up),
        el("div", { class: "plain" }, upright, ...layers), el("div", { class: "along" }, ...along)));
  }

  function path(steps, values, scale) {
    const drawn = [];
    let open = false;
    values.forEach((value, n) => {
      if (value !== null) drawn.push(`${open ? "L" : "M"}${(10 * across(steps[n])).toFixed(2)} ${scale.at(value).toFixed(2)}`);
      if (value !== null && !open) drawn.push("h0.01");  // so that a single value is a dot
      open = value !== null;
    });
    return drawn.join("");
  }

  // series: { name, steps, values, dots }, each against its own steps.
  function chart(title, series, linear = false) {
    const shown = series.filter((one) => one.values.some((value) => value !== null));
    if (!shown.length) return null;
    const scale = scaleOf(shown.flatMap((one) => one.values.filter((value) => value !== null)), linear);
    const hue = (one) => `hue-${series.indexOf(one) % 5}`;
    const lines = svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": title },
      ...shown.map((one) => svg("path", { class: hue(one), d: path(one.steps, one.values, scale) })));
    const cursor = svg("line", { class: "cursor", y1: 0, y2: "100%", visibility: "hidden" });
    const top = svg("svg", {}, ...shown.filter((one) => one.dots).flatMap((one) => one.values.map((value, n) =>
      svg("circle", { class: `held ${hue(one)}`, cx: `${across(one.steps[n])}%`, cy: `${scale.at(value ?? 0)}%`, r: 3.5 }))), cursor);
    const read = shown.map(() => el("output"));
    const legend = el("ul", { class: "legend" }, ...shown.map((one, n) => el("li", { class: hue(one) },
      el("span", { class: "swatch" }), `${one.name} `, read[n])));
    const at = el("li", { class: "quiet" });
    legend.append(at);
    const say = (step) => {
      at.textContent = step === null ? "" : `at step ${count(step)}`;
      shown.forEach((one, n) => {
        const near = step === null ? one.steps.length - 1 : nearest(one.steps, step);
        read[n].textContent = short(one.values[near]);
      });
    };
    say(null);
    top.addEventListener("pointermove", (event) => {
      const box = top.getBoundingClientRect(), raw = lastStep * (event.clientX - box.left) / box.width;
      const step = shown[0].steps[nearest(shown[0].steps, raw)];
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, `${across(step)}%`);
      cursor.setAttribute("visibility", "visible");
      say(step);
    });
    top.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); say(null); });
    const figure = frame(title, scale, short, lines, top);
    figure.append(legend);
    return figure;
  }

  function nearest(steps, wanted) {
    let best = 0;
    steps.forEach((step, n) => { if (Math.abs(step - wanted) < Math.abs(steps[best] - wanted)) best = n; });
    return best;
  }

  // ---- Header and headline ----

  function showHead() {
    byId("title").textContent = run.title;
    byId("about").textContent = [run.started, run.sessions > 1 ? `${run.sessions} sessions` : null,
      `step ${count(run.step)}${run.planned === null ? "" : ` of ${count(run.planned)}`}`].filter(Boolean).join(" · ");
    byId("about").after(el("dl", { class: "identity" }, el("dt", {}, "Folder"), el("dd", {}, run.place)));
    showProgress(run, run.step, online ? "environment steps" : "steps");
    if (run.status === "incomplete") {
      byId("notices").append(notice(`This training is not complete: ${count(run.step)} of ${count(run.planned)} steps. ` +
        "If it was stopped, continue with:", run.resume));
    }
    byId("notices").append(...run.warnings.map((text) => notice(text)));
  }

  function showHeadline() {
    const best = evaluations.find((one) => one.step === run.best);
    const rated = evaluations.filter((one) => one.rate !== null).length;
    const loss = curves.loss.length ? curves.loss[curves.loss.length - 1] : null;
    const newest = (values) => [...(values ?? [])].reverse().find((value) => value !== null) ?? null;
    const curve = (title, name) => newest(online?.charts.find((one) => one.title === title)?.curves[name]);
    if (best) {
      byId("rate").append(el("div", { class: "big" }, percent(best.rate)), el("div", { class: "interval" },
        `${interval(best.interval)} `, el("span", { class: "quiet" }, `95% interval, n=${count(best.n)}`)));
      byId("rate-about").textContent = `The checkpoint of step ${count(best.step)}` + (rated > 1
        ? `, the best of ${count(rated)} on the same episodes. It was chosen by this rate, which is therefore biased upwards: ` +
          "evaluate it with another --seed before you quote it." : ".");
    } else if (online) {
      byId("rate").append(el("div", { class: "big" }, percent(curve("Episodes of the actors", "success rate"))),
        el("div", { class: "interval" }, el("span", { class: "quiet" }, "success of the exploring actors, in the latest log row")));
      byId("rate-about").textContent = "No checkpoint was evaluated. With --env_eval_freq=… the deterministic policy is " +
        "evaluated on other episodes while learning goes on.";
    } else {
      byId("rate").append(el("div", { class: "big" }, short(loss)), el("div", { class: "interval" },
        el("span", { class: "quiet" }, loss === null ? "no log rows yet" : "loss, in the latest log row")));
      byId("rate-about").textContent = (evaluations.length ? "No evaluation has a rate" : "No checkpoint was evaluated") +
        ": a loss does not tell how often a policy succeeds." +
        (evaluations.length ? "" : " With --env.type=… checkpoints are played while training goes on.");
    }
    if (online) {
      const figures = [["Environment steps", count(run.step)], ["Updates", count(online.updates)],
        ["Reward of an episode", short(curve("Reward of an episode", "reward"))],
        ["Intervention rate", percent(curve("Episodes of the actors", "intervention rate"))],
        ["Updates/s", short(curve("Speed", "updates/s"))]];
      byId("figures").append(...figures.map(([label, value]) => pair(label, value)));
      return;
    }
    const held = run.held_out.loss;
    const figures = [["Steps", count(run.step)], ["Loss", short(loss)]];
    if (held.length) figures.push(["Validation loss", short(held[held.length - 1])]);
    figures.push(["Samples/s", short(run.time.samples_per_s)],
      ["Waiting for data", run.time.total ? percent(run.time.waiting / run.time.total) : "n/a"],
      ["Memory", run.time.memory_gb === null ? "n/a" : `${fixed(run.time.memory_gb, 1)} GB`],
      ["Time of all steps", seconds(run.time.total)]);
    byId("figures").append(...figures.map(([label, value]) => pair(label, value)));
  }

  // ---- Success ----

  function successChart(rated) {
    const scale = { log: false, ticks: [0, 0.25, 0.5, 0.75, 1], at: (rate) => 4 + 92 * (1 - rate) };
    const [x, y] = [(one) => `${across(one.step)}%`, (rate) => `${scale.at(rate)}%`];
    const layer = svg("svg", { role: "img", "aria-label": "Success against steps" },
      ...rated.slice(1).map((one, n) => svg("line", { class: "joined", x1: x(rated[n]), y1: y(rated[n].rate), x2: x(one), y2: y(one.rate) })),
      ...rated.filter((one) => one.interval).map((one) => svg("line", { class: "whisker", x1: x(one), x2: x(one),
        y1: y(one.interval[0]), y2: y(one.interval[1]) })),
      ...rated.map((one) => svg("circle", { class: one.step === run.best ? "best" : "", cx: x(one), cy: y(one.rate), r: 4.5 },
        svg("title", {}, `step ${count(one.step)}: ${percent(one.rate)} ${interval(one.interval)}`))));
    return frame(online ? "Success against environment steps" : "Success against steps", scale, (rate) => `${100 * rate}%`, layer);
  }

  function evaluationRow(one) {
    const link = one.run === null ? count(one.step)
      : el("a", { href: place(one.run) + (run.live ? "/" : "/report.html") }, count(one.step));
    const names = [one.step === run.best ? "best" : null, ...one.kept.filter((name) => name !== "best")];
    return el("tr", {}, el("td", { class: "step" }, link), el("td", { class: "number" }, percent(one.rate)),
      el("td", { class: "number" }, interval(one.interval)), el("td", { class: "number" }, count(one.n)),
      el("td", {}, ...names.filter(Boolean).map((name) => el("span", { class: "tag" }, name)), one.problem ?? one.errors));
  }

  function showSuccess() {
    byId("success").hidden = !evaluations.length;
    if (!evaluations.length) return;
    const rated = evaluations.filter((one) => one.rate !== null);
    if (rated.length) byId("rates").append(successChart(rated));
    byId("evaluations").append(el("table", { class: "log" }, el("thead", {}, el("tr", {},
      ...[["Step", "step"], ["Success", "number"], ["95% interval", "number"], ["Episodes", "number"], ["Checkpoint", ""]]
        .map(([label, kind]) => el("th", { class: kind, scope: "col" }, label)))),
    el("tbody", {}, ...[...evaluations].reverse().map(evaluationRow))));
  }

  // ---- Videos ----

  function showFilms() {
    byId("films").hidden = run.films === null;
    if (run.films === null) return;
    byId("films-title").textContent = `Videos of step ${count(run.films.step)}`;
    byId("playback").append(playback());
    let next = 0;
    function add() {
      byId("film-list").append(...run.films.videos.slice(next, next + FIRST_FILMS).map((film) => el("figure", {},
        el("video", { src: place(film.video), controls: "", preload: "metadata", playsinline: "", "aria-label": film.name }),
        el("figcaption", {}, el("span", { class: `outcome ${film.outcome}` }, film.outcome), ` ${film.name}`))));
      next += FIRST_FILMS;
      byId("film-more").replaceChildren(...(next < run.films.videos.length
        ? [el("button", { type: "button", onclick: add }, `Show more of ${count(run.films.videos.length)}`)] : []));
    }
    add();
  }

  // ---- Curves ----

  // A loss with a single part equals that part: draw one curve.
  const sameAsLoss = (values) => values.every((value, n) => value === curves.loss[n]);

  function showOnline() {
    byId("learning").hidden = !online.step.length;
    byId("learning-about").textContent = "Against environment steps, means since the previous point" +
      (online.each > 1 ? `, of ${count(online.each)} lines of log.jsonl each` : "") + ". Point at a curve to read it.";
    byId("curves").append(...online.charts.map(({ title, curves: lines }) => chart(title,
      Object.entries(lines).map(([name, values]) => ({ name, steps: online.step, values })))).filter(Boolean));
  }

  function showLearning() {
    if (online) return showOnline();
    byId("learning").hidden = !curves.step.length;
    const own = (name, values) => ({ name, steps: curves.step, values });
    const loss = [own("loss", curves.loss), { name: "validation loss", steps: run.held_out.step, values: run.held_out.loss, dots: true },
      ...Object.entries(curves.parts).filter(([, values]) => !sameAsLoss(values)).map(([name, values]) => own(name, values))];
    byId("learning-about").textContent = "Means over the steps since the previous point" +
      (curves.each > 1 ? `, of ${count(curves.each)} lines of log.jsonl each` : "") + ". Point at a curve to read it.";
    byId("curves").append(...[chart("Loss", loss), chart("Learning rate", [own("learning rate", curves.lr)], true),
      chart("Gradient norm, before clipping", [own("gradient norm", curves.grad_norm)])].filter(Boolean));
  }

  // ---- Time ----

  function showTime() {
    const { total, waiting } = run.time;
    byId("time").hidden = !total;
    if (!total) return;
    byId("time-about").textContent = `${seconds(total)} for all steps, without the start-up time. ` +
      "Writing checkpoints and computing validation losses counts as training; evaluations run in parallel.";
    const spent = [["learn", "training", total - waiting], ["wait", "waiting for data", waiting]];
    byId("spent").append(el("div", { class: "stack" }, ...spent.map(([kind, name, value]) => {
      const bar = el("div", { class: kind, title: `${name} ${seconds(value)}` });
      bar.style.flexGrow = value / total;
      return bar;
    })), el("ul", { class: "legend" }, ...spent.map(([kind, name, value]) => el("li", {},
      el("span", { class: `swatch ${kind}` }), `${name} `,
      el("span", { class: "quiet" }, `${seconds(value)}, ${percent(value / total)}`)))));
    byId("speed").append(chart("Samples per second", [{ name: "samples/s", steps: curves.step, values: curves.samples_per_s }]) ?? "");
  }

  // ---- How ----

  function showHow() {
    byId("command").append(copyable(run.command));
    const kept = Object.keys(run.checkpoints).filter((name) => /^\d+$/.test(name));
    const named = ["best", "last"].filter((name) => name in run.checkpoints)
      .map((name) => `${name} is ${count(run.checkpoints[name])}`);
    byId("kept").textContent = [plural(kept.length, "checkpoint") + " in checkpoints/", ...named].join("; ") + ".";
    byId("files").append("Files: ", ...run.files.flatMap((file) => [el("a", { href: place(file) }, file), " "]));
    byId("facts").append(...Object.entries(run.facts).map(([heading, lines]) => el("details", {},
      el("summary", {}, heading), el("dl", { class: "facts" },
        ...lines.flatMap(([label, value]) => [el("dt", {}, label), el("dd", {}, value)])))));
  }

  startTheme();
  showHead();
  showHeadline();
  showSuccess();
  showFilms();
  showLearning();
  showTime();
  showHow();
  follow(run, () => {});
})();
