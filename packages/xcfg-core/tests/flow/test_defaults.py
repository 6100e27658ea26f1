"""Where a value that no file sets ends a case, the message says that it is the default, and what to write."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
from xcfg.flow.defaults import is_default, of_applications
from xcfg.flow.prepare import PreparedCase, Preparer
from xcfg.flow.run import Run
from xcfg.flow.scores import ScoreFailure
from xcfg.plugin.readback import Reading, application
from xcfg.schema.names import Status
from xcfg.schema.plan import ExperimentCase
from xcfg.schema.runtime import Capability, RuntimeDescriptor

ATTENTION = "training.attention_backend"
SAID = (
    "; the file does not set 'training.attention_backend': 'sdpa' is the default of the experiment schema; "
    'add "baseline": {"training.attention_backend": "model_default"}'
)


def experiment(**given):
    return SimpleNamespace(**({"baseline": {}, "fixed": {}, "operators": {}} | given))


def planned(value="sdpa", path=ATTENTION, **delta):
    return ExperimentCase(case_id="c", label="c", knobs={path: value}, delta=delta, operators={})


def own_attention(path=ATTENTION):
    capability = Capability(path=path, side="training", values=("model_default",))
    return RuntimeDescriptor(
        name="own", summary="", adapter="a:b", placement="a:b", arms={}, capabilities=(capability,)
    )


def prepared(manager, case, file):
    known = SimpleNamespace(
        definitions=manager.knobs(),
        runtimes=SimpleNamespace(of=lambda side: own_attention()),
        loaded=SimpleNamespace(experiment=file),
        verdict_arm="rollout_prefill",
        _asked=lambda case, side, descriptor, knobs, reasons: knobs,
    )
    return Preparer.prepare(known, case).unsupported


def test_a_default_that_a_runtime_cannot_honour_is_called_one(manager):
    """Failing means that a reader searches the file for a setting that is not in it, and is not told what to write."""
    plain = "'sdpa': the runtime 'own' supports 'model_default'"
    assert prepared(manager, planned(), experiment()) == {ATTENTION: plain + SAID}
    assert prepared(manager, planned(), experiment(baseline={ATTENTION: "sdpa"})) == {ATTENTION: plain}
    assert prepared(manager, planned(), experiment(fixed={ATTENTION: "sdpa"})) == {ATTENTION: plain}


@pytest.mark.parametrize(
    ("case", "file", "default"),
    [
        (planned(), experiment(), True),
        (planned("eager"), experiment(), False),
        (planned(**{ATTENTION: "sdpa"}), experiment(baseline={ATTENTION: "eager"}), False),
        (planned(**{ATTENTION: "sdpa"}), experiment(), False),
    ],
    ids=["nobody set it", "another value", "a case that sets it", "a case alone"],
)
def test_what_the_file_or_a_case_sets_is_no_default(manager, case, file, default):
    """Failing means that a value which somebody wrote is said to be nobody's."""
    assert is_default(ATTENTION, "training", case, file, manager.knobs()[ATTENTION]) is default


def test_a_knob_of_both_sides_is_named_with_its_side(manager):
    """Failing means that the line to add changes the other side too."""
    path = "batch.padding_side"
    knob = manager.knobs()[path]
    case = planned(knob.default, path)
    ran = application(path, knob.default, Reading("left", "left", ()), side="rollout", rank=0)
    said = of_applications([ran], case, experiment(), manager.knobs())
    assert said.endswith('add "baseline": {"batch.padding_side@rollout": "left"}')
    assert not of_applications([ran], case, experiment(baseline={f"{path}@rollout": knob.default}), manager.knobs())
    assert of_applications([ran], case, experiment(baseline={f"{path}@training": knob.default}), manager.knobs())


def test_an_engine_that_ran_another_value_than_the_default_says_so(manager):
    """Failing means that FALLBACK stands beside a setting that the file never names."""
    ran = application(ATTENTION, "sdpa", Reading("model_default", "model_default", ()), side="training", rank=0)
    failure = ScoreFailure(Status.FALLBACK, f"{ATTENTION} on training: {ran.reason}", applications=(ran, ran))
    sealed = []
    fake = SimpleNamespace(
        manager=SimpleNamespace(observe_before_case=lambda case: None),
        scorer=SimpleNamespace(outcomes={"k": failure}),
        loaded=SimpleNamespace(experiment=experiment()),
        recorder=SimpleNamespace(definitions=manager.knobs()),
        _fail=lambda item, document, started, logs: sealed.append(document.reason),
    )
    fake._defaults = partial(Run._defaults, fake)
    item = PreparedCase(case=planned(), jobs={"training": SimpleNamespace(key="k")}, verdict_arm="rollout_prefill")
    Run._judge(fake, item)
    assert sealed == [f"training: {failure.reason}{SAID}"]
