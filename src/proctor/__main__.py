"""``python -m proctor``: the command line where its script is not on the path."""

import sys

from proctor.cli import main

sys.exit(main())
