// Labels that a person gives to episodes: typed under a video, kept in the run folder or the browser.
const labels = (() => {
  const { byId, el, count, download, save, canEdit, sendEdit } = parts;
  const LONGEST = 200, MOST = 20;
  const fields = new Map();  // of an episode: it may be shown twice
  let page = null;

  const keyOf = (episode) => [episode.task.group, episode.task.id, episode.index].join("/");
  const store = () => `proctor-labels ${page.run.place} ${page.run.fingerprint}`;
  const record = (episode) => ({
    suite: episode.task.group, task_id: episode.task.id, episode_index: episode.index, labels: episode.labels,
  });

  // ---- Kept in the browser: all labels of a plain file, and those that the server did not take ----

  function kept() {
    try { return JSON.parse(localStorage.getItem(store())) ?? {}; } catch { return {}; }
  }
  function keep(episode) {
    const all = kept();
    all[keyOf(episode)] = episode.labels;
    localStorage.setItem(store(), JSON.stringify(all));
  }
  function drop(episode) {
    const all = kept();
    delete all[keyOf(episode)];
    try { localStorage.setItem(store(), JSON.stringify(all)); } catch { /* nothing was kept */ }
  }

  async function saveLabels(episode, say) {
    if (page.run.editable && canEdit()) {
      try {
        await sendEdit("labels", record(episode));
        drop(episode);
        say("saved in the run folder");
        return;
      } catch (error) {
        say(`not saved: ${error.message}`);
      }
    }
    try {
      keep(episode);
      if (!page.run.editable) say("kept in this browser");
      else if (!canEdit()) say("kept in this browser; open the address with ?token= that the command printed");
    } catch {
      say("not kept: this browser stores nothing for this page; download the labels");
    }
  }

  // ---- The field under a video ----

  const parse = (text) => [...new Set(text.split(";").map((word) => word.trim().slice(0, LONGEST)).filter(Boolean))].slice(0, MOST);

  function labelField(episode) {
    const said = el("span", { class: "quiet", role: "status" });
    const input = el("input", { type: "text", class: "label", list: "label-names", maxlength: LONGEST * MOST,
      placeholder: "Label, such as: missed the grasp", "aria-label": "Labels, separated by semicolons",
      onchange: change, onclick: (event) => event.stopPropagation() });
    input.value = episode.labels.join("; ");
    const same = fields.get(episode) ?? [];
    fields.set(episode, [...same.filter((other) => other.isConnected), input]);
    function change() {
      episode.labels = parse(input.value);
      for (const other of fields.get(episode)) other.value = episode.labels.join("; ");
      page.changed(episode);
      showLabels();
      saveLabels(episode, (text) => { said.textContent = text; });
    }
    return el("div", { class: "labelled" }, input, said);
  }

  // ---- All labels: how often, and as files ----

  function showLabels() {
    const labelled = page.episodes.filter((episode) => episode.labels.length);
    const numbers = new Map();
    for (const label of labelled.flatMap((episode) => episode.labels)) numbers.set(label, (numbers.get(label) ?? 0) + 1);
    const names = [...numbers.entries()].sort(([a, n], [b, m]) => m - n || a.localeCompare(b));
    byId("label-names").replaceChildren(...names.map(([label]) => el("option", { value: label })));
    byId("labels").hidden = !labelled.length;
    byId("labels").replaceChildren("Labels ",
      ...names.slice(0, 30).map(([label, n]) => el("button", { type: "button", onclick: () => page.searchFor(label) },
        `${label} `, el("span", { class: "quiet" }, count(n)))),
      el("button", { type: "button", title: "The labels as a table", onclick: () => saveCsv(labelled) }, "Labels as CSV"),
      el("button", { type: "button", title: "The file labels.jsonl of the run folder", onclick: () => saveJson(labelled) }, "labels.jsonl"));
  }

  function saveCsv(labelled) {
    const head = ["suite", "task", "task_id", "episode_index", "seed", "label"];
    download("labels.csv", [head, ...labelled.flatMap((e) => e.labels.map((label) =>
      [e.task.group, e.task.name, e.task.id, e.index, e.seed, label]))]);
  }
  function saveJson(labelled) {
    const time = Math.floor(Date.now() / 1000);
    save("labels.jsonl", labelled.map((e) => `${JSON.stringify({ ...record(e), time })}\n`).join(""), "application/x-ndjson");
  }

  function startLabels(run, episodes, { searchFor, changed }) {
    page = { run, episodes, searchFor, changed };
    document.body.append(el("datalist", { id: "label-names" }));
    const waiting = kept();
    for (const episode of episodes) {
      if (!(keyOf(episode) in waiting)) continue;
      episode.labels = waiting[keyOf(episode)];
      if (run.editable && canEdit()) saveLabels(episode, () => {});
    }
    showLabels();
  }

  return { labelField, startLabels };
})();
