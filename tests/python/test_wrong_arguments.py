"""Arguments that are none: a sentence that names the argument, without insides of the package."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny
from powerinfer_cpp.run.options import Options
from powerinfer_cpp.text.answers import Samplers
from test_chat import CHATML

from powerinfer_cpp import Llama


class Thing:
    """No value of any argument."""

    def __repr__(self) -> str:
        return "Thing"


WRONG = (Thing(), "x", 5, -5.5, [1], {"a": Thing()}, b"x", None, float("nan"), [None])
# Words of Python, or of the package's insides.
INSIDE = re.compile(
    r"__\w+__|object is not|object at 0x|has no attribute|cdata|unhashable|operand|subscriptable|"
    r"must be str|must be real|unexpected keyword|multiple values|not supported between|"
    r"literal for int|can only concatenate|indices|coerced|'\w+' object|Sampling|LlamaTokens|"
    r"Options"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("wrong"), CHATML)


@pytest.fixture(scope="module")
def llm(path: Path) -> Llama:
    llm = Llama(path, n_ctx=64, verbose=False)
    llm.eval([1, 5])
    return llm


def names(call: Callable[..., Any], *but: str) -> list[str]:
    found = inspect.signature(call).parameters.values()
    return [p.name for p in found if p.kind != p.VAR_KEYWORD and p.name not in ("self", *but)]


def wrong(
    call: Callable[..., Any], given: Mapping[str, Any], arguments: Iterable[str]
) -> list[str]:
    """What is said of wrong values in words that tell the caller little."""
    found = []
    for name in arguments:
        for value in WRONG:
            try:
                result = call(**{**given, name: value})
                if hasattr(result, "__next__"):
                    next(result)
            except Exception as error:  # noqa: BLE001
                said = str(error)
                if not isinstance(error, OSError):  # which names the file
                    told = INSIDE.search(said) or not re.search(name.split("_")[0], said)
                    found += [f"{name}={value!r}: {type(error).__name__}: {said}"] if told else []
    return found


MORE = tuple(Samplers.__annotations__)


@pytest.mark.parametrize(
    ("method", "given", "but"),
    [
        ("create_completion", {"prompt": "x", "max_tokens": 1}, ()),
        # What these hold is told as messages' content is, and adapters by their paths.
        (
            "create_chat_completion",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
            ("chat_template_kwargs",),
        ),
        ("sample", {}, ("idx",)),
        ("generate", {"tokens": [1, 5]}, ()),
    ],
)
def test_wrong_values(
    llm: Llama, method: str, given: Mapping[str, Any], but: tuple[str, ...]
) -> None:
    call = getattr(llm, method)
    assert not wrong(call, given, [*names(call, *but), *MORE])


def test_wrong_values_of_llama(path: Path) -> None:
    def opened(**given: Any) -> None:
        Llama(path, **{"n_ctx": 64, "verbose": False, **given}).close()

    arguments = names(Options.__init__, "model_path", "verbose", "lora_path", "kv_overrides")
    assert len(arguments) > 40
    assert not wrong(opened, {}, arguments)
    for given, words in (
        ({"lora_path": [1]}, "lora_path must be a path"),
        (
            {"lora_path": {str(path): Thing()}},
            "the scale of adapter .* must be a number",
        ),
        ({"kv_overrides": {"a": Thing()}}, "override of a: Thing is no bool"),
        ({"kv_overrides": 5}, "kv_overrides must map keys"),
    ):
        with pytest.raises(ValueError, match=words):
            opened(**given)


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("create_completion", {"tempertaure": 1}, "did you mean temperature?"),
        ("create_completion", {"n_predict": 1}, "did you mean max_tokens?"),
        ("create_completion", {"xyzzy": 1}, "has no argument 'xyzzy'"),
        ("__call__", {"repetition_penalty": 1}, "did you mean repeat_penalty?"),
        ("create_chat_completion", {"temp": 1}, "did you mean temperature?"),
        ("create_chat_completion", {"json_schema": {}}, "did you mean response_format?"),
        ("sample", {"temperature": 1}, "did you mean temp?"),
        ("generate", {"temperature": 1}, "did you mean temp?"),
        ("generate", {"top_kk": 1}, "did you mean top_k?"),
    ],
)
def test_unknown_arguments(llm: Llama, method: str, given: dict[str, Any], words: str) -> None:
    first: dict[str, Any] = {
        "create_chat_completion": {"messages": [{"role": "user", "content": "hi"}]},
        "sample": {},
        "generate": {"tokens": [1]},
    }.get(method, {"prompt": "x"})
    call = "create_completion" if method == "__call__" else method
    with pytest.raises(TypeError, match=rf"^{call}\(\) has no argument '{next(iter(given))}'") as e:
        found = getattr(llm, method)(**first, **given)
        next(found)
    assert words in str(e.value)


def test_arguments_that_llama_cpp_has_forgotten(llm: Llama) -> None:
    assert llm("x", max_tokens=1, penalize_nl=True, tfs_z=1.0)["usage"]["completion_tokens"] <= 1


@pytest.mark.parametrize("given", [(), ("a", "b"), ("a", 512)])
def test_llama_takes_one_path(given: tuple[Any, ...], path: Path) -> None:
    with pytest.raises(TypeError, match=r"^Llama\(\) takes the path of one model"):
        Llama(*given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^Llama\(\) takes the path of one model"):
        Llama(path, model_path=path)  # type: ignore[misc]
    Llama(model_path=path, vocab_only=True, verbose=False).close()


def test_the_name_embeddings(path: Path) -> None:
    """A fork of llama-cpp-python has it."""
    for name in ("embedding", "embeddings"):
        with Llama(path, n_ctx=64, verbose=False, **{name: True}) as llm:
            assert len(llm.embed("x")) == llm.n_embd()
    with (
        Llama(path, n_ctx=64, verbose=False, embeddings=False) as llm,  # type: ignore[call-arg]
        pytest.raises(ValueError, match="embedding=True"),
    ):
        llm.embed("x")
