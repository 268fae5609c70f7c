"""Any bytes as a torch file: they must end in tensors that can be read, or in a sentence.

The first byte says whether the rest is the whole file or its pickle alone; few changes of a file
get past the checksums of zip.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import driver
import hostile
import numpy as np

from powerinfer_cpp import ModelFormatError

try:
    import atheris
except ImportError:
    from powerinfer_cpp.convert import torch_zip
else:
    with atheris.instrument_imports():
        from powerinfer_cpp.convert import torch_zip

_SECONDS = 5.0  # a file of some kilobytes
_folder = tempfile.TemporaryDirectory()
_path = Path(_folder.name) / "model.pt"


def _write(data: bytes) -> None:
    if data[:1] != b"\1":
        _path.write_bytes(data[1:])
        return
    with zipfile.ZipFile(_path, "w") as archive:
        archive.writestr("m/data.pkl", data[1:])
        archive.writestr("m/data/0", np.arange(32, dtype=np.float32).tobytes())
        archive.writestr("m/data/1", b"")


def run(data: bytes) -> None:
    _write(data)
    clock = hostile.Clock()
    for read in (torch_zip.read_torch_zip, lambda path: {"": torch_zip.read_torch_tensor(path)}):
        try:
            for weight in read(_path).values():
                values = weight.stored()
                assert values.shape == weight.shape
                values.tobytes()
        except ModelFormatError as error:
            assert str(error).startswith(str(_path)) and "\n" not in str(error), str(error)
    assert clock.seconds() < _SECONDS


if __name__ == "__main__":
    driver.main(run, "torch_zip")
