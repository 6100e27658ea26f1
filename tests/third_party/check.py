"""What run.sh proves: check.py SUMMARY RUNS EXIT_CODE. Uses nothing of xcfg but its installed files."""

import json
import sys
from importlib.metadata import distribution
from pathlib import Path

BACKEND = "hello.online_logsumexp"
LABEL = f"operators.selected_logprob.rollout={BACKEND}"


def main(summary_file, runs, code):
    summary = json.loads(Path(summary_file).read_text())
    cases = {case["label"]: case for case in summary["cases"]}
    assert set(cases) == {"baseline", LABEL}, sorted(cases)
    assert summary["exit_code"] == int(code) and int(code) in (0, 1), (summary["exit_code"], code)
    case = cases[LABEL]
    assert case["status"] in ("PASS", "MISMATCH"), case
    edge = case["edges"]["training_vs_rollout"]
    assert edge["active_tokens"] == 384, edge
    # Another implementation in float32 rounds differently from the float64 reference, and only so much.
    assert 0 < edge["max_abs"] < 1e-4, edge

    (attempt,) = Path(runs, summary["experiment_id"], "cases", case["case_id"]).glob("attempt-*")
    sides = json.loads((attempt / "materialized.json").read_text())["sides"]
    bound = {arm: side["operators"]["selected_logprob"] for arm, side in sides.items()}
    assert bound["training"]["backend_id"] == "xcfg.reference_logp", bound["training"]
    for arm in ("rollout_prefill", "rollout_decode"):
        assert bound[arm]["backend_id"] == BACKEND, bound[arm]
        assert bound[arm]["distribution"] == "hello-operator", bound[arm]
    actual = json.loads((attempt / "actual.json").read_text())["applications"]
    ran = [item for item in actual["rollout_decode"] if item["path"] == "logp.backend"]
    assert ran and all(item["status"] == "applied" and item["evidence"] for item in ran), ran
    assert any(piece["kind"] == "execution" for item in ran for piece in item["evidence"]), ran

    core = [file for file in distribution("xcfg-core").files or () if file.suffix == ".py"]
    assert len(core) > 100, len(core)
    for file in core:
        text = file.locate().read_text(encoding="utf-8")
        assert "hello" not in text.lower(), file
    print(f"{LABEL}: {case['status']}, max |d| {edge['max_abs']:.2e}; no file of core names it ({len(core)} files)")


if __name__ == "__main__":
    main(*sys.argv[1:])
