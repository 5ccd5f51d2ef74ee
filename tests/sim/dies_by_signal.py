"""Stands in for the process that looks at environments: one whose driver crashes."""

import os
import signal
import sys

print("oh no", file=sys.stderr, flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
