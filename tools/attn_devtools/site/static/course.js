// What the theme leaves out: the stepper's colours, hints at what is cut, places to break a name.
"use strict";

// The stepper reads the attribute that JupyterLab gives the body.
const root = document.documentElement;
const tellStepper = () => (document.body.dataset.jpThemeLight = root.dataset.theme !== "dark");
new MutationObserver(tellStepper).observe(root, { attributeFilter: ["data-theme"] });
document.addEventListener("DOMContentLoaded", tellStepper);

// A box that is wider than its place fades and says so, until it is scrolled to its end.
function hint(box) {
  const more = document.createElement("p");
  more.className = "more";
  more.textContent = "wider than the page: scroll →";
  if (!box.closest(".cell_input")) box.before(more); // of code the fade says enough
  const look = () =>
    box.classList.toggle("cut", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
  new ResizeObserver(look).observe(box);
  for (const inner of box.children) new ResizeObserver(look).observe(inner);
  box.addEventListener("scroll", look, { passive: true });
}

// 03_scores_register_blocked breaks at an underscore, not at a letter.
function breakName(link) {
  const texts = document.createTreeWalker(link, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) found.push(texts.currentNode);
  for (const text of found) {
    const parts = text.data.split(/(?<=[_/])(?=.)/);
    const broken = parts.flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
    if (parts.length > 1) text.replaceWith(...broken);
  }
}

document.addEventListener("DOMContentLoaded", () => {
  for (const picture of document.querySelectorAll("article figure img")) {
    const box = document.createElement("div"); // the caption below stays where it is
    box.className = "wide";
    picture.replaceWith(box);
    box.append(picture);
  }
  const boxes =
    ".pst-scrollable-table-container, .wide, .source, .output.text_html, pre:not(.source pre)";
  document.querySelectorAll(`article :is(${boxes})`).forEach(hint);
  const names = "h1, .bd-sidebar a, article :is(a, code):not(pre *)";
  document.querySelectorAll(names).forEach(breakName);
});
