"""Whatever the packages of OpenAI and Anthropic know as a part, an item, a message or a tool is
read: examples are drawn from their types."""

from __future__ import annotations

import collections.abc
import json
import random
import types
from collections.abc import Callable, Sequence
from typing import Any, Union

import pytest
import typing_extensions as typing
from circles import pick
from serving import later

for _name in ("anthropic", "openai"):
    later(_name)

from powerinfer_cpp.server.dialects.histories import of_items, of_messages  # noqa: E402
from powerinfer_cpp.server.dialects.offered import Offered  # noqa: E402
from powerinfer_cpp.text.chat import check_messages  # noqa: E402
from powerinfer_cpp.text.tools import ToolRequest  # noqa: E402

pytestmark = pytest.mark.slow  # the packages' types take seconds to import

N = pick(20, 100)  # examples of each
WORD = "qzword"
ASK, SAID = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}


class Examples:
    """Draws values of types; fields that need not be there are there half of the time."""

    def __init__(self, seed: int):
        self._rng = random.Random(seed)

    def of(self, kind: Any, depth: int = 0) -> Any:
        origin, of = typing.get_origin(kind), typing.get_args(kind)
        if typing.is_typeddict(kind):
            fields = typing.get_type_hints(kind, include_extras=True)
            return {
                name: self.of(field, depth + 1)
                for name, field in fields.items()
                if name == "type" or "Required[" in str(field)[:40] or self._rng.random() < 0.5
            }
        if origin is typing.Literal:
            return self._rng.choice(of)
        if origin in (Union, types.UnionType):
            return self.of(self._rng.choice([each for each in of if each is not type(None)]), depth)
        if origin in (typing.Required, typing.NotRequired, typing.Annotated):
            return self.of(of[0], depth)
        if origin in (collections.abc.Mapping, dict):
            return {"k": self.of(of[1], depth + 1)} if depth < 8 else {}
        if origin is not None and "Sequence" not in str(origin):
            return [self.of(of[0], depth + 1)] if depth < 8 else []
        simple = {int: 1, float: 0.5, bool: False, object: {"type": "object"}, Any: {}}
        return [WORD] if "Sequence" in str(kind) else simple.get(kind, WORD)


def dicts_of(union: Any) -> list[Any]:
    """The dicts of a union, of unions as well."""
    found = [] if typing.is_typeddict(union) else typing.get_args(union)
    return [union] if not found else [each for part in found for each in dicts_of(part)]


def every(union: Any, use: Callable[[Any], object]) -> int:
    """Uses examples of all dicts of a union; how many kinds there are."""
    kinds = [kind for kind in dicts_of(union) if typing.is_typeddict(kind)]
    for i, kind in enumerate(kinds):
        examples = Examples(i)
        for _ in range(N):
            example = examples.of(kind)
            try:
                use(example)
            except Exception as error:
                raise AssertionError(json.dumps(example, default=str)[:1000]) from error
    return len(kinds)


def check(messages: Sequence[Any]) -> None:
    """They are messages as templates take them."""
    for message in check_messages(messages):
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)
        json.dumps(message)


def test_blocks_of_anthropic() -> None:
    from anthropic.types.beta.beta_content_block_param import BetaContentBlockParam

    def use(block: dict[str, Any]) -> None:
        check(of_messages([ASK, {"role": "assistant", "content": [block]}, ASK]).messages)
        result = {"type": "tool_result", "tool_use_id": "x", "content": [block]}
        check(of_messages([ASK, SAID, {"role": "user", "content": [result]}]).messages)
        thinks = "thinking" in block["type"] or block["type"].endswith("tool_use")
        if not thinks:
            for role in ("user", "system"):
                check(of_messages([ASK, {"role": role, "content": [block]}, SAID]).messages)

    assert every(BetaContentBlockParam, use) > 20


def test_items_of_responses() -> None:
    from openai.types.responses.response_input_item_param import ResponseInputItemParam

    def use(item: dict[str, Any]) -> None:
        if item.get("type") != "configuration_update":  # which may ask for a format
            history = of_items([ASK, item, SAID])
            check(history.messages)
            Offered.of([], history.tools)

    assert every(ResponseInputItemParam, use) > 25


def test_messages_of_chats() -> None:
    from openai.types.chat import ChatCompletionMessageParam

    def use(message: dict[str, Any]) -> None:
        check(of_messages([ASK, message, SAID]).messages)

    assert every(ChatCompletionMessageParam, use) > 5


def test_tools() -> None:
    from anthropic.types.beta import BetaToolUnionParam
    from openai.types.chat import ChatCompletionToolUnionParam
    from openai.types.responses import ToolParam

    def offer(anthropic: bool) -> Callable[[Any], object]:
        return lambda tool: ToolRequest.of(Offered.of([tool], [], anthropic).tools)

    assert every(BetaToolUnionParam, offer(anthropic=True)) > 10
    assert every(ChatCompletionToolUnionParam, offer(anthropic=False)) == 2
    assert every(ToolParam, offer(anthropic=False)) > 10
