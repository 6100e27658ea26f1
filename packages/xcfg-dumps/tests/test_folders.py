"""A folder given as a dump: what of it was read is said, and a part of it that is missing is no silence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from xcfg.errors import ArtifactError
from xcfg.flow.dumps import open_dump
from xcfg.identity.rollout import write_rollout


@pytest.fixture
def step(layouts, tmp_path):
    """A step of prime-rl: two ranks, one sequence each."""
    folder = tmp_path / "step_4"
    folder.mkdir()
    for rank in (0, 1):
        layouts.jsonl(folder, [layouts.prime_record(rank, rank=rank)], f"rank_{rank}.jsonl")
    return folder


def test_files_read_and_left_out_are_said_with_the_reason(step, manager):
    (step / "STABLE").touch()
    (step / "notes.txt").write_text("x")
    (step / "old").mkdir()
    dump = open_dump(step, manager)
    (line,) = dump.remarks
    assert line.startswith("of the folder: files read 2 ('rank_0.jsonl', 'rank_1.jsonl'); ")
    assert line.endswith("left out 2 ('notes.txt', 'old/': not rank_*.jsonl)")
    assert dump.remarks[0] in dump.lines
    assert len(dump.table.sample_ids) == 2


def test_a_redacted_folder_names_no_file(step, manager):
    (step / "secret.txt").write_text("x")
    (line,) = open_dump(step, manager, redacted=True).remarks
    assert "files read 2; left out 1" in line and "secret" not in line and "rank_0" not in line


def test_a_step_that_is_not_finished_is_called_so(step, manager):
    assert "no STABLE in it" in open_dump(step, manager).remarks[0]
    (step / "STABLE").touch()
    assert "STABLE" not in open_dump(step, manager).remarks[0]


def test_an_empty_file_in_a_folder_is_an_error(step, manager):
    """Failing means that a rank that wrote nothing is taken for one that had nothing to write."""
    (step / "rank_2.jsonl").touch()
    with pytest.raises(ArtifactError, match=r"rank_2\.jsonl' is empty: 0 bytes"):
        open_dump(step, manager)


def test_half_a_line_in_a_folder_names_its_file(step, manager):
    path = step / "rank_1.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match=r"rank_1\.jsonl' was cut off: its last line"):
        open_dump(step, manager)


def test_files_per_rank_of_a_training_dump_are_counted(layouts, manager, tmp_path):
    for rank in (0, 1):
        layouts.miles_train(tmp_path, rank=rank, rows=(rank,))
    (tmp_path / "log.txt").write_text("x")
    (line,) = open_dump(tmp_path, manager).remarks
    assert "files read 2 ('3_0.pt', '3_1.pt'); left out 1 ('log.txt': not *.pt)" in line


def test_a_rollout_among_training_dumps_is_an_error(layouts, manager, tmp_path):
    layouts.miles_train(tmp_path)
    layouts.slime_rollout(tmp_path, name="rollout_3.pt")
    with pytest.raises(ArtifactError, match="format_version None"):
        open_dump(tmp_path, manager)


def test_what_lies_beside_a_frozen_rollout_is_left_out(layouts, manager, rows, tmp_path):
    from xcfg.dumps import frozen_rollout
    from xcfg.schema.identity import CheckpointRef

    taken = rows(
        "slime-train",
        layouts.slime_train(
            tmp_path,
            [
                layouts.slime_train_sample(index, rollout_log_probs=np.float32(layouts.ROLLOUT[index]))
                for index in (0, 1)
            ],
        ),
    )
    write_rollout(frozen_rollout(taken, checkpoint=CheckpointRef(uri="x")), tmp_path / "frozen")
    (tmp_path / "frozen" / "more.json").write_text("{}")
    (line,) = open_dump(tmp_path / "frozen", manager).remarks
    assert "files read 2" in line and "'more.json': not manifest.json or rollout.safetensors" in line


def test_a_reader_that_does_not_say_what_it_reads_is_called_so(layouts, manager, tmp_path, monkeypatch):
    from xcfg_dumps.prime_rl import PrimeRlReader

    silent = SimpleNamespace(read=PrimeRlReader().read)
    monkeypatch.setattr("xcfg.flow.dumps.choose_reader", lambda *_: ("silent", "so it was", silent))
    layouts.jsonl(tmp_path, [layouts.prime_record(0)], "rank_0.jsonl")
    assert "the reader silent does not say which files it read" in open_dump(tmp_path, manager).remarks[0]
