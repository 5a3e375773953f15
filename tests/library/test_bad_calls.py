"""Wrong calls of every public function and class, argument by argument.

A good call of each is changed in one argument at a time, in every way that
its role can be got wrong. Each change has to end in a TypeError or a
ValueError that names the argument, with all inputs as they were: no crash
further down, no silent broadcast, no NaN.
"""

from __future__ import annotations

import inspect
import math
import random
import re
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

import attention_lib as lib
from attention_lib import plotting, reference, seq2seq
from attention_lib.course import corpus, figures

pytestmark = pytest.mark.plain
mpl.use("agg")


# Good calls ------------------------------------------------------------


def floats(*shape):
    count = math.prod(shape)
    return torch.arange(float(count)).reshape(shape) / (count + 1)


def array(*shape):
    return floats(*shape).double().numpy()


def trues(*shape):
    return torch.ones(shape, dtype=torch.bool)


def ids(*shape):
    return torch.arange(math.prod(shape)).reshape(shape) % 5 + 1


def memory(batch=2, length=3, width=6):
    return seq2seq.Memory(
        floats(batch, length, width),
        trues(batch, 1, length),
        floats(batch, width),
    )


def model(x):
    return x.cumsum(1)


PAIRS = corpus.sample_pairs(3)
LAYER = lib.MultiHeadAttention(8, 2)
ENCODER = seq2seq.Encoder(9, 4, 6)
DECODER = seq2seq.FixedVectorDecoder(9, 4, 6)
LOOKER = lib.AttentionDecoder(9, 4, 6, score=lib.dot_score)
READER = lib.TransformerEncoder(9, 8, 2, 1)
WRITER = lib.TransformerDecoder(9, 6, 2, 1)
PREDICTOR = lib.LanguageModel(9, 8, 2, 1)
TRANSLATOR = seq2seq.fixed_vector_model(6, 4)
LOOKING = lib.attention_model(lib.dot_score, hidden_dim=6, embedding_dim=4)
TOKENS = {"query_tokens": ["a", "b"], "key_tokens": ["c", "d", "e"]}
STATIONS = ["query", "key", "value", "scores", "weights"]
STATIONS += ["context", "merged", "output"]
SHAPES = dict.fromkeys(STATIONS, (1, 2))
SHAPES |= {f"{name} heads": (1, 2) for name in STATIONS[:3]}


def gate(layer, gates):
    with lib.head_gates(layer, gates):
        pass


def fresh_update(key, value):
    return lib.KVCache().update(key, value)


def batches(**arguments):
    return list(corpus.iterate_batches(**arguments))


class Wrong(NamedTuple):
    """One way to get an argument wrong: what it is called, what is passed."""

    label: str
    value: object


def wrongs(**values):
    return [Wrong(name.replace("_", " "), v) for name, v in values.items()]


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


# Roles -----------------------------------------------------------------

NO_TENSOR = wrongs(
    nothing=None, number=1.5, string="x", list=[[1.0, 2.0]], array=array(2, 3)
)
TENSOR = [
    *NO_TENSOR,
    *wrongs(
        whole_numbers=torch.ones(2, 3, 4, dtype=torch.long),
        booleans=trues(2, 3, 4),
        complex_numbers=torch.ones(2, 3, 4, dtype=torch.complex64),
    ),
]
NUMBERS = wrongs(
    nothing=None,
    string="x",
    strings=["a", "b"],
    complex_numbers=np.ones((2, 3)) * 1j,
    booleans=np.ones((2, 3), dtype=bool),
    ragged=[[1.0], [1.0, 2.0]],
    objects=[None, 1.0],
)
MASK = wrongs(
    zeros_and_ones=torch.ones(3, 4),
    additive=torch.zeros(3, 4).double(),
    whole_numbers=torch.ones(3, 4, dtype=torch.long),
    lengths=torch.tensor([3, 4]),
    bytes=torch.ones(3, 4, dtype=torch.uint8),
    list=[[True] * 4] * 3,
    array=np.ones((3, 4), dtype=bool),
    string="causal",
    flag=True,
)
# No name of the function: the mask may be anything but what fits (2, 3, 4).
MISFIT = wrongs(
    keys_too_few=trues(3, 3),
    keys_too_many=trues(3, 5),
    queries_differ=trues(2, 4),
    transposed=trues(4, 3),
    batch_differs=trues(5, 3, 4),
    one_axis_more=trues(1, 2, 3, 4),
    empty=trues(3, 0),
    on_another_device=meta(3, 4, dtype=torch.bool),
)
SIZE = wrongs(
    zero=0,
    negative=-3,
    fraction=2.0,
    nan=math.nan,
    string="8",
    flag=True,
    tuple=(8,),
)
COUNT = [wrong for wrong in SIZE if wrong.label != "zero"]
PROBABILITY = wrongs(
    negative=-0.1,
    above_one=1.5,
    percent=10,
    nan=math.nan,
    infinite=math.inf,
    string="0.1",
    list=[0.1],
    flag=True,
)
NUMBER = wrongs(nan=math.nan, infinite=math.inf, string="1", list=[1.0])
POSITIVE = [*NUMBER, Wrong("negative", -1.0)]
FLAG = wrongs(mask=trues(3, 4), string="yes", number=1, nothing=None)
CHOICE = wrongs(unknown="other", nothing=None, number=3, empty="")
CALLABLE = wrongs(nothing=None, name="dot", tensor=floats(2, 3))
WHOLE = wrongs(
    nothing=None,
    fractions=torch.ones(2, 3),
    booleans=trues(2, 3),
    complex_numbers=torch.ones(2, 3, dtype=torch.complex64),
    list=[[1, 2, 3], [1, 2, 3]],
    string="12",
)
IDS = [
    *WHOLE,
    *wrongs(
        negative=torch.tensor([[1, -1, 2], [1, 2, 3]]),
        beyond_the_vocabulary=torch.tensor([[1, 2, 99], [1, 2, 3]]),
        one_axis=torch.tensor([1, 2]),
        three_axes=torch.ones(2, 3, 1, dtype=torch.long),
    ),
]
STEP = [
    *WHOLE,
    *wrongs(
        negative=torch.tensor([1, -1]),
        beyond_the_vocabulary=torch.tensor([1, 99]),
        two_axes=torch.tensor([[1], [2]]),
    ),
]
LENGTHS = wrongs(
    nothing=None,
    number=3,
    fractions=torch.tensor([1.0, 2.0]),
    list_of_fractions=[1.0, 2.0],
    booleans=torch.tensor([True, False]),
    complex_numbers=torch.ones(2, dtype=torch.complex64),
    negative=torch.tensor([-1, 2]),
    beyond_the_longest=torch.tensor([1, 9]),
    two_axes=torch.tensor([[1, 2]]),
    string="12",
)
OWN_LENGTHS = [
    *LENGTHS,
    *wrongs(too_few=torch.tensor([2]), too_many=torch.tensor([1, 2, 2])),
]
TEXT = wrongs(nothing=None, number=3, list=["the", "cat"], bytes=b"cat")
WORDS = wrongs(nothing=None, number=3, one_string="the cat", numbers=[1, 2])
PAIR_LIST = wrongs(nothing=None, one=PAIRS[0], strings=["the cat"], number=2)
DTYPE = wrongs(name="float32", whole=torch.long, type=int)
MODULE = wrongs(nothing=None, name="encoder", function=len)


def tensor(*others, **more):
    """Roles of a tensor of features, with some wrong shapes of its own."""
    return [*TENSOR, *others, *wrongs(**more)]


# The table -------------------------------------------------------------

TABLE = {}


def call(function, good, *, name=None, **roles):
    """Add a good call and, for each argument, what it must refuse."""
    if name is None:
        name = function.__qualname__
        if function.__module__ == "attention_lib.reference":
            name = f"reference.{name}"
    TABLE[name] = (function, good, roles)


def weights_of(function, **more):
    call(
        function,
        {"weights": floats(2, 3).softmax(-1)},
        weights=tensor(scalar=torch.tensor(1.0)),
        **more,
    )


call(
    reference.softmax,
    {"scores": array(3, 4), "mask": np.ones((3, 4), bool), "axis": -1},
    scores=NUMBERS,
    mask=[w for w in MASK if w.label not in ("list", "array", "flag")]
    + wrongs(
        misfit=np.ones((3, 3), bool), one_axis_more=np.ones((1, 3, 4), bool)
    )[:1],
)
call(
    reference.attention,
    {
        "query": array(3, 5),
        "key": array(4, 5),
        "value": array(4, 2),
        "mask": np.ones((3, 4), bool),
        "scale": 1.0,
    },
    query=[*NUMBERS, *wrongs(vector=array(5), width_differs=array(3, 4))],
    key=[*NUMBERS, *wrongs(vector=array(5), width_differs=array(4, 6))],
    value=[
        *NUMBERS,
        *wrongs(
            vector=array(4),
            length_differs=array(5, 2),
            one_for_all=array(1, 2),
        ),
    ],
    mask=wrongs(
        zeros_and_ones=np.ones((3, 4)),
        keys_too_few=np.ones((3, 3), bool),
        transposed=np.ones((4, 3), bool),
        string="causal",
    ),
    scale=NUMBER,
)
call(
    lib.masked_softmax,
    {"scores": floats(2, 3, 4), "mask": trues(3, 4), "dim": -1},
    scores=TENSOR,
    mask=[*MASK, *MISFIT],
    dim=wrongs(
        beyond=3, before=-4, fraction=1.0, string="-1", nothing=None, flag=True
    ),
)
call(
    lib.attend,
    {
        "query": floats(2, 3, 5),
        "key": floats(2, 4, 5),
        "value": floats(2, 4, 6),
        "score": lib.dot_score,
        "mask": trues(3, 4),
        "dropout_p": 0.0,
    },
    query=tensor(
        vector=floats(5),
        batch_differs=floats(3, 3, 5),
        width_differs=floats(2, 3, 4),
        other_precision=floats(2, 3, 5).double(),
        on_another_device=meta(2, 3, 5),
    ),
    key=tensor(
        vector=floats(5),
        batch_differs=floats(3, 4, 5),
        width_differs=floats(2, 4, 6),
        length_differs=floats(2, 5, 5),
        other_precision=floats(2, 4, 5).half(),
        on_another_device=meta(2, 4, 5),
    ),
    value=tensor(
        vector=floats(6),
        length_differs=floats(2, 3, 6),
        one_for_all=floats(2, 1, 6),
        batch_differs=floats(5, 4, 6),
        other_precision=floats(2, 4, 6).double(),
        on_another_device=meta(2, 4, 6),
    ),
    score=[
        *CALLABLE,
        *wrongs(
            returning_no_scores=lambda q, k: q,
            returning_nothing=lambda q, k: None,
            returning_one_number=lambda q, k: q.sum(),
            transposing=lambda q, k: k @ q.mT,
        ),
    ],
    mask=[*MASK, *MISFIT],
    dropout_p=PROBABILITY,
)
for function in (lib.dot_score, lib.scaled_dot_score):
    call(
        function,
        {"query": floats(2, 3, 5), "key": floats(2, 4, 5)},
        query=tensor(
            vector=floats(5),
            width_differs=floats(2, 3, 4),
            batch_differs=floats(3, 3, 5),
            on_another_device=meta(2, 3, 5),
        ),
        key=tensor(
            vector=floats(5),
            width_differs=floats(2, 4, 1),
            batch_differs=floats(5, 4, 5),
            on_another_device=meta(2, 4, 5),
        ),
    )
call(
    lib.scaled_dot_score,
    {"query": floats(2, 3, 5), "key": floats(2, 4, 5), "scale": 1.0},
    name="scaled_dot_score with a scale",
    scale=[
        *NUMBER,
        *wrongs(
            flag=True,
            enlarging=torch.ones(7, 1, 1, 1),
            misfit=torch.ones(4, 1, 1),
        ),
    ],
)
call(
    lib.BilinearScore,
    {"query_dim": 5, "key_dim": 6},
    query_dim=SIZE,
    key_dim=SIZE,
)
call(
    lib.AdditiveScore,
    {"query_dim": 5, "key_dim": 6, "hidden_dim": 7},
    query_dim=SIZE,
    key_dim=SIZE,
    hidden_dim=SIZE,
)
for score in (lib.BilinearScore(5, 6), lib.AdditiveScore(5, 6, 7)):
    call(
        score,
        {"query": floats(2, 3, 5), "key": floats(2, 4, 6)},
        name=f"{type(score).__name__}.forward",
        query=tensor(
            vector=floats(5),
            width_differs=floats(2, 3, 6),
            batch_differs=floats(3, 3, 5),
            on_another_device=meta(2, 3, 5),
        ),
        key=tensor(
            vector=floats(6),
            width_differs=floats(2, 4, 5),
            batch_differs=floats(3, 4, 6),
            on_another_device=meta(2, 4, 6),
        ),
    )
call(
    lib.dot_product_moments,
    {
        "width": 4,
        "query_mean": 0.0,
        "query_std": 1.0,
        "key_mean": 0.0,
        "key_std": 1.0,
        "correlation": 0.0,
    },
    width=COUNT,
    query_mean=NUMBER,
    query_std=POSITIVE,
    key_mean=NUMBER,
    key_std=POSITIVE,
    correlation=[*NUMBER, *wrongs(above_one=1.1, below_minus_one=-2)],
)
for function in (
    *(lib.softmax_jacobian, lib.softmax_jacobian_norm),
    *(lib.attention_entropy, lib.largest_weight),
):
    weights_of(function)
call(
    lib.score_variance,
    {"scores": floats(2, 3, 4), "mask": trues(3, 4)},
    scores=tensor(scalar=torch.tensor(1.0)),
    mask=[*MASK, *MISFIT],
)
call(
    lib.score_variance,
    {"scores": floats(2, 3, 4)},
    name="score_variance without a mask",
    scores=tensor(scalar=torch.tensor(1.0)),
)
call(
    lib.padding_mask,
    {"lengths": torch.tensor([2, 3]), "max_length": 4, "side": "right"},
    lengths=LENGTHS,
    max_length=[wrong for wrong in COUNT if wrong.value is not None]
    + wrongs(shorter_than_a_length=2),
    side=CHOICE,
)
call(
    lib.causal_mask,
    {"query_length": 2, "key_length": 3, "offset": 0},
    query_length=COUNT,
    key_length=COUNT,
    offset=wrongs(fraction=0.5, string="0", flag=True, nan=math.nan),
)
call(
    lib.to_sdpa_mask,
    {"mask": trues(3, 4), "dtype": torch.float32},
    mask=MASK,
    dtype=DTYPE,
)
call(
    lib.from_sdpa_mask,
    {"attn_mask": torch.zeros(3, 4)},
    attn_mask=[
        *NO_TENSOR,
        *wrongs(
            whole_numbers=torch.ones(3, 4, dtype=torch.long),
            zeros_and_ones=torch.ones(3, 4),
            finite_fill=torch.full((3, 4), -1e9),
            nan=torch.full((3, 4), math.nan),
            complex_numbers=torch.zeros(3, 4, dtype=torch.complex64),
        ),
    ],
)
call(
    lib.to_key_padding_mask,
    {"mask": trues(2, 1, 4), "dtype": torch.float32},
    mask=[
        *MASK,
        *wrongs(
            causal=trues(3, 4),
            row_for_each_query=trues(2, 3, 4),
            vector=trues(4),
            mask_for_each_head=trues(2, 3, 1, 4),
        ),
    ],
    dtype=DTYPE,
)
call(
    lib.from_key_padding_mask,
    {"key_padding_mask": trues(2, 4)},
    key_padding_mask=[
        *NO_TENSOR,
        *wrongs(
            vector=trues(4),
            three_axes=trues(2, 1, 4),
            whole_numbers=torch.ones(2, 4, dtype=torch.long),
            zeros_and_ones=torch.ones(2, 4),
        ),
    ],
)
call(
    lib.to_mha_mask,
    {
        "mask": trues(2, 1, 4),
        "num_heads": 3,
        "query_length": 5,
        "dtype": torch.float32,
    },
    mask=[
        *MASK,
        *wrongs(
            vector=trues(4),
            five_axes=trues(1, 1, 1, 1, 4),
            heads_differ=trues(2, 2, 1, 4),
            queries_differ=trues(2, 3, 4),
        ),
    ],
    num_heads=[*SIZE, Wrong("missing", None)],
    query_length=[w for w in COUNT if w.value is not None],
    dtype=DTYPE,
)
call(
    lib.from_mha_mask,
    {"attn_mask": trues(6, 5, 4), "num_heads": 3},
    attn_mask=[
        *NO_TENSOR,
        *wrongs(
            vector=trues(4),
            four_axes=trues(2, 3, 5, 4),
            whole_numbers=torch.ones(6, 5, 4, dtype=torch.long),
            heads_do_not_divide=trues(7, 5, 4),
        ),
    ],
    num_heads=[*SIZE, *wrongs(missing=None, not_dividing=4)],
)
for need in (True, False):
    call(
        lib.scaled_dot_product_attention,
        {
            "query": floats(2, 3, 5),
            "key": floats(2, 4, 5),
            "value": floats(2, 4, 6),
            "mask": trues(3, 4),
            "bias": floats(3, 4),
            "is_causal": False,
            "scale": 1.0,
            "dropout_p": 0.0,
            "need_weights": need,
        },
        name="scaled_dot_product_attention, "
        + ("explicit" if need else "fused"),
        query=tensor(
            vector=floats(5),
            width_differs=floats(2, 3, 4),
            batch_differs=floats(3, 3, 5),
            other_precision=floats(2, 3, 5).double(),
            on_another_device=meta(2, 3, 5),
        ),
        key=tensor(
            vector=floats(5),
            width_differs=floats(2, 4, 6),
            length_differs=floats(2, 5, 5),
            batch_differs=floats(3, 4, 5),
            other_precision=floats(2, 4, 5).half(),
            on_another_device=meta(2, 4, 5),
        ),
        value=tensor(
            vector=floats(6),
            length_differs=floats(2, 3, 6),
            one_for_all=floats(2, 1, 6),
            batch_differs=floats(5, 4, 6),
            other_precision=floats(2, 4, 6).double(),
            on_another_device=meta(2, 4, 6),
        ),
        mask=[*MASK, *MISFIT],
        bias=wrongs(
            a_mask=trues(3, 4),
            whole_numbers=torch.ones(3, 4, dtype=torch.long),
            list=[[0.0] * 4] * 3,
            array=array(3, 4),
            number=1.0,
            keys_too_few=floats(3, 3),
            transposed=floats(4, 3),
            one_axis_more=floats(1, 2, 3, 4),
            on_another_device=meta(3, 4),
        ),
        is_causal=FLAG,
        scale=[*NUMBER, Wrong("flag", True)],
        dropout_p=PROBABILITY,
        need_weights=FLAG,
    )
QUERIES = tensor(
    vector=floats(5),
    width_differs=floats(2, 3, 4),
    batch_differs=floats(3, 3, 5),
    other_precision=floats(2, 3, 5).double(),
)
KEYS = tensor(
    vector=floats(5),
    width_differs=floats(2, 4, 6),
    length_differs=floats(2, 5, 5),
    batch_differs=floats(3, 4, 5),
    on_another_device=meta(2, 4, 5),
)
VALUES = tensor(
    vector=floats(6),
    one_for_all=floats(2, 1, 6),
    batch_differs=floats(5, 4, 6),
    on_another_device=meta(2, 4, 6),
)
TRIPLE = {
    "query": floats(2, 3, 5),
    "key": floats(2, 4, 5),
    "value": floats(2, 4, 6),
}
call(
    lib.blockwise_attention,
    TRIPLE | {"mask": trues(3, 4), "window": 2, "scale": 1.0},
    query=QUERIES,
    key=KEYS,
    value=VALUES,
    mask=[*MASK, *MISFIT],
    is_causal=FLAG,
    window=SIZE,
    scale=NUMBER,
    block_size=SIZE,
)
call(
    lib.linear_attention,
    TRIPLE | {"mask": trues(1, 4)},
    query=QUERIES,
    key=KEYS,
    value=VALUES,
    mask=[*MASK, *MISFIT, Wrong("differs between queries", trues(3, 4))],
    is_causal=FLAG,
    chunk_size=SIZE,
)
call(
    lib.sliding_window_mask,
    {"query_length": 3, "key_length": 4, "window": 2, "offset": 1},
    query_length=COUNT,
    key_length=COUNT,
    window=SIZE,
    offset=wrongs(fraction=0.5, string="0", flag=True),
)
call(
    lib.block_sparse_mask,
    {
        "layout": trues(2, 3),
        "block_size": 2,
        "query_length": 4,
        "key_length": 5,
    },
    layout=[*MASK, *wrongs(nothing=None, vector=trues(3))],
    block_size=SIZE,
    query_length=[*SIZE, Wrong("more than the blocks hold", 9)],
    key_length=[*SIZE, Wrong("more than the blocks hold", 9)],
)
call(
    fresh_update,
    {"key": floats(1, 2, 3, 4), "value": floats(1, 2, 3, 5)},
    name="KVCache.update",
    key=tensor(
        three_axes=floats(2, 3, 4),
        length_differs=floats(1, 2, 4, 4),
        with_a_gradient=floats(1, 2, 3, 4).requires_grad_(),
    ),
    value=tensor(
        three_axes=floats(2, 3, 5),
        heads_differ=floats(1, 1, 3, 5),
        with_a_gradient=floats(1, 2, 3, 5).requires_grad_(),
    ),
)
INPUTS = [
    *NO_TENSOR,
    *wrongs(
        booleans=trues(2, 3),
        complex_numbers=torch.ones(2, 3, dtype=torch.complex64),
        vector=floats(5),
        no_sample=floats(0, 3, 2),
        no_position=floats(2, 0, 2),
    ),
]
EXAMINED = wrongs(
    nothing=None,
    returning_nothing=lambda x: None,
    returning_a_list=lambda x: [],
    returning_a_number=lambda x: x.sum(),
    returning_other_samples=lambda x: x[:1],
    random=lambda x: x + torch.rand(()),
)
SEED = wrongs(fraction=0.5, string="0", nothing=None, flag=True)
DETECTORS = {
    lib.influence: {"method": CHOICE},
    lib.future_leak: {
        "method": CHOICE,
        "offset": wrongs(fraction=0.5, string="0", nothing=None),
        "tolerance": POSITIVE,
    },
    lib.padding_leak: {
        "lengths": OWN_LENGTHS,
        "rows": CHOICE,
        "tolerance": POSITIVE,
    },
    lib.batch_leak: {"tolerance": POSITIVE},
    lib.order_leak: {
        "lengths": [w for w in OWN_LENGTHS if w.value is not None],
        "tolerance": POSITIVE,
    },
}
for function, roles in DETECTORS.items():
    good = {"model": model, "inputs": floats(2, 3, 4)}
    if function is lib.padding_leak:
        good["lengths"] = [2, 3]
    call(function, good, model=EXAMINED, inputs=INPUTS, seed=SEED, **roles)
TABLE["batch_leak"][2]["inputs"] = [*INPUTS, Wrong("alone", floats(1, 3, 4))]
call(
    lib.split_heads,
    {"features": floats(2, 3, 6), "num_heads": 3},
    features=tensor(vector=floats(6), not_dividing=floats(2, 3, 5)),
    num_heads=[*SIZE, Wrong("not dividing", 4)],
)
call(
    lib.merge_heads,
    {"heads": floats(2, 3, 4, 5)},
    heads=tensor(one_head=floats(4, 5)),
)
call(
    lib.MultiHeadAttention,
    {
        "d_model": 8,
        "num_heads": 4,
        "num_kv_heads": 2,
        "kdim": 5,
        "vdim": 6,
        "bias": True,
        "dropout": 0.0,
    },
    d_model=[*SIZE, Wrong("not divisible", 10)],
    num_heads=[*SIZE, Wrong("not dividing", 3)],
    num_kv_heads=[*SIZE, *wrongs(not_dividing=3, more_than_heads=8)],
    kdim=SIZE,
    vdim=SIZE,
    bias=FLAG,
    dropout=PROBABILITY,
)
call(
    LAYER,
    {
        "query": floats(2, 3, 8),
        "key": floats(2, 4, 8),
        "value": floats(2, 4, 8),
        "mask": trues(3, 4),
    },
    name="MultiHeadAttention.forward",
    query=tensor(
        two_axes=floats(3, 8),
        four_axes=floats(1, 2, 3, 8),
        width_differs=floats(2, 3, 7),
        batch_differs=floats(3, 3, 8),
        batch_of_one=floats(1, 3, 8),
        other_precision=floats(2, 3, 8).double(),
        on_another_device=meta(2, 3, 8),
    ),
    key=tensor(
        two_axes=floats(4, 8),
        width_differs=floats(2, 4, 7),
        batch_differs=floats(3, 4, 8),
        length_differs=floats(2, 5, 8),
        other_precision=floats(2, 4, 8).half(),
        on_another_device=meta(2, 4, 8),
    ),
    value=tensor(
        two_axes=floats(4, 8),
        width_differs=floats(2, 4, 9),
        length_differs=floats(2, 1, 8),
        other_precision=floats(2, 4, 8).double(),
        on_another_device=meta(2, 4, 8),
    )[1:],
    mask=[
        *MASK,
        *wrongs(
            vector=trues(4),
            keys_too_few=trues(3, 3),
            transposed=trues(4, 3),
            one_row_for_all=trues(1, 4),
            padding_without_its_axis=trues(2, 4),
            made_for_torch=trues(4, 3, 4),
            heads_differ=trues(2, 3, 3, 4),
            five_axes=trues(1, 1, 1, 3, 4),
            on_another_device=meta(3, 4, dtype=torch.bool),
        ),
    ],
    is_causal=FLAG,
    need_weights=FLAG,
    cache=wrongs(dictionary={}, tuple=(floats(1), floats(1)), flag=True),
)
call(
    lib.MultiHeadAttention.from_torch,
    {"module": nn.MultiheadAttention(8, 2)},
    name="MultiHeadAttention.from_torch",
    module=[
        *MODULE,
        *wrongs(
            another_module=nn.Linear(8, 8),
            the_class=nn.MultiheadAttention,
            with_bias_kv=nn.MultiheadAttention(8, 2, add_bias_kv=True),
            with_zero_attn=nn.MultiheadAttention(8, 2, add_zero_attn=True),
        ),
    ],
)
call(
    LAYER.to_torch,
    {"batch_first": True},
    name="MultiHeadAttention.to_torch",
    batch_first=FLAG,
)
call(
    gate,
    {"layer": LAYER, "gates": torch.ones(2)},
    name="head_gates",
    layer=wrongs(
        nothing=None, of_torch=nn.MultiheadAttention(8, 2), name="layer"
    ),
    gates=tensor(
        too_few=torch.ones(1), too_many=torch.ones(3), matrix=torch.ones(2, 1)
    ),
)
call(
    lib.show_heads,
    {
        "weights": floats(2, 2, 3),
        **TOKENS,
        "columns": 2,
        "titles": ["one", "two"],
    },
    weights=[
        *NO_TENSOR,
        *wrongs(matrix=floats(2, 3), four_axes=floats(1, 2, 2, 3)),
    ],
    query_tokens=wrongs(nothing=None, number=2, too_few=["a"], numbers=[1, 2]),
    key_tokens=wrongs(nothing=None, number=3, too_many=list("cdef")),
    columns=SIZE,
    titles=wrongs(too_few=["one"], too_many=list("abc")),
)
call(
    lib.show_shapes,
    {"shapes": SHAPES},
    shapes=wrongs(
        nothing=None,
        list=list(SHAPES.items()),
        empty={},
        one_missing={k: v for k, v in SHAPES.items() if k != "key"},
        one_unknown=SHAPES | {"gate": (1,)},
        no_axes=SHAPES | {"key": 3},
    ),
)
for function, more in (
    (
        lib.show_attention,
        {"vmax": wrongs(nan=math.nan, zero=0.0, negative=-1.0, string="1")},
    ),
    (
        lib.show_links,
        {"highlight": wrongs(beyond=2, negative=-1, fraction=0.5, name="a")},
    ),
):
    call(
        function,
        {"weights": array(2, 3), **TOKENS},
        weights=[
            *(w for w in NUMBERS if w.label != "booleans"),
            *wrongs(
                vector=array(3),
                with_heads=array(4, 2, 3),
                with_batch_and_heads=array(1, 4, 2, 3),
                transposed=array(3, 2),
            ),
        ],
        query_tokens=wrongs(nothing=None, number=2, too_few=["a"]),
        key_tokens=wrongs(nothing=None, number=3, too_many=list("cdef")),
        **more,
    )
call(
    figures.plot_with_spread,
    {"ax": None, "x": [1, 2], "runs": [[0.1, 0.2]], "label": "a"},
    x=wrongs(nothing=None, number=3, too_many=[1, 2, 3], strings=["a", "b"]),
    runs=wrongs(
        nothing=None,
        one_run=[0.1, 0.2],
        transposed=[[0.1], [0.2]],
        strings=[["a", "b"]],
        ragged=[[0.1, 0.2], [0.3]],
    ),
)
call(
    figures.show_flow,
    {
        "shapes": {"query": ("Tq", "d"), "scores": ("Tq", "Tk")},
        "places": {"query": (0.0, 0.0), "scores": (0.0, 1.3)},
        "steps": [(["query"], "@ key.mT", "scores")],
        "cells": {"query": (3, 2)},
        "beside": True,
    },
    shapes=wrongs(
        nothing=None,
        list=["query", "scores"],
        empty={},
        numbered={1: ("Tq",), 2: ("Tk",)},
        one_string={"query": "Tq", "scores": "Tk"},
        fractions={"query": (1.5,), "scores": (2.5,)},
    ),
    places=wrongs(
        nothing=None,
        list=[(0.0, 0.0), (0.0, 1.3)],
        one_missing={"query": (0.0, 0.0)},
        one_number={"query": (0.0,), "scores": (0.0,)},
        texts={"query": ("a", "b"), "scores": ("a", "b")},
        nan={"query": (0.0, math.nan), "scores": (0.0, 1.3)},
    ),
    steps=wrongs(
        nothing=None,
        number=3,
        pair=[(["query"], "scores")],
        list=[[["query"], "@ key.mT", "scores"]],
        one_string=[("query", "@ key.mT", "scores")],
        no_text=[(["query"], None, "scores")],
        unknown_start=[(["key"], "@ key.mT", "scores")],
        unknown_end=[(["query"], "@ key.mT", "weights")],
    ),
    cells=wrongs(
        list=[(3, 2)],
        number={"query": 3},
        none={"query": ()},
        four={"query": (1, 2, 3, 4)},
        fractions={"query": (1.5, 2.0)},
        zero={"query": (0, 2)},
        unknown={"key": (3, 2)},
    ),
    beside=FLAG,
)

# The Transformer

call(
    lib.sinusoidal_encoding,
    {
        "positions": torch.arange(3),
        "d_model": 4,
        "base": 100.0,
        "dtype": torch.float32,
    },
    positions=[
        *WHOLE,
        Wrong("scalar", torch.tensor(3)),
    ],
    d_model=[*SIZE, Wrong("odd", 5)],
    base=[*POSITIVE, Wrong("zero", 0.0)],
    dtype=DTYPE,
)
call(
    lib.SinusoidalPositions,
    {"d_model": 4, "base": 100.0},
    d_model=[*SIZE, Wrong("odd", 5)],
    base=[*POSITIVE, Wrong("zero", 0.0)],
)
call(
    lib.LearnedPositions,
    {"max_length": 5, "d_model": 4},
    max_length=SIZE,
    d_model=SIZE,
)
for positions in (lib.SinusoidalPositions(4), lib.LearnedPositions(5, 4)):
    call(
        positions,
        {"features": floats(2, 3, 4), "offset": 1},
        name=f"{type(positions).__name__}.forward",
        features=tensor(
            two_axes=floats(3, 4),
            width_differs=floats(2, 3, 5),
            width_of_one=floats(2, 3, 1),
        ),
        offset=COUNT,
    )
call(
    lib.rotate,
    {
        "features": floats(2, 3, 4),
        "positions": torch.arange(3),
        "base": 100.0,
    },
    features=tensor(vector=floats(4), odd_width=floats(2, 3, 5)),
    positions=[
        *WHOLE,
        *wrongs(
            too_few=torch.arange(2),
            one_for_all=torch.arange(1),
            batch_differs=torch.ones(3, 3, dtype=torch.long),
            one_axis_more=torch.ones(1, 2, 3, dtype=torch.long),
        ),
    ],
    base=[*POSITIVE, Wrong("zero", 0.0)],
)
call(
    lib.Residual,
    {"d_model": 8, "dropout": 0.0, "norm_eps": 1e-5},
    d_model=SIZE,
    dropout=PROBABILITY,
    norm_eps=POSITIVE,
)
call(
    lib.Residual(8).read,
    {"states": floats(2, 3, 8)},
    name="Residual.read",
    states=tensor(two_axes=floats(3, 8), width_differs=floats(2, 3, 7)),
)
call(
    lib.Residual(8).add,
    {"states": floats(2, 3, 8), "change": floats(2, 3, 8)},
    name="Residual.add",
    states=tensor(one_sample=floats(1, 3, 8)),
    change=tensor(
        one_sample=floats(1, 3, 8),
        one_position=floats(2, 1, 8),
        width_differs=floats(2, 3, 1),
        one_number=torch.tensor(1.0),
    ),
)
call(
    lib.FeedForward,
    {"d_model": 8, "hidden_dim": 9, "activation": "relu", "dropout": 0.0},
    d_model=SIZE,
    hidden_dim=SIZE,
    activation=CHOICE,
    dropout=PROBABILITY,
)
call(
    lib.FeedForward(8, 9),
    {"states": floats(2, 3, 8)},
    name="FeedForward.forward",
    states=tensor(two_axes=floats(3, 8), width_differs=floats(2, 3, 7)),
)
for block in (lib.EncoderBlock, lib.DecoderBlock):
    call(
        block,
        {
            "d_model": 8,
            "num_heads": 2,
            "hidden_dim": 9,
            "activation": "relu",
            "dropout": 0.0,
            "norm_eps": 1e-5,
        },
        d_model=[*SIZE, Wrong("not divisible", 9)],
        num_heads=[*SIZE, Wrong("not dividing", 3)],
        hidden_dim=SIZE,
        activation=CHOICE,
        dropout=PROBABILITY,
        norm_eps=POSITIVE,
    )
    call(
        block,
        {"d_model": 12, "num_heads": 2, "rotary": False},
        name=f"{block.__name__}, rotary",
        rotary=[],
    )
    theirs = block._torch_type
    call(
        block.from_torch,
        {"module": theirs(8, 2, 9)},
        name=f"{block.__name__}.from_torch",
        module=[
            *MODULE,
            *wrongs(
                only_its_attention=nn.MultiheadAttention(8, 2),
                other_activation=theirs(8, 2, 9, activation=torch.tanh),
            ),
        ],
    )
STATES = tensor(
    two_axes=floats(3, 8),
    width_differs=floats(2, 3, 7),
    other_precision=floats(2, 3, 8).double(),
)
call(
    lib.EncoderBlock(8, 2),
    {"states": floats(2, 3, 8), "mask": trues(3, 3)},
    name="EncoderBlock.forward",
    states=STATES[:-1],
    mask=MASK,
    is_causal=FLAG,
    need_weights=FLAG,
    cache=wrongs(dictionary={}, flag=True),
)
call(
    lib.DecoderBlock(8, 2),
    {
        "states": floats(2, 3, 8),
        "memory": floats(2, 5, 8),
        "mask": trues(3, 3),
        "memory_mask": trues(2, 1, 5),
    },
    name="DecoderBlock.forward",
    states=STATES[:-1],
    memory=tensor(
        two_axes=floats(5, 8),
        width_differs=floats(2, 5, 7),
        batch_differs=floats(3, 5, 8),
    ),
    mask=MASK,
    memory_mask=MASK,
)
STACK = {
    "vocabulary_size": SIZE,
    "d_model": [*SIZE, Wrong("not divisible", 9)],
    "num_heads": [*SIZE, Wrong("not dividing", 3)],
    "num_layers": SIZE,
    "hidden_dim": SIZE,
    "positions": CHOICE,
    "max_length": SIZE,
    "activation": CHOICE,
    "dropout": PROBABILITY,
}
for stack in (
    *(lib.TransformerEncoder, lib.TransformerDecoder, lib.LanguageModel),
):
    good = {"vocabulary_size": 9, "d_model": 8, "num_heads": 2}
    call(stack, good | {"num_layers": 1}, **STACK)
call(
    lib.transformer_model,
    {"d_model": 8, "num_heads": 2, "num_layers": 1},
    **{name: role for name, role in STACK.items() if name[:3] != "voc"},
)
call(
    READER,
    {"source": ids(2, 3), "lengths": torch.tensor([2, 3])},
    name="TransformerEncoder.forward",
    source=IDS,
    lengths=OWN_LENGTHS,
)
for name, decoder in (
    ("FixedVectorDecoder", DECODER),
    ("AttentionDecoder", LOOKER),
    ("TransformerDecoder", WRITER),
):
    call(
        decoder,
        {"target_input": ids(2, 3), "memory": memory()},
        name=f"{name}.forward",
        target_input=IDS,
        memory=wrongs(nothing=None, states=floats(2, 3, 6), tuple=(1, 2, 3)),
    )
    call(
        decoder.start,
        {"memory": memory()},
        name=f"{name}.start",
        memory=wrongs(nothing=None, states=floats(2, 3, 6)),
    )
    call(
        decoder.step,
        {"tokens": torch.tensor([1, 2]), "state": decoder.start(memory())},
        name=f"{name}.step",
        tokens=STEP,
    )
call(
    WRITER.cross_weights,
    {"target_input": ids(2, 3), "memory": memory()},
    name="TransformerDecoder.cross_weights",
    target_input=IDS,
    memory=wrongs(nothing=None, batch_differs=memory(3)),
)
call(
    PREDICTOR,
    {"tokens": ids(2, 3), "mask": trues(2, 1, 3)},
    name="LanguageModel.forward",
    tokens=IDS,
    mask=MASK,
    caches=wrongs(too_few=[], dictionary={}),
)

# Translators and their corpus

call(
    lib.AttentionDecoder,
    {
        "vocabulary_size": 9,
        "embedding_dim": 4,
        "hidden_dim": 6,
        "score": lib.dot_score,
        "memory_dim": 6,
        "final_dim": 6,
        "context_at": "input",
    },
    vocabulary_size=SIZE,
    embedding_dim=SIZE,
    hidden_dim=SIZE,
    score=CALLABLE,
    memory_dim=SIZE,
    final_dim=SIZE,
    context_at=CHOICE,
)
call(
    lib.attention_model,
    {"score": lib.dot_score, "hidden_dim": 6, "embedding_dim": 4},
    score=CALLABLE,
    hidden_dim=[*SIZE, Wrong("odd", 7)],
    embedding_dim=SIZE,
    context_at=CHOICE,
)
call(
    lib.hard_alignment,
    {"weights": floats(2, 3)},
    weights=tensor(
        a_batch=floats(1, 2, 3), vector=floats(3), no_source=floats(2, 0)
    ),
)
LINKS = wrongs(
    nothing=None,
    number=1,
    lists_of_links=[[(0, 1)]],
    one_set={(0, 1)},
    too_many=[{(0, 1)}, {(1, 0)}],
)
call(
    lib.alignment_error_rate,
    {"predicted": [{(0, 1)}], "sure": [{(0, 1)}], "possible": [{(0, 1)}]},
    predicted=LINKS,
    sure=LINKS,
    possible=LINKS[1:],
)
call(
    lib.evaluate_alignment,
    {"model": LOOKING, "pairs": PAIRS, "batch_size": 2},
    model=[*MODULE, Wrong("without attention", TRANSLATOR)],
    pairs=PAIR_LIST,
    batch_size=SIZE,
)
call(
    seq2seq.Encoder,
    {"vocabulary_size": 9, "embedding_dim": 4, "hidden_dim": 6},
    vocabulary_size=SIZE,
    embedding_dim=SIZE,
    hidden_dim=SIZE,
)
call(
    ENCODER,
    {"source": ids(2, 3), "lengths": torch.tensor([2, 3])},
    name="Encoder.forward",
    source=IDS,
    lengths=[*OWN_LENGTHS, Wrong("zero", torch.tensor([0, 3]))],
)
call(
    seq2seq.FixedVectorDecoder,
    {
        "vocabulary_size": 9,
        "embedding_dim": 4,
        "hidden_dim": 6,
        "context_dim": 6,
    },
    vocabulary_size=SIZE,
    embedding_dim=SIZE,
    hidden_dim=SIZE,
    context_dim=SIZE,
)
call(
    seq2seq.fixed_vector_model,
    {"hidden_dim": 6, "embedding_dim": 4},
    hidden_dim=SIZE,
    embedding_dim=SIZE,
)
call(
    seq2seq.Seq2Seq,
    {"encoder": ENCODER, "decoder": DECODER},
    encoder=CALLABLE,
    decoder=MODULE,
)
call(
    seq2seq.index_batch,
    {"tree": (floats(2, 3), None), "index": torch.tensor([1, 0])},
    tree=wrongs(number=1, string="state"),
    index=[
        *WHOLE,
        *wrongs(beyond=torch.tensor([2]), negative=torch.tensor([-1])),
    ],
)
call(
    seq2seq.train,
    {"model": TRANSLATOR, "pairs": PAIRS, "steps": 1, "batch_size": 2},
    model=MODULE,
    pairs=[*PAIR_LIST, Wrong("none", [])],
    steps=COUNT,
    batch_size=SIZE,
    learning_rate=POSITIVE,
    warmup=COUNT,
    clip=POSITIVE,
)
call(
    seq2seq.train_run,
    {
        "build": lambda: TRANSLATOR,
        "pairs": PAIRS,
        "seed": 0,
        "steps": 1,
        "batch_size": 2,
    },
    build=CALLABLE,
    steps=COUNT,
)
call(
    seq2seq.run_parallel,
    {"jobs": [int], "workers": 1},
    jobs=wrongs(nothing=None, one=3, numbers=[1, 2], string="job"),
    workers=SIZE,
)
READ = {
    "model": TRANSLATOR,
    "source": ids(2, 3),
    "lengths": torch.tensor([2, 3]),
    "max_length": 2,
}
call(
    seq2seq.greedy_decode,
    READ,
    source=IDS,
    lengths=OWN_LENGTHS,
    max_length=COUNT,
)
call(
    seq2seq.beam_search,
    READ | {"beam_size": 2, "length_power": 0.0},
    source=[w for w in IDS if w.value is not None and w.label != "string"][1:],
    beam_size=SIZE,
    max_length=COUNT,
    length_power=NUMBER,
)
call(
    seq2seq.translate,
    {"model": TRANSLATOR, "text": "the cat eats fish", "max_length": 2},
    text=TEXT,
    max_length=COUNT,
)
call(
    seq2seq.score_translations,
    {"translations": [[5, 2]], "references": [[5, 2]]},
    translations=wrongs(too_few=[], too_many=[[5], [6]]),
    references=wrongs(too_few=[], too_many=[[5], [6]]),
)
call(
    seq2seq.evaluate,
    {
        "model": TRANSLATOR,
        "pairs": PAIRS,
        "batch_size": 2,
        "beam_size": 1,
    },
    pairs=PAIR_LIST,
    batch_size=SIZE,
    beam_size=SIZE,
)
call(
    seq2seq.evaluate_by_clauses,
    {"model": TRANSLATOR, "clauses": (1,), "count": 2},
    clauses=wrongs(nothing=None, number=1, zero=[0], string="1", half=[1.5]),
    count=COUNT,
)
call(
    corpus.make_pair,
    {"rng": random.Random(0), "clauses": 1},
    rng=wrongs(nothing=None, seed=3, the_module=random),
    clauses=SIZE,
)
call(
    corpus.gloss,
    {"word": "猫"},
    word=[*TEXT, *wrongs(english="cat", two_words="猫鱼", empty="")],
)
call(corpus.split_of, {"source": ["the", "cat"]}, source=WORDS)
call(
    corpus.sample_pairs,
    {"count": 2, "clauses": 1, "split": "test"},
    count=COUNT,
    clauses=wrongs(
        zero=0, negative=-1, fraction=1.5, none=[], string="1", zeros=[1, 0]
    ),
    split=CHOICE,
)
call(
    corpus.Vocabulary,
    {"words": ["cat"]},
    words=[*WORDS, Wrong("twice the same", ["cat", "cat"])],
)
call(
    corpus.ENGLISH.encode,
    {"words": ["cat"]},
    name="Vocabulary.encode",
    words=WORDS,
)
call(
    corpus.ENGLISH.decode,
    {"numbers": [5]},
    name="Vocabulary.decode",
    numbers=wrongs(beyond=[999], negative=[-5], fraction=[5.5], words=["a"]),
)
call(corpus.tokenize_english, {"text": "A cat."}, text=TEXT)
call(corpus.tokenize_chinese, {"text": "猫"}, text=TEXT)
call(
    corpus.pad,
    {"rows": [[5, 2], [2]]},
    rows=wrongs(
        nothing=None,
        number=3,
        flat=[1, 2],
        fractions=[[1.5]],
        words=[["cat"]],
        string="12",
    ),
)
call(corpus.make_batch, {"pairs": PAIRS}, pairs=PAIR_LIST)
call(
    batches,
    {"pairs": PAIRS, "batch_size": 2},
    name="iterate_batches",
    pairs=PAIR_LIST,
    batch_size=SIZE,
)

# What is asked ----------------------------------------------------------

CASES = [
    pytest.param(name, argument, wrong.value, id=f"{name}: {argument}, "
                 f"{wrong.label}")
    for name, (_, _, roles) in TABLE.items()
    for argument, ways in roles.items()
    for wrong in ways
]  # fmt: skip


def parts(tree):
    """Every array and tensor in some arguments, parameters included."""
    if isinstance(tree, torch.Tensor | np.ndarray):
        yield tree
    elif isinstance(tree, nn.Module):
        yield from tree.state_dict().values()
    elif isinstance(tree, dict):
        for each in tree.values():
            yield from parts(each)
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from parts(each)


def copied(part):
    return part.copy() if isinstance(part, np.ndarray) else part.clone()


def same(left, right):
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right)
    if left.device.type == "meta":
        return left.shape == right.shape
    equal = left == right
    if left.is_floating_point():
        equal |= left.isnan() & right.isnan()
    return bool(equal.all())


@pytest.mark.parametrize("name", TABLE)
def test_the_good_call_is_good(name):
    """Or else a wrong one would be refused for another reason."""
    function, good, _ = TABLE[name]
    if function is figures.plot_with_spread:
        good = good | {"ax": plt.figure().subplots()}
    function(**good)
    plt.close("all")


@pytest.mark.parametrize(("name", "argument", "value"), CASES)
def test_a_wrong_call_is_refused_by_name(name, argument, value):
    function, good, _ = TABLE[name]
    arguments = good | {argument: value}
    before = [copied(part) for part in parts(arguments)]
    with pytest.raises((TypeError, ValueError)) as caught:
        function(**arguments)
    text = str(caught.value)
    assert re.search(rf"\b{argument}\b", text), text
    # "None must be None or a cache" holds the word and does not name it.
    subject = text.partition(" must ")[0]
    assert re.search(rf"\b({'|'.join(arguments)}|axes)\b", subject), text
    assert all(map(same, before, parts(arguments)))
    plt.close("all")


def test_there_are_more_than_three_hundred_kinds():
    kinds = {case.id for case in CASES}
    assert len(kinds) == len(CASES)
    assert len(kinds) > 300


def test_every_public_callable_is_in_the_table():
    """By its own name, or with the method that is called."""
    modules = {lib, corpus, seq2seq, figures, plotting, reference}
    public = {
        name
        for module in modules
        for name in module.__all__
        if callable(getattr(module, name))
        and inspect.getmodule(getattr(module, name)) is not None
    }
    tried = {
        word
        for name in TABLE
        for word in re.split(r"\W", name.removeprefix("reference."))
    }
    # Records that check nothing, and what takes no argument to get wrong.
    records = {
        *("AttentionState", "LeakReport", "Memory", "Batch", "Pair", "Noun"),
        *("Verb", "FixedVectorState", "Hypothesis", "Scores", "TrainingLog"),
        *("AttentionCache", "Decoder", "TransformerBlock", "T"),
        *("use_book_style", "RotaryMultiHeadAttention"),
    }
    assert public - tried - records == set()
