"""Before the first step: check everything that can be checked, then make or find the weights to start from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rpeg.environments.base import Environment, Task
from rpeg.environments.problem import Problem
from rpeg.environments.rewards import check_reward
from rpeg.environments.rows import limited
from rpeg.errors import Fault, InvalidInput, ModelError
from rpeg.graph.graph import Graph
from rpeg.numerics.adapter import adapter_faults
from rpeg.numerics.model import (
    ScratchSpec,
    model_folder_faults,
    model_outline,
    save_model,
    scratch_faults,
    scratch_model,
)
from rpeg.numerics.precision import device
from rpeg.numerics.reward_model import reward_folder_faults
from rpeg.numerics.tokenizer import (
    character_tokenizer,
    check_texts,
    load_tokenizer,
    read_tokenizer,
    vocabulary_faults,
)
from rpeg.observe.listener import Listener
from rpeg.observe.metrics import MetricsWriter
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.graph import build_graph
from rpeg.recipe.schema import Recipe, ScratchSection
from rpeg.recipe.sources import load_task, open_rewards
from rpeg.runtime.checkpoint import MODEL, Checkpoint, State, save
from rpeg.runtime.conversation import stop_id
from rpeg.runtime.homes.choose import home_faults
from rpeg.runtime.prompts import PromptSource
from rpeg.runtime.samplers import check_sampler
from rpeg.runtime.support import engine_faults, loop_faults, unsupported
from rpeg.runtime.support_learning import learning_faults
from rpeg.runtime.warmup import warm_up

__all__ = ["REFERENCE", "check_inputs", "make_start", "outline_of", "scratch_spec", "tokenizer_of"]

_TRIED = 3
"""Problems that every reward function is tried on before a run."""

_T = TypeVar("_T")


def check_inputs(recipe: Recipe, build: Callable[[Recipe], Graph] = build_graph) -> PromptSource:
    """Open the task, the tokenizer, the rewards, the prompts and the graph of a recipe; nothing is written.

    Raises:
        InvalidInput: with the faults of all of them together.
    """
    faults: list[Fault] = []

    def attempt(make: Callable[[], _T]) -> _T | None:
        try:
            return make()
        except InvalidInput as error:
            faults.extend(error.faults)
            return None

    task = attempt(lambda: load_task(recipe))
    tokenizer = attempt(lambda: tokenizer_of(recipe))
    attempt(lambda: device(recipe.run.device))
    attempt(lambda: _check_model(recipe))
    attempt(lambda: check_sampler(recipe))
    if tokenizer is not None:
        attempt(lambda: _check_other_models(recipe, tokenizer))
    faults.extend(home_faults(recipe))
    graph = attempt(lambda: build(recipe))
    if graph is not None:
        faults.extend(unsupported(graph))
        faults.extend(loop_faults(graph, recipe))
        faults.extend(engine_faults(graph, recipe))
        faults.extend(learning_faults(graph, recipe))
    if task is not None:
        problems = [task.train(index) for index in range(min(_TRIED, task.size or _TRIED))]
        attempt(lambda: _check_rewards(recipe, problems))
    source = None
    if task is not None and tokenizer is not None:
        source = attempt(lambda: PromptSource(recipe, task, tokenizer))
        attempt(lambda: source and source.rows(0))
        attempt(lambda: _check_alphabet(recipe, task, tokenizer))
        attempt(lambda: isinstance(task, Environment) and stop_id(task, tokenizer))
    if faults or source is None:
        raise InvalidInput(f"recipe {recipe.name}", faults)
    return source


def _check_rewards(recipe: Recipe, problems: list[Problem]) -> None:
    """Try every reward function where and as it will run."""
    with closing(open_rewards(recipe)) as rewards:
        check_reward(rewards, problems)


def tokenizer_of(recipe: Recipe) -> PreTrainedTokenizerFast:
    """Return the tokenizer of the model folder, or the characters of a model from scratch."""
    if recipe.model.scratch is not None:
        return character_tokenizer(recipe.model.scratch.characters)
    assert recipe.model.path is not None, "a recipe names a model"
    return load_tokenizer(Path(recipe.model.path))


def _check_model(recipe: Recipe) -> None:
    """A model folder must be complete, a model from scratch possible; whether prompts fit is a rule of the recipe."""
    if recipe.model.path is not None and (faults := model_folder_faults(recipe.model.path)):
        raise ModelError("model folder", faults)
    if recipe.model.scratch is not None:
        num_tokens = len(character_tokenizer(recipe.model.scratch.characters))
        if faults := scratch_faults(scratch_spec(recipe.model.scratch), num_tokens):
            raise ModelError("model from scratch", faults)
    if recipe.model.adapter is not None and recipe.model.adapter.target:
        if faults := list(adapter_faults(outline_of(recipe), recipe.model.adapter.target)):
            raise ModelError("adapter", faults)


def outline_of(recipe: Recipe) -> PreTrainedModel:
    """Return a model with the layers that the recipe's has."""
    if recipe.model.path is not None:
        return model_outline(recipe.model.path)
    assert recipe.model.scratch is not None, "a recipe names a model"
    return scratch_model(scratch_spec(recipe.model.scratch), tokenizer_of(recipe), recipe.run.seed)


def _check_other_models(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> None:
    """A critic must read the policy's tokens, a reward model give one number; both folders must be complete."""
    faults: list[Fault] = []
    if recipe.critic is not None and recipe.critic.path is not None:
        folder = recipe.critic.path
        faults += model_folder_faults(folder) or vocabulary_faults(tokenizer, read_tokenizer(folder), "critic.path")
    if recipe.reward.model is not None:
        faults += reward_folder_faults(recipe.reward.model)
    if faults:
        raise ModelError("models", faults)


def _check_alphabet(recipe: Recipe, task: Task, tokenizer: PreTrainedTokenizerFast) -> None:
    """The alphabet of a model from scratch must hold every character of the prompts."""
    if recipe.model.scratch is not None:
        count = task.size if task.size is not None else recipe.algorithm.prompts
        try:
            check_texts(tokenizer, [task.train(index).text for index in range(count)], "prompts")
        except ModelError as error:
            raise ModelError(error.subject, limited(error.faults, "prompts")) from None


def scratch_spec(scratch: ScratchSection) -> ScratchSpec:
    """Return the shape of a model as the recipe gives it."""
    return ScratchSpec(**{name: getattr(scratch, name) for name in ScratchSpec.__dataclass_fields__})


def make_start(
    recipe: Recipe, folder: RunFolder, source: PromptSource, metrics: MetricsWriter, listener: Listener
) -> Checkpoint:
    """Make the model of a recipe from scratch, warm it up, and save it as the checkpoint before the first step."""
    scratch = recipe.model.scratch
    assert scratch is not None, "a model with a path needs no start"
    tokenizer = tokenizer_of(recipe)
    model = scratch_model(scratch_spec(scratch), tokenizer, recipe.run.seed)
    model.to(device(recipe.run.device))  # pyright: ignore[reportArgumentType] - a decorator hides the signature

    def report(update: int, loss: float, rate: float, seconds: float) -> None:
        metrics.write_warmup(update, loss, rate, seconds)
        assert recipe.warmup is not None
        listener.on_warmup(update, recipe.warmup.steps, loss)

    if recipe.warmup is not None:
        warm_up(model, tokenizer, source.task, recipe, report)
    if recipe.algorithm.reference == "frozen" or recipe.model.adapter is not None:
        save_model(model, tokenizer, folder.path / REFERENCE)
    state = State(0, "", {})
    return save(folder, state, {}, recipe.run.keep_last, lambda draft: save_model(model, tokenizer, draft / MODEL))


REFERENCE = "reference"
"""Folder in the run folder of the frozen reference policy, where it is not the model the recipe names."""
