// One tab: it waits for the header, which brings the library, and shows its pages.
function mount() {
  const app = window.attnreg, name = props.value.tab;
  app.tabs.set(name, new app.View(element, name));
}
if (window.attnreg && window.attnreg.ready) mount();
else window.addEventListener("attnreg-ready", mount, { once: true });
