"use strict";
// Shows or hides the assumptions above all tables at once; without this script they are all shown.
(() => {
  const button = document.getElementById("toggle");
  const notes = [...document.querySelectorAll("details.assumptions")];
  let shown = true;
  button.hidden = notes.length === 0;
  button.addEventListener("click", () => {
    shown = !shown;
    for (const each of notes) each.open = shown;
    button.textContent = shown ? "Hide all assumptions" : "Show all assumptions";
    button.setAttribute("aria-pressed", String(!shown));
  });
})();
