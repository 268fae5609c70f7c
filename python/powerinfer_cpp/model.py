"""Thin owners of the C API's handles: Model and Session, and the memory plan.

Each object owns one handle, freed by `close()` or by the garbage collector. powerinfer.h documents
the details. Calls release the GIL while the engine computes.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._native import ffi, lib
from .errors import OutOfMemoryError, check, encoded
from .gguf import Gguf
from .log import engine_level, say
from .structs import filled, sized
from .ways import Way
from .work import NEURON_COUNTS, PARTS, Work

if TYPE_CHECKING:
    from .sampler import Sampler

SPARSE_MODES = ("auto", "off", "exact", "predictor")  # in the order of pi_sparse

_BEFORE = b"\x02"  # stands before a text that is tokenized without a space of its own
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


def _model_params(
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
        params.session = room = _session_params(**session)
    if beside is not None:
        params.beside = other = _session_params(**beside)
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


def _session_params(**fields: Any) -> Any:
    return filled(ffi.new("pi_session_params *", lib.pi_session_default_params()), fields)


def memory_plan(path: str, model: dict[str, Any], session: dict[str, Any]) -> dict[str, Any]:
    """Bytes that a model and a session with these parameters need; reads only the header.

    Returns {tier: {part: bytes}, "total": bytes, "budget": bytes of RAM that may be used,
    "vram_budget": bytes on the device that may be used, 0 without one, "read_seconds": what reading
    from storage is expected to take for a generated token}. Tiers are "ram", "gpu" and "storage";
    the total leaves out the last one, the neurons that only the disk has.
    """
    out = ffi.new("pi_plan **")
    model_params, kept = _model_params(model)
    check(lib.pi_plan_new(encoded(path), model_params, _session_params(**session), out), path)
    del kept  # C uses it until here
    return _plan(ffi.gc(out[0], lib.pi_plan_free))


@contextlib.contextmanager
def _ways_out(path: str, model: dict[str, Any], session: dict[str, Any] | None) -> Iterator[None]:
    """An OutOfMemoryError that is raised here gets what would help; None: no session is known."""
    try:
        yield
    except OutOfMemoryError as error:
        if session is None:
            raise
        out, way = ffi.new("pi_plan **"), sized("pi_way")
        params, kept = _model_params(model)
        if lib.pi_plan_new(encoded(path), params, _session_params(**session), out) != lib.PI_OK:
            raise  # the error as it is
        del kept  # C uses it until here
        plan, found = ffi.gc(out[0], lib.pi_plan_free), []
        for i in range(lib.pi_plan_n_ways(plan)):
            check(lib.pi_plan_way(plan, i, way))
            what = ffi.string(way.what).decode()
            suffices = what == "ram_budget" or way.n_bytes <= lib.pi_plan_budget(plan)
            found.append(Way(what, way.value, way.n_bytes, suffices))
        error.path, error.ways = path, found
        raise


def _plan(plan: Any) -> dict[str, Any]:
    """A pi_plan as a dict."""
    tiers: dict[str, Any] = {"ram": {}, "gpu": {}, "storage": {}}
    part, total = sized("pi_plan_part"), 0
    for i in range(lib.pi_plan_n_parts(plan)):
        check(lib.pi_plan_part_at(plan, i, part))
        parts = tiers[ffi.string(part.tier).decode()]
        name = ffi.string(part.name).decode()
        parts[name] = parts.get(name, 0) + part.n_bytes
        total += part.n_bytes
    storage = sized("pi_storage_plan")
    check(lib.pi_plan_storage(plan, storage))
    if storage.stored:
        tiers["storage"]["ffn"] = storage.stored
    budgets = {"budget": lib.pi_plan_budget(plan), "vram_budget": lib.pi_plan_vram_budget(plan)}
    return {**tiers, "total": total, **budgets, "read_seconds": storage.read_seconds}


@dataclass(frozen=True)
class Storage:
    """How a model runs whose neurons stay on the disk; powerinfer.h has the details
    (pi_storage_report).

    io: "uring" or "threads". note: why not uring, or not direct. path: the file that is read.
    slots, used: for first parts of neurons and for the rest.
    """

    io: str
    note: str
    direct: bool
    path: str
    slots: tuple[int, int]
    used: tuple[int, int]
    arena_bytes: int


@dataclass(frozen=True)
class LayerSizes:
    """Neurons of a layer, or of one of its experts; and experts, 0 if it has one block."""

    n_ff: int
    n_expert: int

    @property
    def shape(self) -> tuple[int, int]:
        """[experts, n_ff]; experts: 1 if there is one block."""
        return max(1, self.n_expert), self.n_ff

    @property
    def bits(self) -> int:
        """Bytes of a bit for each neuron; those of an expert begin with a byte."""
        return self.shape[0] * ((self.n_ff + 7) // 8)


class Model:
    """A loaded model; threads and sessions may share it.

    Keyword arguments are the fields of pi_model_params, of which overrides is a dict. progress:
    called with 0..1 while loading; returning False cancels. verbose: messages also go to stderr
    (log.py). session: pi_session_params of the session that a device shall have room for.
    """

    def __init__(
        self,
        path: str,
        progress: Progress | None = None,
        verbose: bool = False,
        session: dict[str, Any] | None = None,
        **fields: Any,
    ):
        self.path = path
        self._callbacks = Callbacks(progress, verbose)
        out = ffi.new("pi_model **")
        params, kept = _model_params(fields, session, self._callbacks)
        self.fields = fields
        with _ways_out(path, fields, session):
            self._callbacks.check(lib.pi_model_open(encoded(path), params, out), path)
        del kept  # C uses it until here
        self.handle = ffi.gc(out[0], lib.pi_model_free)
        self.architecture = ffi.string(lib.pi_model_architecture(self.handle)).decode()
        self.activation = ffi.string(lib.pi_model_activation(self.handle)).decode()
        self.n_vocab = lib.pi_model_n_vocab(self.handle)
        self.n_ctx_train = lib.pi_model_n_ctx(self.handle)
        self.n_embd = lib.pi_model_n_embd(self.handle)
        self.n_layer = lib.pi_model_n_layer(self.handle)
        self.sizes = tuple(
            LayerSizes(
                lib.pi_model_layer_n_ff(self.handle, i), lib.pi_model_layer_n_expert(self.handle, i)
            )
            for i in range(self.n_layer)
        )
        self.n_params = lib.pi_model_n_params(self.handle)
        self.n_bytes = lib.pi_model_n_bytes(self.handle)
        self.has_predictors = lib.pi_model_has_predictors(self.handle)
        self.bos = lib.pi_token_bos(self.handle)
        self.eos = lib.pi_token_eos(self.handle)
        self.nl = lib.pi_token_nl(self.handle)
        self.add_bos = lib.pi_token_add_bos(self.handle) and self.bos >= 0
        self.add_eos = lib.pi_token_add_eos(self.handle) and self.eos >= 0
        self.gguf = Gguf.borrowed(lib.pi_model_gguf(self.handle), self.handle)

    @property
    def n_ff(self) -> int:
        """Neurons of a layer, or of one expert. Raises ValueError if layers differ in it."""
        return self._equal_sizes().n_ff

    @property
    def n_expert(self) -> int:
        """Experts of a layer; 0: no experts. Raises ValueError if layers differ in it."""
        return self._equal_sizes().n_expert

    @property
    def layer_n_ff(self) -> np.ndarray:
        """Neurons of each layer, or of one of its experts: int64 [n_layer]."""
        return np.array([size.n_ff for size in self.sizes], np.int64)

    @property
    def has_experts(self) -> bool:
        """Does any layer have experts?"""
        return any(size.n_expert for size in self.sizes)

    def _equal_sizes(self) -> "LayerSizes":
        if len(set(self.sizes)) > 1:
            raise ValueError(
                f"{self.path}: layers have different numbers of neurons or experts: "
                "`Model.sizes` has those of each"
            )
        return self.sizes[0] if self.sizes else LayerSizes(0, 0)

    def close(self) -> None:
        """Frees the model; open sessions keep it in memory."""
        if self.handle is not None:
            self.gguf.close()
            ffi.release(self.handle)
            self.handle = None

    def plan(self, **session: Any) -> dict[str, Any]:
        """What `memory_plan` returns, for this model and a session with these fields."""
        out = ffi.new("pi_plan **")
        check(lib.pi_model_plan(self.handle, _session_params(**session), out))
        return _plan(ffi.gc(out[0], lib.pi_plan_free))

    def on_device(self) -> tuple[int, int]:
        """Neurons that a device has, and bytes that model and sessions have allocated there."""
        return lib.pi_model_device_neurons(self.handle), lib.pi_model_device_bytes(self.handle)

    def layer_on_device(self, layer: int) -> int:
        """Neurons of a layer that a device has."""
        return lib.pi_model_layer_device_neurons(self.handle, layer)

    def layer_stored(self, layer: int) -> int:
        """Neurons of a layer of which memory lacks a part, at this moment."""
        return lib.pi_model_layer_stored_neurons(self.handle, layer)

    def tiers(self, layer: int) -> np.ndarray:
        """Where each neuron of a layer is at this moment: uint8 [experts, n_ff], 0 if memory lacks
        a part of it, 1 for RAM, 2 for a device."""
        if not 0 <= layer < self.n_layer:
            raise ValueError(f"no such layer: {layer}")
        out = np.empty(self.sizes[layer].shape, np.uint8)
        data = ffi.from_buffer("uint8_t[]", out)
        check(lib.pi_model_tiers(self.handle, layer, data, out.nbytes))
        return out

    def storage(self) -> Storage | None:
        """How the model runs from storage; None if RAM and a device have all of it."""
        out = sized("pi_storage_report")
        check(lib.pi_model_storage(self.handle, out))
        if not out.stored:
            return None
        io, note, path = (
            ffi.string(text).decode("utf-8", "surrogateescape")
            for text in (out.io, out.note, out.path)
        )
        slots, used = (out.first_slots, out.rest_slots), (out.first_used, out.rest_used)
        return Storage(io, note, out.direct, path, slots, used, out.arena_bytes)

    def reserve(self, what: str, n_bytes: int) -> Any:
        """Reserves bytes of the model's budget for the caller's memory, until `release` or garbage
        collection. Raises OutOfMemoryError, whose message contains `what`."""
        out = ffi.new("pi_reservation **")
        check(lib.pi_reserve(self.handle, what.encode(), n_bytes, out))
        return ffi.gc(out[0], lib.pi_reservation_free)

    def unreserved(self) -> int:
        """Remaining bytes of the model's budget."""
        budget = lib.pi_model_budget(self.handle)
        return max(0, budget - lib.pi_model_reserved(self.handle))

    def ends(self, token: int) -> bool:
        """Whether the token is EOS or another end of generation."""
        return lib.pi_token_ends(self.handle, token)

    def tokenize(self, text: bytes, special: bool = False) -> list[int]:
        """Ids of a text of any bytes, without BOS or EOS."""
        data, n, capacity = ffi.from_buffer("char[]", text), ffi.new("size_t *"), len(text) + 2
        while True:
            ids = ffi.new("int32_t[]", capacity)
            status = lib.pi_tokenize(self.handle, data, len(text), special, ids, capacity, n)
            if status != lib.PI_ERROR_ARGUMENT or n[0] <= capacity:
                break
            capacity = n[0]  # the added space may be several byte tokens
        check(status)
        return ffi.unpack(ids, n[0]) if n[0] else []

    def tokenize_behind(self, text: bytes) -> list[int]:
        """Ids of a text that follows another one: without the space that some vocabularies add to
        a text. It stays where a vocabulary joins it with what follows."""
        ids = self.tokenize(text)
        if b"".join(map(self.text, ids)) == text:
            return ids
        marked = self.tokenize(_BEFORE + text)
        while marked and self.text(marked[0]) in (b" ", b""):
            marked = marked[1:]
        begins = marked and self.text(marked[0]) == _BEFORE
        return marked[1:] if begins else ids

    def text(self, token: int, special: bool = False) -> bytes:
        """Bytes of a token; empty for control tokens unless special."""
        out, size = ffi.new("char const **"), ffi.new("size_t *")
        check(lib.pi_token_text(self.handle, token, special, out, size))
        return bytes(ffi.buffer(out[0], size[0])) if size[0] else b""


@dataclass(frozen=True)
class OpTime:
    """Seconds in an operator in a part of the model, and bytes of weights and cache it read."""

    part: str
    op: str
    calls: int
    seconds: float
    n_bytes: int


class Session:
    """Computed positions of sequences of a model; handles one call at a time.

    Keyword arguments are the fields of pi_session_params. interruptible: Ctrl-C ends a running
    eval with KeyboardInterrupt. verbose: messages also go to stderr (log.py).
    """

    def __init__(
        self, model: Model, interruptible: bool = True, verbose: bool = False, **fields: Any
    ):
        self.n_vocab = model.n_vocab
        self.n_embd = model.n_embd
        self._sizes = model.sizes
        self._n_rows = 0  # rows of the last eval
        self._callbacks = Callbacks(None, verbose)
        params = _session_params(**fields)
        params.log, params.log_data = lib.pi_call_log, self._callbacks.handle
        if interruptible:
            params.should_stop = lib.pi_call_should_stop
            params.should_stop_data = self._callbacks.handle
        out = ffi.new("pi_session **")
        with _ways_out(model.path, model.fields, fields):
            check(lib.pi_session_new(model.handle, params, out))
        self.handle = ffi.gc(out[0], lib.pi_session_free)
        self.n_ctx = lib.pi_session_n_ctx(self.handle)
        self.n_batch = lib.pi_session_n_batch(self.handle)
        self._row = ffi.new("float const **")

    def close(self) -> None:
        """Frees the session."""
        if self.handle is not None:
            ffi.release(self.handle)
            self.handle = None

    def eval(
        self,
        tokens: np.ndarray,
        keep: np.ndarray | None = None,
        sequences: np.ndarray | None = None,
        generated: np.ndarray | None = None,
    ) -> None:
        """Computes int32 tokens [n], n <= n_batch, each at the end of its sequence.

        keep: bool [n], rows whose logits are kept; None: only the last row. sequences: int32 [n];
        None: all in sequence 0. generated: bool [n], rows of generated tokens, which predictors
        mask under `auto`; None: all are prompt.
        """
        batch = ffi.new("pi_batch *", {"struct_size": ffi.sizeof("pi_batch"), "n": len(tokens)})
        batch.token = ids = ffi.from_buffer("int32_t[]", tokens)
        batch.seq = where = _array("int32_t[]", sequences)
        batch.keep = kept = _array("bool[]", keep)
        batch.generated = flags = _array("bool[]", generated)
        self._callbacks.check(lib.pi_eval_batch(self.handle, batch))
        del ids, where, kept, flags  # C uses their memory until here
        self._n_rows = len(tokens)

    def firing_counts(self) -> np.ndarray:
        """How often each neuron fired in this session: uint64 [n_layer, experts, n_ff].

        experts: 1 if a layer has one block. Raises ValueError unless `record` is set, or if layers
        have different sizes: then see `layer_firing_counts`.
        """
        return self._stacked("layer_firing_counts")

    def layer_firing_counts(self, layer: int) -> np.ndarray:
        """Those of a layer: uint64 [experts, n_ff]."""
        shape = self._sizes[layer].shape
        return self._recorded(lib.pi_firing_counts, layer, "uint64_t", np.uint64, shape)

    def activations(self) -> np.ndarray:
        """bool [n_layer, rows of the last eval, experts, n_ff]: whether a neuron fired.

        Raises ValueError unless `record` is PI_RECORD_FIRED or more, or if layers have different
        sizes: then see `layer_activations`.
        """
        return self._stacked("layer_activations")

    def layer_activations(self, layer: int) -> np.ndarray:
        """Those of a layer: bool [rows of the last eval, experts, n_ff]."""
        shape = (self._n_rows, *self._sizes[layer].shape)
        return self._recorded(lib.pi_activations, layer, "bool", bool, shape)

    def ffn_inputs(self) -> np.ndarray:
        """float32 [n_layer, rows of the last eval, n_embd]: inputs of the layers' predictors.

        Raises ValueError unless `record` is PI_RECORD_INPUTS.
        """
        shape = (self._n_rows, self.n_embd)
        return np.stack(
            [
                self._recorded(lib.pi_ffn_inputs, layer, "float", np.float32, shape)
                for layer in range(len(self._sizes))
            ]
        )

    def input_squares(
        self, layer: int, kind: int, experts: int, width: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sums of the squares of an input, float64 [experts, width], and of how many rows they are,
        uint64 [experts], over all rows of the session.

        kind: a PI_INPUT value, whose sizes these must be. Raises ValueError unless `record` is
        PI_RECORD_SQUARES.
        """
        sums, rows = ffi.new("double const **"), ffi.new("uint64_t const **")
        check(lib.pi_input_squares(self.handle, layer, kind, sums, rows))
        found = np.frombuffer(ffi.buffer(sums[0], 8 * experts * width), np.float64)
        counts = np.frombuffer(ffi.buffer(rows[0], 8 * experts), np.uint64)
        return found.reshape(experts, width).copy(), counts.copy()

    def record(self, on: bool) -> None:
        """Ends or resumes recording, which begins with the session.

        Raises ValueError if the session's `record` is PI_RECORD_OFF.
        """
        check(lib.pi_session_record(self.handle, on))

    def fired_bits(self, row: int) -> np.ndarray:
        """uint8 [n_layer, experts, (n_ff + 7) // 8]: which neurons of those that were computed
        fired for a row of the last eval. Bit i % 8 of byte i // 8 is neuron i, as in
        `numpy.unpackbits(..., bitorder="little")`.

        Raises ValueError unless `record` is PI_RECORD_BITS, and on; or if layers have different
        sizes: then see `layer_fired_bits`.
        """
        return self._stacked("layer_fired_bits", self.fired_bytes(row))

    def fired_bytes(self, row: int) -> np.ndarray:
        """The same bits for all layers, one after the other: uint8 [n]."""
        out = np.empty(sum(size.bits for size in self._sizes), np.uint8)
        data = ffi.from_buffer("uint8_t[]", out)
        check(lib.pi_fired_bits(self.handle, row, data, out.nbytes))
        return out

    def layer_fired_bits(self, layer: int, fired: np.ndarray) -> np.ndarray:
        """Those of a layer, uint8 [experts, (n_ff + 7) // 8], of what `fired_bytes` gave."""
        first = sum(size.bits for size in self._sizes[:layer])
        size = self._sizes[layer]
        return fired[first : first + size.bits].reshape(size.shape[0], -1)

    def _stacked(self, getter: str, *args: Any) -> np.ndarray:
        """What a getter of one layer gives, for all layers."""
        if len(set(self._sizes)) > 1:
            raise ValueError(f"layers have different sizes: use `Session.{getter}`")
        return np.stack([getattr(self, getter)(i, *args) for i in range(len(self._sizes))])

    def _recorded(
        self, find: Any, layer: int, kind: str, dtype: Any, shape: tuple[int, ...]
    ) -> np.ndarray:
        pointer = ffi.new(f"{kind} const **")
        check(find(self.handle, layer, pointer))
        stored = ffi.buffer(pointer[0], math.prod(shape) * np.dtype(dtype).itemsize)
        return np.frombuffer(stored, dtype).reshape(shape).copy()

    def work(self) -> Work:
        """The work of the session so far."""
        out = sized("pi_work")
        check(lib.pi_session_work(self.handle, out))
        neurons = np.empty((len(self._sizes), 1 + len(NEURON_COUNTS)), dtype=np.int64)
        neurons[0, 0] = ffi.sizeof("pi_neuron_counts")  # struct_size; all other members are int64
        counts = ffi.from_buffer("pi_neuron_counts[]", neurons)
        check(lib.pi_session_neurons(self.handle, 0, len(self._sizes), counts))
        return Work(out.rows, np.array([getattr(out, part) for part in PARTS]), neurons[:, 1:])

    def logits_pointer(self, row: int) -> Any:
        """float const *: logits [n_vocab] of a kept row of the last eval."""
        check(lib.pi_logits(self.handle, row, self._row))
        return self._row[0]

    def logits(self, row: int) -> np.ndarray:
        """Logits of a kept row: float32 [n_vocab], a view that the next eval invalidates."""
        return np.frombuffer(
            ffi.buffer(self.logits_pointer(row), 4 * self.n_vocab), dtype=np.float32
        )

    def sample_rows(self, samplers: Sequence["Sampler"], rows: Sequence[int]) -> list[int]:
        """The token that each sampler chooses for its row of the last eval, whose logits must have
        been kept. The same as Sampler.sample for each, by all threads of the session.

        Raises ValueError, which names the row, before a sampler has drawn; also if one of them is
        given twice.
        """
        if len(samplers) != len(rows):
            raise ValueError(f"{len(samplers)} samplers for {len(rows)} rows")
        tokens = ffi.new("int32_t[]", len(rows))
        handles = [sampler.handle for sampler in samplers]
        check(lib.pi_sample_rows(self.handle, handles, list(rows), len(rows), tokens))
        return ffi.unpack(tokens, len(rows)) if handles else []

    def embedding(self, row: int) -> np.ndarray:
        """Embedding of a kept row: float32 [n_embd], a view that the next eval invalidates.

        Only in sessions with embedding=True.
        """
        check(lib.pi_embedding(self.handle, row, self._row))
        return np.frombuffer(ffi.buffer(self._row[0], 4 * self.n_embd), dtype=np.float32)

    def save(self) -> bytes:
        """The state of sequence 0 with its keys and values, for `load`."""
        size = ffi.new("size_t *")
        status = lib.pi_sequence_save(self.handle, 0, ffi.NULL, 0, size)
        if status != lib.PI_ERROR_ARGUMENT:  # other errors do not return the size
            check(status)
        data = bytearray(size[0])
        check(lib.pi_sequence_save(self.handle, 0, ffi.from_buffer(data), len(data), size))
        return bytes(data[: size[0]])

    def load(self, data: bytes) -> None:
        """Restores sequence 0 from `save`, of this or another session of the same model.

        Raises ModelFormatError for bytes that are not such a state, ContextOverflowError for a
        state that is longer than the context.
        """
        check(lib.pi_sequence_load(self.handle, 0, ffi.from_buffer(data), len(data)))

    def set_adapters(self, adapters: Sequence[Any], scales: Sequence[float]) -> None:
        """Computes with these pi_adapter handles from now on. If that changes something, all
        sequences become empty.

        Raises ValueError for adapters of another model, or where predictors would be wrong;
        UnsupportedModelError with a device or a model that runs from storage.
        """
        count = len(adapters)
        self._callbacks.check(
            lib.pi_session_set_adapters(self.handle, list(adapters), list(scales), count)
        )

    def profile(self, on: bool) -> None:
        """Starts a new measurement of operator times, or ends it."""
        lib.pi_session_profile(self.handle, on)

    def op_times(self) -> list[OpTime]:
        """The times that `profile` measured."""
        found, times = [], sized("pi_op_time")
        for i in range(lib.pi_session_n_ops(self.handle)):
            check(lib.pi_session_op_at(self.handle, i, times))
            part, op = ffi.string(times.part).decode(), ffi.string(times.op).decode()
            found.append(OpTime(part, op, times.calls, times.seconds, times.n_bytes))
        return found

    def length(self, sequence: int = 0) -> int:
        """Number of positions of a sequence."""
        return lib.pi_sequence_length(self.handle, sequence)

    def free_positions(self) -> int:
        """Positions in free pages of 64, of the pool that all sequences share."""
        return lib.pi_session_free_positions(self.handle)

    def truncate(self, n: int, sequence: int = 0) -> None:
        """Drops every position of a sequence from n on."""
        check(lib.pi_sequence_truncate(self.handle, sequence, n))

    def copy(self, source: int, target: int, n: int) -> None:
        """Replaces a sequence by the first n positions of another one. They share memory until one
        of them continues."""
        check(lib.pi_sequence_copy(self.handle, source, target, n))

    def match(
        self, tokens: np.ndarray, generated: np.ndarray | None = None, sequence: int = 0
    ) -> int:
        """Number of leading positions of a sequence that equal the result of computing int32
        tokens [n]. generated: bool [n]; None: all are prompt."""
        same = ffi.new("int32_t *")
        ids, flags = _array("int32_t[]", tokens), _array("bool[]", generated)
        check(lib.pi_sequence_match(self.handle, sequence, ids, flags, len(tokens), same))
        return same[0]


def release(reservation: Any) -> None:
    """Releases a reservation of `Model.reserve`."""
    ffi.release(reservation)


def _array(kind: str, values: np.ndarray | None) -> Any:
    """A pointer to values for C; NULL for None."""
    return ffi.NULL if values is None else ffi.from_buffer(kind, values)


def as_tokens(tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """A sequence of ids as int32 [n]. Raises ValueError for values that are not ids."""
    ids = np.asarray(tokens)
    if ids.size == 0:
        return np.empty(0, dtype=np.int32)
    if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
        raise ValueError("token ids must be integers of at least 0")
    return np.ascontiguousarray(ids, dtype=np.int32).reshape(-1)
