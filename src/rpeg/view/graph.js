"use strict";
// Moves between the rewrites of a graph, lays things over its drawing, and says what is pointed at or focused.
(() => {
  const data = JSON.parse(document.getElementById("run-data").textContent);
  const main = document.getElementById("main");
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  const slider = document.getElementById("rewrite");
  const said = document.getElementById("said");
  const last = data.titles.length - 1;
  let shown = last;

  const make = (tag, text) => {
    const node = document.createElement(tag);
    node.textContent = text;
    return node;
  };
  const frame = (place) => main.querySelectorAll(`[data-frame="${place}"]`);
  const boxes = (place) => [...frame(place)].flatMap((part) => [...part.querySelectorAll(".box")]);

  // What is pointed at or focused
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);
  let told = null;

  const forget = () => {
    tip.hidden = true;
    for (const link of main.querySelectorAll(".touching")) link.classList.remove("touching");
    told = null;
  };
  const tell = (node, x, y) => {
    if (node !== told) {
      forget();
      told = node;
      const [title, rows] = data.tips[shown][node.dataset.tip];
      const list = document.createElement("dl");
      for (const [name, text] of rows) list.append(make("dt", name), make("dd", text));
      tip.replaceChildren(make("h4", title), list);
      for (const link of node.closest("svg").querySelectorAll(".link")) {
        const ends = link.dataset.tip.replace(/@\d+$/, "").split(">");
        const prefix = ends[0].includes("/") ? ends[0].slice(0, ends[0].indexOf("/") + 1) : "";
        if (ends[0] === node.dataset.tip || prefix + ends[1] === node.dataset.tip) link.classList.add("touching");
      }
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const beside = x + 16 + box.width < window.innerWidth ? x + 16 : x - 16 - box.width;
    tip.style.left = `${Math.max(8, beside)}px`;
    tip.style.top = `${Math.max(8, Math.min(y + 14, window.innerHeight - box.height - 8))}px`;
  };
  const tellBeside = (node) => {
    const box = node.getBoundingClientRect();
    tell(node, box.right - 8, box.top);
  };
  main.addEventListener("pointermove", (event) => {
    const node = event.target.closest("[data-tip]");
    if (node) tell(node, event.clientX, event.clientY);
    else if (told && told !== document.activeElement) forget();
  });
  main.addEventListener("pointerleave", forget);
  main.addEventListener("focusin", (event) => (event.target.closest(".box") ? tellBeside(event.target.closest(".box")) : forget()));
  main.addEventListener("focusout", forget);
  window.addEventListener("scroll", forget, { passive: true });

  // One box of a drawing is in the order of Tab; arrow keys go to the nearest one on that side.
  const enter = (node) => {
    for (const other of node.closest("svg").querySelectorAll(".box")) other.setAttribute("tabindex", "-1");
    node.setAttribute("tabindex", "0");
  };
  const middle = (node) => {
    const box = node.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const nearest = (from, dx, dy) => {
    const [x, y] = middle(from);
    let best = null;
    let least = Infinity;
    for (const node of from.closest("svg").querySelectorAll(".box")) {
      const [otherX, otherY] = middle(node);
      const ahead = (otherX - x) * dx + (otherY - y) * dy;
      const aside = Math.abs((otherX - x) * dy) + Math.abs((otherY - y) * dx);
      if (ahead > 4 && ahead + 2 * aside < least) [best, least] = [node, ahead + 2 * aside];
    }
    return best;
  };
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  main.addEventListener("keydown", (event) => {
    if (event.key === "Escape") forget();
    const from = event.target.closest(".box");
    if (!from || !(event.key in steps)) return;
    event.preventDefault();
    const next = nearest(from, ...steps[event.key]);
    if (!next) return;
    enter(next);
    next.focus();
  });
  for (const svg of main.querySelectorAll("svg.graph")) {
    const first = svg.querySelector(".box.stage") ?? svg.querySelector(".box");
    if (first) enter(first);
  }

  // Rewrites: what keeps its name glides to its new place.
  const places = (place) => new Map(boxes(place).map((node) => [node.dataset.tip, middle(node)]));
  const show = (place, moves = true) => {
    if (place < 0 || place > last) return;
    const before = places(shown);
    forget();
    for (const part of frame(shown)) part.hidden = true;
    for (const part of frame(place)) part.hidden = false;
    shown = place;
    if (slider) {
      slider.value = String(place);
      slider.setAttribute("aria-valuetext", `${place} of ${last}: ${data.titles[place]}`);
      said.textContent = `${place} of ${last}: ${data.titles[place]}`;
      document.getElementById("before").disabled = place === 0;
      document.getElementById("after").disabled = place === last;
    }
    for (const button of main.querySelectorAll("[data-go]"))
      if (Number(button.dataset.go) === place) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    if (moves && !still.matches) glide(before);
    document.documentElement.dataset.shown = String(place);
  };
  const glide = (before) => {
    for (const node of boxes(shown)) {
      const old = before.get(node.dataset.tip);
      const [x, y] = middle(node);
      const home = node.getAttribute("transform").match(/translate\(([-\d.]+) ([-\d.]+)\)/).slice(1).map(Number);
      const to = `translate(${home[0]}px, ${home[1]}px)`;
      const options = { duration: 320, easing: "ease-out" };
      if (old) node.animate([{ transform: `translate(${home[0] + old[0] - x}px, ${home[1] + old[1] - y}px)` }, { transform: to }], options);
      else node.animate([{ opacity: 0 }, { opacity: 1 }], options);
    }
    for (const link of [...frame(shown)].flatMap((part) => [...part.querySelectorAll(".link")]))
      link.animate([{ opacity: 0 }, { opacity: 0, offset: 0.5 }, {}], { duration: 420 });
  };
  slider?.addEventListener("input", () => show(Number(slider.value)));
  document.getElementById("before")?.addEventListener("click", () => show(shown - 1));
  document.getElementById("after")?.addEventListener("click", () => show(shown + 1));
  for (const button of main.querySelectorAll("[data-go]"))
    button.addEventListener("click", () => {
      show(Number(button.dataset.go));
      document.getElementById("drawing").scrollIntoView();
    });

  // Overlays
  for (const choice of document.getElementsByName("overlay"))
    choice.addEventListener("change", () => {
      main.dataset.overlay = choice.value;
    });

  document.getElementById("controls").hidden = false;
  show(last, false);
})();
