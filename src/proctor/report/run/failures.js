// Where and when episodes fail: the map of starts, groups of failures, and plots under videos.
const failures = (() => {
  const { byId, el, svg, count, percent, interval, plural } = parts;
  const WIDTH = 440, HEIGHT = 380, LEFT = 66, TOP = 8, RIGHT = 8, BOTTOM = 44;
  const NEAR = 10;  // pixels of the drawing
  const Z = 1.959963984540054;
  // A tick with as many digits as its axis needs: 0, not 0.00045 between -1 and 1.
  function tick(value, low, high) {
    const unit = 10 ** (Math.floor(Math.log10(high - low)) - 2);
    return short(Math.round(value / unit) * unit + 0);
  }
  const short = (value) => (value === null ? "n/a" : String(Number(value.toPrecision(4))));

  // ---- Rates of cells ----

  function wilson(k, n, worth) {
    const p = k / n, centre = (p + Z * Z / (2 * worth)) / (1 + Z * Z / worth);
    const half = Z / (1 + Z * Z / worth) * Math.sqrt(p * (1 - p) / worth + Z * Z / (4 * worth * worth));
    return [k === 0 ? 0 : Math.max(0, centre - half), k === n ? 1 : Math.min(1, centre + half)];
  }

  // Episodes that start alike are one independent unit, as in all other intervals.
  function rateText(inside) {
    const units = new Map();
    for (const { episode: { unit } } of inside) units.set(unit, (units.get(unit) ?? 0) + 1);
    const n = inside.length, k = inside.filter(({ solved }) => solved).length;
    const worth = n * n / [...units.values()].reduce((sum, times) => sum + times * times, 0);
    return `${percent(k / n)} ${interval(wilson(k, n, worth))} n=${count(n)}` +
      (units.size === n ? "" : ` (${plural(units.size, "start")})`);
  }

  // ---- The map of starts ----

  function startsOf(run, episodes, task, kinds) {
    return episodes.filter((e) => e.task === run.tasks[task.task] && run.failures.starts[e.place] !== null &&
      ["success", "failure", "diverged"].includes(kinds[e.outcome])).map((episode) => {
      const start = run.failures.starts[episode.place];
      return { episode, start, solved: kinds[episode.outcome] === "success" };
    });
  }

  function extent(points, column) {
    const values = points.map(({ start }) => start[column]).filter((value) => value !== null);
    const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    return high > low ? [low, high] : [low - 0.5, high + 0.5];
  }

  function drawMap(points, task, axes, page) {
    const shown = points.filter(({ start }) => axes.every((column) => start[column] !== null));
    const [[x0, x1], [y0, y1]] = axes.map((column) => extent(points, column));
    const wide = WIDTH - LEFT - RIGHT, high = HEIGHT - TOP - BOTTOM;
    const sides = Math.max(2, Math.min(8, Math.floor(Math.sqrt(shown.length / 8))));
    const part = (value, low, top) => Math.min(0.999999, (value - low) / (top - low));
    const cells = new Map();
    for (const point of shown) {
      const u = part(point.start[axes[0]], x0, x1), v = part(point.start[axes[1]], y0, y1);
      Object.assign(point, { x: LEFT + u * wide, y: TOP + (1 - v) * high });
      const cell = Math.floor(u * sides) + sides * Math.floor(v * sides);
      if (!cells.has(cell)) cells.set(cell, []);
      cells.get(cell).push(point);
    }
    const about = (cell) => {
      const ends = (low, top, place) => `${short(low + (top - low) * place / sides)} to ${short(low + (top - low) * (place + 1) / sides)}`;
      return `${task.names[axes[0]]} ${ends(x0, x1, cell % sides)}, ${task.names[axes[1]]} ${ends(y0, y1, Math.floor(cell / sides))}`;
    };
    const say = (text) => { byId("map-pointed").textContent = text; };
    const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "start-map", role: "group",
      "aria-label": `Success by ${task.names[axes[0]]} and ${task.names[axes[1]]} at the start` });
    for (const [cell, inside] of cells) {
      const text = `${about(cell)}: ${rateText(inside)}`;
      const k = inside.filter(({ solved }) => solved).length;
      const box = { x: LEFT + (cell % sides) * wide / sides, y: TOP + (sides - 1 - Math.floor(cell / sides)) * high / sides,
        width: wide / sides, height: high / sides };
      const choose = () => page.choose(inside.map(({ episode }) => episode), about(cell));
      const rect = svg("rect", { ...box, class: "cell", tabindex: 0, role: "button", "aria-label": text,
        "fill-opacity": (0.04 + 0.5 * k / inside.length).toFixed(3),
        onfocus: () => say(`${text}. Enter shows its episodes.`), onkeydown: (event) => { if (event.key === "Enter") choose(); } });
      drawing.append(rect, svg("text", { x: box.x + 4, y: box.y + 13, class: "cell-count" }, `${k}/${inside.length}`));
    }
    const dots = (chosen) => chosen.map(({ x, y }) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("");
    const ring = svg("path", { class: "ring", d: "" });
    drawing.append(ring,
      svg("path", { class: "dots solved", d: dots(shown.filter(({ solved }) => solved)) }),
      svg("path", { class: "dots failed", d: dots(shown.filter(({ solved }) => !solved)) }));
    axis(drawing, [x0, x1], [y0, y1], axes.map((column) => task.names[column]));
    const at = (event) => {
      const box = drawing.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * WIDTH, ((event.clientY - box.top) / box.height) * HEIGHT];
    };
    const near = (x, y) => {
      let best = null, least = NEAR * NEAR;
      for (const point of shown) {
        const away = (point.x - x) ** 2 + (point.y - y) ** 2;
        if (away < least) [best, least] = [point, away];
      }
      return best;
    };
    const cellAt = (x, y) => {
      const u = (x - LEFT) / wide, v = 1 - (y - TOP) / high;
      return u < 0 || u >= 1 || v < 0 || v >= 1 ? null : Math.floor(u * sides) + sides * Math.floor(v * sides);
    };
    drawing.addEventListener("pointermove", (event) => {
      const [x, y] = at(event), point = near(x, y), cell = cellAt(x, y);
      const inside = cells.get(cell);
      const rate = inside ? `${about(cell)}: ${rateText(inside)}` : "";
      ring.setAttribute("d", point ? dots([point]) : "");
      if (rate || point) say([rate, point ? `${page.name(point.episode)}: ${point.solved ? "success" : "failure"}` : ""].filter(Boolean).join(" · "));
    });
    drawing.addEventListener("click", (event) => {
      const [x, y] = at(event), point = near(x, y), cell = cellAt(x, y);
      if (point) page.choose([point.episode], page.name(point.episode));
      else if (cells.has(cell)) page.choose(cells.get(cell).map(({ episode }) => episode), about(cell));
    });
    const highlight = (chosen) => ring.setAttribute("d", dots(shown.filter(({ episode }) => chosen.has(episode))));
    byId("start-map").replaceChildren(drawing, el("figcaption", { class: "quiet" },
      el("span", { class: "outcome success" }, "success"), " ", el("span", { class: "outcome failure" }, "failure"),
      ` Cells: successes/episodes; the stronger the colour, the higher the rate. ${plural(shown.length, "start")}.`));
    return highlight;
  }

  function axis(drawing, [x0, x1], [y0, y1], names) {
    const bottom = HEIGHT - BOTTOM, right = WIDTH - RIGHT;
    for (const [place, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
      drawing.append(
        svg("text", { class: "tick", x: LEFT + place * (right - LEFT), y: bottom + 16, "text-anchor": anchor }, tick(x0 + place * (x1 - x0), x0, x1)),
        svg("text", { class: "tick", x: LEFT - 6, y: bottom - place * (bottom - TOP) + (place === 1 ? 10 : place ? 4 : 0), "text-anchor": "end" }, tick(y0 + place * (y1 - y0), y0, y1)));
    }
    drawing.append(svg("text", { class: "name", x: (LEFT + right) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, names[0]),
      svg("text", { class: "name", x: 0, y: 0, "text-anchor": "middle", transform: `translate(12 ${(TOP + bottom) / 2}) rotate(-90)` }, names[1]));
  }

  // ---- Groups of failures ----

  function showGroups(task, episodes, page, highlight) {
    const failed = task.groups.reduce((sum, group) => sum + group.episodes.length, 0);
    const heading = el("h3", {}, task.groups.length ? `Groups of ${plural(failed, "failure")}` : "Too few failures to group");
    byId("failure-groups").replaceChildren(heading, el("ol", { class: "groups" }, ...task.groups.map((group, place) => {
      const inside = group.episodes.map((at) => episodes[at]), chosen = new Set(inside);
      const ends = group.ends.map(([name, value]) => `${name} ${short(value)}`).join(", ");
      const li = el("li", { onpointerenter: () => highlight(chosen), onpointerleave: () => highlight(new Set()) },
        el("strong", {}, `${count(inside.length)} of ${count(failed)} failures`), " ", stallText(task, group),
        ends ? `; ended near ${ends}` : "", ". ",
        el("div", { class: "examples" }, el("button", { type: "button", onclick: () => page.choose(inside, `group ${place + 1}`) }, "Show episodes"), el("span", { class: "quiet" }, "typical"),
          ...group.examples.map((at) => el("button", { type: "button", class: "link", title: "A typical one of this group",
            onclick: () => page.choose([episodes[at]], page.name(episodes[at])) }, `${episodes[at].index}${episodes[at].video ? " ▶" : ""}`))));
      return li;
    })));
  }

  function stallText(task, group) {
    const what = task.by_reward ? "the reward rose last" : "stalled";
    if (group.kept_moving * 2 > group.episodes.length) {
      return task.by_reward ? "the reward rose until the end" : "kept moving until the end";
    }
    const [low, middle, high] = group.stalled.map((step) => Math.round(step));
    if (high === 0) return task.by_reward ? "never gained a reward" : "moved nothing";
    return `${what} at step ${middle}${low === high ? "" : ` (half of them ${low} to ${high})`}`;
  }

  function showFailures(run, episodes, { name, kinds, choose }) {
    const tasks = run.failures.tasks.filter((task) => task.names.length || task.groups.length);
    byId("failures").hidden = !tasks.length;
    if (!tasks.length) return;
    const page = { name, choose };
    const most = [...tasks].sort((a, b) => lost(b) - lost(a))[0];
    const select = (label, options, onchange) => {
      const box = el("select", { "aria-label": label, onchange }, ...options.map(([value, text]) => el("option", { value }, text)));
      return box;
    };
    const taskBox = select("Task", tasks.map((task, place) => [place, run.tasks[task.task].name]), chooseTask);
    taskBox.value = String(tasks.indexOf(most));
    let boxes = [];
    function lost(task) { return task.groups.reduce((sum, group) => sum + group.episodes.length, 0); }
    function chooseTask() {
      const names = tasks[taskBox.value].names.map((text, column) => [column, text]);
      boxes = [["Across", 0], ["Up", Math.min(1, names.length - 1)]].map(([label, first]) => {
        const box = select(label, names, draw);
        if (names.length) box.value = String(first);
        return box;
      });
      byId("failure-controls").replaceChildren(...(tasks.length > 1 ? [el("label", {}, "Task ", taskBox)] : []),
        ...(names.length ? [el("label", {}, "Across ", boxes[0]), el("label", {}, "Up ", boxes[1])] : []));
      draw();
    }
    function draw() {
      const task = tasks[taskBox.value];
      const points = startsOf(run, episodes, task, kinds);
      let highlight = () => {};
      if (task.names.length && points.length) highlight = drawMap(points, task, boxes.map((box) => Number(box.value)), page);
      else byId("start-map").replaceChildren(el("p", { class: "quiet" }, "All episodes of this task start alike."));
      showGroups(task, episodes, page, highlight);
      byId("map-pointed").textContent = task.names.length ? "Point at a cell for its rate with its 95% interval. Click a cell or a dot for its episodes." : "";
    }
    byId("failures-about").textContent = "The map shows where things were at the start, and which of those episodes succeeded. " +
      "The list groups failures that are alike, by when the episode stalled and how it ended. An episode has stalled when " +
      "nothing moves any more by over 5% of its range. These groups are a place to look, not a test.";
    chooseTask();
  }

  // ---- Actions and rewards under a video ----

  const rough = (value) => String(Number(value.toPrecision(2)));
  const heights = (curve) => Uint8Array.from(atob(curve.points), (char) => char.charCodeAt(0));
  const valueOf = (curve, byte) => curve.low + (byte / 255) * (curve.high - curve.low);

  function chart(curves, label) {
    const low = Math.min(...curves.map((curve) => curve.low)), high = Math.max(...curves.map((curve) => curve.high));
    const span = high - low || 1;
    const cursor = svg("line", { class: "cursor", x1: 0, x2: 0, y1: 0, y2: 100 });
    const lines = curves.map((curve, place) => {
      const points = heights(curve), last = Math.max(1, points.length - 1);
      return svg("polyline", { class: `curve c${place % 8}`, points: [...points].map((byte, at) =>
        `${(1000 * at / last).toFixed(0)},${(96 - 92 * (valueOf(curve, byte) - low) / span).toFixed(1)}`).join(" ") });
    });
    const drawing = svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": label }, ...lines, cursor);
    return { cursor, drawing, row: el("div", { class: "plot-row" },
      el("span", { class: "quiet" }, label, el("br"), `${rough(low)} to ${rough(high)}`), drawing) };
  }

  function plots(run, episode, video) {
    const plot = run.failures.plots[episode.place];
    if (!plot) return null;
    const charts = [chart(plot.actions, "actions"), chart([plot.reward], "reward")];
    const said = el("div", { class: "quiet", role: "status" });
    const curves = [...plot.actions.map((curve) => [curve, heights(curve)]), [plot.reward, heights(plot.reward)]];
    function show() {
      const step = Math.min(plot.steps, video.currentTime * plot.per_s), share = plot.steps ? step / plot.steps : 0;
      for (const { cursor } of charts) {
        cursor.setAttribute("x1", 1000 * share);
        cursor.setAttribute("x2", 1000 * share);
      }
      const values = curves.map(([curve, points]) => rough(valueOf(curve, points[Math.min(points.length - 1, Math.round(share * (points.length - 1)))])));
      said.textContent = `Step ${Math.floor(step)} of ${plot.steps}: reward ${values.at(-1)}, action ${values.slice(0, 8).filter((_, at) => at < plot.actions.length).join(", ")}`;
      if (!video.paused && !video.ended) requestAnimationFrame(show);
    }
    function seek(event) {
      if (event.type === "pointermove" && !event.buttons) return;
      const box = event.currentTarget.getBoundingClientRect();
      const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
      video.currentTime = share * plot.steps / plot.per_s;
    }
    for (const { drawing } of charts) {
      drawing.addEventListener("pointerdown", seek);
      drawing.addEventListener("pointermove", seek);
    }
    for (const event of ["play", "seeking", "timeupdate", "loadedmetadata"]) video.addEventListener(event, show);
    show();
    return el("div", { class: "plots" }, ...charts.map(({ row }) => row), said);
  }

  return { plots, showFailures };
})();
