"""``python -m proctor``: the command line, if the ``proctor`` script is not on the path."""

import sys

from proctor.cli import main

sys.exit(main())
