(() => {
  const { byId, el, svg, pair, fixed, count, plural, sorted, sortableHead, startTheme } = parts;
  const page = JSON.parse(byId("run").textContent);
  const edits = datasetEdits.start(page, showMarks);
  const FIRST_ROWS = 50, HUES = 8, RATES = [0.25, 0.5, 1, 2, 4];

  // ---- Episodes: from columns to records ----

  const episodes = page.episodes.index.map((index, place) => ({
    index, place, length: page.episodes.length[place], seconds: page.episodes.length[place] / page.fps,
    tasks: page.episodes.tasks[place].map((task) => page.tasks[task]),
  }));
  for (const episode of episodes) {
    episode.task = episode.tasks.join(" · ");
    episode.text = `${episode.index} ${episode.task}`.toLowerCase();
  }
  function number(value) {
    if (value === null) return "n/a";
    const size = Math.abs(value);
    if (size < 1e-9) return "0";
    return size < 1e-3 || size >= 1e7 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
  }

  // ---- One moment: what is shown, and where in it we are ----

  const now = { episode: null, numbers: null, frame: 0, playing: false, rate: 1, started: null, asked: 0 };
  const views = [];  // of cameras and plots: functions of the frame
  const films = [];  // videos that play: {video, from_s}

  const lastFrame = () => Math.max(0, now.episode.length - 1);

  function show(frame) {
    now.frame = Math.min(lastFrame(), Math.max(0, frame));
    byId("frame").value = String(now.frame);
    byId("clock").textContent = `frame ${now.frame} of ${now.episode.length}, ${(now.frame / page.fps).toFixed(2)} s`;
    const said = (now.numbers?.said ?? []).filter(([from]) => from <= now.frame).at(-1);
    byId("said").textContent = said ? said[1] : now.episode.task;
    for (const view of views) view(now.frame);
  }

  /** Go to a frame, the videos too: to its middle, so that no rounding shows its neighbour. */
  function seek(frame) {
    show(frame);
    for (const { video, from_s } of films) video.currentTime = from_s + (now.frame + 0.5) / page.fps;
    now.started = performance.now() - (1000 * now.frame) / (page.fps * now.rate);
  }

  function frameNow() {
    const lead = films.find(({ video }) => video.readyState >= 1 && !video.error);
    if (!lead) return Math.floor(((performance.now() - now.started) / 1000) * page.fps * now.rate);
    const at = lead.video.currentTime - lead.from_s;
    for (const other of films) {
      if (other !== lead && Math.abs(other.video.currentTime - other.from_s - at) > 1.5 / page.fps) {
        other.video.currentTime = other.from_s + at;
      }
    }
    return Math.floor(at * page.fps + 1e-3);
  }

  function tick() {
    if (!now.playing) return;
    const frame = frameNow();
    if (frame >= now.episode.length) { pause(); seek(lastFrame()); return; }
    if (frame !== now.frame) show(frame);
    requestAnimationFrame(tick);
  }

  function play() {
    if (now.frame >= lastFrame()) seek(0); else seek(now.frame);
    now.playing = true;
    byId("play").textContent = "Pause";
    for (const { video } of films) {
      video.playbackRate = now.rate;
      video.play().catch(() => { /* the video itself shows that it cannot be played */ });
    }
    requestAnimationFrame(tick);
  }

  function pause() {
    now.playing = false;
    byId("play").textContent = "Play";
    for (const { video } of films) video.pause();
  }

  // ---- Cameras ----

  const figure = (camera, shown) => el("figure", {}, shown, el("figcaption", {}, camera.key));

  function pictures(camera, found) {
    // Every frame where the page is served; of a file, the last one kept at or before the frame.
    const image = el("img", { alt: camera.key });
    let drawn = -1;
    views.push((frame) => {
      const next = found === null ? frame : found.findLastIndex(([at]) => at <= frame);
      if (next === drawn || next < 0) return;
      drawn = next;
      image.src = found === null ? `picture/${page.cameras.indexOf(camera)}/${now.episode.index}/${frame}.jpg?v=${page.version}`
        : `data:image/jpeg;base64,${found[next][1]}`;
    });
    return image;
  }

  function bytes(text) {
    return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  }

  function film(camera, source, from_s) {
    const video = el("video", { preload: "auto", playsinline: "", "aria-label": camera.key });
    video.muted = true;
    const place = figure(camera, video);
    const one = { video, from_s };
    films.push(one);
    video.addEventListener("loadedmetadata", () => { video.currentTime = from_s + (now.frame + 0.5) / page.fps; });
    video.addEventListener("error", () => {
      films.splice(films.indexOf(one), 1);
      video.replaceWith(page.served ? pictures(camera, null)
        : el("div", { class: "missing" }, `This browser does not play ${camera.codec}; write the file with --pictures.`));
      show(now.frame);
    });
    video.src = source;
    return place;
  }

  function camera(one, media) {
    if (media.video) {
      const url = URL.createObjectURL(new Blob([bytes(media.video)], { type: "video/mp4" }));
      made.push(url);
      return film(one, url, 0);
    }
    if (media.url) return film(one, `${media.url}?v=${page.version}`, media.from_s);
    if (page.served) return figure(one, pictures(one, null));
    return figure(one, media.pictures.length ? pictures(one, media.pictures)
      : el("div", { class: "missing" }, "left out: the file would be too large"));
  }
  const made = [];  // addresses of videos that the page holds

  function showCameras(media) {
    for (const { video } of films) video.removeAttribute("src");
    films.length = 0;
    for (const url of made.splice(0)) URL.revokeObjectURL(url);
    byId("cameras").replaceChildren(...page.cameras.map((one, place) => camera(one, media[place])));
  }

  // ---- Plots ----

  function range(columns) {
    let low = Infinity, high = -Infinity;
    for (const column of columns) for (const value of column) {
      if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
    }
    if (low > high) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  function line(column, every, [low, high]) {
    const across = 1000 / Math.max(1, now.episode.length - 1);
    let path = "", pen = "M";
    column.forEach((value, place) => {
      if (value === null) { pen = "M"; return; }
      path += `${pen}${(place * every * across).toFixed(1)} ${(95 - (90 * (value - low)) / (high - low)).toFixed(2)}`;
      pen = "L";
    });
    return path;
  }

  function plot(series) {
    const { every } = now.numbers, ends = range(series.values);
    const hue = (place) => `hue-${place % HUES}${place % (2 * HUES) >= HUES ? " dashed" : ""}`;
    const lines = series.values.map((column, place) => svg("path", { class: hue(place), d: line(column, every, ends) }));
    const cursor = svg("line", { class: "cursor", y1: 0, y2: 100 });
    const [low, high] = ends;
    const zero = low < 0 && high > 0 ? 95 + (90 * low) / (high - low) : null;
    const drawing = svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": series.key },
      zero === null ? null : svg("line", { class: "zero", x1: 0, x2: 1000, y1: zero, y2: zero }), ...lines, cursor);
    const values = series.values.map(() => el("output"));
    const legend = el("ul", { class: "legend" }, ...series.values.map((_, place) => el("li", {},
      el("button", { type: "button", "aria-pressed": "true", onclick: (event) => toggle(event.currentTarget, lines[place]) },
        el("span", { class: `swatch ${hue(place)}` }), series.names[place] || series.key), values[place])));
    views.push((frame) => {
      const at = (1000 * frame) / Math.max(1, now.episode.length - 1);
      cursor.setAttribute("x1", at);
      cursor.setAttribute("x2", at);
      series.values.forEach((column, place) => { values[place].textContent = number(column[Math.floor(frame / every)] ?? null); });
    });
    follow(drawing);
    return el("div", { class: "series" }, el("h3", {}, series.key), el("div", { class: "frame" },
      el("div", { class: "scale" }, el("span", {}, number(high)), el("span", {}, number(low))), drawing), legend);
  }

  function toggle(button, path) {
    const shown = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(shown));
    path.style.display = shown ? "" : "none";
  }

  /** A press on a plot, and a drag over it, goes to the frame that is pointed at. */
  function follow(drawing) {
    const go = (event) => {
      const box = drawing.getBoundingClientRect();
      pause();
      seek(Math.round(((event.clientX - box.left) / box.width) * lastFrame()));
    };
    drawing.addEventListener("pointerdown", go);
    drawing.addEventListener("pointermove", (event) => { if (event.buttons) go(event); });
  }

  // ---- The player ----

  async function numbersOf(episode) {
    if (!page.served) return page.kept[episode.index];
    const answer = await fetch(`episode/${episode.index}?v=${page.version}`);
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }

  async function open(episode) {
    const asked = (now.asked += 1);
    pause();
    let numbers = null, failed = null;
    try { numbers = await numbersOf(episode); } catch (error) { failed = error.message; }
    if (asked !== now.asked) return;  // another one was chosen meanwhile
    Object.assign(now, { episode, numbers, frame: 0 });
    views.length = 0;
    byId("shown-title").textContent = `Episode ${episode.index}`;
    byId("notices").replaceChildren(...(failed === null ? [] : [el("p", { class: "notice" }, failed)]));
    byId("frame").max = String(lastFrame());
    showCameras(numbers?.media ?? page.cameras.map(() => ({ pictures: [] })));
    byId("plots").replaceChildren(...(numbers?.series ?? []).map(plot));
    byId("previous").disabled = episode.place === 0;
    byId("next").disabled = episode.place === episodes.length - 1;
    seek(0);
    showCurrent();
    showMarks();
    try { history.replaceState(null, "", `#${episode.index}`); } catch { /* a file in a frame */ }
  }

  function choose(episode) {
    open(episode);
    byId("player").scrollIntoView();
  }

  const step = (by) => { const next = episodes[now.episode.place + by]; if (next) open(next); };

  /** Space plays, n and p go to the next and the previous episode; further keys edit. */
  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !now.episode) return;
    if (event.target.matches("input:not([type=checkbox], [type=range]), select, textarea") && event.key !== "Escape") return;
    if (event.key === " " && !event.target.matches("button, input, summary, a")) { if (now.playing) pause(); else play(); }
    else if (event.key === "n") step(1);
    else if (event.key === "p") step(-1);
    else if (!edits.onKey(event, now.episode)) return;
    event.preventDefault();
  }

  function startPlayer() {
    document.addEventListener("keydown", onKey);
    byId("play").addEventListener("click", () => (now.playing ? pause() : play()));
    byId("frame").addEventListener("input", () => { pause(); seek(Number(byId("frame").value)); });
    byId("previous").addEventListener("click", () => step(-1));
    byId("next").addEventListener("click", () => step(1));
    byId("mark").hidden = !edits.allowed;
    byId("mark").addEventListener("click", () => edits.set([now.episode], !edits.has(now.episode)));
    byId("rate").append(...RATES.map((rate) => el("option", { value: rate, ...(rate === 1 ? { selected: "" } : {}) }, `${rate}×`)));
    byId("rate").addEventListener("change", () => {
      now.rate = Number(byId("rate").value);
      if (now.playing) { pause(); play(); }
    });
    const wanted = Number(location.hash.slice(1) || NaN);
    const first = episodes.find((episode) => episode.index === wanted) ?? episodes[0];
    byId("player").hidden = !first;
    if (first) open(first);
  }

  // ---- All episodes ----

  const COLUMNS = [
    ...(edits.allowed ? [{ class: "box", cell: box }] : []),
    { name: "Episode", class: "index", key: (e) => e.index, cell: (e) => String(e.index) },
    { name: "Task", key: (e) => e.task, cell: (e) => el("button", { type: "button", class: "link" }, e.task || "–") },
    { name: "Frames", class: "number", descending: true, key: (e) => e.length, cell: (e) => count(e.length) },
    { name: "Seconds", class: "number secondary", descending: true, key: (e) => e.seconds, cell: (e) => fixed(e.seconds, 1) },
  ];
  const list = {
    order: { column: COLUMNS.find((column) => column.name === "Episode"), descending: false },
    limit: FIRST_ROWS, body: el("tbody"), found: [], pressed: null,
  };

  /** A box that marks its episode; with shift, all from the box pressed before to this one. */
  function box(episode) {
    const press = (event) => {
      event.stopPropagation();
      const from = event.shiftKey ? list.found.indexOf(list.pressed) : -1, to = list.found.indexOf(episode);
      const chosen = from < 0 ? [episode] : list.found.slice(Math.min(from, to), Math.max(from, to) + 1);
      list.pressed = episode;
      edits.set(chosen, event.currentTarget.checked);
    };
    return el("input", { type: "checkbox", "aria-label": `Mark episode ${episode.index}`, onclick: press });
  }

  function showMarks() {
    for (const one of list.body.children) {
      const isMarked = edits.has(episodes[one.dataset.place]), tick = one.querySelector("input");
      if (tick) tick.checked = isMarked;
      one.classList.toggle("marked", isMarked);
    }
    const isMarked = now.episode !== null && edits.has(now.episode);
    byId("mark").setAttribute("aria-pressed", String(isMarked));
    byId("mark").textContent = isMarked ? "Marked" : "Mark";
  }

  function row(episode) {
    return el("tr", { class: "row", "data-episode": episode.index, "data-place": episode.place, onclick: () => choose(episode) },
      ...COLUMNS.map((column) => el("td", { class: column.class ?? "" }, column.cell(episode))));
  }

  function showCurrent() {
    for (const one of list.body.children) {
      if (Number(one.dataset.episode) === now.episode?.index) one.setAttribute("aria-current", "true");
      else one.removeAttribute("aria-current");
    }
  }

  function redraw(limit = FIRST_ROWS) {
    list.limit = limit;
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = sorted(episodes.filter((episode) => words.every((word) => episode.text.includes(word))),
      list.order.column.key, list.order.descending);
    list.found = found;
    list.body.replaceChildren(...found.slice(0, limit).map(row));
    showCurrent();
    showMarks();
    byId("shown").textContent = `${count(found.length)} of ${count(episodes.length)}` +
      (episodes.length < page.total ? ` in this file; the dataset has ${count(page.total)}` : "");
    const more = (label, next) => el("button", { type: "button", onclick: () => redraw(next) }, label);
    byId("more").replaceChildren(...(found.length > limit
      ? [more("Show 200 more", limit + 200), more(`Show all ${count(found.length)}`, Infinity)] : []));
  }

  function showEpisodes() {
    byId("search").addEventListener("input", () => redraw());
    byId("mark-found").hidden = !edits.allowed;
    byId("mark-found").addEventListener("click", () => edits.set(list.found, true));
    byId("episodes").append(el("table", { class: "log" },
      sortableHead(COLUMNS, list.order, () => redraw(list.limit)), list.body));
    redraw();
  }

  // ---- The whole ----

  function table(heads, rows, words) {
    const kind = (place) => (place < words ? "" : "number");
    return el("table", { class: "log" },
      el("thead", {}, el("tr", {}, ...heads.map((head, place) => el("th", { class: kind(place), scope: "col" }, head)))),
      el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, place) =>
        el("td", { class: kind(place) }, cell))))));
  }

  function showWhole() {
    byId("title").textContent = page.title;
    byId("about").textContent = `${page.about} · ${plural(page.cameras.length, "camera")}`;
    byId("figures").append(...page.figures.map(([name, value]) => pair(name, value)));
    byId("statistics").hidden = !page.stats.length;
    const names = ["Feature", "", "min", "q01", "q10", "q50", "q90", "q99", "max", "mean", "std", "count"];
    byId("stats").append(table(names, page.stats.map(([key, component, ...values], place) =>
      [place && page.stats[place - 1][0] === key ? "" : key, component, ...values.map(number)]), 2));
    byId("features").append(table(["Feature", "Type", "Shape", "Components"], page.features, 4));
  }

  startTheme();
  showWhole();
  showEpisodes();
  startPlayer();
  edits.begin();
})();
