"""From the experiment file to the frozen problem: a token that is lost here is never compared."""

from __future__ import annotations

import hashlib
import json
import sys
import types

import numpy as np
import pytest
from xcfg.errors import IdentityError, NothingSelectedError, UsageError, XcfgError
from xcfg.flow.inputs import Selection, identity_digests, inline_rollout, load_inputs, rollout_of
from xcfg.identity.rollout import read_rollout, write_rollout
from xcfg.plugin import Profile
from xcfg.schema.codec import convert, evolve, read_strict
from xcfg.schema.experiment import InlineIdentity
from xcfg.schema.plan import PlanIssue


def identity(**changes):
    """Row 0 is padded on the right, row 1 on the left, row 2 not at all and without an active token."""
    matrices = {
        "token_ids": [[5, 6, 7, 0, 0], [0, 0, 8, 9, 10], [1, 2, 3, 4, 5]],
        "selected_token_ids": [[5, 6, 7, 0, 0], [0, 0, 8, 9, 10], [1, 2, 3, 4, 5]],
        "active_mask": [[0, 0, 1, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]],
        "attention_mask": [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]],
    }
    masks = {
        name: [[bool(item) for item in row] for row in rows] if name.endswith("_mask") else rows
        for name, rows in (matrices | changes).items()
        if isinstance(rows, list)
    }
    names = {
        "checkpoint_id": "builtin:x",
        "model_version": "v1",
        "tokenizer_policy": "ids",
        "tokenizer_id": "tok",
        "pre_update_state": "pre",
        "cache_metadata": {"use_cache": False},
        "packing_metadata": {"packed": True},
    }
    return convert({**names, **{k: v for k, v in changes.items() if not isinstance(v, list)}, **masks}, InlineIdentity)


def test_the_inline_matrices_by_hand():
    rollout = inline_rollout(identity())
    columns = {name: array.tolist() for name, array in rollout.tensors.items()}
    assert columns == {
        "token_ids": [5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5],
        "offsets": [0, 3, 6, 11],
        "active_mask": [False, False, True, False, True, True, False, False, False, False, False],
        "attention_mask": [True] * 11,
        "position_ids": [0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4],
        "selected_token_ids": [5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5],
        "segment": [0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0],
        "weight_version": [0] * 11,
    }
    manifest = rollout.manifest
    assert [(item.request_id, item.length, item.active_tokens) for item in manifest.sequences] == [
        ("row-0", 3, 1),
        ("row-1", 3, 2),
        ("row-2", 5, 0),
    ]
    assert (manifest.checkpoint.uri, manifest.checkpoint.model_version) == ("builtin:x", "v1")
    assert (manifest.tokenizer.tokenizer_id, manifest.tokenizer.policy) == ("tok", "ids")
    assert (manifest.pre_update_state, manifest.cache_metadata, manifest.packing_metadata) == (
        "pre",
        {"use_cache": False},
        {"packed": True},
    )


def test_given_positions_are_kept_and_those_of_padding_dropped():
    rows = [[10, 11, 12, 99, 99], [99, 99, 0, 1, 2], [4, 3, 2, 1, 0]]
    assert inline_rollout(identity(position_ids=rows)).tensors["position_ids"].tolist() == [
        10, 11, 12, 0, 1, 2, 4, 3, 2, 1, 0,
    ]  # fmt: skip


def test_what_stands_under_padding_does_not_matter():
    base = inline_rollout(identity())
    noise = [[5, 6, 7, 77, 78], [79, 80, 8, 9, 10], [1, 2, 3, 4, 5]]
    assert inline_rollout(identity(token_ids=noise)).sha256 == base.sha256
    wider = {
        "token_ids": [[*row, 0] for row in identity().token_ids],
        "selected_token_ids": [[*row, 0] for row in identity().token_ids],
        "active_mask": [[*row, False] for row in identity().active_mask],
        "attention_mask": [[*row, False] for row in identity().attention_mask],
    }
    assert inline_rollout(identity(**wider)).sha256 == base.sha256


def test_an_active_token_under_padding_is_refused_instead_of_dropped():
    with pytest.raises(IdentityError, match="attention_mask hides"):
        inline_rollout(identity(active_mask=[[0, 0, 1, 1, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"active_mask": [[1, 0, 0, 0, 0], [0] * 5, [0] * 5]}, "first position"),
        ({"active_mask": [[0] * 5, [0, 0, 1, 0, 0], [0] * 5]}, "first position"),
        ({"selected_token_ids": [[5, 6, 8, 0, 0], [0, 0, 8, 9, 10], [1, 2, 3, 4, 5]]}, "selected_token_ids"),
        ({"selected_token_ids": [[6, 7, 0, 0, 0], [0, 8, 9, 10, 0], [2, 3, 4, 5, 0]]}, "selected_token_ids"),
        ({"token_ids": [[5, -6, 7, 0, 0], [0, 0, 8, 9, 10], [1, 2, 3, 4, 5]]}, "negative"),
        ({"attention_mask": [[1] * 5, [0, 0, 1, 1, 1], [0] * 5]}, "offsets"),
    ],
)
def test_inline_matrices_that_are_no_logical_problem_are_refused(change, says):
    with pytest.raises(IdentityError, match=says):
        inline_rollout(identity(**change))


def test_the_inline_matrices_of_s0_give_the_rollout_that_was_stored(rollout, golden):
    document = read_strict(golden("experiment_v1"))["identity"]
    assert inline_rollout(convert(document, InlineIdentity)).sha256 == rollout.sha256


def test_identity_digests_by_hand(rollout):
    digests = identity_digests(rollout)
    assert digests.rollout == rollout.sha256
    text = '{"model_version":"synthetic-1","uri":"cpu-smoke:synthetic","weight_version":0}'
    assert digests.checkpoint == hashlib.sha256(text.encode()).hexdigest()
    text = '{"digest":"","policy":"token-ids-only","tokenizer_id":"cpu-smoke:token-ids"}'
    assert digests.tokenizer == hashlib.sha256(text.encode()).hexdigest()


def test_a_checkpoint_with_a_digest_is_its_digest_wherever_it_lies(rollout):
    def moved(uri):
        checkpoint = evolve(rollout.manifest.checkpoint, digest="d" * 64, uri=uri)
        return evolve(rollout.manifest, checkpoint=checkpoint)

    first, second = (identity_digests(type(rollout)(moved(uri), rollout.tensors, "r")) for uri in ("/a", "/b"))
    assert first == second
    assert first.checkpoint == "d" * 64


def test_sampling_and_tokenizer_enter_their_digests(rollout):
    base = identity_digests(rollout)
    sampling = evolve(rollout.manifest, sampling=evolve(rollout.manifest.sampling, temperature=0.7))
    tokenizer = evolve(rollout.manifest, tokenizer=evolve(rollout.manifest.tokenizer, digest="t"))
    for manifest, field in ((sampling, "sampling"), (tokenizer, "tokenizer")):
        found = identity_digests(type(rollout)(manifest, rollout.tensors, rollout.sha256))
        assert {name for name in base.__struct_fields__ if getattr(base, name) != getattr(found, name)} == {field}


# --- experiment files -----------------------------------------------------------------------------------------


@pytest.fixture
def experiment(golden, tmp_path):
    """experiment(**fields): the S0 file with other fields, as v2, in a folder of its own."""

    def write(**fields):
        document = read_strict(golden("experiment_v1")) | {
            "schema_version": "cross_config.experiment_config.v2",
            "operators": {},
        }
        document["baseline"]["logp"]["backend"] = "native"
        file = tmp_path / "experiment.json"
        file.write_text(json.dumps(document | fields))
        return file

    return write


def frozen(rollout, tmp_path, **more):
    folder = write_rollout(rollout, tmp_path / "frozen")
    return {"rollout": {"path": folder.name, "sha256": rollout.sha256}, **more}


def test_a_frozen_rollout_lies_beside_its_experiment_file(rollout, experiment, manager, tmp_path):
    loaded = load_inputs(experiment(identity=frozen(rollout, tmp_path)), manager)
    assert loaded.rollout.path == tmp_path / "frozen"
    assert loaded.plan.identity == identity_digests(rollout)


def test_the_same_checkpoint_elsewhere_is_the_same_problem(rollout, experiment, manager, tmp_path):
    file = experiment(identity=frozen(rollout, tmp_path, checkpoint="builtin:elsewhere"))
    loaded = load_inputs(file, manager)
    assert loaded.rollout.manifest.checkpoint.uri == "builtin:elsewhere"
    assert loaded.rollout.sha256 == rollout.sha256
    assert np.array_equal(loaded.rollout.token_ids, rollout.token_ids)
    assert read_rollout(tmp_path / "frozen").manifest.checkpoint.uri == "cpu-smoke:synthetic"


def test_another_rollout_under_the_same_path_is_refused(rollout, experiment, manager, tmp_path):
    document = frozen(rollout, tmp_path)
    document["rollout"]["sha256"] = "0" * 64
    with pytest.raises(IdentityError, match="has digest"):
        load_inputs(experiment(identity=document), manager)


def test_a_rollout_that_is_not_there_is_an_identity_error(experiment, manager):
    missing = {"rollout": {"path": "nowhere", "sha256": "0" * 64}}
    with pytest.raises(IdentityError, match="cannot be read"):
        load_inputs(experiment(identity=missing), manager)


@pytest.fixture
def grid(experiment):
    return experiment(
        interventions=[{"path": "batch.size", "values": [1, 4]}, {"path": "training.sharding", "values": ["fsdp"]}],
        slices={"big": {"batch.size": [4]}},
    )


def labels(file, manager, **chosen):
    return [case.label for case in load_inputs(file, manager, Selection(**chosen)).plan.cases]


def test_without_a_selection_every_case_is_there_and_the_baseline_is_first(grid, manager):
    loaded = load_inputs(grid, manager)
    assert [case.label for case in loaded.plan.cases] == [
        "baseline",
        "batch.size=1",
        "batch.size=4",
        "training.sharding=fsdp",
    ]
    assert loaded.all_cases == 4
    assert labels(grid, manager) == [case.label for case in loaded.plan.cases]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"filter": "batch.size==4"}, ["baseline", "batch.size=4"]),
        ({"filter": "training.sharding!=fsdp"}, ["baseline", "batch.size=1", "batch.size=4"]),
        ({"filter": "label==baseline"}, ["baseline"]),
        ({"slice": "big"}, ["baseline", "batch.size=4"]),
        ({"axes": ("training.sharding",)}, ["baseline", "training.sharding=fsdp"]),
    ],
)
def test_a_selection_keeps_the_baseline_in_front_and_once(chosen, expected, grid, manager):
    assert labels(grid, manager, **chosen) == expected


def test_a_selection_changes_no_case_and_still_knows_how_many_there_are(grid, manager):
    whole = {case.label: case for case in load_inputs(grid, manager).plan.cases}
    loaded = load_inputs(grid, manager, Selection(filter="batch.size==4"))
    assert loaded.all_cases == 4
    assert all(case == whole[case.label] for case in loaded.plan.cases)


def test_a_selection_that_leaves_nothing_is_an_error_although_the_baseline_would_stay(grid, manager):
    with pytest.raises(NothingSelectedError) as error:
        labels(grid, manager, filter="batch.size==99")
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    "chosen", [{"filter": "batch.size>1"}, {"filter": "no.such==1"}, {"slice": "small"}, {"axes": ("no.such",)}]
)
def test_a_selection_that_names_what_is_not_there_is_a_usage_error(chosen, grid, manager):
    with pytest.raises(UsageError):
        labels(grid, manager, **chosen)


def test_an_unknown_profile_is_no_plan(grid, manager):
    with pytest.raises(XcfgError):
        labels(grid, manager, profile="nobody")


@pytest.fixture
def profiled(manager, monkeypatch):
    """profiled(expand) -> a manager whose every profile has the factory `expand`; without it, none."""

    def make(expand=None):
        module = types.ModuleType("kit_profile")
        module.expand = expand
        monkeypatch.setitem(sys.modules, "kit_profile", module)
        record = Profile(name="P", summary="x", factory="kit_profile:expand" if expand else "")
        monkeypatch.setattr(manager, "profile", lambda _: types.SimpleNamespace(record=record, plugin="kit"))
        return manager

    return make


def test_a_profile_plans_what_its_factory_returns_and_selects_its_slices(grid, profiled, tmp_path):
    """Failing means that `--profile` runs other cases than the profile stands for."""
    seen = {}

    def expand(profile, experiment, baseline, knobs, root):
        seen.update(name=profile.name, delta=baseline.delta, knobs="batch.size" in knobs, root=root)
        slices = {"one": {"batch.size": (1,)}, "none": {"batch.size": (1,), "rollout.dtype": ("float32",)}}
        return (
            evolve(experiment, experiment_id="expanded", slices=slices),
            ("one", "none"),
            (PlanIssue(code="KEPT", message="m"),),
        )

    loaded = load_inputs(grid, profiled(expand), Selection(profile="P"), root=tmp_path)
    assert seen == {"name": "P", "delta": {}, "knobs": True, "root": tmp_path}
    assert loaded.plan.experiment_id == loaded.experiment.experiment_id == "expanded"
    assert loaded.plan.cases[0].delta == {} and loaded.plan.issues[-1].code == "KEPT"
    assert len(loaded.plan.cases) > 1 and all(case.knobs["batch.size"] == 1 for case in loaded.plan.cases[1:])


def test_a_profile_that_has_no_case_says_so(grid, profiled):
    def expand(*_):
        raise NothingSelectedError("skipped: all is well")

    with pytest.raises(NothingSelectedError, match="all is well"):
        load_inputs(grid, profiled(expand), Selection(profile="P"))


@pytest.mark.parametrize("more", [{}, {"slice": "small"}])
def test_a_profile_without_a_factory_or_beside_a_slice_is_refused(more, grid, profiled):
    manager = profiled(lambda *given: (given[1], ("",), ())) if more else profiled()
    with pytest.raises(UsageError, match="exclude each other" if more else "only listed"):
        load_inputs(grid, manager, Selection(profile="P", **more))


def test_an_inline_experiment_is_the_same_through_the_front_door(golden, rollout, manager):
    document = read_strict(golden("experiment_v1"))["identity"]
    loaded_identity = convert(document, InlineIdentity)

    class Stub:
        identity = loaded_identity

    assert rollout_of(Stub()).sha256 == rollout.sha256  # type: ignore[arg-type]
