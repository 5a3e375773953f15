"""Numbers that other libraries assert in their own tests, in every way."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import attention_lib as lib
from attention_lib import reference

F64 = torch.float64
CASES = json.loads(
    (Path(__file__).parents[1] / "cases" / "golden.json").read_text("utf-8")
)["cases"]
SCALE = {"dot": 1.0, "scaled_dot": None}


def numbers(case, *names):
    return [torch.tensor(case["inputs"][name], dtype=F64) for name in names]


def mask_of(case):
    """What a query of the case may see; they align at the upper left."""
    inputs, params = case["inputs"], case["params"]
    mask = torch.tensor(True)
    if "key_mask" in inputs:
        mask = mask & lib.from_attention_mask(torch.tensor(inputs["key_mask"]))
    if "key_lengths" in inputs:
        mask = mask & lib.padding_mask(inputs["key_lengths"], inputs["tk"])
    words = params | inputs
    if "top-left" in (words.get("causal"), words.get("align")):
        if "tq" in inputs:
            Tq, Tk = inputs["tq"], inputs["tk"]
        else:
            names = ("q", "k") if "q" in inputs else ("query_mask", "key_mask")
            Tq, Tk = (len(inputs[name][0]) for name in names)
        mask = mask & lib.causal_mask(Tq, Tk, offset=0)
    return mask


def score_of(case):
    """The score function that a case names; projections are identities."""
    params, width = case["params"], len(case["inputs"]["q"][0][0])
    if params["score"] != "additive":
        return {"dot": lib.dot_score, "scaled_dot": lib.scaled_dot_score}[
            params["score"]
        ]
    score = lib.AdditiveScore(width, width, width).double()
    identity = torch.eye(width) * params.get("inner_scale", 1.0)
    with torch.no_grad():
        score.query_proj.weight.copy_(identity)
        score.key_proj.weight.copy_(identity)
        score.vector.copy_(torch.tensor(params["scale_vec"]))
    return score.requires_grad_(False)


def eight_heads(query, key, value, mask, kv_heads):
    """A layer of eight identical heads, whose outputs are summed up."""
    layer = lib.MultiHeadAttention(
        8, 8, num_kv_heads=kv_heads, d_head=8, bias=False
    ).double()
    for projection, count in zip(
        layer.children(), (8, kv_heads, kv_heads), strict=False
    ):
        projection.weight.data = torch.eye(8, dtype=F64).repeat(count, 1)
    layer.output_proj.weight.data = torch.eye(8, dtype=F64).repeat(1, 8) / 8
    output, weights = layer(query, key, value, mask=mask, need_weights=True)
    for head in range(1, 8):
        torch.testing.assert_close(weights[:, head], weights[:, 0])
    return output.detach(), weights[:, 0].detach()


def attention_ways(case):
    """Context and weights of a case, each way that can compute them."""
    query, key, value = numbers(case, *"qkv")
    mask, kind = mask_of(case), case["params"]["score"]
    yield lib.attend(query, key, value, score=score_of(case), mask=mask)
    if kind in SCALE:
        yield reference.attention(query, key, value, mask, SCALE[kind])
        for need_weights in (True, False):
            yield lib.scaled_dot_product_attention(
                query,
                key,
                value,
                mask=mask,
                scale=SCALE[kind],
                need_weights=need_weights,
            )
    if case["id"].endswith("identity8"):
        kv_heads = 8 if ".mha." in case["id"] else 2
        yield eight_heads(query, key, value, mask, kv_heads)


def outcomes(case):
    """What the library makes of a case; a query mask blanks output rows."""
    inputs = case["inputs"]
    blank = torch.tensor(inputs.get("query_mask", True))[..., None]
    if case["op"] == "attention":
        for context, weights in attention_ways(case):
            output = torch.as_tensor(context) * blank
            yield {
                "output": output,
                "weights": weights,
                "output_feature_sum": output.sum(-1),
            }
    elif case["op"] == "apply_scores":
        (scores, value), mask = numbers(case, "scores", "v"), inputs["mask"]
        for weights in (
            lib.masked_softmax(scores, torch.tensor(mask)),
            torch.as_tensor(reference.softmax(scores, mask)),
        ):
            yield {"weights": weights, "output": weights @ value}
    elif case["op"] == "scores":
        yield {"scores": score_of(case)(*numbers(case, *"qk"))}
    else:
        yield {"mask": mask_of(case) & blank}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_numbers_of_other_libraries_come_out(case):
    for found in outcomes(case):
        for name, expected in case["expected"].items():
            if found[name] is None:  # weights that were not asked for
                continue
            np.testing.assert_allclose(
                np.asarray(found[name], dtype=float),
                np.asarray(expected, dtype=float),
                err_msg=name,
                **case["tol"],
            )
