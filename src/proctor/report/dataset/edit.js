// Marks of episodes, and edits of the marked ones: the server deletes, relabels or splits them.
const datasetEdits = (() => {
  const { byId, el, count, plural, notice, canEdit, sendEdit } = parts;
  const POLL_MS = 500;
  const KEYS = "Space plays, n and p go to the next and the previous episode.";

  /** Numbers as text: 0, 4-6. */
  function ranges(numbers) {
    const spans = [];
    for (const number of numbers) {
      if (spans.length && number === spans.at(-1)[1] + 1) spans.at(-1)[1] = number;
      else spans.push([number, number]);
    }
    const texts = spans.map(([from, to]) => (from === to ? String(from) : `${from}-${to}`));
    return texts.length > 12 ? `${texts.slice(0, 12).join(", ")} …` : texts.join(", ");
  }

  /** `changed` is called when marks change. */
  function start(page, changed) {
    const allowed = page.served && page.editable && canEdit();
    const marked = new Set(), key = `proctor-marks ${page.version}`;
    const numbers = () => [...marked].sort((one, other) => one - other);
    let running = false, returnTo = null;
    const seen = `proctor-edit-seen ${page.about}`;

    // ---- Marks: kept while the page is reloaded, until the dataset changes ----

    function restore() {
      try {
        const total = page.episodes.index.length;
        for (const number of JSON.parse(sessionStorage.getItem(key)) ?? []) if (number < total) marked.add(number);
      } catch { /* nothing kept */ }
    }

    function update() {
      try { sessionStorage.setItem(key, JSON.stringify(numbers())); } catch { /* not kept */ }
      byId("edit-marks").hidden = !marked.size;
      byId("edit").hidden = !marked.size && !byId("edit-news").hasChildNodes();
      byId("marked").textContent = `${plural(marked.size, "episode")} marked: ${ranges(numbers())}`;
      for (const button of byId("actions").children) button.disabled = running;
      if (!byId("edit-form").hidden) closeForm();
      changed();
    }

    function set(episodes, isMarked) {
      if (!allowed || running) return;
      for (const episode of episodes) {
        if (isMarked) marked.add(episode.index); else marked.delete(episode.index);
      }
      update();
    }

    // ---- The three edits ----

    const rest = () => page.total - marked.size;
    const field = (name, label, attributes) => el("label", {}, el("span", {}, label), el("input", { name, type: "text", ...attributes }));
    const EDITS = {
      delete: {
        label: "Delete…", key: "d", does: () => `Delete ${plural(marked.size, "episode")}`,
        text: () => `Deletes ${count(marked.size)} of ${plural(page.total, "episode")}; the others are renumbered. ` +
          "The dataset as it is now is kept beside it, as a backup.",
        fields: () => [],
      },
      relabel: {
        label: "Relabel…", key: "r", does: () => `Relabel ${plural(marked.size, "episode")}`,
        text: () => "Sets the task of all their frames. The dataset as it is now is kept beside it, as a backup.",
        fields: () => [field("task", "New task", { required: "", list: "tasks", autocomplete: "off", maxlength: 10000 }),
          el("datalist", { id: "tasks" }, ...page.tasks.map((task) => el("option", { value: task })))],
      },
      split: {
        label: "Split…", key: "s", does: () => "Write the new datasets",
        text: () => `Writes the ${plural(marked.size, "marked episode")}, and the other ${count(rest())} if you name them, to new ` +
          `datasets beside this one: ${page.folder}_NAME. This dataset stays as it is.`,
        fields: () => [field("marked_name", "Name for the marked ones", { required: "", value: "val", maxlength: 200, autocomplete: "off" }),
          field("others_name", "Name for the others (empty: not written)", { value: "train", maxlength: 200, autocomplete: "off" })],
      },
    };

    function openForm(operation) {
      if (!marked.size || running) return;
      const edit = EDITS[operation], form = byId("edit-form");
      returnTo = document.activeElement;
      form.dataset.operation = operation;
      form.replaceChildren(el("p", {}, edit.text()), ...edit.fields(), el("div", { class: "controls" },
        el("button", { type: "submit", class: "strong" }, edit.does()),
        el("button", { type: "button", onclick: closeForm }, "Cancel")));
      form.hidden = false;
      form.scrollIntoView({ block: "nearest" });
      const first = form.querySelector("input, [type=submit]");
      first.focus();
      if (first.type === "text") first.select();
    }

    function closeForm() {
      byId("edit-form").hidden = true;
      if (returnTo?.isConnected) returnTo.focus();
    }

    async function submit(event) {
      event.preventDefault();
      const form = byId("edit-form"), given = Object.fromEntries(new FormData(form));
      form.hidden = true;
      try {
        const answer = await sendEdit("edit", { operation: form.dataset.operation, episodes: numbers(), version: page.version, ...given });
        watch(await answer.json());
      } catch (error) {
        show(notice(`Nothing was edited: ${error.message}`), "alert");
      }
    }

    // ---- What became of it ----

    function show(content, role = "status") {
      const place = byId("edit-news");
      place.setAttribute("role", role);
      place.replaceChildren(content);
      byId("edit").hidden = false;
    }

    /** Show the latest edit, unless it was dismissed. */
    function tell(status) {
      const dismiss = () => {
        try { sessionStorage.setItem(seen, String(status.number)); } catch { /* not kept */ }
        byId("edit-news").replaceChildren();
        update();
      };
      try { if (sessionStorage.getItem(seen) === String(status.number)) return; } catch { /* nothing kept */ }
      const button = el("button", { type: "button", onclick: dismiss }, "Dismiss");
      if (status.state === "failed") {
        const text = `The edit failed and the dataset is unchanged (${status.title}): ${status.reason}`;
        show(el("div", { class: "notice" }, el("p", {}, text), button), "alert");
      } else if (status.state === "done") {
        const what = status.backup === null ? "Written" : "Dataset";
        show(el("div", { class: "notice done" }, el("p", {}, `Done: ${status.title}`), el("dl", { class: "facts" },
          ...status.written.flatMap((text) => [el("dt", {}, what), el("dd", {}, text)]),
          ...(status.backup === null ? [] : [el("dt", {}, "Backup"), el("dd", { id: "backup" }, status.backup)])), button));
      }
    }

    /** Poll until the edit has ended; then load the new dataset, or show why it failed. */
    async function watch(status) {
      const began = performance.now();
      running = true;
      update();
      while (status.state === "running") {
        const seconds = Math.round((performance.now() - began) / 1000);
        show(notice(`Editing: ${status.title} … ${seconds} s`));
        await new Promise((done) => { setTimeout(done, POLL_MS); });
        try {
          status = await (await fetch("edit", { cache: "no-store" })).json();
        } catch {
          show(notice("The server does not answer. The dataset is either unchanged or edited; start the server again to see it."), "alert");
          return;
        }
      }
      running = false;
      if (status.state === "done") {
        try { sessionStorage.removeItem(key); } catch { /* nothing kept */ }
        location.reload();
      } else {
        update();
        tell(status);
      }
    }

    // ---- The page ----

    function begin() {
      if (!page.served) return;
      byId("edit-hint").textContent = allowed
        ? "Mark episodes with their boxes (shift: a range) or the x key, then delete (d), relabel (r) or split (s) them. " + KEYS
        : page.editable ? `To edit, open the address with ?token= that the command printed. ${KEYS}`
          : `This page is read-only: edits are accepted on an address of this machine only (--host=127.0.0.1). ${KEYS}`;
      if (!allowed) return;
      byId("actions").append(...Object.entries(EDITS).map(([operation, { label, key: letter }]) =>
        el("button", { type: "button", "data-operation": operation, "aria-keyshortcuts": letter, onclick: () => openForm(operation) }, label)),
        el("button", { type: "button", onclick: () => { marked.clear(); update(); } }, "Clear marks"));
      byId("edit-form").addEventListener("submit", submit);
      restore();
      update();
      tell(page.edit);
      if (page.edit.state === "running") watch(page.edit);
    }

    /** Handle a key and return whether it was one of an edit. */
    function onKey(event, shown) {
      if (event.key === "Escape" && !byId("edit-form").hidden) { closeForm(); return true; }
      if (!allowed) return false;
      if (event.key === "x" && shown) { set([shown], !marked.has(shown.index)); return true; }
      const operation = Object.keys(EDITS).find((name) => EDITS[name].key === event.key);
      if (!operation || !marked.size) return false;
      openForm(operation);
      return true;
    }

    return { allowed, begin, set, onKey, has: (episode) => marked.has(episode.index) };
  }

  return { start };
})();
