"""Errors that sit on the first or last token, or on one token id such as EOS (C1: SkyRL#758, maxtext#2103)."""

from __future__ import annotations

import numpy as np
from xcfg.plugin.signature import SignatureFit

from xcfg_analysis.forms import level
from xcfg_analysis.stats import binomial_tail
from xcfg_analysis.tokens import Bool, Tokens

LEAST = 4
CHANCE = 0.025
"""Share of the other tokens above the level that counts as an excess."""
HALF = 0.5
"""So many of the group exceed it."""
NAMES = {
    "first": (
        "the first active token of each sequence",
        "the shift by one between logits and tokens at the start of the response",
    ),
    "last": (
        "the last active token of each sequence",
        "how the end of a sequence is scored: stop handling, a token appended by hand",
    ),
    "id": ("one token id", "how this token is scored: EOS or a special token that one side adds, masks or replaces"),
}


class _EdgeToken:
    """The squared error of a named group stands out of all other tokens."""

    kind = ""

    def fit(self, tokens: Tokens) -> SignatureFit | None:
        """Return the excess over the other tokens."""
        group, name = self.group(tokens)
        inside = int(group.sum())
        if inside < LEAST or len(group) - inside < 10 * inside:
            return None
        size = np.abs(tokens.d) / tokens.scale
        limit = float(np.quantile(size[~group], 1 - CHANCE))
        hits = int((size[group] > limit).sum())
        if hits < HALF * inside:
            return None
        shift, ratio, rest = level(tokens, group)
        what, cure = NAMES[self.kind]
        signed = f", {shift:+.4f} nats on average" if shift else ""
        return SignatureFit(
            p_value=binomial_tail(hits, inside, 2 * CHANCE),
            rest=rest,
            concerned=group,
            says=f"{hits} of {inside} differ by more than all but {CHANCE:.1%} of the other tokens, {ratio:.1f} "
            "times as much "
            f"as usual{signed}",
            where=f"{what}{name}; the others agree as usual",
            fix=f"Check {cure}.",
            refuted_by="Other tokens of the same probability differ as much.",
            parameters={"tokens": float(inside), "ratio": ratio, "shift_nats": shift},
        )

    def group(self, tokens: Tokens) -> tuple[Bool, str]:
        """Return the tokens of the group, bool [N], and how its name is completed."""
        raise NotImplementedError


class FirstToken(_EdgeToken):
    """Only the first active token of a sequence."""

    kind = "first"

    def group(self, tokens: Tokens) -> tuple[Bool, str]:
        """Return the first tokens."""
        group = np.zeros(len(tokens.d), dtype=np.bool_)
        group[tokens.starts] = True
        return group, ""


class LastToken(_EdgeToken):
    """Only the last active token of a sequence."""

    kind = "last"

    def group(self, tokens: Tokens) -> tuple[Bool, str]:
        """Return the last tokens; they are the business of `eos-token` where they are one id."""
        group = np.zeros(len(tokens.d), dtype=np.bool_)
        group[_last(tokens)] = True
        return group, ""


class EosToken(_EdgeToken):
    """Only the token id that ends sequences."""

    kind = "id"

    def group(self, tokens: Tokens) -> tuple[Bool, str]:
        """Return the tokens of the id that ends most sequences, if at least four and a quarter of them."""
        ids, counts = np.unique(tokens.token_id[_last(tokens)], return_counts=True)
        top = int(np.argmax(counts))
        if counts[top] < max(LEAST, len(tokens.starts) // 4):
            return np.zeros(len(tokens.d), dtype=np.bool_), ""
        return tokens.token_id == ids[top], f", {int(ids[top])}, which ends {int(counts[top])} sequences"


def _last(tokens: Tokens) -> np.ndarray:
    return np.append(tokens.starts[1:], len(tokens.d)) - 1
