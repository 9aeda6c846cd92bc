// Matrices with their numbers, tables, facts, tiles of checks, pictures and code.
class Matrix {
  constructor(view, figure) { this.view = view; this.element = h("figure", { class: "at-figure at-matrix" }, this.caption = h("figcaption", {}, this.title = h("h4")), this.body = h("div", { class: "at-scroll" })); this.update(figure); }
  update(figure) {
    const same_ = this.figure && this.figure.control && figure.control === this.figure.control && this.element.contains(document.activeElement);
    this.figure = figure;
    this.title.textContent = figure.title;
    if (same_) return; // a cell is being edited: it keeps the focus, and its number is what was typed
    const most = Math.max(...figure.values.flat().map(Math.abs), 1e-12);
    const cell = (value, row, column) => {
      const hidden = figure.hidden && figure.hidden[row][column];
      if (figure.control) return h("td", {}, h("input", { type: "number", step: 0.5, value, "aria-label": `${figure.title} ${figure.rows[row] || row + 1} ${column + 1}`, oninput: (event) => this.edit(row, column, event.target) }));
      const share = Math.min(Math.abs(value) / most, 1), tint = value < 0 ? "29, 95, 168" : "208, 112, 10";
      return h("td", { class: hidden ? "at-masked" : "", style: hidden ? "" : `background:rgba(${tint}, ${(share * 0.42).toFixed(3)})` }, hidden ? figure.hidden_as : number(value, figure.digits));
    };
    this.body.replaceChildren(h("table", {}, figure.columns.length ? h("thead", {}, h("tr", {}, figure.rows.length ? h("td") : null, figure.columns.map((name) => h("th", { scope: "col" }, name)))) : null,
      h("tbody", {}, figure.values.map((row, at) => h("tr", { class: at === figure.row ? "at-marked" : "" }, figure.rows.length ? h("th", { scope: "row" }, figure.rows[at]) : null, row.map((value, column) => cell(value, at, column)))))));
  }
  edit(row, column, input) {
    const value = Number(input.value);
    if (input.value === "" || !Number.isFinite(value)) return;
    const whole = this.view.values[this.figure.control].map((one) => [...one]);
    whole[row][column] = value;
    this.view.change(this.figure.control, whole);
  }
  csv() { return [["", ...this.figure.columns], ...this.figure.values.map((row, at) => [this.figure.rows[at] || "", ...row])]; }
}

class Steps {
  constructor(view, figure) { this.view = view; this.parts = new Map(); this.element = h("figure", { class: "at-figure" }, this.caption = h("figcaption", {}, this.title = h("h3")), this.body = h("div", { class: "at-steps" })); this.update(figure); }
  update(figure) {
    this.figure = figure;
    this.title.textContent = figure.title;
    const kept = new Map();
    for (const part of figure.parts) {
      const held = this.parts.get(part.name);
      if (held) held.update(part);
      kept.set(part.name, held || new Matrix(this.view, part));
    }
    for (const [name, held] of this.parts) if (!kept.has(name)) held.element.remove();
    let at = 0;
    for (const held of kept.values()) { // only what is new is moved: focus stays
      if (this.body.children[at] !== held.element) this.body.insertBefore(held.element, this.body.children[at] || null);
      at++;
    }
    this.parts = kept;
  }
  csv() { return this.figure.parts.flatMap((part) => [[part.title], ...part.values, []]); }
}

class Table {
  constructor(view, figure) { this.element = h("figure", { class: "at-figure" }, this.caption = h("figcaption", {}, this.title = h("h3")), this.body = h("div", { class: "at-scroll", tabindex: "0" })); this.update(figure); }
  update(figure) {
    this.figure = figure;
    this.title.textContent = figure.title;
    const tone = (row, column) => figure.tones && figure.tones[row] ? `at-tone-${figure.tones[row][column] || "none"}` : "";
    this.body.replaceChildren(h("table", { class: "at-table" }, h("thead", {}, h("tr", {}, figure.columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, figure.rows.map((row, at) => h("tr", {}, row.map((cell, column) => h(column || !figure.heads ? "td" : "th", { class: tone(at, column), ...(column ? {} : { scope: "row" }) }, String(cell))))))));
  }
  csv() { return [this.figure.columns, ...this.figure.rows]; }
}

class Facts {
  constructor(view, figure) { this.element = h("figure", { class: "at-figure at-facts" }, this.caption = h("figcaption", {}, this.title = h("h3")), this.body = h("dl")); this.update(figure); }
  update(figure) {
    this.figure = figure;
    this.title.textContent = figure.title;
    this.body.replaceChildren(...figure.rows.map((row) => h("div", {}, h("dt", {}, row.label), h("dd", {}, row.value))));
  }
  csv() { return this.figure.rows.map((row) => [row.label, row.value]); }
}

const MARKS = { waiting: "·", pass: "✓", fail: "✗", error: "!", xfail: "≈", skip: "–" };
class Tiles {
  constructor(view, figure) {
    this.open = null;
    this.element = h("figure", { class: "at-figure" }, this.caption = h("figcaption", {}, this.title = h("h3")), this.body = h("div", { class: "at-tiles" }), this.detail = h("div", { class: "at-tile-detail", "aria-live": "polite" }));
    this.update(figure);
  }
  update(figure) {
    this.figure = figure;
    this.title.textContent = figure.title;
    while (this.body.children.length > figure.tiles.length) this.body.lastChild.remove();
    figure.tiles.forEach((tile, at) => {
      const button = this.body.children[at] || this.body.appendChild(h("button", { type: "button" }));
      button.className = `at-tile at-status-${tile.status}`;
      button.textContent = `${MARKS[tile.status] || "?"} ${tile.id}`;
      button.title = tile.law;
      button.setAttribute("aria-label", `${tile.id}, ${word(`tile.${tile.status}`)}: ${tile.law}`);
      button.setAttribute("aria-pressed", String(tile.id === this.open));
      button.onclick = () => { this.open = this.open === tile.id ? null : tile.id; this.update(this.figure); };
    });
    const chosen = figure.tiles.find((tile) => tile.id === this.open);
    if (!chosen) { this.detail.replaceChildren(h("p", { class: "at-quiet" }, word("tile.open"))); return; }
    const rows = ["message", "call", "expected", "actual"].filter((name) => chosen[name]).map((name) => h("div", {}, h("dt", {}, word(`tile.${name}`)), h("dd", {}, h("pre", {}, chosen[name]))));
    this.detail.replaceChildren(h("h4", {}, `${chosen.id} · ${word(`tile.${chosen.status}`)}`), h("p", {}, chosen.law), h("dl", {}, rows), chosen.snippet ? codeBlock(chosen.snippet, word("tile.snippet")) : "");
  }
  csv() { return [["check", "level", "status", "law", "message"], ...this.figure.tiles.map((tile) => [tile.id, tile.level, tile.status, tile.law, tile.message || ""])]; }
}

function codeBlock(text, title = "") {
  const button = h("button", { type: "button", class: "at-quiet-button", onclick: () => copy(text, button) }, word("page.copy"));
  return h("div", { class: "at-code" }, h("div", {}, title ? h("b", {}, title) : null, button), h("pre", { tabindex: "0" }, text));
}
class Code {
  constructor(view, figure) { this.element = h("figure", { class: "at-figure" }, this.caption = h("figcaption", {}, this.title = h("h3")), this.body = h("div")); this.update(figure); }
  update(figure) { this.figure = figure; this.title.textContent = figure.title; this.body.replaceChildren(codeBlock(figure.text)); }
}

const FIGURES = { heat: Heat, bars: Bars, curves: Curves, plane: Plane, mixing: Mixing, matrix: Matrix, steps: Steps, table: Table, facts: Facts, tiles: Tiles, code: Code };
