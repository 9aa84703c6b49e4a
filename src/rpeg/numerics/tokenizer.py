"""Tokenizers: one id per character for models made from scratch, and those of Hugging Face folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rpeg.errors import Fault, ModelError

__all__ = ["character_tokenizer", "check_texts", "load_tokenizer", "read_tokenizer", "vocabulary_faults"]

_SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}


def character_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one id per character: 0 pad, 1 bos, 2 eos, 3 unknown, then ``characters`` in their order.

    Nothing is added when encoding, and decoding joins the characters as they are, so text survives the round trip,
    also after ``save_pretrained`` and ``AutoTokenizer.from_pretrained``. A character outside the alphabet becomes the
    unknown token, which `check_texts` refuses before a run. A repeated character counts once. Raises `ModelError` for
    an empty alphabet.
    """
    if not characters:
        fault = Fault("model.scratch.characters", "is empty", "list every character that prompts and answers have")
        raise ModelError("character tokenizer", [fault])
    tokens = [*_SPECIAL_TOKENS.values(), *dict.fromkeys(characters)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL_TOKENS["unk_token"]))
    # Any one character, line ends included.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="left", clean_up_tokenization_spaces=False, **_SPECIAL_TOKENS
    )


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a Hugging Face folder that answers are written with: it has an end token.

    Otherwise as `read_tokenizer`.
    """
    tokenizer = read_tokenizer(path)
    if tokenizer.eos_token_id is None:
        remedy = "set eos_token in tokenizer_config.json"
        raise ModelError("tokenizer", [Fault(str(path), "has no end token, so no answer could end", remedy)])
    return tokenizer


def read_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a Hugging Face folder, padding on the left; a missing pad token is the end token.

    Nothing is fetched and no code of the folder is run. Raises `ModelError` when there is no usable tokenizer.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError("tokenizer", [Fault(str(folder), "is not a folder", "give one that holds tokenizer.json")])
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever transformers meets in a foreign file
        what = f"has no tokenizer that transformers can read ({_first_line(error)})"
        fault = Fault(str(folder), what, "put tokenizer.json and tokenizer_config.json there")
        raise ModelError("tokenizer", [fault]) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def check_texts(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], where: str) -> None:
    """Raise a `ModelError` with everything in ``texts`` that the tokenizer has no token for, how often and where first.

    ``where`` says what the texts are. Tokenizers without an unknown token (byte-level ones) can write anything.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None or not texts:
        return
    found: dict[str, list[int]] = {}
    encoded = tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True)
    for number, (ids, offsets) in enumerate(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)):
        for start, stop in (span for token, span in zip(ids, offsets, strict=True) if token == unknown):
            found.setdefault(texts[number][start:stop], []).append(number)
    if found:
        raise ModelError("texts the tokenizer cannot write", [_unknown(where, *item) for item in sorted(found.items())])


def vocabulary_faults(own: PreTrainedTokenizerFast, other: PreTrainedTokenizerFast, where: str) -> list[Fault]:
    """Return a fault if a token id means something else to another tokenizer, which therefore cannot read our tokens.

    ``where`` says whose tokenizer the other is. Tokens that only the other has do not matter: we never write them.
    """
    mine = {number: token for token, number in own.get_vocab().items()}
    theirs = {number: token for token, number in other.get_vocab().items()}
    differing = [number for number, token in sorted(mine.items()) if theirs.get(number) != token]
    if not differing:
        return []
    first = differing[0]
    what = f"has another vocabulary: {len(differing)} of {len(mine)} token ids differ, first {first}, which is "
    what += f"{mine[first]!r} to the policy and {theirs.get(first)!r} there"
    return [Fault(where, what, "use a model of the policy's family, with the same tokenizer")]


def _unknown(where: str, text: str, numbers: list[int]) -> Fault:
    what = f"{text!r} is not in the vocabulary ({len(numbers)} times, first in text {numbers[0]})"
    return Fault(where, what, "add it to model.scratch.characters or take it out of the texts")


def _first_line(error: Exception) -> str:
    """Return the type and the first line of an error whose full text is many lines of advice."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
