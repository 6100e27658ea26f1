"""Write what natural drift looks like to each signature (xcfg_analysis/null.json), from half of the recorded scores.

    python tools/calibrate_signatures.py

Draws of clean drift come from the sequences with even numbers of packages/xcfg-analysis/tests/data/natural.safetensors;
the tests judge clean drift on the odd ones. For every draw and either direction each signature is fitted, and the
share of the squared drift that its form removes is kept (0 where its own test sees nothing, p >= 0.05). The profile
is the usual |d| by log probability.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import xcfg
from xcfg.plugin.signature import SignatureFit
from xcfg_analysis import null
from xcfg_analysis.analyze import candidates
from xcfg_analysis.recognise import share_removed
from xcfg_analysis.tokens import NORMAL, Tokens, active_tokens

ROOT = Path(__file__).resolve().parent.parent
PLANTED = ROOT / "packages/xcfg-analysis/tests/planted.py"
TARGET = ROOT / "packages/xcfg-analysis/src/xcfg_analysis/null.json"
DRAWS = 200
CALIBRATED = ("short",)
"""The other set is held out whole: other prompts, other lengths."""
KEPT = 20
NOTABLE = 0.05
"""A fit that its own test finds unremarkable counts as none."""
POINTS = 12


def planted():
    spec = importlib.util.spec_from_file_location("planted", PLANTED)
    module = importlib.util.module_from_spec(spec)
    sys.modules["planted"] = module
    spec.loader.exec_module(module)
    return module


def clean(plants, seed: int, parity: int, of: str) -> Tokens:
    """Return clean drift of some sequences of one parity; every other draw has its sides exchanged."""
    members = np.unique(plants.stored()[f"{of}.sequence"])[parity::2]
    it = plants.draw(seed, of, 0.4 + 0.6 * (seed % 7) / 6, members=members)
    if seed % 2:
        it.train, it.roll = it.roll, it.train
    it.extra["rank"] = it.rng.integers(0, 4, it.place[-1] + 1)[it.place]
    it.extra["weight_version"] = it.rng.integers(0, 4, it.place[-1] + 1)[it.place]
    it.extra["kept_mass"] = it.side("rollout", "mass_p90").astype(np.float32)
    return active_tokens(it.table())


def profile(plants) -> tuple[list[float], list[float]]:
    """Return log probabilities, rising, and the usual |d| there relative to p = 0.5, forced to rise towards p = 0."""
    logp, d = [], []
    for of in CALIBRATED:
        even = plants.stored()[f"{of}.sequence"] % 2 == 0
        sides = [plants.stored()[f"{of}.{side}.logp"][even].astype(np.float64) for side in ("training", "rollout")]
        logp.append(0.5 * (sides[0] + sides[1]))
        d.append(np.abs(sides[0] - sides[1]))
    logp, d = np.concatenate(logp), np.concatenate(d)
    parts = np.array_split(np.argsort(logp), POINTS)
    at = [float(np.median(logp[part])) for part in parts]
    size = np.array([NORMAL * float(np.median(d[part])) for part in parts])
    usual = float(np.exp(np.interp(np.log(0.5), at, np.log(size))))
    return at, [float(f"{value:.4g}") for value in size / usual]


def main() -> int:
    plants = planted()
    at, size = profile(plants)
    document = {
        "schema_version": "xcfg.analysis_null.v1",
        "provenance": "SmolLM2-135M, bfloat16, eager against sdpa attention on a CPU; even sequences of "
        "packages/xcfg-analysis/tests/data/natural.safetensors; tools/calibrate_signatures.py",
        "profile_logp": [float(f"{value:.4g}") for value in at],
        "profile_size": size,
        "nulls": {},
    }
    TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    null.load.cache_clear()
    tried = candidates(xcfg.load_plugins())
    shares: dict[str, list[float]] = {descriptor.name: [] for descriptor, _ in tried}
    for of in CALIBRATED:
        for seed in range(DRAWS):
            tokens = clean(plants, seed, 0, of)
            for descriptor, signature in tried:
                fit = signature.fit(tokens)
                clear = isinstance(fit, SignatureFit) and fit.p_value < NOTABLE
                share = share_removed(tokens, fit) if clear else 0.0
                shares[descriptor.name].append(max(0.0, share))
    for name, values in shares.items():
        top = sorted(values, reverse=True)[:KEPT]
        document["nulls"][name] = {"draws": len(values), "largest": [float(f"{value:.4g}") for value in top]}
        print(f"{name:22} largest {top[0]:.4f}, 20th {top[-1]:.4f} of {len(values)}")
    TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
