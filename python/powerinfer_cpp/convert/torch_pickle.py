"""Reads the pickle of a torch file as data: dicts, lists, numbers, strings, storages and tensors.

`pickle.load` calls functions that a file names and sets attributes that it asks for, so a checked
object can change with the file's next operation. This reader supports the operations that
torch.save writes for state dicts. It calls only its caller's two functions, sets no attributes, and
keeps at most one value per operation.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.errors import ModelFormatError

_MOST_OPERATIONS = 1 << 21  # a tensor takes about 35; each keeps at most about 60 bytes
_ORDERED_DICT = ("collections", "OrderedDict")
_REBUILD = ("torch._utils", "_rebuild_tensor_v2")


class NotPlain(ModelFormatError):
    """Not a zip file of plain tensors."""


class Name:
    """A global that the file names: a storage type, or a function."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name


class _Mark:
    """Where a group of values begins."""


_MARK = _Mark()


def read_pickle(
    path: Path,
    data: bytes,
    storages: frozenset[str],
    storage: Callable[[str, str, int], Any],
    rebuild: Callable[[Any, Any, Any, Any], Any],
) -> Any:
    """The value of the pickle `data` in the file `path`.

    storages: names of torch's storage types. storage(type, key, count) returns a storage,
    rebuild(storage, first, size, stride) a tensor; its arguments may have any type.

    Raises NotPlain for other names, ModelFormatError for anything that torch.save does not write.
    """
    return _Machine(path, data, storages, storage, rebuild).run()


class _Machine:
    def __init__(self, path: Path, data: bytes, storages: Any, storage: Any, rebuild: Any):
        self._path, self._data, self._at = path, data, 0
        self._storages, self._storage, self._rebuild = storages, storage, rebuild
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(_MOST_OPERATIONS):
            code = self._take(1)[0]
            if code == _STOP:
                value = self._pop()
                if self._stack or self._at != len(self._data):
                    raise self._damaged("data after its value")
                return value
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise self._damaged(f"torch does not write operation {code}")
            operation(self)
        raise NotPlain(f"{self._path}: too much data besides its tensors")

    # ---- the bytes and the stack ----

    def _damaged(self, what: str) -> ModelFormatError:
        return ModelFormatError(f"{self._path}: damaged pickle: {what}")

    def _take(self, n: int) -> bytes:
        taken = self._data[self._at : self._at + n]
        if len(taken) != n:
            raise self._damaged("it ends too early")
        self._at += n
        return taken

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise self._damaged("a text is not UTF-8") from None

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise self._damaged("it ends too early")
        line = self._text(self._data[self._at : end])
        self._at = end + 1
        return line

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise self._damaged("an operation lacks its values")
        return self._stack.pop()

    def _group(self) -> list[Any]:
        """The values since the last mark."""
        values = []
        while self._stack and self._stack[-1] is not _MARK:
            values.append(self._stack.pop())
        if not self._stack:
            raise self._damaged("a group without a beginning")
        self._stack.pop()
        return values[::-1]

    def _top(self, kind: type) -> Any:
        value = self._pop()
        if not isinstance(value, kind):
            raise self._damaged(f"an operation wants a {kind.__name__}")
        self._push(value)
        return value

    # ---- operations ----

    def protocol(self) -> None:
        if self._take(1)[0] not in (2, 3):
            raise self._damaged("torch writes protocol 2")

    def mark(self) -> None:
        self._push(_MARK)

    def integer(self, layout: str) -> None:
        self._push(self._number(layout))

    def long(self) -> None:
        self._push(int.from_bytes(self._take(self._take(1)[0]), "little", signed=True))

    def text(self) -> None:
        self._push(self._text(self._take(self._number("<I"))))

    def tuple(self, n: int) -> None:
        values = [self._pop() for _ in range(n)]
        self._push(tuple(values[::-1]))

    def put(self, layout: str) -> None:
        index = self._number(layout)
        # The writer numbers its values consecutively.
        if index > len(self._memo):
            raise self._damaged(f"note {index} comes before note {len(self._memo)}")
        self._memo[index] = self._pop()
        self._push(self._memo[index])

    def get(self, layout: str) -> None:
        index = self._number(layout)
        if index not in self._memo:
            raise self._damaged(f"there is no note {index}")
        self._push(self._memo[index])

    def name(self) -> None:
        module, name = self._line(), self._line()
        known = (module, name) in (_ORDERED_DICT, _REBUILD) or (
            module == "torch" and name in self._storages
        )
        if not known:
            shown = ascii(f"{module}.{name}"[:80])[1:-1]
            raise NotPlain(f"{self._path}: it names {shown}, which is not a plain tensor")
        self._push(Name(module, name))

    def call(self) -> None:
        arguments, called = self._pop(), self._pop()
        if not isinstance(arguments, tuple) or not isinstance(called, Name):
            raise self._damaged("it calls a value that is not a function")
        which = (called.module, called.name)
        if which == _ORDERED_DICT and not arguments:
            self._push({})
        elif which == _REBUILD and len(arguments) >= 4:
            self._push(self._rebuild(*arguments[:4]))
        else:
            raise self._damaged(f"it calls {called.name} with {len(arguments)} values")

    def find_storage(self) -> None:
        pid = self._pop()
        if not isinstance(pid, tuple) or len(pid) != 5:
            raise self._damaged("a storage is not described by five values")
        kind, storage_type, key, _device, count = pid
        known = isinstance(storage_type, Name) and storage_type.module == "torch"
        if not (isinstance(kind, str) and kind == "storage" and known):
            raise NotPlain(f"{self._path}: a storage of an unknown kind")
        if not isinstance(key, str) or type(count) is not int:
            raise self._damaged("a storage's name is not a text, or its size not an integer")
        self._push(self._storage(storage_type.name, key, count))

    def append(self) -> None:
        value = self._pop()
        self._top(list).append(value)

    def extend(self) -> None:
        values = self._group()
        self._top(list).extend(values)

    def set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._set(self._top(dict), key, value)

    def set_items(self) -> None:
        values = self._group()
        if len(values) % 2:
            raise self._damaged("a key without a value")
        target = self._top(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            self._set(target, key, value)

    def _set(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        # The hash of deeply nested tuples can take forever.
        if not isinstance(key, str | int):
            raise self._damaged("a key is neither a text nor an integer")
        target[key] = value

    def build(self) -> None:
        # State dicts of modules have an attribute _metadata with versions, which is not needed.
        self._pop()
        self._top(dict)


_STOP = ord(".")
_OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    ord(code): operation
    for code, operation in {
        "\x80": _Machine.protocol,
        "(": _Machine.mark,
        "N": lambda m: m._push(None),
        "\x88": lambda m: m._push(True),
        "\x89": lambda m: m._push(False),
        "J": lambda m: m.integer("<i"),
        "K": lambda m: m.integer("<B"),
        "M": lambda m: m.integer("<H"),
        "\x8a": _Machine.long,
        "G": lambda m: m.integer(">d"),
        "X": _Machine.text,
        "}": lambda m: m._push({}),
        "]": lambda m: m._push([]),
        ")": lambda m: m._push(()),
        "\x85": lambda m: m.tuple(1),
        "\x86": lambda m: m.tuple(2),
        "\x87": lambda m: m.tuple(3),
        "t": lambda m: m._push(tuple(m._group())),
        "q": lambda m: m.put("<B"),
        "r": lambda m: m.put("<I"),
        "h": lambda m: m.get("<B"),
        "j": lambda m: m.get("<I"),
        "c": _Machine.name,
        "R": _Machine.call,
        "Q": _Machine.find_storage,
        "a": _Machine.append,
        "e": _Machine.extend,
        "s": _Machine.set_item,
        "u": _Machine.set_items,
        "b": _Machine.build,
    }.items()
}
