"""The sections of the report, each a function from the record of a run to HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rpeg.observe.metrics import meaning
from rpeg.observe.trace import busy_shares, seconds_per_stage
from rpeg.view.charts import CHARTS, WARMUP, Chart, Line, summary
from rpeg.view.numbers import as_count, as_decimal, as_seconds, as_share, as_unit
from rpeg.view.page import element, paragraph, preformatted, rows_table, section, terms
from rpeg.view.record import Record
from rpeg.view.samples import RIGHT_REWARD, spread
from rpeg.view.timeline import Timeline

__all__ = ["EXPLORER", "body"]

EXPLORER = Chart("explorer", "Any metric", "", (Line("value", "value"),), is_smoothed=False, data="explorer")
"""The chart whose metric the reader chooses; the page gives it the steps with that metric as ``value``."""

_TABLE_COLUMNS = {
    "reward/mean": "Reward",
    "eval/accuracy": "Accuracy",
    "length/mean": "Length",
    "loss/policy": "Loss",
    "policy/entropy": "Entropy",
    "policy/clip_fraction": "Clipped",
    "optim/grad_norm": "Gradient",
    "staleness/max": "Staleness",
    "time/step_s": "Step time",
    "perf/tokens_per_s": "Tokens/s",
}
_TABLE_STEPS = 25
# As many as page.css defines for stages, and page.js gives to Vega.
_NUM_COLORS = 12


def body(record: Record, timeline: Timeline | None) -> str:
    """Return header and sections; the charts' places are empty and filled by the page's script."""
    sections = {
        "learning": ("Learning", _charts(record, ("reward", "accuracy", "length", "entropy"))),
        "health": ("Health", [*_charts(record, ("clip", "gradient")), _staleness(record), _warmup(record)]),
        "speed": ("Speed", [*_charts(record, ("step-time",), "wide"), *_speed(record, timeline)]),
        "samples": ("Samples", _samples(record)),
        "numbers": ("Numbers", _numbers(record)),
        "graph": ("Graph", _graph(record)),
        "environment": ("Environment", _environment(record)),
    }
    for name in ("learning", "health"):
        title, parts = sections[name]
        sections[name] = (title, [_grid(parts)])
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, (title, _) in sections.items())
    navigation = element("nav", f"<ul>{links}</ul>", aria_label="Sections")
    main = "\n".join(section(name, title, parts) for name, (title, parts) in sections.items())
    return f"{_header(record)}{navigation}{element('main', main, id='main')}"


def _header(record: Record) -> str:
    headline = element("h1", escape(record.folder.path.resolve().name)) + paragraph(_state(record), "")
    facts = [
        ("Steps", _progress(record)),
        ("Time", as_seconds(record.duration_s) if record.duration_s else "-"),
        ("Model", record.model),
        ("Samples", _last(record, "counters/samples")),
        ("Response tokens", _last(record, "counters/tokens")),
        ("Seed", str(record.environment.get("seed", "-"))),
    ]
    return element("header", headline + _result(record) + terms(facts, "facts") + _next(record) + _notes(record))


def _state(record: Record) -> str:
    reason = str(record.environment.get("reason") or "log.txt may say why")
    return {
        "finished": "Finished.",
        "interrupted": "Interrupted before its last step; it can be resumed.",
        "failed": f"Failed: {reason}.",
        "running": "Still running when this page was written, or killed since.",
    }.get(record.status, "How it ended is unknown.")


def _progress(record: Record) -> str:
    done = max(record.series.steps, default=0)
    asked = record.setting("run.steps")
    return f"{done:,} of {asked:,}" if isinstance(asked, int) else f"{done:,}"


def _last(record: Record, key: str) -> str:
    value = record.series.last(key)
    return "-" if value is None else as_count(value)


def _result(record: Record) -> str:
    """Return the one number the run is about: accuracy, or else reward, before and after."""
    for key, title in (("eval/accuracy", "Held-out accuracy"), ("reward/mean", "Mean reward")):
        points = record.series.points(key)
        if not points:
            continue
        (first, before), (last, after) = points[0], points[-1]
        old, new = (escape(as_unit(value, meaning(key).unit)) for value in (before, after))
        if first == last:
            return element("dl", f"<dt>{title} at step {first:,}</dt><dd>{old}</dd>", class_="result")
        arrow = '<span class="arrow" aria-hidden="true">→</span><span class="unseen">to</span>'
        numbers = f'{old} {arrow} <span class="after">{new}</span>'
        return element("dl", f"<dt>{title}, step {first:,} and step {last:,}</dt><dd>{numbers}</dd>", class_="result")
    return ""


def _next(record: Record) -> str:
    """Return what to do with the result: load the model, or go on where the run stopped."""
    folder = record.folder
    checkpoints = folder.all_checkpoints()
    if (folder.model / "config.json").is_file():
        where = repr(str(folder.model.resolve()))
        text = (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f"model = AutoModelForCausalLM.from_pretrained({where})\n"
            f"tokenizer = AutoTokenizer.from_pretrained({where})"
        )
        words, label = "The trained model is an ordinary Hugging Face folder:", "How to load the model"
    elif checkpoints and record.command:
        words = f"The newest checkpoint is {checkpoints[-1].name}. To go on from there:"
        text, label = record.command.removesuffix(" --resume") + " --resume", "How to resume"
    else:
        return ""
    heading = element("h2", "Next", id="next-title")
    content = heading + paragraph(words) + preformatted(text, label)
    return element("div", content, class_="next", role="group", aria_labelledby="next-title")


def _notes(record: Record) -> str:
    if not record.notes:
        return ""
    items = "".join(element("li", escape(note)) for note in record.notes)
    return element("div", f"<h2>What this page could not show</h2><ul>{items}</ul>", class_="notes", role="note")


def _grid(parts: Iterable[str]) -> str:
    figures = [part for part in parts if part.startswith("<figure")]
    rest = [part for part in parts if not part.startswith("<figure")]
    return (element("div", "\n".join(figures), class_="grid") if figures else "") + "".join(rest)


def _charts(record: Record, names: Sequence[str], class_: str = "") -> list[str]:
    """Return the figures that have data, and one sentence about those that have none."""
    charts = [chart for chart in CHARTS if chart.name in names]
    shown = [chart for chart in charts if record.series.points(chart.lines[0].key)]
    figures = [_figure(chart, summary(chart, record.series), class_) for chart in shown]
    absent = ", ".join(chart.title.lower() for chart in charts if chart not in shown)
    return [*figures, paragraph(f"Not recorded in this run: {absent}.")] if absent else figures


def _figure(chart: Chart, label: str, class_: str = "") -> str:
    legend = "" if len(chart.lines) == 1 else _legend([(line.label, line.style) for line in chart.lines])
    return _drawn(chart.name, chart.title, label, chart.caption, legend, class_)


def _drawn(name: str, title: str, label: str, caption: str, legend: str = "", class_: str = "", tall: str = "") -> str:
    """Return a figure: heading, legend, the chart's empty place, caption."""
    top = element("div", element("h3", escape(title)) + legend, class_="top")
    place = _place(name, label, f"chart {tall}".strip())
    return element("figure", f"{top}{place}<figcaption>{escape(caption)}</figcaption>", class_=class_)


def _place(name: str, label: str, class_: str = "chart") -> str:
    """Return the place of a chart: an image to those who cannot see it, whatever Vega says of the canvas inside."""
    return element("div", element("div", "", id=f"chart-{name}"), class_=class_, role="img", aria_label=label)


def _legend(entries: Iterable[tuple[str, str]], class_: str = "legend") -> str:
    return element(
        "ul",
        "".join(element("li", escape(label), style=f"--key: var(--{key})") for label, key in entries),
        class_=class_,
    )


def _staleness(record: Record) -> str:
    ages = [value for _, value in record.series.points("staleness/max")]
    if not ages:
        return paragraph("Not recorded in this run: staleness.")
    means = [value for _, value in record.series.points("staleness/mean")]
    mean = f"mean {as_decimal(sum(means) / len(means))}, " if means else ""
    label = f"Staleness of {len(ages):,} steps: {mean}oldest {as_unit(max(ages), 'versions')} versions."
    caption = (
        "Steps by the age of the weights that wrote their samples, counted in versions behind the trainer; "
        "0 is strictly on-policy."
    )
    legend = _legend([("mean of the step", "muted"), ("oldest sample", "accent")], "legend blocks")
    return _drawn("staleness", "Staleness", label, caption, legend)


def _warmup(record: Record) -> str:
    if not record.warmup.points("loss"):
        return paragraph("No warm-up was recorded.")
    return _figure(WARMUP, summary(WARMUP, record.warmup))


def _speed(record: Record, timeline: Timeline | None) -> list[str]:
    if timeline is None:
        return [paragraph("No spans were recorded: there is no timeline.")]
    return [_timeline_figure(timeline), element("div", _stage_table(record) + _resource_table(record), class_="pair")]


def _timeline_figure(timeline: Timeline) -> str:
    first, last = timeline.steps[0], timeline.steps[-1]
    steps = f"step {last:,}" if first == last else f"steps {first:,} to {last:,}"
    caption = f"What each resource did in {steps}: a bar is one firing of a stage, a gap is waiting."
    if timeline.has_prediction:
        caption += " The pale row above each measured one is the prediction."
    if timeline.num_hidden:
        caption += f" {timeline.num_hidden} more resources are in trace.json."
    label = f"Timeline of {steps} on {timeline.num_resources} resources; the tables below give its sums."
    legend = _legend(
        [(stage, f"stage-{place % _NUM_COLORS}") for place, stage in enumerate(timeline.stages)], "legend blocks"
    )
    return _drawn("timeline", "Timeline of the last steps", label, caption, legend, "wide", "tall")


def _stage_table(record: Record) -> str:
    measured, predicted = seconds_per_stage(record.spans), seconds_per_stage(record.predicted)
    num_measured = len({span.step for span in record.spans})
    num_predicted = len({span.step for span in record.predicted})
    whole = sum(measured.values()) or 1.0
    rows = [
        (
            stage,
            as_seconds(seconds),
            as_seconds(seconds / num_measured),
            as_seconds(predicted[stage] / num_predicted) if stage in predicted else "-",
            as_share(seconds / whole),
        )
        for stage, seconds in measured.items()
    ]
    head = ("Stage", "All steps", "Per step", "Predicted per step", "Share")
    return rows_table("Seconds per stage, summed over its firings.", head, rows)


def _resource_table(record: Record) -> str:
    rows = [(resource, as_share(share)) for resource, share in busy_shares(record.spans).items()]
    return rows_table("Share of the run's time in which a resource had work.", ("Resource", "Busy"), rows)


def _samples(record: Record) -> list[str]:
    samples = record.samples
    if not samples.rows:
        return [paragraph("No samples were recorded.")]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in samples.counts.items() if count)
    words = (
        f"The run wrote {samples.total:,} samples ({kinds}); {len(samples.rows):,} of them are here, a few of each "
        f"kind from steps spread over the run, newest first. Right means a reward of at least {RIGHT_REWARD}. All of "
        "them are in samples.jsonl."
    )
    steps = dict.fromkeys(str(row.get("step")) for row in samples.rows)
    filters = [
        _select("sample-step", "Step", [("", "All steps"), *((step, f"Step {step}") for step in steps)]),
        _select(
            "sample-kind", "Outcome", [("", "All outcomes"), *((kind, kind.capitalize()) for kind in samples.counts)]
        ),
        _select("sample-origin", "Problem", [("", "All problems"), ("false", "Trained on"), ("true", "Held out")]),
    ]
    form = element("form", "".join(filters), class_="filters", aria_label="Filter samples")
    count = '<p id="sample-count" role="status"></p>'
    return [
        paragraph(words),
        form,
        count,
        '<div id="sample-list"></div>',
        '<button type="button" id="sample-more">Show more</button>',
    ]


def _select(
    name: str, label: str, options: Iterable[tuple[str, str]], data: Mapping[str, Mapping[str, str]] = {}
) -> str:
    choices = "".join(element("option", escape(text), value=value, **data.get(value, {})) for value, text in options)
    return element("label", escape(label) + element("select", choices, id=name, autocomplete="off"))


def _numbers(record: Record) -> list[str]:
    if not record.series.steps:
        return [paragraph("No step was recorded.")]
    return [_ledger(record), _step_table(record), _explorer(record)]


def _ledger(record: Record) -> str:
    """Return the table of where the rows went; their fates add up to the rows generated."""
    series = record.series
    generated = series.last("counters/samples")
    truncated = [value for _, value in series.points("length/truncated")]
    fates = {
        "rows/trained": ("Trained", "the loss learned from them"),
        "rows/without_advantage": ("Zero spread", "neither better nor worse than their group: nothing to learn"),
        "rows/unscorable": ("Unscorable", "no reward function gave a number"),
        "rows/masked": ("Masked", "cut off, and left out of the loss as the recipe asks"),
        "rows/replaced": ("Replaced", "of groups without spread, or without room in a full step"),
    }
    rows = [
        (
            "Generated",
            "sampled and given to the reward functions",
            "-" if generated is None else as_count(generated),
            "",
        )
    ]
    rows += [(*words, *_part(series.total(key), generated)) for key, words in fates.items() if series.points(key)]
    if truncated and generated:
        share = sum(truncated) / len(truncated)
        rows.append(
            ("Truncated", "cut off at the length limit, whatever became of them", *_part(share * generated, generated))
        )
    return rows_table("Ledger: where the rows went.", ("Rows", "Meaning", "Count", "Share"), rows, num_text_columns=2)


def _part(count: float, whole: float | None) -> tuple[str, str]:
    return as_count(count), as_share(count / whole) if whole else "-"


def _step_table(record: Record) -> str:
    series = record.series
    keys = [key for key in _TABLE_COLUMNS if series.points(key)]
    places = spread(range(len(series.steps)), _TABLE_STEPS)
    rows = []
    for place in places:
        values = [series.columns[key][place] for key in keys]
        cells = [
            "" if value is None else as_unit(value, meaning(key).unit) for key, value in zip(keys, values, strict=True)
        ]
        rows.append([f"{series.steps[place]:,}", *cells])
    all_or_some = "All steps" if len(places) == len(series.steps) else f"{len(places)} of {len(series.steps):,} steps"
    return rows_table(
        f"{all_or_some}; every number is in metrics.jsonl.", ["Step", *(_TABLE_COLUMNS[key] for key in keys)], rows
    )


def _explorer(record: Record) -> str:
    keys = [key for key in record.series.columns if key != "step" and record.series.points(key)]
    data = {}
    for key in keys:
        words = summary(Chart("", key, "", (Line(key, "value"),), meaning(key).unit), record.series)
        data[key] = {"data_meaning": meaning(key).meaning, "data_summary": words}
    select = _select("explorer-key", "Metric", [(key, key) for key in sorted(keys)], data)
    top = element("div", element("h3", "Any metric") + select, class_="top")
    return element(
        "figure", f'{top}{_place("explorer", "")}<figcaption id="explorer-meaning" aria-live="polite"></figcaption>'
    )


def _graph(record: Record) -> list[str]:
    if not record.graph_text:
        return [paragraph("The graph was not recorded.")]
    return [
        paragraph("What the run executed: data, stages, and what each stage reads and writes."),
        preformatted(record.graph_text, "Graph"),
    ]


def _environment(record: Record) -> list[str]:
    rows = _flat(record.environment)
    if not rows:
        return [paragraph("The environment was not recorded.")]
    return [rows_table("Content of run.json.", ("Entry", "Value"), rows, num_text_columns=2)]


def _flat(value: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested values under dotted names."""
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, dict):
            rows.extend(_flat(item, f"{prefix}{key}."))
        else:
            rows.append((f"{prefix}{key}", " ".join(map(str, item)) if isinstance(item, list) else str(item)))
    return rows
