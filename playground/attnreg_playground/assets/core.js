// What every page shares: words, elements, the server, the address, the history of this session.
// All text is set as text: nothing that a plugin, an address or a person gives is read as HTML.
const app = (window.attnreg = window.attnreg || {});
app.tabs = app.tabs || new Map();
app.language = "en";

const word = (key, fields = {}) => {
  const pair = app.texts[key];
  if (!pair) return key;
  return pair[app.language === "zh" ? 1 : 0].replace(/\{(\w+)\}/g, (whole, name) => (name in fields ? String(fields[name]) : whole));
};

// An element: h("p", { class: "x", onclick: f }, "text", child, null).
function h(tag, about = {}, ...children) {
  const made = tag.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") made[name] = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== false) made.append(child);
  return made;
}

// MathML from the tree of formula.py, whose tags and attributes come from a list of allowed ones.
function mathml([tag, attributes, text, children]) {
  const made = document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  made.append(...children.map(mathml));
  return made;
}

function bytes(text) {
  const raw = atob(text), found = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) found[at] = raw.charCodeAt(at);
  return found;
}
const isDark = () => document.body.classList.contains("dark") || document.documentElement.classList.contains("dark");
const calm = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

const number = (value, digits = 4) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const size = Math.abs(value);
  if (size && (size < 10 ** -digits / 2 || size >= 1e6)) return value.toExponential(2);
  return value.toFixed(digits);
};
const brief = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  return size && (size < 1e-3 || size >= 1e5) ? value.toExponential(0).replace("+", "") : String(Number(value.toPrecision(3)));
};
const short = (text, most = 12) => {
  const signs = Array.from(text);
  return signs.length > most ? signs.slice(0, most - 1).join("") + "…" : text;
};

async function ask(request) {
  return app.server.call({ ...request, language: app.language });
}

function copy(text, button, done = word("page.copied")) {
  const said = () => {
    const before = button.textContent;
    button.textContent = done;
    setTimeout(() => { button.textContent = before; }, 1800);
  };
  const fallback = () => { // no clipboard where the page is not served over https or localhost
    const area = h("textarea", { value: text, class: "at-hidden" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    said();
  };
  app.copied = text;
  if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(text).then(said, fallback);
  else fallback();
}

function save(name, parts, type) {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// The address is the state: tab, what it shows ("page" is a word of Gradio's own), language, and
// every control that is not at its default.
const LONGEST_ADDRESS = 4000;
function pack(control, value, view) {
  if (control.kind === "check") return { [control.name]: value ? "1" : "0" };
  if (control.kind === "variants") return { [control.name]: value.join(",") };
  if (control.kind === "matrix" || control.kind === "points") return { [control.name]: value.map((row) => row.join(",")).join(";") };
  if (control.kind === "options") {
    const kept = {};
    for (const field of fieldsOf(view.values[control.of])) {
      const held = value[field.name];
      if (held !== undefined && held !== field.initial) kept[`${control.name}.${field.name}`] = String(held);
    }
    return kept;
  }
  return { [control.name]: String(value) };
}
function unpack(control, query, values) {
  const text = query.get(control.name);
  if (control.kind === "options") {
    const found = {};
    for (const field of fieldsOf(values[control.of])) {
      const held = query.get(`${control.name}.${field.name}`);
      if (held === null) continue;
      found[field.name] = field.widget === "check" ? held === "true" : field.widget === "slider" ? Number(held) : held;
    }
    return found;
  }
  if (text === null) return undefined;
  if (control.kind === "slider" || control.kind === "hidden") return text.trim() === "" ? undefined : Number(text);
  if (control.kind === "check") return text === "1";
  if (control.kind === "variants") return text.split(",").filter(Boolean);
  if (control.kind === "matrix" || control.kind === "points") return text.split(";").map((row) => row.split(",").map(Number));
  return text;
}
const fieldsOf = (variant) => (app.catalogue.variants[variant] || { options: [] }).options;
const isDefault = (control, value) => same(value, control.default);

function addressOf(view) {
  const query = new URLSearchParams();
  for (const [name, value] of new URLSearchParams(location.search)) if (name.startsWith("__")) query.set(name, value);
  query.set("tab", view.tab);
  if (view.pages.length > 1) query.set("show", view.page.id);
  if (app.chosenLanguage) query.set("lang", app.language);
  for (const control of view.page.controls) {
    const value = view.values[control.name];
    if (control.kind === "pixels" || value === undefined || isDefault(control, value)) continue;
    for (const [name, text] of Object.entries(pack(control, value, view))) query.set(name, text);
  }
  if (view.mode && view.mode !== "map") query.set("view", view.mode);
  return query;
}
let writing = 0;
app.remember = (view) => {
  clearTimeout(writing);
  app.write = () => {
    clearTimeout(writing);
    app.write = () => {};
    if (app.tab !== view.tab) return;
    let query = addressOf(view).toString();
    app.tooLong = query.length > LONGEST_ADDRESS;
    if (app.tooLong) {
      const fewer = addressOf(view);
      for (const control of view.page.controls) if (["text", "strokes"].includes(control.kind)) fewer.delete(control.name);
      query = fewer.toString();
    }
    history.replaceState(history.state, "", `${location.pathname}?${query}`);
    app.record(view, query);
  };
  writing = setTimeout(() => app.write(), 250);
};

// The history is this window's alone: it lies in its session storage.
app.visited = () => {
  try { return JSON.parse(sessionStorage.getItem("attnreg.history") || "[]"); } catch { return []; }
};
app.record = (view, query) => {
  const title = [word(`tab.${view.tab}`), view.pages.length > 1 ? word(`title.${view.page.id}`) : "", view.values.variant || ""].filter(Boolean).join(" · ");
  const kept = app.visited().filter((one) => one.query !== query);
  kept.unshift({ query, title, time: Date.now() });
  try { sessionStorage.setItem("attnreg.history", JSON.stringify(kept.slice(0, 30))); } catch { /* storage may be switched off */ }
};

app.tabChosen = (name) => {
  // Gradio opens its first tab before it opens the one that the address asks for.
  if (app.first && name !== app.tab) return;
  if (name.startsWith("panel-")) app.first = null;
  app.tab = name;
  const view = app.tabs.get(name);
  if (view) { app.remember(view); view.shown(); }
  else if (name.startsWith("panel-")) {
    const query = new URLSearchParams({ tab: name });
    if (app.chosenLanguage) query.set("lang", app.language);
    history.replaceState(history.state, "", `${location.pathname}?${query}`);
  }
};
app.go = (query) => { // open a state: of this or of another tab
  const asked = new URLSearchParams(query), tab = asked.get("tab");
  const view = app.tabs.get(tab);
  app.pending = asked;
  if (view) { view.restore(asked); app.pending = null; }
  if (tab !== app.tab) { app.tab = tab; app.trigger("select", { tab }); }
};
app.speak = (code) => {
  app.language = code;
  app.chosenLanguage = true;
  document.documentElement.lang = code === "zh" ? "zh-CN" : "en";
  app.trigger("select", { language: code });
  app.drawHeader();
  for (const view of app.tabs.values()) view.rebuild();
};
