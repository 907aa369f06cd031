document.addEventListener("DOMContentLoaded", () => {
  themeButton();
  movable(".plate");
  for (const button of all(".copy")) copyButton(button, () => button.parentElement.querySelector("code").textContent, saying(button.dataset.done));

  // Which claims are shown: those of a pressed verdict (of any where none is) that have every
  // word searched for.
  const claims = all(".claim");
  const texts = new Map(claims.map((claim) => [claim, claim.textContent.toLowerCase()]));
  const tiles = new Map(all(".tile").map((tile) => [tile.hash.slice(1), tile]));
  const chips = all(".chip");
  const search = document.querySelector(".search");
  const status = document.querySelector(".status");
  const count = status.querySelector("span");
  const clear = status.querySelector("button");

  function show() {
    const pressed = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true");
    const wanted = new Set(pressed.map((chip) => chip.dataset.verdict));
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const claim of claims) {
      const fits = (!wanted.size || wanted.has(claim.dataset.verdict))
        && words.every((word) => texts.get(claim).includes(word));
      claim.hidden = !fits;
      tiles.get(claim.id).classList.toggle("dim", !fits);
      shown += fits;
    }
    for (const group of all(".group")) group.hidden = !group.querySelector(".claim:not([hidden])");
    document.querySelector(".nothing").hidden = shown > 0;
    const narrowed = wanted.size > 0 || words.length > 0;
    count.textContent = narrowed ? `${shown} ${status.dataset.of} ${claims.length}` : "";
    clear.hidden = !narrowed;
  }
  function showAll() {
    chips.forEach((chip) => chip.setAttribute("aria-pressed", "false"));
    search.value = "";
    show();
  }
  for (const chip of chips) {
    chip.disabled = false;
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
      show();
    });
  }
  search.addEventListener("input", show);
  clear.addEventListener("click", () => { showAll(); search.focus(); });

  // A link to something that is filtered away shows it again.
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    const target = link && document.getElementById(link.hash.slice(1));
    if (target && target.closest("[hidden]")) showAll();
  });

  // Where the reader is.
  const links = new Map(all(".groups a").map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const link = links.get(target.id);
      if (isIntersecting) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-30% 0px -69% 0px" });
  all(".group").forEach((group) => watch.observe(group));
});
