"""One table of names, one kind of docstring, in all modules of concepts."""

import importlib
import inspect
import pkgutil
import pydoc
import re

import pytest

import attention_lib

MODULES = [
    importlib.import_module(f"attention_lib.{module.name}")
    for module in pkgutil.iter_modules(attention_lib.__path__)
    if module.name != "course" and not module.name.startswith("_")
]
# Axes that annotations and docstrings speak of, in every module ...
AXES = {
    *("B", "H", "H_kv", "T", "Tq", "Tk", "Ts", "Tt", "V", "batch", "or"),
    *("d_q", "d_k", "d_v", "d_model", "d_ff", "d_head", "kdim", "vdim"),
    *("width", "query_dim", "key_dim", "rows", "new", "cached"),
}
# ... and what one module alone has to name.
LOCAL = {
    "efficient": {"n"},
    "generation": {"all"},
    "interop": {"one"},
    "leaks": {"features"},
    "masks": {"columns"},
    "multihead": {"Tall"},
    "positions": {"some"},
    "seq2seq": {"N", "c", "d", "e", "h", "heads"},
    "transformer": {"all", "layers", "d_memory"},
}
# What others call it, and what it is called here.
SYNONYMS = {
    "num_queries": "query_length",
    "num_keys": "key_length",
    "seq_len": "T, Tq or Tk",
    "sequence_length": "T, Tq or Tk",
    "n_heads": "num_heads",
    "nhead": "num_heads",
    "kv_heads": "num_kv_heads",
    "embed_dim": "d_model",
    "model_dim": "d_model",
    "head_dim": "d_head",
    "dim_feedforward": "d_ff",
    "ffn_dim": "d_ff",
    "norm_first": "pre_norm",
    "vocabulary_size": "vocab_size",
    "rope": "rotary",
    "log_sum_exp": "logsumexp",
    "average_attn_weights": "need_weights",
}
# A hidden layer of a recurrent model or a score has no other name.
HIDDEN = {"seq2seq", "scores"}


def things():
    """Every public function, class and method, with where it stands."""
    for module in MODULES:
        for name in getattr(module, "__all__", []):
            thing = getattr(module, name)
            yield module, name, thing
            for method, part in (
                vars(thing).items() if inspect.isclass(thing) else ()
            ):
                part = getattr(part, "__func__", getattr(part, "fget", part))
                if inspect.isfunction(part) and (
                    method == "__init__" or method[0] != "_"
                ):
                    yield module, f"{name}.{method}", part


THINGS = [
    pytest.param(
        module.__name__.split(".")[-1], thing, id=f"{module.__name__}.{name}"
    )
    for module, name, thing in things()
    if callable(thing)
]
EACH = pytest.mark.parametrize(("module", "thing"), THINGS)


def text_of(thing):
    """Its docstring without the last line, the exporter's."""
    return re.sub(r"\n+Built in section .*$", "", inspect.getdoc(thing) or "")


@EACH
def test_axes_have_the_names_of_the_table(module, thing):
    annotations = getattr(thing, "__annotations__", {}).values()
    axes = [
        axis.lstrip("*#")
        for annotation in map(str, annotations)
        for shape in re.findall(r"\[Tensor, ['\"](.*?)['\"]\]", annotation)
        for axis in shape.split()
    ]
    for shape in re.findall(
        r"``\(([^()`=]*,[^()`=]*)\)``", text_of(thing).replace("\n", " ")
    ):
        axes += re.findall(r"[A-Za-z_]+", shape)
    known = AXES | LOCAL.get(module, set()) | {"...", "_", "1"}
    assert set(axes) <= known, "another letter for an axis that has a name?"


@EACH
def test_arguments_have_the_names_of_the_table(module, thing):
    parameters = {}
    if not inspect.isclass(thing):
        parameters = inspect.signature(thing).parameters
    names = set(parameters)
    if module != "interop":  # which speaks of PyTorch's
        names |= set(re.findall(r"``(\w+)``", text_of(thing)))
    for name in names & set(SYNONYMS):
        pytest.fail(f"{name} is called {SYNONYMS[name]}")
    assert "hidden_dim" not in names or module in HIDDEN
    if parameter := parameters.get("need_weights"):
        assert parameter.default is False
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


@EACH
def test_a_docstring_fits_beside_its_code_and_reads_as_plain_text(
    module, thing
):
    text = text_of(thing)
    if thing.__name__ == "__init__":
        return
    assert text, "no docstring"
    assert len(text.splitlines()) <= 17
    assert re.match(r"[A-Z].*[.:]$", text.split("\n\n")[0].replace("\n", " "))
    assert not re.search(r":\w+:`|`_|\.\. \w+::|Args:|Returns:", text)


def test_help_in_a_terminal_shows_no_markup():
    """PyTorch's own methods, which follow ours, are PyTorch's affair."""
    layer = attention_lib.MultiHeadAttention
    for thing in (layer, layer.forward, layer.from_torch, layer.to_torch):
        shown = pydoc.plain(pydoc.render_doc(thing))
        shown = shown.split("Methods inherited from")[0]
        assert inspect.getdoc(thing).splitlines()[0] in shown
        assert not re.search(r":\w+:`", shown)
