// What axe-core misses in the theme: levels of the navigation's captions, and keyboard access to
// code blocks that scroll sideways.
document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll("p.caption[role=heading]")) {
    caption.setAttribute("aria-level", "2");
  }
  for (const block of document.querySelectorAll("pre, .table-wrapper")) {
    block.tabIndex = 0;
  }
});
