// The header: title, language, theme, link, history; and what could not be loaded.
function start() {
  const given = props.value || {};
  if (!given.catalogue || app.catalogue) return;
  Object.assign(app, { catalogue: given.catalogue, texts: given.texts, heavy: given.heavy, languages: given.languages, server, trigger });
  const query = new URLSearchParams(location.search);
  const asked = query.get("lang");
  const wished = [asked, ...navigator.languages].map((one) => (one || "").toLowerCase().split("-")[0]);
  app.language = wished.find((one) => one in app.languages) || "en";
  app.chosenLanguage = asked in app.languages;
  const broken = given.catalogue.faults.map((one) => one.panel);
  const panels = given.catalogue.panels.map((one) => one.id).filter((id) => !broken.includes(id));
  const known = [...given.tabs, ...panels.map((id) => `panel-${id}`)];
  app.tab = known.includes(query.get("tab")) ? query.get("tab") : given.first;
  app.first = query;
  document.documentElement.lang = app.language === "zh" ? "zh-CN" : "en";
  app.drawHeader();
  app.ready = true;
  window.dispatchEvent(new Event("attnreg-ready"));
}
app.drawHeader = () => {
  const language = h("select", { id: "at-language", "aria-label": word("page.language"), onchange: (event) => app.speak(event.target.value) },
    Object.entries(app.languages).map(([code, name]) => h("option", { value: code }, name)));
  language.value = app.language;
  const link = h("button", { type: "button", class: "at-quiet-button", id: "at-link", onclick: () => {
    if (app.write) app.write(); // what was changed a moment ago belongs to it
    copy(location.href, link, word(app.tooLong ? "page.link_long" : "page.link_done"));
  } }, word("page.link"));
  const theme = h("button", { type: "button", class: "at-quiet-button", id: "at-theme", "aria-label": word("page.theme"), title: word("page.theme"),
    onclick: () => { document.body.classList.toggle("dark"); } }, "◐");
  element.replaceChildren(h("div", { class: "at-header" },
    h("div", {}, h("h1", {}, word("page.title")), h("p", {}, word("page.tagline"))),
    h("div", { class: "at-tools" }, link, past(), theme, language)), ...faults());
};
function past() {
  const list = h("ul", { class: "at-menu" });
  const menu = h("details", { class: "at-history", id: "at-history", ontoggle: () => {
    const kept = app.visited();
    list.replaceChildren(...(kept.length ? kept.slice(0, 20).map((one) =>
      h("li", {}, h("button", { type: "button", onclick: () => { menu.open = false; app.go(one.query); } }, one.title,
        h("small", {}, new Date(one.time).toLocaleTimeString(app.language === "zh" ? "zh-CN" : "en"))))) : [h("li", { class: "at-quiet" }, word("page.history_empty"))]));
  } }, h("summary", { class: "at-quiet-button" }, word("page.history")), list);
  return menu;
}
function faults() {
  const rows = [
    ...app.catalogue.broken.map((one) => word("page.broken", one)),
    ...Object.entries(app.catalogue.duplicates).map(([name, owners]) => word("page.duplicate", { name, owners: owners.join(", ") })),
    ...app.catalogue.faults.map((one) => word("page.panel_broken", one)),
  ];
  return rows.length ? [h("details", { class: "at-faults", id: "at-faults" }, h("summary", {}, `${word("page.problems")} (${rows.length})`), h("ul", {}, rows.map((row) => h("li", {}, row))))] : [];
}
watch("value", start);
start();
