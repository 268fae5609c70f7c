"""The models of a server, which load one after the other while it answers already."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.gguf import Gguf
from ..text.prompts import has_template
from .background import TOKENISING
from .errors import Refusal
from .served import ServedModel
from .update_queues import UpdateQueues


class Models:
    """Opens the models of files, by their names.

    options: of `ServedModel`.
    """

    def __init__(self, paths: Mapping[str, Path], queues: UpdateQueues, options: Mapping[str, Any]):
        self._paths, self._queues, self._options = dict(paths), queues, dict(options)
        self._open: dict[str, ServedModel] = {}
        # What makes the prompts of chats, as Prompts.chats_with; known before a model is open.
        self.chat_formats = {name: self._chat_format(path) for name, path in paths.items()}
        self.closing = False
        self.failure: Exception | None = None  # why a model could not be loaded
        self.progress = 0.0
        self._thread = threading.Thread(target=self._load, name="loading models", daemon=True)

    @property
    def names(self) -> Sequence[str]:
        """All names, of models that load as well."""
        return list(self._paths)

    @property
    def ready(self) -> bool:
        """Are all models open, and do their engines run?"""
        return len(self._open) == len(self._paths) and self.fault is None

    @property
    def fault(self) -> BaseException | None:
        """Why a model does not serve, and never will."""
        dead = [model.engine.error for model in self._open.values() if model.engine.error]
        return self.failure or (dead[0] if dead else None)

    def state(self, name: str) -> str:
        """That of the model with this name, in llama.cpp's words: loading, loaded or failed."""
        model = self._open.get(name)
        if model is not None:
            return "loaded" if model.engine.error is None else "failed"
        return "loading" if self.failure is None else "failed"

    def load(self) -> None:
        """Begins to load."""
        self._thread.start()

    def wait(self) -> None:
        """Waits until all are open, or one could not be."""
        self._thread.join()

    def get(self, name: str | None) -> ServedModel:
        """The model with this name; a single one has every name. Raises Refusal."""
        if len(self._paths) > 1 and name is not None and name not in self._paths:
            known = ", ".join(self._paths)
            raise Refusal(404, f"there is no model {name!r}: known are {known}", "model")
        found = name if name in self._paths else next(iter(self._paths))
        if self.failure is not None:
            raise Refusal(500, "the model could not be loaded")
        if found not in self._open:
            raise Refusal(503, "the model is loading")
        return self._open[found]

    def name_of(self, name: str | None) -> str:
        """What a model is called in answers."""
        return name if name in self._paths else next(iter(self._paths))

    def all(self) -> Mapping[str, ServedModel]:
        """The open models, by name."""
        return dict(self._open)

    def writing(self) -> set[str]:
        """The senders whose texts are written now."""
        texts = [text for model in self._open.values() for text in model.engine.snapshot.texts]
        return {ticket.request.sender for ticket, *_ in texts}

    def close(self) -> None:
        """Ends loading and frees all models."""
        self.closing = True
        if self._thread.is_alive():
            self._thread.join()
        opened, self._open = self._open, {}
        for model in opened.values():
            model.close()

    def _chat_format(self, path: Path) -> str | None:
        key = "tokenizer.chat_template"
        override = (self._options.get("kv_overrides") or {}).get(key)
        try:
            with Gguf(path) as gguf:
                if gguf.gives_no_text:
                    return None
                found = has_template(gguf.value(key) if override is None else override)
        except (OSError, ValueError, MemoryError):
            return None  # loading will tell
        named: str | None = self._options.get("chat_format")
        if named is not None or self._options.get("chat_handler") is not None:
            return named or "handler"
        return "template" if found or self._options.get("chat_template") is not None else None

    def _load(self) -> None:
        for i, (name, path) in enumerate(self._paths.items()):

            def progress(fraction: float, done: int = i) -> bool:
                self.progress = (done + fraction) / len(self._paths)
                return not self.closing

            try:
                model = ServedModel(
                    path, self._queues.deliver, progress_callback=progress, **self._options
                )
            except Exception as error:
                self.failure = error
                return
            model.model.run_long = TOKENISING.call
            self._open[name] = model
