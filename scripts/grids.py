"""Writes ggml/src/formats/grids.inc: the grids of IQ1, IQ2 and IQ3, as the gguf package has them.

A grid lists the groups of weights that a format knows. Each of its rows becomes one number: the
indices of its weights in the list of possible values, two bits each (three in IQ3), the first
weight in the lowest bits.
"""

from pathlib import Path

import numpy as np
from gguf import quants

GRIDS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ3_XXS", "IQ3_S")
TARGET = Path(__file__).parent.parent / "ggml/src/formats/grids.inc"


def rows(name: str) -> list[int]:
    """The numbers of one grid."""
    format = getattr(quants, name)
    format.init_grid()
    values = np.asarray(format.grid_map)
    indices = np.searchsorted(values, format.grid.reshape(format.grid_shape))
    bits = 3 if len(values) > 4 else 2
    return (indices << bits * np.arange(format.grid_shape[1])).sum(axis=1).tolist()


def main() -> None:
    text = "// Made by scripts/grids.py. GRID(name, the numbers of its rows).\n"
    for name in GRIDS:
        numbers = rows(name)
        lines = [numbers[i : i + 15] for i in range(0, len(numbers), 15)]
        text += f"GRID({name},\n"
        text += ",\n".join("     " + ", ".join(map(str, line)) for line in lines) + ")\n"
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
