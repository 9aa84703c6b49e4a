"""Own sampler against `model.generate`, side by side: tokens per second with answers of many lengths.

    python benchmarks/sampler.py --rows 256 --group 8 --repeats 9

A small Qwen3 is first fitted to answers of up to about ``--longest`` tokens, so that rows end at different times as
they do in training; both then sample the same prompts, in turn. ``model.generate`` keeps ended rows in its batch and
records no log-probabilities; the sampler drops them, refills their slots and records.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rpeg.numerics.sampler import Sampler
from rpeg.numerics.samples import SamplingParams

PAD, END, FIRST_CHARACTER = 0, 1, 2


SIZES = {
    "layers": 2, "hidden": 128, "heads": 4, "vocabulary": 64, "rows": 256, "slots": 256, "group": 8,
    "longest": 30, "max-new-tokens": 48, "updates": 300, "repeats": 9, "threads": 1,
}  # fmt: skip


def main() -> None:
    """Fit, sample in turn, print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = build(args)
    fit(model, args.updates, args.longest)
    prompts = [[draw(args.vocabulary) for _ in range(random.randint(6, 10))] for _ in range(args.rows // args.group)]
    speeds: dict[str, list[float]] = {"sampler": [], "model.generate": []}
    for repeat in range(args.repeats + 1):
        for name, way in (("sampler", own), ("model.generate", theirs)):
            start_s = time.perf_counter()
            lengths = way(model, prompts, args, repeat)
            speeds[name].append(sum(lengths) / (time.perf_counter() - start_s))
    spread = f"lengths {min(lengths)}-{max(lengths)}, mean {statistics.mean(lengths):.1f}"
    print(f"{args.rows} rows, {args.slots} slots, {spread}, {args.threads} threads, {args.repeats} repeats")
    for name, (_, *values) in speeds.items():  # the first was warm-up
        median = statistics.median(values)
        print(f"{name:>15}: median {median:7.0f} tokens/s (min {min(values):.0f}, max {max(values):.0f})")
    ratios = [a / b for a, b in zip(*speeds.values(), strict=True)]
    print(f"{'ratio':>15}: median {statistics.median(ratios[1:]):.2f}")


def draw(vocabulary: int) -> int:
    """Return a character's id."""
    return random.randrange(FIRST_CHARACTER, vocabulary)


def build(args: argparse.Namespace) -> PreTrainedModel:
    """Return the small Qwen3, seeded."""
    torch.manual_seed(0)
    random.seed(0)
    config = Qwen3Config(
        vocab_size=args.vocabulary, hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, num_key_value_heads=args.heads, head_dim=args.hidden // args.heads,
        intermediate_size=args.hidden * 5 // 2, max_position_embeddings=1024, tie_word_embeddings=True,
        initializer_range=0.05, pad_token_id=PAD, eos_token_id=END,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def fit(model: PreTrainedModel, num_updates: int, longest: int) -> None:
    """Teach the model to answer with 3 to ``longest`` random characters and the end token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    for _ in range(num_updates):
        ids_BT = torch.randint(FIRST_CHARACTER, model.config.vocab_size, (32, 10 + longest))
        ends_B1 = torch.randint(12, 9 + longest, (32, 1))
        ids_BT[torch.arange(10 + longest) == ends_B1] = END
        labels_BT = ids_BT.masked_fill((torch.arange(10 + longest) > ends_B1) | (torch.arange(10 + longest) < 9), -100)
        model(input_ids=ids_BT, labels=labels_BT).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def own(model: PreTrainedModel, prompts: list[list[int]], args: argparse.Namespace, seed: int) -> list[int]:
    """Return the lengths of the sampler's answers."""
    sampler = Sampler(model, args.slots, PAD)
    seeds = range(seed * args.rows, (seed + 1) * args.rows)
    params = SamplingParams(1.0, args.max_new_tokens, (END,))
    return [len(sampled.ids) for sampled in sampler.generate(prompts, args.group, params, seeds)]


def theirs(model: PreTrainedModel, prompts: list[list[int]], args: argparse.Namespace, seed: int) -> list[int]:
    """Return the lengths of `generate`'s answers, ``slots`` rows at a time."""
    torch.manual_seed(seed)
    width = max(map(len, prompts))
    rows = [[PAD] * (width - len(prompt)) + prompt for prompt in prompts for _ in range(args.group)]
    lengths = []
    for part_BT in torch.tensor(rows).split(args.slots):
        options = {"do_sample": True, "top_k": 0, "max_new_tokens": args.max_new_tokens}
        output_BT = model.generate(input_ids=part_BT, attention_mask=(part_BT != PAD).long(), **options)
        lengths += (output_BT[:, width:] != PAD).sum(1).tolist()
    return lengths


if __name__ == "__main__":
    main()
