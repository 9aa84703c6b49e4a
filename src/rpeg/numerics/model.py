"""Causal language models: made from scratch in any Hugging Face architecture, loaded and saved as ordinary folders."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)
from transformers.utils import logging

from rpeg.errors import Fault, ModelError

__all__ = [
    "Kind",
    "ScratchSpec",
    "load_model",
    "model_folder_faults",
    "model_outline",
    "quiet",
    "save_model",
    "scratch_faults",
    "scratch_model",
]

Kind = Literal["causal", "sequence-classification"]
"""What a model is for: writing, or scoring."""

_ARCHITECTURES: Mapping[Kind, Mapping[str, object]] = {
    "causal": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "sequence-classification": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_CONFIG_NAMES = {
    "layers": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_size": ("head_dim",),
    "intermediate": ("intermediate_size", "moe_intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_positions": ("max_position_embeddings",),
    "vocabulary": ("vocab_size",),
    "tie_embeddings": ("tie_word_embeddings",),
    "init_std": ("initializer_range", "init_std"),
}
"""What architectures call the fields of `ScratchSpec`; every name an architecture has is set."""


@dataclass(frozen=True, slots=True)
class ScratchSpec:
    """The shape of a model with random weights."""

    architecture: str
    """A causal model type of transformers, such as ``qwen3``, ``llama`` or ``gpt2``."""
    layers: int
    hidden: int
    """Width of the residual stream."""
    heads: int
    intermediate: int
    """Width of the feed-forward layers (of each expert too, if there are experts)."""
    kv_heads: int | None = None
    """Key-value heads; None: as many as ``heads``."""
    head_size: int | None = None
    """None: ``hidden`` / ``heads``."""
    vocabulary: int = 64
    """Rows of the embedding; at least as many as the tokenizer has tokens."""
    max_positions: int = 256
    """Longest prompt and answer together, in tokens."""
    tie_embeddings: bool = True
    """Whether the output layer uses the embedding's weights."""
    init_std: float = 0.05
    """Standard deviation of every weight matrix. At this size 0.05 learns several times faster than the usual 0.02."""


def scratch_model(spec: ScratchSpec, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """Return a float32 model on the CPU in eval mode, without dropout, every matrix drawn from N(0, ``init_std``²).

    The same seed gives the same weights; torch's global generator is left as it was. Raises `ModelError` with
    everything that does not fit: the architecture's name, heads that do not divide, a vocabulary smaller than the
    tokenizer's.
    """
    if faults := scratch_faults(spec, len(tokenizer)):
        raise ModelError("model from scratch", faults)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            config = _scratch_config(spec, tokenizer)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
        except Exception as error:  # whatever an architecture objects to in its configuration
            what = f"transformers cannot build it: {type(error).__name__}: {error}"
            raise ModelError("model from scratch", [Fault("model.scratch", what)]) from error
    _draw_weights(model, spec.init_std, seed)
    return model.eval()


def scratch_faults(spec: ScratchSpec, num_tokens: int) -> list[Fault]:
    """Return everything that keeps ``spec`` from being built for a tokenizer of ``num_tokens`` tokens."""
    return [*_architecture_faults(spec.architecture, "causal"), *_shape_faults(spec, num_tokens)]


def load_model(path: str | Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return the causal model of a Hugging Face folder in eval mode with ``dtype`` on ``device``.

    Only safetensors are read, nothing is fetched and no code of the folder is run. Raises `ModelError` with everything
    that is missing or broken; weights that the folder lacks are never filled with random numbers.
    """
    folder = Path(path)
    if faults := model_folder_faults(folder):
        raise ModelError("model folder", faults)
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    try:
        with quiet():
            loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options)
    except Exception as error:  # whatever transformers objects to in a foreign folder
        what = f"transformers cannot load it: {type(error).__name__}: {error}"
        raise ModelError("model folder", [Fault(str(folder), what)]) from error
    model, report = cast(tuple[PreTrainedModel, Mapping[str, list[str]]], loaded)
    missing = sorted(report["missing_keys"])
    if missing:
        what = f"{len(missing)} weights are not in the files, such as {', '.join(missing[:3])}"
        raise ModelError("model folder", [Fault(str(folder), what, "save the complete model again")])
    return model.to(device).eval()  # pyright: ignore[reportArgumentType] - a decorator hides the signature


def model_outline(path: str | Path) -> PreTrainedModel:
    """Return the causal model of a complete Hugging Face folder without its weights: names and sizes of its layers."""
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet(), torch.device("meta"):
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path, **options))
    except Exception as error:  # whatever transformers objects to in a foreign folder
        what = f"transformers cannot build it: {type(error).__name__}: {error}"
        raise ModelError("model folder", [Fault(str(path), what)]) from error


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: str | Path) -> None:
    """Write an ordinary Hugging Face folder: safetensors, configuration, tokenizer."""
    # Of processes that compute together transformers lets number 0 write, which may have no such model.
    model.should_save_on_this_rank = lambda is_main_process: is_main_process  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with quiet():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    finally:
        del model.should_save_on_this_rank


def model_folder_faults(path: str | Path, kind: Kind = "causal") -> list[Fault]:
    """Return everything that keeps a folder from being loaded: in its configuration, weights and tokenizer files."""
    folder = Path(path)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        return [Fault(str(folder), what, "give the folder that holds config.json")]
    faults = [*_config_faults(folder / "config.json", kind), *_weights_faults(folder)]
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        what = f"has no tokenizer file ({', '.join(_TOKENIZER_FILES)})"
        faults.append(Fault(str(folder), what, "save the tokenizer with save_pretrained into the same folder"))
    return faults


def _config_faults(file: Path, kind: Kind) -> Iterator[Fault]:
    """Yield what is wrong with a folder's configuration."""
    if not file.is_file():
        yield Fault(str(file), "is missing", "give a folder written by save_pretrained")
        return
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        yield Fault(str(file), f"is not JSON ({error})")
        return
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(model_type, str):
        yield Fault(str(file), "has no model_type", "give a folder written by save_pretrained")
        return
    for fault in _architecture_faults(model_type, kind):
        remedy = "code that comes with a model is never run" if "auto_map" in config else fault.remedy
        yield Fault(str(file), fault.what, remedy)


def _weights_faults(folder: Path) -> Iterator[Fault]:
    """Yield what is wrong with a folder's weight files; their headers are read, which shows files cut short."""
    names = [_WEIGHTS]
    if not (folder / _WEIGHTS).is_file():
        if not (folder / _INDEX).is_file():
            pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
            what = f"has no {_WEIGHTS} and no {_INDEX}" + (f", only {', '.join(pickled)}" if pickled else "")
            yield Fault(str(folder), what, "save it as safetensors; pickled weights are not read" if pickled else "")
            return
        try:
            names = sorted(set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            yield Fault(str(folder / _INDEX), f"is not an index of weights ({type(error).__name__}: {error})")
            return
    for name in names:
        try:
            with safe_open(folder / name, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            what = f"cannot be read ({error})" if (folder / name).exists() else "is missing"
            yield Fault(str(folder / name), what, f"copy the folder again; it has {len(names)} weight files")


def _architecture_faults(architecture: str, kind: Kind) -> list[Fault]:
    """Return a fault if transformers has no model of that type for that purpose."""
    known = _ARCHITECTURES[kind]
    if architecture in CONFIG_MAPPING and architecture in known:
        return []
    near = difflib.get_close_matches(architecture, known, n=3)
    what = f"'{architecture}' is not a {kind} model type of transformers {transformers.__version__}"
    return [Fault("model.scratch.architecture", what, f"did you mean {', '.join(near)}?" if near else "")]


def _shape_faults(spec: ScratchSpec, num_tokens: int) -> Iterator[Fault]:
    """Yield the sizes that do not fit each other, the architecture or the tokenizer."""
    kv_heads = spec.kv_heads or spec.heads
    if spec.head_size is None and spec.hidden % spec.heads:
        what = f"hidden {spec.hidden} does not divide by heads {spec.heads}"
        yield Fault("model.scratch.heads", what, "choose a divisor or set head_size")
    if spec.heads % kv_heads:
        what = f"heads {spec.heads} does not divide by kv_heads {kv_heads}"
        yield Fault("model.scratch.kv_heads", what, "choose a divisor")
    if spec.vocabulary < num_tokens:
        what = f"vocabulary {spec.vocabulary} is smaller than the tokenizer's {num_tokens} tokens"
        yield Fault("model.scratch.vocabulary", what, f"set it to {num_tokens} or more")
    if spec.architecture not in CONFIG_MAPPING:
        return
    derived = {"kv_heads": spec.heads, "head_size": spec.hidden // spec.heads}
    for field, usual in derived.items():
        value = getattr(spec, field)
        if value not in (None, usual) and not _names_in(spec.architecture, field):
            what = f"{spec.architecture} has no setting for {field}, which is always {usual} there"
            yield Fault(f"model.scratch.{field}", what, f"leave it out instead of {value}")


def _names_in(architecture: str, field: str) -> list[str]:
    """Return what ``architecture`` calls a field of `ScratchSpec`; empty when it has no such setting."""
    defaults = CONFIG_MAPPING[architecture]()
    known = defaults.to_dict().keys() | defaults.attribute_map.keys()
    return [name for name in _CONFIG_NAMES[field] if name in known]


def _scratch_config(spec: ScratchSpec, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    """Return the architecture's configuration with these sizes, the tokenizer's special ids and no dropout."""
    sizes = {field: getattr(spec, field) for field in _CONFIG_NAMES}
    sizes |= {"kv_heads": spec.kv_heads or spec.heads, "head_size": spec.head_size or spec.hidden // spec.heads}
    values = {name: sizes[field] for field in sizes for name in _names_in(spec.architecture, field)}
    defaults = CONFIG_MAPPING[spec.architecture]().to_dict()
    values |= {name: 0.0 for name, value in defaults.items() if "drop" in name and isinstance(value, float)}
    values |= {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    return AutoConfig.for_model(spec.architecture, **values)


def _draw_weights(model: PreTrainedModel, std: float, seed: int) -> None:
    """Draw every matrix (embeddings included) anew; vectors (norms, biases) keep their ones and zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, std, generator=generator)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' progress bars and advice; what matters is raised as a `ModelError`."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
