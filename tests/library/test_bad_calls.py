"""Wrong calls: each is refused in words that name the mistake, once.

A row of the table says which error a call must raise and what its message
must hold, in this order where dots stand between: ``"mask of shape...(2, 3)"``.
No call may write to what it was given, parameters of a module included. One
row is one line: add yours to the part it belongs to.
"""
# ruff: noqa: E501

import math
import re
from typing import NamedTuple

import numpy as np
import pytest
import torch
from layers import ListCache, Turn
from torch import nn

import attention_lib as lib
from attention_lib import reference
from attention_lib.course import corpus, figures, models, search, training

pytestmark = pytest.mark.plain


class Row(NamedTuple):
    error: type[Exception]
    words: str
    function: object
    inputs: tuple
    options: dict


TABLE = []


def wrong(error, words, function, *inputs, **options):
    TABLE.append(Row(error, words, function, inputs, options))


# --- what the calls are made of --------------------------------------------

T, V, R = TypeError, ValueError, RuntimeError


def floats(*shape):
    count = math.prod(shape)
    return torch.arange(float(count)).reshape(shape) / (count + 1)


def trues(*shape):
    return torch.ones(shape, dtype=torch.bool)


def ids(*shape):
    return torch.ones(shape, dtype=torch.long)


def array(*shape):
    return floats(*shape).double().numpy()


def meta(*shape):
    return torch.empty(shape, device="meta")


def dot(*tensors, **options):
    return lib.attend(*tensors, score=lib.dot_score, **options)


def formula(*tensors, **options):
    return kernel(*tensors, need_weights=True, **options)


def filled(layer):
    """A cache that holds three positions of two samples."""
    layer(floats(2, 3, 8), cache=(cache := ListCache()))
    return cache


kernel = lib.scaled_dot_product_attention
q, k, v = floats(2, 3, 4), floats(2, 5, 4), floats(2, 5, 6)
q4, k4, v4 = floats(2, 4, 3, 2), floats(2, 2, 5, 2), floats(2, 2, 5, 2)
x, memory = floats(2, 3, 8), floats(2, 5, 8)
layer = lib.MultiHeadAttention(8, 2)
turning = lib.MultiHeadAttention(8, 2, rotary=Turn())
mha = nn.MultiheadAttention

# fmt: off
# --- masks of every function that takes one --------------------------------

for f, inputs, shape in (
    (lib.masked_softmax, (floats(2, 3, 5),), "(2, 3, 5)"),
    (lib.score_variance, (floats(2, 3, 5),), "(2, 3, 5)"),
    (dot, (q, k, v), "(2, 3, 5)"),
    (formula, (q, k, v), "(2, 3, 5)"),
    (kernel, (q, k, v), "(2, 3, 5)"),
    (lib.blockwise_attention, (q, k, v), "(2, 3, 5)"),
    (lib.linear_attention, (q, k, v), "(2, 3, 5)"),
    (layer, (x, memory), "(2, 2, 3, 5)"),
):
    wrong(T, "mask must be a boolean...got torch.float32...mask.bool()", f, *inputs, mask=torch.ones(3, 5))
    wrong(T, "mask...got torch.float64...from_sdpa_mask", f, *inputs, mask=torch.zeros(3, 5).double())
    wrong(T, "mask...got torch.int64...padding_mask lengths", f, *inputs, mask=torch.tensor([3, 5]))
    wrong(T, "mask...got torch.uint8...mask.bool()", f, *inputs, mask=torch.ones(3, 5, dtype=torch.uint8))
    wrong(T, "mask...got ndarray", f, *inputs, mask=np.ones((3, 5), bool))
    wrong(T, "mask...got list", f, *inputs, mask=[[True] * 5] * 3)
    wrong(T, "mask...got str", f, *inputs, mask="causal")
    wrong(V, f"mask of shape (2, 5)...{shape}...from_attention_mask", f, *inputs, mask=trues(2, 5))
    wrong(V, f"mask of shape (3, 4)...{shape}", f, *inputs, mask=trues(3, 4))
    wrong(V, f"mask of shape (5, 3)...{shape}", f, *inputs, mask=trues(5, 3))
    wrong(V, f"mask of shape (3, 1, 5)...{shape}", f, *inputs, mask=trues(3, 1, 5))
    wrong(V, f"mask of shape (1, 1, 2, 3, 5)...{shape}", f, *inputs, mask=trues(1, 1, 2, 3, 5))
    wrong(V, f"mask of shape (3, 0)...{shape}", f, *inputs, mask=trues(3, 0))
    wrong(V, "mask is on meta, scores on cpu", f, *inputs, mask=meta(3, 5) > 0)
wrong(V, "(4, 3, 5)...(2, 2, 3, 5)...(B, Tq or 1, Tk)...from_mha_mask", layer, x, memory, mask=trues(4, 3, 5))
wrong(V, "differs between queries", lib.linear_attention, q, k, v, mask=trues(3, 5))
wrong(T, "scores must be a torch.Tensor, got list", lib.masked_softmax, [1.0, 2.0])
wrong(T, "scores must be a torch.Tensor, got ndarray", lib.masked_softmax, array(3), trues(3))
wrong(T, "scores must hold floating-point...int64", lib.masked_softmax, torch.tensor([1, 2]), trues(2))
wrong(T, "scores must hold floating-point...int64", lib.masked_softmax, torch.tensor([1, 2]))
wrong(IndexError, "out of range", lib.masked_softmax, floats(2, 3), dim=2)

# --- query, key and value --------------------------------------------------

for f in (dot, formula, kernel, lib.blockwise_attention, lib.linear_attention):
    wrong(T, "query must be a floating-point tensor, got ndarray", f, q.numpy(), k, v)
    wrong(T, "value must be a floating-point tensor, got list", f, q, k, [[1.0]])
    wrong(T, "key must be a floating-point tensor, got torch.int64", f, q, k.long(), v)
    wrong(T, "query must be...got torch.int64", f, q.long(), k.long(), v.long())
    wrong(T, "share one type, got torch.float32, torch.float64", f, q, k.double(), v)
    wrong(V, "on one device, got cpu, meta and cpu", f, q, k.to("meta"), v)
    wrong(V, "on one device, got cpu, cpu and meta", f, q, k, v.to("meta"))
for f in (formula, kernel, lib.blockwise_attention, lib.linear_attention):
    wrong(V, "query must have shape (..., length, width), got (4,)", f, q[0, 0], k, v)
    wrong(V, "query and key must be equally wide...(2, 5, 3)", f, q, k[..., :3], v)
    wrong(V, "key and value must be equally long...(2, 5, 4)...(2, 4, 6)", f, q, k, v[:, :4])
    wrong(V, "key and value must be equally long...(2, 1, 6)", f, q, k, v[:, :1])
    wrong(V, "axes before the last two must match...(3, 3, 4)", f, floats(3, 3, 4), k, v)
for f in (formula, kernel, lib.blockwise_attention):
    wrong(V, "key heads must divide query heads", f, floats(2, 3, 3, 2), k4, v4)
    wrong(V, "axes before...(4, 3, 2)...(2, 5, 2)", f, q4[0], k4[0], v4[0])
    wrong(V, "axes before...value (2, 4, 5, 2)", f, q4, k4, floats(2, 4, 5, 2))
    wrong(V, "axes before...query (2, 2, 5, 2), key (2, 4", f, k4, q4, q4)
    wrong(T, "bias must hold floating-point numbers, got torch.bool", f, q, k, v, bias=trues(3, 5))
    wrong(T, "bias must be a torch.Tensor, got float", f, q, k, v, bias=1.0)
    wrong(V, "bias of shape (3, 4) does not fit scores (2, 3, 5)", f, q, k, v, bias=floats(3, 4))
    wrong(V, "bias is on meta, scores on cpu", f, q, k, v, bias=meta(3, 5))
    wrong(T, "is_causal must be True or False, got 'yes'", f, q, k, v, is_causal="yes")
    wrong(T, "is_causal must be True or False, got tensor", f, q, k, v, is_causal=trues(3, 5))
wrong(T, "need_weights must be True or False, got 'no'", kernel, q, k, v, need_weights="no")
wrong(V, "need_weights=True, dropout_p=0.0", lib.blockwise_attention, q, k, v, need_weights=True)
wrong(V, "need_weights=False, dropout_p=0.1", lib.blockwise_attention, q, k, v, dropout_p=0.1)
wrong(V, "window must be at least 1, got 0", lib.blockwise_attention, q, k, v, window=0)
wrong(V, "block_size must be at least 1, got 0", lib.blockwise_attention, q, k, v, block_size=0)
wrong(T, "not callable", lib.attend, q, k, v, score="dot")
for f in (dot, formula):
    wrong(V, "between 0 and 1, but got 1.5", f, q, k, k, dropout_p=1.5)
wrong(V, "query_dim must be at least 1, got 0", lib.BilinearScore, 0, 3)
wrong(T, "hidden_dim must be an int, got 2.0", lib.AdditiveScore, 3, 3, 2.0)

# --- the layer -------------------------------------------------------------

wrong(T, "query must be a floating-point tensor, got ndarray", layer, x.numpy())
wrong(T, "query must be a floating-point tensor, got list", layer, [[[1.0] * 8]])
wrong(V, "(B, T, width), got query (3, 8)", layer, x[0])
wrong(V, "(B, T, width), got query (1, 2, 3, 8)", layer, x[None])
wrong(V, "widths must be (8, 8, 8), got query (2, 3, 7)", layer, x[..., :7])
wrong(V, "of one batch B, which comes first...(5, 2, 8)...(3, 2, 8)", layer, floats(5, 2, 8), floats(3, 2, 8))
wrong(V, "of one batch B...(1, 5, 8)", layer, x, memory[:1])
wrong(V, "key and value must be equally long", layer, x, memory, memory[:, :4])
wrong(R, "same dtype", layer, x.double())
wrong(R, "same dtype", layer, x.long())
wrong(R, "meta", layer, x, memory.to("meta"))
wrong(T, "unexpected keyword argument 'key_padding_mask'", layer, x, key_padding_mask=trues(2, 3))
wrong(V, "bias of shape (2, 3, 3) does not fit scores (2, 4, 3, 3)", lib.MultiHeadAttention(8, 4), x, bias=floats(2, 3, 3))
wrong(T, "is_causal must be True or False, got 1", layer, x, is_causal=1)
wrong(T, "need_weights must be True or False, got 'no'", layer, x, need_weights="no")
wrong(V, "positions need a layer with rotary=", layer, x, positions=torch.arange(3))
wrong(T, "positions must be a torch.Tensor, got list", turning, x, positions=[0, 1, 2])
wrong(T, "positions must hold whole numbers, got torch.float32", turning, x, positions=floats(3))
wrong(V, "positions must be those of the 3 keys...got shape (2,)", turning, x, positions=torch.arange(2))
wrong(V, "positions must be those...got shape (3, 3)", turning, x, positions=ids(3, 3))
wrong(V, "the 5 queries take the last", turning, memory, x, positions=torch.arange(3))
wrong(T, "cache must have length and update, got dict", layer, x, cache={})
wrong(T, "cache must have length and update, got tuple", layer, x, cache=(x, x))
wrong(V, "key is given beside a filled cache...pass key[:, :0]", layer, x, memory, cache=filled(layer))
wrong(V, "mask of shape (3, 3) does not fit scores (2, 2, 3, 6)", layer, x, mask=trues(3, 3), cache=filled(layer))
wrong(V, "num_heads=3 does not divide d_model=8; d_head=", lib.MultiHeadAttention, 8, 3)
wrong(V, "num_kv_heads=3 does not divide num_heads=4", lib.MultiHeadAttention, 8, 4, num_kv_heads=3)
wrong(V, "num_kv_heads=8 does not divide num_heads=4", lib.MultiHeadAttention, 8, 4, num_kv_heads=8)
wrong(V, "num_heads must be at least 1, got 0", lib.MultiHeadAttention, 8, 0)
wrong(V, "d_head must be at least 1, got -1", lib.MultiHeadAttention, 8, 2, d_head=-1)
wrong(T, "d_model must be an int, got 8.0", lib.MultiHeadAttention, 8.0, 2)
wrong(T, "num_heads must be an int, got True", lib.MultiHeadAttention, 8, True)
wrong(T, "num_heads must be an int, got '2'", lib.MultiHeadAttention, 8, "2")
wrong(T, "bias must be True or False, got 'no'", lib.MultiHeadAttention, 8, 2, bias="no")
wrong(V, "dropout must be between 0 and 1, got 1.5", lib.MultiHeadAttention, 8, 2, dropout=1.5)
wrong(T, "dropout must be a number, got '0.1'", lib.MultiHeadAttention, 8, 2, dropout="0.1")
wrong(R, "unflatten", lib.split_heads, floats(2, 3, 6), 4)
wrong(V, "gates must have shape (2,), one for each head, got (3,)", lib.head_gates(layer, torch.ones(3)).__enter__)
wrong(V, "gates must have shape (2,)...got ()", lib.head_gates(layer, torch.tensor(1.0)).__enter__)

# --- masks and layers from and for PyTorch ---------------------------------

wrong(T, "lengths must hold integers...did you pass a mask", lib.padding_mask, trues(2))
wrong(T, "lengths must hold integers, got torch.float32", lib.padding_mask, [1.0, 2.0])
wrong(V, "lengths must have shape (B,), got (1, 2)...token ids", lib.padding_mask, ids(1, 2))
wrong(V, "lengths must have shape (B,), got ()", lib.padding_mask, 3)
wrong(V, "lengths must lie between 0 and max_length=4, got [3, 5]", lib.padding_mask, [3, 5], 4)
wrong(V, "lengths must lie between 0 and max_length=3, got [3, -1]", lib.padding_mask, [3, -1])
wrong(V, "max_length must be at least 0, got -1", lib.padding_mask, [0], -1)
wrong(T, "max_length must be an int, got 3.0", lib.padding_mask, [3], 3.0)
wrong(V, "side must be 'right' or 'left', got 'top'", lib.padding_mask, [3], side="top")
wrong(T, "attention_mask must be a tensor, got ndarray", lib.from_attention_mask, array(2, 3))
wrong(V, "attention_mask must have shape (B, T), got (2, 1, 3)", lib.from_attention_mask, trues(2, 1, 3))
wrong(V, "attention_mask must hold 1 (keep)...token ids", lib.from_attention_mask, ids(2, 3) * 7)
wrong(V, "attention_mask must hold 1...additive", lib.from_attention_mask, torch.tensor([[0.0, -math.inf]]))
wrong(V, "query_length must be at least 0, got -1", lib.causal_mask, -1)
wrong(T, "query_length must be an int, got True", lib.causal_mask, True)
wrong(T, "key_length must be an int, got '3'", lib.causal_mask, 2, "3")
wrong(T, "tril", lib.causal_mask, 2, offset=0.5)
for write in (lib.to_sdpa_mask, lib.to_key_padding_mask, lib.to_mha_mask):
    wrong(T, "mask must be a boolean tensor...got torch.float32", write, torch.ones(2, 1, 3))
    wrong(T, "mask must be a boolean tensor...got ndarray", write, np.ones((2, 1, 3), bool))
    wrong(T, "dtype must be a floating-point type, got torch.int64", write, trues(2, 1, 3), dtype=torch.int64)
    wrong(T, "dtype must be a floating-point type, got 'half'", write, trues(2, 1, 3), dtype="half")
for read, name in ((lib.from_sdpa_mask, "attn_mask"), (lib.from_mha_mask, "attn_mask"), (lib.from_key_padding_mask, "key_padding_mask")):
    wrong(T, f"{name} must be a boolean or floating...got torch.int64", read, ids(2, 3))
    wrong(T, f"{name} must be a boolean or floating...got list", read, [[True]])
    for number in (-1e9, 1.0, math.inf, math.nan):  # pytorch/pytorch #21518
        wrong(V, f"{name} holds values other than 0 and -inf...bias", read, torch.tensor([[0.0, number]]))
wrong(V, "mask must have shape (B, 1, Tk)...got (2, 3)", lib.to_key_padding_mask, trues(2, 3))
wrong(V, "mask must have shape...got (2, 3, 4)", lib.to_key_padding_mask, trues(2, 3, 4))
wrong(V, "mask must have shape...got (2, 2, 1, 4)", lib.to_key_padding_mask, trues(2, 2, 1, 4))
wrong(V, "key_padding_mask must have shape (B, Tk), got (2, 1, 3)", lib.from_key_padding_mask, trues(2, 1, 3))
wrong(V, "2, 3 or 4 axes...got shape (3,)", lib.to_mha_mask, trues(3))
wrong(V, "with num_heads= for 3 and 4...num_heads=None", lib.to_mha_mask, trues(2, 3, 4))
wrong(R, "must match the existing size", lib.to_mha_mask, trues(2, 3, 3, 4), num_heads=2)
wrong(V, "(B * H, Tq, Tk) with num_heads=H, got (6, 2, 2) and num_heads=None", lib.from_mha_mask, trues(6, 2, 2))
wrong(V, "got (6, 2, 2) and num_heads=4", lib.from_mha_mask, trues(6, 2, 2), num_heads=4)
wrong(V, "num_heads must be at least 1, got 0", lib.from_mha_mask, trues(6, 2, 2), num_heads=0)
wrong(T, "module must be a torch.nn.MultiheadAttention, got Linear", lib.MultiHeadAttention.from_torch, nn.Linear(4, 4))
wrong(V, "built with add_bias_kv=True", lib.MultiHeadAttention.from_torch, mha(4, 2, add_bias_kv=True))
wrong(V, "built with add_zero_attn=True", lib.MultiHeadAttention.from_torch, mha(4, 2, add_zero_attn=True))
wrong(T, "batch_first must be True or False, got 'yes'", layer.to_torch, batch_first="yes")
for option in ({"num_kv_heads": 1}, {"d_head": 3}, {"scale": 1.0}, {"rotary": Turn()}, {"attention": lib.blockwise_attention}):
    words = f"no counterpart of {next(iter(option))}="
    wrong(V, words, lib.MultiHeadAttention(8, 2, **option).to_torch)
for kind in ("weight", "bias"):
    part = lib.MultiHeadAttention(8, 2)
    getattr(part.key_proj, kind).requires_grad_(False)
    wrong(V, f"requires_grad of the {kind} differs", part.to_torch)
wrong(T, "model must be a torch.nn.Module, got function", lib.swap_attention, dot)
wrong(V, "model holds no torch.nn.MultiheadAttention", lib.swap_attention, nn.Linear(2, 2))

# --- the oracle and the measures -------------------------------------------

wrong(T, "mask must be boolean...got float64", reference.softmax, [1.0, 2.0], [1.0, 0.0])
wrong(V, "broadcast", reference.softmax, [[1.0, 2.0]], np.ones((3, 2), bool))
wrong(T, "scores must hold real numbers, got list of", reference.softmax, ["a"])
wrong(V, "scores must not be ragged", reference.softmax, [[1.0], [1.0, 2.0]])
wrong(V, "query must have at least 2 axes, got shape (5,)", reference.attention, array(5), array(4, 5), array(4, 2))
wrong(V, "query and key must be equally wide", reference.attention, array(3, 4), array(4, 5), array(4, 2))
wrong(V, "key and value must be equally long", reference.attention, array(3, 5), array(4, 5), array(1, 2))
wrong(V, "leading axes", reference.attention, array(2, 3, 5), array(3, 4, 5), array(3, 4, 2))
wrong(V, "scale must be finite, got nan", reference.attention, array(3, 5), array(4, 5), array(4, 2), scale=math.nan)
wrong(V, "width must be at least 0, got -1", lib.dot_product_moments, -1)
wrong(V, "query_std must be at least 0", lib.dot_product_moments, 4, query_std=-1.0)
wrong(V, "key_std must be at least 0", lib.dot_product_moments, 4, key_std=math.nan)
wrong(V, "correlation must be between -1 and 1, got 1.5", lib.dot_product_moments, 4, correlation=1.5)
wrong(V, "shorter", lib.alignment_error_rate, [{(0, 1)}], [])

# --- positions, blocks, models, caches -------------------------------------

model = lib.LanguageModel(9, 8, 2, 1)
learned = lib.LanguageModel(9, 8, 2, 1, positions="learned", max_length=4)
cache = lib.KVCache()
wrong(V, "d_head must be even", lib.RotaryPositions, 5)
wrong(V, "base must be", lib.RotaryPositions, 4, base=0.0)
wrong(V, "d_model must be even", lib.SinusoidalPositions, 5)
wrong(V, "positions must lie below max_length=4", learned, ids(1, 5))
wrong(V, "learned positions need a max_length", lib.LanguageModel, 9, 8, 2, 1, positions="learned")
wrong(V, "positions must be one of", lib.LanguageModel, 9, 8, 2, 1, positions="relative")
wrong(V, "norm must be one of", lib.LanguageModel, 9, 8, 2, 1, norm="batch")
wrong(V, "activation must be one of", lib.LanguageModel, 9, 8, 2, 1, activation="tanh")
wrong(V, "num_layers must be at least 1", lib.LanguageModel, 9, 8, 2, 0)
wrong(T, "tokens must hold whole numbers, got torch.float32", model, floats(2, 3))
wrong(V, "tokens must have shape (B, T), got (3,)", model, ids(3))
wrong(T, "cache must be made by new_cache()", model, ids(2, 3), cache=cache)
wrong(V, "cache holds 2 caches for 1 blocks", model, ids(2, 3), cache=lib.LanguageModel(9, 8, 2, 2).new_cache())
wrong(V, "mask of shape (2, 3)...from_attention_mask", model, ids(2, 3), mask=trues(2, 3))
wrong(V, "max_new_tokens must be at least 0", model.generate, ids(2, 3), -1)
wrong(V, "lengths must be one for each prompt, at least 1", model.generate, ids(2, 3), 2, lengths=[3])
wrong(V, "lengths must be one for each prompt, at least 1, got [0, 3]", model.generate, ids(2, 3), 2, lengths=[0, 3])
wrong(V, "beyond max_length=4", learned.generate, ids(2, 3), 2)
wrong(V, "temperature must be", model.generate, ids(2, 3), 2, temperature=-1.0)
wrong(V, "top_k must be at least 1", model.generate, ids(2, 3), 2, temperature=1.0, top_k=0)
wrong(V, "top_p must be", model.generate, ids(2, 3), 2, temperature=1.0, top_p=1.5)
wrong(V, "key or value requires a gradient...torch.no_grad()", cache.update, floats(1, 2, 3, 4).requires_grad_(), floats(1, 2, 3, 4))
wrong(V, "key and value must have one shape", cache.update, floats(1, 2, 3, 4), floats(1, 2, 4, 4))
wrong(V, "key must have shape (B, H_kv, new, d_k), got (2, 3, 4)", cache.update, floats(2, 3, 4), floats(2, 3, 4))
wrong(V, "length must be between 0 and 0, got 1", cache.crop, 1)

# --- detectors, figures, course --------------------------------------------

tokens = {"query_tokens": ["a", "b"], "key_tokens": ["c", "d", "e"]}
wrong(T, "inputs must be a tensor", lib.future_leak, nn.Identity(), array(2, 3, 4))
wrong(V, "inputs must be real and (B, T, ...)", lib.future_leak, nn.Identity(), floats(4))
wrong(V, "with B at least 2", lib.batch_leak, nn.Identity(), floats(1, 3, 4))
wrong(V, "model must return an output", lib.future_leak, lambda x: None, x)
wrong(V, "model returns 1 outputs for 3 inputs", lib.future_leak, lambda x: x[:, -1:], x)
wrong(V, "lengths, one for each sample, or by keep", lib.padding_leak, nn.Identity(), x)
wrong(V, "nothing is changed: every token is real", lib.padding_leak, nn.Identity(), x, [3, 3])
wrong(V, "expected must be 'causal'", lib.missing, nn.Identity(), x, expected="some")
wrong(V, "nothing is tested", lib.step_leak, nn.Identity(), nn.Identity, x)
wrong(V, "weights must have shape", lib.show_attention, array(3, 2), **tokens)
wrong(V, "titles must be 2, got 1", lib.show_heads, floats(2, 2, 3), **tokens, titles=["one"])
wrong(V, "runs must have one row per seed and 2 columns", figures.plot_with_spread, None, [1, 2], [[1.0]], label="a")
wrong(V, "hidden_dim must be even", models.attention_model, lib.dot_score, hidden_dim=7, embedding_dim=4)
wrong(V, "clauses must be at least 1, got 0", corpus.sample_pairs, 2, clauses=0)
wrong(V, 'split must be "train" or "test"', corpus.sample_pairs, 2, split="dev")
wrong(T, "words must be a sequence of words, got 'the cat'", corpus.ENGLISH.encode, "the cat")
wrong(V, "numbers must lie between 0", corpus.ENGLISH.decode, [999])
wrong(V, "beam_size must be at least 1", search.beam_search, model, ids(2, 3), torch.tensor([3, 3]), beam_size=0)
wrong(V, "pairs must hold at least one pair", training.train, model, [], steps=1)


# fmt: on
# --- what is asked ---------------------------------------------------------


def parts(tree):
    """Every array and tensor in some arguments, parameters included."""
    if isinstance(tree, torch.Tensor | np.ndarray):
        yield torch.as_tensor(tree)
    elif isinstance(tree, nn.Module):
        yield from tree.state_dict().values()
    elif isinstance(tree, ListCache):
        yield from (tree.key, tree.value)
    elif isinstance(tree, dict):
        yield from parts(list(tree.values()))
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from parts(each)


@pytest.mark.parametrize("row", TABLE, ids=[row.words for row in TABLE])
def test_a_wrong_call_is_refused_in_words(row):
    given_in = (row.function, getattr(row.function, "__self__", ()))
    given_in = list(parts([*given_in, row.inputs, row.options]))
    before = [part.detach().clone() for part in given_in]
    words = ".*".join(map(re.escape, row.words.split("...")))
    with pytest.raises(row.error, match=f"(?s){words}"):
        row.function(*row.inputs, **row.options)
    for part, copy in zip(given_in, before, strict=True):
        assert part.shape == copy.shape
        assert part.is_meta or part.equal(copy) or part.isnan().any()
