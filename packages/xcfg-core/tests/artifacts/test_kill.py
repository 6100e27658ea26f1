"""A run that is killed anywhere, or races another, leaves a store that is readable, valid, resumable."""

from __future__ import annotations

import re


def test_kill_9_at_every_write_boundary(memory_path, drive):
    result = drive("kill.py", memory_path / "kills")
    assert result["wrong"] == []
    # Guards the test itself: were the hook no longer called around writes, nothing would be killed there.
    kinds = {name.split()[0] for name in result["boundaries"]}
    assert kinds == {"mkdir", "open", "write", "fsync", "link", "rename"}
    assert len(result["boundaries"]) > 120


def test_order_on_disk_survives_a_power_cut(store, sample):
    # A rename may only be seen after everything below it is on the disk: every opened file is
    # fsynced, COMPLETE is the last of them, the temporary folder follows, and the parent after the rename.
    names: list[str] = []
    sample.whole_run(type(store)(store.folder.parent, "demo", on_boundary=names.append))
    open_files: set[str] = set()
    since_open: list[str] = []
    sealed = 0
    for index, name in enumerate(names):
        verb, _, what = name.partition(" ")
        if verb == "open":
            open_files.add(what)
            since_open = []
        elif verb == "fsync" and not what.startswith("folder"):
            open_files.discard(what)
        elif verb == "rename":
            assert not open_files, f"{what} was published before {open_files} reached the disk"
            assert names[index + 1].startswith("fsync folder")
            if re.fullmatch("attempt-[0-9]+|train|decode", what):
                sealed += 1
                assert names[index - 1] == "fsync folder temporary"
                assert names[index - 2] == "fsync COMPLETE"
        since_open.append(name)
    assert sealed == 4


def test_four_processes_on_one_root(memory_path, drive):
    rounds, count = 30, 4
    result = drive("race.py", memory_path / "race", count, rounds)
    assert result["bad"] == []
    assert result["notes"] == []
    answers = result["answers"]
    assert [answer[0] for answer in answers] == [1] * count
    for index in range(1, rounds + 1):
        # All use the one score that won; each has an attempt of its own, numbered without a gap.
        assert len({(answer[index][0], answer[index][1]) for answer in answers}) == 1
        assert sorted(answer[index][2] for answer in answers) == [f"attempt-{n:04d}" for n in range(1, count + 1)]
    assert result["attempts"] == [[f"attempt-{n:04d}" for n in range(count, 0, -1)]] * rounds
    assert sorted(answer[-2] for answer in answers) == [2, 3, 4, 5]
    assert len({answer[-1] for answer in answers}) == 1


def test_two_identities_race_for_one_experiment(memory_path, drive):
    result = drive("race.py", memory_path / "pin", 3, 10)
    for outcomes in zip(*result["pins"], strict=True):
        assert sorted(outcomes) == ["config", "config", "opened"]
