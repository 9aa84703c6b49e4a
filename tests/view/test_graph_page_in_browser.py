"""The graph page in a real browser: rewrites, overlays, tips and the keyboard, without a message on the console."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rpeg.algorithms.grpo import grpo
from rpeg.algorithms.multi_turn import multi_turn
from rpeg.graph.contract import Kl
from rpeg.plan.bind import bind_local
from rpeg.plan.costs import Duration, KnownCosts
from rpeg.plan.lower import lower
from rpeg.view.graph_page import Frame, graph_page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=20000 --dump-dom"
).split()
DARK = "--blink-settings=preferredColorScheme=0"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")]


def after(html: str, folder: Path, steps: str, *options: str) -> list[object]:
    """Return what the JavaScript ``steps`` put into ``seen`` on the page; any message on the console is a failure."""
    script = f"const seen = []; {steps}; document.body.dataset.seen = JSON.stringify(seen);"
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html = html.replace("script-src ", f"script-src 'sha256-{allowed}' ", 1)
    page = folder / "graph.html"
    page.write_text(html.replace("</body>", f"<script>{script}</script></body>"))
    command = [str(BROWSER), *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found is not None
    return json.loads(found[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.fixture(scope="module")
def html() -> str:
    costs = KnownCosts({"gen": Duration(40.0), "train": Duration(20.0), "pull": Duration(2.0)})
    graphs = [grpo(64, 8), grpo(64, 8, 1), grpo(64, 8, 1, kl=Kl.LOSS)]
    titles = ["as given", "relax{stage=gen,steps=1}", "a <reference>"]
    events = [lower(graph, bind_local(graph), costs) for graph in graphs]
    return graph_page([Frame(g, t, "learning", e) for g, t, e in zip(graphs, titles, events, strict=True)])


SHOWN = (
    "[...document.querySelectorAll('[data-frame]')].filter((part) => !part.hidden).map((part) => part.dataset.frame)"
)


@pytest.mark.parametrize("options", [(), (DARK,)], ids=["light", "dark"])
def test_the_slider_shows_one_graph_at_a_time(html: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    steps = f"""
        const slider = document.getElementById("rewrite");
        const look = () => seen.push([...new Set({SHOWN})], document.getElementById("said").textContent);
        look();
        slider.value = "0"; slider.dispatchEvent(new Event("input")); look();
        seen.push(document.getElementById("before").disabled);
        document.getElementById("after").click(); look();
        document.querySelector('[data-go="2"]').click(); look();
        seen.push(slider.getAttribute("aria-valuetext"), document.querySelectorAll('[aria-current="true"]').length)
    """
    assert after(html, tmp_path, steps, *options) == [
        *(["2"], "2 of 2: a <reference>"),
        *(["0"], "0 of 2: as given", True),
        *(["1"], "1 of 2: relax{stage=gen,steps=1}"),
        *(["2"], "2 of 2: a <reference>"),
        *("2 of 2: a <reference>", 1),
    ]


def test_overlays_dim_the_rest_and_say_their_text(html: str, tmp_path: Path) -> None:
    steps = """
        const isSeen = (each) => getComputedStyle(each).display !== "none";
        const style = (tip) => getComputedStyle(document.querySelector(`[data-frame="2"] [data-tip="${tip}"]`));
        const texts = () => [...document.querySelectorAll('[data-frame="2"] .say')].filter(isSeen)
          .map((each) => each.textContent.slice(0, 12));
        for (const value of ["lineage", "critical", "busy", "none"]) {
          document.querySelector(`input[value="${value}"]`).click();
          const bar = document.querySelector('[data-frame="2"] .bar.busy');
          const jump = document.querySelector('[data-frame="2"] .jump');
          seen.push([value, style("reward").opacity, style("pull").opacity, isSeen(bar), isSeen(jump), texts()]);
        }
    """
    assert after(html, tmp_path, steps) == [
        ["lineage", "0.25", "1", False, False, ["Samples of g"]],
        ["critical", "0.25", "1", False, True, ["A step takes"]],
        ["busy", "1", "1", True, False, ["Busy: roll 1"]],
        ["none", "1", "1", False, False, ["Added: ref, "]],
    ]


def test_tips_and_the_keyboard(html: str, tmp_path: Path) -> None:
    steps = """
        const tip = document.querySelector(".tip");
        const press = (key) =>
          document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        const first = document.querySelector('[data-frame="2"] .box[tabindex="0"]');
        first.focus();
        seen.push(first.dataset.tip, tip.hidden, tip.querySelector("h4").textContent);
        for (const key of ["ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"]) {
          press(key); seen.push(document.activeElement.dataset.tip);
        }
        seen.push(document.querySelectorAll('[data-frame="2"] .box[tabindex="0"]').length);
        press("Escape"); seen.push(tip.hidden);
        const line = document.querySelector('[data-frame="2"] [data-tip="actor.rollout>gen@2"]');
        line.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 300, clientY: 300 }));
        seen.push(tip.hidden, tip.textContent);
        document.querySelector('[data-frame="2"] [data-tip="train"]')
          .dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 300, clientY: 300 }));
        seen.push([...document.querySelectorAll(".touching")].map((each) => each.dataset.tip).sort());
    """
    assert after(html, tmp_path, steps) == [
        *("gen", False, "gen"),
        *("rollouts", "reward", "ref", "ref.weights"),
        *(1, True),
        *(False, "actor.rollout → gencolumnsweightsdelay2 steps back"),
        sorted(["rollouts>train", "advantages>train", "ref_out>train", "actor.master>train@1", "train>grads"]),
    ]


def test_the_inside_of_a_stage_has_tips_of_its_own(tmp_path: Path) -> None:
    steps = """
        const inner = document.querySelector('[data-tip="gen/gen_turn"]');
        inner.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 300, clientY: 300 }));
        seen.push(document.querySelector(".tip h4").textContent);
        const touching = [...document.querySelectorAll(".touching")].map((each) => each.dataset.tip);
        seen.push(touching.includes("gen/gen_turn>said"));
    """
    assert after(graph_page([Frame(multi_turn(64))]), tmp_path, steps) == ["gen_turn", True]


def test_without_scripts_the_last_graph_is_there(html: str, tmp_path: Path) -> None:
    bare = re.sub(r"script-src [^\"]*\"", "script-src 'none'\"", html, count=1)
    page = tmp_path / "bare.html"
    page.write_text(re.sub(r"<script>.*?</script>", "", bare, flags=re.DOTALL))
    command = [str(BROWSER), *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert re.findall(r'data-frame="(\d)"(?: hidden=""?)?', dom).count("2") == 3
    assert 'id="controls" hidden=""' in dom
