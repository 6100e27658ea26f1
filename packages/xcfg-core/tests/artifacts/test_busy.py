"""Runs on one experiment see each other, and a dead one is nobody.

Failing means that two runs score everything twice and say nothing, or that one waits for a process that was killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys

import pytest
from xcfg.artifacts.busy import PREFIX, Busy

HOLD = """
import sys, time
from pathlib import Path
from xcfg.artifacts.busy import Busy
with Busy(Path(sys.argv[1])) as busy:
    busy.at("key-1", "baseline")
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that is at work on `tmp_path`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def signs(folder):
    return sorted(path.name for path in folder.iterdir())


def test_another_process_is_seen_with_what_it_does(other, tmp_path):
    with Busy(tmp_path) as busy:
        (seen,) = busy.others()
        assert (seen.pid, seen.key, seen.label) == (other.pid, "key-1", "baseline")
        assert f"process {other.pid}" in seen.described and "is scoring 'baseline'" in seen.described


def test_a_killed_process_is_nobody_and_its_sign_is_removed(other, tmp_path):
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert len(signs(tmp_path)) == 1, "the sign outlives its process: test the test"
    with Busy(tmp_path) as busy:
        assert busy.others() == ()
        assert len(signs(tmp_path)) == 1  # our own
    assert signs(tmp_path) == []


def test_a_stopped_process_blocks_nobody(other, tmp_path):
    other.send_signal(signal.SIGSTOP)
    try:
        with Busy(tmp_path) as busy:
            assert [seen.pid for seen in busy.others()] == [other.pid]
    finally:
        other.send_signal(signal.SIGCONT)


HOSTILE = {
    "deep": b"[" * 4096,
    "infinite": b'{"pid": 1e999, "started": "x", "key": "k", "label": "l"}',
    "surrogate": b'{"pid": 1, "started": "x", "key": "k", "label": "\\ud800"}',
    "many digits": b'{"pid": ' + b"9" * 4000 + b', "started": "x", "key": "k", "label": "l"}',
    "types": b'{"pid": 1, "started": null, "key": "k", "label": []}',
    "a list": b"[]",
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_locked_file_that_no_run_has_written_is_nobody(content, tmp_path):
    """Failing means that anybody who may write into a root ends every run on it with a traceback."""
    sign = tmp_path / f"{PREFIX}1-other"
    sign.write_bytes(content)
    with sign.open("rb") as stream, Busy(tmp_path) as busy:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert busy.others() == ()
    assert sign.read_bytes() == content


def test_the_last_word_counts_and_a_run_does_not_see_itself(tmp_path):
    with Busy(tmp_path) as first, Busy(tmp_path) as second:
        first.at("a", "a very long label " * 100)
        first.at("b", "short")
        assert [(seen.key, seen.label) for seen in second.others()] == [("b", "short")]
        assert [(seen.key, seen.described) for seen in first.others()] == [("", first.others()[0].described)]
        assert "has begun" in first.others()[0].described
    assert signs(tmp_path) == []


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path):
    with Busy(tmp_path / "absent") as busy:
        busy.at("a", "b")
        assert busy.others() == ()
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "text"])
def test_what_only_looks_like_a_sign_is_no_run(tmp_path, kind):
    path = tmp_path / f"{PREFIX}1-ab"
    {
        "link": lambda: path.symlink_to("/dev/null"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "text": lambda: path.write_text("{"),
    }[kind]()
    with Busy(tmp_path) as busy:
        assert busy.others() == ()
