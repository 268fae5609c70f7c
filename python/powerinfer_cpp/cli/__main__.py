"""`python -m powerinfer_cpp.cli`."""

import sys

from . import main

sys.exit(main())
