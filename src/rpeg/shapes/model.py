"""What a language model is made of, as far as its costs go: sizes that a Hugging Face ``config.json`` states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Experts", "LatentAttention", "LinearAttention", "ModelShape", "Norm"]


class Norm(StrEnum):
    """How hidden states are normalised."""

    RMS = "rms"
    """One weight per channel (also a layer norm without biases, as in MPT)."""
    LAYER = "layer"
    """A weight and a bias per channel."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The feed-forward blocks of a mixture-of-experts layer."""

    count: int
    """Routed experts of a layer."""
    active: int
    """Routed experts that one token visits (top-k)."""
    ffn: int
    """Width of one routed expert."""
    shared_ffn: int = 0
    """Width of all shared experts together; every token visits them."""
    dense_layers: int = 0
    """Layers at the front that have an ordinary feed-forward block of the model's own width instead."""
    every: int = 1
    """Of the other layers, one in so many has experts (2 in Llama 4 Maverick); the rest are ordinary."""
    has_bias: bool = False
    """Whether the router and the experts have biases (GPT-OSS)."""
    has_correction: bool = False
    """Whether the router keeps one correction per expert (DeepSeek-V3)."""
    has_shared_gate: bool = False
    """Whether a gate weighs what the shared experts give (Qwen2-MoE)."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: keys and values are kept as one small vector per token."""

    q_rank: int | None
    """Rank of the query projection, None where queries are projected directly."""
    kv_rank: int
    """Size of the vector that is kept."""
    rope_size: int
    """Channels of a query head that carry positions; the keys of all heads share them."""
    nope_size: int
    """Channels of a query head that do not."""
    value_size: int
    """Channels of a value head."""


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Layers that keep a state of fixed size instead of keys and values (gated delta rule, state space)."""

    full_every: int
    """One layer in so many has ordinary attention; 0: none has."""
    key_heads: int
    value_heads: int
    key_size: int
    """Channels of a key head."""
    value_size: int
    """Channels of a value head."""
    convolution: int = 4
    """Tokens that the short convolution before it covers."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of one model."""

    name: str
    layers: int
    hidden: int
    """Width of the residual stream."""
    heads: int
    kv_heads: int
    """Heads of keys and values; as many as ``heads`` where they are not shared."""
    head_size: int
    """Channels of one head; its own field, not always ``hidden / heads``."""
    ffn: int
    """Width of a dense feed-forward block."""
    vocabulary: int
    is_gated: bool = True
    """Whether a feed-forward block has three matrices (SwiGLU) and not two."""
    is_tied: bool = False
    """Whether the head is the embedding."""
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    """Whether the output projection of attention has a bias."""
    has_ffn_bias: bool = False
    has_qk_norm: bool = False
    """Whether queries and keys are normalised, with one weight per channel of a head."""
    is_qk_norm_wide: bool = False
    """Whether that norm has one weight per channel of all heads together (OLMo 2, MiniMax-M2)."""
    has_attention_gate: bool = False
    """Whether a gate as wide as the queries weighs what attention gives (Qwen3-Next)."""
    has_sinks: bool = False
    """Whether every head has a learned sink (GPT-OSS)."""
    norm: Norm = Norm.RMS
    norms_per_layer: int = 2
    """2; 4 where outputs are normalised too (Gemma 2 and 3); 1 where both blocks read the same input (Falcon-7B)."""
    has_embedding_norm: bool = False
    """Whether embeddings are normalised (BLOOM)."""
    has_head_bias: bool = False
    positions: int = 0
    """Rows of a learned position embedding; 0 where positions are rotated into the heads."""
    window: int | None = None
    """Tokens that a layer with a sliding window looks back; None where every layer sees everything."""
    global_every: int = 1
    """One layer in so many sees everything, the others have the window; 0: all have it."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    linear: LinearAttention | None = None
    max_positions: int | None = None
    """Longest sequence the model was made for."""
    note: str = ""
    """What the sizes do not say of the model, or why they are only near it; empty where they are exact."""

    @property
    def expert_layers(self) -> int:
        """Layers whose feed-forward block is a mixture of experts."""
        if self.experts is None:
            return 0
        return (self.layers - self.experts.dense_layers) // self.experts.every

    @property
    def linear_layers(self) -> int:
        """Layers that keep a state of fixed size instead of keys and values."""
        if self.linear is None:
            return 0
        return self.layers - (self.layers // self.linear.full_every if self.linear.full_every else 0)

    @property
    def window_layers(self) -> int:
        """Layers that look back no further than the window."""
        if self.window is None:
            return 0
        return self.layers - (self.layers // self.global_every if self.global_every else 0)
