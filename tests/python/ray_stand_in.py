"""The names of Ray that powerinfer_cpp.ray uses, in one process: for tests of what is ours.

With Ray itself it runs in test_ray.py.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest


class Dataset:
    """Rows, which are mapped when they are asked for."""

    def __init__(self, rows: list[dict[str, Any]]):
        self._rows = rows

    def map_batches(
        self, kind: type, *, batch_size: int, fn_constructor_kwargs: dict[str, Any], **_: Any
    ) -> Dataset:
        """As Ray's, with one actor."""
        actor, found = kind(**fn_constructor_kwargs), []
        for first in range(0, len(self._rows), batch_size):
            part = self._rows[first : first + batch_size]
            batch = {name: np.array([row[name] for row in part], object) for name in part[0]}
            done = actor(batch)
            for i in range(len(next(iter(done.values())))):
                found.append({name: values[i] for name, values in done.items()})
        return Dataset(found)

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """The rows."""
        return iter(self._rows)


class Deployment:
    """A class that Serve would run."""

    def __init__(self, kind: Any):
        self.kind, self.options = kind, {}

    def bind(self, *arguments: Any) -> tuple[Any, ...]:
        """The class, and what its instances are made with."""
        return (self.kind, *arguments)


class Handle:
    """A deployment's handle, with a replica in this process. lost: it ends after so many messages,
    with an error."""

    def __init__(self, replica: Any):
        self._replica, self.lost, self.asgi = replica, 1 << 30, self

    def options(self, **_: Any) -> Handle:
        """The same."""
        return self

    async def remote(self, *arguments: Any) -> AsyncIterator[Any]:
        """The messages of an answer."""
        n = 0
        async for message in self._replica.asgi(*arguments):
            if n == self.lost:
                raise RuntimeError("the actor died")
            yield message
            n += 1


def deployment(kind: Any = None, **_: Any) -> Any:
    """serve.deployment, as a decorator and as a function."""
    return Deployment(kind) if kind is not None else Deployment


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], types.ModuleType]:
    """Imports a module of powerinfer_cpp.ray, by its name."""
    for name in [n for n in sys.modules if n.split(".")[0] == "ray" or ".ray" in n]:
        monkeypatch.delitem(sys.modules, name)

    def module(name: str, **names: Any) -> None:
        made = types.ModuleType(name)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)

    module("ray")
    module("ray.data", Dataset=Dataset, ActorPoolStrategy=lambda size: size)
    module("ray.serve", deployment=deployment, Application=object)
    module("ray.serve.config", RequestRouterConfig=lambda **given: given)
    module("ray.serve.handle", DeploymentHandle=Handle)
    sys.modules["ray"].serve = sys.modules["ray.serve"]  # type: ignore[attr-defined]

    def found(name: str) -> types.ModuleType:
        made = importlib.import_module(f"powerinfer_cpp.ray.{name}")
        for each in [n for n in sys.modules if n.startswith("powerinfer_cpp.ray")]:
            monkeypatch.setitem(sys.modules, each, sys.modules[each])
        return made

    return found
