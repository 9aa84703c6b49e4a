"""Head and log-probabilities in chunks against all logits at once, side by side: peak memory and time.

    python benchmarks/head_loss.py --tokens 1024 4096 --vocabulary 32000 --hidden 256

Both ways make log-probabilities and entropies of ``--tokens`` tokens from the states before the head, and the gradients
of states and head weights. Each runs in a process of its own, whose peak above what states and weights take is counted
(on a GPU: torch's own count), so the gradients are in it. Times are medians of ``--repeats`` runs, the ways in turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from rpeg.numerics.chunked_head import chunked_logprobs
from rpeg.numerics.logprobs import token_logprobs

WAYS = ("plain", "chunked")
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    """Print one line per number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--format", choices=FORMATS, default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print(f"vocabulary {args.vocabulary}, hidden {args.hidden}, {args.format} on {args.device}, {args.threads} threads")
    for tokens in args.tokens:
        runs = [{way: measured(way, tokens, args) for way in WAYS} for _ in range(args.repeats)]
        peaks = {way: statistics.median(run[way][0] for run in runs) for way in WAYS}
        times = {way: statistics.median(run[way][1] for run in runs) for way in WAYS}
        sizes = ", ".join(f"{way} {peaks[way] / 2**20:.0f} MiB {times[way]:.2f} s" for way in WAYS)
        ratios = f"peak {peaks['chunked'] / peaks['plain']:.2f}, time {times['chunked'] / times['plain']:.2f} of plain"
        print(f"{tokens:>6} tokens: {sizes}; {ratios}")


def measured(way: str, tokens: int, args: argparse.Namespace) -> tuple[int, float]:
    """Return bytes and seconds of one way in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(once, (way, tokens, args))


def once(way: str, tokens: int, args: argparse.Namespace) -> tuple[int, float]:
    """Return the peak above the inputs and the time of forward and backward pass."""
    torch.set_num_threads(args.threads)
    both(way, *inputs(8, args))  # loads kernels
    given = inputs(tokens, args)
    on_gpu = given[0].is_cuda
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")
    before_bytes = torch.cuda.memory_allocated() if on_gpu else status_bytes("VmRSS")
    start_s = time.perf_counter()
    both(way, *given)
    if on_gpu:
        torch.cuda.synchronize()
    duration_s = time.perf_counter() - start_s
    peak_bytes = torch.cuda.max_memory_allocated() if on_gpu else status_bytes("VmHWM")
    return peak_bytes - before_bytes, duration_s


def inputs(tokens: int, args: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor]:
    """Return states and head weights with gradient, and target ids."""
    torch.manual_seed(0)
    options = {"device": args.device, "dtype": FORMATS[args.format]}
    hidden_ND = torch.randn(tokens, args.hidden, **options).requires_grad_()
    weight_VD = (torch.randn(args.vocabulary, args.hidden, **options) / args.hidden**0.5).requires_grad_()
    return hidden_ND, weight_VD, torch.randint(0, args.vocabulary, (tokens,), device=args.device)


def both(way: str, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> None:
    """Run the forward and the backward pass."""
    if way == "plain":
        logps_N, _ = token_logprobs(torch.nn.functional.linear(hidden_ND, weight_VD), targets_N, 1.0)
    else:
        logps_N, _ = chunked_logprobs(hidden_ND, weight_VD, None, targets_N, 1.0)
    logps_N.mean().backward()


def status_bytes(key: str) -> int:
    """Return a number of this process that Linux keeps, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
