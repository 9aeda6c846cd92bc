// The controls of a page, drawn from controls.py: native inputs, each with its label.
let serials = 0;
function labelled(control, input, extra = {}) {
  const id = `at-${control.name}-${++serials}`;
  input.id = id;
  const info = h("small", { class: "at-info", id: `${id}-info` }, control.info ? word(control.info) : "");
  input.setAttribute("aria-describedby", info.id);
  const root = h("div", { class: `at-control at-kind-${control.kind}`, "data-name": control.name, ...extra }, h("label", { for: id }, word(control.label)), input, info);
  root.info = info;
  return root;
}
function grouped(control, inside) {
  const info = h("small", { class: "at-info" }, control.info ? word(control.info) : "");
  const root = h("fieldset", { class: `at-control at-kind-${control.kind}`, "data-name": control.name }, h("legend", {}, word(control.label)), inside, info);
  root.info = info;
  return root;
}

const WIDGETS = {
  slider(control, view) {
    const about = { min: control.low, max: control.high, step: control.step };
    const range = h("input", { type: "range", ...about, oninput: () => { box.value = range.value; view.change(control.name, Number(range.value)); } });
    const box = h("input", { type: "number", ...about, "aria-label": word(control.label), onchange: () => { if (box.value !== "") view.change(control.name, Number(box.value)); },
      onkeydown: (event) => { if (event.key === "Enter") box.blur(); } });
    const root = labelled(control, range);
    const play = control.label === "control.stage" && !calm() ? player(control, view) : null;
    const line = h("span", { class: "at-slider" });
    range.replaceWith(line);
    line.append(...[range, box, play].filter(Boolean));
    root.set = (value) => { range.value = box.value = value; };
    return root;
  },
  check(control, view) {
    const input = h("input", { type: "checkbox", onchange: () => view.change(control.name, input.checked) });
    const root = labelled(control, input);
    root.set = (value) => { input.checked = value; };
    root.input = input;
    return root;
  },
  choice(control, view) {
    if (control.choices.length > 4) {
      const select = h("select", { onchange: () => view.change(control.name, select.value) }, control.choices.map(([value, key]) => h("option", { value }, word(key))));
      const root = labelled(control, select);
      root.set = (value) => { select.value = value; };
      return root;
    }
    const group = `at-group-${++serials}`;
    const radios = control.choices.map(([value, key]) => {
      const input = h("input", { type: "radio", name: group, value, onchange: () => view.change(control.name, value) });
      return h("label", { class: "at-radio" }, input, h("span", {}, word(key)));
    });
    const root = grouped(control, h("div", { class: "at-radios" }, radios));
    root.set = (value) => { for (const radio of radios) radio.firstChild.checked = radio.firstChild.value === value; };
    return root;
  },
  text(control, view) {
    const typed = () => view.change(control.name, input.value);
    const input = control.rows > 1 ? h("textarea", { rows: control.rows, maxlength: control.limit, oninput: typed }) : h("input", { type: "text", maxlength: control.limit, oninput: typed });
    const root = labelled(control, input);
    root.set = (value) => { if (input.value !== value) input.value = value; };
    return root;
  },
  variant(control, view) {
    const names = Object.keys(app.catalogue.variants);
    const select = h("select", { onchange: () => view.change(control.name, select.value) }, names.map((name) => h("option", { value: name }, name)));
    const root = labelled(control, select);
    root.set = (value) => {
      if (value in app.catalogue.variants) select.value = value;
      else if (!select.querySelector(`option[data-unknown]`)) select.prepend(h("option", { value, "data-unknown": "", selected: true }, value));
      root.info.textContent = (app.catalogue.variants[value] || { summary: "" }).summary;
    };
    return root;
  },
  variants(control, view) {
    const names = Object.keys(app.catalogue.variants);
    const boxes = names.map((name) => {
      const input = h("input", { type: "checkbox", value: name, onchange: () => {
        const chosen = boxes.map((box) => box.firstChild).filter((box) => box.checked).map((box) => box.value);
        if (!chosen.length || chosen.length > control.limit) { input.checked = !input.checked; return; }
        view.change(control.name, chosen);
      } });
      return h("label", { class: "at-radio" }, input, h("span", {}, name));
    });
    const root = grouped(control, h("div", { class: "at-radios" }, boxes));
    root.set = (value) => { for (const box of boxes) box.firstChild.checked = value.includes(box.firstChild.value); };
    return root;
  },
  options(control, view) {
    const root = h("fieldset", { class: "at-control at-kind-options", "data-name": control.name });
    let shown = null;
    root.set = (value) => {
      const variant = view.values[control.of];
      if (shown !== variant + app.language) { shown = variant + app.language; fill(variant); }
      for (const field of root.fields) field.set(field.name in value ? value[field.name] : field.initial);
    };
    const fill = (variant) => {
      const fields = fieldsOf(variant);
      root.fields = fields.map((field) => optionField(control, field, view));
      root.message = h("p", { class: "at-wrong", role: "alert" });
      root.replaceChildren(h("legend", {}, word(fields.length ? "page.options" : "page.no_options", { variant })), ...root.fields.map((field) => field.root), root.message);
    };
    root.fields = [];
    return root;
  },
  pixels: (control, view) => pad(control, view),
};

function optionField(control, field, view) {
  const put = (value) => view.change(control.name, { ...view.values[control.name], [field.name]: value });
  const id = `at-option-${field.name}-${++serials}`;
  let input, extra = null, set;
  if (field.widget === "check") {
    input = h("input", { type: "checkbox", id, onchange: () => put(input.checked) });
    set = (value) => { input.checked = value === true; };
  } else if (field.widget === "choice") {
    input = h("select", { id, onchange: () => put(input.value) }, field.choices.map((one) => h("option", { value: one }, one)));
    set = (value) => { input.value = value; };
  } else if (field.widget === "slider") {
    const about = { min: field.low, max: field.high, step: field.step };
    input = h("input", { type: "range", id, ...about, oninput: () => { extra.value = input.value; put(Number(input.value)); } });
    extra = h("input", { type: "number", ...about, "aria-label": field.name, onchange: () => { if (extra.value !== "") { input.value = extra.value; put(Number(extra.value)); } } });
    set = (value) => { input.value = extra.value = value; };
  } else {
    input = h("input", { type: "text", id, maxlength: 200, oninput: () => put(input.value) });
    set = (value) => { if (input.value !== String(value)) input.value = String(value); };
  }
  const root = h("div", { class: `at-option at-widget-${field.widget}`, "data-option": field.name }, h("label", { for: id }, field.name),
    extra ? h("span", { class: "at-slider" }, input, extra) : input, h("small", { class: "at-info" }, field.help[app.language] || field.help.en));
  return { ...field, root, set };
}

function player(control, view) {
  let timer = 0;
  const button = h("button", { type: "button", class: "at-quiet-button at-play", onclick: () => {
    if (timer) return halt();
    button.textContent = "❚❚";
    button.setAttribute("aria-label", word("page.pause"));
    const step = () => view.change(control.name, view.values[control.name] >= control.high ? control.low : view.values[control.name] + 1);
    step();
    timer = setInterval(() => { if (view.values[control.name] >= control.high || !button.isConnected) halt(); else step(); }, 1400);
  }, "aria-label": word("page.play") }, "▶");
  const halt = () => { clearInterval(timer); timer = 0; button.textContent = "▶"; button.setAttribute("aria-label", word("page.play")); };
  return button;
}

// A line of text as pixels: typed text in whatever font the browser has, and strokes on top.
function pad(control, view) {
  const [height, width] = control.shape;
  const canvas = h("canvas", { width, height, class: "at-pad", role: "img", "aria-label": word("page.draw_here") });
  const clear = h("button", { type: "button", class: "at-quiet-button", onclick: () => { view.change("strokes", ""); paint(true); } }, word("page.clear"));
  const root = grouped(control, h("div", {}, canvas, clear));
  root.info.textContent = word("page.draw_here");
  const paint = (tell) => {
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    pen.fillStyle = "#ffffff"; pen.fillRect(0, 0, width, height);
    pen.fillStyle = "#000000"; pen.textBaseline = "middle";
    const text = view.values.line || "";
    const font = (size) => `${size}px "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif`;
    pen.font = font(30);
    const wide = pen.measureText(text).width;
    if (wide > width - 12) pen.font = font(Math.max(8, 30 * (width - 12) / wide));
    pen.fillText(text, 6, height / 2 + 1);
    pen.lineWidth = 3; pen.lineCap = pen.lineJoin = "round"; pen.strokeStyle = "#000000";
    for (const line of (view.values.strokes || "").split(";").filter(Boolean)) {
      pen.beginPath();
      line.split(" ").forEach((point, at) => { const [x, y] = point.split(",").map(Number); if (at) pen.lineTo(x, y); else pen.moveTo(x, y); });
      pen.stroke();
    }
    const seen = pen.getImageData(0, 0, width, height).data;
    let text64 = "";
    if (text.trim() || view.values.strokes) {
      let raw = "";
      for (let at = 0; at < seen.length; at += 4) raw += String.fromCharCode(seen[at]);
      text64 = btoa(raw);
    }
    if (text64 === view.values.pixels) return;
    view.values.pixels = text64;
    if (tell) view.request();
  };
  let line = null;
  const place = (event) => { const box = canvas.getBoundingClientRect(); return `${Math.round((event.clientX - box.left) * width / box.width)},${Math.round((event.clientY - box.top) * height / box.height)}`; };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); line = [place(event)]; });
  canvas.addEventListener("pointermove", (event) => {
    if (!line) return;
    const next = place(event);
    if (next !== line.at(-1) && !next.includes("-")) line.push(next);
  });
  const lift = () => {
    if (!line) return;
    const strokes = [...(view.values.strokes || "").split(";").filter(Boolean), line.join(" ")].join(";");
    line = null;
    if (strokes.length <= 4000) view.change("strokes", strokes);
    else root.info.textContent = word("page.draw_full");
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  root.set = () => {};
  root.refresh = paint;
  return root;
}
