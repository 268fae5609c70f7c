"""Files of Hugging Face repositories, through the package huggingface_hub."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any


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


def download(
    repo_id: str, patterns: Sequence[str | None], local_dir: str | None, cache_dir: str | None
) -> str:
    """Downloads one file per pattern, and returns the path of the first.

    Raises ImportError without huggingface_hub, ValueError if a pattern does not match one file.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise ImportError(
            "Llama.from_pretrained needs the package huggingface_hub: pip install huggingface_hub"
        ) from None
    if not all(patterns):
        raise ValueError("from_pretrained needs a filename, or a glob that matches one")
    names = huggingface_hub.HfApi().list_repo_files(repo_id)
    chosen = [one_match(names, pattern, repo_id) for pattern in patterns if pattern]
    where: dict[str, Any] = {"local_dir": local_dir, "cache_dir": cache_dir}
    where = {key: value for key, value in where.items() if value is not None}
    return [huggingface_hub.hf_hub_download(repo_id, name, **where) for name in chosen][0]
