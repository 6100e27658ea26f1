"""A full disk, and two runs on one root."""

from __future__ import annotations

import shutil
import subprocess

import pytest

SMALL, LARGE = 160, 65536


def mountable() -> bool:
    words = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt && umount /mnt"]
    return (
        shutil.which("unshare") is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


def full(done) -> None:
    assert done.code == 4, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert "the disk is full" in said
    assert "Free space or raise the quota" in said


def test_a_full_disk_and_then_a_larger_one(lab, frozen, tmp_path):
    """Failing means that a full disk ends in a traceback, or that what was sealed before is lost."""
    if not mountable():
        pytest.skip("mounting a small tmpfs needs root and unshare; the next test needs neither")
    experiment, root, kept = lab.experiment(tmp_path / "full.json", frozen), tmp_path / "runs", tmp_path / "kept"
    root.mkdir()
    kept.mkdir()
    # One mount namespace for both runs: the disk is small, then it is enlarged.
    script = f"""
mount -t tmpfs -o size={SMALL}k tmpfs {root} || exit 99
"$@" > {kept}/first.json 2> {kept}/first.err; echo $? > {kept}/first.code
cp -a {root} {kept}/first
mount -o remount,size={LARGE}k {root} || exit 99
"$@" > {kept}/second.json 2> {kept}/second.err; code=$?
cp -a {root} {kept}/second
cat {kept}/second.json
exit $code
"""
    prefix = ("unshare", "--mount", "sh", "-c", script, "sh")
    done = lab.xcfg("run", experiment, "--output-root", root, "--json", prefix=prefix)
    first = type(done)(
        int((kept / "first.code").read_text()),
        (kept / "first.json").read_text(),
        (kept / "first.err").read_text(),
        0.0,
        done.mark,
    )
    full(lab.checked(first))
    sealed = {path.parent.name for path in kept.glob("first/*/scores/*/COMPLETE")}
    assert sealed, "the disk was full before the first score; make it larger"
    lab.verified(kept / "first")
    assert not list((kept / "first").rglob(".tmp-*")), "a half-written folder takes the space that is missing"
    assert (done.code, done.statuses) == (0, {"baseline": "PASS"})
    lab.verified(kept / "second")
    assert not list(kept.glob("second/*/scores/*.r2")), "a sealed score was made again"


def test_a_limit_on_the_size_of_files(lab, frozen, tmp_path):
    """The same where nothing can be mounted: no file of the supervisor may grow beyond a limit."""
    experiment, root = lab.experiment(tmp_path / "full.json", frozen), tmp_path / "runs"
    limited = tmp_path / "limited.py"
    # The limit stands in the supervisor alone, after its workers' server was started with none.
    limited.write_text(
        "import resource, signal, sys\n"
        "from xcfg.artifacts import store\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "whole = store.Store.put_attempt\n"
        "def put(self, *given, **more):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "    return whole(self, *given, **more)\n"
        "store.Store.put_attempt = put\n"
        "from xcfg.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = lab.checked(lab.program(limited, "run", experiment, "--output-root", root, "--json").end())
    full(done)
    sealed = {path.parent.name for path in root.glob("*/scores/*/COMPLETE")}
    assert len(sealed) == 4
    lab.verified(root)
    again = lab.run(experiment, root)
    assert (again.code, again.statuses) == (0, {"baseline": "PASS"})
    lab.verified(root)
    assert {path.parent.name for path in root.glob("*/scores/*/COMPLETE")} == sealed


def test_two_runs_on_one_root_at_once(lab, frozen, tmp_path):
    """Failing means that two people who start the same experiment spoil each other's."""
    interventions = [{"path": "training.attention_backend", "values": ["eager"]}]
    experiment = lab.experiment(tmp_path / "both.json", frozen, interventions=interventions)
    words = ("run", experiment, "--output-root", tmp_path / "runs", "--json")
    running = [lab.start(*words) for _ in range(2)]
    first, second = [lab.checked(item.end()) for item in running]
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert "another run is at this experiment" in first.stderr + second.stderr, "neither noticed the other"
    assert first.statuses == second.statuses == {"baseline": "PASS", "training.attention_backend=eager": "PASS"}
    for ours, theirs in zip(first.document["cases"], second.document["cases"], strict=True):
        assert ours["edges"] == theirs["edges"]
    lab.verified(tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*/scores/*.r2")), "one key, two scores"
    resumed = lab.run(experiment, tmp_path / "runs")
    assert all(case["resumed"] for case in resumed.document["cases"])
