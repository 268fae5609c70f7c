"""Trains an ordinary checkpoint on until most of its neurons are zero: `relufy(folder, out, text)`.

Needs torch and transformers, which are imported only when the work begins.
"""

from .recipe import RECIPES, Recipe
from .solve import relufy

__all__ = ["RECIPES", "Recipe", "relufy"]
