// The site's frame: light or dark, and the search over an index that is loaded when it is needed.
"use strict";

const ROOT = document.currentScript.dataset.root;
const MOST_RESULTS = 14;
const SNIPPET = 150; // characters of text that a result shows

// -- light or dark ------------------------------------------------------------------------------
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function kept() {
  try {
    return localStorage.getItem("attn-course-theme");
  } catch {
    return null; // a browser that keeps nothing for pages from disk
  }
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : prefersDark.matches;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  // The stepper reads the attribute that JupyterLab gives the body.
  if (document.body) document.body.dataset.jpThemeLight = String(!isDark());
}

// A choice that the system makes too is forgotten: the page follows the system again.
function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  const choice = (theme === "dark") === prefersDark.matches ? null : theme;
  setTheme(choice);
  try {
    if (choice) localStorage.setItem("attn-course-theme", choice);
    else localStorage.removeItem("attn-course-theme");
  } catch {
    // shown on this page only
  }
}

setTheme(kept()); // before the page is drawn
prefersDark.addEventListener("change", () => setTheme(kept()));

// -- search -------------------------------------------------------------------------------------
let loading = null;

function loadIndex() {
  loading ??= new Promise((done, failed) => {
    const script = document.createElement("script"); // fetch() does not read pages from disk
    script.src = `${ROOT}assets/search_index.js`;
    script.onload = () => done(window.searchIndex);
    script.onerror = () => failed(new Error("the search index is missing"));
    document.head.append(script);
  });
  return loading;
}

function wordsOf(query) {
  return query.toLowerCase().match(/[\p{L}\p{N}_.]+/gu) ?? [];
}

// How well a section fits: every word must be in it; a title counts more than text.
function score(entry, words) {
  const [kind, page, section, , text] = entry;
  const title = section.toLowerCase();
  const name = page.toLowerCase();
  const body = text.toLowerCase();
  let total = 0;
  for (const word of words) {
    if (title === word) total += 30;
    else if (new RegExp(`(^|[^\\p{L}\\p{N}])${escaped(word)}`, "u").test(title)) total += 12;
    else if (title.includes(word)) total += 8;
    else if (name.includes(word)) total += 3;
    else if (body.includes(word)) total += 1;
    else return 0;
  }
  if (title === words.join(" ")) total += 20;
  if (kind === "glossary") total += 2;
  if (section === page) total += 2;
  return total;
}

function escaped(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

function search(index, query) {
  const words = wordsOf(query);
  if (!words.length) return [];
  return index
    .map((entry) => [score(entry, words), entry])
    .filter(([points]) => points > 0)
    .sort((a, b) => b[0] - a[0])
    .slice(0, MOST_RESULTS)
    .map(([, entry]) => entry);
}

// The text around the first word that is found, with the words marked.
function snippet(text, words) {
  const lower = text.toLowerCase();
  const places = words.map((word) => lower.indexOf(word)).filter((place) => place >= 0);
  const first = places.length ? Math.min(...places) : 0;
  const start = Math.max(0, first - 40);
  const shown = document.createElement("small");
  const cut = text.slice(start, start + SNIPPET);
  const pattern = new RegExp(`(${words.map(escaped).join("|")})`, "iu");
  if (start > 0) shown.append("… ");
  for (const part of cut.split(pattern)) {
    if (words.includes(part.toLowerCase())) {
      const mark = document.createElement("mark");
      mark.textContent = part;
      shown.append(mark);
    } else shown.append(part);
  }
  if (start + SNIPPET < text.length) shown.append(" …");
  return shown;
}

function result([kind, page, section, address, text], words) {
  const link = document.createElement("a");
  link.href = ROOT + address;
  const label = document.createElement("span");
  label.className = "kind";
  label.textContent = kind;
  const title = document.createElement("strong");
  title.textContent = section === page || kind === "glossary" ? section : `${section} · ${page}`;
  link.append(label, title, snippet(text, words));
  return link;
}

function startSearch(form) {
  const input = form.querySelector("input");
  const box = form.querySelector(".found");
  let chosen = -1;

  const close = () => {
    box.hidden = true;
    chosen = -1;
  };
  const choose = (step) => {
    const links = [...box.querySelectorAll("a")];
    if (!links.length) return;
    links[chosen]?.classList.remove("chosen");
    chosen = (chosen + step + links.length) % links.length;
    links[chosen].classList.add("chosen");
    links[chosen].scrollIntoView({ block: "nearest" });
  };
  const show = async () => {
    const query = input.value;
    const words = wordsOf(query);
    if (!words.length) return close();
    const message = document.createElement("p");
    try {
      const found = search(await loadIndex(), query);
      if (input.value !== query) return; // typed on meanwhile
      message.textContent = `Nothing has “${query.trim()}”.`;
      box.replaceChildren(...(found.length ? found.map((one) => result(one, words)) : [message]));
    } catch (error) {
      message.textContent = `Search does not work: ${error.message}.`;
      box.replaceChildren(message);
    }
    chosen = -1;
    box.hidden = false;
  };

  input.addEventListener("focus", () => loadIndex().catch(() => {}));
  input.addEventListener("input", show);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      choose(chosen < 0 && step < 0 ? 0 : step);
    } else if (event.key === "Escape") close();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    (box.querySelector("a.chosen") ?? box.querySelector("a"))?.click();
  });
  document.addEventListener("click", (event) => {
    if (!form.contains(event.target) || event.target.closest(".found a")) close();
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      input.focus();
    }
  });
}

// A fold opens where a link leads into it.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target?.closest("details");
  if (fold && !fold.open) {
    fold.open = true;
    target.scrollIntoView();
  }
}

document.addEventListener("DOMContentLoaded", () => {
  setTheme(kept());
  document.querySelector(".theme").addEventListener("click", switchTheme);
  startSearch(document.querySelector("form.search"));
  const contents = document.querySelector(".contents details");
  if (contents && innerWidth < 1120) contents.open = false;
  addEventListener("hashchange", openTarget);
  openTarget();
});
