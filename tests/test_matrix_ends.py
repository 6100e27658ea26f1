"""How `xcfg matrix` ends where it does not end well: interrupted, killed, and with a report that cannot be written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from xcfg.cli.cmd_matrix import _check
from xcfg.cli.main import main

TINY = Path(__file__).parents[1] / "examples" / "quickstart" / "tiny.json"


@pytest.fixture
def capturing(tmp_path):
    """Return the root and a matrix that has begun to capture logits below it."""
    root = tmp_path / "runs"
    words = [sys.executable, "-m", "xcfg", "matrix", "logp", str(TINY), "--output-root", str(root), "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not list(root.glob(".matrix-*/runs/matrix-logp/.tmp-run-*")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    yield root, process
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_matrix_says_so(capturing, number):
    """If this fails, a matrix that somebody ended looks like one that could not be compared, and promises to resume."""
    root, process = capturing
    process.send_signal(number)
    told, _ = process.communicate(timeout=120)
    error = json.loads(told)
    assert (process.returncode, error["exit_code"], error["kind"]) == (130, 130, "interrupted")
    assert "Nothing of a matrix is kept" in error["hint"]
    assert list(root.iterdir()) == []


@pytest.mark.slow
def test_what_a_killed_matrix_left_is_removed_by_the_next(capturing):
    """If this fails, captured logits stay in the output root for good."""
    root, process = capturing
    process.kill()
    process.wait()
    assert list(root.glob(".matrix-*/training"))
    assert main(["matrix", "logp", str(TINY), "--output-root", str(root)]) == 0
    assert list(root.iterdir()) == []


@pytest.mark.slow
def test_a_matrix_leaves_what_another_one_captures(capturing):
    """If this fails, two matrices below one root take each other's logits."""
    root, process = capturing
    assert main(["matrix", "logp", str(TINY), "--output-root", str(root)]) == 0
    assert process.wait(timeout=120) == 0
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("name", ["absent/report.json", "", "loop", "file/report.json"])
def test_a_report_that_cannot_be_written_is_refused_before_the_work(capsys, tmp_path, name):
    """If this fails, a slip in --output costs the whole matrix."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    words = ["--output-root", str(tmp_path / "runs"), "--output", str(tmp_path / name), "--json"]
    assert main(["matrix", "logp", str(TINY), *words]) == 2
    error = json.loads(capsys.readouterr().out)
    assert "cannot be written" in error["message"] and "permissions" in error["hint"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_report_that_could_not_be_written_in_the_end_is_printed(capsys, tmp_path, monkeypatch):
    """If this fails, a disk that fills up during a matrix takes its figures along."""
    file, write = tmp_path / "report.json", Path.write_bytes

    def full(self, data):
        if self == file:
            raise OSError(28, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["matrix", "logp", str(TINY), "--output-root", str(tmp_path), "--output", str(file), "--json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["exit_code"] == 0
    assert "No space left on device" in printed.err
    assert not file.exists(), "the check before the work leaves nothing behind"


def test_a_report_may_go_where_the_matrix_makes_the_folder(tmp_path):
    """If this fails, `--output runs/report.json` works only after something else has made the output root."""
    link, root = tmp_path / "link", tmp_path / "new" / "runs"
    link.symlink_to("later.json")
    for file in (root / "report.json", root.parent / "report.json", link, Path("/dev/null")):
        _check(file, root)
    assert list(tmp_path.iterdir()) == [link]
