"""A program as a user might write it, for a type checker to read.

Each line that ends in ``# error: CODE`` is wrong, and the checker has to say
so there and nowhere else. It is not run.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

import attention_lib as lib
from attention_lib import reference, seq2seq
from attention_lib.course import corpus, evaluation, models

query = torch.randn(2, 3, 8)
key, value = torch.randn(2, 5, 8), torch.randn(2, 5, 4)

# Functions: what they return has a type, and it is used as such.
context, weights = lib.attend(query, key, value, score=lib.dot_score)
total: Tensor = context.sum() + weights.sum()
fused = lib.scaled_dot_product_attention
context, maybe = fused(query, key, value)
if maybe is not None:
    total += maybe.sum()
mask: Tensor = lib.padding_mask([5, 3], 5) & lib.causal_mask(3, 5)
oracle, rows = reference.attention(np.eye(3), np.eye(3), np.eye(3))
number: float = float(oracle.sum()) + float(rows.sum())


# Modules: they are torch modules, and may be subclassed.
class Tagger(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.attention = lib.MultiHeadAttention(8, heads, dropout=0.1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        output, _ = self.attention(x, mask=mask)
        return torch.relu(output)


class Cosine(nn.Module):
    """A score of one's own."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return nn.functional.normalize(query, dim=-1) @ key.mT


lib.attend(query, key, value, score=Cosine(), mask=mask, dropout_p=0.5)
layer = lib.MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2))
theirs: nn.MultiheadAttention = layer.to_torch(batch_first=False)
norms = nn.LayerNorm(8), nn.LayerNorm(8)
parts = lib.MultiHeadAttention(8, 2), lib.FeedForward(8, 16)
block: lib.EncoderBlock = lib.EncoderBlock(*parts, *norms, pre_norm=False)


class Cache:
    """Whatever has these two members is a cache."""

    length = 0

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return key, value


lib.MultiHeadAttention(8, 2)(query, cache=Cache())
report: lib.LeakReport = lib.future_leak(Tagger(2), query)
print(bool(report), report.largest + 1, report.where.upper())
pairs: Sequence[corpus.Pair] = corpus.sample_pairs(3)
model: seq2seq.Seq2Seq = models.transformer_model(8, 2, 1)
exact: float = evaluation.evaluate(model, pairs).exact

# Wrong calls, each in one place.
lib.attend(query, key, value)  # error: call-arg
lib.attend(query, key, value, score="dot")  # error: arg-type
lib.attend(query, key, value, lib.dot_score)  # error: call-arg
lib.attend(query, key, value, score=lib.dot_score, mask=1.0)  # error: arg-type
lib.masked_softmax([1.0, 2.0])  # error: arg-type
lib.masked_softmax(query, attn_mask=mask)  # error: call-arg
fused(query, key, value, scale="1")  # error: arg-type
maybe.sum()  # error: union-attr
lib.padding_mask([1.5, 2.5])  # error: list-item
lib.padding_mask([1, 2], side="top")  # error: arg-type
lib.causal_mask("3")  # error: arg-type
lib.MultiHeadAttention(8)  # error: call-arg
lib.MultiHeadAttention("8", 2)  # error: arg-type
lib.MultiHeadAttention(8, 2, 0.1)  # error: call-arg,arg-type
lib.MultiHeadAttention(8, 2, num_kv_heads=1.5)  # error: arg-type
lib.MultiHeadAttention.from_torch(nn.Linear(8, 8))  # error: arg-type
lib.EncoderBlock(8, 2)  # error: call-arg,arg-type
lib.AdditiveScore(8, 8)  # error: call-arg
lib.future_leak(Tagger(2), query, positions="guess")  # error: arg-type
lib.padding_leak(Tagger(2), query, [3, 2], rows="some")  # error: arg-type
lib.head_gates(nn.Linear(8, 8), query)  # error: arg-type
reference.softmax(object())  # error: arg-type
text: str = corpus.ENGLISH.encode(["cat"])  # error: assignment
print(lib.no_such_name)  # error: attr-defined
lib.LanguageModel(10, 8)  # error: call-arg
