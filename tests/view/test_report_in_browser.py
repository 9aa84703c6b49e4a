"""The report in a real browser: it draws everything, in light and dark, without a message on the console."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rpeg.observe.run_folder import RunFolder
from rpeg.view.report import write_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=20000 --dump-dom"
).split()

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")]


def opened(page: Path, profile: Path, *options: str) -> str:
    """Return the page's HTML after its scripts have run; any message on the console is a failure."""
    command = [str(BROWSER), *OPTIONS, f"--user-data-dir={profile}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    return done.stdout


@pytest.mark.parametrize("options", [(), ("--blink-settings=preferredColorScheme=0",)], ids=["light", "dark"])
def test_all_charts_are_drawn_and_samples_shown(run: RunFolder, tmp_path: Path, options: tuple[str, ...]) -> None:
    html = opened(write_report(run), tmp_path, *options)
    assert 'data-charts="11"' in html
    assert html.count("<canvas") == 11
    assert html.count('<article class="sample">') == 12
    assert re.search(r"Showing 12 of \d+ samples that match\.", html)
    # The hostile response is text on the page, not an element of it.
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<img" not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def test_a_thousand_steps(tmp_path: Path, make_run: Callable[..., RunFolder]) -> None:
    page = write_report(make_run(tmp_path / "runs", steps=1000))
    assert page.stat().st_size < 3_000_000
    assert 'data-charts="11"' in opened(page, tmp_path / "profile")


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert 'data-charts="0"' in opened(write_report(tmp_path / "run"), tmp_path / "profile")
