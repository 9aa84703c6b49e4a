"""``rpeg rewrite``: several rewrites in order, what could be applied, why something could not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rpeg.algorithms.grpo import grpo
from rpeg.graph.json import from_json
from rpeg.transforms.registry import offers, parse

GOLDEN = Path(__file__).parents[1] / "golden"
STREAM = "stream{producer=gen,firings=4}"
TRUNK = ["share_trunk{actor=actor,critic=critic}", "fuse_forward{a=old_logp,b=value}"]


def test_several_in_order(rpeg: Any, tmp_path: Path) -> None:
    ended = rpeg("rewrite", "ppo", "prompts=64", *TRUNK, "--explore", "-o", tmp_path / "g.json")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == (GOLDEN / "cli_rewrite.txt").read_text()
    graph = from_json((tmp_path / "g.json").read_text())
    assert [entry.transform for entry in graph.history] == TRUNK
    assert graph.digest()[:8] in ended.out


def test_json_goes_through_a_pipe(rpeg: Any) -> None:
    first = rpeg("show", "grpo", "prompts=4", "--json").out
    once = rpeg("rewrite", "-", STREAM, "--json", given=first)
    assert (once.status, once.err) == (0, "")
    assert from_json(once.out) == parse(STREAM).apply(grpo(4))
    assert rpeg("show", "-", given=once.out).out.splitlines()[1].split()[3] == "x4"


def test_nothing_to_do_prints_the_graph(rpeg: Any) -> None:
    assert rpeg("show", "grpo").out.startswith(rpeg("rewrite", "grpo").out)


def test_a_page_of_the_rewrites(rpeg: Any, tmp_path: Path) -> None:
    assert rpeg("rewrite", "grpo", STREAM, "--html", tmp_path / "g.html").status == 0
    html = (tmp_path / "g.html").read_text()
    assert f'"titles":["as given","{STREAM}"]' in html
    assert '<span class="effect numeric">numeric</span>' in html


def test_the_list_says_what_fits_and_why_the_rest_does_not(rpeg: Any) -> None:
    lines = rpeg("rewrite", "grpo", "--list").out.splitlines()
    found = list(offers(grpo()))
    fits = [str(offer.transform) for offer in found if not offer.reasons]
    assert lines[0] == f"{len(fits)} of {len(found)} candidates fit grpo {grpo().digest()[:8]}"
    assert [line.split()[1] for line in lines if line.startswith("  + ")] == fits
    assert sum(line.startswith("  - ") for line in lines) == len(found) - len(fits)
    relax = next(i for i, line in enumerate(lines) if line.startswith("  - relax{"))
    assert lines[relax].endswith("learning")
    assert lines[relax + 1] == (
        "      relax: changes what is learned; the contract allows nothing of the kind; "
        "add relax to the contract's allowed"
    )
    assert "relax: changes what is learned" not in rpeg("rewrite", "grpo", "--list", "--explore").out


def test_a_refusal_names_the_reasons_and_the_way_out(rpeg: Any) -> None:
    ended = rpeg("rewrite", "ppo", TRUNK[0])
    assert (ended.status, ended.out) == (2, "")
    assert ended.err == (
        "error: share_trunk{actor=actor,critic=critic} on ppo: 1 fault\n"
        "  1. share_trunk: changes what is learned; the contract allows nothing of the kind; "
        "add share_trunk to the contract's allowed, or give --explore\n"
    )
    other = rpeg("rewrite", "ppo", "relax{stage=gen,steps=1}")
    assert "--explore" not in other.err
    assert "V7 gen: samples are up to 1 versions old, the contract allows 0" in other.err
    fused = rpeg("rewrite", "ppo", "fuse_forward{a=value,b=train_critic}")
    assert "another stage lies between" in fused.err


def test_all_texts_are_read_before_anything_is_applied(rpeg: Any, tmp_path: Path) -> None:
    ended = rpeg("rewrite", "grpo", STREAM, "streem{producer=gen}", "-o", tmp_path / "g.json")
    assert (ended.status, ended.out) == (2, "")
    assert re.search(r"streem: is no rewrite; .*stream", ended.err)
    assert not (tmp_path / "g.json").exists()
