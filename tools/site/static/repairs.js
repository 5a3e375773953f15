// Small repairs of the theme's pages, for readers without a mouse or a screen.
document.addEventListener("DOMContentLoaded", () => {
  // The theme's scripts expect a table of contents on every page.
  if (!document.querySelector("div.bd-sidebar-secondary")) {
    const stand_in = document.createElement("div");
    stand_in.className = "bd-sidebar-secondary";
    stand_in.hidden = true;
    document.body.append(stand_in);
  }
  // The arrows that unfold parts of the contents have no name.
  for (const arrow of document.querySelectorAll("nav summary")) {
    const link = arrow.closest("li")?.querySelector("a");
    arrow.setAttribute("aria-label", `Pages below ${link?.textContent.trim()}`);
  }
});
