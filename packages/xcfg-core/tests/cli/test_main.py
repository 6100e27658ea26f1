"""Commands are found lazily; every way to fail has a text, an exit code and, under --json, one document."""

from __future__ import annotations

import json
import os
import shutil
import sys

import click
import pytest
from xcfg.artifacts.layout import SCORE_PAYLOADS
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import CaseFacts, ScoreFacts
from xcfg.cli import main as module
from xcfg.cli._output import Session, emit, pass_session
from xcfg.errors import IdentityError, LaunchError
from xcfg.schema.names import Status
from xcfg.schema.summary import ErrorSummary

ERROR_KEYS = {"schema_version", "kind", "message", "hint", "exit_code"}


def error_of(out):
    document = json.loads(out)
    assert set(document) == ERROR_KEYS
    assert document["schema_version"] == "xcfg.error.v1"
    return document


@pytest.fixture
def command(monkeypatch):
    """Put a function in the place of the command `knobs`."""

    def _command(function):
        made = click.Command("knobs", callback=pass_session(function))
        monkeypatch.setattr("xcfg.cli.cmd_knobs.knobs", made)

    return _command


def raising(error):
    def _raise(session):
        raise error

    return _raise


def test_help_lists_core_and_plugin_commands_and_marks_planned_ones(call):
    code, out, _ = call("--help", kinds=("good",))
    assert code == 0
    for name in ("freeze", "plan", "run", "compare", "verify", "plugins", "knobs", "ops", "schema"):
        assert f"\n  {name} " in out
    assert "kit-hello" in out
    assert "(planned) Do it later." in out


def test_a_plugin_command_runs(call):
    assert call("kit-hello", kinds=("good",)) == (0, "hello\n", "")


def test_a_planned_command_exits_2_whatever_its_arguments(call):
    code, out, err = call("kit-later", "--frobnicate", "-x", "3", kinds=("good",))
    assert (code, out) == (2, "")
    assert "'kit-later' is planned and does nothing yet: it is not written" in err
    assert call("kit-later", "--help", kinds=("good",))[0] == 0


def test_a_command_that_points_nowhere_is_refused(call):
    code, _, err = call("kit-lost", kinds=("good",))
    assert code == 2
    assert "'kit_good:nowhere' of plugin 'kit-good'" in err


def test_a_blocked_plugin_brings_no_command(call):
    for arguments in (("--no-plugin", "kit-good", "kit-hello"), ("kit-hello", "--no-plugin=kit-good")):
        code, _, err = call(*arguments, kinds=("good",))
        assert code == 2
        assert "there is no command 'kit-hello'" in err


def test_unknown_command_says_what_is_near(call):
    code, out, _ = call("--json", "plugin")
    error = error_of(out)
    assert (code, error["kind"]) == (2, "unknown_name")
    assert "'plugins'" in error["hint"]


def test_a_plugin_cannot_shadow_a_command_of_core(call):
    code, out, _ = call("plugins", "list", "--json", kinds=("duplicate_command",))
    (entry,) = (item for item in json.loads(out)["plugins"] if item["name"] == "kit-command")
    assert entry["status"] == "conflict"
    assert code == 0


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("option", [["--json"], ["--json", "--debug"], ["--json", "--no-plugin", "kit-good"]])
def test_shared_options_work_at_every_place(call, position, option):
    words = ["plugins", "list"]
    code, out, _ = call(*words[:position], *option, *words[position:], kinds=("good",))
    assert code == 0
    (entry,) = (item for item in json.loads(out)["plugins"] if item["name"] == "kit-good")
    assert entry["status"] == ("blocked" if "--no-plugin" in option else "active")


@pytest.mark.parametrize(
    "words",
    [
        ["plugins", "list", "--bogus"],
        ["plugins", "show"],
        ["ops", "resolve", "x", "--side", "neither", "--backend", "y"],
        ["--bogus"],
        ["knobs", "sho"],
        ["plugins", "--no-plugin"],
    ],
)
def test_wrong_usage_exits_2_and_is_a_document_under_json(call, words):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("xcfg: ")
    code, out, err = call(*words, "--json")
    error = error_of(out)
    assert (code, error["exit_code"], error["kind"], err) == (2, 2, "usage", "")
    assert "--help" in error["hint"]


def test_an_unknown_option_is_answered_with_those_that_there_are(call):
    """Failing means that `freeze --rollout vllm`, as `run` has it, does not say that here it is `--runtime`."""
    _, _, err = call("freeze", "--rollout", "vllm")
    assert "Available: --checkpoint, " in err and " --runtime, " in err
    _, _, err = call("freeze", "--runtim", "vllm")
    assert "--runtime" in err and "Available" not in err


def test_no_command_shows_the_help_and_exits_2(call):
    code, out, err = call()
    assert (code, out) == (2, "")
    assert "Commands:" in err
    assert error_of(call("--json")[1])["kind"] == "usage"


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (IdentityError("differs", hint="look"), 3, "identity"),
        (LaunchError("did not start"), 4, "launch"),
        (ZeroDivisionError("oops"), 4, "internal"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (click.FileError("x", "gone"), 2, "usage"),
        (SystemExit(0), 4, "internal"),
        (SystemExit("message"), 4, "internal"),
        (MemoryError(), 4, "out_of_memory"),
    ],
)
def test_exit_codes_of_errors(call, command, error, code, kind):
    command(raising(error))
    found, out, err = call("knobs")
    assert (found, out) == (code, "")
    assert err.startswith("xcfg: ")
    assert "Traceback" not in err
    found, out, err = call("--json", "knobs")
    document = error_of(out)
    assert (found, document["exit_code"], document["kind"]) == (code, code, kind)


def test_an_unexpected_error_says_that_xcfg_is_at_fault_and_debug_shows_where(call, command):
    command(raising(ZeroDivisionError("oops")))
    _, _, err = call("knobs")
    assert "this is a fault of xcfg" in err
    assert "ZeroDivisionError: oops" in err
    _, out, err = call("--debug", "--json", "knobs")
    assert "Traceback" in err
    assert error_of(out)["kind"] == "internal"
    _, _, err = call("--debug", "plugins", "show", "nothing")
    assert "Traceback" in err


@pytest.mark.parametrize("code", [0, 1, 3, 4, 130])
def test_a_command_may_return_exit_or_leave_with_its_code(call, command, code):
    def finish(how):
        def _finish(session):
            emit(session, {"done": True}, lambda _: "done")
            return how(code)

        return _finish

    def leave(code):
        raise SystemExit(code)

    for how in (lambda code: code, leave, lambda code: click.get_current_context().exit(code)):
        command(finish(how))
        assert call("knobs") == (code, "done\n", "")


def test_leaving_with_0_before_there_is_a_result_is_no_pass(call):
    assert call("kit-exit", "0", kinds=("good",))[0] == 4
    assert call("kit-exit", "3", kinds=("good",))[0] == 3


def test_an_error_after_the_document_goes_to_stderr(call, command):
    def late(session):
        emit(session, {"done": True}, lambda _: "done")
        raise LaunchError("late")

    command(late)
    code, out, err = call("--json", "knobs")
    assert code == 4
    assert json.loads(out) == {"done": True}
    assert "late" in err


def test_a_human_form_may_print_by_itself(call, command):
    command(lambda session: emit(session, 1, lambda value: click.echo(f"printed {value}")))
    assert call("knobs") == (0, "printed 1\n", "")


def test_a_command_that_core_cannot_import_is_a_fault_of_core(call, monkeypatch):
    broken = module.CORE["knobs"].__class__(name="knobs", summary="x", factory="xcfg.cli.cmd_absent:knobs")
    monkeypatch.setitem(module.CORE, "knobs", broken)
    code, out, _ = call("--json", "knobs", "list")
    assert (code, error_of(out)["kind"]) == (4, "internal")


def test_version(call):
    code, out, _ = call("--version")
    assert code == 0
    assert out.startswith("xcfg 0.")


def test_options_before_a_double_dash_only():
    session = Session.from_arguments(["x", "--no-plugin", "a", "--no-plugin=b", "--no-plugin", "a", "--", "--json"])
    assert (session.json, session.debug, session.blocked) == (False, False, ("a", "b"))


def test_blocking_after_the_plugins_were_loaded_loads_them_again(monkeypatch):
    session = Session()
    first = session.manager
    assert session.manager is first
    session.block(["ops-logp"])
    assert session.manager is not first


def test_closed_pipe_is_quiet(process):
    done = process(
        "-c",
        "import os, sys, subprocess\n"
        "read, write = os.pipe()\n"
        "os.close(read)\n"
        "done = subprocess.run([sys.executable, '-m', 'xcfg', 'knobs', 'list'], stdout=write, "
        "stderr=subprocess.PIPE, text=True)\n"
        "print(done.returncode, repr(done.stderr))\n",
    )
    assert done.stdout == "141 ''\n"


def test_module_and_script_are_the_same(process):
    done = process("-m", "xcfg", "plugins", "show", "nothing", "--json")
    assert done.returncode == 2
    assert error_of(done.stdout)["kind"] == "unknown_name"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_interrupt_exits_130(process):
    done = process(
        "-c",
        "import os, signal, sys\n"
        "from xcfg.cli import cmd_knobs\n"
        "from xcfg.cli.main import main\n"
        "import click\n"
        "cmd_knobs.knobs = click.Command('knobs', callback=lambda: os.kill(os.getpid(), signal.SIGINT) or "
        "signal.pause())\n"
        "sys.exit(main(['knobs']))\n",
    )
    assert (done.returncode, done.stderr) == (130, "xcfg: interrupted\n")


def test_error_record_has_the_published_fields():
    assert set(ErrorSummary.__struct_fields__) == ERROR_KEYS


@pytest.mark.parametrize("arguments", [("plan", "pipe"), ("run", "pipe"), ("compare", "pipe"), ("compare", "folder")])
def test_a_pipe_is_refused_and_not_waited_for(process, tmp_path, arguments):
    folder = tmp_path / "folder"
    folder.mkdir()
    for pipe in (tmp_path / "pipe", folder / "manifest.json", folder / "rollout.safetensors"):
        os.mkfifo(pipe)
    done = process("-m", "xcfg", arguments[0], str(tmp_path / arguments[1]))
    assert done.returncode in (2, 3) and "Traceback" not in done.stderr
    assert "is a pipe or a device" in done.stderr or "no reader knows" in done.stderr


def test_verifying_the_folder_of_an_experiment_file_says_where_the_evidence_lies(call, tmp_path):
    (tmp_path / "experiment.json").write_text("{}")
    code, out, _ = call("verify", str(tmp_path))
    assert code == 3 and "give the folder that a run wrote, runs/<experiment>" in out


def test_memory_that_runs_out_is_no_fault_of_xcfg(call, command):
    command(raising(MemoryError("Unable to allocate 5.6 GiB")))
    code, _, err = call("knobs")
    assert code == 4 and "memory ran out: Unable to allocate 5.6 GiB" in err and "fault of xcfg" not in err


def test_verify_one_level_too_high_names_the_folder_that_holds_evidence(call, tmp_path):
    (tmp_path / "runs" / "mine" / "cases").mkdir(parents=True)
    code, _, err = call("verify", str(tmp_path))
    assert code == 3 and "There is some in 'runs'." in err


@pytest.mark.parametrize(
    ("deleted", "code", "shown"),
    [("", 0, "0 failed\n"), ("cases", 3, "sealed and is gone"), ("cases ended", 130, "1 planned cases never ended")],
)
def test_verify_counts_the_planned_cases(call, tmp_path, deleted, code, shown):
    """Failing means that a run whose cases were deleted, or that never ended, verifies."""
    store = Store(tmp_path, "demo")
    revision = store.open_experiment({"experiment_id": "demo"}, [{"case_id": "case-a", "label": "baseline"}], {})
    facts = {"experiment": revision.experiment_digest, "plan_line": revision.plan_line("case-a")}
    files = {"requested.json": b'{"case_id": "case-a"}', "failure.json": b'{"status": "TIMEOUT", "reason": "slow"}'}
    attempt = store.put_attempt("case-a", CaseFacts(status=Status.TIMEOUT, **facts), files)
    store.put_ended(revision.experiment_digest, {"case-a": attempt.seal.attempt_id})
    payloads = dict.fromkeys(SCORE_PAYLOADS, b"{}")
    store.put_score(ScoreFacts(key="k", arm="training", side="training", rollout=""), payloads)
    for name in deleted.split():
        shutil.rmtree(store.folder / name)
    found, out, err = call("verify", str(tmp_path), "--seals-only")
    assert (found, err) == (code, "") and shown in out


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_a_name_that_is_no_text_is_shown_as_an_escape(process, tmp_path, monkeypatch, encoding, more):
    """Failing means that one file with an odd name in a root keeps everybody from verifying what lies beside it."""
    store = Store(tmp_path, "demo")
    store.open_experiment({"experiment_id": "demo"}, [], {})
    payloads = dict.fromkeys(SCORE_PAYLOADS, b"{}")
    store.put_score(ScoreFacts(key="k", arm="training", side="training", rollout=""), payloads)
    (store.folder / "scores" / os.fsdecode(b"odd-\xff")).mkdir()
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    done = process("-m", "xcfg", *more, "verify", str(tmp_path), "--seals-only")
    assert (done.returncode, done.stderr) == (0, "") and "odd-" in done.stdout
    if more:
        paths = [check["path"] for check in json.loads(done.stdout)["attempts"]]
        assert os.fsencode(next(path for path in paths if "odd-" in path)).endswith(b"odd-\xff")
