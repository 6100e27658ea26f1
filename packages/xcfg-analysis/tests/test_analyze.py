"""`xcfg analyze` from file to document: statuses, exit codes, figures, evidence, and what is said when nothing fits."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import xcfg
from xcfg.cli.main import main
from xcfg.dumps import collect
from xcfg.schema.analysis import ANALYSIS, Analysis
from xcfg.schema.codec import convert, json_schema
from xcfg_analysis.analyze import analyze_dump
from xcfg_analysis.figures import charted
from xcfg_analysis.tokens import active_tokens

EMPTY = ("causes", "exonerated", "not_exercised", "below_resolution", "interactions", "minimal_sets", "not_alignable")


def run(capsys, *arguments):
    code = main(["analyze", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_named_fault_ends_with_1_and_shows_its_tokens(plants, write_table, capsys):
    """Failing means that the first thing a person asks is not answered: which fault, on which tokens, what to do."""
    it = plants.draw(0, share=1.0)
    plants.last_token(it, 1.0)
    path = write_table(it.table())
    code, out, _ = run(capsys, path)
    assert code == 1
    assert "SIGNATURE last-token" in out and "not attested by the file: compute_dtype.training" in out
    assert "slime/train_rollout_logprob_abs_diff.token_mean" in out and "fix " in out and "refuted by" in out
    code, out, _ = run(capsys, path, "--json")
    document = json.loads(out)
    assert (code, document["schema_version"], document["exit_code"]) == (1, ANALYSIS, 1)
    (found,) = document["signatures"]
    assert found["confidence"] > 0.99 and found["effect"]["low"] <= found["effect"]["value"] <= found["effect"]["high"]
    lasts = {(str(seq), int(pos)) for seq, pos in zip(it.place[it.last], it.position[it.last], strict=True)}
    assert len(found["evidence"]) == 3
    for token in found["evidence"]:
        assert (token["sample_id"], token["position"]) in lasts
        row = np.flatnonzero((it.place == int(token["sample_id"])) & (it.position == token["position"]))[0]
        assert token["training"] == pytest.approx(it.train[row], rel=1e-6)
        assert token["rollout"] == pytest.approx(it.roll[row], rel=1e-6)
    assert all(document[name] == [] for name in EMPTY)


def test_sides_that_are_hardly_related_are_called_so(plants, write_table, capsys):
    """Failing means that a wrong join is taken for a lack of columns, and a person exports the wrong thing."""
    it = plants.draw(0, share=1.0)
    it.roll = it.roll[::-1].copy()
    document = json.loads(run(capsys, write_table(it.table()), "--json")[1])
    assert "hardly related" in document["conclusion"]
    assert (document["signatures"], document["next_command"]) == ([], "")


def test_a_redacted_error_names_nothing(tmp_path, capsys):
    """Failing means that the log of a build server shows what --redact was asked to hide."""
    row = {
        "sample_id": "user-17",
        "position": 1,
        "token_id": 9,
        "active": True,
        "logp_train": -1.0,
        "logp_rollout": -1.5,
    }
    path = tmp_path / "customer.jsonl"
    path.write_text(2 * (json.dumps(row) + "\n"))
    for more in ((), ("--json",)):
        assert "customer" in "".join(run(capsys, path, *more)[1:])
        code, out, error = run(capsys, path, "--redact", *more)
        assert code == 3
        assert "customer" not in out + error and "user-17" not in out + error


def test_what_of_a_folder_was_read_stands_in_the_head(plants, write_table, capsys, monkeypatch):
    """Failing means that an analysis of a part of a step looks like one of the whole."""
    path = write_table(plants.draw(0, share=1.0).table())
    opened = dataclasses.replace(xcfg.open_dump(path), remarks=("of the folder: files read 2; left out 1",))
    monkeypatch.setattr(xcfg, "open_dump", lambda *_, **__: opened)
    assert "; of the folder: files read 2; left out 1" in run(capsys, path)[1]


def test_columns_that_contradict_each_other_are_said_and_change_nothing(plants, write_table, capsys):
    """logsumexp and selected_logit of another temperature: in the head, and the same status and signatures."""
    table = plants.draw(0, share=1.0).table()
    total = np.full(table.rows, 3.0, dtype=np.float32)
    found = []
    for scale in (1.0, 2.0):
        logit = (np.nan_to_num(table.training) * scale + 3.0).astype(np.float32)
        columns = {**table.columns, "selected_logit": logit, "logsumexp": total}
        found.append(json.loads(run(capsys, write_table(dataclasses.replace(table, columns=columns)), "--json")[1]))
    fits, odd = found
    said = [text for text in odd["unattested"] if text.startswith("selected_logit - logsumexp is not logp_train on ")]
    assert len(said) == 1 and said[0] not in fits["unattested"]
    assert (fits["status"], fits["signatures"]) == (odd["status"], odd["signatures"])


def test_a_redacted_analysis_finds_the_same_and_names_nothing(plants, write_table, capsys):
    """Failing means that what is posted in a public issue names a customer's samples."""
    it = plants.draw(0, share=1.0)
    plants.eos_token(it, 1.0)
    path = write_table(it.table())
    plain, hidden = (json.loads(run(capsys, path, "--json", *more)[1]) for more in ((), ("--redact",)))
    assert [item["name"] for item in hidden["signatures"]] == [item["name"] for item in plain["signatures"]]
    assert hidden["tokens"] == plain["tokens"] and hidden["mismatches"] == plain["mismatches"]
    shown = {(one["sample_id"], one["token_id"]) for item in hidden["signatures"] for one in item["evidence"]}
    assert shown
    assert not shown & {(one["sample_id"], one["token_id"]) for item in plain["signatures"] for one in item["evidence"]}
    assert path.name not in json.dumps(hidden)
    assert path.name not in run(capsys, path, "--redact")[1]


def test_the_document_is_what_the_schema_says(plants, write_table, capsys):
    """Failing means that `xcfg schema analysis` promises something else than `xcfg analyze --json` prints."""
    _, out, _ = run(capsys, write_table(plants.draw(1).table()), "--json")
    document = json.loads(out)
    assert set(document) == set(json_schema(Analysis)["$defs"]["Analysis"]["properties"])
    assert convert(document, Analysis).schema_version == ANALYSIS
    assert main(["schema", "analysis", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == ANALYSIS


def test_clean_drift_names_nothing_and_is_no_pass(plants, write_table, capsys):
    """Failing means that a dump which attests to no dtype passes because nothing was recognised."""
    code, out, _ = run(capsys, write_table(plants.draw(2).table()))
    assert code == 3
    assert "No known signature fits this drift" in out and "UNOBSERVABLE" in out


@pytest.mark.parametrize(("scale", "code", "status"), [(0.0, 0, "PASS"), (1e-3, 0, "PASS"), (3.0, 1, "MISMATCH")])
def test_an_attested_dump_without_signature_is_judged_by_the_rule(plants, write_table, capsys, scale, code, status):
    """Failing means that the exit code does not follow the one rule where a dtype is attested."""
    it = plants.draw(3)
    it.stretch(scale)
    got, out, _ = run(capsys, write_table(it.table(), "bfloat16"), "--json")
    document = json.loads(out)
    assert (got, document["status"], document["signatures"]) == (code, status, [])


def test_equal_sides_without_a_dtype_say_so_and_do_not_pass(write_rows, capsys):
    code, out, _ = run(capsys, write_rows([{"logp_train": -1.0 - at, "logp_rollout": -1.0 - at} for at in range(40)]))
    assert code == 3 and "equal, bit for bit" in out


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"active": False, "logp_train": None}] * 3, "ZERO_ACTIVE_TOKENS"),
    ],
)
def test_nothing_to_compare_has_a_status(write_rows, capsys, rows, told):
    """Failing means that an empty comparison looks like an answer."""
    code, out, _ = run(capsys, write_rows(rows), "--json")
    document = json.loads(out)
    assert (code, document["status"], document["signatures"]) == (3, told, [])
    assert document["conclusion"].startswith("Nothing was compared")
    assert run(capsys, write_rows(rows))[0] == 3


def test_an_edge_without_figures_has_no_count(write_table, plants, capsys):
    """Failing means that a dump of which nothing was compared reads as one without a token over the threshold."""
    table = plants.draw(3).table()
    dump = write_table(dataclasses.replace(table, active=np.zeros_like(table.active)), attested="bfloat16")
    code, out, _ = run(capsys, dump)
    assert code == 3 and "not judged; status ZERO_ACTIVE_TOKENS" in out


def test_two_files_without_a_common_token_are_an_empty_join(write_rows, capsys):
    """Failing means that a wrong pair of files is reported as agreement."""
    both = [
        write_rows([{"sample_id": name, side: None, "active": True}], f"{name}.jsonl")
        for name, side in (("a", "logp_train"), ("b", "logp_rollout"))
    ]
    for path, side in zip(both, ("logp_train", "logp_rollout"), strict=True):
        row = json.loads(path.read_text())
        del row[side]
        path.write_text(json.dumps(row) + "\n")
    code, out, _ = run(capsys, *both, "--json")
    assert (code, json.loads(out)["status"]) == (3, "EMPTY_JOIN")


def test_two_files_are_joined_and_named(plants, write_table, write_rows, capsys):
    rollout = write_rows([{"logp_rollout": -1.0 - at} for at in range(12)], "rollout.jsonl")
    train = write_rows([{"logp_train": -2.0 - at} for at in range(12)], "train.jsonl")
    for path, side in ((rollout, "logp_train"), (train, "logp_rollout")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != side}) + "\n" for row in rows))
    code, out, _ = run(capsys, rollout, train, "--json")
    document = json.loads(out)
    assert document["source"] == ["rollout.jsonl", "train.jsonl"]
    assert document["figures"]["xcfg/bias.token_mean"] == -1.0
    assert code in (1, 3)


def test_a_score_that_is_no_number_is_refused_by_name(write_rows, capsys):
    code, out, _ = run(capsys, write_rows([{}, {"logp_train": None}]), "--json")
    error = json.loads(out)
    assert (code, error["schema_version"], error["kind"]) == (3, "xcfg.error.v1", "artifact")
    assert "position 2" in error["message"]


@pytest.mark.parametrize("arguments", [(), ("a", "b", "c"), ("a", "--threshold", "1")])
def test_wrong_usage_ends_with_2(capsys, arguments):
    assert run(capsys, *arguments)[0] == 2


def test_an_absent_file_ends_with_3(capsys, tmp_path):
    code, _, err = run(capsys, tmp_path / "none.jsonl")
    assert code == 3 and "none.jsonl" in err


def test_a_name_with_control_characters_cannot_write_to_the_terminal(write_rows, capsys):
    rows = [{"sample_id": "x\x1b[2J", "logp_train": -1.0 - (at % 7) * 0.1} for at in range(1, 60)]
    _, out, _ = run(capsys, write_rows([*rows, {"sample_id": "x\x1b[2J", "position": 99, "logp_rollout": 0.0}]))
    assert "\x1b" not in out


def test_figures_are_the_formulas(plants):
    """Failing means that a number charted under a stack's name is another number. Oracle: numpy, by definition."""
    table = plants.draw(4).table()
    from xcfg.flow.compare import judge_dump, load_contract

    edge = judge_dump(table, load_contract()).edges["training_vs_rollout"]
    found = charted(edge, table)
    d = table.training.astype(np.float64) - table.rollout.astype(np.float64)
    r = np.exp(d)
    wanted = {
        "slime/train_rollout_logprob_abs_diff.token_mean": np.abs(d).mean(),
        "nemo-rl/token_mult_prob_error.token_mean": np.exp(np.abs(d)).mean(),
        "verl/rollout_corr/k3_kl.token_mean": (r - 1 - d).mean(),
        "verl/rollout_corr/chi2_token.token_mean": (r * r).mean() - 1,
        "xcfg/pearson_logp.token": np.corrcoef(table.training, table.rollout)[0, 1],
        "xcfg/effective_sample_size.token_share": r.sum() ** 2 / (len(r) * (r * r).sum()),
        "xcfg/ppl_ratio.token_mean": math.exp(-d.mean()),
        "xcfg/ratio_outside_[0.8,1.25].token_share": ((r < 0.8) | (r > 1.25)).mean(),
        "xcfg/ratio_outside_[0.9,1.1].token_share": ((r < 0.9) | (r > 1.1)).mean(),
        "xcfg/ratio_above_2.token_share": (r > 2).mean(),
    }
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-12), name


def test_views_agree_with_a_count_by_hand(plants, write_table):
    """Failing means that the table by rank shows another group's numbers."""
    it = plants.draw(5)
    plants.ranked(it, 1.0)
    table = it.table()
    found = analyze_dump([write_table(table)])
    view = next(view for view in found.views if view.by == "training rank")
    size = np.abs(table.training.astype(np.float64) - table.rollout)
    for row in view.rows:
        here = table.rank == int(row["group"])
        assert (row["tokens"], row["mean_abs"]) == (int(here.sum()), pytest.approx(size[here].mean()))
    assert len(found.views) <= 3


def test_a_large_dump_is_fitted_on_whole_sequences(plants):
    """Failing means that sequences are cut, or that the limit is not kept."""
    table = plants.draw(6, share=1.0).table()
    part = active_tokens(table, limit=800)
    assert 400 <= len(part.d) <= 1600
    lengths = np.diff(np.append(part.starts, len(part.d)))
    assert set(lengths.tolist()) <= set(np.diff(table.offsets).tolist())


def test_a_sample_misses_no_rank():
    """Failing means that sequences dealt to ranks in turn are sampled in step with them, so that a rank vanishes."""
    count = 4000
    batch = {
        "sample_id": np.arange(count),
        "position": np.ones(count, dtype=np.int64),
        "token_id": np.ones(count, dtype=np.int64),
        "active": np.ones(count, dtype=bool),
        "logp_train": -np.arange(count, dtype=np.float64),
        "logp_rollout": -np.arange(count, dtype=np.float64),
        "rank": np.arange(count) % 8,
    }
    for limit in (400, 500, 1000, 2000):
        part = active_tokens(collect([batch]), limit=limit)
        assert len(part.d) == pytest.approx(limit, rel=0.05)
        assert np.bincount(part.rank, minlength=8).min() > limit / 8 * 0.7


def test_nothing_heavy_is_imported(write_rows):
    """Failing means that the answer waits for torch."""
    path = write_rows([{"logp_train": -1.0 - 0.01 * at} for at in range(50)])
    probe = (
        "import sys; from xcfg.cli.main import main; main(['analyze', sys.argv[1]]);"
        "print('LOADED', *[name for name in ('torch', 'scipy', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED"
