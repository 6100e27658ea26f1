from __future__ import annotations

import sys

print("noise of an import")
sys.exit(0)
