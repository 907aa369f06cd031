// The page holds every text in English and Chinese and shows one language: that of `?lang=zh` in its
// address, or else the browser's.
const TAGS = { en: "en", zh: "zh-Hans" };
const titles = { en: document.title, zh: $('meta[name="title-zh"]').content };
function speak(language) {
  root.lang = TAGS[language];
  document.title = titles[language];
}
const spoken = () => root.lang === TAGS.zh ? "zh" : "en";
const asked = new URLSearchParams(location.search).get("lang");
speak(Object.hasOwn(TAGS, asked ?? "") ? asked : navigator.language.startsWith("zh") ? "zh" : "en");
function languageButton() {
  $(".language").addEventListener("click", () => {
    speak(spoken() === "zh" ? "en" : "zh");
    const address = new URL(location.href);
    address.searchParams.set("lang", spoken());
    history.replaceState(null, "", address);
  });
}
