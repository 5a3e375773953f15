"""What a model writes: as if each row stood alone, drawn from what it says."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attention_lib.generation import next_token_probs
from attention_lib.transformer import LanguageModel

KINDS = pytest.mark.parametrize(
    "kind", ["sinusoidal", "learned", "rotary", None]
)


def language_model(kind="rotary", **options):
    torch.manual_seed(1)
    options = {"positions": kind, "max_length": 16, **options}
    model = LanguageModel(20, 8, 2, 2, num_kv_heads=1, **options)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.double()


def written_alone(model, row, new):
    """The plainest greedy decoding: everything is read again."""
    for _ in range(new):
        row = torch.cat([row, model(row[None])[0, -1:].argmax(-1)])
    return row


def probabilities(logits, temperature, top_k, top_p):
    """The definition, one token at a time, in float64."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    exps = [math.exp((x - max(logits)) / temperature) for x in logits]
    kept = order if top_k is None else order[:top_k]
    if top_p is not None:
        total, held, nucleus = sum(exps[i] for i in kept), 0.0, []
        for i in kept:
            if held < top_p * total:
                nucleus.append(i)
            held += exps[i]
        kept = nucleus
    total = sum(exps[i] for i in kept)
    return [exps[i] / total if i in kept else 0.0 for i in range(len(logits))]


@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.3, 1.0, 3.0, 10.0]),
    top_k=st.none() | st.integers(1, 9),
    top_p=st.none() | st.floats(0.013, 1.0),
)
@settings(max_examples=200)
def test_what_is_drawn_from_is_temperature_then_top_k_then_top_p(
    seed, temperature, top_k, top_p
):
    generator = torch.Generator().manual_seed(seed)
    given = 3 * torch.randn(7, generator=generator, dtype=torch.float64)
    expected = probabilities(given.tolist(), temperature, top_k, top_p)
    found = next_token_probs(
        given.expand(2, -1), temperature, top_k=top_k, top_p=top_p
    )
    torch.testing.assert_close(found[1], found.new_tensor(expected))
    torch.testing.assert_close(found[0], found[1])


def test_logits_in_half_precision_and_tiny_temperatures_are_no_trouble():
    logits = torch.tensor([[9.0, 9.5, -3.0]], dtype=torch.bfloat16)
    wide = next_token_probs(logits.float())
    torch.testing.assert_close(next_token_probs(logits), wide)
    assert next_token_probs(logits, 1e-20).tolist() == [[0.0, 1.0, 0.0]]


@KINDS
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    new=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=10)
def test_each_row_is_continued_as_if_it_stood_alone(kind, lengths, new, seed):
    model, total = language_model(kind), max(lengths)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 20, (len(lengths), total), generator=generator)
    before = tokens.clone()
    written = model.generate(tokens, new, lengths=torch.tensor(lengths))
    assert torch.equal(tokens, before)
    assert written.shape == (len(lengths), total + new)
    for row, length in enumerate(lengths):
        alone = written_alone(model, tokens[row, total - length :], new)
        assert torch.equal(written[row, total - length :], alone)
    assert torch.equal(
        model.generate(tokens, new)[0], written_alone(model, tokens[0], new)
    )


def test_a_step_reads_one_token_of_each_row_in_one_call():
    model, sizes = language_model(), []
    model.register_forward_pre_hook(
        lambda _, inputs: sizes.append(tuple(inputs[0].shape))
    )
    model.generate(torch.ones(3, 4).long(), 4, lengths=[1, 4, 2])
    assert sizes == [(3, 4), (3, 1), (3, 1), (3, 1)]


def test_after_the_end_a_row_is_filled_and_the_last_to_end_ends_all():
    model = language_model()
    tokens = torch.randint(0, 20, (4, 3))
    free = model.generate(tokens, 12)[:, 3:]
    eos = int(free[0, 2])
    ends = [
        row.tolist().index(eos) if eos in row.tolist() else 11 for row in free
    ]
    written = model.generate(tokens, 12, eos=eos)[:, 3:]
    assert written.shape[1] == max(ends) + 1
    for row, all_of_it, end in zip(written, free, ends, strict=True):
        assert torch.equal(row[: end + 1], all_of_it[: end + 1])
        assert (row[end + 1 :] == eos).all()
    # An end that the prompt holds is none.
    prompt = torch.cat([torch.full_like(tokens[:, :1], eos), tokens], 1)
    assert model.generate(prompt, 2, eos=eos).shape[1] > 4


def test_drawing_is_seeded_and_follows_the_probabilities():
    model = language_model()
    tokens = torch.tensor([[3, 1, 4]]).expand(4000, -1)
    options = {"temperature": 1.3, "top_k": 5, "top_p": 0.9}

    def drawn(seed):
        generator = torch.Generator().manual_seed(seed)
        return model.generate(tokens, 1, generator=generator, **options)

    state = torch.get_rng_state()
    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))
    model.generate(tokens[:2], 3)  # greedy
    assert torch.equal(torch.get_rng_state(), state)
    cut = {"top_k": 5, "top_p": 0.9}
    expected = next_token_probs(model(tokens[:1])[0, -1], 1.3, **cut)
    shares = torch.bincount(drawn(0)[:, -1], minlength=20) / len(tokens)
    torch.testing.assert_close(
        shares.double(), expected.detach(), atol=0.03, rtol=0
    )
    assert not shares[expected == 0].any()


@pytest.mark.plain
def test_the_mode_of_each_part_is_put_back_even_after_a_failure():
    model = language_model(dropout=0.5).train()
    model.blocks[0].eval()
    modes = [part.training for part in model.modules()]
    tokens = torch.tensor([[3, 1, 4]])
    first = model.generate(tokens, 3)
    assert torch.equal(first, model.generate(tokens, 3)), "dropout was on"
    assert not first.requires_grad
    with pytest.raises(ValueError, match="top_p must be"):
        model.generate(tokens, 3, temperature=1.0, top_p=2.0)
    assert [part.training for part in model.modules()] == modes


def test_a_batch_without_rows_is_continued_with_nothing():
    tokens = torch.zeros(0, 3, dtype=torch.long)
    for options in ({}, {"temperature": 1.0}, {"lengths": []}, {"eos": 2}):
        written = language_model().generate(tokens, 2, **options)
        assert written.shape[0] == 0


@pytest.mark.plain
def test_what_goes_beyond_a_learned_table_is_refused_before_the_first_step():
    model, tokens = language_model("learned"), torch.ones(2, 6).long()
    assert model.generate(tokens, 10).shape == (2, 16)
    assert model.generate(tokens, 12, lengths=[1, 4]).shape == (2, 18)
    model.register_forward_pre_hook(lambda *_: pytest.fail("a step was made"))
    for new, lengths in ((11, None), (12, [1, 5])):
        with pytest.raises(ValueError, match="beyond max_length=16"):
            model.generate(tokens, new, lengths=lengths)
