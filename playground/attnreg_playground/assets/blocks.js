// Plain blocks of text from `props.value.blocks` (see about.py), set by textContent alone.
const TAGS = { h2: "h2", h3: "h3", p: "p", chip: "span" };
function draw() {
  const blocks = (props.value && props.value.blocks) || [];
  element.replaceChildren(...blocks.map((block) => {
    const made = document.createElement(TAGS[block.tag] || "p");
    made.className = ["at-block", "at-" + (block.tag === "chip" ? "chip" : "text"), block.style ? "at-" + block.style : ""].join(" ").trim();
    if (typeof block.href === "string" && block.href.startsWith("https://arxiv.org/abs/")) {
      const link = document.createElement("a");
      link.href = block.href; link.target = "_blank"; link.rel = "noopener noreferrer"; link.textContent = block.text;
      made.append(link);
    } else made.textContent = block.text;
    return made;
  }));
}
watch("value", draw);
draw();
