// Sets the theme before the first paint, so that the wrong one does not flash. It is a file of its own because the
// page's content security policy allows no inline script.
(function () {
  var chosen = null;
  try {
    chosen = localStorage.getItem("magent2.theme");
  } catch (error) {
    console.info("no storage; the theme follows the system", error);
  }
  var dark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
