languageButton();
themeButton();
const folds = all("details");

for (const button of all(".copy")) {
  copyButton(button, () => button.parentElement.querySelector("code").textContent, () => {
    button.classList.add("done");
    return () => button.classList.remove("done");
  });
}

// Tables and drawings that a fold hides have no width yet.
const measure = () => movable(".plate, .scroll");
for (const fold of folds) fold.addEventListener("toggle", measure);
addEventListener("resize", measure);
measure();

const openAll = $(".open-all");
openAll?.addEventListener("click", () => { for (const fold of folds) fold.open = true; });

// A link to something folded away unfolds it.
function unfold() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let part = target; part; part = part.parentElement) if (part.matches("details")) part.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
// The same link again changes no address.
document.addEventListener("click", (event) => { if (event.target.closest('a[href^="#"]')) setTimeout(unfold); });
unfold();

// On paper everything is open.
let closed = [];
addEventListener("beforeprint", () => {
  closed = folds.filter((fold) => !fold.open);
  for (const fold of closed) fold.open = true;
});
addEventListener("afterprint", () => { for (const fold of closed) fold.open = false; });
