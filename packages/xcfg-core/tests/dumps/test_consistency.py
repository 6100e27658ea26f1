"""selected_logit - logsumexp against the log probability: rounding is let through, another distribution is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xcfg.contract import load_contract
from xcfg.dumps import collect, table_of
from xcfg.dumps.consistency import contradiction
from xcfg.dumps.rows import collect_rows
from xcfg.flow.compare import judge_dump


def made(temperature: float = 1.0, dtype: str = "float32") -> dict[str, Any]:
    """500 tokens over 1,000 float32 logits; logp_train is computed in `dtype`, at `temperature`."""
    random = np.random.default_rng(3)
    logits = (random.normal(0, 4, (500, 1000)) + 20).astype(np.float32)
    chosen = np.arange(500)
    exact = logits.astype(np.float64)
    total = np.log(np.exp(exact).sum(1))
    scaled = exact / temperature
    logp = (scaled[chosen, chosen] - np.log(np.exp(scaled).sum(1))).astype(dtype)
    return {
        "sample_id": np.zeros(500, dtype=np.int64),
        "position": chosen + 1,
        "token_id": chosen,
        "active": np.ones(500, dtype=np.bool_),
        "logp_rollout": np.full(500, -1.0) - chosen / 1000,
        "logp_train": logp,
        "selected_logit": logits[chosen, chosen],
        "logsumexp": total.astype(np.float32),
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_no_contradiction(dtype: str) -> None:
    assert contradiction(made(dtype=dtype)) == ""


def test_another_temperature_is_one_and_the_verdict_stays() -> None:
    columns = made(0.9)
    said = contradiction(columns)
    assert said.startswith("selected_logit - logsumexp is not logp_train on ") and " of 500 active tokens" in said
    with_them = judge_dump(collect([columns]), load_contract())
    without = {name: values for name, values in columns.items() if name not in ("selected_logit", "logsumexp")}
    bare = judge_dump(collect([without]), load_contract())
    assert said in with_them.unattested and said not in bare.unattested
    assert (with_them.status, with_them.reason, with_them.edges) == (bare.status, bare.reason, bare.edges)


def test_columns_of_the_other_side_are_called_so() -> None:
    columns = made()
    columns["logp_rollout"], columns["logp_train"] = columns["logp_train"], columns["logp_rollout"]
    assert contradiction(columns).endswith("; it is logp_rollout")


def test_absent_values_and_inactive_tokens_say_nothing() -> None:
    columns = made()
    columns["selected_logit"][:10] = np.nan
    columns["logp_train"][10] = -50.0
    assert "on 1 of 490 active tokens, by up to " in contradiction(columns)
    columns["active"][10] = False
    assert contradiction(columns) == ""
    assert "selected_logit" not in " ".join(table_of(collect_rows([columns])).unattested)
