from __future__ import annotations

raise RuntimeError("this module must not be imported")
