// Sphinx's search, which also shows text from disk and forgives a typing error.
"use strict";

// How many letters must be changed, added, left out or swapped to make one word the other.
function distance(a, b) {
  const rows = [Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    rows.push([i]);
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      let least = Math.min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + same);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        least = Math.min(least, rows[i - 2][j - 2] + 1);
      rows[i].push(least);
    }
  }
  return rows[a.length][b.length];
}

// The word of the index that is nearest to one that no page has; the word itself where none is.
function nearest(word) {
  const stem = new Stemmer().stemWord(word.toLowerCase());
  const known = Object.keys({ ...Search._index.terms, ...Search._index.titleterms });
  if (stem.length < 4 || known.some((term) => term.includes(stem))) return word;
  const most = stem.length < 6 ? 1 : 2;
  const near = known
    .filter((term) => Math.abs(term.length - stem.length) <= most)
    .map((term) => [distance(term, stem), term])
    .sort(([a], [b]) => a - b)[0];
  return near && near[0] <= most ? near[1] : word;
}

// The section of a page to which a result leads, or the first that has all words.
function sectionOf([page, , anchor], words) {
  const sections = SECTIONS[page] ?? [];
  const holds = ([, title, text]) => {
    const all = `${title} ${text}`.toLowerCase();
    return words.every((word) => all.includes(word));
  };
  return sections.find(([id]) => `#${id}` === anchor) ?? sections.find(holds);
}

document.addEventListener("DOMContentLoaded", () => {
  const { query, _performSearch } = Search;
  Search.query = (text) => {
    const corrected = splitQuery(text).map(nearest).join(" ");
    if (corrected === splitQuery(text).join(" ")) return query(text);
    Search.output.before(`Shown: results for “${corrected}”.`);
    return query(corrected);
  };
  const texts = {}; // of results by address
  Search._performSearch = (text, words, ...more) => {
    const results = _performSearch(text, words, ...more);
    for (const result of results) {
      const section = sectionOf(result, [...words]);
      if (!section) continue;
      const page = Search._index.titles[Search._index.docnames.indexOf(result[0])];
      if (section[1] !== page) result[1] = `${section[1]} · ${page}`;
      result[2] = `#${section[0]}`;
      texts[`${root.dataset.content_root}${result[0]}.html${result[2]}`] = section[2];
    }
    return results.filter(([page, , anchor], i) => // a result further on stands higher
      !results.slice(i + 1).some((other) => other[0] === page && other[2] === anchor));
  };
  // Sphinx asks for the page, which a browser does not read from disk; then for its text.
  window.fetch = async (page) => ({ text: async () => page });
  Search.htmlToText = (page, anchor) => texts[page + anchor] || " ";
});
