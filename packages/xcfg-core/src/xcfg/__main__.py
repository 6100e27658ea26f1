"""`python -m xcfg` is `xcfg`."""

from __future__ import annotations

import sys

from xcfg.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
