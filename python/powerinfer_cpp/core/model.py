"""Model, the thin owner of the C API's handle.

It owns the handle, which is freed by `close()` or by the garbage collector. powerinfer.h documents
the details. Calls release the GIL while the engine computes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._native import ffi, lib
from .errors import check, encoded
from .gguf import Gguf
from .params import Callbacks, Progress, model_params, session_params
from .plan import plan_dict, ways_out
from .structs import sized

SPARSE_MODES = ("auto", "off", "exact", "predictor")  # in the order of pi_sparse

LONG = 64 << 10  # bytes of a text, or ids, that take about a millisecond
_BEFORE = b"\x02"  # stands before a text that is tokenized without a space of its own


@dataclass(frozen=True)
class Storage:
    """How a model runs whose neurons or experts stay on the disk; powerinfer.h has the details
    (pi_storage_report).

    io: "uring" or "threads". note: why not uring, or not direct. path: the file that is read.
    slots, used: for first parts of neurons and for the rest, or for experts or blocks and 0. unit:
    what slots are for, and what is read: "parts of neurons", "experts", or "blocks" of a dense
    model.
    """

    io: str
    note: str
    direct: bool
    path: str
    slots: tuple[int, int]
    used: tuple[int, int]
    arena_bytes: int
    unit: str


@dataclass(frozen=True)
class Experts:
    """The experts of a mixture (pi_expert_report): of all layers, those that a device has room for,
    those that it has now, and those that were copied there since the model was opened."""

    experts: int
    device_room: int
    device_has: int
    copies: int
    copied_bytes: int


@dataclass(frozen=True)
class LayerSizes:
    """Neurons of a layer, or of one of its experts; experts, 0 if it has one block; and values of a
    row that these read."""

    n_ff: int
    n_expert: int
    width: int = 0

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
        # Runs the part of a long text's work that needs no lock of Python; None: like all others.
        self.run_long: Callable[[Callable[[], None]], None] | None = None
        self._callbacks = Callbacks(progress, verbose)
        out = ffi.new("pi_model **")
        params, kept = model_params(fields, session, self._callbacks)
        self.fields = fields
        with ways_out(path, fields, session):
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
                lib.pi_model_layer_n_ff(self.handle, i),
                lib.pi_model_layer_n_expert(self.handle, i),
                lib.pi_model_layer_width(self.handle, i),
            )
            for i in range(self.n_layer)
        )
        self.n_params = lib.pi_model_n_params(self.handle)
        self.n_bytes = lib.pi_model_n_bytes(self.handle)
        self.has_states = lib.pi_model_has_states(self.handle)
        self.has_windows = lib.pi_model_has_windows(self.handle)
        self.guesses = lib.pi_model_guesses(self.handle)
        self.is_encoder = lib.pi_model_is_encoder(self.handle)
        self.ranks = lib.pi_model_ranks(self.handle)
        self.has_predictors = lib.pi_model_has_predictors(self.handle)
        self.bos = lib.pi_token_bos(self.handle)
        self.eos = lib.pi_token_eos(self.handle)
        self.nl = lib.pi_token_nl(self.handle)
        self.add_bos = lib.pi_token_add_bos(self.handle) and self.bos >= 0
        self.add_eos = lib.pi_token_add_eos(self.handle) and self.eos >= 0
        self.gguf = Gguf.borrowed(lib.pi_model_gguf(self.handle), self.handle)
        # Predictors see what the layer's block or experts read, else the residual stream.
        self.predicts_from_normed = self.gguf.value("powerinfer.predictor.input") == "normed"

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
        check(lib.pi_model_plan(self.handle, session_params(**session), out))
        return plan_dict(ffi.gc(out[0], lib.pi_plan_free))

    def on_device(self) -> tuple[int, int]:
        """Neurons that a device has, and bytes that model and sessions have allocated there."""
        return lib.pi_model_device_neurons(self.handle), lib.pi_model_device_bytes(self.handle)

    def layer_on_device(self, layer: int) -> int:
        """Neurons of a layer that a device has."""
        return lib.pi_model_layer_device_neurons(self.handle, layer)

    def layer_stored(self, layer: int) -> int:
        """Neurons of a layer of which memory lacks a part, at the moment of `tiers`."""
        return lib.pi_model_layer_stored_neurons(self.handle, layer)

    def tiers(self, layer: int) -> np.ndarray:
        """Where each neuron of a layer is at this moment, or when the call of a session that
        computes began: uint8 [experts, n_ff], 0 if memory lacks a part of it, 1 for RAM, 2 for a
        device."""
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
        unit = "experts" if out.experts else "blocks" if out.blocks else "parts of neurons"
        return Storage(io, note, out.direct, path, slots, used, out.arena_bytes, unit)

    def experts(self) -> Experts | None:
        """Its experts at this moment; None of a model that is no mixture."""
        out = sized("pi_expert_report")
        check(lib.pi_model_experts(self.handle, out))
        if not out.experts:
            return None
        return Experts(out.experts, out.device_room, out.device_has, out.copies, out.copied_bytes)

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
        ids, n = self._ids(text, special, len(text) + 2)
        found: list[int] = []
        # In parts: while one becomes Python's integers, no other thread has Python's lock.
        for first in range(0, n, LONG):
            found += ffi.unpack(ids + first, min(LONG, n - first))
        return found

    def token_array(self, text: bytes, special: bool = False) -> np.ndarray:
        """The same as int32 [n]: of a whole corpus, which as Python's integers takes nine times the
        memory."""
        # Half a token for a byte is twice what texts have; as many as bytes would be four times the
        # text.
        ids, n = self._ids(text, special, len(text) // 2 + 64)
        return np.frombuffer(ffi.buffer(ids, 4 * n), dtype=np.int32).copy()

    def _ids(self, text: bytes, special: bool, capacity: int) -> tuple[Any, int]:
        """An array of ids in C, for at least `capacity`, and how many are in it."""
        data, n = ffi.from_buffer("char[]", text), ffi.new("size_t *")

        def fill() -> None:
            check(lib.pi_tokenize(self.handle, data, len(text), special, ids, capacity, n))

        while True:
            ids = ffi.new("int32_t[]", capacity)
            try:
                if self.run_long is None or len(text) <= LONG:
                    fill()
                else:
                    self.run_long(fill)
                break
            except ValueError:
                if n[0] <= capacity:
                    raise
                capacity = n[0]  # the added space may be several byte tokens
        return ids, n[0]

    def tokenize_behind(self, text: bytes, special: bool = False) -> list[int]:
        """Ids of a text that follows another text. Some vocabularies put a space before every text;
        here it is left out, unless it is part of the first token."""
        ids = self.tokenize(text, special)
        if b"".join(self.text(token, special) for token in ids) == text:
            return ids
        marked = self.tokenize(_BEFORE + text, special)
        while marked and self.text(marked[0]) in (b" ", b""):
            marked = marked[1:]
        begins = marked and self.text(marked[0]) == _BEFORE
        return marked[1:] if begins else ids

    def text(self, token: int, special: bool = False) -> bytes:
        """Bytes of a token; empty for control tokens unless special."""
        out, size = ffi.new("char const **"), ffi.new("size_t *")
        check(lib.pi_token_text(self.handle, token, special, out, size))
        return bytes(ffi.buffer(out[0], size[0])) if size[0] else b""


def release(reservation: Any) -> None:
    """Releases a reservation of `Model.reserve`."""
    ffi.release(reservation)
