// The heatmap of one head and the thumbnails of all, drawn from `props.value` (see heatmap.py).
// Every text is set by textContent: tokens and plugin texts are never read as HTML or templates.
const part = (name) => element.querySelector(".hm-" + name);
const map = part("map"), stage = part("stage");
const VISIBLE = 0, PADDED = 2, MISSING = 3, NO_LEVEL = 255;
const VIRIDIS = ["440154", "482878", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"];
const SIGNED = { light: ["1d5fa8", "7fb1dd", "f7f7f7", "f0ad6a", "c85a00"], dark: ["4a9bea", "2f5f8f", "25262b", "96591f", "ff9a3c"] };
const FONT = '13px system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif';
let data = null, exact = null, states = null, cell = { row: 0, column: 0 }, pointed = false, box = null;

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const dark = () => document.body.classList.contains("dark") || document.documentElement.classList.contains("dark");
const ink = () => dark() ? { text: "#e8e8ec", quiet: "#8b8d98", hatch: "#4a4b54", void: "#2b2c33", edge: "#ffffff" }
  : { text: "#1f2328", quiet: "#80838d", hatch: "#c3c5cc", void: "#eeeef1", edge: "#000000" };

function colour(anchors, share) {
  const place = Math.min(Math.max(share, 0), 1) * (anchors.length - 1), index = Math.min(Math.floor(place), anchors.length - 2);
  const rgb = (hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const from = rgb(anchors[index]), to = rgb(anchors[index + 1]);
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * (place - index)));
}
const table = () => {
  const anchors = data.signed ? SIGNED[dark() ? "dark" : "light"] : VIRIDIS;
  return Array.from({ length: 256 }, (_, level) => colour(anchors, level / 255));
};
const css = (rgb) => `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;
const luminance = (rgb) => (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) / 255;
const reach = () => {
  if (part("range-select").value === "unit") return 1;
  return (data.signed ? Math.max(Math.abs(data.low), Math.abs(data.high)) : data.high) || 1;
};
const share = (weight) => data.signed ? 0.5 + weight / reach() / 2 : weight / reach();
const number = (weight) => {
  if (Number.isNaN(weight)) return "NaN";
  if (!Number.isFinite(weight)) return weight > 0 ? "∞" : "-∞";
  return weight !== 0 && Math.abs(weight) < 0.001 ? weight.toExponential(3) : weight.toFixed(4);
};
const short = (token) => { const signs = Array.from(token); return signs.length > 12 ? signs.slice(0, 11).join("") + "…" : token; };

function layout(pen) {
  pen.font = FONT;
  const labels = data.tokens.map(short), count = labels.length;
  const widest = Math.ceil(Math.max(...labels.map((label) => pen.measureText(label).width)));
  const width = Math.max(stage.clientWidth, 200), left = Math.min(widest + 14, Math.floor(width * 0.3));
  const size = Math.max(Math.min((width - left - 6) / count, 112, 600 / Math.min(count, 14)), 1);
  const flat = widest <= size - 6, top = flat ? 26 : Math.min(widest + 14, 120);
  return { labels, count, left, top, size, flat, width, height: Math.ceil(top + size * count + 6) };
}
function hatch(pen, colours) {
  const tile = document.createElement("canvas"); tile.width = tile.height = 6;
  const line = tile.getContext("2d");
  line.fillStyle = colours.void; line.fillRect(0, 0, 6, 6);
  line.strokeStyle = colours.hatch; line.lineWidth = 1;
  line.beginPath(); line.moveTo(-1, 7); line.lineTo(7, -1); line.stroke();
  return pen.createPattern(tile, "repeat");
}
function drawCells(pen, colours) {
  const lut = table(), pattern = hatch(pen, colours), { left, top, size, count } = box;
  for (let row = 0; row < count; row++) for (let column = 0; column < count; column++) {
    const x = Math.round(left + column * size), y = Math.round(top + row * size);
    const w = Math.round(left + (column + 1) * size) - x - (size > 12 ? 1 : 0), h = Math.round(top + (row + 1) * size) - y - (size > 12 ? 1 : 0);
    const state = states[row * count + column], weight = exact[row * count + column];
    const rgb = lut[Math.round(Math.min(Math.max(share(weight), 0), 1) * 255)];
    pen.fillStyle = state === VISIBLE ? css(rgb) : state === MISSING ? colours.void : pattern;
    pen.fillRect(x, y, w, h);
    if (state === MISSING) {
      pen.strokeStyle = colours.text; pen.beginPath();
      pen.moveTo(x + w * 0.25, y + h * 0.25); pen.lineTo(x + w * 0.75, y + h * 0.75);
      pen.moveTo(x + w * 0.75, y + h * 0.25); pen.lineTo(x + w * 0.25, y + h * 0.75); pen.stroke();
    } else if (state === VISIBLE && size >= 40) {
      pen.fillStyle = luminance(rgb) > 0.5 ? "#16181d" : "#ffffff";
      pen.textAlign = "center"; pen.textBaseline = "middle";
      pen.fillText(weight.toFixed(2), x + w / 2, y + h / 2);
    }
  }
}
function drawLabels(pen, colours) {
  const { left, top, size, count, labels, flat } = box, step = Math.ceil(15 / size);
  const near = (index, chosen) => pointed && index !== chosen && Math.abs(index - chosen) < step;
  pen.textBaseline = "middle";
  for (let index = 0; index < count; index++) {
    const middle = (index + 0.5) * size, paint = (chosen) => {
      const on = pointed && index === chosen;
      pen.font = (on ? "600 " : "") + FONT;
      pen.fillStyle = on ? colours.text : data.padded[index] ? colours.hatch : colours.quiet;
    };
    if ((index % step === 0 && !near(index, cell.row)) || (pointed && index === cell.row)) {
      paint(cell.row); pen.textAlign = "right";
      pen.fillText(labels[index], left - 7, top + middle, left - 8);
    }
    if ((index % step === 0 && !near(index, cell.column)) || (pointed && index === cell.column)) {
      paint(cell.column);
      if (flat || pen.measureText(labels[index]).width <= size - 2) { pen.textAlign = "center"; pen.fillText(labels[index], left + middle, top - 13); }
      else {
        pen.save(); pen.translate(left + middle, top - 7); pen.rotate(-Math.PI / 2); pen.textAlign = "left";
        pen.fillText(labels[index], 0, 0, top - 10); pen.restore();
      }
    }
  }
}
function drawMap() {
  if (!data || data.problem) return;
  const pen = map.getContext("2d"), colours = ink(), ratio = window.devicePixelRatio || 1;
  box = layout(pen);
  const wide = Math.ceil(box.left + box.size * box.count + 6);
  map.width = wide * ratio; map.height = box.height * ratio;
  map.style.width = wide + "px"; map.style.height = box.height + "px";
  pen.scale(ratio, ratio); pen.font = FONT;
  drawCells(pen, colours); drawLabels(pen, colours);
  if (pointed) {
    const { left, top, size } = box;
    pen.strokeStyle = colours.edge; pen.lineWidth = 2;
    pen.strokeRect(left + cell.column * size - 0.5, top + cell.row * size - 0.5, size, size);
    pen.lineWidth = 1; pen.globalAlpha = 0.35;
    pen.strokeRect(left - 0.5, top + cell.row * size - 0.5, size * box.count, size);
    pen.strokeRect(left + cell.column * size - 0.5, top - 0.5, size, size * box.count); pen.globalAlpha = 1;
  }
}
function drawScale() {
  const canvas = part("scale"), pen = canvas.getContext("2d");
  table().forEach((rgb, level) => { pen.fillStyle = css(rgb); pen.fillRect(level, 0, 1, 1); });
  const unit = part("range-select").value === "unit", most = reach();
  part("low").textContent = unit ? (data.signed ? "-1" : "0") : number(data.signed ? -most : 0);
  part("high").textContent = unit ? "1" : number(most);
  part("legend").textContent = "min " + number(data.low) + " · max " + number(data.high);
}
function drawThumbnail(canvas, thumbnail) {
  canvas.width = thumbnail.columns; canvas.height = thumbnail.rows;
  const pen = canvas.getContext("2d"), image = pen.createImageData(thumbnail.columns, thumbnail.rows);
  const lut = table(), none = colour([ink().void.slice(1), ink().void.slice(1)], 0);
  bytes(thumbnail.cells).forEach((level, index) => {
    const rgb = level === NO_LEVEL ? none : lut[Math.round(level * 255 / 254)];
    image.data.set([rgb[0], rgb[1], rgb[2], 255], index * 4);
  });
  pen.putImageData(image, 0, 0);
}
function drawHeads() {
  const group = part("heads"), words = data.words, many = data.thumbnails.length;
  group.setAttribute("aria-label", words.heads);
  while (group.children.length > many) group.lastChild.remove();
  while (group.children.length < many) {
    const button = document.createElement("button"), index = group.children.length;
    button.type = "button"; button.className = "hm-head";
    ["canvas", "b", "small", "small"].forEach((tag) => button.append(document.createElement(tag)));
    button.addEventListener("click", () => trigger("click", { head: index }));
    group.append(button);
  }
  data.thumbnails.forEach((thumbnail, index) => {
    const [canvas, name, first, second] = group.children[index].children;
    drawThumbnail(canvas, thumbnail);
    name.textContent = words.head + " " + (index + 1);
    first.textContent = words.entropy + " " + (thumbnail.entropy === null ? "–" : thumbnail.entropy.toFixed(2));
    second.textContent = words.max + " " + thumbnail.max.toFixed(2);
    group.children[index].setAttribute("aria-pressed", String(index === data.head));
  });
}
function list(name, rows) {
  part(name).replaceChildren(...rows.map(([text, style]) => {
    const item = document.createElement("li");
    item.textContent = text; item.className = style;
    return item;
  }));
}
function read(aloud) {
  const { row, column } = cell, index = row * data.tokens.length + column, words = data.words;
  const state = ["", words.masked, words.padding, words.missing][states[index]];
  const tail = number(exact[index]) + (state ? " (" + state + ")" : "");
  part("readout").textContent = pointed ? `${words.query} ${data.tokens[row]} → ${words.key} ${data.tokens[column]}: ${tail}` : words.hint;
  if (aloud) part("live").textContent = `${words.query} ${data.tokens[row]}, ${words.key} ${data.tokens[column]}, ${tail}`;
}
function draw() {
  if (!props.value || !props.value.words) return;
  data = props.value;
  document.documentElement.lang = data.language === "zh" ? "zh-CN" : "en";
  part("card").hidden = !data.problem; part("body").hidden = Boolean(data.problem);
  part("live").textContent = "";
  if (data.problem) {
    part("card-title").textContent = data.problem.title; part("card-detail").textContent = data.problem.detail;
  } else {
    const words = data.words, count = data.tokens.length;
    exact = new Float32Array(bytes(data.exact).buffer); states = bytes(data.states);
    cell = { row: Math.min(cell.row, count - 1), column: Math.min(cell.column, count - 1) };
    part("title").textContent = words.head + " " + (data.head + 1) + " · " + data.variant;
    part("kind").textContent = words[data.kind]; part("kind").title = words[data.kind + "_info"];
    part("range-label").textContent = words.range;
    part("range-select").options[0].textContent = words.range_own; part("range-select").options[1].textContent = data.signed ? "-1 … 1" : "0 … 1";
    map.setAttribute("aria-label", words.label.replace("{head}", data.head + 1));
    map.setAttribute("aria-roledescription", words.role);
    list("findings", data.findings.map((found) => [found.text, "hm-" + found.tone]));
    list("notes", data.notes.map((note) => [note, ""]));
    drawMap(); drawScale(); drawHeads(); read(false);
  }
  window.__drawn = (window.__drawn || 0) + 1;
}
function point(event) {
  if (!box || !data || data.problem) return;
  const place = map.getBoundingClientRect();
  const column = Math.floor((event.clientX - place.left - box.left) / box.size), row = Math.floor((event.clientY - place.top - box.top) / box.size);
  if (row < 0 || column < 0 || row >= box.count || column >= box.count) return;
  if (pointed && row === cell.row && column === cell.column) return;
  cell = { row, column }; pointed = true; drawMap(); read(false);
}
map.addEventListener("pointermove", point);
map.addEventListener("pointerdown", point);
map.addEventListener("keydown", (event) => {
  if (!data || data.problem) return;
  const last = data.tokens.length - 1, moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -last], End: [0, last] };
  const move = moves[event.key];
  if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const keep = (value) => Math.min(Math.max(value, 0), last);
  if (pointed) cell = { row: keep(cell.row + move[0]), column: keep(cell.column + move[1]) };
  pointed = true; drawMap(); read(true);
});
part("range-select").addEventListener("change", () => { drawMap(); drawScale(); });
new ResizeObserver(() => drawMap()).observe(stage);
new MutationObserver(() => { if (data && !data.problem) { drawMap(); drawScale(); drawHeads(); } }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
watch("value", draw);
draw();
