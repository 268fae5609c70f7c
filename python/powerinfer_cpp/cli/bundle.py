"""powerinfer bundle: writes the file of a model from which single neurons can be read."""

import argparse
from pathlib import Path

from .. import bundle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="neuron-aware GGUF or PWRI file")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="default: MODEL.bundle.gguf, or the user's cache if that folder is read-only",
    )
    parser.add_argument(
        "--align",
        type=int,
        choices=bundle.ALIGNS,
        default=bundle.ALIGNS[0],
        metavar="N",
        help="neurons lie at multiples of N bytes: 512 (default), 1024, 2048 or 4096, the block "
        "size of the disk",
    )
    parser.add_argument("--force", action="store_true", help="also if there is one already")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing: compare the checksums of MODEL, or of its bundled file",
    )


def run(args: argparse.Namespace) -> None:
    if args.check:
        path = bundle.find_bundle(args.model) or args.model
        bundle.check_bundle(path)
        print(f"{path}: every checksum is right")
        return
    found = None if args.force or args.out else bundle.find_bundle(args.model)
    print(found or bundle.bundle(args.model, args.out, align=args.align))
