"""What the score functions promise, each promise as a test."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_lib import scores as scoring
from attention_lib.scores import AdditiveScore, BilinearScore, dot_score

HALVES = [torch.float16, torch.bfloat16]
QUERY_DIM, KEY_DIM, HIDDEN_DIM = 3, 5, 7


def small(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def modules(dtype=torch.float64):
    return [
        BilinearScore(QUERY_DIM, KEY_DIM).to(dtype),
        AdditiveScore(QUERY_DIM, KEY_DIM, HIDDEN_DIM).to(dtype),
    ]


def scores_of(width, dtype=torch.float64):
    """One score of each kind for queries and keys of one width."""
    return {
        "dot": dot_score,
        "bilinear": BilinearScore(width, width).to(dtype),
        "additive": AdditiveScore(width, width, HIDDEN_DIM).to(dtype),
    }


def plain_additive(score, query, key):
    """The formula as it is written, with the whole tensor inside."""
    left = query @ score.query_proj.weight.T
    right = key @ score.key_proj.weight.T
    return torch.tanh(left[..., :, None, :] + right[..., None, :, :]) @ (
        score.vector
    )


@st.composite
def pairs(draw):
    """Queries and keys; sizes may be 0, leading axes broadcast."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch = draw(st.lists(st.integers(0, 3), max_size=3))
    left = [draw(st.sampled_from([1, size])) for size in batch]
    right = [
        size if a == 1 else a for a, size in zip(left, batch, strict=True)
    ]
    if draw(st.booleans()):
        right = right[draw(st.integers(0, len(right))) :]
    if draw(st.booleans()):
        left, right = right, left

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    query = normal(*left, draw(st.integers(0, 5)), QUERY_DIM)
    key = normal(*right, draw(st.integers(0, 5)), KEY_DIM)
    return query, key


# --- the numbers ------------------------------------------------------------


@given(pairs())
def test_scores_are_those_of_the_formula_for_every_pair(pair):
    query, key = pair
    shape = (
        *np.broadcast_shapes(query.shape[:-2], key.shape[:-2]),
        query.shape[-2],
        key.shape[-2],
    )
    bilinear, additive = modules()
    with torch.no_grad():
        formulas = {
            dot_score: lambda q, k: np.dot(q, k),
            bilinear: lambda q, k: q @ bilinear.weight.numpy() @ k,
            additive: lambda q, k: (
                additive.vector.numpy()
                @ np.tanh(
                    additive.query_proj.weight.numpy() @ q
                    + additive.key_proj.weight.numpy() @ k
                )
            ),
        }
        for score, formula in formulas.items():
            keys = key[..., :QUERY_DIM] if score is dot_score else key
            scores = score(query, keys)
            assert scores.shape == shape
            expected = np.zeros(shape)
            queries = query.expand(*shape[:-2], *query.shape[-2:]).numpy()
            keys = keys.expand(*shape[:-2], *keys.shape[-2:]).numpy()
            for *batch, i, j in np.ndindex(*shape):
                expected[*batch, i, j] = formula(
                    queries[*batch, i], keys[*batch, j]
                )
            np.testing.assert_allclose(scores, expected, atol=1e-12)


@given(pairs(), st.sampled_from([1, 8, 40, 100, 2**18]))
def test_additive_gives_the_same_in_blocks_of_any_size(pair, limit):
    query, key = (tensor.requires_grad_() for tensor in pair)
    score = AdditiveScore(QUERY_DIM, KEY_DIM, HIDDEN_DIM).double()
    inputs = [query, key, *score.parameters()]
    expected = plain_additive(score, query, key)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_BLOCK_CPU", limit)
        scores = score(query, key)
        found = torch.autograd.grad((scores * weight).sum(), inputs)
    torch.testing.assert_close(scores, expected)
    for gradient, reference in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, reference)


@given(*(st.integers(1, 9) for _ in range(5)))
def test_blocks_fill_the_limit_and_stay_below_it(
    batch, num_queries, num_keys, hidden, limit
):
    query = torch.zeros(batch, num_queries, hidden)
    key = torch.zeros(batch, num_keys, hidden)
    limit *= 20
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_BLOCK_CPU", limit)
        buffer, rows, queries = scoring._blocks(query, key)
    per_query = num_keys * hidden
    assert buffer.numel() == rows * queries * per_query
    assert buffer.numel() <= max(limit, per_query)
    # Whole rows where one fits, whole queries of one row where none does.
    if num_queries * per_query <= limit:
        assert queries == num_queries
        assert rows == min(batch, limit // (num_queries * per_query))
    else:
        assert rows == 1
        assert queries == max(1, limit // per_query)


def test_the_vector_starts_small_on_both_sides_of_zero():
    score = AdditiveScore(3, 3, 400)
    assert score.vector.abs().max() <= 1 / 20
    assert score.vector.min() < -1 / 25
    assert score.vector.max() > 1 / 25


def test_bilinear_with_the_identity_is_the_dot_product():
    score = BilinearScore(4, 4).double()
    with torch.no_grad():
        score.weight.copy_(torch.eye(4))
    query, key = small(2, 3, 4), small(2, 5, 4)
    torch.testing.assert_close(score(query, key), dot_score(query, key))


def test_concat_of_luong_is_the_additive_score():
    score = AdditiveScore(QUERY_DIM, KEY_DIM, HIDDEN_DIM).double()
    stacked = torch.cat(
        [score.query_proj.weight, score.key_proj.weight], dim=1
    )
    query, key = small(2, 4, QUERY_DIM), small(2, 6, KEY_DIM)
    joined = torch.cat(
        [
            query[:, :, None].expand(-1, -1, 6, -1),
            key[:, None].expand(-1, 4, -1, -1),
        ],
        dim=-1,
    )
    concat = torch.tanh(joined @ stacked.T) @ score.vector
    torch.testing.assert_close(score(query, key), concat)


def test_additive_scores_never_exceed_the_sum_of_the_vector():
    score = AdditiveScore(QUERY_DIM, KEY_DIM, HIDDEN_DIM).double()
    bound = score.vector.abs().sum()
    query, key = 1e6 * small(2, 9, QUERY_DIM), 1e6 * small(2, 9, KEY_DIM)
    assert (score(query, key).abs() <= bound * (1 + 1e-12)).all()


# --- shapes -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dot", "bilinear", "additive"])
@pytest.mark.parametrize(
    ("batch", "queries", "keys"),
    [((1,), 1, 1), ((2,), 1, 1), ((1,), 1, 4), ((1,), 4, 1), ((), 1, 1)],
)
def test_axes_of_length_one_are_kept(kind, batch, queries, keys):
    score = scores_of(2)[kind]
    scores = score(small(*batch, queries, 2), small(*batch, keys, 2))
    assert scores.shape == (*batch, queries, keys)


@pytest.mark.parametrize("kind", ["dot", "bilinear", "additive"])
@pytest.mark.parametrize(
    ("batch", "queries", "keys"), [((0,), 3, 4), ((2,), 0, 4), ((2,), 3, 0)]
)
def test_empty_batches_and_lengths_work_with_gradients(
    kind, batch, queries, keys
):
    query, key = small(*batch, queries, 2), small(*batch, keys, 2)
    scores = scores_of(2)[kind](query, key)
    assert scores.shape == (*batch, queries, keys)
    scores.sum().backward()
    for tensor in (query, key):
        assert tensor.grad.shape == tensor.shape
        assert not tensor.grad.any()


def test_inputs_that_are_views_are_read_as_they_look():
    for score in scores_of(3).values():
        query = torch.randn(3, 4, 2, dtype=torch.float64).permute(2, 1, 0)
        key = torch.randn(2, 6, 6, dtype=torch.float64)[:, ::2, ::2]
        copies = query.contiguous(), key.contiguous()
        torch.testing.assert_close(score(query, key), score(*copies))


# --- gradients --------------------------------------------------------------


def test_gradients_are_right_for_inputs_and_parameters():
    query, key = small(2, 1, 4, QUERY_DIM), small(3, 6, KEY_DIM)
    for score in modules():
        names = [name for name, _ in score.named_parameters()]

        def call(query, key, *values, score=score, names=names):
            parameters = dict(zip(names, values, strict=True))
            return torch.func.functional_call(score, parameters, (query, key))

        inputs = (query, key, *score.parameters())
        assert torch.autograd.gradcheck(call, inputs)
    same = small(3, 2, QUERY_DIM)
    assert torch.autograd.gradcheck(dot_score, (query, same))


def test_one_tensor_may_be_query_and_key():
    tensor = small(2, 4, 3)
    score = AdditiveScore(3, 3, HIDDEN_DIM).double()
    assert torch.autograd.gradcheck(lambda x: score(x, x), (tensor,))


def test_additive_says_that_second_derivatives_are_missing():
    query, key = small(2, 3, QUERY_DIM), small(2, 4, KEY_DIM)
    score = AdditiveScore(QUERY_DIM, KEY_DIM, HIDDEN_DIM).double()
    (gradient,) = torch.autograd.grad(
        score(query, key).sum(), query, create_graph=True
    )
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        gradient.sum().backward()


def test_parameters_alone_may_need_a_gradient():
    query, key = small(2, 3, QUERY_DIM), small(2, 4, KEY_DIM)
    for score in modules():
        score(query.detach(), key.detach()).sum().backward()
        for parameter in score.parameters():
            assert parameter.grad.any()


# --- precision --------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["dot", "bilinear", "additive"])
def test_half_inputs_are_scored_in_float32(kind, dtype):
    score = scores_of(80, dtype)[kind]
    query = torch.randn(2, 3, 80).to(dtype).requires_grad_()
    key = torch.randn(2, 5, 80).to(dtype).requires_grad_()
    scores = score(query, key)
    assert scores.dtype == torch.float32
    wide = score if kind == "dot" else scores_of(80, torch.float64)[kind]
    if kind != "dot":
        wide.load_state_dict(score.state_dict())
    expected = wide(query.double(), key.double()).float()
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    scores.sum().backward()
    assert query.grad.dtype == key.grad.dtype == dtype


def test_a_score_that_half_precision_cannot_hold_is_finite():
    query = key = torch.full((1, 2, 80), 256.0, dtype=torch.float16)
    assert (dot_score(query, key) == 256.0**2 * 80).all()


@pytest.mark.parametrize("kind", ["dot", "bilinear", "additive"])
def test_autocast_changes_no_digit(kind):
    score = scores_of(16, torch.float32)[kind]
    query, key = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    expected = score(query, key)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = score(query, key)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, expected)


# --- memory -----------------------------------------------------------------


def peak_bytes(function):
    """Return the most memory that was in use at once, by torch's count."""
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(np.cumsum([event.nbytes() for event in changes]), default=0)


def test_additive_needs_an_eighth_of_the_plain_forms_memory():
    batch, length, width = 4, 64, 256
    score = AdditiveScore(width, width, width)
    query = torch.randn(batch, length, width, requires_grad=True)
    key = torch.randn(batch, length, width, requires_grad=True)
    plain = peak_bytes(
        lambda: plain_additive(score, query, key).sum().backward()
    )
    blocks = peak_bytes(lambda: score(query, key).sum().backward())
    whole = 4 * batch * length**2 * width
    assert plain >= 2 * whole
    assert blocks <= plain / 8
    assert blocks <= whole / 4


# --- conduct ----------------------------------------------------------------


def test_inputs_are_not_written_to():
    query, key = small(2, 3, 4), small(2, 5, 4)
    copies = query.detach().clone(), key.detach().clone()
    for score in scores_of(4).values():
        score(query, key).sum().backward()
    assert torch.equal(query, copies[0])
    assert torch.equal(key, copies[1])


def test_parameters_have_the_promised_names_and_shapes():
    bilinear, additive = modules()
    assert {n: tuple(p.shape) for n, p in bilinear.named_parameters()} == {
        "weight": (QUERY_DIM, KEY_DIM)
    }
    assert {n: tuple(p.shape) for n, p in additive.named_parameters()} == {
        "query_proj.weight": (HIDDEN_DIM, QUERY_DIM),
        "key_proj.weight": (HIDDEN_DIM, KEY_DIM),
        "vector": (HIDDEN_DIM,),
    }


def test_modules_pickle_and_print_their_widths():
    query, key = small(2, 3, QUERY_DIM), small(2, 4, KEY_DIM)
    for score in modules():
        again = pickle.loads(pickle.dumps(score))
        assert torch.equal(again(query, key), score(query, key))
        assert f"query_dim={QUERY_DIM}, key_dim={KEY_DIM}" in repr(score)


def test_the_same_seed_draws_the_same_parameters():
    for build in (
        lambda: BilinearScore(QUERY_DIM, KEY_DIM),
        lambda: AdditiveScore(QUERY_DIM, KEY_DIM, HIDDEN_DIM),
    ):
        torch.manual_seed(3)
        first = build().state_dict()
        torch.manual_seed(3)
        second = build().state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_shapes_are_known_without_computing():
    for score in scores_of(3, torch.float32).values():
        if isinstance(score, torch.nn.Module):
            score.to("meta")
        query = torch.empty(2, 1, 4, 3, device="meta")
        key = torch.empty(5, 6, 3, device="meta")
        assert score(query, key).shape == (2, 5, 4, 6)


@pytest.mark.plain
@pytest.mark.parametrize("kind", ["dot", "bilinear", "additive"])
def test_compiles_into_one_graph_forward_and_backward(kind):
    score = scores_of(3)[kind]
    compiled = torch.compile(score, fullgraph=True, backend="aot_eager")
    for sizes in ((2, 4, 6), (3, 5, 2)):
        batch, queries, keys = sizes
        query, key = small(batch, queries, 3), small(batch, keys, 3)
        results = [
            torch.autograd.grad(f(query, key).sin().sum(), (query, key))
            for f in (score, compiled)
        ]
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("score", "query", "key", "error", "words"),
    [
        (dot_score, (2, 3), (4, 5), ValueError, ["equal widths", "(2, 3)"]),
        (dot_score, (3,), (4, 3), ValueError, ["query", "(3,)"]),
        (dot_score, (2, 3), (3,), ValueError, ["key", "(3,)"]),
        (
            dot_score,
            (2, 4, 3),
            (5, 4, 3),
            ValueError,
            ["leading", "(2, 4, 3)", "(5, 4, 3)"],
        ),
        (
            BilinearScore(3, 5),
            (2, 4),
            (2, 5),
            ValueError,
            ["query", "query_dim=3", "(2, 4)"],
        ),
        (
            BilinearScore(3, 5),
            (2, 3),
            (2, 3),
            ValueError,
            ["key", "key_dim=5", "(2, 3)"],
        ),
        (
            AdditiveScore(3, 5, 7),
            (2, 5),
            (2, 5),
            ValueError,
            ["query", "query_dim=3", "(2, 5)"],
        ),
        (
            AdditiveScore(3, 5, 7),
            (2, 3),
            (2, 7),
            ValueError,
            ["key", "key_dim=5", "(2, 7)"],
        ),
    ],
)
def test_errors_name_the_argument_and_the_shapes(
    score, query, key, error, words
):
    with pytest.raises(error) as caught:
        score(torch.zeros(query), torch.zeros(key))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.plain
def test_token_ids_are_refused_with_a_hint():
    ids, vectors = torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3)
    with pytest.raises(TypeError, match=r"query .*int64.*token ids"):
        dot_score(ids, vectors)
    with pytest.raises(TypeError, match=r"key .*int64.*token ids"):
        dot_score(vectors, ids)


@pytest.mark.plain
def test_devices_that_differ_are_named():
    with pytest.raises(ValueError, match="query and key must be on one"):
        dot_score(torch.zeros(2, 3), torch.zeros(2, 3, device="meta"))


@pytest.mark.plain
@pytest.mark.parametrize("name", ["query_dim", "key_dim", "hidden_dim"])
def test_widths_must_be_positive(name):
    widths = {"query_dim": 2, "key_dim": 2, "hidden_dim": 2, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        AdditiveScore(**widths)
    if name != "hidden_dim":
        del widths["hidden_dim"]
        with pytest.raises(ValueError, match=f"{name} must be at least 1"):
            BilinearScore(**widths)


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_derivative_in_forward_mode_is_refused_and_not_zero():
    score = AdditiveScore(4, 4, 3).requires_grad_(False)
    query, key = torch.randn(2, 4), torch.randn(3, 4)
    with pytest.raises(NotImplementedError, match=r"AdditiveScore .* forward"):
        torch.func.jvp(lambda q: score(q, key), (query,), (query,))
    with pytest.raises(NotImplementedError, match=r"AdditiveScore .* forward"):
        torch.func.jacfwd(lambda k: score(query, k))(key)
