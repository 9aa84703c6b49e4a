"""P3: degrees divide what they split: heads, experts, rows; no stage is without layers. All faults are said at once."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rpeg.errors import Fault
from rpeg.graph.graph import Graph
from rpeg.graph.stage import Stage, StageKind
from rpeg.plan.firings import row_parts
from rpeg.plan.layout import ITEM_BYTES, degrees
from rpeg.plan.plan import Binding, Mesh, Pipeline, Plan
from rpeg.plan.site import Site
from rpeg.shapes.tensor import LAYERS, extents

__all__ = ["divisors", "p3_layouts"]

_WITHOUT_ROWS = (StageKind.UPDATE, StageKind.PUSH, StageKind.PULL, StageKind.SAVE, StageKind.EVALUATE)
_WITH_PASSES = (StageKind.FORWARD, StageKind.TRAIN)
_Said = tuple[str, str]
"""What is wrong, and what would be right."""
_KV_HEADS, _LINEAR = "kv_heads", "key_heads"
_SHOWN = 64
"""Largest degree that a message proposes."""


def divisors(number: int) -> list[int]:
    """Return the divisors of a number that may be degrees, in ascending order."""
    return [n for n in range(1, min(number, _SHOWN) + 1) if number % n == 0]


def p3_layouts(graph: Graph, plan: Plan, site: Site | None) -> Iterator[Fault]:
    """Splits are along axes of the mesh, divide heads, experts and rows, and leave every stage layers."""
    stages: dict[tuple[str, str], list[str]] = {}
    for binding in plan.bindings:
        mesh, stage = plan.mesh_named.get(binding.mesh), graph.stage_of.get(binding.stage)
        if mesh is None or stage is None or min(mesh.sizes.values(), default=1) < 1:
            continue  # P1 or P2 says so
        for said in _of_binding(graph, stage, binding, mesh, site):
            stages.setdefault(said, []).append(binding.stage)
    # Stages of one model mostly have one layout, so what is wrong with it is said once.
    yield from (Fault(f"P3 {', '.join(names)}", *said) for said, names in stages.items())


def _of_binding(graph: Graph, stage: Stage, binding: Binding, mesh: Mesh, site: Site | None) -> Iterator[_Said]:
    yield from _axes(binding, mesh)
    if (tensors := site.tensors.get(stage.model) if site and stage.model else None) is not None:
        yield from _extents(binding, mesh, stage.model or "", extents(tensors))
        if stage.kind in _WITH_PASSES:
            yield from _sequence(mesh, stage.model or "", extents(tensors))
    if stage.kind not in _WITHOUT_ROWS:
        yield from _rows(graph, binding, mesh)


def _axes(binding: Binding, mesh: Mesh) -> Iterator[_Said]:
    layout, names = binding.layout, ", ".join(mesh.sizes)
    for part, axis in layout.shard:
        if axis not in mesh.sizes:
            yield (f"splits {part} over {axis}, which is no axis of {mesh.name}", f"its axes are {names}")
    if layout.zero not in range(4):
        yield (f"has ZeRO level {layout.zero}", "levels are 0, 1, 2 and 3")
    if layout.zero and "dp" not in mesh.sizes:
        yield (f"has ZeRO level {layout.zero} on {mesh.name}, which has no axis dp", f"it has {names}")
    if layout.dtype not in ITEM_BYTES:
        yield (f"keeps weights in {layout.dtype}", f"known are {', '.join(ITEM_BYTES)}")
    if binding.pipeline is not None and LAYERS not in dict(layout.shard):
        yield (f"has the schedule {binding.pipeline} without a split of the layers", "split layers over pp")
    if binding.pipeline is Pipeline.ZERO_BUBBLE:
        yield from _zero_bubble(binding, mesh)
    ranks = mesh.sizes.get("dp", 1)
    if binding.servers < 1 or ranks % binding.servers:
        text = f"{binding.servers} servers do not divide {ranks} data parallel ranks of {mesh.name}"
        yield (text, f"choose {_choice(divisors(ranks))}")


def _zero_bubble(binding: Binding, mesh: Mesh) -> Iterator[_Said]:
    """Gradients of weights that are made later are those of whole matrices, on a rank that has these."""
    others = [
        f"{part} over {axis}" for part, axis in binding.layout.shard if part != LAYERS and mesh.sizes.get(axis) != 1
    ]
    others += [f"ZeRO {binding.layout.zero} over dp"] if binding.layout.zero > 1 and mesh.sizes.get("dp") != 1 else []
    if others:
        text = f"has the schedule {Pipeline.ZERO_BUBBLE} and splits {' and '.join(others)}"
        yield (text, "gradients put off are of whole weights: choose 1f1b, or split layers alone, with ZeRO 0")


def _extents(binding: Binding, mesh: Mesh, model: str, known: dict[str, int]) -> Iterator[_Said]:
    for part, degree in degrees(binding.layout, mesh).items():
        if part not in known:
            yield (f"splits {part}, of which {model} has none", f"it has {', '.join(sorted(known))}")
        elif part == LAYERS and binding.pipeline is Pipeline.INTERLEAVED and known[part] % (2 * degree):
            text = f"{degree} interleaved stages of 2 parts do not divide {known[part]} layers of {model}"
            yield (text, f"choose {_choice([n for n in divisors(known[part]) if known[part] % (2 * n) == 0])}")
        elif part == LAYERS and binding.pipeline is not Pipeline.INTERLEAVED:
            yield from _stages(binding, model, known[part], degree)
        elif known[part] % degree and not (part == _KV_HEADS and degree % known[part] == 0):
            axes = _axes_of(binding, part)
            text = f"{axes} = {degree} does not divide {known[part]} {part} of {model}"
            yield (text, f"choose {_choice(divisors(known[part]))}, or split the layers over a pp axis instead")


def _sequence(mesh: Mesh, model: str, known: dict[str, int]) -> Iterator[_Said]:
    """A state that is carried from token to token cannot be made on several ranks at once."""
    if _LINEAR in known and mesh.sizes.get("cp", 1) > 1:
        text = f"splits rows over cp = {mesh.sizes['cp']}, and linear attention of {model} carries a state along them"
        yield (text, "choose cp = 1, or split over tp, pp or dp")


def _stages(binding: Binding, model: str, layers: int, degree: int) -> Iterator[_Said]:
    """Stages may have unlike numbers of layers, the last ones fewer, but none may have none."""
    if not _is_any_idle(layers, degree):
        return
    fewer = next(n for n in range(min(degree, layers), 0, -1) if not _is_any_idle(layers, n))
    more = [n for n in range(degree + 1, layers + 1) if not _is_any_idle(layers, n)][:1]
    size = -(-layers // degree)
    text = f"{_axes_of(binding, LAYERS)} = {degree} stages of {size} of the {layers} layers of {model} leave some empty"
    yield (text, f"choose {_choice([fewer, *more])}")


def _is_any_idle(layers: int, degree: int) -> bool:
    """Whether some stages have no layer, where all but the last ones have equally many."""
    return (degree - 1) * -(-layers // degree) >= layers


def _axes_of(binding: Binding, part: str) -> str:
    return "*".join(axis for name, axis in binding.layout.shard if name == part)


def _rows(graph: Graph, binding: Binding, mesh: Mesh) -> Iterator[_Said]:
    firings = row_parts(graph, binding.stage)
    ranks, rows = max(1, mesh.sizes.get("dp", 1) // max(1, binding.servers)), Fraction(graph.batch_rows, firings)
    if graph.batch_rows % mesh.sizes.get("dp", 1):
        return  # P2 says so
    if rows % ranks:
        text = f"{rows} rows of a firing ({graph.batch_rows} in {firings}) do not divide over {ranks} ranks"
        fewer = [n for n in divisors(int(rows)) if n < ranks]
        remedy = f"take {_choice(fewer)} ranks, or a multiple of {ranks} rows"
        yield (text, remedy)
        return
    share, micro_rows = rows / ranks, binding.micro_rows.evaluate(graph.env)
    if micro_rows.denominator > 1 or micro_rows < 1 or share % micro_rows:
        text = f"micro-batches of {micro_rows} rows do not divide the {share} rows of a rank"
        yield (text, f"choose {_choice(divisors(int(share)))}")
        return
    stages, count = degrees(binding.layout, mesh).get(LAYERS, 1), int(share / micro_rows)
    if binding.pipeline is Pipeline.INTERLEAVED and count % stages:
        text = f"{count} micro-batches are no multiple of the {stages} stages of an interleaved pipeline"
        yield (text, f"choose micro-batches of {_choice([n for n in divisors(int(share)) if share / n % stages == 0])}")


def _choice(numbers: list[int]) -> str:
    texts = [str(number) for number in numbers]
    return f"{', '.join(texts[:-1])} or {texts[-1]}" if len(texts) > 1 else "".join(texts) or "other sizes"
