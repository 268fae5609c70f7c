"""Write the C source of `powerinfer_cpp._native`: `python _build_ffi.py HEADERS _native.c`.

CMake runs this with powerinfer.h and powerinfer_tools.h. The declarations come from these headers,
and the module is compiled against them, so a struct that differs is a build error. The module is
built for CPython's limited API (abi3): cffi defines Py_LIMITED_API in the source that it emits.
"""

import pathlib
import sys

BEGIN, END = "/* cdef: begin */", "/* cdef: end */"

# Functions that C calls and Python defines (core/params.py), and those around them that
# the engine gets.
CALLBACKS = """
extern "Python" bool pi_python_progress(float fraction, void *data);
extern "Python" void pi_python_log(int32_t level, const char *message, void *data);
extern "Python" bool pi_python_should_stop(void *data);
bool pi_call_progress(float fraction, void *data);
void pi_call_log(int32_t level, const char *message, void *data);
bool pi_call_should_stop(void *data);
"""

# When the interpreter ends, CPython before 3.14 ends each other thread that asks for the GIL, by
# pthread_exit. With glibc this unwinds the stack, in a callback that of the engine, whose C++ then
# ends the process (std::terminate). So such a thread sleeps until the process has ended, as it does
# since 3.14: a cleanup handler runs before the stack is unwound further. Windows ends a thread
# without unwinding.
SOURCE = """
#include "powerinfer.h"

static bool pi_python_progress(float fraction, void *data);
static void pi_python_log(int32_t level, const char *message, void *data);
static bool pi_python_should_stop(void *data);

#ifndef _WIN32
#include <pthread.h>
#include <unistd.h>

static void pi_sleep(void *unused)
{
    (void)unused;
    for (;;) pause();
}
#define PI_BEGIN pthread_cleanup_push(pi_sleep, NULL)
#define PI_END pthread_cleanup_pop(0)
#else
#define PI_BEGIN {
#define PI_END }
#endif

static bool pi_call_progress(float fraction, void *data)
{
    bool result = false;
    PI_BEGIN;
    result = pi_python_progress(fraction, data);
    PI_END;
    return result;
}

static void pi_call_log(int32_t level, const char *message, void *data)
{
    PI_BEGIN;
    pi_python_log(level, message, data);
    PI_END;
}

static bool pi_call_should_stop(void *data)
{
    bool result = true;
    PI_BEGIN;
    result = pi_python_should_stop(data);
    PI_END;
    return result;
}
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
        SOURCE,
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
