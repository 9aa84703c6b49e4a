"""The weights of Qwen2.5-7B and of a toy model, for tests of layouts."""

from __future__ import annotations

from rpeg.shapes.tensor import End, Tensor

_L, _H, _KV, _D, _F, _V = 28, 28, 4, 3584, 18944, 152064
_Q = (("heads", _H), ("head_size", 128))
_K = (("kv_heads", _KV), ("head_size", 128))
_LAYERS = ("layers", _L)
_HIDDEN = ("hidden", _D)

QWEN_7B = (
    Tensor("q", (_LAYERS, *_Q, _HIDDEN)),
    Tensor("q.bias", (_LAYERS, *_Q)),
    Tensor("k", (_LAYERS, *_K, _HIDDEN)),
    Tensor("k.bias", (_LAYERS, *_K)),
    Tensor("v", (_LAYERS, *_K, _HIDDEN)),
    Tensor("v.bias", (_LAYERS, *_K)),
    Tensor("o", (_LAYERS, _HIDDEN, *_Q)),
    Tensor("gate", (_LAYERS, ("ffn", _F), _HIDDEN)),
    Tensor("up", (_LAYERS, ("ffn", _F), _HIDDEN)),
    Tensor("down", (_LAYERS, _HIDDEN, ("ffn", _F))),
    Tensor("norm1", (_LAYERS, _HIDDEN)),
    Tensor("norm2", (_LAYERS, _HIDDEN)),
    Tensor("embedding", (("vocabulary", _V), _HIDDEN), End.FIRST),
    Tensor("norm", (_HIDDEN,), End.LAST),
    Tensor("head", (("vocabulary", _V), _HIDDEN), End.LAST),
)
"""7,615,616,512 parameters."""

TOY = (
    Tensor("w", (("layers", 4), ("heads", 4), ("hidden", 6))),
    Tensor("k", (("layers", 4), ("kv_heads", 2), ("hidden", 6))),
    Tensor("embedding", (("vocabulary", 8), ("hidden", 6)), End.FIRST),
    Tensor("head", (("vocabulary", 8), ("hidden", 6)), End.LAST),
    Tensor("scale", (("hidden", 6),)),
)
