"""Numbers that other libraries assert in their own tests.

``OPERATIONS`` says, for each kind of case, in which ways the library can
compute it; each case is checked in every way that takes its parameters.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from attention_lib import reference
from attention_lib.attention import (
    attend,
    masked_softmax,
    scaled_dot_product_attention,
)
from attention_lib.masks import causal_mask, padding_mask
from attention_lib.scores import AdditiveScore, dot_score, scaled_dot_score

CASES = json.loads(
    (Path(__file__).parents[1] / "cases" / "golden.json").read_text("utf-8")
)["cases"]


def numbers(case, name):
    return torch.tensor(case["inputs"][name], dtype=torch.float64)


def truths(case, name):
    return torch.tensor(case["inputs"][name], dtype=torch.bool)


def top_left(query_length, key_length):
    """Query i sees the keys j <= i, however many keys there are."""
    return causal_mask(query_length, key_length, offset=0)


def combined_mask(case):
    """The mask of a case, query masks left out, or None."""
    inputs, params = case["inputs"], case["params"]
    parts = []
    if "key_mask" in inputs:
        parts.append(truths(case, "key_mask")[:, None, :])
    if "key_lengths" in inputs:
        lengths = torch.tensor(inputs["key_lengths"])
        parts.append(padding_mask(lengths, inputs["tk"]))
    if (params | inputs).get("causal") == "top-left":
        parts.append(top_left(*sizes(case)))
    mask = None
    for part in parts:
        mask = part if mask is None else mask & part
    return mask


def sizes(case):
    inputs = case["inputs"]
    if "tq" in inputs:
        return inputs["tq"], inputs["tk"]
    names = ("q", "k") if "q" in inputs else ("query_mask", "key_mask")
    return tuple(len(inputs[name][0]) for name in names)


def score_of(case):
    """The score function that a case names."""
    params, width = case["params"], len(case["inputs"]["q"][0][0])
    if params["score"] == "dot":
        return dot_score
    if params["score"] == "scaled_dot":
        return scaled_dot_score
    # Additive without projections: the projections are the identity.
    score = AdditiveScore(width, width, width).double()
    identity = torch.eye(width) * params.get("inner_scale", 1.0)
    with torch.no_grad():
        score.query_proj.weight.copy_(identity)
        score.key_proj.weight.copy_(identity)
        score.vector.copy_(torch.tensor(params["scale_vec"]))
    return score


def finish(case, context, weights):
    """Blank the rows of padded queries, which leaves the weights alone."""
    context = torch.as_tensor(context)
    if "query_mask" in case["inputs"]:
        context = context * truths(case, "query_mask")[..., None]
    return {
        "output": context,
        "weights": weights if weights is None else torch.as_tensor(weights),
        "output_feature_sum": context.sum(dim=-1),
    }


def by_attend(case):
    tensors = [numbers(case, name) for name in "qkv"]
    mask = combined_mask(case)
    with torch.no_grad():
        results = attend(*tensors, score=score_of(case), mask=mask)
    return finish(case, *results)


def by_reference(case):
    tensors = [numbers(case, name) for name in "qkv"]
    scale = SCALE[case["params"]["score"]]
    results = reference.attention(*tensors, combined_mask(case), scale)
    return finish(case, *results)


def by_fused(need_weights):
    def run(case):
        results = scaled_dot_product_attention(
            *(numbers(case, name) for name in "qkv"),
            mask=combined_mask(case),
            scale=SCALE[case["params"]["score"]],
            need_weights=need_weights,
        )
        return finish(case, *results)

    return run


def by_masked_softmax(case):
    weights = masked_softmax(numbers(case, "scores"), truths(case, "mask"))
    return {"weights": weights, "output": weights @ numbers(case, "v")}


def by_reference_softmax(case):
    weights = reference.softmax(numbers(case, "scores"), truths(case, "mask"))
    return {"weights": weights, "output": weights @ numbers(case, "v").numpy()}


def by_score(case):
    scores = score_of(case)(numbers(case, "q"), numbers(case, "k"))
    return {"scores": scores.detach()}


def by_mask(case):
    if "key_mask" in case["inputs"]:
        mask = truths(case, "key_mask")[:, None] & top_left(*sizes(case))
    else:
        mask = top_left(*sizes(case))
    return {"mask": mask}


def by_combination(case):
    mask = combined_mask(case)
    if "query_mask" in case["inputs"]:
        mask = mask & truths(case, "query_mask")[..., None]
    return {"mask": mask}


SCALE = {"dot": 1.0, "scaled_dot": None}
DOT_PRODUCTS_ONLY = {"reference", "fused", "explicit"}
OPERATIONS = {
    "attention": {
        "attend": by_attend,
        "reference": by_reference,
        "fused": by_fused(need_weights=False),
        "explicit": by_fused(need_weights=True),
    },
    "apply_scores": {
        "masked_softmax": by_masked_softmax,
        "reference": by_reference_softmax,
    },
    "scores": {"score": by_score},
    "causal_mask": {"causal_mask": by_mask},
    "combine_masks": {"masks": by_combination},
}


@pytest.mark.parametrize(
    ("case", "way"),
    [
        pytest.param(case, way, id=f"{case['id']}-{way}")
        for case in CASES
        for way in OPERATIONS[case["op"]]
        if case["params"].get("score") != "additive"
        or way not in DOT_PRODUCTS_ONLY
    ],
)
def test_the_numbers_of_other_libraries_come_out(case, way):
    results = OPERATIONS[case["op"]][way](case)
    for name, expected in case["expected"].items():
        if results[name] is None:  # weights that were not asked for
            continue
        np.testing.assert_allclose(
            np.asarray(results[name], dtype=float),
            np.asarray(expected, dtype=float),
            err_msg=name,
            **case["tol"],
        )
