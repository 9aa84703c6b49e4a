"""Every key of a recipe, its type, its unit, its range and its default.

A section is a frozen pydantic model; the text under a field is what messages and documentation say about it. Types are
strict: ``"8"`` is not a number and ``1`` is not true. Values that may be left out and follow from others (``kv_heads``,
``sampling.slots``, ``correction: auto``) are filled in here, so that whoever reads a recipe finds every value decided.
The sections about learning are in `rpeg.recipe.learning`.
Rules that involve several keys are in `rpeg.recipe.rules`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from rpeg.recipe.learning import AlgorithmSection, CriticSection, DynamicSamplingSection
from rpeg.recipe.section import Betas, Section, Share
from rpeg.recipe.yaml_text import dump_yaml

__all__ = [
    "AdapterSection",
    "AlgorithmSection",
    "CriticSection",
    "DataSection",
    "DynamicSamplingSection",
    "EvaluationSection",
    "ModelSection",
    "OptimizerSection",
    "Recipe",
    "RewardItem",
    "RewardSection",
    "RunSection",
    "SamplingSection",
    "ScratchSection",
    "Section",
    "WarmupSection",
]


class ScratchSection(Section):
    """A new model with random weights."""

    architecture: str = "qwen3"
    """Kind of decoder: any causal model type of transformers."""
    layers: PositiveInt = Field(examples=[2])
    """Number of decoder layers."""
    hidden: PositiveInt = Field(examples=[128])
    """Width of the residual stream."""
    heads: PositiveInt = Field(examples=[4])
    """Number of attention heads."""
    kv_heads: PositiveInt = Field(default_factory=lambda given: given["heads"])
    """Number of key and value heads; divides heads; default: heads."""
    head_size: PositiveInt = Field(default_factory=lambda given: max(1, given["hidden"] // given["heads"]))
    """Width of one head; even; default: hidden / heads."""
    intermediate: PositiveInt = Field(examples=[320])
    """Width inside the feed-forward block."""
    vocabulary: PositiveInt = 64
    """Rows of the embedding table; at least the characters and the four special tokens."""
    max_positions: PositiveInt = 256
    """Longest sequence, prompt and response together, in tokens."""
    tie_embeddings: bool = True
    """Whether input and output embeddings are one table."""
    init_std: PositiveFloat = 0.05
    """Standard deviation of the initial weights; 0.05 makes tiny models learn where the usual 0.02 does not."""
    characters: str = Field(min_length=1, examples=["0123456789+-=;#."])
    """Alphabet of the character-level tokenizer, one token each."""


class AdapterSection(Section):
    """Low-rank matrices beside the frozen weights (LoRA, arXiv:2106.09685): only they are trained."""

    rank: PositiveInt = 16
    """Rank of the matrices."""
    alpha: PositiveFloat = 32.0
    """What they add is multiplied with this over rank."""
    target: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of the linear layers that have them, such as q_proj; default: empty, every one but the head."""


class ModelSection(Section):
    """The model to train: a folder, or a new one."""

    path: str | None = None
    """Folder of a Hugging Face model (config, weights, tokenizer)."""
    scratch: ScratchSection | None = None
    """Shape of a new model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of arithmetic; the optimizer's state is float32 either way."""
    weights: Literal["float32", "bfloat16"] = "float32"
    """Number format of the trained weights; those in bfloat16 are the rounded copy of float32 ones, which the optimizer
    keeps and moves, so that small updates add up."""
    adapter: AdapterSection | None = None
    """Train an adapter on the model and not its weights; default: null."""


class DataSection(Section):
    """Where problems come from: a named task, or a file."""

    task: str | None = None
    """arithmetic, calculator, or reasoning_gym/<dataset>."""
    path: str | None = None
    """A .jsonl or .parquet file, or a folder written by datasets.save_to_disk."""
    task_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the task."""
    max_turns: PositiveInt = 8
    """Turns of a conversation at most, for a task with a tool."""
    prompt_column: str = Field(default="prompt", min_length=1)
    """Column with the prompt: text or a list of messages."""
    answer_column: str = Field(default="answer", min_length=1)
    """Column with the reference answer."""
    evaluation_path: str | None = None
    """File with held-out problems, of the same forms as path."""
    evaluation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of path's prompts to hold out when there is no evaluation_path."""
    max_prompt_tokens: PositiveInt = 256
    """Longest prompt, in tokens."""
    long_prompts: Literal["drop", "truncate_left", "error"] = "drop"
    """What happens to longer prompts: left out and counted, cut to their end, or refused."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Use of the chat template: auto = for message lists, not for plain text."""
    system_prompt: str | None = None
    """System message put before every prompt that goes through the chat template."""


class RewardItem(Section):
    """One reward function with its weight."""

    function: str = Field(examples=["task"])
    """exact, number, number_strict, math_verify, task, package.module:name or file.py:name."""
    weight: float = 1.0
    """Factor in the sum of rewards."""


class RewardSection(Section):
    """How answers are rewarded: the weighted sum of these functions."""

    functions: Annotated[tuple[RewardItem, ...], Field(strict=False)] = ()
    """The functions; the first also says what eval/accuracy counts as right: a value of 1. Default: the task's own
    verifier, or number for a file."""
    processes: NonNegativeInt = 2
    """Processes that the functions run in, at the same time; 0 = in the worker itself, without a time limit."""
    timeout_s: PositiveFloat = 30.0
    """Longest call of a function, in seconds; its process is then killed and the answer counts as unscorable."""
    overlong_buffer_tokens: NonNegativeInt = 0
    """Last tokens before sampling.max_new_tokens over which the reward falls by overlong_penalty; 0 = it does not."""
    overlong_penalty: PositiveFloat = 1.0
    """What an answer of the full length loses."""
    model: str | None = None
    """Folder of a Hugging Face sequence classifier with one output that scores answers in place of the functions, which
    then only say what eval/accuracy counts as right."""


class WarmupSection(Section):
    """Supervised steps on the task's demonstrations before reinforcement learning."""

    steps: PositiveInt = Field(examples=[800])
    """Number of supervised updates."""
    batch_size: PositiveInt = 32
    """Demonstrations per update."""
    lr: PositiveFloat = 3e-3
    """Peak learning rate; falls to zero along a cosine."""
    warmup_updates: NonNegativeInt = 10
    """Updates over which the learning rate rises from zero."""
    betas: Betas = (0.9, 0.95)
    """Decay rates of AdamW's two averages."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's weight decay."""
    working_share: Share = 0.5
    """Share of demonstrations that write their working or use the tool, 0 to 1."""


class SamplingSection(Section):
    """How answers are sampled."""

    engine: Literal["torch", "vllm"] = "torch"
    """What samples: torch = the sampler of this package, whose tokens depend on nothing but their seeds; vllm = vLLM,
    in an environment that has it."""
    temperature: PositiveFloat = 1.0
    """Divides the logits before sampling."""
    max_new_tokens: PositiveInt = Field(examples=[48])
    """Longest answer, in tokens, its end token and what a tool answered included."""
    slots: PositiveInt | None = None
    """Answers decoded at once; default: all of a step (prompts * group_size)."""


class OptimizerSection(Section):
    """AdamW on the policy."""

    lr: PositiveFloat = Field(examples=[2e-4])
    """Peak learning rate."""
    betas: Betas = (0.9, 0.95)
    """Decay rates of AdamW's two averages."""
    eps: PositiveFloat = 1e-8
    """AdamW's epsilon."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's weight decay."""
    warmup_updates: NonNegativeInt = 0
    """Updates over which the learning rate rises from zero."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate after the rise: constant, or falling to zero at the last update."""
    clip_norm: PositiveFloat = 1.0
    """Largest norm of the gradient; longer ones are scaled down."""
    micro_batch_tokens: PositiveInt = 16384
    """Tokens (padding included) that one forward and backward pass may hold."""


class EvaluationSection(Section):
    """How held-out accuracy is measured."""

    every_steps: NonNegativeInt = 10
    """Steps between evaluations; 0 = never."""
    prompts: PositiveInt = 256
    """Held-out problems per evaluation, answered greedily."""


class RunSection(Section):
    """How long and where to run."""

    steps: PositiveInt = Field(examples=[60])
    """Number of steps."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Decides initial weights, row order and every sampled token."""
    threads: PositiveInt | None = None
    """CPU threads per worker; default: cores / workers."""
    deterministic: bool = True
    """Whether equal runs must give equal numbers, bit for bit."""
    checkpoint_every_steps: PositiveInt = 10
    """Steps between checkpoints."""
    keep_last: PositiveInt = 2
    """Complete checkpoints kept; a broken one does not count, and goes once so many newer ones are complete."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto = cuda if there is one."""
    home: Literal["inline", "processes", "ray"] = "inline"
    """Where workers live: inline = threads of one process, processes = one each, so that sampling and training overlap
    on different cores, also such as torchrun or srun starts; ray = actors of Ray, on one machine or on a cluster; the
    numbers are the same."""
    address: Annotated[str, Field(pattern=r"^(auto|[^/\s]+:\d{1,5})$")] | None = None
    """Where a Ray cluster to join is: host:port, or auto; default: start one here and end it with the run."""
    wait_limit_s: PositiveFloat = 1800.0
    """Longest wait for one event, for the start of the workers or for a save, in seconds, before the run says what it
    waits for and ends."""


class Recipe(Section):
    """A whole run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", examples=["my-run"])
    """Name of the run and start of its folder's name: letters, digits, '-', '_' and '.'."""
    model: ModelSection = Field(examples=[{}])
    """The model to train."""
    data: DataSection = Field(examples=[{}])
    """Where problems come from."""
    reward: RewardSection = Field(default_factory=RewardSection, validate_default=True)
    """How answers are rewarded."""
    warmup: WarmupSection | None = None
    """Supervised steps first, or null."""
    algorithm: AlgorithmSection
    """The learning rule."""
    critic: CriticSection | None = Field(default=None, validate_default=True)
    """The critic of PPO: what it starts from, and what it shares with the policy."""
    sampling: SamplingSection
    """How answers are sampled."""
    optimizer: OptimizerSection
    """AdamW on the policy."""
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)
    """How held-out accuracy is measured."""
    run: RunSection
    """How long and where to run."""

    @field_validator("reward")
    @classmethod
    def _decide_functions(cls, value: RewardSection, info: ValidationInfo) -> RewardSection:
        """Fill in the reward that goes with the data."""
        if value.functions or "data" not in info.data:
            return value
        function = "number" if info.data["data"].task is None else "task"
        return value.model_copy(update={"functions": (RewardItem(function=function),)})

    @field_validator("critic")
    @classmethod
    def _decide_critic(cls, value: CriticSection | None, info: ValidationInfo) -> CriticSection | None:
        """Give PPO a critic, and say what it shares."""
        algorithm: AlgorithmSection | None = info.data.get("algorithm")
        if algorithm is None or (value is None and not algorithm.defaults.has_critic):
            return value
        found = value or CriticSection()
        if found.sharing != "auto":
            return found
        return found.model_copy(update={"sharing": "full" if algorithm.name == "ppo_shared" else "none"})

    @field_validator("sampling")
    @classmethod
    def _decide_slots(cls, value: SamplingSection, info: ValidationInfo) -> SamplingSection:
        """Decode all answers of a step at once unless told otherwise."""
        if value.slots is not None or "algorithm" not in info.data:
            return value
        algorithm: AlgorithmSection = info.data["algorithm"]
        return value.model_copy(update={"slots": algorithm.prompts * algorithm.group_size})

    def to_yaml(self) -> str:
        """Return the recipe with every value decided, as YAML that reads back to an equal recipe."""
        return dump_yaml(_escaped(self.model_dump(mode="json")))


def _escaped(value: Any) -> Any:
    """Return a tree in which ``${`` stands for itself, as the reader takes it for a reference to another key."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value
