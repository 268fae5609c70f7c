"""Files of Hugging Face repositories, through the package huggingface_hub."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

QUANT = "Q4_K_M"  # llama.cpp's default
_OTHER = re.compile(r"mmproj|imatrix|-mtp-|^mtp-", re.IGNORECASE)  # files beside models
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def one_match(names: Sequence[str], pattern: str, repo_id: str) -> str:
    """The only name that a glob matches, with or without folders. Raises ValueError otherwise."""
    found = [
        name
        for name in names
        if name == pattern
        or fnmatchcase(name, pattern)
        or fnmatchcase(name.rsplit("/", 1)[-1], pattern)
    ]
    if pattern in found:
        return pattern
    if len(found) != 1:
        what = f"{len(found)} files match" if found else "no file matches"
        listed = ", ".join(sorted(found or names)[:20]) or "none"
        raise ValueError(f"{repo_id}: {what} {pattern!r}; candidates: {listed}")
    return found[0]


def gguf_files(names: Sequence[str], quant: str | None, repo_id: str) -> list[str]:
    """The files of the model that llama.cpp's `-hf REPO[:QUANT]` means: one, or all its parts.

    quant: in any case; None: QUANT, else the first model. Raises ValueError if there is none.
    """
    models = sorted(
        name
        for name in names
        if name.endswith(".gguf") and not _OTHER.search(name.rsplit("/", 1)[-1])
    )
    found = [name for name in models if _has_word(name, quant or QUANT)]
    if not found and quant is None:
        found = models
    if not found:
        wanted = f"of the format {quant}" if quant else ""
        listed = ", ".join(models[:20]) or "none"
        raise ValueError(f"{repo_id}: there is no model {wanted}; candidates: {listed}")
    part = _PART.search(found[0])
    if part is None:
        return found[:1]
    stem = found[0][: part.start()]
    return [f"{stem}-{i:05d}-of-{part[2]}.gguf" for i in range(1, int(part[2]) + 1)]


def _has_word(name: str, quant: str) -> bool:
    word = rf"(?<![a-z0-9]){re.escape(quant)}(?![a-z0-9_])"
    return re.search(word, name, re.IGNORECASE) is not None


def fetch(repo: str, file: str | None = None, token: str | None = None) -> str:
    """The path of a model, downloaded as `-hf REPO[:QUANT]` and `--hf-file FILE` ask.

    Raises ImportError without huggingface_hub, ValueError if the repository has no such model, and
    OSError if it cannot be read.
    """
    api = _package("-hf")
    repo_id, _, quant = repo.partition(":")
    if repo_id.count("/") != 1:
        raise ValueError(f"{repo}: -hf needs OWNER/NAME or OWNER/NAME:QUANT")
    given = {} if token is None else {"token": token}
    try:
        if file:  # needs no network if it was downloaded before
            chosen = [file]
        else:
            names = api.HfApi().list_repo_files(repo_id, **given)
            chosen = gguf_files(names, quant or None, repo_id)
        return [api.hf_hub_download(repo_id, name, **given) for name in chosen][0]
    except ValueError:
        raise
    except Exception as error:  # also classes of HTTP clients, which differ between versions
        raise OSError(f"{repo_id}: {error}") from None


def _package(wanted_by: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ImportError(
            f"{wanted_by} needs the package huggingface_hub: pip install huggingface_hub"
        ) from None
    return huggingface_hub


def download(
    repo_id: str, patterns: Sequence[str | None], local_dir: str | None, cache_dir: str | None
) -> str:
    """Downloads one file per pattern, and returns the path of the first.

    Raises ImportError without huggingface_hub, ValueError if a pattern does not match one file.
    """
    huggingface_hub = _package("Llama.from_pretrained")
    if not all(patterns):
        raise ValueError("from_pretrained needs a filename, or a glob that matches one")
    names = huggingface_hub.HfApi().list_repo_files(repo_id)
    chosen = [one_match(names, pattern, repo_id) for pattern in patterns if pattern]
    where: dict[str, Any] = {"local_dir": local_dir, "cache_dir": cache_dir}
    where = {key: value for key, value in where.items() if value is not None}
    return [huggingface_hub.hf_hub_download(repo_id, name, **where) for name in chosen][0]
