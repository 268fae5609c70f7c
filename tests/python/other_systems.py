"""Run by test_platforms.py: imports every module of the package as a system would that lacks what
only Unix has, and uses what stands in its place."""

from __future__ import annotations

import builtins
import importlib
import re
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

PACKAGE = "powerinfer_cpp"
# Of the folder children.
CHILDREN = ("serve", "grammars", "schema_text", "pieces", "schemas", "templates")
# Modules that Windows does not have.
MISSING = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "readline", "curses")
MISSING += ("syslog", "uvloop", "posix")
# Names that it does not have, of modules that it has.
LACKING = {
    "os": re.compile(
        r"posix_\w+|POSIX_\w+|sched_\w+|SCHED_\w+|fork\w*|register_at_fork|wait\w*|W[A-Z]{2}\w+|P_[A-Z]+"
        r"|EX_\w+|PRIO_\w+|RWF_\w+|SF_\w+|F_\w+|[gs]ete?(uid|gid)\w*|[gs]etres\w+|[gs]etre\w+"
        r"|[gs]etgroups|[gs]etpg\w*|[gs]etsid|[gs]etpriority|initgroups|killpg|nice|uname|getloadavg"
        r"|sysconf\w*|confstr\w*|pathconf\w*|fpathconf|statvfs|fstatvfs|statvfs_result|sync|fdatasync"
        r"|p?p(read|write)v?|preadv|pwritev|readv|writev|sendfile|copy_file_range|splice|lockf"
        r"|fchmod|fchown|lchown|chown|fchdir|chroot|mkfifo|mknod|major|minor|makedev|openpty|ttyname"
        r"|ctermid|tcgetpgrp|tcsetpgrp|memfd_create|MFD_\w+|eventfd\w*|EFD_\w+|pidfd_open|getxattr"
        r"|setxattr|listxattr|removexattr|XATTR_\w+|get_blocking|set_blocking|dup3|pipe2"
        r"|O_(CLOEXEC|NONBLOCK|NDELAY|NOFOLLOW|NOATIME|NOCTTY|DIRECTORY|DIRECT|SYNC|DSYNC|RSYNC|ASYNC"
        r"|PATH|TMPFILE|LARGEFILE|ACCMODE)"
    ),
    "signal": re.compile(
        r"SIG(?!ABRT|FPE|ILL|INT|SEGV|TERM|_)[A-Z0-9]+|\w*itimer|ITIMER_\w+|alarm|pause|pthread_\w+"
        r"|sig(wait|pending|timed)\w*|siginterrupt"
    ),
    "socket": re.compile(r"AF_UNIX|AF_PACKET|SO_REUSEPORT|socketpair|sendmsg|recvmsg|CMSG_\w+"),
    "select": re.compile(r"e?poll|EPOLL\w*|POLL\w*"),
    "time": re.compile(r"clock_\w+|CLOCK_\w+|tzset|pthread_\w+"),
}


def without(module: types.ModuleType, names: re.Pattern[str]) -> types.ModuleType:
    poor = types.ModuleType(module.__name__)
    kept = {k: v for k, v in vars(module).items() if not names.fullmatch(k)}
    assert len(kept) < len(vars(module)), module
    vars(poor).update(kept)
    return poor


def hide() -> None:
    """Hides them from the modules of the package; others import what they like."""
    poor = {name: without(importlib.import_module(name), names) for name, names in LACKING.items()}
    real = builtins.__import__

    def limited(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        importer = (globals or {}).get("__name__", "")
        if level == 0 and (importer.split(".")[0] == PACKAGE or importer in CHILDREN):
            if name.split(".")[0] in MISSING:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in poor:
                return poor[name]
        return real(name, globals, locals, fromlist, level)

    builtins.__import__ = limited


def modules() -> list[str]:
    import powerinfer_cpp

    root = Path(powerinfer_cpp.__file__).parent
    found = [p.relative_to(root) for p in root.rglob("*.py")]
    names = {p.with_suffix("").as_posix().replace("/", ".") for p in found}
    names = {
        n
        for n in names
        if not n.startswith(("text.children.", "_build_ffi")) and "__main__" not in n
    }
    sys.path.append(str(root / "text" / "children"))
    whole = (f"{PACKAGE}.{name.removesuffix('__init__').rstrip('.')}".rstrip(".") for name in names)
    return [*sorted(whole), *CHILDREN]


def main() -> None:
    hide()
    count, absent = 0, set()
    for name in modules():
        try:
            importlib.import_module(name)
            count += 1
        except ModuleNotFoundError as error:  # an extra that is not installed
            top = str(error.name).split(".")[0]
            if top in MISSING or top == PACKAGE:
                raise
            absent.add(top)
    from powerinfer_cpp.convert import writer
    from powerinfer_cpp.core import stats, system

    assert system.fcntl is None and system.resource is None and system.msvcrt is None
    assert stats.rss_peak() > 1 << 20
    system.allow_many_files()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        path.write_bytes(b"old")
        with writer.replacing(path, 10) as part, part.open("wb") as file:
            system.reserve(file.fileno(), (1 << 20) + 3)
        assert path.read_bytes() == bytes((1 << 20) + 3)
        with writer.alone(Path(folder) / "mark"):
            pass
        assert sorted(p.name for p in Path(folder).iterdir()) == ["mark", "out"]
    print(f"imported {count}; without {' '.join(sorted(absent)) or 'nothing'}")


if __name__ == "__main__":
    main()
