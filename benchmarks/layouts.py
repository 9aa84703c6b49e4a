"""How far training in every layout is from training in one process: gloo ranks on this machine, small models.

    python benchmarks/layouts.py

Each case makes three updates with AdamW, and three with SGD, of 8 rows in micro-batches of 2, in one process and on a
mesh. Printed are the largest differences of losses and gradient norms (relative) and of weights (absolute) over steps
and ranks. Then a replica of several ranks samples: printed are whether every token is the same, and the largest
difference of their log-probabilities. All this is what ``tests/numerics/parallel`` does.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

ATTENTION = (("heads", "tp"), ("kv_heads", "tp"))
DENSE = (*ATTENTION, ("ffn", "tp"), ("vocabulary", "tp"))
SPARSE = (*ATTENTION, ("vocabulary", "tp"))
TIED = (("tie_word_embeddings", True),)
SHARED = (("shared_expert_intermediate_size", 24),)
DP2, DP4, TP2, TP4, EP2, EP4 = ((axis, size) for axis in ("dp", "tp", "ep") for size in (2, 4))

REPLICAS = (
    "TP, qwen3",
    "TP, llama",
    "TP, gemma2",
    "TP of 4, 2 key-value heads",
    "experts over tp",
    "each expert over tp",
)
"""The cases that are sampled too."""


def cases() -> dict[str, dict[str, Any]]:
    """Return what is compared, by the name that is printed."""
    found: dict[str, dict[str, Any]] = {
        "replicated": {"axes": (DP2,)},
        "FSDP2, kept between passes (zero 2)": {"axes": (DP2,), "zero": 2},
        "FSDP2 (zero 3)": {"axes": (DP2,), "zero": 3},
        "FSDP2 (zero 3) of 4": {"axes": (DP4,), "zero": 3},
        "FSDP2, tied embedding": {"axes": (DP2,), "zero": 3, "sizes": TIED},
        "FSDP2, logits in chunks": {"axes": (DP2,), "zero": 3, "is_chunked": True},
        "HSDP: sharded in pairs": {"axes": (DP2, EP2), "zero": 3},
        "TP, without sequence parallelism": {"axes": (TP2,), "split": DENSE, "is_sequence_parallel": False},
        "TP of 4, 2 key-value heads": {"axes": (TP4,), "split": DENSE},
    }
    for architecture in ("qwen3", "llama", "mistral", "qwen2", "gemma", "gemma2", "gemma3_text"):
        found[f"TP, {architecture}"] = {"axes": (TP2,), "split": DENSE, "architecture": architecture}
    moe = {"architecture": "qwen3_moe"}
    return found | {
        "TP, logits in chunks": {"axes": (TP2,), "split": DENSE, "is_chunked": True},
        "TP, tied embedding": {"axes": (TP2,), "split": DENSE, "sizes": TIED},
        "FSDP2 x TP": {"axes": (DP2, TP2), "split": DENSE, "zero": 3},
        "EP": {**moe, "axes": (EP2,), "split": (("experts", "ep"),)},
        "EP of 4": {**moe, "axes": (EP4,), "split": (("experts", "ep"),)},
        "EP x FSDP2": {**moe, "axes": (DP2, EP2), "split": (("experts", "ep"),), "zero": 3},
        "EP x TP": {**moe, "axes": (EP2, TP2), "split": (*SPARSE, ("experts", "ep"), ("experts", "tp"))},
        "experts over tp": {**moe, "axes": (TP2,), "split": (*SPARSE, ("experts", "tp"))},
        "each expert over tp": {**moe, "axes": (TP2,), "split": (*SPARSE, ("expert_ffn", "tp"))},
        "Mixtral, experts over tp": {
            "architecture": "mixtral",
            "axes": (TP2,),
            "split": (*SPARSE, ("experts", "tp")),
            "sizes": (("num_local_experts", 4),),
        },
        "Qwen2-MoE, shared expert over tp": {
            "architecture": "qwen2_moe",
            "axes": (TP2,),
            "split": (*SPARSE, ("experts", "tp"), ("shared_ffn", "tp")),
            "sizes": SHARED,
        },
    }


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))  # of the tests, wherever this is called from
    from tests.numerics.parallel.ranks import Ranks
    from tests.numerics.parallel.sampling import sampled_alone, sampled_on_mesh
    from tests.numerics.parallel.training import Case, distances

    worlds = {size: Ranks(size) for size in (2, 4)}
    print("| case | model | axes | losses | norms | weights |\n|---|---|---|---|---|---|")
    for name, settings in cases().items():
        case = Case(**settings)
        run = worlds[prod(size for _, size in case.axes)].run
        both = [distances(run, replace(case, optimizer=optimizer)) for optimizer in ("adamw", "sgd")]
        losses, norms, _, weights = (max(each) for each in zip(*both, strict=True))
        print(
            f"| {name} | {case.architecture} | {_text(case.axes)} | {losses:.0e} | {norms:.0e} | {weights:.0e} |",
            flush=True,
        )
    print("\n| sampling | model | axes | tokens | log-probabilities |\n|---|---|---|---|---|")
    for name in REPLICAS:
        case = Case(**cases()[name])
        wanted, found = sampled_alone(case), worlds[prod(size for _, size in case.axes)].run(sampled_on_mesh, case)
        is_same = all([each.ids for each in samples] == [each.ids for each in wanted] for samples in found)
        pairs = [pair for samples in found for pair in zip(samples, wanted, strict=True)]
        apart = max(abs(a - b) for sample, other in pairs for a, b in zip(sample.logps, other.logps, strict=True))
        print(
            f"| {name} | {case.architecture} | {_text(case.axes)} | {'same' if is_same else 'differ'} | {apart:.0e} |"
        )
    for world in worlds.values():
        world.close()


def _text(axes: tuple[tuple[str, int], ...]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in axes)


if __name__ == "__main__":
    main()
