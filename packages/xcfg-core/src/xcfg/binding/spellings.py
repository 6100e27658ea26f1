"""Spellings that several contracts share. Names of NCCL settings as in its manual, environment variables."""

from __future__ import annotations

from xcfg.binding.marks import Spelling

UNSET = "unset"
"""The value of a variable that the process does not have: the library's own choice, which is a value as any other."""

DTYPE = Spelling(
    {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32",
     "fp64": "float64", "double": "float64"},
    prefixes=("torch.",),
)  # fmt: skip


class _Selection(Spelling):
    """What NCCL_ALGO and NCCL_PROTO hold: a list of names, `^` to exclude them, `;` between lists for collectives.

    The order of a list means nothing. A list without a collective is for all of them, so `Tree` and `allreduce:tree`
    are one setting of the all-reduce. Of the other collectives only the reduce-scatter adds; where a list of its own
    gives it another choice, that is said beside.
    """

    def __call__(self, value: object) -> object:
        """Return the choice for the all-reduce, `tree`, or `tree;reducescatter:ring`; UNSET where nothing is chosen."""
        if not isinstance(value, str):
            return value
        chosen: dict[str, str] = {}
        for piece in value.strip().lower().split(";"):
            head, colon, tail = piece.partition(":")
            names = _names(tail if colon else head)
            if colon or names != UNSET:  # an empty entry, as after the last `;`, chooses nothing for anybody
                chosen[head.strip() if colon else ""] = names
        every = chosen.get("", UNSET)
        first, second = (chosen.get(name, every) for name in ("allreduce", "reducescatter"))
        return first if "reducescatter" not in chosen or second == first else f"{first};reducescatter:{second}"


def _names(text: str) -> str:
    excluded = text.strip().startswith("^")
    names = {name.strip() for name in text.strip().removeprefix("^").split(",")} - {"", UNSET}
    return ("^" if excluded else "") + ",".join(sorted(names)) if names else UNSET


NCCL_ALGO = _Selection({})
NCCL_PROTO = _Selection({})
SWITCH = Spelling(
    {"1": "on", "true": "on", "yes": "on", "on": "on", "0": "off", "false": "off", "no": "off", "off": "off"}
)
"""A switch in whatever words: 1, true, on; 0, false, off. Another text, UNSET among it, stays as it is."""
