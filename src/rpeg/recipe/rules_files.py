"""Rules about what a recipe points to: model folders, data files, reward functions.

Nothing is loaded and nobody's code is run: files are looked for, and the source of a reward function is only parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rpeg.environments.references import Reference, reference_faults, resolve_path
from rpeg.environments.rewards import BUILT_IN
from rpeg.environments.rows import path_faults
from rpeg.environments.suggest import did_you_mean, listed
from rpeg.errors import Fault
from rpeg.recipe.rule import RuleSet
from rpeg.recipe.schema import Recipe
from rpeg.shapes.huggingface import language_config
from rpeg.shapes.positions import max_positions

__all__ = ["FILE_RULES"]

FILE_RULES = RuleSet()
"""The rules of this module, in the order of the recipe."""


_EXAMPLE_MODEL = "models/smollm2-135m-instruct"
"""The model of examples/smollm2.yaml, which has to be made first."""


def _looked_in(base_dir: Path) -> str:
    """Return the folders that relative paths start from, in words."""
    return " and ".join(dict.fromkeys([str(Path.cwd()), str(base_dir.resolve())]))


@FILE_RULES.over("model.path")
def _model_folder(recipe: Recipe, base_dir: Path) -> Iterator[Fault]:
    text = recipe.model.path
    if text is None:
        return
    folder = resolve_path(text, base_dir)
    if folder is None:
        is_hub_name = text.count("/") == 1 and not text.startswith((".", "/", "~", "models/"))
        download = f"hf download {text} --local-dir models/{text.rpartition('/')[2]}"
        remedy = f"from the hub: {download}, then give that folder" if is_hub_name else "give the folder of a model"
        if text == _EXAMPLE_MODEL:
            remedy = "'make smollm2' makes it"
        yield Fault("model.path", f"there is no folder {text} in {_looked_in(base_dir)}", remedy)
    elif not folder.is_dir():
        yield Fault("model.path", f"{text} is a file", "give the folder it is in")
    elif not (folder / "config.json").is_file():
        found = listed(sorted(entry.name for entry in folder.iterdir())) or "nothing"
        yield Fault(
            "model.path", f"{text} has no config.json; it has {found}", "give the folder of a Hugging Face model"
        )
    elif _config(folder) is None:
        yield Fault("model.path", f"{folder / 'config.json'} is not a JSON object", "download the model again")


@FILE_RULES.over("model.path", "critic.path", "data.max_prompt_tokens", "sampling.max_new_tokens")
def _sequence_fits_models(recipe: Recipe, base_dir: Path) -> Iterator[Fault]:
    critic = recipe.critic.path if recipe.critic is not None else None
    prompt, response = recipe.data.max_prompt_tokens, recipe.sampling.max_new_tokens
    for role, path in (("model", recipe.model.path), ("critic", critic)):
        folder = resolve_path(path, base_dir) if path is not None else None
        config = _config(folder) if folder is not None else None
        _, language = language_config(config or {})
        positions, stated = max_positions(language), language.get("max_position_embeddings")
        if positions is None or prompt + response <= positions:
            continue
        what = f"{prompt} + sampling.max_new_tokens {response} = {prompt + response}"
        what += f", more than the {role}'s {positions} positions"
        if isinstance(stated, int) and positions < stated:
            what += f" (of {stated}; beyond {positions}, longrope reads a row by the longest one beside it)"
        yield Fault("data.max_prompt_tokens", what, f"lower one of the two by {prompt + response - positions}")


def _config(folder: Path) -> dict[str, Any] | None:
    """Return a model's config, or None when there is none that can be read."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


@FILE_RULES.over("data.path")
def _data_file(recipe: Recipe, base_dir: Path) -> Iterator[Fault]:
    yield from _file_faults(recipe.data.path, base_dir, "data.path")


@FILE_RULES.over("data.evaluation_path")
def _evaluation_file(recipe: Recipe, base_dir: Path) -> Iterator[Fault]:
    yield from _file_faults(recipe.data.evaluation_path, base_dir, "data.evaluation_path")


def _file_faults(text: str | None, base_dir: Path, key: str) -> Iterator[Fault]:
    """Yield what is wrong with a data file."""
    if text is None:
        return
    path = resolve_path(text, base_dir)
    yield from path_faults(path if path is not None else _likely(text, base_dir), key)


def _likely(text: str, base_dir: Path) -> Path:
    """Return where a missing file was probably meant to be: beside files that do exist."""
    here, there = Path.cwd() / Path(text).expanduser(), base_dir.resolve() / Path(text).expanduser()
    return here if here.parent.is_dir() or not there.parent.is_dir() else there


@FILE_RULES.over("reward.functions", "data.task")
def _reward_functions(recipe: Recipe, base_dir: Path) -> Iterator[Fault]:
    items = recipe.reward.functions
    for position, item in enumerate(items):
        key = f"reward.functions.{position}.function"
        yield from _reward_faults(recipe, item.function, base_dir, key)
        if item.function in [other.function for other in items[:position]]:
            yield Fault(key, f"{item.function} is listed twice", "keep it once, with the sum of the weights")
    if items and all(item.weight == 0 for item in items):
        yield Fault("reward.functions", "every weight is 0, so every reward would be 0", "give one a weight of 1")


def _reward_faults(recipe: Recipe, function: str, base_dir: Path, key: str) -> Iterator[Fault]:
    """Yield what is wrong with the name of a reward function."""
    if function == "task" and recipe.data.task is None:
        yield Fault(key, "task means the task's verifier, and data.task is not given", f"use one of {listed(BUILT_IN)}")
    if function == "task" or function in BUILT_IN:
        return
    reference = Reference.parse(function)
    if reference is None:
        remedy = f"{did_you_mean(function, [*BUILT_IN, 'task'])} A function of your own is file.py:name"
        yield Fault(key, f"there is no reward named {function!r}", remedy)
    else:
        yield from reference_faults(reference, base_dir, key)
