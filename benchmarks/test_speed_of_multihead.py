"""Multi-head attention against torch.nn.MultiheadAttention.

B = 4, T = 512, d_model = 512, 8 heads, float32.
"""

import pytest
import torch
from torch import nn

from attention_lib.masks import padding_mask, to_key_padding_mask
from attention_lib.multihead import MultiHeadAttention

BATCH, LENGTH, WIDTH, HEADS = 4, 512, 512, 8


@pytest.fixture
def setting():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    return ours, theirs, torch.randn(BATCH, LENGTH, WIDTH)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_training(compare, setting, need_weights, padded, backward):
    ours, theirs, x = setting
    x.requires_grad_()
    mask = padding_mask([LENGTH, 400, 300, 200]) if padded else None
    blocked = to_key_padding_mask(mask) if padded else None

    def run(call):
        output = call()
        if backward:
            output.sum().backward()

    compare(
        f"multi-head, {'forward+backward' if backward else 'forward'}"
        f"{', padded' if padded else ''}"
        f"{', with weights' if need_weights else ''}",
        lambda: run(lambda: ours(x, mask=mask, need_weights=need_weights)[0]),
        lambda: run(
            lambda: theirs(
                x,
                x,
                x,
                key_padding_mask=blocked,
                need_weights=need_weights,
                average_attn_weights=False,
            )[0]
        ),
        bar=1.05 if need_weights else 1.0,
    )


@pytest.mark.parametrize("need_weights", [False, True])
def test_inference(compare, setting, need_weights):
    ours, theirs, x = setting
    ours.eval()
    theirs.eval()  # PyTorch takes its fast path
    with torch.inference_mode():
        compare(
            f"multi-head, inference{', with weights' if need_weights else ''}",
            lambda: ours(x, need_weights=need_weights),
            lambda: theirs(
                x,
                x,
                x,
                need_weights=need_weights,
                average_attn_weights=False,
            ),
            bar=1.05 if need_weights else 1.0,
        )
