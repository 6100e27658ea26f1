"""What a run says while it runs. Failing means that a remark is lost, or that it disturbs a document on stdout."""

from __future__ import annotations

import pytest
from xcfg.cli._progress import Progress

BUSY = {"event": "busy", "label": "another run is at this experiment", "reason": "process 7 is scoring 'baseline'"}


@pytest.mark.parametrize(("enabled", "event", "said"), [(True, BUSY, True), (False, BUSY, True),
    (True, BUSY | {"event": "taken"}, True), (False, BUSY | {"event": "taken"}, False)])  # fmt: skip
def test_another_run_is_said_on_stderr_even_beside_a_document(capsys, enabled, event, said):
    Progress(enabled=enabled)(event)
    out, err = capsys.readouterr()
    assert out == "" and ("process 7 is scoring 'baseline'" in err) is said
