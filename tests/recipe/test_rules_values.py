"""Rules between values: one case that breaks each, with the numbers, and one just inside."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rpeg.recipe.keys import find
from rpeg.recipe.load import load_recipe
from rpeg.recipe.rules import RULES, advice, cross_field_faults

Faults = Callable[..., list[str]]

CALCULATOR = ["data.task=calculator", "model.scratch.characters='0123456789+-=;#.[]?'"]
CASES = [
    (
        ["model.scratch=null"],
        "model: neither path nor scratch is given; give a folder as path, or a shape as scratch",
    ),
    (
        ["model.weights=bfloat16"],
        "model.weights: bfloat16 with model.dtype float32: nothing of weights in bfloat16 is computed in float32; "
        "set model.dtype to bfloat16, or model.weights to float32",
    ),
    (
        ["model.scratch.heads=3", "model.scratch.kv_heads=3"],
        "model.scratch.hidden: hidden 128 is not divisible by heads 3: 128 / 3 = 42.67; "
        "set hidden to 126 or 129, or heads to one of 1, 2, 4, 8, 16, 32, 64, 128, or give head_size",
    ),
    (
        ["model.scratch.head_size=31"],
        "model.scratch.head_size: head_size 31 is odd, and rotary positions turn pairs of values; set it to 30 or 32",
    ),
    (
        ["model.scratch.hidden=4"],
        "model.scratch.head_size: head_size 1 is odd, and rotary positions turn pairs of values; set it to 2",
    ),
    (
        ["model.scratch.kv_heads=3"],
        "model.scratch.kv_heads: heads 4 is not divisible by kv_heads 3; set kv_heads to one of 1, 2, 4",
    ),
    (
        ["model.scratch.characters='0123456789+-=;#.0'"],
        "model.scratch.characters: '0' stands there more than once; list each once",
    ),
    (
        ["model.scratch.vocabulary=19"],
        "model.scratch.vocabulary: vocabulary 19 is less than 20 = 16 characters + 4 special tokens; set it to",
    ),
    (
        ["model.scratch.characters='0123456789+-='"],
        "model.scratch.characters: ';#.' missing: the task arithmetic writes '0123456789+-=;#.'; add them",
    ),
    (
        ["data.max_prompt_tokens=209"],
        "model.scratch.max_positions: 256 is less than data.max_prompt_tokens 209 + sampling.max_new_tokens 48 = 257; "
        "raise it to 257, or lower one of the two",
    ),
    (
        ["reward.overlong_buffer_tokens=48"],
        "reward.overlong_buffer_tokens: 48 is not less than sampling.max_new_tokens 48: every answer would be punished",
    ),
    (
        ["reward.overlong_penalty=0.5"],
        "reward.overlong_penalty: 0.5 has no effect with reward.overlong_buffer_tokens 0; remove it, or give",
    ),
    (
        ["reward.processes=0", "reward.timeout_s=5"],
        "reward.timeout_s: 5 has no effect with reward.processes 0: the worker cannot be interrupted; give at least 1",
    ),
    (
        ["run.address=head:6379"],
        "run.address: head:6379 has no effect with run.home inline: only Ray has clusters to join; set run.home to ray",
    ),
    (["data.task=null"], "data: neither task nor path is given; name a task (arithmetic), or give a file as path"),
    (
        ["data.task_options={min_term: 3}"],
        "data.task_options.min_term: arithmetic has no such option; did you mean min_terms?",
    ),
    (
        ["data.task=reasoning_gym/chain_sums"],
        "data.task: reasoning-gym has no dataset named 'chain_sums'; did you mean chain_sum? (reasoning-gym has",
    ),
    (
        ["data.task=reasoning_gym/gcd", "data.task_options={min_number: 3}"],
        "data.task_options.min_number: gcd has no such option; did you mean min_numbers?",
    ),
    (
        ["data.evaluation_fraction=0.5"],
        "data.evaluation_fraction: has no effect: it belongs to data.path, and the task is arithmetic; remove it",
    ),
    (["data.system_prompt=Think"], "data.system_prompt: has no effect: a model from scratch reads single characters"),
    (["data.chat=always"], "data.chat: always is not possible: a model from scratch reads single characters and has"),
    (
        ["data.chat=never", "data.system_prompt=Think"],
        "data.system_prompt: has no effect with data.chat never; remove one of the two",
    ),
    (
        ["data.task=reasoning_gym/gcd", "warmup.steps=3"],
        "warmup: the task reasoning_gym/gcd has no demonstrations to imitate (arithmetic and calculator have); "
        "remove the section; warmup=null on the command line drops it",
    ),
    (["algorithm.group_size=1"], "algorithm.group_size: 1 answer per prompt is its own baseline"),
    (
        ["algorithm.prompts=7", "algorithm.updates_per_step=8"],
        "algorithm.prompts: prompts 7 is not divisible by updates_per_step 8: 7 = 0 * 8 + 7; "
        "set prompts to 8, or updates_per_step to one of 1, 7",
    ),
    (
        ["algorithm.dynamic_sampling.max_rounds=3", "algorithm.normalise=sample"],
        "algorithm.normalise: sample with algorithm.dynamic_sampling, whose loss is a mean over tokens (DAPO); set it",
    ),
    (
        ["data.task=calculator"],
        "model.scratch.characters: '[]?' missing: the task calculator writes '0123456789+-=;#.[]?'; add them",
    ),
    (["data.max_turns=3"], "data.max_turns: 3 has no effect: the task has no tool; remove it"),
    (
        [*CALCULATOR, "algorithm.dynamic_sampling.max_rounds=2"],
        "algorithm.dynamic_sampling: is not possible with the tool of calculator: samples are made in rounds or",
    ),
    (
        [*CALCULATOR, "algorithm.normalise=sample"],
        "algorithm.normalise: sample with the tool of calculator, whose loss is a mean over tokens; set it to token",
    ),
    (["algorithm.staleness=2", "algorithm.correction=none"], "algorithm.correction: none with staleness 2"),
    (
        ["algorithm.correction=truncated", "algorithm.old_logprob=recorded"],
        "algorithm.old_logprob: recorded with correction truncated: every importance weight would be 1",
    ),
    (
        ["algorithm.correction_cap=5.0"],
        "algorithm.correction_cap: 5.0 has no effect with correction none; remove it, or set correction to truncated",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), CASES, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_a_violated_rule_is_the_only_fault(faults_of: Faults, overrides: list[str], message: str) -> None:
    (fault,) = faults_of(*overrides)
    assert fault.startswith(message)


def test_two_of_what_there_may_be_one(faults_of: Faults) -> None:
    assert "model: both path and scratch are given; keep one; model.scratch=null on the command line drops it" in (
        faults_of("model.path=.")
    )
    assert "data: both task and path are given; keep one; data.task=null on the command line drops it" in (
        faults_of("data.path=/")
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.max_prompt_tokens=208"],
        ["model.scratch.vocabulary=20"],
        ["model.scratch.heads=3", "model.scratch.kv_heads=1", "model.scratch.head_size=40"],
        ["algorithm.prompts=96", "algorithm.updates_per_step=32"],
        ["algorithm.staleness=1", "algorithm.correction=none"],
        ["algorithm.staleness=5", "algorithm.correction_cap=5.0"],
        ["warmup.steps=3"],
        ["data.chat=never"],
        [*CALCULATOR, "data.max_turns=3"],
        ["reward.overlong_buffer_tokens=47", "reward.overlong_penalty=0.5"],
        ["algorithm.dynamic_sampling.max_rounds=32"],
        ["run.home=ray", "run.address=head:6379"],
        ["run.home=ray", "run.address=auto"],
    ],
)
def test_what_is_just_inside_is_accepted(right: str, overrides: list[str]) -> None:
    load_recipe(right, overrides)


def test_both_faults_of_a_batch_come_together(faults_of: Faults) -> None:
    # BL-110 and BL-116: everything that does not divide, in one message with all the numbers.
    faults = faults_of("algorithm.prompts=100", "algorithm.updates_per_step=32", "model.scratch.kv_heads=3")
    assert [fault.split(":")[0] for fault in faults] == ["model.scratch.kv_heads", "algorithm.prompts"]
    assert "100 = 3 * 32 + 4; set prompts to 96 or 128" in faults[1]


def test_what_follows_from_another_fault_is_not_reported(faults_of: Faults) -> None:
    # heads is no number: that it does not divide anything is not said as well.
    faults = faults_of("model.scratch.heads=four", "model.scratch.kv_heads=3", "algorithm.prompts=x")
    assert [fault.split(":")[0] for fault in faults] == ["model.scratch.heads", "algorithm.prompts"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.staleness=1", "algorithm.correction=none"],
            "algorithm.correction: none with staleness 1: answers",
        ),
        (
            ["sampling.slots=300"],
            "sampling.slots: 300 slots for 256 answers a step: the rest only takes memory; set it",
        ),
        (
            ["optimizer.warmup_updates=61"],
            "optimizer.warmup_updates: 61 is more than the run's 60 updates; the learning",
        ),
        (
            ["optimizer.micro_batch_tokens=63"],
            "optimizer.micro_batch_tokens: 63 is less than the longest row, 64 tokens",
        ),
        (
            ["warmup.steps=3", "sampling.max_new_tokens=30"],
            "sampling.max_new_tokens: 30 cuts answers like the longest demonstration, 31 tokens; set it to at least 31",
        ),
        (
            ["algorithm.partial_rollouts={max_carry: 2, budget_tokens: 3, enforce: drop}"],
            "algorithm.partial_rollouts.enforce: drop with 3 tokens a step for 3 steps: answers of more than 9 tokens",
        ),
        (["run.steps=9"], "evaluation.every_steps: 10 is more than the run's 9 steps; accuracy is not measured"),
    ],
)
def test_advice_is_given_and_nothing_refused(right: str, overrides: list[str], message: str) -> None:
    (fault,) = advice(load_recipe(right, overrides), Path())
    assert str(fault).startswith(message)


def test_vllm_takes_temperatures_within_its_bounds(right: str, faults_of: Faults) -> None:
    for temperature in ("0.005", "2.5"):
        load_recipe(right, [f"sampling.temperature={temperature}"])
        (fault,) = faults_of("sampling.engine=vllm", f"sampling.temperature={temperature}")
        what = f"{temperature} is outside of what vllm takes, 0.01 to 2.0; choose one within"
        assert fault.startswith(f"sampling.temperature: {what}")
    for temperature in ("0.01", "2.0"):
        load_recipe(right, ["sampling.engine=vllm", f"sampling.temperature={temperature}"])


def test_a_right_recipe_needs_no_advice(right: str) -> None:
    recipe = load_recipe(right, ["optimizer.warmup_updates=60", "optimizer.micro_batch_tokens=64"])
    assert advice(recipe, Path()) == []
    assert cross_field_faults(recipe, Path()) == []


def test_rules_name_keys_that_exist() -> None:
    assert len(RULES) >= 25
    assert [key for rule in RULES for key in rule.keys if find(key) is None] == []
