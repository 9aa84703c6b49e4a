"""HTML from plain values: everything that comes from a run is escaped here and nowhere else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from rpeg.observe.json_files import plain

__all__ = ["Assets", "element", "page", "paragraph", "preformatted", "rows_table", "section", "terms"]

_CREDITS = (
    "Written by RPEG. Charts are drawn with Vega, Vega-Lite and Vega-Embed (BSD-3-Clause), bundled in this page "
    "with D3 (ISC); the page uses no network."
)


def element(tag: str, content: str = "", /, **attributes: str) -> str:
    """Return one element around ``content``, which is HTML already; attributes are escaped, ``input`` has no content.

    A trailing underscore of an attribute's name is dropped (``class_``), other underscores become hyphens.
    """
    written = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{written}>" if tag == "input" else f"<{tag}{written}>{content}</{tag}>"


def paragraph(text: str, class_: str = "note") -> str:
    """Return a paragraph of plain text."""
    return element("p", escape(text), class_=class_)


def preformatted(text: str, label: str) -> str:
    """Return a block of text with its spaces kept; it can be scrolled with the keyboard, ``label`` names it."""
    return element("pre", escape(text), tabindex="0", role="region", aria_label=label)


def section(name: str, title: str, content: Iterable[str]) -> str:
    """Return a section with its heading; ``name`` is what links point to."""
    heading = element("h2", escape(title), id=f"{name}-title")
    return element("section", heading + "\n".join(content), id=name, aria_labelledby=f"{name}-title")


def terms(pairs: Iterable[tuple[str, str]], class_: str) -> str:
    """Return a list of names with their values."""
    return element(
        "dl",
        "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs),
        class_=class_,
    )


def rows_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], num_text_columns: int = 1) -> str:
    """Return a table; the first cell of a row is its heading, columns after the text columns are aligned as numbers."""

    def cell(tag: str, place: int, text: str, **attributes: str) -> str:
        side = {} if place < num_text_columns else {"class_": "number"}
        return element(tag, escape(text), **attributes, **side)

    top = "".join(cell("th", place, text, scope="col") for place, text in enumerate(head))
    body = "".join(
        element(
            "tr",
            cell("th", 0, row[0], scope="row")
            + "".join(cell("td", place, text) for place, text in enumerate(row[1:], 1)),
        )
        for row in rows
    )
    caption_html = element("caption", escape(caption))
    table = element("table", f"{caption_html}<thead><tr>{top}</tr></thead><tbody>{body}</tbody>")
    # A wide table scrolls inside its frame, which the keyboard must be able to reach.
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


@dataclass(frozen=True, slots=True)
class Assets:
    """What a kind of page is drawn with: names of files of this folder, and JavaScript of libraries."""

    styles: tuple[str, ...]
    script: str
    libraries: str = ""
    """Their licences are then on the page, and Vega may compile its expressions."""


def page(title: str, body: str, data: object, assets: Assets) -> str:
    """Return a whole page that loads nothing from anywhere.

    Its security policy forbids the network and runs only the scripts written here, known by their hashes: text that
    slipped through escaping would still not run.

    Args:
        title: plain text.
        body: HTML of header and sections.
        data: what the script finds under ``run-data``.
        assets: styles and scripts.
    """
    scripts = [assets.libraries.replace("</script", "<\\/script")] if assets.libraries else []
    scripts.append(_asset(assets.script))
    policy = ["'unsafe-eval'"] if assets.libraries else []
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        policy=" ".join([*policy, *(f"'sha256-{_sha256(script)}'" for script in scripts)]),
        style="".join(map(_asset, assets.styles)),
        body=body,
        footer=_footer(bool(assets.libraries)),
        data=_inline_json(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _footer(has_libraries: bool) -> str:
    if not has_libraries:
        return element("p", "Written by RPEG; the page uses no network.")
    return element("p", _CREDITS) + element(
        "details", element("summary", "Licences") + element("pre", escape(_asset("licences.txt")), tabindex="0")
    )


def _inline_json(data: object) -> str:
    """Return JSON that no HTML parser can mistake for markup."""
    text = json.dumps(plain(data), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return files("rpeg.view").joinpath(name).read_text(encoding="utf-8")
