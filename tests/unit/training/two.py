"""Started twice by torchrun: runs the trainings of a file one after the other, to import once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from proctor.cli import main
from proctor.training.together import joined

if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined():
        codes = [main(["train", *asked]) for asked in json.loads(Path(sys.argv[1]).read_text())]
    sys.exit(max(codes))
