"""The files of the protocol: whole-or-nothing, strict, one report for each rank."""

from __future__ import annotations

import hashlib
import json
import math
import threading

import pytest
from xcfg.errors import ConfigError, MissingRankError
from xcfg.running import exchange as files
from xcfg.schema.codec import decode_json, pretty_json
from xcfg.schema.names import Applied, Lifecycle
from xcfg.schema.runtime import KnobApplication
from xcfg.schema.worker import BuildReport, ScoreReport


def gathering(folder, world=2):
    return files.Gathering(folder, "ready-", BuildReport, world, files.check_build)


def write(folder, name, rank, world=2, **more):
    (folder / name).write_bytes(pretty_json(BuildReport(rank=rank, world_size=world, **more)))


def test_publish_refuses_a_second_file_and_leaves_no_temporary(tmp_path):
    tmp_path = tmp_path / "exchange"
    tmp_path.mkdir()
    assert files.publish(tmp_path / "a", b"one") == hashlib.sha256(b"one").hexdigest()
    with pytest.raises(FileExistsError):
        files.publish(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"
    files.publish(tmp_path / "a", b"three", replace=True)
    assert (tmp_path / "a").read_bytes() == b"three"
    assert [item.name for item in tmp_path.iterdir()] == ["a"]


def test_a_file_that_is_there_is_whole(tmp_path):
    """Readers that poll while large files are replaced never see a part of one."""
    target, size, seen = tmp_path / "a", 1 << 20, []

    def writer():
        for number in range(40):
            files.publish(target, bytes([number]) * size, replace=True)

    thread = threading.Thread(target=writer)
    thread.start()
    while thread.is_alive():
        if target.exists():
            data = target.read_bytes()
            seen.append(len(data) == size and len(set(data[:: size // 64])) == 1)
    thread.join()
    assert seen and all(seen)


def test_gathering_waits_for_every_rank(tmp_path):
    round_ = gathering(tmp_path)
    assert not round_.poll() and round_.missing == [0, 1]
    write(tmp_path, "ready-1.json", 1)
    assert not round_.poll() and round_.missing == [0]
    write(tmp_path, "ready-0.json", 0)
    assert round_.poll() and sorted(round_.reports) == [0, 1]


def test_one_rank_under_two_names(tmp_path):
    write(tmp_path, "ready-0.json", 0)
    write(tmp_path, "ready-1.json", 0)
    with pytest.raises(MissingRankError, match="rank 0 reported twice"):
        gathering(tmp_path).poll()


def test_rank_beyond_the_world(tmp_path):
    for rank in range(3):
        write(tmp_path, f"ready-{rank}.json", rank)
    with pytest.raises(MissingRankError, match="rank 2 reported in a world of 2"):
        gathering(tmp_path).poll()


def test_rank_of_another_world(tmp_path):
    write(tmp_path, "ready-0.json", 0, world=4)
    with pytest.raises(MissingRankError, match="world of 4"):
        gathering(tmp_path).poll()


def test_an_error_counts_even_if_its_world_is_unknown(tmp_path):
    write(tmp_path, "ready-0.json", 0, world=0, error="no")
    round_ = gathering(tmp_path)
    assert not round_.poll()
    assert [report.error for report in round_.failed] == ["no"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"rank": 0}',
        '{"rank": "0", "world_size": 2}',
        '{"rank": true, "world_size": 2}',
        '{"rank": 0, "rank": 0, "world_size": 2}',
        '{"rank": 0, "world_size": 2, "seconds": NaN}',
        '{"rank": 0, "world_size": 2, "applications": [{"path": "x"}]}',
        "\x00\x01",
    ],
)
def test_malformed_reports(tmp_path, text):
    (tmp_path / "ready-0.json").write_text(text)
    with pytest.raises(files.ProtocolError, match="report of rank 0 cannot be read"):
        gathering(tmp_path).poll()


def test_fields_of_a_later_version_are_ignored(tmp_path):
    (tmp_path / "ready-0.json").write_text('{"rank": 0, "world_size": 1, "from_the_future": [1]}')
    assert gathering(tmp_path, world=1).poll()


def test_score_reports_must_name_the_request(tmp_path):
    (tmp_path / "done-a-0.json").write_bytes(pretty_json(ScoreReport(request_id="b", rank=0)))
    with pytest.raises(files.ProtocolError, match="answered request 'b' where 'a' was asked"):
        files.Gathering(tmp_path, "done-a-", ScoreReport, 1, files.check_score("a")).poll()


def test_ids_that_begin_alike_do_not_mix(tmp_path):
    for identifier in ("a", "a-1", "a-1.again-2"):
        (tmp_path / files.done_file(identifier, 0)).write_bytes(pretty_json(ScoreReport(request_id=identifier, rank=0)))
        assert files.Gathering(tmp_path, f"done-{identifier}-", ScoreReport, 1, files.check_score(identifier)).poll()


def test_non_finite_numbers_become_their_names_or_null():
    application = KnobApplication(
        path="a.b", side="training", rank=0, requested=1, materialized=1, actual=1,
        status=Applied.APPLIED, lifecycle=Lifecycle.REQUEST, numeric_effect=math.nan,
    )  # fmt: skip
    report = BuildReport(
        rank=0,
        world_size=1,
        applications=(application,),
        provenance={"x": [math.inf, {"y": -math.inf}], "z": 1.5},
    )
    decoded = decode_json(files.encode_report(report), BuildReport)
    assert decoded.provenance == {"x": ["inf", {"y": "-inf"}], "z": 1.5}
    assert decoded.applications[0].numeric_effect is None


def test_a_non_finite_required_number_is_named():
    with pytest.raises(ConfigError, match=r"\$\.seconds"):
        files.encode_report(BuildReport(rank=0, world_size=1, seconds=math.nan))


def test_values_that_are_no_json_are_refused():
    with pytest.raises(TypeError):
        files.encode_report(BuildReport(rank=0, world_size=1, provenance={"x": object()}))


def test_payload_must_have_the_reported_digest(tmp_path):
    (tmp_path / "scores").write_bytes(b"data")
    assert files.read_payload(tmp_path, "scores", hashlib.sha256(b"data").hexdigest(), 0) == b"data"
    with pytest.raises(files.ProtocolError, match="not the file"):
        files.read_payload(tmp_path, "scores", "0" * 64, 0)
    with pytest.raises(files.ProtocolError, match="cannot be read"):
        files.read_payload(tmp_path, "absent", "0" * 64, 0)


def test_faults_are_read(tmp_path):
    (tmp_path / files.fault_file(7)).write_text(json.dumps({"rank": 0, "world_size": 1, "error": "taken"}))
    assert [report.error for report in files.read_faults(tmp_path)] == ["taken"]
    (tmp_path / files.fault_file(8)).write_text("not json")
    with pytest.raises(files.ProtocolError, match="a fault report cannot be read"):
        files.read_faults(tmp_path)
