"""What a plan is priced for: a recipe as a graph with models and lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpeg.errors import Fault, RecipeError

if TYPE_CHECKING:
    from rpeg.graph.graph import Graph
    from rpeg.hardware.topology import System
    from rpeg.perf.lengths import Lengths
    from rpeg.perf.software import Software
    from rpeg.perf.workload import Workload
    from rpeg.plan.workers import Workers
    from rpeg.recipe.schema import ModelSection, Recipe
    from rpeg.recipe.workload import LengthSection, WorkloadRecipe
    from rpeg.shapes.model import ModelShape

__all__ = ["Task", "read_task"]

_HERE = "cpu"
"""Device of the machine that runs plan for: one process of it."""
_ENGINES = {"inline": "rpeg", "processes": "rpeg-processes", "ray": "rpeg-processes"}
_VARIATION = 0.5
"""Spread of lengths that a training recipe says nothing of."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked for."""

    graph: Graph
    workload: Workload
    assumed: tuple[str, ...]
    """What the recipe leaves open."""
    has_devices: bool
    """Whether the recipe names the machine: a recipe to train from runs here, one of a workload runs anywhere."""
    engine: str = ""
    """Profile of what runs it on this machine: RPEG itself, in threads or in processes; of a workload nothing does."""
    weights: str = ""
    """Number format of the weights that a recipe trains; a workload leaves it to the software."""
    workers: Workers | None = None
    """What carries it out on this machine; of a workload nothing does."""
    most_stale: int | None = None
    """How many steps old samples may be without the correction that the recipe lacks; None: as many as allowed."""

    def kept_young(self, staleness_max: int) -> tuple[Task, int]:
        """Return the task and the staleness it may have of what is allowed; what was cut is said among the assumed."""
        if self.most_stale is None or staleness_max <= self.most_stale:
            return self, staleness_max
        text = f"staleness of at most {self.most_stale}, not {staleness_max}: algorithm.correction is none, and "
        text += "uncorrected losses collapse from staleness 2 on (algorithm.correction=truncated allows more)"
        return replace(self, assumed=(*self.assumed, text)), self.most_stale

    def software(self, asked: str | None, system: System) -> Software:
        """Return the software that is asked for; else RPEG's own for a run on this machine, else the generic one.

        Narrow weights have masters beside them also where the profile was fitted on runs without.

        Raises:
            ProfileError: when a profile cannot be read.
        """
        from rpeg.perf.memory import StateBytes
        from rpeg.perf.software import software_for

        is_here = bool(self.engine) and system.device.name == _HERE
        found = software_for(asked or (self.engine if is_here else "generic"))
        if self.weights in ("", "float32") or found.memory.state.master:
            return found
        return replace(found, memory=replace(found.memory, state=StateBytes.of(self.weights, "float32")))


def read_task(recipe: str, overrides: Sequence[str] = (), lengths: Path | None = None) -> Task:
    """Return the graph and the workload of a recipe.

    Args:
        recipe: of a workload, or of a training run.
        overrides: ``KEY=VALUE``.
        lengths: folder of a finished run whose responses are as long as these will be.

    Raises:
        RecipeError: when the recipe has faults; GraphError, ModelError, RunFolderError alike.
    """
    from rpeg.recipe.load import load_recipe
    from rpeg.recipe.workload import is_workload, load_workload

    seen = None if lengths is None else _seen(lengths)
    if is_workload(Path(recipe)):
        return _of_workload(load_workload(Path(recipe), overrides), seen)
    return _of_training(load_recipe(Path(recipe), overrides), seen)


def _of_workload(found: WorkloadRecipe, seen: Lengths | None) -> Task:
    from rpeg.perf.workload import Workload

    shapes = {role: _shape(name) for role, name in found.models.items()}
    responses = seen or _lengths(found.response_tokens)
    return Task(found.graph(), Workload(shapes, _lengths(found.prompt_tokens), responses, found.dtype), (), False)


def _lengths(found: LengthSection) -> Lengths:
    from rpeg.perf.workload import capped_mean

    return capped_mean(found.mean, found.cv, float(found.cap or math.inf))


def _shape(name: str) -> ModelShape:
    """Return the shape of a model: of the catalogue, or of a folder with a configuration."""
    from rpeg.shapes.catalog import shape_of
    from rpeg.shapes.huggingface import read_config

    return read_config(Path(name)) if Path(name).exists() else shape_of(name)


def _of_training(recipe: Recipe, seen: Lengths | None) -> Task:
    from rpeg.perf.workload import Workload, capped_mean
    from rpeg.recipe.graph import build_graph
    from rpeg.recipe.rules_algorithm import MOST_UNCORRECTED
    from rpeg.shapes.huggingface import read_config

    graph, longest, prompt = build_graph(recipe), recipe.sampling.max_new_tokens, recipe.data.max_prompt_tokens
    configs, assumed = _configs(recipe, graph), list[str]()
    if seen is None:
        assumed.append(
            f"responses of {longest / 2:g} tokens on average, half of max_new_tokens (--lengths RUN knows more)"
        )
    assumed.append(f"prompts of {prompt / 2:g} tokens on average, half of max_prompt_tokens")
    responses = seen or capped_mean(longest / 2, _VARIATION, float(longest))
    symbols = {"held_out": float(recipe.evaluation.prompts)}
    prompts = capped_mean(prompt / 2, _VARIATION, float(prompt))
    shapes = {name: read_config(config) for name, config in configs.items()}
    workload = Workload(
        shapes, prompts, responses, recipe.model.dtype, symbols,
        micro_batch_tokens=float(recipe.optimizer.micro_batch_tokens),
        slots=float(recipe.sampling.slots or graph.batch_rows),
    )  # fmt: skip
    engine, weights = _ENGINES[recipe.run.home], recipe.model.weights
    most_stale = MOST_UNCORRECTED if recipe.algorithm.correction == "none" else None
    return Task(graph, workload, tuple(assumed), True, engine, weights, _workers(recipe, configs), most_stale)


def _workers(recipe: Recipe, configs: Mapping[str, Mapping[str, Any] | Path]) -> Workers:
    """Return what carries a recipe out; a stage may have several ranks where workers are processes."""
    from rpeg.plan.workers import Workers
    from rpeg.shapes.splits import split_axes

    axes = {name: split_axes(config) for name, config in configs.items()}
    return Workers(
        recipe.run.home != "inline",
        axes,
        has_adapter=recipe.model.adapter is not None,
        has_value_layers=recipe.critic is not None and recipe.critic.sharing == "lower",
        sampling_engine=recipe.sampling.engine,
    )


def _configs(recipe: Recipe, graph: Graph) -> dict[str, Mapping[str, Any] | Path]:
    """Return the configuration of every model of a graph, or where it is."""
    found = {model.name: _trained_config(recipe.model) for model in graph.models}
    others = {"critic": recipe.critic.path if recipe.critic else None, "rm": recipe.reward.model}
    return found | {name: Path(path) for name, path in others.items() if path is not None and name in found}


def _trained_config(model: ModelSection) -> Mapping[str, Any] | Path:
    if model.scratch is None:
        assert model.path is not None, "a recipe has one of the two"
        return Path(model.path)
    made = model.scratch
    return {
        "model_type": made.architecture,
        "num_hidden_layers": made.layers,
        "hidden_size": made.hidden,
        "num_attention_heads": made.heads,
        "num_key_value_heads": made.kv_heads,
        "head_dim": made.head_size,
        "intermediate_size": made.intermediate,
        "vocab_size": made.vocabulary,
        "max_position_embeddings": made.max_positions,
        "tie_word_embeddings": made.tie_embeddings,
    }


def _seen(folder: Path) -> Lengths:
    """Return the lengths of the responses of a run."""
    from rpeg.observe.json_files import read_json_lines
    from rpeg.observe.run_folder import RunFolder
    from rpeg.perf.lengths import empirical

    path = RunFolder(folder).samples
    rows = read_json_lines(path) if path.is_file() else []
    lengths = (row.get("length") for row in rows if not row.get("held_out"))
    found = [float(length) for length in lengths if isinstance(length, int)]
    if not found:
        raise RecipeError("--lengths", [Fault(str(folder), "has no samples", "name the folder of a finished run")])
    return empirical(found)
