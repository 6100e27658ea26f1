"""The profiles as records; light, for the plugin imports it."""

from __future__ import annotations

from xcfg.plugin import Profile

FACTORY = "xcfg_analysis.rules.expand:expand"


def _profile(name: str, summary: str, *classes: str) -> Profile:
    return Profile(name=name, summary=summary, strategy="zip", source_classes=classes, factory=FACTORY)


PROFILES = (
    _profile("A0", "Everything aligned that can be."),
    _profile(
        "A1", "Only arithmetic differs: each kernel, fusion, compiler or cache setting alone, then all.", "arithmetic"
    ),
    _profile("A2", "Only reductions differ: each parallel size or sharding alone, then all.", "reduction"),
    _profile("A3", "Only the representation differs: each dtype or quantization alone, then all.", "representation"),
    _profile("A4", "Two classes differ; only where production fails and each class alone passes."),
    _profile("A5", "Production: every difference."),
    _profile("A0-A5", "All of A0, A1, A2, A3 and A5."),
)
