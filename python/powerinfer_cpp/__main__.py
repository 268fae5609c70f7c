"""`python -m powerinfer_cpp`: the command `powerinfer`."""

import sys

from .cli import main

sys.exit(main())
