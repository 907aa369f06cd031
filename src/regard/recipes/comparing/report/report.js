languageButton();
themeButton();
const measure = () => movable(".plate, .scroll");
addEventListener("resize", measure);
measure();
