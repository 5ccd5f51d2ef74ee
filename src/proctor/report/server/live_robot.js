(() => {
  const { byId, el, fixed, startTheme } = parts;
  const page = JSON.parse(byId("run").textContent);
  const EVERY_MS = 200;
  startTheme();
  byId("title").textContent = page.title;

  const views = page.cameras.map((name) => {
    const live = el("img", { alt: `Camera ${name}` });
    const reference = el("img", { class: "reference", alt: `Reference picture of ${name}`, hidden: "" });
    byId("cameras").append(
      el("figure", {}, el("div", { class: "view" }, live, reference), el("figcaption", {}, name)),
    );
    return { name, live, reference, busy: false };
  });

  const joints = page.channels.map((channel) => {
    const bounded = channel.low !== null && channel.high !== null;
    const meter = el("meter", {
      min: bounded ? channel.low : -180, max: bounded ? channel.high : 180, "aria-label": channel.name,
    });
    const value = el("span", { class: "value" });
    byId("joints").append(el("div", { class: "joint" }, el("span", {}, channel.name), meter, value));
    return { meter, value, channel, bounded };
  });

  function drawJoints(state) {
    joints.forEach(({ meter, value, channel, bounded }, place) => {
      const now = state.joints[place], sent = state.sent[place];
      meter.value = now ?? 0;
      const limits = bounded ? ` [${fixed(channel.low, 0)}, ${fixed(channel.high, 0)}]` : "";
      const target = sent === null ? "" : ` → ${fixed(sent, 1)}`;
      value.textContent = `${fixed(now, 1)}${target} ${channel.unit}${limits}`;
    });
  }

  function drawCameras(state) {
    const opacity = byId("opacity").value / 100;
    byId("overlay").hidden = state.references.length === 0;
    for (const view of views) {
      if (!view.busy) {
        view.busy = true;
        view.live.onload = view.live.onerror = () => { view.busy = false; };
        view.live.src = `camera/${encodeURIComponent(view.name)}?step=${state.step}`;
      }
      const known = state.references.includes(view.name);
      view.reference.hidden = !known;
      view.reference.style.opacity = opacity;
      const source = `reference/${encodeURIComponent(view.name)}?of=${encodeURIComponent(state.headline)}`;
      if (known && view.reference.getAttribute("src") !== source) view.reference.src = source;
    }
  }

  function draw(state) {
    const planned = state.planned === null ? "" : ` of ${state.planned}`;
    byId("headline").textContent = state.headline;
    byId("phase").textContent = `${state.phase}${state.phase ? " · " : ""}${state.done}${planned} done`;
    byId("keys").textContent = state.keys;
    byId("loop").textContent = `loop ${fixed(state.rate, 1)} Hz of ${page.fps}, jitter p99 ${fixed(state.jitter_ms, 1)} ms`;
    drawJoints(state);
    drawCameras(state);
  }

  async function follow() {
    try {
      const answer = await fetch("state", { cache: "no-store" });
      if (answer.ok) draw(await answer.json());
      byId("about").textContent = "";
    } catch {
      byId("about").textContent = "The session has ended, or its computer does not answer.";
    }
    setTimeout(follow, EVERY_MS);
  }
  follow();
})();
