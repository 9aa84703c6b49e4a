"""``rpeg show``: a recipe or a graph file in, the graph and its plan out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ended

from rpeg.graph.json import from_json
from rpeg.recipe.graph import build_graph
from rpeg.recipe.load import load_recipe

Rpeg = Callable[..., Ended]
Write = Callable[..., str]

SHOWN = """\
grpo  batch 4 = 2 x 2  staleness 1 (<= 1)  digest {0}
  gen generate actor x1 prompts, actor.rollout@-2 -> rollouts
  reward verify - x1 rollouts[tokens mask version finished], prompts[row] -> scores
  advantage advantage - x1 scores (by group) -> advantages
  old forward actor x1 rollouts[tokens mask], actor.master@-1 -> old_out
  train train actor x1 rollouts, advantages, old_out, actor.master@-1 -> grads
  update update actor x1 grads -> actor.master!, actor.moments!
  push push actor x1 actor.master -> actor.staged
  pull pull actor x1 actor.staged -> actor.rollout
  eval evaluate actor x1 / 1 held_out, actor.rollout ->
plan for graph {0}
  roll local.slot[0:1] gen+1 pull eval
  trn local.slot[1:2] old train update push
  host local.host reward advantage
"""


def spaces_once(text: str) -> list[list[str]]:
    """Return the words of every line: how far the columns are apart is not what is tested here."""
    return [line.split() for line in text.splitlines()]


def test_a_recipe_with_overrides(rpeg: Rpeg, recipe: Write) -> None:
    name = recipe()
    digest = build_graph(load_recipe(Path(name), ["algorithm.staleness=1"])).digest()[:8]
    ended = rpeg("show", name, "algorithm.staleness=1")
    assert ended.status == 0
    assert spaces_once(ended.out) == spaces_once(SHOWN.format(digest))


def test_as_json_it_is_a_graph_file_that_shows_the_same(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    name = recipe()
    text = rpeg("show", name, "--json").out
    assert from_json(text) == build_graph(load_recipe(Path(name)))
    (folder / "graph.json").write_text(text)
    assert rpeg("show", "graph.json").out == rpeg("show", name).out


def test_what_is_no_graph_is_refused(rpeg: Rpeg, recipe: Write, folder: Path) -> None:
    (folder / "graph.json").write_text(rpeg("show", recipe(), "--json").out)
    ended = rpeg("show", "graph.json", "algorithm.staleness=1")
    assert ended.status == 2
    assert ended.faults == [
        "algorithm.staleness=1: overrides belong to recipes and algorithms; give one of these instead of a graph file"
    ]
    assert rpeg("show", "none.json").faults == ["none.json: there is no such file"]
    (folder / "other.json").write_text("{}")
    assert rpeg("show", "other.json").faults == ["schema: is missing; this is not a graph file"]
