"""HTML from plain values."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from rpeg.view.page import Assets, element, page, paragraph, preformatted, rows_table, section, terms

ASSETS = Assets(("page.css",), "page.js")
EVIL = "<b>&\"'</b>"
SAFE = "&lt;b&gt;&amp;&quot;&#x27;&lt;/b&gt;"


def with_library(script: str) -> Assets:
    return replace(ASSETS, libraries=script)


def test_every_piece_escapes_its_text() -> None:
    assert element("a", "x", class_="c", aria_label=EVIL) == f'<a class="c" aria-label="{SAFE}">x</a>'
    assert paragraph(EVIL) == f'<p class="note">{SAFE}</p>'
    for html in (
        preformatted(EVIL, EVIL),
        section("s", EVIL, ["<p>kept</p>"]),
        terms([(EVIL, EVIL)], "t"),
        rows_table(EVIL, [EVIL], [[EVIL, EVIL]]),
    ):
        assert SAFE in html
        assert "<b>" not in html


def test_tables_have_caption_headings_and_aligned_numbers() -> None:
    html = rows_table("Seconds", ["Stage", "Sum"], [["train", "1.0"]])
    assert "<caption>Seconds</caption>" in html
    assert '<th scope="col">Stage</th><th scope="col" class="number">Sum</th>' in html
    assert '<tr><th scope="row">train</th><td class="number">1.0</td></tr>' in html


def test_data_cannot_end_its_element(hostile: str) -> None:
    html = page("t", "", {"text": hostile, "nan": float("nan")}, with_library("var library = '</script>';"))
    found = re.search(r'<script type="application/json" id="run-data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    assert json.loads(found[1]) == {"text": hostile, "nan": None}
    assert not set("<>&") & set(found[1])
    assert html.count("</script>") == html.count("<script") == 3


def test_only_scripts_of_known_hash_may_run() -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page("t", "", {}, with_library("var a;")))
    assert policy is not None
    assert policy[1].startswith(
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-eval' "
    )
    # printf 'var a;' | openssl dgst -sha256 -binary | base64
    assert "'sha256-voeURch9fnIFmtccQajw9ITRIDLpHRT5ltHavH2xrh4='" in policy[1]
    assert policy[1].count("'sha256-") == 2
    assert "'unsafe-inline'" not in policy[1].split("script-src")[1]


def test_without_libraries_there_is_one_script_and_nothing_is_compiled() -> None:
    html = page("t", "", {}, ASSETS)
    assert html.count("<script>") == html.count("'sha256-") == 1
    assert "unsafe-eval" not in html
    assert "Vega" not in html.split("<footer>")[1].split("</footer>")[0]
    assert "Licences" in page("t", "", {}, with_library("var a;"))


def test_dollar_signs_survive() -> None:
    assert "costs $5 and ${this}" in page("t", "<p>costs $5 and ${this}</p>", {}, ASSETS)
