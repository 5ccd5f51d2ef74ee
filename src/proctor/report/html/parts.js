"use strict";
// Functions that all pages use. The page's own script follows in the same element.
const parts = (() => {
  const byId = (id) => document.getElementById(id);

  // ---- Making elements. Text is only ever inserted as text. ----

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  }
  const el = (tag, attributes = {}, ...children) =>
    fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  const pair = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));

  function copyable(text) {
    // One element per word, so that lines break between flags and not inside "--".
    const words = text.split(" ").flatMap((word) => [" ", el("span", {}, word)]).slice(1);
    const pre = el("pre", {}, ...words);
    const button = el("button", { type: "button", onclick: copy }, "Copy");
    async function copy() {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(pre);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    }
    return el("div", { class: "copyable" }, pre, button);
  }

  // ---- Numbers as text ----

  const fixed = (value, digits) => (value === null ? "n/a" : value.toFixed(digits));
  const count = (value) => (value === null ? "n/a" : value.toLocaleString("en-US"));
  // As number_text.py: a printed number never reaches or crosses a bound that the number does not reach.
  const oneDigit = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1,
    useGrouping: false, roundingMode: "halfEven" });
  function rounded(value, bounds) {
    const shown = Number(oneDigit.format(value)) + 0;
    for (const bound of bounds) {
      if (value < bound && bound <= shown) return bound - 0.1;
      if (shown <= bound && bound < value) return bound + 0.1;
    }
    return shown;
  }
  const share = (value) => rounded(100 * value, [0, 100]).toFixed(1);
  const points = (value) => {
    const shown = rounded(100 * value, [-100, 0, 100]);
    return `${shown < 0 ? "−" : "+"}${Math.abs(shown).toFixed(1)}`;
  };
  const percent = (rate) => (rate === null ? "n/a" : `${share(rate)}%`);
  const interval = (ends) => (ends === null ? "n/a" : `[${ends.map(share).join(", ")}]`);
  const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
  function seconds(value) {
    if (value === null) return "n/a";
    if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
    const whole = Math.round(value), h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60;
    return h ? `${h} h ${m} min` : `${m} min ${whole % 60} s`;
  }

  // ---- Sorting: missing values come last in both directions ----

  function sorted(items, key, descending) {
    const sign = descending ? -1 : 1;
    return items.map((item) => [key(item), item]).sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    }).map(([, item]) => item);
  }

  function sortableHead(columns, order, redraw) {
    const cells = columns.map((column) => {
      const cell = el("th", { class: column.class ?? "", scope: "col" });
      if (column.head) cell.append(column.head());
      if (!column.key) return cell;
      if (order.column === column) cell.setAttribute("aria-sort", direction(order));
      cell.prepend(el("button", { type: "button", onclick: () => choose(column) }, column.name));
      return cell;
    });
    function choose(column) {
      order.descending = order.column === column ? !order.descending : Boolean(column.descending);
      order.column = column;
      columns.forEach((other, place) => cells[place].removeAttribute("aria-sort"));
      cells[columns.indexOf(column)].setAttribute("aria-sort", direction(order));
      redraw();
    }
    return el("thead", {}, el("tr", {}, ...cells));
  }
  const direction = (order) => (order.descending ? "descending" : "ascending");

  // ---- Status and progress of a run ----

  function showWayBack(page) {
    if (page.list) byId("title").before(el("a", { class: "back", href: page.list }, "All runs"));
  }

  const badge = (status) => el("span", { class: `badge ${status.replace(" ", "-")}` }, status);

  function showProgress(run, done, unit) {
    showWayBack(run);
    byId("title").append(" ", badge(run.status));
    if (run.planned === null || (run.status !== "running" && run.status !== "incomplete")) return;
    const left = run.status !== "running" ? null : run.left_s === null ? (run.begun ? null : "starting")
      : done < run.planned ? `about ${run.left_s < 100 ? `${Math.ceil(run.left_s)} s` : seconds(run.left_s)} left` : "finishing";
    const share = run.planned ? Math.floor((100 * done) / run.planned) : 0;
    byId("notices").append(el("div", { class: "going" },
      el("progress", { max: Math.max(1, run.planned), value: done, "aria-label": "Progress" }),
      el("span", {}, [`${count(done)} of ${count(run.planned)} ${unit}`, `${share}%`, left].filter(Boolean).join(" · "))));
  }

  const notice = (text, command = null) =>
    el("div", { class: "notice" }, text, command === null ? null : copyable(command));

  // A person types or watches: an update would take the text or the video away.
  const isBusy = () => document.activeElement?.matches("input.label") ||
    [...document.querySelectorAll("video")].some((video) => !video.paused && !video.ended);

  // A served page polls for updates; `keep` is called before it reloads.
  function follow(run, keep) {
    if (!run.live) return;
    let unheard = 0;
    setInterval(async () => {
      try {
        const news = await fetch("version", { cache: "no-store" });
        unheard = 0;
        if (!news.ok || (await news.text()) === run.live) return;
      } catch {
        unheard += 1;  // no server: the page stays as it is and shows "not connected"
        if (unheard === 2 && run.status === "running") {
          byId("title").querySelector(".badge").replaceWith(badge("not connected"));
        }
        return;
      }
      if (isBusy()) return;
      keep();
      location.reload();  // the browser keeps the scroll position
    }, 1000 * run.look_every_s);
  }

  // ---- Videos: speed and loop ----

  function playback() {
    const kept = { speed: 1, loop: false };
    try { Object.assign(kept, JSON.parse(sessionStorage.getItem("proctor-playback"))); } catch { /* nothing kept */ }
    const apply = (video) => {
      video.defaultPlaybackRate = video.playbackRate = kept.speed;
      video.loop = kept.loop;
    };
    const changed = () => {
      document.querySelectorAll("video").forEach(apply);
      try { sessionStorage.setItem("proctor-playback", JSON.stringify(kept)); } catch { /* not kept */ }
    };
    document.addEventListener("loadedmetadata", (event) => apply(event.target), true);
    const speed = el("select", { "aria-label": "Speed" },
      ...[0.25, 0.5, 1, 2, 4].map((value) => el("option", { value }, `${value}×`)));
    speed.value = String(kept.speed);
    speed.addEventListener("change", () => { kept.speed = Number(speed.value); changed(); });
    const loop = el("input", { type: "checkbox" });
    loop.checked = kept.loop;
    loop.addEventListener("change", () => { kept.loop = loop.checked; changed(); });
    return el("div", { class: "controls playback" }, el("label", {}, "Speed ", speed), el("label", {}, loop, " Loop"));
  }

  // Two videos of one start; a side has a title, the source of its video or null, and an outcome.
  function sideBySide(label, sides) {
    const half = ({ title, source, outcome }) => el("div", {}, source === null ? el("div", { class: "missing" }, "no video")
      : el("video", { src: source, controls: "", preload: "metadata", playsinline: "", "aria-label": `${title}, ${label}` }),
    `${title} `, el("span", { class: `outcome ${outcome}` }, outcome));
    const both = el("div", { class: "both" }, ...sides.map(half));
    function play() {
      for (const video of both.querySelectorAll("video")) {
        video.currentTime = 0;
        video.play().catch(() => { /* the video itself shows that it cannot be played */ });
      }
    }
    const button = sides.some(({ source }) => source === null) ? null
      : el("button", { type: "button", class: "play", onclick: play }, "Play both");
    return el("figure", { class: "duo" }, el("figcaption", {}, el("span", {}, label), button), both);
  }

  // ---- A table as a file ----

  function save(name, text, type) {
    const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function download(name, rows) {
    const cell = (value) => {
      // Text that a spreadsheet would take for a formula gets a leading quote, as in `proctor report --csv`.
      const isFormula = typeof value === "string" && /^[=+\-@\t\r\n]/.test(value);
      const text = value === null || value === undefined ? "" : `${isFormula ? "'" : ""}${value}`;
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const text = rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
    save(name, text, "text/csv");
  }

  // ---- Edits: the printed address of a local server has a token, which the browser keeps ----

  const TOKEN = "proctor-edit-token";
  const isLocal = () => ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname);
  let editToken = null;
  if (isLocal()) {
    const query = new URLSearchParams(location.search);
    const given = query.get("token");
    try {
      if (given) localStorage.setItem(TOKEN, given);
      editToken = localStorage.getItem(TOKEN);
    } catch { editToken = given; }
    if (given) {
      query.delete("token");
      history.replaceState(null, "", location.pathname + (query.size ? `?${query}` : "") + location.hash);
    }
  }
  const canEdit = () => editToken !== null;

  async function sendEdit(path, values) {
    const answer = await fetch(path, { method: "POST", body: JSON.stringify(values),
      headers: { "Content-Type": "application/json", "X-Proctor-Token": editToken } });
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  }

  // ---- Theme ----

  function remembered() {
    try { return localStorage.getItem("proctor-theme"); } catch { return null; }
  }
  function showTheme(theme) {
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = theme === "dark" ? "Light theme" : "Dark theme";
  }
  function startTheme() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const preferred = () => remembered() ?? (system.matches ? "dark" : "light");
    showTheme(preferred());
    system.addEventListener("change", () => showTheme(preferred()));
    byId("theme").addEventListener("click", () => {
      showTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
      try { localStorage.setItem("proctor-theme", document.documentElement.dataset.theme); } catch { /* not kept */ }
    });
  }

  return {
    byId, el, svg, pair, copyable, fixed, count, percent, interval, points, plural, seconds, sorted, sortableHead,
    startTheme, badge, showWayBack, showProgress, notice, follow, playback, sideBySide, download,
    save, canEdit, sendEdit,
  };
})();
