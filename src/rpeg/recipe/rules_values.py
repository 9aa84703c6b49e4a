"""Rules between the values of a recipe, each with its numbers and remedy; no file is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rpeg.environments.catalog import (
    alphabet,
    has_demonstrations,
    has_tool,
    longest_demonstration_tokens,
    task_faults,
)
from rpeg.errors import Fault
from rpeg.recipe.rule import RuleSet
from rpeg.recipe.schema import Recipe

__all__ = ["SPECIAL_TOKENS", "VALUE_RULES"]

SPECIAL_TOKENS = 4
"""Padding, beginning and end of text, unknown: rows of the embedding table besides the alphabet's."""

VALUE_RULES = RuleSet()
"""The rules of this module, in the order of the recipe."""


def _divisors(number: int) -> str:
    """Return the divisors of a number as a list in words."""
    return ", ".join(str(candidate) for candidate in range(1, number + 1) if number % candidate == 0)


def _neighbours(number: int, step: int) -> str:
    """Return the nearest multiples of ``step``, below (if positive) and above ``number``."""
    below = number // step * step
    return f"{below} or {below + step}" if below else str(step)


@VALUE_RULES.over("model.path", "model.scratch")
def _one_model(recipe: Recipe, _: Path) -> Iterator[Fault]:
    model = recipe.model
    if model.path is None and model.scratch is None:
        yield Fault("model", "neither path nor scratch is given", "give a folder as path, or a shape as scratch")
    if model.path is not None and model.scratch is not None:
        yield Fault(
            "model", "both path and scratch are given", "keep one; model.scratch=null on the command line drops it"
        )


@VALUE_RULES.over("model.weights", "model.dtype")
def _weights_fit_arithmetic(recipe: Recipe, _: Path) -> Iterator[Fault]:
    model = recipe.model
    if model.weights == "bfloat16" and model.dtype == "float32":
        what = "bfloat16 with model.dtype float32: nothing of weights in bfloat16 is computed in float32"
        yield Fault("model.weights", what, "set model.dtype to bfloat16, or model.weights to float32")


@VALUE_RULES.over("model.scratch.hidden", "model.scratch.heads", "model.scratch.head_size")
def _heads_divide(recipe: Recipe, _: Path) -> Iterator[Fault]:
    shape = recipe.model.scratch
    if shape is None:
        return
    hidden, heads = shape.hidden, shape.heads
    if hidden % heads and shape.head_size == hidden // heads:
        what = f"hidden {hidden} is not divisible by heads {heads}: {hidden} / {heads} = {hidden / heads:.2f}"
        remedy = (
            f"set hidden to {_neighbours(hidden, heads)}, or heads to one of {_divisors(hidden)}, or give head_size"
        )
        yield Fault("model.scratch.hidden", what, remedy)
    elif shape.head_size % 2:
        what = f"head_size {shape.head_size} is odd, and rotary positions turn pairs of values"
        yield Fault("model.scratch.head_size", what, f"set it to {_neighbours(shape.head_size, 2)}")


@VALUE_RULES.over("model.scratch.heads", "model.scratch.kv_heads")
def _kv_heads_divide(recipe: Recipe, _: Path) -> Iterator[Fault]:
    shape = recipe.model.scratch
    if shape is not None and shape.heads % shape.kv_heads:
        what = f"heads {shape.heads} is not divisible by kv_heads {shape.kv_heads}"
        yield Fault("model.scratch.kv_heads", what, f"set kv_heads to one of {_divisors(shape.heads)}")


@VALUE_RULES.over("model.scratch.characters", "model.scratch.vocabulary")
def _alphabet_fits(recipe: Recipe, _: Path) -> Iterator[Fault]:
    shape = recipe.model.scratch
    if shape is None:
        return
    twice = sorted({c for c in shape.characters if shape.characters.count(c) > 1})
    if twice:
        yield Fault("model.scratch.characters", f"{''.join(twice)!r} stands there more than once", "list each once")
    needed = len(set(shape.characters)) + SPECIAL_TOKENS
    if shape.vocabulary < needed:
        what = f"vocabulary {shape.vocabulary} is less than {needed} = {needed - SPECIAL_TOKENS} characters"
        yield Fault(
            "model.scratch.vocabulary", f"{what} + {SPECIAL_TOKENS} special tokens", f"set it to at least {needed}"
        )


@VALUE_RULES.over("model.scratch.characters", "data.task")
def _alphabet_covers_task(recipe: Recipe, _: Path) -> Iterator[Fault]:
    shape = recipe.model.scratch
    if shape is None or recipe.data.task is None:
        return
    needed = alphabet(recipe.data.task)
    missing = [c for c in needed if c not in shape.characters]
    if missing:
        what = f"{''.join(missing)!r} missing: the task {recipe.data.task} writes {needed!r}"
        yield Fault("model.scratch.characters", what, "add them")


@VALUE_RULES.over("model.scratch", "data.max_prompt_tokens", "sampling.max_new_tokens")
def _sequence_fits(recipe: Recipe, _: Path) -> Iterator[Fault]:
    shape, prompt, response = recipe.model.scratch, recipe.data.max_prompt_tokens, recipe.sampling.max_new_tokens
    if shape is not None and prompt + response > shape.max_positions:
        what = f"data.max_prompt_tokens {prompt} + sampling.max_new_tokens {response} = {prompt + response}"
        remedy = f"raise it to {prompt + response}, or lower one of the two"
        yield Fault("model.scratch.max_positions", f"{shape.max_positions} is less than {what}", remedy)


@VALUE_RULES.over("data.task", "data.path")
def _one_source(recipe: Recipe, _: Path) -> Iterator[Fault]:
    data = recipe.data
    if data.task is None and data.path is None:
        yield Fault("data", "neither task nor path is given", "name a task (arithmetic), or give a file as path")
    if data.task is not None and data.path is not None:
        yield Fault("data", "both task and path are given", "keep one; data.task=null on the command line drops it")


@VALUE_RULES.over("data.task", "data.task_options")
def _task_exists(recipe: Recipe, _: Path) -> Iterator[Fault]:
    if recipe.data.task is not None:
        yield from task_faults(recipe.data.task, recipe.data.task_options)


@VALUE_RULES.over("data")
def _keys_for_other_source(recipe: Recipe, _: Path) -> Iterator[Fault]:
    data = recipe.data
    if data.task is None and data.task_options:
        yield Fault("data.task_options", "these are options of a task, and data.task is not given", "remove them")
    if data.task is None or data.path is not None:
        return
    for key in ("evaluation_path", "evaluation_fraction", "prompt_column", "answer_column"):
        if getattr(data, key) != type(data).model_fields[key].default:
            yield Fault(
                f"data.{key}", f"has no effect: it belongs to data.path, and the task is {data.task}", "remove it"
            )


@VALUE_RULES.over(
    "data.task", "data.max_turns", "algorithm.name", "algorithm.dynamic_sampling", "algorithm.normalise", "reward.model"
)
def _turns_are_trained(recipe: Recipe, _: Path) -> Iterator[Fault]:
    data, algorithm = recipe.data, recipe.algorithm
    if not has_tool(data.task):
        if data.max_turns != type(data).model_fields["max_turns"].default:
            yield Fault("data.max_turns", f"{data.max_turns} has no effect: the task has no tool", "remove it")
        return
    if algorithm.name != "grpo":
        what = f"{algorithm.name} with the tool of {data.task}: answers in turns are trained with grpo only"
        yield Fault("algorithm.name", what, "set it to grpo, or choose a task without a tool")
    if algorithm.dynamic_sampling is not None:
        what = f"is not possible with the tool of {data.task}: samples are made in rounds or in turns, not both yet"
        yield Fault("algorithm.dynamic_sampling", what, "remove it")
    if algorithm.normalise != "token":
        what = f"{algorithm.normalise} with the tool of {data.task}, whose loss is a mean over tokens"
        yield Fault("algorithm.normalise", what, "set it to token")


@VALUE_RULES.over("data.evaluation_path", "data.evaluation_fraction")
def _one_way_to_hold_out(recipe: Recipe, _: Path) -> Iterator[Fault]:
    data = recipe.data
    default = type(data).model_fields["evaluation_fraction"].default
    if data.evaluation_path is not None and data.evaluation_fraction != default:
        what = f"{data.evaluation_fraction} has no effect: the held-out rows come from data.evaluation_path"
        yield Fault("data.evaluation_fraction", what, "remove one of the two")


@VALUE_RULES.over("data.chat", "data.system_prompt", "model.scratch")
def _chat_is_possible(recipe: Recipe, _: Path) -> Iterator[Fault]:
    data = recipe.data
    if data.chat == "never" and data.system_prompt is not None:
        yield Fault("data.system_prompt", "has no effect with data.chat never", "remove one of the two")
    if recipe.model.scratch is None:
        return
    reason = "a model from scratch reads single characters and has no chat template"
    if data.chat == "always":
        yield Fault("data.chat", f"always is not possible: {reason}", "set it to auto or never")
    if data.chat != "never" and data.system_prompt is not None:
        yield Fault("data.system_prompt", f"has no effect: {reason}", "remove it")


@VALUE_RULES.over("warmup", "data.task")
def _warmup_has_demonstrations(recipe: Recipe, _: Path) -> Iterator[Fault]:
    if recipe.warmup is None or (recipe.data.task is not None and has_demonstrations(recipe.data.task)):
        return
    source = "a data file" if recipe.data.task is None else f"the task {recipe.data.task}"
    what = f"{source} has no demonstrations to imitate (arithmetic and calculator have)"
    yield Fault("warmup", what, "remove the section; warmup=null on the command line drops it")


@VALUE_RULES.over("reward.overlong_buffer_tokens", "sampling.max_new_tokens")
def _overlong_buffer_fits(recipe: Recipe, _: Path) -> Iterator[Fault]:
    buffer, limit = recipe.reward.overlong_buffer_tokens, recipe.sampling.max_new_tokens
    if buffer >= limit:
        what = f"{buffer} is not less than sampling.max_new_tokens {limit}: every answer would be punished"
        yield Fault("reward.overlong_buffer_tokens", what, f"set it to at most {limit - 1}")


@VALUE_RULES.over("reward.overlong_buffer_tokens", "reward.overlong_penalty")
def _overlong_penalty_is_used(recipe: Recipe, _: Path) -> Iterator[Fault]:
    default = type(recipe.reward).model_fields["overlong_penalty"].default
    if not recipe.reward.overlong_buffer_tokens and recipe.reward.overlong_penalty != default:
        what = f"{recipe.reward.overlong_penalty} has no effect with reward.overlong_buffer_tokens 0"
        yield Fault("reward.overlong_penalty", what, "remove it, or give the tokens over which the reward falls")


@VALUE_RULES.over("reward.processes", "reward.timeout_s")
def _time_limit_is_kept(recipe: Recipe, _: Path) -> Iterator[Fault]:
    default = type(recipe.reward).model_fields["timeout_s"].default
    if not recipe.reward.processes and recipe.reward.timeout_s != default:
        what = f"{recipe.reward.timeout_s:g} has no effect with reward.processes 0: the worker cannot be interrupted"
        yield Fault("reward.timeout_s", what, "give at least 1 process, or remove the limit")


@VALUE_RULES.over("run.address", "run.home")
def _address_is_used(recipe: Recipe, _: Path) -> Iterator[Fault]:
    if recipe.run.address is not None and recipe.run.home != "ray":
        what = f"{recipe.run.address} has no effect with run.home {recipe.run.home}: only Ray has clusters to join"
        yield Fault("run.address", what, "set run.home to ray, or remove it")


@VALUE_RULES.over("algorithm.prompts", "algorithm.updates_per_step")
def _updates_divide_prompts(recipe: Recipe, _: Path) -> Iterator[Fault]:
    prompts, updates = recipe.algorithm.prompts, recipe.algorithm.updates_per_step
    if prompts % updates:
        what = f"prompts {prompts} is not divisible by updates_per_step {updates}: {prompts} = "
        what += f"{prompts // updates} * {updates} + {prompts % updates}"
        remedy = f"set prompts to {_neighbours(prompts, updates)}, or updates_per_step to one of {_divisors(prompts)}"
        yield Fault("algorithm.prompts", what, remedy)


@VALUE_RULES.over("algorithm.dynamic_sampling", "algorithm.name", "algorithm.normalise", "reward.model")
def _rounds_have_groups(recipe: Recipe, _: Path) -> Iterator[Fault]:
    algorithm = recipe.algorithm
    if algorithm.dynamic_sampling is None:
        return
    if algorithm.name not in ("grpo", "dapo"):
        what = f"is not possible with {algorithm.name}: groups are judged and replaced while sampling"
        yield Fault("algorithm.dynamic_sampling", what, "remove it, or set algorithm.name to dapo")
    if recipe.reward.model is not None:
        what = "is not possible with reward.model, which scores after sampling"
        yield Fault("algorithm.dynamic_sampling", what, "remove it, or use reward.functions")
    if algorithm.normalise != "token" and algorithm.name in ("grpo", "dapo"):
        what = f"{algorithm.normalise} with algorithm.dynamic_sampling, whose loss is a mean over tokens (DAPO)"
        yield Fault("algorithm.normalise", what, "set it to token, or remove algorithm.dynamic_sampling")


_VLLM_TEMPERATURES = (0.01, 2.0)
"""What vLLM takes; for less it would sample at the lower end."""


@VALUE_RULES.over("sampling.engine", "sampling.temperature")
def _engine_takes_temperature(recipe: Recipe, _: Path) -> Iterator[Fault]:
    least, most = _VLLM_TEMPERATURES
    if recipe.sampling.engine == "vllm" and not least <= recipe.sampling.temperature <= most:
        what = f"{recipe.sampling.temperature:g} is outside of what vllm takes, {least} to {most}"
        yield Fault("sampling.temperature", what, "choose one within, or set sampling.engine to torch")


@VALUE_RULES.over(
    "sampling.slots", "algorithm.prompts", "algorithm.group_size", "algorithm.partial_rollouts", is_advice=True
)
def _slots_are_used(recipe: Recipe, _: Path) -> Iterator[Fault]:
    prompts, partial = recipe.algorithm.prompts, recipe.algorithm.partial_rollouts
    rows = (prompts + (partial.most_carried(prompts) if partial is not None else 0)) * recipe.algorithm.group_size
    if recipe.sampling.slots is not None and recipe.sampling.slots > rows:
        what = f"{recipe.sampling.slots} slots for {rows} answers a step: the rest only takes memory"
        yield Fault("sampling.slots", what, f"set it to at most {rows}")


@VALUE_RULES.over(
    "optimizer.warmup_updates", "run.steps", "algorithm.updates_per_step", "algorithm.passes", is_advice=True
)
def _rise_ends(recipe: Recipe, _: Path) -> Iterator[Fault]:
    updates = recipe.run.steps * recipe.algorithm.all_updates
    if recipe.optimizer.warmup_updates > updates:
        what = f"{recipe.optimizer.warmup_updates} is more than the run's {updates} updates"
        yield Fault("optimizer.warmup_updates", what, "the learning rate never reaches optimizer.lr; lower it")


@VALUE_RULES.over("optimizer.micro_batch_tokens", "data.max_prompt_tokens", "sampling.max_new_tokens", is_advice=True)
def _row_fits_micro_batch(recipe: Recipe, _: Path) -> Iterator[Fault]:
    longest = recipe.data.max_prompt_tokens + recipe.sampling.max_new_tokens
    if recipe.optimizer.micro_batch_tokens < longest:
        what = f"{recipe.optimizer.micro_batch_tokens} is less than the longest row, {longest} tokens"
        yield Fault("optimizer.micro_batch_tokens", what, "such a row makes a micro-batch of its own, above the limit")


@VALUE_RULES.over("warmup", "data.task", "data.task_options", "sampling.max_new_tokens", is_advice=True)
def _demonstrations_fit(recipe: Recipe, _: Path) -> Iterator[Fault]:
    if recipe.warmup is None or recipe.data.task is None or not has_demonstrations(recipe.data.task):
        return
    longest = longest_demonstration_tokens(recipe.data.task, recipe.data.task_options)
    if recipe.sampling.max_new_tokens < longest:
        what = f"{recipe.sampling.max_new_tokens} cuts answers like the longest demonstration, {longest} tokens"
        yield Fault("sampling.max_new_tokens", what, f"set it to at least {longest}")


@VALUE_RULES.over("evaluation.every_steps", "run.steps", is_advice=True)
def _evaluations_happen(recipe: Recipe, _: Path) -> Iterator[Fault]:
    if recipe.evaluation.every_steps > recipe.run.steps:
        what = f"{recipe.evaluation.every_steps} is more than the run's {recipe.run.steps} steps"
        yield Fault("evaluation.every_steps", what, "accuracy is not measured on the way; lower it")
