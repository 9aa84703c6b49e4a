"use strict";
// Draws the charts and the samples from the data in this page. Text of a run reaches the page through textContent only.
(() => {
  const data = JSON.parse(document.getElementById("run-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const PAGE_SIZE = 12;

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  // Columns travel better than rows; Vega wants rows.
  const records = (columns) => {
    const keys = Object.keys(columns);
    return (columns[keys[0]] ?? []).map((_, place) => Object.fromEntries(keys.map((key) => [key, columns[key][place]])));
  };
  const datasets = { steps: records(data.steps), warmup: records(data.warmup), timeline: data.timeline };

  const theme = () => {
    const styles = getComputedStyle(document.documentElement);
    const color = (name) => styles.getPropertyValue(`--${name}`).trim();
    const font = styles.getPropertyValue("--sans").trim();
    const stages = Array.from({ length: 12 }, (_, place) => color(`stage-${place}`));
    const line = (name) => ({
      [name]: { color: color(name), strokeWidth: 2, strokeJoin: "round", strokeCap: "round" },
      [`${name}-raw`]: { color: color(name), strokeWidth: 1, strokeOpacity: 0.35 },
      [`${name}-point`]: { color: color(name), filled: true, size: 24, opacity: 1 },
    });
    return {
      background: "transparent",
      font,
      padding: { left: 0, right: 4, top: 6, bottom: 4 },
      view: { stroke: null },
      range: { category: stages, pair: [color("muted"), color("accent")] },
      bar: { color: color("accent") },
      style: {
        ...line("accent"),
        ...line("muted"),
        hover: { filled: true, color: color("ink"), size: 46 },
        span: { cornerRadius: 2, stroke: color("page"), strokeWidth: 0.5 },
        step: { color: color("muted"), strokeDash: [2, 3] },
        "step-label": { color: color("soft"), fontSize: 11 },
      },
      axis: {
        domainColor: color("line"), gridColor: color("line"), tickColor: color("line"), ticks: false,
        labelColor: color("soft"), titleColor: color("soft"), labelFontSize: 11, titleFontSize: 11,
        titleFontWeight: "normal", labelPadding: 6, titlePadding: 8, labelFont: font, titleFont: font,
      },
      axisY: { domain: false },
    };
  };

  const tip = make("div", "tip");
  tip.hidden = true;
  document.body.append(tip);
  const showTip = (_, event, __, value) => {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    const list = make("dl");
    for (const [name, text] of Object.entries(value)) list.append(make("dt", "", name), make("dd", "", String(text)));
    tip.replaceChildren(list);
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - box.width - 8)}px`;
    tip.style.top = `${Math.max(8, Math.min(event.clientY + 14, window.innerHeight - box.height - 8))}px`;
  };

  const views = new Map();
  const draw = async (name, spec, config) => {
    views.get(name)?.finalize();
    const named = { [spec.data.name]: datasets[spec.data.name] };
    const options = { mode: "vega-lite", renderer: "canvas", actions: false, tooltip: showTip, config };
    views.set(name, await vegaEmbed(document.getElementById(`chart-${name}`), { ...spec, datasets: named }, options));
  };

  // One chart per turn of the event loop: the page can be scrolled while the rest is drawn.
  const drawAll = async () => {
    const config = theme();
    for (const [name, spec] of Object.entries(data.charts)) {
      await draw(name, spec, config);
      await new Promise((resolve) => setTimeout(resolve));
    }
    document.documentElement.dataset.charts = String(views.size);
  };

  const setUpExplorer = () => {
    const select = document.getElementById("explorer-key");
    if (!select) return;
    data.charts.explorer = data.explorer;
    const show = () => {
      const option = select.selectedOptions[0];
      datasets.explorer = datasets.steps.map((row) => ({ step: row.step, value: row[select.value] }));
      document.getElementById("explorer-meaning").textContent = option.dataset.meaning;
      document.getElementById("chart-explorer").parentElement.setAttribute("aria-label", option.dataset.summary);
    };
    show();
    select.addEventListener("change", () => {
      show();
      draw("explorer", data.explorer, theme());
    });
  };

  const number = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : "none");
  const textBlock = (title, text) => {
    const block = make("div");
    const body = make("pre", "", text);
    body.tabIndex = 0;
    block.append(make("h4", "", title), body);
    return block;
  };
  const sampleArticle = (sample) => {
    const article = make("article", "sample");
    const head = make("h3");
    const mark = { right: "✓ right", wrong: "✗ wrong", unscorable: "? unscorable" }[sample.kind];
    head.append(make("strong", "", `Step ${sample.step}`), make("strong", sample.kind, mark));
    head.append(make("span", "", `reward ${number(sample.reward)}`));
    if (typeof sample.advantage === "number") head.append(make("span", "", `advantage ${number(sample.advantage)}`));
    if (sample.length !== undefined) head.append(make("span", "", `${sample.length} tokens`));
    if (sample.finished === false) head.append(make("span", "", "cut off at the length limit"));
    if (sample.version !== undefined && sample.version !== null)
      head.append(make("span", "", `weights version ${sample.version}`));
    if (sample.held_out) head.append(make("span", "", "held out"));
    head.append(make("span", "", String(sample.row_id ?? "")));
    const texts = make("div", "texts");
    texts.append(textBlock("Prompt", sample.prompt), textBlock("Response", sample.response), textBlock("Answer", sample.answer));
    article.append(head, texts);
    return article;
  };

  const setUpSamples = () => {
    const list = document.getElementById("sample-list");
    if (!list) return;
    const [step, kind, origin] = ["step", "kind", "origin"].map((name) => document.getElementById(`sample-${name}`));
    const more = document.getElementById("sample-more");
    const count = document.getElementById("sample-count");
    let shown = 0;
    let chosen = [];
    const showMore = () => {
      const next = chosen.slice(shown, shown + PAGE_SIZE).map(sampleArticle);
      list.append(...next);
      shown += next.length;
      more.hidden = shown === chosen.length;
      count.textContent = `Showing ${shown} of ${chosen.length} samples that match.`;
      return next[0];
    };
    const filter = () => {
      chosen = data.samples.filter((sample) =>
        (step.value === "" || String(sample.step) === step.value) &&
        (kind.value === "" || sample.kind === kind.value) &&
        (origin.value === "" || String(sample.held_out) === origin.value));
      shown = 0;
      list.replaceChildren();
      showMore();
    };
    for (const select of [step, kind, origin]) select.addEventListener("change", filter);
    more.addEventListener("click", () => {
      const first = showMore();
      first.tabIndex = -1;
      first.focus();
    });
    filter();
  };

  setUpSamples();
  setUpExplorer();
  drawAll();
  dark.addEventListener("change", drawAll);
})();
