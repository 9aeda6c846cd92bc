// A tab: its pages, their controls, one request at a time, and what comes back.
class View {
  constructor(element, tab) {
    this.root = element;
    this.tab = tab;
    this.pages = app.catalogue.pages.filter((page) => page.tab === tab);
    this.page = this.pages[0];
    this.kept = new Map(); // values of each page, so that going back finds them
    this.figures = new Map();
    this.memory = {}; // options of each variant
    this.mode = "map"; // how maps are shown
    const query = app.pending && app.pending.get("tab") === tab ? app.pending : app.first && app.tab === tab ? app.first : new URLSearchParams();
    if (app.pending === query) app.pending = null;
    if (app.first === query) app.first = null;
    this.restore(query, true);
    new MutationObserver(() => { for (const figure of this.figures.values()) if (figure.paint) { figure.paint(); figure.drawHeads(); } }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }
  restore(query, first = false) {
    const asked = this.pages.find((page) => page.id === query.get("show"));
    this.open(asked || this.page, query, first);
  }
  open(page, query = null) {
    this.halt();
    if (this.page) this.kept.set(this.page.id, this.values);
    if (page !== this.page) { this.memory = {}; this.last = null; }
    this.page = page;
    if (query) this.mode = query.get("view") || "map";
    const held = this.kept.get(page.id);
    this.values = {};
    for (const control of page.controls) {
      const given = query ? unpack(control, query, this.values) : held && held[control.name];
      this.values[control.name] = given === undefined || (typeof given === "number" && Number.isNaN(given)) ? structuredClone(control.default) : given;
    }
    this.rebuild();
  }
  rebuild() {
    this.figures.clear();
    this.widgets = new Map();
    const several = this.pages.length > 1;
    const chooser = several ? h("select", { class: "at-chooser", "aria-label": word(this.tab === "questions" ? "page.question" : "page.model"), onchange: (event) => this.open(this.pages.find((page) => page.id === event.target.value)) },
      this.pages.map((page, at) => h("option", { value: page.id }, `${at + 1}. ${word(`title.${page.id}`)}`))) : null;
    if (chooser) chooser.value = this.page.id;
    const step = (by) => this.open(this.pages[(this.pages.indexOf(this.page) + by + this.pages.length) % this.pages.length]);
    this.rail = h("section", { class: "at-rail", "aria-label": word("page.controls") });
    this.stage = h("section", { class: "at-stage", "aria-label": word("page.figures") });
    this.sheet = h("section", { class: "at-sheet", "aria-label": word("page.beside") });
    this.status = h("div", { class: "at-status" });
    this.card = h("div", { class: "at-card", role: "alert", hidden: true });
    this.said = h("p", { class: "at-said" });
    this.place = h("div", { class: "at-figures" });
    this.stage.append(this.status, this.card, this.said, this.place);
    this.fillRail();
    this.root.replaceChildren(h("div", { class: `at-page${this.page.started ? " at-waits" : ""}${this.page.wide ? " at-wide" : ""}${this.page.controls.length ? "" : " at-bare"}`, "data-page": this.page.id, "data-state": this.busy ? "busy" : "idle" },
      several ? h("div", { class: "at-choose" }, h("button", { type: "button", class: "at-quiet-button", "aria-label": "←", onclick: () => step(-1) }, "←"), chooser, h("button", { type: "button", class: "at-quiet-button", "aria-label": "→", onclick: () => step(1) }, "→")) : null,
      h("h2", { class: "at-title" }, word(`title.${this.page.id}`)),
      h("div", { class: "at-grid" }, this.rail, this.stage, this.sheet)));
    this.sync();
    const pad = this.widgets.get("pixels");
    if (pad) pad.refresh(false);
    this.stale = app.tab !== this.tab; // drawn when it is looked at
    if (!this.stale) this.begin();
  }
  begin() {
    this.stale = false;
    if (!this.page.started) this.request();
    else if (!this.busy) {
      if (this.last) this.draw(this.last); // the language changed: what was found stays
      this.idle(word(this.last ? "page.changed" : "page.ready"));
    }
    app.remember(this);
  }
  shown() {
    if (this.stale) this.begin();
    else this.paint();
  }
  paint() {
    for (const figure of this.figures.values()) if (figure.paint) { figure.paint(); figure.read(false); }
  }
  fillRail() {
    const presets = Object.entries(this.page.presets);
    if (presets.length) this.rail.append(h("div", { class: "at-presets", role: "group", "aria-label": word("page.presets") }, h("span", { class: "at-quiet" }, word("page.presets")),
      presets.map(([name, values]) => h("button", { type: "button", class: "at-preset", "data-preset": name, onclick: () => this.preset(values) }, word(`preset.${name}`)))));
    for (const control of this.page.controls) {
      const make = WIDGETS[control.kind];
      if (!make) continue;
      const widget = make(control, this);
      this.widgets.set(control.name, widget);
      this.rail.append(widget);
    }
    if (this.page.started) this.rail.append(this.start = h("button", { type: "button", class: "at-start", onclick: () => this.request() }, word("page.start")));
    if (this.page.controls.length) this.rail.append(h("button", { type: "button", class: "at-quiet-button at-reset", onclick: () => this.preset({}) }, word("page.reset")));
  }
  preset(values) {
    this.memory = {};
    for (const control of this.page.controls) this.values[control.name] = structuredClone(control.name in values ? values[control.name] : control.default);
    this.sync();
    this.changed();
  }
  sync() { // every widget shows its value; what does not apply is not shown
    for (const control of this.page.controls) {
      const widget = this.widgets.get(control.name);
      if (!widget) continue;
      widget.set(this.values[control.name]);
      widget.hidden = Boolean(control.when && !control.when[1].includes(this.values[control.when[0]]));
    }
  }
  change(name, value) {
    const control = this.page.controls.find((one) => one.name === name);
    if (!control || same(this.values[name], value)) return;
    if (control.kind === "variant") {
      const options = this.page.controls.find((one) => one.of === name);
      if (options) {
        this.memory[options.name + this.values[name]] = this.values[options.name];
        this.values[options.name] = this.memory[options.name + value] || {};
      }
    }
    this.values[name] = value;
    this.sync();
    this.changed(name);
  }
  changed(name = "") {
    const pad = this.widgets.get("pixels");
    if (pad && name !== "pixels") pad.refresh(false);
    app.remember(this);
    if (this.page.started && name !== "head") { if (!this.busy) this.idle(word("page.changed")); return; }
    if (this.page.started) { if (!this.busy && this.last) this.idle(word("page.changed")); return; }
    this.request();
  }
  halt() {
    this.serial = (this.serial || 0) + 1; // whatever still comes is not for this page
    if (this.job) ask({ do: "stop", job: this.job }).catch(() => {});
    this.job = null;
    this.busy = this.again = false;
  }
  async request() {
    if (this.busy) {
      this.again = true;
      if (this.job) { const job = this.job; this.job = null; ask({ do: "stop", job }).catch(() => {}); }
      return;
    }
    this.busy = true;
    const serial = this.serial = (this.serial || 0) + 1;
    this.mark("busy");
    if (this.page.started) this.progress({ step: { text: word("page.starting"), done: 0, total: 0 } });
    try {
      let answer = await ask({ do: "draw", page: this.page.id, values: this.values });
      while (answer.job && serial === this.serial && !this.again) {
        this.job = answer.job;
        this.progress(answer);
        if (answer.partial) this.draw(answer.partial);
        answer = await ask({ do: "more", job: answer.job, news: answer.news });
      }
      if (answer.job && (serial !== this.serial || this.again)) ask({ do: "stop", job: answer.job }).catch(() => {});
      if (serial !== this.serial) return;
      this.job = null;
      if (!answer.job) this.finish(answer);
    } catch (error) {
      if (serial !== this.serial) return;
      this.idle("");
      this.problem({ title: word("page.lost"), detail: "" });
      this.again = false;
    }
    this.busy = false;
    if (this.again) { this.again = false; this.request(); }
  }
  finish(answer) {
    if (this.again) { if (answer.result) this.draw(answer.result); return; }
    this.idle("");
    if (answer.partial) this.draw(answer.partial);
    if (answer.problem) this.problem(answer.problem);
    else this.draw(answer.result);
    this.mark("idle");
    window.__drawn = (window.__drawn || 0) + 1;
  }
  stop() {
    this.halt();
    this.idle(word("page.stopped"));
    window.__drawn = (window.__drawn || 0) + 1;
  }
  mark(state) {
    const page = this.root.querySelector(".at-page");
    if (page) page.dataset.state = state;
  }
  idle(text) {
    this.mark("idle");
    this.status.replaceChildren(text ? h("p", { class: "at-quiet", role: "status" }, text) : "");
    if (this.start) this.start.disabled = false;
  }
  progress(answer) {
    const { step } = answer, share = step.total ? step.done / step.total : null;
    const left = answer.left ? word("page.left", { seconds: answer.left }) : "", text = answer.ahead ? word("page.waiting", { ahead: answer.ahead }) : step.text || word("page.working");
    if (this.start) this.start.disabled = true;
    this.status.replaceChildren(h("div", { class: "at-progress" },
      h("progress", { ...(share === null ? {} : { value: share }), max: 1, "aria-label": text }), h("span", { role: "status" }, [text, left].filter(Boolean).join(" · ")),
      h("button", { type: "button", class: "at-stop", onclick: () => this.stop() }, word("page.stop"))));
  }
  problem(found) {
    this.card.hidden = false;
    const again = h("button", { type: "button", class: "at-quiet-button", onclick: () => this.request() }, word("page.again"));
    this.card.replaceChildren(h("strong", {}, found.title), h("p", {}, found.detail), again);
    const options = this.page.controls.filter((one) => one.kind === "options").map((one) => this.widgets.get(one.name));
    for (const widget of options) if (widget.message) widget.message.textContent = "";
    const owner = options.find((widget) => found.control === "options" || widget.fields.some((field) => field.name === found.control));
    if (owner && owner.message) owner.message.textContent = found.detail;
  }
  draw(result) {
    this.last = result;
    this.card.hidden = true;
    for (const control of this.page.controls) {
      const widget = this.widgets.get(control.name);
      if (widget && widget.message) widget.message.textContent = "";
      if (widget && widget.info) this.gate(control, widget, (result.gates || {})[control.name]);
    }
    if (result.problem) this.problem(result.problem);
    this.stage.classList.toggle("at-failed", Boolean(result.problem));
    this.said.textContent = result.said || "";
    const kept = new Map();
    (result.problem ? [] : result.figures).forEach((figure, at) => {
      const key = `${figure.kind}-${figure.name}`, held = this.figures.get(key), made = held || new FIGURES[figure.kind](this, figure);
      if (held) held.update(figure);
      else this.tools(made, figure);
      made.element.dataset.figure = figure.name;
      kept.set(key, made);
      if (this.place.children[at] !== made.element) this.place.insertBefore(made.element, this.place.children[at] || null);
    });
    for (const [key, figure] of this.figures) if (!kept.has(key)) figure.element.remove();
    this.figures = kept;
    this.paint();
    this.beside(result);
  }
  gate(control, widget, gate) {
    if (!gate && !widget.gated) return;
    widget.gated = Boolean(gate);
    const forced = gate && gate.forced, set = !same(this.values[control.name], control.default);
    const input = widget.querySelectorAll("input");
    input.forEach((one) => { one.disabled = Boolean(gate) && (forced || !set); });
    if (widget.input) widget.input.checked = forced || this.values[control.name];
    widget.info.textContent = gate ? gate.reason : control.info ? word(control.info) : "";
  }
  tools(made, figure) {
    if (!made.caption || figure.kind === "code") return;
    const button = (form, act) => h("button", { type: "button", class: "at-tool", "data-form": form, "aria-label": `${word("page.export", { name: figure.name })}: ${word(`page.${form}`)}`, onclick: act }, word(`page.${form}`));
    const tools = h("span", { class: "at-figure-tools" });
    const name = () => `${this.page.id}-${figure.name}`;
    if (made.svg) {
      tools.append(button("png", () => this.png(made, name())), button("svg", () => save(`${name()}.svg`, [made.svg()], "image/svg+xml")));
    }
    if (made.csv) tools.append(button("csv", () => save(`${name()}.csv`, ["\ufeff", csvText(made.csv())], "text/csv")));
    made.caption.append(tools);
  }
  png(made, name) {
    const whole = made.canvas && made.canvas();
    if (whole) { // on the background of the page, not on none
      const canvas = h("canvas", { width: whole.width, height: whole.height }), pen = canvas.getContext("2d");
      pen.fillStyle = isDark() ? "#18181b" : "#ffffff"; pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(whole, 0, 0);
      canvas.toBlob((blob) => save(`${name}.png`, [blob], "image/png"));
      return;
    }
    const text = made.svg(), image = new Image(), url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    image.onload = () => {
      const canvas = h("canvas", { width: image.width * 2, height: image.height * 2 }), pen = canvas.getContext("2d");
      pen.fillStyle = isDark() ? "#18181b" : "#ffffff"; pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(`${name}.png`, [blob], "image/png"));
      URL.revokeObjectURL(url);
    };
    image.src = url;
  }
  beside(result) {
    const variants = this.page.controls.filter((one) => one.kind === "variant").map((one) => app.catalogue.variants[this.values[one.name]]).filter(Boolean);
    const parts = [];
    const formula = result.formula.length ? [["", result.formula]] : [];
    if (this.page.id === "compare") formula.push(...variants.map((one) => [one.name, one.formula]));
    if (formula.length) parts.push(h("h3", {}, word("page.formula")), ...formula.map(([name, trees]) => h("div", { class: "at-formula", lang: "en" }, name ? h("small", {}, name) : null, trees.map(mathml))));
    if (result.findings.length) parts.push(h("h3", {}, word("page.checked")), h("ul", { class: "at-findings" }, result.findings.map((one) => h("li", { class: `at-found-${one.tone}` }, one.text))));
    if (result.notes.length) parts.push(h("h3", {}, word("page.made_of")), h("ul", { class: "at-notes" }, result.notes.map((note) => h("li", {}, note))));
    const tools = [];
    if (result.python) {
      const button = h("button", { type: "button", class: "at-quiet-button", id: `at-python-${this.page.id}`, onclick: () => copy(result.python, button) }, word("page.python"));
      tools.push(button);
    }
    if (this.page.exports && result.figures.length) tools.push(h("button", { type: "button", class: "at-quiet-button at-npz", onclick: () => this.npz() }, word("page.npz")));
    if (tools.length) parts.push(h("div", { class: "at-sheet-tools" }, tools));
    if (result.python) parts.push(h("details", { class: "at-python" }, h("summary", {}, "Python"), h("pre", { tabindex: "0" }, result.python)));
    parts.push(...result.about.map(block));
    if (this.page.id === "explore" && variants.length) {
      const [one] = variants;
      parts.push(h("h3", { class: "at-about-title" }, one.name), h("p", {}, one.summary), h("p", { class: "at-quiet" }, word("page.from", one)), h("div", { class: "at-about" }, (one.about[app.language] || one.about.en).map(block)));
    }
    this.sheet.replaceChildren(...parts);
  }
  async npz() {
    const answer = await ask({ do: "export", page: this.page.id, values: this.values, form: "npz" });
    if (answer.result && answer.result.base64) save(answer.result.name, [bytes(answer.result.base64)], "application/octet-stream");
    else this.problem(answer.problem || answer.result.problem);
  }
  first(heat) { // one hint is enough for all maps of a page
    const maps = [...this.figures.values()].filter((one) => one.figure.kind === "heat");
    return !maps.length || maps[0] === heat;
  }
  reach(heat) { // maps that belong together share one scale, their difference has its own
    const alike = [...this.figures.values()].filter((one) => one.figure.kind === "heat" && one.figure.group === heat.figure.group && one.figure.difference === heat.figure.difference);
    return Math.max(...(alike.length ? alike : [heat]).map((one) => one.own));
  }
  linked(from, row, column) {
    for (const figure of this.figures.values()) if (figure !== from && figure.figure.group && figure.figure.group === from.figure.group) figure.move(row, column, false);
  }
  scaled(from) {
    for (const figure of this.figures.values()) if (figure !== from && from.figure.group && figure.figure.group === from.figure.group && figure.range.value !== from.range.value) { figure.range.value = from.range.value; figure.paint(); }
  }
}
function block(one) {
  const made = h({ h3: "h3", chip: "span" }[one.tag] || "p", { class: `at-block at-${one.tag === "chip" ? "chip" : "text"} ${one.style ? `at-${one.style}` : ""}` });
  if (typeof one.href === "string" && one.href.startsWith("https://arxiv.org/abs/")) made.append(h("a", { href: one.href, target: "_blank", rel: "noopener noreferrer" }, one.text));
  else made.textContent = one.text;
  return made;
}
function csvText(rows) { // a cell that a spreadsheet would run is quoted away
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    let text = String(value);
    if (typeof value !== "number" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
app.View = View;
