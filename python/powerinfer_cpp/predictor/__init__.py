"""Predictors of the neurons that fire, trained on a text: `train_predictors(model, out, text)`."""

from .report import LayerReport, Report
from .solve import KINDS, train_predictors

__all__ = ["KINDS", "LayerReport", "Report", "train_predictors"]
