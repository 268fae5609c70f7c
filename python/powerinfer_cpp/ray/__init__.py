"""powerinfer_cpp on Ray: a server on Serve, and work over Datasets.

Needs `pip install 'powerinfer_cpp[ray]'`. `app` is `build_app` for `serve run`.
"""

from .data import complete, perplexity, profile
from .serve import app, build_app

__all__ = ["app", "build_app", "complete", "perplexity", "profile"]
