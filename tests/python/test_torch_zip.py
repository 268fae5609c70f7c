"""torch's zip files written byte by byte: torch's files are read, others give a one-sentence error,
and memory and time are limited by the file's size."""

from __future__ import annotations

import resource
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from powerinfer_cpp.convert.torch_zip import read_torch_tensor, read_torch_zip

from powerinfer_cpp import ModelFormatError

VALUES = np.arange(32, dtype=np.float32)


def text(s: str) -> bytes:
    return b"X" + struct.pack("<I", len(s)) + s.encode()


def number(n: int | float) -> bytes:
    if isinstance(n, float):
        return b"G" + struct.pack(">d", n)
    raw = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def group(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def name(module: str, attribute: str) -> bytes:
    return b"c" + f"{module}\n{attribute}\n".encode()


ORDERED = name("collections", "OrderedDict") + b")R"


def storage(count: int | float = 32, key: bytes = text("0"), kind: str = "FloatStorage") -> bytes:
    return group(text("storage"), name("torch", kind), key, text("cpu"), number(count)) + b"Q"


def tensor(
    first: int | float = 0,
    size: tuple[int | float, ...] = (4, 8),
    stride: tuple[int | float, ...] = (8, 1),
    of: bytes | None = None,
) -> bytes:
    arguments = group(
        storage() if of is None else of,
        number(first),
        group(*map(number, size)),
        group(*map(number, stride)),
        b"\x89",
        ORDERED,
    )
    return name("torch._utils", "_rebuild_tensor_v2") + arguments + b"R"


def state(*pairs: bytes, made: bytes = b"}") -> bytes:
    return b"\x80\x02" + made + b"(" + b"".join(pairs) + b"u."


def save(path: Path, pickled: bytes, data: bytes | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", pickled)
        archive.writestr("m/byteorder", b"little")
        archive.writestr("m/data/0", VALUES.tobytes() if data is None else data)
    return path


def refused(path: Path, pickled: bytes, why: str) -> None:
    with pytest.raises(ModelFormatError, match=why) as error:
        for weight in read_torch_zip(save(path, pickled)).values():
            weight.stored()
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_what_torch_writes(tmp_path: Path) -> None:
    # A module's state dict: an OrderedDict with notes, and an attribute _metadata.
    metadata = b"}" + text("_metadata") + ORDERED + b"sb"
    pickled = (
        b"\x80\x02" + ORDERED + b"q\x00(" + text("w") + b"q\x01" + tensor() + b"r\x02\x00\x00\x00"
        + text("again") + b"h\x02" + text("row") + tensor(8, (8,), (1,)) + b"u" + metadata + b"."
    )  # fmt: skip
    found = read_torch_zip(save(tmp_path / "m.pt", pickled))
    assert list(found) == ["w", "again", "row"]
    assert np.array_equal(found["w"].stored(), VALUES.reshape(4, 8))
    assert np.array_equal(found["again"].stored(), VALUES.reshape(4, 8))
    assert np.array_equal(found["row"].stored(), VALUES[8:16])
    turned = b"\x80\x02" + tensor(0, (8, 4), (1, 8)) + b"."
    weight = read_torch_tensor(save(tmp_path / "t.pt", turned))
    assert np.array_equal(weight.stored(), VALUES.reshape(4, 8).T)
    # torch leaves any stride where a dimension has one element or none.
    for size, stride in (((1, 32), (1 << 62, 1)), ((0, 8), (8, 1)), ((), ())):
        one = b"\x80\x02" + tensor(0, size, stride) + b"."
        assert read_torch_tensor(save(tmp_path / "t.pt", one)).stored().shape == size


def test_no_attribute_is_set(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a key of some importance" * 8)
    for attribute, value in (
        ("path", text(str(secret))),
        ("stride", group(number(1 << 40), number(1))),
        ("shape", group(number(1 << 20), number(1 << 20))),
        ("storage", text("")),
    ):
        changed = tensor() + b"}" + text(attribute) + value + b"sb"
        refused(tmp_path / "m.pt", state(text("w"), changed), "wants a dict")
    of = storage() + b"}" + text("offset") + number(0) + b"sb"
    refused(tmp_path / "m.pt", state(text("w"), tensor(of=of)), "wants a dict")
    # On a dict it is what torch writes, and shadows no method.
    pickled = b"\x80\x02" + ORDERED + text("w") + tensor() + b"s"
    pickled += b"}" + text("items") + tensor() + b"sb."
    assert list(read_torch_zip(save(tmp_path / "m.pt", pickled))) == ["w"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: tensor(stride=(1 << 70, 1)), "exceeds its storage"),
        (lambda: tensor(stride=(-8, 1)), "impossible shape"),
        (lambda: tensor(size=(1 << 70, 8)), "impossible shape"),
        (lambda: tensor(size=(0, 1 << 70)), "impossible shape"),
        (lambda: tensor(size=(4.0, 8)), "impossible shape"),
        (lambda: tensor(size=(1 << 20, 1 << 20), stride=(0, 0)), "impossible shape"),
        (lambda: tensor(size=(33, 1), stride=(0, 0)), "impossible shape"),
        (lambda: tensor(first=0.5), "impossible shape"),
        (lambda: tensor(first=1 << 64), "exceeds its storage"),
        (lambda: tensor(size=(1,) * 33, stride=(1,) * 33), "impossible shape"),
        (lambda: tensor(size=(4, 8, 1)), "impossible shape"),
        (lambda: tensor(of=number(1)), "impossible shape"),
        (lambda: tensor(of=storage(512.0)), "not an integer"),
        (lambda: tensor(of=storage(33)), "missing or has another size"),
        (lambda: tensor(of=storage(-32)), "missing or has another size"),
        (lambda: tensor(of=storage(key=text("1"))), "missing or has another size"),
        (lambda: tensor(of=storage(key=number(0))), "not a text"),
        (lambda: tensor(of=storage(kind="QInt8Storage")), "torch.QInt8Storage"),
        (lambda: tensor(of=group(text("storage")) + b"Q"), "five values"),
        (lambda: name("torch._utils", "_rebuild_tensor_v2") + b")R", "with 0 values"),
        (lambda: name("torch", "FloatStorage") + b")R", "it calls"),
        (lambda: text("a") + b")R", "not a function"),
        (lambda: name("os", "system") + b"(" + text("true") + b"tR", "os.system"),
        (lambda: tensor() + b"q\x05", "note 5 comes before note 0"),
        (lambda: b"h\x00", "no note 0"),
        (lambda: b"\x93", "operation 147"),
        (lambda: b"0", "operation 48"),
        (lambda: b"e", "wants a list"),
        (lambda: b"\x87", "lacks its values"),
        (lambda: b"tt", "without a beginning"),
        (lambda: b"X\xff\xff\xff\xff", "ends too early"),
        (lambda: b"X\x01\x00\x00\x00\xff", "not UTF-8"),
    ],
)  # fmt: skip
def test_damaged_pickles(tmp_path: Path, made: Callable[[], bytes], why: str) -> None:
    refused(tmp_path / "m.pt", state(text("w"), made()), why)


def test_where_a_pickle_ends(tmp_path: Path) -> None:
    whole = state(text("w"), tensor())
    for pickled in (b"", whole[:-1], whole[:30]):
        refused(tmp_path / "m.pt", pickled, "ends too early")
    refused(tmp_path / "m.pt", whole + b"N", "data after its value")
    refused(tmp_path / "m.pt", b"\x80\x02NN.", "data after its value")
    refused(tmp_path / "m.pt", b"\x80\x04N.", "protocol 2")
    refused(tmp_path / "m.pt", b"\x80\x02}N" + text("w") + b"s.", "neither a text nor an integer")
    for value in (b"N", b"]", text("w"), state(text("w"), b"N")[2:-1]):
        refused(tmp_path / "m.pt", b"\x80\x02" + value + b".", "not a state dict")


@pytest.mark.xdist_group("timed")
def test_memory_and_time_follow_the_file(tmp_path: Path) -> None:
    many = b"\x80\x02}" + (b"}\x86") * (1 << 21) + b"."  # a tuple and a dict from two bytes
    deep = b"\x80\x02}" + b")" + b"q\x00h\x00\x86" * 60 + b"Ns."  # a hash of 2^60 steps
    for pickled, why in (
        (state(text("w"), tensor() + b"r\x00\x00\x00\x01"), "note 16777216"),
        (many, "too much data besides"),
        (deep, "neither a text nor an integer"),
    ):
        begin, peak = time.perf_counter(), _peak()
        refused(tmp_path / "m.pt", pickled, why)
        assert time.perf_counter() - begin < 60 and _peak() - peak < 250 << 20


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_bytes_end_in_tensors_or_a_sentence(tmp_path: Path, data: st.DataObject) -> None:
    """A valid file with bytes changed, inserted or cut off, in the pickle or in the zip."""
    checkpoints.save_torch(tmp_path / "good.pt", {"w": VALUES.reshape(4, 8), "v": VALUES[:4]})
    path = tmp_path / "m.pt"
    if data.draw(st.booleans()):
        with zipfile.ZipFile(tmp_path / "good.pt") as archive:
            save(path, _changed(data, archive.read("good/data.pkl")))
    else:
        path.write_bytes(_changed(data, (tmp_path / "good.pt").read_bytes()))
    try:
        for weight in read_torch_zip(path).values():
            assert weight.stored().shape == weight.shape
            weight.stored().sum()
    except ModelFormatError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)


def _changed(data: st.DataObject, content: bytes) -> bytes:
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.sampled_from([0, 1, 2, 4, 8]))
        content = content[:at] + data.draw(st.binary(max_size=9)) + content[at + cut :]
        if data.draw(st.integers(0, 9)) == 0:
            content = content[:at]
    return content
