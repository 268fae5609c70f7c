"""Structs of the C API that a model and a session are opened with, and what C calls back."""

from collections.abc import Callable, Mapping
from typing import Any

from .._native import ffi, lib
from .errors import check
from .log import engine_level, say
from .structs import filled

Progress = Callable[[float], bool | None]


class Callbacks:
    """The user's callbacks, and the exceptions that they raised.

    Exceptions cannot pass through C: they are kept here, the call is cancelled, and `check` raises
    them.
    """

    def __init__(self, progress: Progress | None, verbose: bool):
        self.progress = progress
        self.verbose = verbose
        self.error: BaseException | None = None
        self.handle = ffi.new_handle(self)

    def check(self, status: int, path: str | None = None) -> None:
        error, self.error = self.error, None
        if error is not None and status != lib.PI_OK:
            raise error
        check(status, path)


def _keep_error(_kind: type, error: BaseException, traceback: Any) -> None:
    """Stores a callback's exception in its Callbacks, found through `traceback`'s frame."""
    data = traceback.tb_frame.f_locals.get("data") if traceback else None
    if data:
        ffi.from_handle(data).error = error


@ffi.def_extern(error=False, onerror=_keep_error)
def pi_python_progress(fraction: float, data: Any) -> bool:
    callbacks = ffi.from_handle(data)
    return callbacks.progress(fraction) is not False and callbacks.error is None


@ffi.def_extern(onerror=_keep_error)
def pi_python_log(level: int, message: Any, data: Any) -> None:
    text = ffi.string(message).decode("utf-8", "replace")
    say(text, ffi.from_handle(data).verbose, engine_level(level))


@ffi.def_extern(error=True, onerror=_keep_error)
def pi_python_should_stop(data: Any) -> bool:
    # Running Python code lets Ctrl-C raise KeyboardInterrupt here, or in the log's callback, which
    # cannot stop anything itself.
    return ffi.from_handle(data).error is not None


def model_params(
    fields: dict[str, Any],
    session: dict[str, Any] | None = None,
    callbacks: Callbacks | None = None,
) -> tuple[Any, Any]:
    """pi_model_params, and what they point to, which must live as long. session, and the field
    `beside`: fields of pi_session_params."""
    fields = dict(fields)
    device, beside = fields.pop("device", None), fields.pop("beside", None)
    room = other = None
    overrides = _overrides(fields.pop("overrides", None) or {})
    params = filled(ffi.new("pi_model_params *", lib.pi_model_default_params()), fields)
    if device is not None:
        params.device = device = ffi.new("char[]", device.encode("utf-8", "surrogateescape"))
    params.overrides, params.n_overrides = overrides[0], len(overrides[0])
    if session is not None:
        params.session = room = session_params(**session)
    if beside is not None:
        params.beside = other = session_params(**beside)
    if callbacks is not None:
        if callbacks.progress is not None:
            params.progress, params.progress_data = lib.pi_call_progress, callbacks.handle
        params.log, params.log_data = lib.pi_call_log, callbacks.handle
    return params, (device, room, other, overrides)


def _overrides(values: Mapping[str, bool | int | float | str]) -> tuple[Any, list[Any]]:
    """pi_override [n], and what they point to. Raises ValueError for values of other types."""
    out, kept = ffi.new("pi_override[]", len(values)), []
    for given, (key, value) in zip(out, values.items(), strict=True):
        given.struct_size = ffi.sizeof("pi_override")
        kept.append(ffi.new("char[]", key.encode("utf-8", "surrogateescape")))
        given.key = kept[-1]
        if isinstance(value, bool):
            given.type, given.integer = lib.PI_BOOL, value
        elif isinstance(value, str):
            kept.append(ffi.new("char[]", value.encode("utf-8", "surrogateescape")))
            given.type, given.string = lib.PI_STRING, kept[-1]
        elif isinstance(value, float):
            given.type, given.number = lib.PI_F64, value
        elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            given.type, given.integer = lib.PI_I64, value
        else:
            raise ValueError(
                f"override of {key}: {value!r} is no bool, int of 64 bits, float or str"
            )
    return out, kept


def session_params(**fields: Any) -> Any:
    return filled(ffi.new("pi_session_params *", lib.pi_session_default_params()), fields)
