"""What becomes of the parts of a content, in all dialects: text stays, media are named where they
only stand in what was said before, and what asks for nothing is dropped.

A kind that is not in the table is read by the names of its fields, so kinds of later versions need
no entry as long as their text stands where text usually does.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Refusal

Part = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """A text of a content. apart: it stands on lines of its own."""

    text: str
    apart: bool = False


@dataclass(frozen=True)
class _Media:
    """What is no text, and its kind."""

    kind: str


# Reads a part. The strings are names of the part in errors; asks: as in `text_of`.
_Reader = Callable[[str, Part, bool], Piece | _Media | None]

# Where texts stand, in the order in which they are told.
_FIELDS = (
    *("title", "filename", "url", "context", "summary", "text", "stdout", "stderr", "content"),
    *("output", "resource", "logs", "lines", "outcome", "tabs", "tool_references"),
    *("message", "error_code"),
)
_OF_RESULTS = ("text", "content", "output", "stdout")  # of results that have no kind


def text_of(where: str, content: object, asks: bool = False) -> str:
    """The text of a content: a text, a part, or a list of them; None is empty.

    where: names it in errors. asks: it is what the user asks now, which is refused if it has
    anything but text. Raises Refusal.
    """
    return joined(
        piece
        for part_where, part in parts_of(where, content)
        if (piece := piece_of(part_where, part, asks)) is not None
    )


def parts_of(where: str, content: object) -> list[tuple[str, Part]]:
    """The parts of a content, with their names in errors. Raises Refusal for what is none."""
    if content is None:
        return []
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if isinstance(content, Mapping):
        return [(where, content)]
    if not isinstance(content, list):
        raise Refusal(400, f"{where} must be a text or a list of parts", where)
    found: list[tuple[str, Part]] = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, Mapping):
            raise Refusal(400, f"{where}[{i}] must be a part: an object with a type", where)
        found.append((f"{where}[{i}]", part))
    return found


def piece_of(where: str, part: Part, asks: bool) -> Piece | None:
    """What a part says; None: nothing. Arguments and errors as of `text_of`."""
    kind = part.get("type")
    read = _READERS.get(kind, _by_fields) if isinstance(kind, str) else _by_fields
    found = read(where, part, asks)
    if not isinstance(found, _Media):
        return found
    if asks:
        words = f"{where} is of type {str(kind)[:80]!r}, and the model of this server reads text"
        raise Refusal(400, f"{words} alone (serve --omit-media leaves it out)", where)
    return Piece(f"[{found.kind} omitted]", apart=True)


def joined(pieces: Iterable[Piece]) -> str:
    """The text of pieces: they run on, but for those that stand apart."""
    found: list[str] = []
    apart = False  # was the last one?
    for piece in pieces:
        if found and (apart or piece.apart) and not found[-1].endswith("\n"):
            found.append("\n")
        found += [piece.text] if piece.text else []
        apart = piece.apart
    return "".join(found)


def has_text(part: Part) -> bool:
    """Has a part of any kind a field whose text is told?"""
    return any(field in part for field in _FIELDS) or "return_code" in part


def failed(text: str) -> str:
    """The result of a call that failed."""
    return text if text.startswith("Error") else f"Error: {text}" if text else "Error"


# ---- Kinds -----------------------------------------------------------------------------------


def _text(where: str, part: Part, asks: bool, field: str = "text") -> Piece:
    text = part.get(field)
    if not isinstance(text, str):
        raise Refusal(400, f"{where}: {field} must be a text", where)
    return Piece(text)


def _refusal(where: str, part: Part, asks: bool) -> Piece:
    return _text(where, part, asks, "refusal")


def _nothing(where: str, part: Part, asks: bool) -> None:
    return None


def _media(kind: str) -> _Reader:
    return lambda where, part, asks: _Media(kind)


def _audio(where: str, part: Part, asks: bool) -> Piece | _Media:
    transcript = part.get("transcript")
    return Piece(transcript, apart=True) if isinstance(transcript, str) else _Media("audio")


def _reference(where: str, part: Part, asks: bool) -> Piece | None:
    """A tool that a search found."""
    name = part.get("tool_name") or part.get("name")
    return Piece(name, apart=True) if isinstance(name, str) else None


def _document(where: str, part: Part, asks: bool) -> Piece | _Media:
    """A document of Anthropic's, whose title and context come first."""
    source = part.get("source")
    source = source if isinstance(source, Mapping) else {}
    kind, text = source.get("type"), None
    if kind == "text":
        text = source.get("data")
    elif kind == "content":
        text = text_of(f"{where}.source.content", source.get("content"), asks)
    elif kind == "base64":
        text = _decoded(source.get("media_type"), source.get("data"))
    return _titled(part.get("title"), part.get("context"), text)


def _file(where: str, part: Part, asks: bool) -> Piece | _Media:
    """A file of OpenAI's: of the responses' shape, or of the chats'."""
    inner = part.get("file")
    of = inner if isinstance(inner, Mapping) else part
    data = of.get("file_data")
    text = _decoded(of.get("mime_type"), data) if isinstance(data, str) else None
    return _titled(of.get("filename"), None, text)


def _titled(title: object, context: object, text: object) -> Piece | _Media:
    if not isinstance(text, str):
        return _Media("document")
    heads = [head for head in (title, context) if isinstance(head, str) and head]
    return Piece("\n".join([*heads, text]), apart=True)


def _decoded(media_type: object, data: object) -> str | None:
    """The text of data in base64, also with `data:TYPE;base64,` before it; None if it is none."""
    if not isinstance(data, str):
        return None
    if data.startswith("data:"):
        head, _, data = data[5:].partition(",")
        media_type = head.partition(";")[0]
    kind = media_type.partition(";")[0].strip() if isinstance(media_type, str) else ""
    if kind and not kind.startswith("text/") and not kind.endswith(_TEXTUAL):
        return None
    try:
        found = base64.b64decode(data)
        text = found.decode("utf-8-sig")
    except (binascii.Error, UnicodeError, ValueError):
        return None
    return None if "\0" in text or (not kind and text.startswith("%PDF")) else text


# Ends of types of media that are text, beside text/*.
_TEXTUAL = ("/json", "+json", "/xml", "+xml", "/yaml", "/x-yaml", "/toml", "/javascript", "/x-sh")


def _summary(where: str, part: Part, asks: bool) -> Piece | None:
    """What came before, in short; nobody else reads an encrypted one."""
    content = part.get("content")
    return Piece(content, apart=True) if isinstance(content, str) else None


def _search_result(where: str, part: Part, asks: bool) -> Piece:
    source = part.get("source")
    found = {"title": part.get("title"), "url": source if isinstance(source, str) else None}
    told = _by_fields(where, {**found, "content": part.get("content")}, asks)
    return told if isinstance(told, Piece) else Piece("")


def _exit(where: str, part: Part, asks: bool) -> Piece | None:
    """How a command ended."""
    code = part.get("exit_code")
    return Piece(f"exit code {code}", apart=True) if code not in (None, 0) else None


def _timeout(where: str, part: Part, asks: bool) -> Piece:
    return Piece("it took too long", apart=True)


def _by_fields(where: str, part: Part, asks: bool) -> Piece | _Media | None:
    """A part of another kind: what its fields say. Without a kind it is what a tool gave."""
    kind = part.get("type")
    if not isinstance(kind, str) and not any(field in part for field in _OF_RESULTS):
        told = Piece(json.dumps(part, ensure_ascii=False), apart=True)
        return _Media("file") if "blob" in part else told
    if not has_text(part):
        nothing = str(kind).endswith("_result")  # that a call succeeded
        return None if nothing else _Media("file" if "file_id" in part else str(kind)[:80])
    texts = []
    for field in _FIELDS:
        value = part.get(field)
        if field == "lines" and isinstance(value, list):
            value = "\n".join(line for line in value if isinstance(line, str))
        if isinstance(value, str | list | Mapping):
            texts.append(text_of(f"{where}.{field}", value, asks))
    code = part.get("return_code")
    texts += [f"exit code {code}"] if code not in (None, 0) else []
    texts = [text for text in texts if text]
    if str(kind).endswith("_error"):
        return Piece(failed("\n".join(texts)), apart=True)
    # What is alone runs on, as a text of any kind does.
    alone = len(texts) == 1 and isinstance(part.get("text"), str)
    return Piece("\n".join(texts), apart=not alone) if texts else None


_IMAGE, _VIDEO = _media("image"), _media("video")
_READERS: Mapping[str, _Reader] = {
    **dict.fromkeys(("text", "input_text", "output_text"), _text),
    "refusal": _refusal,
    **dict.fromkeys(("image", "image_url", "input_image", "image_file"), _IMAGE),
    "computer_screenshot": _IMAGE,
    **dict.fromkeys(("audio", "audio_url", "input_audio", "output_audio"), _audio),
    **dict.fromkeys(("video", "video_url", "input_video"), _VIDEO),
    "document": _document,
    **dict.fromkeys(("file", "input_file"), _file),
    "search_result": _search_result,
    # It is for programs of a hosted service, which nobody runs here: no question depends on it.
    "container_upload": lambda where, part, asks: Piece("[file omitted]", apart=True),
    "tool_reference": _reference,
    "compaction": _summary,
    "exit": _exit,
    "timeout": _timeout,
    # What changes the offered tools, or is for a hosted service alone. A tool that is defined here
    # is offered (histories.py).
    **dict.fromkeys(("tool_addition", "tool_removal", "mcp_tool_listing", "fallback"), _nothing),
}
