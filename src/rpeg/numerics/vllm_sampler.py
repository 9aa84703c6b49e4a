"""Sampling by vLLM's engine in this process; weights are replaced in place between calls of `generate`.

    model folder ─configuration only─▶ engine with made-up weights ─load─▶ engine with the policy's ─probe─▶ ready

Weights get in by one way, the live reload, at the start as well; the probe then compares what the engine says of a few
tokens with what the model says. So no run begins whose engine would go on with weights that it was not given.

Seeds are the engine's: a sample's tokens are repeated when the same calls are repeated, but they are others than
`TorchSampler` draws, and rows beside them may change the last bits of their probabilities. Everything that makes a
process do this (environment variables, settings of torch that the engine overwrites) is in this file.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rpeg.errors import Fault, ModelError, RunFault
from rpeg.numerics.draws import seed_streams
from rpeg.numerics.prompt_faults import check_prompts, written_of
from rpeg.numerics.samples import Sampled, SamplingParams
from rpeg.numerics.weight_faults import check_weights

__all__ = ["PROBE_LIMITS", "VllmSampler"]

PROBE_LIMITS: Mapping[torch.dtype, float] = {torch.float32: 0.01, torch.bfloat16: 0.1}
"""Largest mean difference of the probe's log-probabilities. On a CPU 1e-6 and 0.02 were seen, and more than 1 where the
weights were others; the room is for GPUs, whose kernels multiply with fewer bits."""

_PROBE_TOKENS = 8
_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # weights reach an engine in this process without a copy
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent anywhere
}
_DEFAULTS = {"VLLM_LOGGING_LEVEL": "ERROR"}
_BLOCK_TOKENS = 128
"""Room for keys and values is reckoned in blocks of so many tokens; no engine's are larger."""
_LARGEST_SEED = (1 << 63) - 1
_BATCHED_TOKENS = 8192
"""Tokens of one pass at most, as in the other sampler: bounds its activations."""


class VllmSampler:
    """Samples ``slots`` rows at once by vLLM."""

    def __init__(self, model: PreTrainedModel, folder: Path, slots: int, max_positions: int) -> None:
        """Start an engine for the model whose configuration is in ``folder``, and give it the weights of ``model``.

        Prompt and answer together have up to ``max_positions`` tokens. Raises `ModelError` when vLLM cannot sample
        from such a model, or does so with other probabilities.
        """
        assert slots > 0, slots
        self.version = 0
        self.max_positions = max_positions
        self.vocabulary: int = model.config.get_text_config(decoder=True).vocab_size
        self._shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
        self._needed = [name for name, _ in model.named_parameters()]  # a tied weight once
        self._is_cpu = model.device.type == "cpu"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the engine's, about libraries of its own
                self._engine = _start(model, folder, slots, max_positions).llm_engine
            self.load(dict(model.named_parameters()), 0)
            gap = self._gap(model)
        except Exception as error:  # whatever the engine objects to in a model
            what = f"cannot sample from this model: {type(error).__name__}: {error}"
            raise _refusal(model, what) from error
        limit = PROBE_LIMITS[model.dtype]
        if not gap <= limit:
            what = (
                f"gives other probabilities than transformers: {gap:.2g} apart on average, at most {limit} is rounding"
            )
            raise _refusal(model, what)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy ``weights`` (named as in the model's ``state_dict``) in place; take their version when all are in.

        Raises `ModelError` with every name that is missing, unknown or of another shape; nothing is copied then.
        """
        check_weights(weights, version, self._shapes, self._needed)
        found = [(name, weights[name].detach()) for name in self._needed]
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(found)})
        self._engine.apply_model(_pack_heads)
        self.version = version

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        params: SamplingParams,
        seeds: Sequence[int],
        written: Sequence[int] | None = None,
    ) -> Iterator[Sampled]:
        """Return samples as they end, as `TorchSampler.generate` does; answers that go on are drawn with new numbers.

        Raises `ModelError` at once, before any token, for prompts that the engine cannot take, and `RunFault` when what
        it returns cannot be trained on.
        """
        written = written_of(prompts, group, seeds, written, params.max_new_tokens)
        check_prompts(prompts, params.max_new_tokens, written[::group], self.vocabulary, self.max_positions)
        # Members of a group share their prompt's prefill; of earlier calls, with other weights, nothing is left.
        self._engine.reset_prefix_cache()
        requests = [
            ({"prompt_token_ids": list(prompts[index // group])}, _engine_params(params, seed, count))
            for index, (seed, count) in enumerate(zip(_engine_seeds(seeds, written), written, strict=True))
        ]
        return self._samples(requests)

    def _samples(self, requests: Sequence[tuple[dict[str, list[int]], Any]]) -> Iterator[Sampled]:
        """Hand in all requests and yield their samples; those that nobody waits for any more are taken back."""
        waiting = {self._engine.add_request(str(i), *request): i for i, request in enumerate(requests)}
        index_of = {str(i): i for i in waiting.values()}
        try:
            while index_of:
                with self._uncompiled():
                    outputs = self._engine.step()
                for output in outputs:
                    if output.finished:
                        yield _sampled(index_of.pop(output.request_id), output.outputs[0], self.version)
        finally:
            self._engine.abort_request([key for key, i in waiting.items() if str(i) in index_of], internal=True)

    def _uncompiled(self) -> AbstractContextManager[Any]:
        """On a CPU nothing is compiled: counting ranks that nobody reads would take a compiler and 20 s to start."""
        return torch.compiler.set_stance("force_eager") if self._is_cpu else nullcontext()

    @torch.no_grad()
    def _gap(self, model: PreTrainedModel) -> float:
        """Return how far apart engine and model are on a few tokens that the engine samples, on average."""
        length = min(_PROBE_TOKENS, self.max_positions // 2)
        prompt = [(7 * place + 1) % self.vocabulary for place in range(length)]
        (sampled,) = self.generate([prompt], 1, SamplingParams(1.0, length, ()), [0])
        ids_1T = torch.tensor([prompt + sampled.ids], device=model.device)
        logps_TV = model(input_ids=ids_1T).logits[0, length - 1 : -1].float().log_softmax(-1)
        logps_T = logps_TV.gather(-1, ids_1T[0, length:, None]).squeeze(-1)
        return fmean(abs(a - b) for a, b in zip(logps_T.tolist(), sampled.logps, strict=True))


def _start(model: PreTrainedModel, folder: Path, slots: int, max_positions: int) -> Any:
    """Return an engine with made-up weights."""
    os.environ.update(_SETTINGS)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    is_cpu = model.device.type == "cpu"
    set_num_threads = torch.set_num_threads
    try:
        return import_module("vllm").LLM(
            model=str(folder),
            skip_tokenizer_init=True,
            generation_config="vllm",  # ends and temperatures are the recipe's
            load_format="dummy",
            dtype=str(model.dtype).removeprefix("torch."),
            logprobs_mode="processed_logprobs",  # of the distribution that was drawn from
            max_model_len=max_positions,
            max_num_seqs=slots,
            max_num_batched_tokens=max(_BATCHED_TOKENS, slots),
            enable_prefix_caching=True,
            kv_cache_memory_bytes=_cache_bytes(model, slots, max_positions),
            gpu_memory_utilization=0.1,  # only asked whether so much is free, as the caches have a size
            enforce_eager=is_cpu,
            seed=0,
            **({"block_size": 32} if is_cpu else {}),
        )
    finally:
        # The CPU engine replaces it by one that does nothing, and trainers in this process could not use it.
        torch.set_num_threads = set_num_threads


def _cache_bytes(model: PreTrainedModel, slots: int, max_positions: int) -> int:
    """Return the room that the keys and values of all slots take at their longest, and of one to spare."""
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    tokens = (slots + 1) * (-(-max_positions // _BLOCK_TOKENS) + 1) * _BLOCK_TOKENS
    return 2 * tokens * config.num_hidden_layers * kv_heads * head_size * model.dtype.itemsize


def _pack_heads(model: Any) -> None:
    """Pack output layers anew: a reload leaves out those that share the embedding's weight; CPUs use copies of it."""
    output_layer = import_module("vllm.model_executor.layers.vocab_parallel_embedding").ParallelLMHead
    for module in model.modules():
        if isinstance(module, output_layer):
            module.quant_method.process_weights_after_loading(module)  # nothing on a GPU


def _engine_params(params: SamplingParams, seed: int, written: int) -> Any:
    """Return what vLLM calls these parameters; of every token only its own log-probability is asked for."""
    vllm = import_module("vllm")
    return vllm.SamplingParams(
        temperature=0.0 if params.greedy else params.temperature,
        max_tokens=params.max_new_tokens - written,
        stop_token_ids=list(params.end_ids),
        ignore_eos=True,  # they are all among the stops
        seed=seed,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
    )


def _engine_seeds(seeds: Sequence[int], written: Sequence[int]) -> list[int]:
    """Return a seed per sample; what goes on gets another one, or it would be drawn with the first numbers again."""
    cpu = torch.device("cpu")
    moved = [stream + count for stream, count in zip(seed_streams(seeds, cpu).tolist(), written, strict=True)]
    return (seed_streams(moved, cpu) & _LARGEST_SEED).tolist()


def _sampled(index: int, output: Any, version: int) -> Sampled:
    """Return a sample as the engine gives it, from the weights of a version.

    Raises:
        RunFault: when it did not end by itself, or what the engine says of its tokens does not fit them.
    """
    ids, said = list(output.token_ids), output.logprobs
    logps, about = list(said.logprobs), list(said.token_ids)
    if output.finish_reason not in ("stop", "length"):
        raise RunFault(f"sample {index}: vLLM ended it for the reason {output.finish_reason!r} after {len(ids)} tokens")
    if about != ids:
        raise RunFault(
            f"sample {index}: {len(ids)} tokens, and vLLM has {len(logps)} log-probabilities of {about[:3]}..."
        )
    if bad := [place for place, logp in enumerate(logps) if logp != logp]:
        where = f"sample {index}, token {bad[0]}"
        raise RunFault(f"{where}: the log-probability is not a number; weights or activations overflowed")
    return Sampled(index, ids, logps, output.finish_reason == "stop", [version] * len(ids))


def _refusal(model: PreTrainedModel, what: str) -> ModelError:
    where = f"model type {model.config.model_type}"
    return ModelError("the engine vllm", [Fault(where, f"vLLM {what}", "set sampling.engine to torch")])
