"""Models from scratch, and ordinary Hugging Face folders: written, opened, and refused with every reason at once."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rpeg.errors import ModelError
from rpeg.numerics.model import ScratchSpec, load_model, model_folder_faults, save_model, scratch_model
from rpeg.numerics.tokenizer import character_tokenizer

CPU = torch.device("cpu")
TOKENIZER = character_tokenizer("0123456789+-=;#.")
SPEC = ScratchSpec(architecture="qwen3", layers=2, hidden=32, heads=4, intermediate=80)


@pytest.fixture
def folder(tmp_path):
    save_model(scratch_model(SPEC, TOKENIZER, seed=1), TOKENIZER, tmp_path / "model")
    return tmp_path / "model"


def faults(folder):
    return [str(fault).replace(str(folder), "FOLDER") for fault in model_folder_faults(folder)]


# From scratch


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "gpt2", "gemma3_text", "mistral", "opt", "falcon"])
def test_every_matrix_has_the_standard_deviation(architecture):
    spec = ScratchSpec(architecture=architecture, layers=2, hidden=64, heads=4, intermediate=96, init_std=0.05)
    model = scratch_model(spec, TOKENIZER, seed=0)
    deviations = [parameter.std().item() for parameter in model.parameters() if parameter.ndim > 1]
    assert deviations == pytest.approx([0.05] * len(deviations), rel=0.1)
    assert model.get_input_embeddings().weight.shape == (64, 64)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert not model.training
    assert all(getattr(module, "p", 0.0) == 0.0 for module in model.modules() if isinstance(module, torch.nn.Dropout))


def test_the_quickstart_model_has_the_size_worked_out_by_hand():
    spec = ScratchSpec(architecture="qwen3", layers=2, hidden=128, heads=4, intermediate=320)
    model = scratch_model(spec, TOKENIZER, seed=0)
    layer = 4 * 128 * 128 + 3 * 128 * 320 + 2 * 128 + 2 * 32  # attention, feed-forward, norms, query and key norms
    assert sum(parameter.numel() for parameter in model.parameters()) == 64 * 128 + 2 * layer + 128
    assert model.config.max_position_embeddings == 256
    assert (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id) == (0, 1, 2)


def test_sizes_reach_the_model():
    spec = ScratchSpec(
        architecture="llama", layers=1, hidden=32, heads=4, intermediate=48, kv_heads=2, head_size=16, vocabulary=40,
        tie_embeddings=False,
    )  # fmt: skip
    shapes = {name: tuple(weight.shape) for name, weight in scratch_model(spec, TOKENIZER, 0).state_dict().items()}
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (64, 32)
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (32, 32)
    assert shapes["model.layers.0.mlp.gate_proj.weight"] == (48, 32)
    assert shapes["lm_head.weight"] == (40, 32)


def test_same_seed_same_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second, other = (scratch_model(SPEC, TOKENIZER, seed) for seed in (7, 7, 8))
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = list(zip(first.parameters(), second.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(one, same) for one, same, _ in pairs)
    assert not torch.equal(pairs[0][0], pairs[0][2])


def test_everything_that_does_not_fit_is_named_at_once():
    spec = ScratchSpec(architecture="qwen33", layers=2, hidden=130, heads=4, intermediate=8, kv_heads=3, vocabulary=5)
    with pytest.raises(ModelError) as caught:
        scratch_model(spec, TOKENIZER, seed=0)
    where = [fault.where.removeprefix("model.scratch.") for fault in caught.value.faults]
    assert where == ["architecture", "heads", "kv_heads", "vocabulary"]
    text = str(caught.value)
    assert "'qwen33' is not a causal model type of transformers" in text
    assert "did you mean qwen3" in text
    assert "hidden 130 does not divide by heads 4" in text
    assert "heads 4 does not divide by kv_heads 3" in text
    assert "vocabulary 5 is smaller than the tokenizer's 20 tokens; set it to 20 or more" in text


def test_settings_an_architecture_does_not_have_are_refused():
    spec = ScratchSpec(architecture="gpt2", layers=1, hidden=32, heads=4, intermediate=8, kv_heads=2, head_size=16)
    with pytest.raises(ModelError) as caught:
        scratch_model(spec, TOKENIZER, seed=0)
    assert [str(fault).removeprefix("model.scratch.") for fault in caught.value.faults] == [
        "kv_heads: gpt2 has no setting for kv_heads, which is always 4 there; leave it out instead of 2",
        "head_size: gpt2 has no setting for head_size, which is always 8 there; leave it out instead of 16",
    ]


def test_what_transformers_refuses_is_a_model_error():
    spec = ScratchSpec(architecture="gpt_neo", layers=3, hidden=32, heads=4, intermediate=8)
    with pytest.raises(ModelError, match=r"model.scratch: transformers cannot build it: "):
        scratch_model(spec, TOKENIZER, seed=0)


# Folders


def test_a_saved_model_loads_equal_here_and_in_transformers(folder, capfd):
    model = scratch_model(SPEC, TOKENIZER, seed=1)
    for loaded in (load_model(folder, torch.float32, CPU), AutoModelForCausalLM.from_pretrained(folder)):
        assert not loaded.training
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(folder)("1+1=").input_ids == TOKENIZER("1+1=").input_ids
    assert model_folder_faults(folder) == []


def test_loading_and_saving_print_nothing(folder, capfd):
    save_model(load_model(folder, torch.float32, CPU), TOKENIZER, folder)
    assert capfd.readouterr() == ("", "")


def test_dtype_is_as_asked(folder):
    model = load_model(folder, torch.bfloat16, CPU)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_sharded_folders_load_and_a_missing_shard_is_named(folder):
    model = scratch_model(SPEC, TOKENIZER, seed=1)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    loaded = load_model(folder, torch.float32, CPU)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    shards[0].unlink()
    with pytest.raises(ModelError, match=rf"{shards[0].name}: is missing; copy the folder again; it has {len(shards)}"):
        load_model(folder, torch.float32, CPU)


def test_a_folder_that_is_not_there(tmp_path):
    (tmp_path / "file").touch()
    remedy = "give the folder that holds config.json"
    assert faults(tmp_path / "nowhere") == [f"FOLDER: does not exist; {remedy}"]
    assert faults(tmp_path / "file") == [f"FOLDER: is a file; {remedy}"]


def test_an_empty_folder_lacks_three_things(tmp_path):
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path, torch.float32, CPU)
    assert [str(fault).replace(str(tmp_path), "FOLDER") for fault in caught.value.faults] == [
        "FOLDER/config.json: is missing; give a folder written by save_pretrained",
        "FOLDER: has no model.safetensors and no model.safetensors.index.json",
        "FOLDER: has no tokenizer file (tokenizer.json, tokenizer.model, vocab.json, vocab.txt, spiece.model); "
        "save the tokenizer with save_pretrained into the same folder",
    ]


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    remedy = "save it as safetensors; pickled weights are not read"
    what = "has no model.safetensors and no model.safetensors.index.json, only pytorch_model.bin"
    assert faults(folder) == [f"FOLDER: {what}; {remedy}"]


def test_a_file_cut_short_and_a_broken_index_are_named(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-10])
    (fault,) = faults(folder)
    assert fault.startswith("FOLDER/model.safetensors: cannot be read (")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("[]")
    (fault,) = faults(folder)
    assert fault.startswith("FOLDER/model.safetensors.index.json: is not an index of weights (TypeError")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        ("[]", "has no model_type; give a folder written by save_pretrained"),
        ("{}", "has no model_type; give a folder written by save_pretrained"),
    ],
)
def test_broken_configurations(folder, text, message):
    (folder / "config.json").write_text(text)
    assert faults(folder) == [f"FOLDER/config.json: {message}"]


def test_code_of_a_folder_is_never_run(folder):
    config = {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('run')")
    with pytest.raises(
        ModelError, match=r"'mine' is not a causal model type .*; code that comes with a model is never"
    ):
        load_model(folder, torch.float32, CPU)


def test_missing_weights_are_not_made_up(folder):
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"11 weights are not in the files, such as model.layers.2.input_layernorm"):
        load_model(folder, torch.float32, CPU)


def test_weights_of_another_shape_are_a_model_error(folder):
    config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 81}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"transformers cannot load it"):
        load_model(folder, torch.float32, CPU)
