const root = document.documentElement;
root.classList.add("scripted");
const $ = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Light and dark. Some browsers store nothing for files; the choice then lasts until the page closes.
const remembered = {
  get: () => { try { return localStorage.getItem("regard-theme"); } catch { return null; } },
  set: (theme) => { try { localStorage.setItem("regard-theme", theme); } catch { /* see above */ } },
};
const isDark = () => root.classList.contains("printing") ? false : root.dataset.theme
  ? root.dataset.theme === "dark"
  : matchMedia("(prefers-color-scheme: dark)").matches;
if (["light", "dark"].includes(remembered.get())) root.dataset.theme = remembered.get();
function themeButton(after = () => {}) {
  $(".theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered.set(root.dataset.theme);
    after();
  });
}

// A button that copies a text. `done` shows that for a moment, and returns a function that undoes it.
function copyButton(button, text, done) {
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      // Some browsers have no clipboard for pages from disk: copy a selection instead.
      const field = document.createElement("textarea");
      field.className = "unseen";
      field.value = text();
      button.after(field);
      field.select();
      const copied = document.execCommand("copy");
      field.remove();
      button.focus();
      if (!copied) return;
    }
    setTimeout(done(button), 1500);
  });
}
function saying(word) {
  return (button) => {
    const before = button.textContent;
    button.textContent = word;
    return () => { button.textContent = before; };
  };
}

// Parts that are wider than their frame get the focus, so that the arrow keys scroll them.
function movable(selector) {
  for (const part of all(selector)) if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
}
