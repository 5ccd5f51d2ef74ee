const robustness = (() => {
  const { byId, el, svg, count, percent, points, plural, sideBySide } = parts;
  const FIRST_PAIRS = 6;

  const dropText = (drop) => (drop.drop === null ? "n/a" : points(drop.drop));
  const range = (ends) => (ends === null ? "n/a" : `[${ends.map(points).join(", ")}]`);
  const levelName = (level) => (level === null ? "no levels" : `level ${level}`);

  // ---- Drops by dimension and level. The colour repeats the number. ----

  function shade(drop) {
    if (drop.drop === null || Math.abs(drop.drop) < 0.005) return "shade0";
    const strength = Math.min(4, Math.ceil(Math.abs(drop.drop) / 0.15));
    return `${drop.drop > 0 ? "loss" : "gain"} shade${strength}`;
  }

  const scoreText = ({ label, clean, perturbed }) => `${label} ${clean.toFixed(3)} → ${perturbed.toFixed(3)}`;
  const scoreTitle = ({ change, interval }) => `change ${change.toFixed(3)}` +
    (interval === null ? "" : `, 95% interval [${interval.map((end) => end.toFixed(3)).join(", ")}]`);

  function dropCell(drop, label, choose, repeated = false) {
    if (drop === undefined) return el("td", { class: "drop none", "data-label": label }, "–");
    const flag = drop.flagged ? el("span", { class: "beyond", title: `statistically significant: p=${drop.p} (Holm)` }, " *") : null;
    const left = [drop.missing ? `${count(drop.missing)} without a pair` : null,
      drop.unfinished ? `${count(drop.unfinished)} not run` : null].filter(Boolean);
    return el("td", { class: `drop ${shade(drop)}${repeated ? " repeated" : ""}`, "data-label": label },
      el("button", { type: "button", class: "link", title: "Show the episodes that only the clean run solved",
        "aria-label": `${drop.name}: drop ${dropText(drop)} points; show the episodes lost`, onclick: () => choose(drop) },
      el("strong", {}, dropText(drop)), flag),
      el("span", { class: "ends" }, range(drop.interval)),
      el("span", { class: "ends" }, `${percent(drop.clean)} → ${percent(drop.perturbed)}, n=${count(drop.n)}`),
      ...drop.scores.map((score) => el("span", { class: "ends", title: scoreTitle(score) }, scoreText(score))),
      left.length ? el("span", { class: "ends" }, left.join(", ")) : null);
  }

  function dropTable(found, choose) {
    const levels = [...new Set(found.cells.map((cell) => cell.level))].sort((a, b) => (a ?? 1e9) - (b ?? 1e9));
    const several = levels.length > 1;
    const rows = found.dimensions.map((total) => el("tr", {},
      el("th", { scope: "row" }, total.dimension),
      ...levels.map((level) => dropCell(found.cells.find((cell) => cell.dimension === total.dimension && cell.level === level),
        levelName(level), choose)),
      several ? dropCell(total, "all levels", choose, found.cells.filter((cell) => cell.dimension === total.dimension).length < 2) : null));
    const heads = [...levels.map(levelName), ...(several ? ["all levels"] : [])];
    const all = found.dimensions.length < 2 ? null : el("tr", { class: "total" }, el("th", { scope: "row" }, "all"),
      ...levels.slice(several ? 0 : 1).map(() => el("td", { class: "blank" })), dropCell(found.all, "all", choose));
    return el("table", { class: "drops" },
      el("caption", {}, "Clean rate minus perturbed rate, in points [95% interval]"),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Perturbation"),
        ...heads.map((head) => el("th", { scope: "col" }, head[0].toUpperCase() + head.slice(1))))),
      el("tbody", {}, ...rows, all));
  }

  // ---- Sensitivity: odds ratios on a logarithmic scale ----

  const odds = (log) => {
    const value = Math.exp(log);
    return value > 9999 ? ">9999" : value < 10 ? value.toFixed(2) : value.toFixed(0);
  };
  const oddsRange = (ends) => `[${ends.map(odds).join(", ")}]`;

  function oddsAxis(effects) {
    const ends = effects.flatMap((effect) => effect.interval);
    const reach = (end) => Math.min(16, Math.max(2, Math.ceil(Math.abs(end) / Math.LN2)));
    const low = -reach(Math.min(0, ...ends)), high = reach(Math.max(0, ...ends));
    const step = Math.ceil((high - low) / 6);
    const ticks = [];
    for (let power = Math.ceil(low / step) * step; power <= high; power += step) ticks.push(power);
    const across = (log) => `${(100 * Math.min(1, Math.max(0, (log / Math.LN2 - low) / (high - low)))).toFixed(3)}%`;
    return { ticks, across };
  }

  function oddsChart(effect, { ticks, across }, name) {
    const upright = (log, kind) => svg("line", { class: kind, x1: across(log), x2: across(log), y1: 0, y2: "100%" });
    return svg("svg", { class: `chart ${effect.flagged ? (effect.log_odds > 0 ? "worse" : "better") : "same"}`, role: "img",
      "aria-label": `${name}: odds of failure times ${odds(effect.log_odds)} ${oddsRange(effect.interval)}` },
      ...ticks.map((power) => upright(power * Math.LN2, power ? "grid" : "zero")),
      svg("line", { class: "whisker", x1: across(effect.interval[0]), x2: across(effect.interval[1]), y1: "50%", y2: "50%" }),
      svg("circle", { cx: across(effect.log_odds), cy: "50%", r: 4.5 }));
  }

  function oddsTable(effects) {
    const axis = oddsAxis(effects);
    const tick = (power) => (power < 0 ? `1/${2 ** -power}` : String(2 ** power));
    const head = svg("svg", { class: "ticks", "aria-hidden": "true" }, ...axis.ticks.map((power) =>
      svg("text", { x: axis.across(power * Math.LN2), y: "1em", "text-anchor": "middle" }, tick(power))));
    const row = (effect) => {
      const name = effect.level === null ? effect.dimension : `${effect.dimension} ${effect.level}`;
      return el("tr", { class: effect.level === null ? "dimension" : "level" },
        el("td", {}, name, effect.flagged ? el("span", { class: "beyond" }, " *") : null),
        el("td", { class: "plot", "data-label": "" }, oddsChart(effect, axis, name)),
        el("td", { class: "number percent", "data-label": "Odds of failure" }, `×${odds(effect.log_odds)}`),
        el("td", { class: "number", "data-label": "95% interval" }, oddsRange(effect.interval)),
        el("td", { class: "number secondary", "data-label": "p (Holm)" }, effect.p));
    };
    const totals = effects.filter((effect) => effect.level === null);
    const seen = new Set(), ordered = [];
    for (const total of totals) {
      if (seen.has(total.dimension)) continue;
      seen.add(total.dimension);
      const levels = effects.filter((effect) => effect.dimension === total.dimension && effect.level !== null);
      ordered.push(total, ...(levels.length > 1 ? levels : []));
    }
    return el("table", { class: "rates odds" }, el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, "Perturbation"), el("th", { class: "plot", scope: "col" }, head),
      ...["Odds of failure", "95% interval"].map((name) => el("th", { class: "number", scope: "col" }, name)),
      el("th", { class: "number secondary", scope: "col" }, "p (Holm)"))), el("tbody", {}, ...ordered.map(row)));
  }

  // ---- Pairs to watch ----

  function films(found, episodes, { name, source, kinds }) {
    const pairs = found.lost.map(([clean, perturbed, cell]) => ({ clean: episodes[clean], perturbed: episodes[perturbed], cell: found.cells[cell] }))
      .filter(({ perturbed }) => perturbed.video !== null);
    pairs.sort((a, b) => (a.clean.video === null) - (b.clean.video === null)); // side by side first
    if (!pairs.length) return [];
    const list = el("div", { class: "duos" }), more = el("p", { class: "more" });
    const side = (title, episode) => ({ title, source: episode.video === null ? null : source(episode.video), outcome: kinds[episode.outcome] });
    let next = 0;
    function add() {
      list.append(...pairs.slice(next, next + FIRST_PAIRS).map(({ clean, perturbed, cell }) => sideBySide(
        `${cell.name}: ${name(clean)}, seed ${clean.seed}`, [side("clean", clean), side(cell.name, perturbed)])));
      next += FIRST_PAIRS;
      more.replaceChildren(...(next < pairs.length
        ? [el("button", { type: "button", onclick: add }, `Show more of ${count(pairs.length)}`)] : []));
    }
    add();
    return [el("h3", {}, "Solved clean, failed perturbed"), list, more];
  }

  /** Fill the section; `page` has the names, the videos' paths and the episode filter. */
  function showRobustness(run, episodes, page) {
    const found = run.robustness;
    byId("robustness").hidden = !found;
    if (!found) return;
    byId("robustness-about").textContent = "Every perturbed episode is paired with the clean episode of the same task, seed and " +
      "init state. Positive: the perturbation costs successes. * marks statistically significant drops (Holm-corrected, p at most 0.05). " +
      `${plural(found.all.n, "pair")} from ${plural(found.all.starts, "clean start")}; each interval is of its cell alone.`;
    const choose = (drop) => {
      const inside = found.lost.filter(([, , cell]) => (drop.dimension === null || found.cells[cell].dimension === drop.dimension) &&
        (drop.level === null || found.cells[cell].level === drop.level));
      page.choose(inside.flatMap(([clean, perturbed]) => [episodes[clean], episodes[perturbed]]), `${drop.name}: lost`);
    };
    byId("drops").append(dropTable(found, choose),
      ...(found.missing === null ? [] : [el("p", { class: "quiet" }, `${found.missing[0].toUpperCase()}${found.missing.slice(1)}.`)]));
    if (found.effects.length) {
      byId("sensitivity").append(el("h3", {}, "Sensitivity: what explains failures"),
        el("p", { class: "quiet" }, "How many times higher the odds of failure are than in clean episodes of the same task. " +
          "Logistic regression (Firth) with profile intervals, on a logarithmic scale."), oddsTable(found.effects));
    }
    byId("robust-films").append(...films(found, episodes, page));
  }

  return { showRobustness };
})();
