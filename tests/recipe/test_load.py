"""Reading a recipe: every mistake is named in one message, with the key, the value and what would be right."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rpeg.errors import RecipeError
from rpeg.recipe.load import changed_keys, load_recipe

Faults = Callable[..., list[str]]

WRONG = """\
name: my run
model:
  scratch: {layers: 2, hidden: 130, heads: 4, kv_heads: 3, intermediate: 320, characters: "0123456789+-=;"}
data:
  task: arithmetics
algorithm:
  prompts: 100
  group_size: 1
  group_sise: 8
  updates_per_step: 32
  name: grpoo
  staleness: 2
  correction: none
sampling:
  max_new_tokens: "48"
optimizer:
  learning_rate: 2e-4
  betas: [0.9]
  schedule: cosin
run:
  seed: -1
  deterministic: yes
"""


def test_every_fault_of_every_kind_comes_in_one_message_in_the_order_of_the_recipe(faults_of: Faults) -> None:
    assert faults_of("run.steps", "sampling.temperature=0", text=WRONG) == [
        "override 'run.steps': has no '='; write run.steps=..., a whole number of at least 1",
        'name: "my run" has characters that cannot be used (line 1); '
        "give text (name of the run and start of its folder's name: letters, digits, '-', '_' and '.')",
        "model.scratch.hidden: hidden 130 is not divisible by heads 4: 130 / 4 = 32.50; "
        "set hidden to 128 or 132, or heads to one of 1, 2, 5, 10, 13, 26, 65, 130, or give head_size",
        "model.scratch.kv_heads: heads 4 is not divisible by kv_heads 3; set kv_heads to one of 1, 2, 4",
        "data.task: there is no task named 'arithmetics'; did you mean arithmetic?",
        "algorithm.group_sise: there is no such key (line 9); did you mean algorithm.group_size?",
        'algorithm.name: "grpoo" is not one of the choices (line 11); did you mean grpo? '
        "the choices are grpo, dr_grpo, dapo, gspo, cispo, rloo, reinforce_pp, remax, ppo, ppo_shared",
        "algorithm.prompts: prompts 100 is not divisible by updates_per_step 32: 100 = 3 * 32 + 4; "
        "set prompts to 96 or 128, or updates_per_step to one of 1, 2, 4, 5, 10, 20, 25, 50, 100",
        "algorithm.correction: none with staleness 2: uncorrected losses collapse from staleness 2 on; "
        "set correction to truncated, or staleness to at most 1",
        "sampling.temperature: 0 is too small (override); give a number above 0 (divides the logits before sampling)",
        'sampling.max_new_tokens: "48" is text, not a whole number (line 15); '
        "give a whole number of at least 1 (longest answer, in tokens, "
        "its end token and what a tool answered included)",
        "optimizer.learning_rate: there is no such key (line 17); did you mean optimizer.lr?",
        "optimizer.lr: is missing; give a number above 0 (peak learning rate), for example 0.0002",
        "optimizer.betas: the list has 1 entries (line 18); "
        "give a list of 2 numbers (decay rates of AdamW's two averages)",
        'optimizer.schedule: "cosin" is not one of the choices (line 19); '
        "did you mean cosine? the choices are constant, linear, cosine",
        "run.steps: is missing; give a whole number of at least 1 (number of steps), for example 60",
        "run.seed: -1 is too small (line 21); "
        "give a whole number of at least 0 and below 4294967296 "
        "(decides initial weights, row order and every sampled token)",
        'run.deterministic: "yes" is text, not true or false (line 22); '
        "give true or false (whether equal runs must give equal numbers, bit for bit)",
    ]


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("run.steps=many", 'run.steps: "many" is text, not a whole number (override); give a whole number'),
        ("run.steps=1.5", "run.steps: 1.5 is not a whole number (override)"),
        ("run.steps=true", "run.steps: true is not a whole number (override)"),
        ("run.steps=[1]", "run.steps: a list is not a whole number (override)"),
        ("run.steps=null", "run.steps: null is not a whole number (override)"),
        ("run.steps=0", "run.steps: 0 is too small (override); give a whole number of at least 1"),
        ("optimizer.lr=.nan", "optimizer.lr: nan is not finite (override); give a number above 0"),
        ("optimizer.lr=true", "optimizer.lr: true is not a number (override)"),
        (
            "algorithm.clip_low=2",
            "algorithm.clip_low: 2 is too large (override); give a number above 0 and of at most 1",
        ),
        ("run.deterministic=1", "run.deterministic: 1 is not true or false (override)"),
        ("run.device=gpu", 'run.device: "gpu" is not one of the choices (override); did you mean cpu? the choices'),
        ("data=x", 'data: "x" is text, not a section (override); give a section with the keys task, path'),
        ("data.task_options=3", "data.task_options: 3 is not a section (override); give a section (options of"),
        (
            "data.task=7",
            "data.task: 7 is not text (override); give text, or null (arithmetic, calculator, or reasoning_gym/",
        ),
        ("optimizer.betas=[0.9, 2]", "optimizer.betas.1: 2 is too large; give a number of at least 0 and below 1"),
        ("optimizer.betas=[1, 2, 3]", "optimizer.betas: a list has too many entries (override); give a list of 2"),
        ("optimizer.betas=0.9", "optimizer.betas: 0.9 is not a list (override); give a list of 2 numbers"),
        ("reward.functions=number", 'reward.functions: "number" is text, not a list (override); give a list of {fun'),
        ("reward.functions=[number]", 'reward.functions.0: "number" is text, not a section; give a section with the'),
        ("reward.functions=[{weight: 2}]", "reward.functions.0.function: is missing; give text (exact, number, numb"),
        ("reward.functions=[{functoin: exact}]", "reward.functions.0.functoin: there is no such key; did you mean r"),
        ("name=", "name: null is not text (override)"),
        (
            "warmup={steps: 1, working_share: 2}",
            "warmup.working_share: 2 is too large; give a number of at least 0 and",
        ),
        (
            "model.scratch.characters=''",
            'model.scratch.characters: "" is empty (override); give text that is not empty',
        ),
        (f"run.steps={'x' * 99}", f'run.steps: "{"x" * 56}... is text, not a whole number (override)'),
        ("run={1: 2, steps: 3}", "run.1: there is no such key; run has the keys steps, seed"),
    ],
)
def test_wrong_values_are_said_in_plain_words(faults_of: Faults, override: str, fault: str) -> None:
    assert any(found.startswith(fault) for found in faults_of(override)), faults_of(override)
    assert len(faults_of(override)) <= 2


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("algorithm.group_sze", "did you mean algorithm.group_size?"),
        ("algoritm.group_size", "did you mean algorithm.group_size?"),
        ("group_size", "did you mean algorithm.group_size?"),
        ("path", "did you mean model.path or data.path or critic.path?"),
        ("algorithm.num_generations", "did you mean algorithm.group_size?"),
        ("learning_rate", "did you mean optimizer.lr?"),
        ("algorithm.beta", "did you mean algorithm.kl_coefficient?"),
        ("algorithm.temperature", "did you mean sampling.temperature?"),
        ("model.scratch.num_layers", "did you mean model.scratch.layers?"),
        ("run.xyz", "run has the keys steps, seed, threads, deterministic, checkpoint_every_steps, keep_last, device,"),
        ("xyz", "a recipe has the keys name, model, data, reward, warmup, algorithm, critic, sampling, optimizer"),
        ("run.seed.deeper", "did you mean run.seed?"),
        ("reward.functions.0.wieght", "did you mean reward.functions.0.weight?"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_right_one(faults_of: Faults, key: str, meant: str) -> None:
    (fault,) = faults_of(f"{key}=1")
    assert fault.startswith(f"{key}: there is no such key (override); {meant}")


def test_a_typo_is_never_ignored(faults_of: Faults, right: str) -> None:
    # BL-111: a misspelt switch must not leave the default in force in silence.
    assert faults_of(text=right + "  determinstic: false\n") == [
        "run.determinstic: there is no such key (line 21); did you mean run.deterministic?"
    ]


def test_keys_that_stand_twice_are_refused(faults_of: Faults, right: str) -> None:
    assert faults_of(text=right + "  steps: 3\n") == [
        "run.steps: the key stands twice, in lines 20 and 21; keep one of them"
    ]


def test_broken_yaml_is_named_by_line_together_with_the_overrides(faults_of: Faults) -> None:
    faults = faults_of("run.stepz=3", text="name: x\nrun:\n\tsteps: 3\n")
    assert faults[0].startswith("recipe.yaml:3: not YAML: found character '\\t' that cannot start any token")
    assert faults[1] == "run.stepz: there is no such key (override); did you mean run.steps?"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- a\n- b\n", "just text\n"])
def test_a_text_that_is_no_recipe(faults_of: Faults, text: str) -> None:
    (fault,) = faults_of(text=text)
    assert fault.startswith("recipe.yaml: the recipe is ")
    assert "examples/arithmetic.yaml" in fault


def test_sections_that_are_missing_or_empty(faults_of: Faults) -> None:
    faults = faults_of(text="name: x\nmodel:\nrun:\nevaluation:\n")
    assert [fault.split(";")[0] for fault in faults] == [
        "model: neither path nor scratch is given",
        "data: is missing",
        "algorithm: is missing",
        "sampling: is missing",
        "optimizer: is missing",
        "run.steps: is missing",
    ]
    assert "give a section with the keys name, prompts, group_size" in faults[2]


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "arithmetic.yaml").touch()
    with pytest.raises(RecipeError, match=r"arithmetik.yaml: there is no such file; did you mean arithmetic.yaml\?"):
        load_recipe(tmp_path / "arithmetik.yaml")
    with pytest.raises(RecipeError, match=r"there is no such file; give the name of a YAML file"):
        load_recipe(str(tmp_path / "none" / "a.yaml"))
    with pytest.raises(RecipeError, match=r"is a folder; give the YAML file in it"):
        load_recipe(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(RecipeError, match=r"latin.yaml: cannot be read: 'utf-8' codec"):
        load_recipe(tmp_path / "latin.yaml")


def test_text_and_file_give_the_same_recipe(tmp_path: Path, right: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("\ufeff" + right)
    assert load_recipe(path) == load_recipe(str(path)) == load_recipe(right)


def test_paths_are_found_from_here_then_from_the_recipe_and_made_absolute(
    tmp_path: Path, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = tmp_path / "recipes", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    (folder / "d.jsonl").write_text('{"prompt": "1", "answer": 1}\n')
    (folder / "own.py").write_text("def score(completions): ...\n")
    path = folder / "r.yaml"
    path.write_text(right.replace("task: arithmetic", "path: d.jsonl"))
    monkeypatch.chdir(here)
    recipe = load_recipe(path, ["reward.functions=[{function: own.py:score}]"])
    assert recipe.data.path == str(folder / "d.jsonl")
    assert recipe.reward.functions[0].function == f"{folder / 'own.py'}:score"
    (here / "d.jsonl").write_text('{"prompt": "1", "answer": 1}\n')
    assert load_recipe(path).data.path == str(here / "d.jsonl")
    # A copy of the resolved recipe, as in a run folder, means the same from anywhere.
    copy = tmp_path / "copy.yaml"
    copy.write_text(recipe.to_yaml())
    assert load_recipe(copy) == recipe


def test_changed_keys(right: str) -> None:
    old = load_recipe(right)
    assert changed_keys(old, load_recipe(right)) == {}
    new = load_recipe(right, ["run.steps=61", "optimizer.betas=[0.8, 0.95]", "warmup={steps: 3}"])
    assert changed_keys(old, new) == {
        "optimizer.betas": ([0.9, 0.95], [0.8, 0.95]),
        "run.steps": (60, 61),
        "warmup.batch_size": (None, 32),
        "warmup.betas": (None, [0.9, 0.95]),
        "warmup.lr": (None, 3e-3),
        "warmup.steps": (None, 3),
        "warmup.warmup_updates": (None, 10),
        "warmup.weight_decay": (None, 0.0),
        "warmup.working_share": (None, 0.5),
    }
