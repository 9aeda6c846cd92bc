// Bars, curves, the plane and the mixing of values, as SVG; each can be read as a table too.
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d00", "#6b6b6b"];
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "4 2", "1 4"];

function drawBars(figure) {
  const finite = figure.rows.flatMap((row) => row.values).filter((value) => value !== null && Number.isFinite(value));
  const low = Math.min(0, ...finite), most = figure.most || Math.max(...finite, 1e-12), tiny = Math.min(...finite.filter((value) => value > 0)) / 3;
  const part = (value) => figure.log ? (value > 0 ? Math.log(value / tiny) / Math.log(most / tiny) : 0) : Math.abs(value) / Math.max(most, -low);
  return h("div", { class: "at-bars", role: "list", "aria-label": figure.title },
    figure.series.length > 1 ? h("div", { class: "at-legend" }, figure.series.map((name, at) => h("span", {}, h("i", { style: `background:${PALETTE[at % PALETTE.length]}` }), name))) : null,
    figure.rows.map((row) => h("div", { class: "at-bar-row", role: "listitem" }, h("span", { class: "at-bar-label" }, row.label), h("span", { class: "at-bar-group" }, row.values.map((value, at) =>
      h("span", { class: "at-bar-line" }, h("span", { class: "at-bar", style: `width:${value === null ? 0 : (Math.max(0, Math.min(1, part(value))) * 100).toFixed(2)}%;background:${value < 0 ? "#56b4e9" : PALETTE[at % PALETTE.length]}` }), h("span", { class: "at-bar-value" }, `${number(value, figure.digits)}${figure.unit ? " " + figure.unit : ""}`)))))));
}

class Bars {
  constructor(view, figure) { this.element = h("figure", { class: "at-figure" }, this.caption = h("figcaption", {}, this.title = h("h3")), this.body = h("div")); this.update(figure); }
  update(figure) {
    this.figure = figure;
    this.title.textContent = figure.title;
    this.body.replaceChildren(drawBars(figure));
  }
  csv() { return [["", ...this.figure.series], ...this.figure.rows.map((row) => [row.label, ...row.values])]; }
  svg() { // the same bars, drawn to be kept
    const { rows, series } = this.figure, lines = this.body.querySelectorAll(".at-bar"), high = rows.length * (series.length * 16 + 8) + 12;
    const svg = h("svg:svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 640 ${high}`, width: 640, height: high, "font-family": "sans-serif", "font-size": 12, fill: ink().text });
    let at = 0, y = 6;
    for (const row of rows) {
      svg.append(h("svg:text", { x: 170, y: y + series.length * 8 + 4, "text-anchor": "end" }, short(row.label, 26)));
      for (const value of row.values) {
        const bar = lines[at++], width = parseFloat(bar.style.width) / 100 * 370;
        svg.append(h("svg:rect", { x: 180, y, width: Math.max(width, 1), height: 13, fill: bar.style.backgroundColor }), h("svg:text", { x: 186 + width, y: y + 11 }, bar.nextSibling.textContent));
        y += 16;
      }
      y += 8;
    }
    return svg.outerHTML;
  }
}

const niceTicks = (low, high, log) => {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const tens = Array.from({ length: Math.max(0, last - first + 1) }, (_, at) => 10 ** (first + at));
    if (tens.length >= 2) return tens;
    const twos = [];
    for (let tick = 2 ** Math.ceil(Math.log2(low)); tick <= high * 1.001; tick *= 2) twos.push(tick);
    return twos;
  }
  const step = 10 ** Math.floor(Math.log10((high - low) || 1)), ticks = [];
  const unit = (high - low) / step > 5 ? step * 2 : (high - low) / step > 2 ? step : step / 2;
  for (let tick = Math.ceil(low / unit) * unit; tick <= high + unit / 1e6; tick += unit) ticks.push(Number(tick.toPrecision(12)));
  return ticks;
};

class Curves {
  constructor(view, figure) {
    this.table = false;
    this.element = h("figure", { class: "at-figure" }, this.caption = h("figcaption", {}, this.title = h("h3"), this.toggle = h("button", { type: "button", class: "at-quiet-button", onclick: () => { this.table = !this.table; this.update(this.figure); } })), this.body = h("div"));
    this.update(figure);
  }
  update(figure) {
    this.figure = figure;
    this.title.textContent = figure.title;
    this.toggle.textContent = word(this.table ? "plot.plot" : "plot.table");
    this.body.replaceChildren(this.table ? asTable(this.csv()) : this.draw());
  }
  draw() {
    const { figure } = this, points = figure.series.flatMap((one) => one.x.map((x, at) => [x, one.y[at]])).filter(([x, y]) => y !== null && (!figure.log || (x > 0 && y > 0)));
    if (!points.length) return h("p", { class: "at-quiet at-empty" }, word("plot.nothing"));
    const wide = Math.max(330, Math.min(620, this.body.clientWidth || 620)), high = 320, left = 58, right = 14, top = 12, bottom = 44;
    const span = (values) => {
      let low = Math.min(...values), top_ = Math.max(...values);
      if (figure.log) { if (low === top_) { low /= 2; top_ *= 2; } return [low / 1.15, top_ * 1.15]; }
      low = Math.min(0, low);
      return [low, top_ === low ? low + 1 : top_ + (top_ - low) * 0.04];
    };
    const limit = figure.limit && Number.isFinite(figure.limit.value) ? figure.limit.value : null, xs = span(points.map((one) => one[0]));
    const reach = Math.max(...points.map((one) => one[1]));
    const showLimit = limit !== null && (!figure.log || limit < reach * 40);
    const ys = span([...points.map((one) => one[1]), ...(showLimit ? [limit] : [])]);
    const scale = (value, [low, top_]) => figure.log ? Math.log(value / low) / Math.log(top_ / low) : (value - low) / (top_ - low);
    const px = (x) => left + scale(x, xs) * (wide - left - right), py = (y) => high - bottom - scale(y, ys) * (high - top - bottom);
    const svg = h("svg:svg", { viewBox: `0 0 ${wide} ${high}`, class: "at-svg at-curves", role: "img", "aria-label": word("plot.label", { title: figure.title }) });
    for (const tick of niceTicks(...ys, figure.log)) svg.append(h("svg:line", { x1: left, x2: wide - right, y1: py(tick), y2: py(tick), class: "grid" }), h("svg:text", { x: left - 7, y: py(tick) + 4, "text-anchor": "end" }, brief(tick)));
    const own = [...new Set(points.map((one) => one[0]))].sort((a, b) => a - b), ticks = own.length <= 8 ? own : niceTicks(...xs, figure.log);
    for (const tick of ticks) svg.append(h("svg:text", { x: px(tick), y: high - bottom + 18, "text-anchor": "middle" }, brief(tick)));
    svg.append(h("svg:line", { x1: left, x2: wide - right, y1: high - bottom, y2: high - bottom, class: "axis" }), h("svg:text", { x: (left + wide - right) / 2, y: high - 6, "text-anchor": "middle", class: "name" }, figure.x),
      h("svg:text", { transform: `translate(14,${(high - bottom + top) / 2}) rotate(-90)`, "text-anchor": "middle", class: "name" }, figure.y));
    if (showLimit) svg.append(h("svg:line", { x1: left, x2: wide - right, y1: py(limit), y2: py(limit), class: "limit" }), h("svg:text", { x: wide - right, y: py(limit) - 5, "text-anchor": "end" }, figure.limit.label));
    figure.series.forEach((one, at) => {
      const colour = PALETTE[at % PALETTE.length], kept = one.x.map((x, place) => [x, one.y[place]]).filter(([x, y]) => y !== null && (!figure.log || (x > 0 && y > 0)));
      if (kept.length > 1) svg.append(h("svg:polyline", { points: kept.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[at % DASHES.length] }));
      if (kept.length <= 60) for (const [x, y] of kept) svg.append(h("svg:circle", { cx: px(x), cy: py(y), r: 3.5, fill: colour }, h("svg:title", {}, `${one.name}: ${brief(x)}, ${brief(y)}`)));
    });
    const legend = h("div", { class: "at-legend" }, figure.series.map((one, at) => h("span", {}, h("i", { style: `background:${PALETTE[at % PALETTE.length]}` }), one.name,
      one.slope === undefined || one.slope === null ? null : h("b", { class: "at-slope" }, word("plot.slope", { slope: one.slope.toFixed(2) })))));
    return h("div", {}, svg, legend);
  }
  csv() {
    const own = [...new Set(this.figure.series.flatMap((one) => one.x))].sort((a, b) => a - b);
    return [[this.figure.x, ...this.figure.series.map((one) => one.name)], ...own.map((x) => [x, ...this.figure.series.map((one) => { const at = one.x.indexOf(x); return at < 0 ? null : one.y[at]; })])];
  }
  svg() { if (this.table) { this.table = false; this.update(this.figure); } return standalone(this.body.querySelector("svg")); }
}
const asTable = (rows) => h("div", { class: "at-scroll", tabindex: "0" }, h("table", { class: "at-table" },
  h("thead", {}, h("tr", {}, rows[0].map((cell) => h("th", { scope: "col" }, String(cell))))),
  h("tbody", {}, rows.slice(1).map((row) => h("tr", {}, row.map((cell, at) => at ? h("td", {}, typeof cell === "number" ? brief(cell) : cell === null ? "–" : String(cell)) : h("th", { scope: "row" }, String(cell))))))));
function standalone(svg) { // with the styles that the page gives it
  if (!svg) return "";
  const made = svg.cloneNode(true), [, , wide, high] = svg.getAttribute("viewBox").split(" ");
  made.setAttribute("xmlns", "http://www.w3.org/2000/svg"); made.setAttribute("width", wide); made.setAttribute("height", high);
  const before = svg.querySelectorAll("*"), after = made.querySelectorAll("*");
  before.forEach((one, at) => { const style = getComputedStyle(one); for (const name of ["fill", "stroke", "font-size", "stroke-dasharray", "stroke-width", "opacity"]) if (style.getPropertyValue(name)) after[at].setAttribute(name, style.getPropertyValue(name)); });
  made.setAttribute("font-family", "sans-serif");
  return made.outerHTML;
}

// Vectors in the plane: the first asks, the others are keys, as thick as their weight.
class Plane {
  constructor(view, figure) {
    this.view = view;
    this.element = h("figure", { class: "at-figure" }, this.caption = h("figcaption", {}, this.title = h("h3")), this.body = h("div"), this.live = h("p", { class: "at-quiet", "aria-live": "polite" }));
    this.update(figure);
  }
  update(figure) {
    this.figure = figure;
    this.title.textContent = figure.title;
    if (!this.held) this.points = figure.points.map((point) => [...point]);
    const focused = document.activeElement && this.body.contains(document.activeElement) ? document.activeElement.dataset.point : null;
    this.body.replaceChildren(this.svgElement = this.draw());
    if (focused !== null) this.svgElement.querySelector(`[data-point="${focused}"]`).focus();
    this.live.textContent = this.live.textContent || word("page.move");
  }
  place([x, y]) { const { reach } = this.figure; return [(x / reach + 1) * 180, (1 - y / reach) * 180]; }
  draw() {
    const svg = h("svg:svg", { viewBox: "0 0 360 360", class: "at-svg at-plane", role: "application", "aria-label": this.figure.title });
    svg.append(h("svg:line", { x1: 0, x2: 360, y1: 180, y2: 180, class: "grid" }), h("svg:line", { x1: 180, x2: 180, y1: 0, y2: 360, class: "grid" }));
    this.points.forEach((point, at) => {
      const [x, y] = this.place(point), colour = at ? PALETTE[(at + 2) % PALETTE.length] : ink().text, weight = at ? this.figure.weights[at - 1] : 1;
      svg.append(h("svg:line", { x1: 180, y1: 180, x2: x, y2: y, stroke: colour, "stroke-width": at ? 1.5 + 8 * weight : 3, "stroke-opacity": at ? 0.35 + 0.6 * weight : 1 }));
      const name = `${this.figure.labels[at]} (${point[0].toFixed(1)}, ${point[1].toFixed(1)})${at ? `, ${word("map.weight")} ${weight.toFixed(3)}` : ""}`;
      svg.append(h("svg:circle", { cx: x, cy: y, r: 11, fill: colour, tabindex: "0", role: "slider", "aria-label": name, "aria-valuetext": name, "aria-valuenow": at, "data-point": at, class: "at-point",
        onpointerdown: (event) => this.grab(event, at), onkeydown: (event) => this.nudge(event, at) }));
      svg.append(h("svg:text", { x: x > 290 ? x - 14 : x + 14, y: y - 12, "text-anchor": x > 290 ? "end" : "start", class: "name" }, at ? `${this.figure.labels[at]} ${weight.toFixed(2)}` : this.figure.labels[at]));
    });
    return svg;
  }
  put(at, x, y) {
    const { reach } = this.figure, kept = (value) => Math.round(Math.min(Math.max(value, -reach), reach) * 10) / 10;
    this.points[at] = [kept(x), kept(y)];
    this.view.change(this.figure.control, this.points.map((point) => [...point]));
  }
  grab(event, at) {
    event.preventDefault();
    this.held = true;
    const moved = (next) => {
      const box = this.svgElement.getBoundingClientRect(), { reach } = this.figure;
      this.put(at, ((next.clientX - box.left) / box.width * 2 - 1) * reach, (1 - (next.clientY - box.top) / box.height * 2) * reach);
      this.update(this.figure);
    };
    const done = () => {
      this.held = false;
      window.removeEventListener("pointermove", moved);
      for (const end of ["pointerup", "pointercancel"]) window.removeEventListener(end, done);
    };
    window.addEventListener("pointermove", moved);
    for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, done);
  }
  nudge(event, at) {
    const move = { ArrowUp: [0, 0.1], ArrowDown: [0, -0.1], ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    this.put(at, this.points[at][0] + move[0], this.points[at][1] + move[1]);
    this.update(this.figure);
    this.live.textContent = this.svgElement.querySelector(`[data-point="${at}"]`).getAttribute("aria-label");
  }
  csv() { return [["", "x", "y", "weight"], ...this.points.map((point, at) => [this.figure.labels[at], ...point, at ? this.figure.weights[at - 1] : null])]; }
  svg() { return standalone(this.svgElement); }
}

// How one query mixes the values: arrows as thick as its weights, numbers at each end.
class Mixing {
  constructor(view, figure) { this.element = h("figure", { class: "at-figure" }, this.caption = h("figcaption", {}, this.title = h("h3")), this.body = h("div")); this.update(figure); }
  update(figure) {
    this.figure = figure;
    this.title.textContent = figure.title;
    const many = figure.tokens.length, high = many * 62 + 20, middle = high / 2, vector = (values) => `(${values.map((value) => brief(value)).join(", ")})`;
    const svg = h("svg:svg", { viewBox: `0 0 560 ${high}`, class: "at-svg at-mixing", role: "img", "aria-label": figure.title });
    figure.tokens.forEach((token, at) => {
      const y = at * 62 + 40, weight = figure.weights[at];
      svg.append(h("svg:path", { d: `M 150 ${middle} C 230 ${middle}, 240 ${y}, 318 ${y}`, fill: "none", stroke: "#d0700a", "stroke-width": (0.6 + weight * 14).toFixed(2), "stroke-opacity": (0.2 + weight * 0.75).toFixed(2) }));
      svg.append(h("svg:text", { x: 240, y: (middle + y) / 2 - 4, "text-anchor": "middle", class: "name" }, weight.toFixed(3)), h("svg:text", { x: 328, y: y + 5, class: "big" }, token), h("svg:text", { x: 356, y: y + 5 }, `v = ${vector(figure.values[at])}`));
    });
    svg.append(h("svg:text", { x: 18, y: middle - 6, class: "big" }, figure.tokens[figure.row]), h("svg:text", { x: 18, y: middle + 16 }, vector(figure.output.map((value) => Number(value.toFixed(3))))));
    this.body.replaceChildren(this.svgElement = svg);
  }
  csv() { return [["", "weight", "value"], ...this.figure.tokens.map((token, at) => [token, this.figure.weights[at], this.figure.values[at].join(" ")])]; }
  svg() { return standalone(this.svgElement); }
}
