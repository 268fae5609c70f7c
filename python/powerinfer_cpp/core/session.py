"""Session, the thin owner of the C API's handle: positions of sequences, computed with a model.

powerinfer.h documents the details. Calls release the GIL while the engine computes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._native import ffi, lib
from .errors import check
from .model import LayerSizes, Model
from .params import Callbacks, session_params
from .plan import ways_out
from .sampler import Sampler
from .structs import sized
from .work import NEURON_COUNTS, PARTS, Work


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
        self._normed = model.predicts_from_normed
        self._n_rows = 0  # rows of the last eval
        self._callbacks = Callbacks(None, verbose)
        params = session_params(**fields)
        params.log, params.log_data = lib.pi_call_log, self._callbacks.handle
        if interruptible:
            params.should_stop = lib.pi_call_should_stop
            params.should_stop_data = self._callbacks.handle
        out = ffi.new("pi_session **")
        with ways_out(model.path, model.fields, fields):
            check(lib.pi_session_new(model.handle, params, out))
        self.handle = ffi.gc(out[0], lib.pi_session_free)
        self.n_ctx = lib.pi_session_n_ctx(self.handle)
        self.n_batch = lib.pi_session_n_batch(self.handle)
        self.pooled_width = lib.pi_session_pooled_width(self.handle)
        self._row = ffi.new("float const **")
        self._guessed = ffi.new("int32_t *"), ffi.new("float *"), ffi.new("float const **")

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
        checkpoint: np.ndarray | None = None,
        types: np.ndarray | None = None,
    ) -> None:
        """Computes int32 tokens [n], n <= n_batch, each at the end of its sequence.

        keep: bool [n], rows whose logits are kept; None: only the last row. sequences: int32 [n];
        None: all in sequence 0. generated: bool [n], rows of generated tokens, which predictors
        mask under `auto`; None: all are prompt. checkpoint: bool [n], rows before which the states
        of layers are kept, so that sequences can be cut there (docs/states.md); None: none. types:
        int32 [n], token types of pairs of texts; None: all 0.
        """
        batch = ffi.new("pi_batch *", {"struct_size": ffi.sizeof("pi_batch"), "n": len(tokens)})
        batch.token = ids = ffi.from_buffer("int32_t[]", tokens)
        batch.seq = where = _array("int32_t[]", sequences)
        batch.keep = kept = _array("bool[]", keep)
        batch.generated = flags = _array("bool[]", generated)
        batch.checkpoint = states = _array("bool[]", checkpoint)
        batch.type = kinds = _array("int32_t[]", types)
        self._callbacks.check(lib.pi_eval_batch(self.handle, batch))
        del ids, where, kept, flags, states, kinds  # C uses their memory until here
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

        Raises ValueError unless `record` is PI_RECORD_INPUTS, or if layers have inputs of other
        sizes: then see `layer_ffn_inputs`.
        """
        if len({self._input_width(size) for size in self._sizes}) > 1:
            raise ValueError("layers have inputs of other sizes: use `Session.layer_ffn_inputs`")
        return np.stack([self.layer_ffn_inputs(i) for i in range(len(self._sizes))])

    def layer_ffn_inputs(self, layer: int) -> np.ndarray:
        """Those of a layer: float32 [rows of the last eval, width], where width is n_embd, or that
        of experts whose rows are narrower; 0 of a layer without neurons."""
        shape = (self._n_rows, self._input_width(self._sizes[layer]))
        return self._recorded(lib.pi_ffn_inputs, layer, "float", np.float32, shape)

    def _input_width(self, size: LayerSizes) -> int:
        return size.width if self._normed or not size.n_ff else self.n_embd

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
        if not self._sizes[layer].n_ff:
            return np.empty(shape, dtype)
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

    def sample_rows(self, samplers: Sequence[Sampler], rows: Sequence[int]) -> list[int]:
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

    def pooled(self, sequence: int) -> np.ndarray:
        """What the rows of a sequence in the last eval became: float32 [pooled_width], a view that
        the next eval invalidates. Only in sessions with `pooling`."""
        check(lib.pi_pooled(self.handle, sequence, self._row))
        return np.frombuffer(ffi.buffer(self._row[0], 4 * self.pooled_width), dtype=np.float32)

    def saved_bytes(self) -> int:
        """Bytes that `save` gives."""
        size = ffi.new("size_t *")
        status = lib.pi_sequence_save(self.handle, 0, ffi.NULL, 0, size)
        if status != lib.PI_ERROR_ARGUMENT:  # other errors do not return the size
            check(status)
        return size[0]

    def save(self) -> bytes:
        """The state of sequence 0 with its keys and values, for `load`."""
        size, n = ffi.new("size_t *"), self.saved_bytes()
        # C writes into the bytes before anybody else sees them: a state may have gigabytes, and a
        # copy would need as many again.
        data = bytes(n)
        check(lib.pi_sequence_save(self.handle, 0, ffi.from_buffer(data), n, size))
        return data if size[0] == n else data[: size[0]]

    def load(self, data: bytes) -> None:
        """Restores sequence 0 from `save`, of this or another session of the same model.

        Raises ModelFormatError for bytes that are not such a state, ContextOverflowError for a
        state that is longer than the context.
        """
        check(lib.pi_sequence_load(self.handle, 0, ffi.from_buffer(data), len(data)))

    def save_part(self, sequence: int, first: int, count: int) -> bytearray:
        """`count` positions of a sequence from `first` on, a multiple of 64, for `load_part`.

        Raises ValueError if the sequence has no such positions.
        """
        size = ffi.new("size_t *")
        of = self.handle, sequence, first, count
        status = lib.pi_sequence_save_part(*of, ffi.NULL, 0, size)
        if status != lib.PI_ERROR_ARGUMENT or not size[0]:
            check(status)
        data = bytearray(size[0])
        check(lib.pi_sequence_save_part(*of, ffi.from_buffer(data), len(data), size))
        return data

    def load_part(self, sequence: int, data: bytes | bytearray | memoryview) -> None:
        """Appends a part to a sequence that ends where the part begins.

        Raises ModelFormatError for bytes that are no such part, ContextOverflowError if there is no
        room for them. The sequence is then as before.
        """
        check(lib.pi_sequence_load_part(self.handle, sequence, ffi.from_buffer(data), len(data)))

    def guess(self, token: int, sequence: int = 0) -> tuple[int, float]:
        """The most likely id behind a token that comes next in a sequence, by the model's layer
        that guesses, and its probability there. Changes nothing. Raises UnsupportedModelError
        without such a layer, ContextOverflowError if the token does not fit."""
        status = lib.pi_guess(self.handle, sequence, token, *self._guessed)
        self._callbacks.check(status)
        return self._guessed[0][0], self._guessed[1][0]

    def guessed_logits(self) -> np.ndarray:
        """The logits of the last guess: a view, float32 [n_vocab], until the next call."""
        data = ffi.buffer(self._guessed[2][0], 4 * self.n_vocab)
        return np.frombuffer(data, dtype=np.float32)

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
        """Drops every position of a sequence from n on.

        Raises UnsupportedModelError, and changes nothing, if layers have a state that is not known
        there, or a window that was given up: see `match`."""
        check(lib.pi_sequence_truncate(self.handle, sequence, n))

    def cut_back(self, n: int, sequence: int = 0) -> int:
        """Cuts a sequence to n positions, or to fewer if a call that failed has given up its
        window; returns how many. Raises what `truncate` raises."""
        n = min(n, self.length(sequence))
        self.truncate(n, sequence)
        return n

    def first_cut(self, sequence: int = 0) -> int:
        """The least position above 0 from which on a sequence can be cut everywhere: 1, unless
        windows were given up, or layers have a state; then its end, or one more if the state there
        is not known."""
        return lib.pi_sequence_first_cut(self.handle, sequence)

    def rest(self, sequence: int, rests: bool = True) -> None:
        """Says that a sequence is not continued for now, so that what its windows hold may be given
        up if pages are wanted; or that it is. A call that continues it ends its rest."""
        check(lib.pi_sequence_rest(self.handle, sequence, rests))

    def copy(self, source: int, target: int, n: int) -> None:
        """Replaces a sequence by the first n positions of another one. They share memory until one
        of them continues. Raises what `truncate` of the other one would raise."""
        check(lib.pi_sequence_copy(self.handle, source, target, n))

    def match(
        self, tokens: np.ndarray, generated: np.ndarray | None = None, sequence: int = 0
    ) -> int:
        """Number of leading positions of a sequence that equal the result of computing int32
        tokens [n], and with which it can be continued. generated: bool [n]; None: all are prompt.

        If layers have a state, these are only some positions: all that the sequence has, those
        with a checkpoint, and those of its last call. If they have a window, all from `first_cut`
        on, and those with a checkpoint. So who needs the results of the last token
        asks for the tokens before it."""
        same = ffi.new("int32_t *")
        ids, flags = _array("int32_t[]", tokens), _array("bool[]", generated)
        check(lib.pi_sequence_match(self.handle, sequence, ids, flags, len(tokens), same))
        return same[0]


def _array(kind: str, values: np.ndarray | None) -> Any:
    """A pointer to values for C; NULL for None."""
    return ffi.NULL if values is None else ffi.from_buffer(kind, values)


def as_tokens(tokens: Sequence[int] | np.ndarray, name: str = "tokens") -> np.ndarray:
    """A sequence of ids as int32 [n]. Raises ValueError, which tells the name, for values that are
    not ids."""
    ids = np.asarray(tokens)
    if ids.size == 0:
        return np.empty(0, dtype=np.int32)
    if (
        ids.ndim == 0
        or ids.dtype.kind not in "iu"
        or ids.min() < 0
        or ids.max() > np.iinfo(np.int32).max
    ):
        raise ValueError(f"{name}: token ids must be integers of at least 0")
    return np.ascontiguousarray(ids, dtype=np.int32).reshape(-1)
