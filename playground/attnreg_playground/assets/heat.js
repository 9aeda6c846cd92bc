// The weights of one head in full, and of all heads as thumbnails (see heat.py).
const VISIBLE = 0, PADDED = 2, MISSING = 3, NO_LEVEL = 255;
const VIRIDIS = ["440154", "482878", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"];
const SIGNED = { light: ["1d5fa8", "7fb1dd", "f7f7f7", "f0ad6a", "c85a00"], dark: ["4a9bea", "2f5f8f", "25262b", "96591f", "ff9a3c"] };
const FONT = '13px system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif';
const MOST_IN_TABLE = 64;
const VIEWS = ["map", "lines", "text", "bars", "table"];

const ink = () => isDark() ? { text: "#e8e8ec", quiet: "#a2a4ad", hatch: "#4a4b54", void: "#2b2c33", edge: "#ffffff", border: "#ff9a3c" }
  : { text: "#1f2328", quiet: "#5c5f68", hatch: "#c3c5cc", void: "#eeeef1", edge: "#000000", border: "#c85a00" };
const rgbOf = (hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
function between(anchors, share) {
  const place = Math.min(Math.max(share, 0), 1) * (anchors.length - 1), index = Math.min(Math.floor(place), anchors.length - 2);
  const from = rgbOf(anchors[index]), to = rgbOf(anchors[index + 1]);
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * (place - index)));
}
const scaleOf = (signed) => {
  const anchors = signed ? SIGNED[isDark() ? "dark" : "light"] : VIRIDIS;
  return Array.from({ length: 256 }, (_, level) => between(anchors, level / 255));
};
const packed = (rgb) => (255 << 24) | (rgb[2] << 16) | (rgb[1] << 8) | rgb[0];
const css = (rgb) => `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;
const luminance = (rgb) => (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) / 255;

class Heat {
  constructor(view, figure) {
    this.view = view;
    this.cell = { row: 0, column: 0 };
    this.pointed = false;
    this.mode = VIEWS.includes(view.mode) ? view.mode : "map";
    this.build();
    this.update(figure);
  }
  build() {
    this.map = h("canvas", { class: "hm-map", tabindex: "0", role: "application" });
    this.stage = h("div", { class: "hm-stage" }, this.map);
    this.other = h("div", { class: "hm-other" });
    this.readout = h("div", { class: "hm-readout" });
    this.live = h("div", { class: "hm-live", "aria-live": "polite" });
    this.bar = h("canvas", { class: "hm-scale", width: 256, height: 1 });
    this.low = h("span"); this.high = h("span", { class: "hm-high" }); this.legend = h("span", { class: "hm-legend" });
    this.range = h("select", { class: "hm-range-select", onchange: () => { this.paint(); this.view.scaled(this); } }, h("option", { value: "own" }), h("option", { value: "unit" }));
    this.rangeLabel = h("label", { class: "hm-range" });
    this.views = h("div", { class: "hm-views", role: "group" });
    this.heads = h("div", { class: "hm-heads", role: "group" });
    this.image = h("canvas", { class: "hm-image", role: "img" });
    this.tag = h("span", { class: "hm-kind" });
    this.element = h("figure", { class: "at-figure hm" },
      this.caption = h("figcaption", {}, this.title = h("h3", { class: "hm-title" }), this.tag, this.views), this.stage, this.other, this.readout, this.live,
      h("div", { class: "hm-bar" }, this.low, this.bar, this.high, this.legend, this.rangeLabel), this.image, this.heads);
    this.map.addEventListener("pointermove", (event) => this.point(event));
    this.map.addEventListener("pointerdown", (event) => this.point(event));
    this.map.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.paint()).observe(this.stage);
  }
  get grouped() { return Boolean(this.figure.group); }
  update(figure) {
    this.figure = figure;
    this.exact = new Float32Array(bytes(figure.exact).buffer);
    this.states = figure.states ? bytes(figure.states) : null;
    this.rows = figure.queries.length; this.columns = figure.keys.length;
    this.cell = { row: Math.min(this.cell.row, this.rows - 1), column: Math.min(this.cell.column, this.columns - 1) };
    const head = figure.head === -1 ? word("map.mean") : figure.head === -2 ? word("map.largest") : `${word("map.head")} ${figure.head + 1}`;
    this.title.textContent = figure.heads.length > 1 || this.grouped && figure.head ? `${figure.title} · ${head}` : figure.title;
    this.tag.textContent = figure.tag; this.tag.hidden = !figure.tag;
    this.rangeLabel.replaceChildren(h("span", {}, word("map.range")), this.range);
    this.range.options[0].textContent = word("map.range_own");
    this.range.options[1].textContent = figure.signed ? "-1 … 1" : "0 … 1";
    this.map.setAttribute("aria-label", word("map.label", { title: this.title.textContent }));
    this.map.setAttribute("aria-roledescription", word("map.role"));
    this.views.setAttribute("aria-label", word("map.view"));
    this.views.replaceChildren(...VIEWS.map((mode) => h("button", { type: "button", class: "hm-view", "data-view": mode, "aria-pressed": String(mode === this.mode), onclick: () => this.look(mode) }, word(`map.view_${mode}`))));
    this.image.hidden = !figure.image;
    this.image.setAttribute("aria-label", word("map.image"));
    this.live.textContent = "";
    this.paint(); this.drawHeads(); this.read(false);
  }
  look(mode) {
    this.mode = this.view.mode = mode;
    app.remember(this.view);
    for (const button of this.views.children) button.setAttribute("aria-pressed", String(button.dataset.view === mode));
    this.paint();
  }
  at(row, column) { return this.exact[row * this.columns + column]; }
  state(row, column) { return this.states ? this.states[row * this.columns + column] : VISIBLE; }
  get reach() {
    if (this.range.value === "unit") return 1;
    return (this.grouped ? this.view.reach(this) : this.own) || 1;
  }
  get own() { return this.figure.signed ? Math.max(Math.abs(this.figure.low), Math.abs(this.figure.high)) : this.figure.high; }
  share(weight) { return this.figure.signed ? 0.5 + weight / this.reach / 2 : weight / this.reach; }
  colour(weight) { return Number.isNaN(weight) ? rgbOf(ink().void.slice(1)) : this.lut[Math.round(Math.min(Math.max(this.share(weight), 0), 1) * 255)]; }
  paint() {
    if (!this.figure) return;
    this.lut = scaleOf(this.figure.signed);
    this.stage.hidden = this.mode !== "map";
    this.other.hidden = this.mode === "map";
    this.element.dataset.mode = this.mode;
    if (this.mode === "map") this.drawMap();
    else this.other.replaceChildren(this[`view_${this.mode}`]());
    this.drawScale();
    this.drawImage();
  }
  layout(pen) {
    pen.font = FONT;
    const rows = this.figure.queries.map((token) => short(token)), columns = this.figure.keys.map((token) => short(token));
    const widest = (labels) => Math.ceil(Math.max(...labels.map((label) => pen.measureText(label).width)));
    const width = Math.max(this.stage.clientWidth, 160), left = Math.min(widest(rows) + 14, Math.floor(width * 0.3));
    const most = this.grouped ? 420 : 600, many = Math.max(this.rows, this.columns);
    const size = Math.max(Math.min((width - left - 6) / this.columns, 104, most / Math.min(many, 14)), 0.5);
    const flat = widest(columns) <= size - 6, top = flat ? 26 : Math.min(widest(columns) + 14, 120);
    return { rows, columns, left, top, size, flat, wide: Math.ceil(left + size * this.columns + 6), high: Math.ceil(top + size * this.rows + 6) };
  }
  drawMap() {
    const pen = this.map.getContext("2d"), colours = ink(), ratio = window.devicePixelRatio || 1;
    const box = this.box = this.layout(pen);
    this.map.width = box.wide * ratio; this.map.height = box.high * ratio;
    this.map.style.width = box.wide + "px"; this.map.style.height = box.high + "px";
    pen.scale(ratio, ratio); pen.font = FONT;
    if (box.size < 5) this.drawPixels(pen, colours); else this.drawCells(pen, colours);
    if (this.figure.border) this.drawBorder(pen, colours);
    this.drawLabels(pen, colours);
    if (this.pointed) this.drawCross(pen, colours);
  }
  drawPixels(pen, colours) { // many small cells: one image, scaled up
    const tile = document.createElement("canvas");
    tile.width = this.columns; tile.height = this.rows;
    const inner = tile.getContext("2d"), picture = inner.createImageData(this.columns, this.rows);
    const none = rgbOf(colours.void.slice(1)), words = new Uint32Array(picture.data.buffer);
    const lut = this.lut.map(packed), blank = packed(none);
    for (let at = 0; at < words.length; at++) {
      const weight = this.exact[at];
      words[at] = this.states && this.states[at] !== VISIBLE ? blank : lut[Math.round(Math.min(Math.max(this.share(weight), 0), 1) * 255)];
    }
    inner.putImageData(picture, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(tile, this.box.left, this.box.top, this.box.size * this.columns, this.box.size * this.rows);
  }
  drawCells(pen, colours) {
    const { left, top, size } = this.box, pattern = hatch(pen, colours), gap = size > 12 ? 1 : 0;
    for (let row = 0; row < this.rows; row++) for (let column = 0; column < this.columns; column++) {
      const x = Math.round(left + column * size), y = Math.round(top + row * size);
      const w = Math.round(left + (column + 1) * size) - x - gap, t = Math.round(top + (row + 1) * size) - y - gap;
      const state = this.state(row, column), weight = this.at(row, column), rgb = this.colour(weight);
      pen.fillStyle = state === VISIBLE ? css(rgb) : state === MISSING ? colours.void : pattern;
      pen.fillRect(x, y, w, t);
      if (state === MISSING) {
        pen.strokeStyle = colours.text; pen.beginPath();
        pen.moveTo(x + w * 0.25, y + t * 0.25); pen.lineTo(x + w * 0.75, y + t * 0.75);
        pen.moveTo(x + w * 0.75, y + t * 0.25); pen.lineTo(x + w * 0.25, y + t * 0.75); pen.stroke();
      } else if (state === VISIBLE && size >= 40) {
        pen.fillStyle = luminance(rgb) > 0.5 ? "#16181d" : "#ffffff";
        pen.textAlign = "center"; pen.textBaseline = "middle";
        pen.fillText(weight.toFixed(2), x + w / 2, y + t / 2);
      }
    }
  }
  drawBorder(pen, colours) {
    const { left, top, size } = this.box, border = this.figure.border;
    pen.strokeStyle = colours.border; pen.lineWidth = 2; pen.setLineDash([6, 4]);
    pen.beginPath();
    const x = left + Math.min(border, this.columns) * size, y = top + Math.min(border, this.rows) * size;
    pen.moveTo(x, top); pen.lineTo(x, top + size * this.rows); pen.moveTo(left, y); pen.lineTo(left + size * this.columns, y);
    pen.stroke(); pen.setLineDash([]);
  }
  drawLabels(pen, colours) {
    const { left, top, size, rows, columns, flat } = this.box, step = Math.ceil(20 / size);
    const near = (index, chosen) => this.pointed && index !== chosen && Math.abs(index - chosen) < step;
    const shown = (index, chosen) => (index % step === 0 && !near(index, chosen)) || (this.pointed && index === chosen);
    pen.textBaseline = "middle";
    const paint = (on, faint) => { pen.font = (on ? "600 " : "") + FONT; pen.fillStyle = on ? colours.text : faint ? colours.hatch : colours.quiet; };
    rows.forEach((label, row) => {
      if (!shown(row, this.cell.row)) return;
      paint(this.pointed && row === this.cell.row, false); pen.textAlign = "right";
      pen.fillText(label, left - 7, top + (row + 0.5) * size, left - 8);
    });
    columns.forEach((label, column) => {
      if (!shown(column, this.cell.column)) return;
      paint(this.pointed && column === this.cell.column, this.figure.padded[column]);
      const middle = left + (column + 0.5) * size;
      if (flat || pen.measureText(label).width <= size - 2) { pen.textAlign = "center"; pen.fillText(label, middle, top - 13); return; }
      pen.save(); pen.translate(middle, top - 7); pen.rotate(-Math.PI / 2); pen.textAlign = "left";
      pen.fillText(label, 0, 0, top - 10); pen.restore();
    });
  }
  drawCross(pen, colours) {
    const { left, top, size } = this.box, { row, column } = this.cell;
    pen.strokeStyle = colours.edge; pen.lineWidth = 2;
    pen.strokeRect(left + column * size - 0.5, top + row * size - 0.5, Math.max(size, 3), Math.max(size, 3));
    pen.lineWidth = 1; pen.globalAlpha = 0.35;
    pen.strokeRect(left - 0.5, top + row * size - 0.5, size * this.columns, size);
    pen.strokeRect(left + column * size - 0.5, top - 0.5, size, size * this.rows); pen.globalAlpha = 1;
  }
  drawScale() {
    const pen = this.bar.getContext("2d");
    this.lut.forEach((rgb, level) => { pen.fillStyle = css(rgb); pen.fillRect(level, 0, 1, 1); });
    const unit = this.range.value === "unit", most = this.reach;
    this.low.textContent = unit ? (this.figure.signed ? "-1" : "0") : number(this.figure.signed ? -most : 0);
    this.high.textContent = unit ? "1" : number(most);
    this.legend.textContent = `min ${number(this.figure.low)} · max ${number(this.figure.high)}`;
  }
  drawImage() { // the picture that the keys are patches of, lit by the marked row
    const image = this.figure.image;
    if (!image) return;
    const zoom = Math.max(1, Math.floor(Math.min(320 / image.width, 320 / image.height)));
    this.image.width = image.width * zoom; this.image.height = image.height * zoom;
    const pen = this.image.getContext("2d"), grey = bytes(image.pixels);
    const high = zoom * image.height / image.rows, wide = zoom * image.width / image.columns;
    grey.forEach((level, at) => {
      pen.fillStyle = `rgb(${level},${level},${level})`;
      pen.fillRect(at % image.width * zoom, Math.floor(at / image.width) * zoom, zoom, zoom);
    });
    const row = Array.from({ length: image.rows * image.columns }, (_, at) => this.at(this.cell.row, at + image.first));
    const most = Math.max(...row.map(Math.abs)) || 1;
    row.forEach((weight, at) => {
      pen.globalAlpha = Math.abs(weight) / most * 0.72;
      pen.fillStyle = weight < 0 ? "#1d5fa8" : "#ff9a1f";
      pen.fillRect(at % image.columns * wide, Math.floor(at / image.columns) * high, wide, high);
    });
    pen.globalAlpha = 1;
    if (this.cell.row < image.rows * image.columns) {
      pen.strokeStyle = "#ff3fa4"; pen.lineWidth = 2;
      pen.strokeRect(this.cell.row % image.columns * wide + 1, Math.floor(this.cell.row / image.columns) * high + 1, wide - 2, high - 2);
    }
  }
  drawHeads() {
    const { heads } = this.figure;
    this.heads.hidden = heads.length < 2;
    this.heads.setAttribute("aria-label", word("map.heads"));
    if (heads.length < 2) { this.heads.replaceChildren(); return; }
    const button = (head, name, inner) => h("button", { type: "button", class: "hm-head", "data-head": head, "aria-pressed": String(head === this.figure.head), onclick: () => this.view.change("head", head) }, inner, h("b", {}, name));
    const both = [[-1, "map.mean"], [-2, "map.largest"]].map(([head, key]) => button(head, word(key), null));
    const ones = heads.map((thumbnail, index) => {
      const canvas = h("canvas");
      thumb(canvas, thumbnail, this.lut);
      const made = button(index, `${word("map.head")} ${index + 1}`, canvas);
      for (const name of ["entropy", "distance", "rank", "max"]) if (thumbnail[name] !== null) made.append(h("small", {}, `${word(`map.${name}`)} ${thumbnail[name].toFixed(2)}`));
      return made;
    });
    this.heads.replaceChildren(h("div", { class: "hm-together" }, both), ...ones);
  }
  read(aloud) {
    const { row, column } = this.cell, weight = this.at(row, column), state = ["", word("map.masked"), word("map.padding"), word("map.missing")][this.state(row, column)];
    const tail = number(weight) + (state ? ` (${state})` : ""), query = this.figure.queries[row], key = this.figure.keys[column];
    this.readout.textContent = this.pointed ? `${word("map.query")} ${query} → ${word("map.key")} ${key}: ${tail}` : this.mode === "map" && this.view.first(this) ? word("map.hint") : "";
    if (!aloud) return;
    let place = 1;
    for (let at = 0; at < this.columns; at++) if (this.at(row, at) > weight) place++;
    this.live.textContent = `${word("map.query")} ${query}, ${word("map.key")} ${key}, ${tail}, ${word("map.rank_of", { place, count: this.columns })}`;
  }
  move(row, column, aloud) { // also called for the other maps of a group
    if (row >= this.rows || column >= this.columns) return;
    this.cell = { row, column }; this.pointed = true;
    this.paint(); this.read(aloud);
  }
  go(row, column, aloud) {
    this.move(row, column, aloud);
    if (this.grouped) this.view.linked(this, row, column);
  }
  point(event) {
    if (!this.box) return;
    const place = this.map.getBoundingClientRect();
    const column = Math.floor((event.clientX - place.left - this.box.left) / this.box.size), row = Math.floor((event.clientY - place.top - this.box.top) / this.box.size);
    if (row < 0 || column < 0 || row >= this.rows || column >= this.columns) return;
    if (this.pointed && row === this.cell.row && column === this.cell.column) return;
    this.go(row, column, false);
  }
  key(event) {
    const right = this.columns - 1, down = this.rows - 1;
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -right], End: [0, right], PageUp: [-down, 0], PageDown: [down, 0] };
    const move = event.key === "Enter" ? [0, 0] : moves[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const keep = (value, most) => Math.min(Math.max(value, 0), most);
    const next = this.pointed ? [keep(this.cell.row + move[0], down), keep(this.cell.column + move[1], right)] : [this.cell.row, this.cell.column];
    this.go(...next, true);
  }
  view_table() {
    if (Math.max(this.rows, this.columns) > MOST_IN_TABLE) return h("p", { class: "at-quiet" }, word("map.too_long"));
    return h("div", { class: "at-scroll", tabindex: "0" }, h("table", { class: "at-table" },
      h("thead", {}, h("tr", {}, h("td"), this.figure.keys.map((key) => h("th", { scope: "col" }, short(key))))),
      h("tbody", {}, this.figure.queries.map((query, row) => h("tr", {}, h("th", { scope: "row" }, short(query)), this.figure.keys.map((_, column) => h("td", {}, number(this.at(row, column)))))))));
  }
  rowsToChoose() { // which query: for the views of one row
    return h("div", { class: "hm-tokens" }, this.figure.queries.map((token, row) =>
      h("button", { type: "button", class: "hm-token", "aria-pressed": String(row === this.cell.row), onclick: () => this.go(row, this.cell.column, true) }, token)));
  }
  view_text() {
    return h("div", {}, this.rowsToChoose(), h("p", { class: "hm-text" }, this.figure.keys.map((token, column) => {
      const rgb = this.colour(this.at(this.cell.row, column));
      return h("span", { style: `background:${css(rgb)};color:${luminance(rgb) > 0.5 ? "#16181d" : "#fff"}`, title: number(this.at(this.cell.row, column)) }, token);
    })));
  }
  view_bars() {
    const rows = this.figure.keys.map((key, column) => ({ label: key, values: [this.at(this.cell.row, column)] }));
    return h("div", {}, this.rowsToChoose(), drawBars({ rows, series: [""], digits: 4, unit: "", most: this.range.value === "unit" ? 1 : null, log: false, title: this.title.textContent }));
  }
  view_lines() {
    const many = Math.max(this.rows, this.columns), step = Math.max(14, Math.min(28, 560 / many)), high = many * step + 16;
    const wide = 420, drawn = h("svg:svg", { viewBox: `0 0 ${wide} ${high}`, class: "at-svg hm-lines", role: "img", "aria-label": this.title.textContent });
    const most = Math.max(Math.abs(this.figure.low), Math.abs(this.figure.high)) || 1;
    for (let row = 0; row < this.rows; row++) for (let column = 0; column < this.columns; column++) {
      const weight = this.at(row, column), size = Math.abs(weight) / most;
      if (!(size > 0.04) || (this.pointed && row !== this.cell.row)) continue;
      drawn.append(h("svg:line", { x1: 120, y1: row * step + 16, x2: 300, y2: column * step + 16, stroke: weight < 0 ? "#1d5fa8" : "#d0700a", "stroke-width": (size * 5).toFixed(2), "stroke-opacity": (0.15 + size * 0.8).toFixed(2) }));
    }
    this.figure.queries.forEach((token, row) => drawn.append(h("svg:text", { x: 112, y: row * step + 20, "text-anchor": "end", class: this.pointed && row === this.cell.row ? "on" : "", onpointerenter: () => this.go(row, this.cell.column, false) }, short(token, 9))));
    this.figure.keys.forEach((token, column) => drawn.append(h("svg:text", { x: 308, y: column * step + 20 }, short(token, 9))));
    return drawn;
  }
  csv() { return [["", ...this.figure.keys], ...this.figure.queries.map((query, row) => [query, ...this.figure.keys.map((_, column) => this.at(row, column))])]; }
  canvas() { if (this.mode === "lines") return null; if (this.mode !== "map") this.look("map"); return this.map; }
  svg() {
    if (this.mode === "lines") return standalone(this.other.querySelector("svg"));
    if (this.mode !== "map") this.look("map");
    const { left, top, size, wide, high, rows, columns, flat } = this.box, colours = ink(), made = h("svg:svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, "font-family": "sans-serif", "font-size": 13 });
    if (this.rows * this.columns <= 20_000) {
      for (let row = 0; row < this.rows; row++) for (let column = 0; column < this.columns; column++)
        made.append(h("svg:rect", { x: left + column * size, y: top + row * size, width: size, height: size, fill: this.state(row, column) === VISIBLE ? css(this.colour(this.at(row, column))) : colours.void }));
    } else made.append(h("svg:image", { x: 0, y: 0, width: wide, height: high, href: this.map.toDataURL() }));
    const step = Math.ceil(20 / size);
    rows.forEach((label, row) => row % step || made.append(h("svg:text", { x: left - 7, y: top + (row + 0.5) * size + 4, "text-anchor": "end", fill: colours.text }, label)));
    columns.forEach((label, column) => column % step || made.append(h("svg:text", flat ? { x: left + (column + 0.5) * size, y: top - 9, "text-anchor": "middle", fill: colours.text } : { transform: `translate(${left + (column + 0.5) * size + 4},${top - 7}) rotate(-90)`, fill: colours.text }, label)));
    return made.outerHTML;
  }
}
function hatch(pen, colours) {
  const tile = document.createElement("canvas"); tile.width = tile.height = 6;
  const line = tile.getContext("2d");
  line.fillStyle = colours.void; line.fillRect(0, 0, 6, 6);
  line.strokeStyle = colours.hatch; line.lineWidth = 1;
  line.beginPath(); line.moveTo(-1, 7); line.lineTo(7, -1); line.stroke();
  return pen.createPattern(tile, "repeat");
}
function thumb(canvas, thumbnail, lut) {
  canvas.width = thumbnail.columns; canvas.height = thumbnail.rows;
  const pen = canvas.getContext("2d"), image = pen.createImageData(thumbnail.columns, thumbnail.rows), words = new Uint32Array(image.data.buffer);
  const none = packed(rgbOf(ink().void.slice(1))), colours = Array.from({ length: 256 }, (_, level) => level === NO_LEVEL ? none : packed(lut[Math.round(level * 255 / 254)]));
  bytes(thumbnail.cells).forEach((level, index) => { words[index] = colours[level]; });
  pen.putImageData(image, 0, 0);
}
