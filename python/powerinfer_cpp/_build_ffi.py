"""Write the C source of `powerinfer_cpp._native`: `python _build_ffi.py HEADERS _native.c`.

CMake runs this with powerinfer.h and powerinfer_tools.h. The declarations come from these headers,
and the module is compiled against them, so a struct that differs is a build error. The module is
built for CPython's limited API (abi3): cffi defines Py_LIMITED_API in the source that it emits.
"""

import pathlib
import sys

BEGIN, END = "/* cdef: begin */", "/* cdef: end */"

# Functions that C calls and Python defines (powerinfer_cpp/model.py).
CALLBACKS = """
extern "Python" bool pi_python_progress(float fraction, void *data);
extern "Python" void pi_python_log(int32_t level, const char *message, void *data);
extern "Python" bool pi_python_should_stop(void *data);
"""


def declarations(header: str) -> str:
    """The part of a header that holds only C declarations.

    Raises ValueError when the two marks are missing.
    """
    before, begin, rest = header.partition(BEGIN)
    body, end, _ = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the header lacks the marks {BEGIN!r} and {END!r}")
    return body


def main(headers: list[str], output: str) -> None:
    """Reads the paths `headers`, writes the C source to the path `output`."""
    from cffi import FFI

    ffi = FFI()
    texts = [pathlib.Path(header).read_text(encoding="utf-8") for header in headers]
    ffi.cdef("\n".join([*map(declarations, texts), CALLBACKS]))
    ffi.set_source(
        "powerinfer_cpp._native",
        '#include "powerinfer.h"\n',
        include_dirs=[str(pathlib.Path(headers[0]).parent)],
        py_limited_api=True,
    )
    ffi.emit_c_code(output)


if __name__ == "__main__":
    # Do not import this folder's modules: one of them is called gguf, like the package.
    sys.path.pop(0)
    if len(sys.argv) < 3:
        sys.exit("usage: _build_ffi.py powerinfer.h powerinfer_tools.h _native.c")
    main(sys.argv[1:-1], sys.argv[-1])
