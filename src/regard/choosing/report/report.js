"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const all = (selector) => [...document.querySelectorAll(selector)];
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector(".theme").addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
    });
    for (const button of all(".copy")) {
      button.addEventListener("click", async () => {
        const code = button.parentElement.querySelector("code");
        try {
          await navigator.clipboard.writeText(code.textContent);
        } catch {
          getSelection().selectAllChildren(code);
          if (!document.execCommand("copy")) return;
        }
        const before = button.textContent;
        button.textContent = button.dataset.done;
        setTimeout(() => { button.textContent = before; }, 1500);
      });
    }
    // What is wider than the screen can be moved with the keys.
    for (const wide of all(".plate, .scroll")) if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
  });
})();
