"""Files of Hugging Face repositories, through the package huggingface_hub and its cache."""

import logging
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .core.log import say

QUANT = "Q4_K_M"  # llama.cpp's default
SECONDS = 10.0  # for an answer, where the cache has a copy
# Without a choice: the default, then what is nearest to it in size and quality. A repository has
# 16-bit files for those who quantise; they come last of what runs.
_PREFERRED = (
    *(QUANT, "Q4_K_S", "Q4_0", "Q4_K_XL", "Q4_K_L", "IQ4_XS", "IQ4_NL", "Q4_1", "Q4_K"),
    *("MXFP4_MOE", "MXFP4", "NVFP4"),
    *("Q5_K_M", "Q5_K_S", "Q5_0", "Q5_K_XL", "Q5_K_L", "Q5_1", "Q5_K"),
    *("Q6_K", "Q6_K_XL", "Q6_K_L", "Q8_0", "Q8_K_XL"),
    *("Q3_K_L", "Q3_K_M", "Q3_K_XL", "Q3_K_S", "Q3_K", "Q2_K_L", "Q2_K_XL", "Q2_K", "Q2_K_S"),
)
_WIDE = ("F16", "FP16", "BF16", "F32", "FP32")
# Formats that the engine does not read, by their names.
_UNREAD = re.compile(r"(?<![a-z0-9])(IQ[1-3]_|TQ[12]_|IQ4_K|Q4_0_[48]_[48])", re.IGNORECASE)
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

    quant: in any case; None: the first of the preferred ones that there is. Models of which parts
    are missing are none. Raises ValueError if there is none.
    """
    models = [
        name
        for name in sorted(names)
        if name.endswith(".gguf") and not _OTHER.search(name.rsplit("/", 1)[-1])
    ]
    whole = [name for name in models if set(_parts(name)) <= set(models)]
    found = [name for name in whole if quant is None or _has_word(name, quant)]
    if not found:
        wanted = f"of the format {quant}" if quant else ""
        listed = ", ".join(models[:20]) or "none"
        raise ValueError(f"{repo_id}: there is no model {wanted}; candidates: {listed}")
    return _parts(found[0] if quant else min(found, key=_rank))


def _parts(name: str) -> list[str]:
    """All files of a model, one of which this is."""
    part = _PART.search(name)
    if part is None:
        return [name]
    stem = name[: part.start()]
    return [f"{stem}-{i:05d}-of-{part[2]}.gguf" for i in range(1, int(part[2]) + 1)]


def _rank(name: str) -> int:
    """Rank of a file by its name; the file with the lowest rank is downloaded."""
    for i, quant in enumerate(_PREFERRED):
        if _has_word(name, quant):
            return i
    if _UNREAD.search(name):
        return len(_PREFERRED) + 1 + len(_WIDE)
    for i, quant in enumerate(_WIDE):
        if _has_word(name, quant):
            return len(_PREFERRED) + 1 + i
    return len(_PREFERRED)  # it does not say


def _has_word(name: str, quant: str) -> bool:
    word = rf"(?<![a-z0-9]){re.escape(quant)}(?![a-z0-9_])"
    return re.search(word, name, re.IGNORECASE) is not None


class _Repository:
    """A repository at a revision. Without a network, with HF_HUB_OFFLINE=1 or offline, it is what
    the cache has of it; verbose: and a line on stderr says so.

    given: revision, token, cache_dir and local_dir, where they are asked for.
    """

    def __init__(
        self, wanted_by: str, repo_id: str, offline: bool, verbose: bool, **given: str | None
    ):
        self._hub, self._id = _package(wanted_by), repo_id
        self._offline, self._verbose = offline, verbose
        self._given = {name: value for name, value in given.items() if value is not None}
        self._folder: Path | None = None  # of the cache, if there is no other way

    def names(self) -> list[str]:
        """Its files. Raises OSError if there is neither an answer nor a copy."""
        copy = self._cached()
        try:
            if self._offline:
                raise OSError("the cache has no copy, and --offline forbids to ask")
            return self._asked(once=copy is not None)
        except Exception as error:  # also classes of HTTP clients, which differ between versions
            if copy is None:
                raise OSError(f"{self._id}: {error}") from None
            if not self._offline:
                why = " ".join(str(error).split())[:200]
                words = f"{self._id}: what the cache has is used ({why})"
                say(words, self._verbose, logging.WARNING)
        self._folder = copy
        files = (file for file in copy.rglob("*") if file.is_file())
        return [file.relative_to(copy).as_posix() for file in files]

    def _asked(self, once: bool) -> list[str]:
        """The names that the hub tells. once: without trying for half a minute, where there is no
        network."""
        asked = {n: self._given[n] for n in ("revision", "token") if n in self._given}
        api = self._hub.HfApi()
        if not once:
            return list(api.list_repo_files(self._id, **asked))
        info = api.model_info(self._id, timeout=SECONDS, **asked)
        return [file.rfilename for file in info.siblings]

    def path(self, name: str) -> str:
        """The path of a file, which is downloaded if necessary. Raises OSError."""
        if self._folder is not None:
            return str(self._folder / name)
        more = {"local_files_only": True} if self._offline else {}
        try:
            return str(self._hub.hf_hub_download(self._id, name, **self._given, **more))
        except Exception as error:
            raise OSError(f"{self._id}: {error}") from None

    def _cached(self) -> Path | None:
        """The folder in which the cache keeps this revision."""
        where = {name: value for name, value in self._given.items() if name != "token"}
        try:
            return Path(self._hub.snapshot_download(self._id, local_files_only=True, **where))
        except Exception:  # LocalEntryNotFoundError, and what else keeps it from being read
            return None


def fetch(
    repo: str,
    file: str | None = None,
    token: str | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> str:
    """The path of a model, downloaded as `-hf OWNER/NAME[:QUANT][@REVISION]`, `--hf-file FILE` and
    `--hf-revision REVISION` ask; what was downloaded before needs no network. offline: asks none.

    Raises ImportError without huggingface_hub, ValueError if the repository has no such model, and
    OSError if it cannot be read.
    """
    rest, _, at = repo.partition("@")
    if at and revision and at != revision:
        raise ValueError(f"{repo}: --hf-revision says {revision}")
    repo_id, _, quant = rest.partition(":")
    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ValueError(f"{repo}: -hf needs OWNER/NAME, OWNER/NAME:QUANT or OWNER/NAME@REVISION")
    of = _Repository("-hf", repo_id, offline, True, token=token, revision=at or revision)
    chosen = [file] if file else gguf_files(of.names(), quant or None, repo_id)
    return [of.path(name) for name in chosen][0]


def _package(wanted_by: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ImportError(
            f"{wanted_by} needs the package huggingface_hub: pip install huggingface_hub"
        ) from None
    return huggingface_hub


def download(
    repo_id: str,
    patterns: Sequence[str | None],
    local_dir: str | None,
    cache_dir: str | None,
    revision: str | None = None,
    token: str | None = None,
    verbose: bool = True,
) -> str:
    """Downloads one file per pattern, and returns the path of the first; what was downloaded before
    needs no network.

    Raises ImportError without huggingface_hub, ValueError if a pattern does not match one file, and
    OSError if the repository cannot be read.
    """
    of = _Repository(
        "Llama.from_pretrained",
        repo_id,
        False,
        verbose,
        local_dir=local_dir,
        cache_dir=cache_dir,
        revision=revision,
        token=token,
    )
    if not all(patterns):
        raise ValueError("from_pretrained needs a filename, or a glob that matches one")
    names = of.names()
    chosen = [one_match(names, pattern, repo_id) for pattern in patterns if pattern]
    return [of.path(name) for name in chosen][0]
