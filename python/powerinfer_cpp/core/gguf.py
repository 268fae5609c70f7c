"""Reads GGUF files through the engine's validating reader.

Headers come from the C API, which checks every length against the size of the file; tensor data are
then mapped with numpy. (The `gguf` package is used only for writing: its reader trusts lengths that
a hostile file can choose.)
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .._native import ffi, lib
from .errors import check, encoded
from .structs import sized

Value = bool | int | float | str | list[Any]

_NOT_INTEGERS = {lib.PI_F32, lib.PI_F64, lib.PI_STRING, lib.PI_ARRAY}
_OF_STATES = "shortconv.l_cache", "ssm.conv_kernel"  # keys of models whose layers have a state
_RANK = 4  # a pooling_type
_CHUNK = 1 << 16  # array elements fetched by one call


@dataclass(frozen=True)
class Tensor:
    """The description of a tensor in the file.

    shape: numpy's order, slowest dimension first (GGUF's sizes reversed). type, type_name: GGUF id
    and name of the format. offset: bytes from the start of part `file`, an index into Gguf.files.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    type_name: str
    offset: int
    n_bytes: int
    file: int

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        n = 1
        for size in self.shape:
            n *= size
        return n


class Gguf:
    """An open GGUF or PWRI file; for the first file of a split set, with all parts.

    Raises OSError (FileNotFoundError ...) and ModelFormatError. Strings that are not UTF-8 have
    surrogate escapes: `s.encode("utf-8", "surrogateescape")` returns the original bytes.
    """

    def __init__(self, path: str | Path):
        out = ffi.new("pi_gguf **")
        check(lib.pi_gguf_open(encoded(str(path)), out), str(path))
        self._handle = ffi.gc(out[0], lib.pi_gguf_free)

    @classmethod
    def borrowed(cls, handle: Any, owner: Any) -> "Gguf":
        """The header of `owner`, which is kept alive; closing it does nothing."""
        self = cls.__new__(cls)
        self._handle, self._owner = handle, owner
        return self

    def close(self) -> None:
        """Frees the header. Mapped tensor data stay usable."""
        if self._handle is not None and not hasattr(self, "_owner"):
            ffi.release(self._handle)
        self._handle = None

    def __enter__(self) -> "Gguf":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open(self) -> Any:
        if self._handle is None:
            raise ValueError("the GGUF file is closed")
        return self._handle

    @cached_property
    def version(self) -> int:
        """Version of the format: 1, 2 or 3."""
        return lib.pi_gguf_version(self._open)

    @cached_property
    def is_pwri(self) -> bool:
        """Whether it has PowerInfer's magic, with other default activations (ReLU for llama)."""
        return lib.pi_gguf_is_pwri(self._open)

    @cached_property
    def files(self) -> list[str]:
        """Paths of the parts."""
        handle = self._open
        return [
            ffi.string(lib.pi_gguf_file(handle, i)).decode("utf-8", "surrogateescape")
            for i in range(lib.pi_gguf_n_files(handle))
        ]

    @cached_property
    def metadata(self) -> dict[str, Value]:
        """Keys and values as Python types, in the file's order.

        The C API returns integers as int64: U64 values beyond 2^63 - 1 become that number.
        """
        return {key: self._value(i) for key, i in self._index.items()}

    @cached_property
    def types(self) -> dict[str, tuple[int, int]]:
        """Value type of every key and, for arrays, the element type (pi_value_type)."""
        return {key: self._describe(i)[1:3] for key, i in self._index.items()}

    @property
    def n_ctx_train(self) -> int:
        """Positions of the training context, as far as the engine computes them; 0 if the file does
        not say."""
        found = self.value(f"{self.value('general.architecture')}.context_length")
        trained = found if isinstance(found, int) and found > 0 else 0
        return min([trained, *self._indexed()])

    @property
    def n_ctx_text(self) -> int:
        """Tokens of the longest text of which the model's authors make a vector; 0: the file does
        not say, and is no encoder's."""
        most = self.value("powerinfer.embedding.max_tokens")
        if isinstance(most, int) and most > 0:
            return min(most, self.n_ctx_train or most)
        arch = self.value("general.architecture")
        return 0 if self.value(f"{arch}.attention.causal", True) else self.n_ctx_train

    @property
    def gives_no_text(self) -> bool:
        """Does the file say that its model gives vectors or scores, and no tokens? Others may not
        say it: `Runtime.gives_no_text` knows."""
        arch = self.value("general.architecture")
        ranks = self.value(f"{arch}.pooling_type") == _RANK
        if ranks and any(tensor.name == "cls.output.weight" for tensor in self.tensors):
            return True
        return self.value(f"{arch}.attention.causal", True) is False

    def _indexed(self) -> list[int]:
        """Of layers with an indexer: positions of which a row sees all (qwen4exp.cpp)."""
        key = f"{self.value('general.architecture')}.attention"
        kept, blocks = self.value(f"{key}.indexer.top_k"), self.value(f"{key}.compress_ratios")
        if not isinstance(kept, int) or not isinstance(blocks, list):
            return []
        sizes = [size for size in blocks if isinstance(size, int) and 0 < size <= kept]
        return [kept // size * size + size - 1 for size in sizes]

    @property
    def has_states(self) -> bool:
        """Do some of the model's layers have a state (docs/states.md)?"""
        of = self.value("general.architecture")
        return any(f"{of}.{key}" in self._index for key in _OF_STATES)

    def value(self, key: str, default: Value | None = None) -> Value | None:
        """One value, or `default`; does not read the others."""
        i = self._index.get(key)
        return default if i is None else self._value(i)

    def length(self, key: str) -> int:
        """Number of elements of an array, without reading them; 1 for other values."""
        return self._describe(self._index[key])[3]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {self._describe(i)[0]: i for i in range(lib.pi_gguf_n_values(self._open))}

    def _describe(self, i: int) -> tuple[str, int, int, int]:
        key, size, count = ffi.new("char const **"), ffi.new("size_t *"), ffi.new("uint64_t *")
        kind, element = ffi.new("pi_value_type *"), ffi.new("pi_value_type *")
        check(lib.pi_gguf_value(self._open, i, key, size, kind, element, count))
        is_array = kind[0] == lib.PI_ARRAY
        return _text(key[0], size[0]), kind[0], element[0], count[0] if is_array else 1

    def _value(self, i: int) -> Value:
        _, kind, element, count = self._describe(i)
        if kind != lib.PI_ARRAY:
            return self._elements(i, kind, 1)[0]
        return self._elements(i, element, count)

    def _elements(self, i: int, kind: int, count: int) -> list[Any]:
        handle = self._open
        if kind == lib.PI_STRING:
            text, size = ffi.new("char const **"), ffi.new("size_t *")
            strings = []
            for k in range(count):
                check(lib.pi_gguf_string(handle, i, k, text, size))
                strings.append(_text(text[0], size[0]))
            return strings
        whole = kind not in _NOT_INTEGERS
        fetch, ctype = (
            (lib.pi_gguf_integers, "int64_t[]") if whole else (lib.pi_gguf_numbers, "double[]")
        )
        buffer = ffi.new(ctype, min(count, _CHUNK))
        values: list[Any] = []
        for first in range(0, count, _CHUNK):
            n = min(_CHUNK, count - first)
            check(fetch(handle, i, first, n, buffer))
            values += ffi.unpack(buffer, n)
        return [bool(v) for v in values] if kind == lib.PI_BOOL else values

    @cached_property
    def tensors(self) -> list[Tensor]:
        """Every tensor, in the file's order."""
        handle, info = self._open, sized("pi_tensor_info")
        tensors = []
        for i in range(lib.pi_gguf_n_tensors(handle)):
            check(lib.pi_gguf_tensor(handle, i, info))
            tensors.append(
                Tensor(
                    ffi.string(info.name).decode("utf-8", "surrogateescape"),
                    tuple(info.ne[d] for d in reversed(range(info.n_dims))),
                    info.type,
                    ffi.string(info.type_name).decode(),
                    info.offset,
                    info.n_bytes,
                    info.file,
                )
            )
        return tensors

    def data(self, tensor: Tensor) -> np.ndarray:
        """Raw bytes of a tensor: uint8 [n_bytes], mapped read-only."""
        if tensor.n_bytes == 0:
            return np.empty(0, dtype=np.uint8)
        return np.memmap(
            self.files[tensor.file], np.uint8, "r", offset=tensor.offset, shape=(tensor.n_bytes,)
        )


def _text(data: Any, size: int) -> str:
    return bytes(ffi.buffer(data, size)).decode("utf-8", "surrogateescape")
