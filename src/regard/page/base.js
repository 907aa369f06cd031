const root = document.documentElement;
root.classList.add("scripted");
const $ = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Light and dark. Where the browser keeps nothing for files, the choice lasts as long as the page.
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

// A button that copies: `done` says so for a moment, and gives back what undoes that.
function copyButton(button, text, done) {
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      // Some browsers give pages from disk no clipboard.
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

// What is wider than its frame can be moved with the keys.
function movable(selector) {
  for (const part of all(selector)) if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
}
