import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="policies need torch: pip install 'proctor[torch]'")
sys.path.insert(0, str(Path(__file__).parent))
