"""The graph as a value: look-ups, dependences, and a digest that sees meaning only."""

from __future__ import annotations

import random
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpeg.algorithms.grpo import grpo
from rpeg.graph.access import Access, Edge, Mode
from rpeg.graph.contract import Kl, Logprob
from rpeg.graph.data import Data, Symbol
from rpeg.graph.dim import Dim
from rpeg.graph.graph import Applied, Graph
from rpeg.graph.json import from_json, to_json
from rpeg.graph.region import Region
from rpeg.graph.stage import Source
from rpeg.graph.validate import validate

_UNORDERED = ("symbols", "models", "data", "stages", "accesses")


def test_sizes(minimal: Graph) -> None:
    assert (minimal.batch_rows, minimal.group_size, minimal.env) == (8, 2, {"B": 4, "G": 2})
    assert minimal.firings("train") == 1


def test_look_ups(minimal: Graph) -> None:
    assert minimal.stage_of["gen"].model == "actor"
    assert minimal.is_state("weights")
    assert not minimal.is_state("rollouts")
    assert [access.data for access in minimal.reads("train")] == ["rollouts", "weights"]
    assert [access.data for access in minimal.writes("train")] == ["grads"]
    assert [access.stage for access in minimal.readers("weights")] == ["gen", "train"]
    assert [(access.stage, access.mode) for access in minimal.writers("weights")] == [("update", Mode.UPDATE)]


def test_edges_are_derived_from_accesses(minimal: Graph) -> None:
    assert list(minimal.edges()) == [
        Edge("gen", "train", "rollouts", 0),
        Edge("train", "update", "grads", 0),
        Edge("update", "gen", "weights", 1),
        Edge("update", "train", "weights", 1),
    ]


@pytest.mark.parametrize(
    ("written", "read", "is_edge"),
    [
        ((), (), True),
        ((), ("tokens",), True),
        (("tokens",), (), True),
        (("tokens", "logp"), ("logp", "version"), True),
        (("tokens",), ("logp",), False),
    ],
)
def test_an_edge_needs_a_column_in_common(
    minimal: Graph, edit: Any, written: tuple[str, ...], read: tuple[str, ...], is_edge: bool
) -> None:
    graph = edit.access(edit.access(minimal, "gen", "rollouts", columns=written), "train", "rollouts", columns=read)
    assert (Edge("gen", "train", "rollouts", 0) in graph.edges()) is is_edge
    assert len(list(graph.dependences("rollouts"))) == is_edge


def test_nothing_is_changed_in_place(minimal: Graph) -> None:
    with pytest.raises(FrozenInstanceError):
        minimal.name = "other"  # type: ignore[misc]


def shuffled(graph: Graph, seed: int) -> Graph:
    rng = random.Random(seed)
    return replace(
        graph, **{key: tuple(rng.sample(getattr(graph, key), len(getattr(graph, key)))) for key in _UNORDERED}
    )


def graphs() -> st.SearchStrategy[Graph]:
    """Valid graphs of GRPO in every size and variant."""

    def build(groups: int, updates: int, group: int, staleness: int, kl: Kl, old: Logprob, every: int) -> Graph:
        options: dict[str, Any] = {"updates_per_step": updates, "kl": kl, "old_logprob": old}
        return grpo(groups * updates, group, staleness, **options, evaluate_every_steps=every)

    small = st.integers(1, 9)
    kinds = st.sampled_from([Kl.NONE, Kl.LOSS]), st.sampled_from([Logprob.RECORDED, Logprob.RECOMPUTED])
    return st.builds(build, small, st.integers(1, 4), small, st.integers(0, 4), *kinds, st.integers(0, 3))


@given(graphs(), st.integers(0, 10_000))
def test_the_digest_does_not_depend_on_the_order_of_declaration(graph: Graph, seed: int) -> None:
    other = shuffled(graph, seed)
    assert other.digest() == graph.digest()
    assert validate(other) == []


@given(graphs())
def test_files_hold_all_of_it(graph: Graph) -> None:
    again = from_json(to_json(graph))
    assert again == graph
    assert again.digest() == graph.digest()
    assert [stage.source for stage in again.stages] == [stage.source for stage in graph.stages]


def test_the_digest_sees_neither_history_nor_source_nor_documentation(minimal: Graph, edit: Any) -> None:
    graph = edit.stage(minimal, "gen", source=Source("elsewhere.py:1", ("a", "b")))
    graph = replace(
        graph,
        symbols=tuple(replace(symbol, doc="changed") for symbol in graph.symbols),
        models=tuple(replace(model, doc="changed") for model in graph.models),
        history=(Applied("relax{steps=1}", "before", "after"),),
    )
    assert graph.digest() == minimal.digest()


def test_the_digest_sees_everything_else(minimal: Graph, edit: Any) -> None:
    changed = [
        replace(minimal, name="other"),
        edit.contract(minimal, max_staleness=1),
        edit.stage(minimal, "gen", firings=Dim("2")),
        edit.data(minimal, "weights", versions=2),
        edit.access(minimal, "gen", "weights", delay=2),
        edit.access(minimal, "train", "rollouts", columns=("logp",)),
        replace(minimal, symbols=tuple(replace(s, value=2) for s in minimal.symbols)),
        replace(minimal, accesses=minimal.accesses[1:]),
    ]
    assert len({graph.digest() for graph in [minimal, *changed]}) == 9


def test_the_order_inside_a_body_does_not_matter_either(minimal: Graph, edit: Any) -> None:
    one, other = (
        edit.stage(minimal, "gen", body=Region("turn", Dim("4"), body)) for body in (minimal, shuffled(minimal, 3))
    )
    assert one != other
    assert one.digest() == other.digest()
    assert one.digest() != minimal.digest()


def test_records_are_small_values() -> None:
    for record in (Symbol, Data, Access, Edge):
        assert hasattr(record, "__slots__")


def test_an_entry_of_the_history_changes_nothing_else(minimal: Graph) -> None:
    entry = Applied("relax{stage=gen,steps=1}", "a", minimal.digest())
    graph = minimal.recorded(entry)
    assert graph == replace(minimal, history=(entry,))
    assert graph.digest() == minimal.digest()
    assert graph.recorded(entry).history == (entry, entry)
    assert minimal.history == ()
