from __future__ import annotations

raise ValueError("several\nlines of\ntrouble")
