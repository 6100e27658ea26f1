"""The planted faults as a fixture, and dumps written to files."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import xcfg
from safetensors.numpy import save_file
from xcfg_analysis.analyze import candidates
from xcfg_analysis.page.analysis import analyze_run
from xcfg_analysis.recognise import recognise
from xcfg_analysis.tokens import active_tokens


def beside(name):
    """Import a module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


beside("handmade")  # by that name in the tests that build cubes by hand


@pytest.fixture(scope="session")
def plants():
    """tests/planted.py, which tools/gen_signatures.py reads as well."""
    return beside("planted")


@pytest.fixture(scope="session")
def cubes():
    """tests/cubes.py: hand-made rows."""
    return beside("cubes")


@pytest.fixture(scope="session")
def runs():
    """tests/runs.py: how to write an experiment over the tiny model."""
    return beside("runs")


@pytest.fixture(scope="session")
def grid(runs, manager, tmp_path_factory):
    """The folder of one real run of the embedded runtime: singles, one pair, controls."""
    folder = tmp_path_factory.mktemp("grid")
    file = runs.write_experiment(folder, **runs.GRID)
    xcfg.run(file, plugins=manager, output_root=folder / "runs")
    return folder / "runs" / "grid"


@pytest.fixture(scope="session")
def manager():
    return xcfg.load_plugins()


@pytest.fixture(scope="session")
def tried(manager):
    return candidates(manager)


@pytest.fixture(scope="session")
def names(tried):
    """names(table) -> names of the signatures that are recognised, in order."""

    def of(table):
        return [item.descriptor.name for item in recognise(active_tokens(table), tried).named]

    return of


@pytest.fixture(scope="session")
def planted(runs):
    """Plugins with the planted operators among them, for this process and its workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(runs.PLANTED))
        patch.setenv("PYTHONPATH", str(runs.PLANTED), prepend=os.pathsep)
        yield xcfg.load_plugins()


@pytest.fixture(scope="session")
def tempered(runs, planted, tmp_path_factory):
    """A temperature of 0.7 in the training operator: first a grid that cannot cure it, then one that can."""
    folder = tmp_path_factory.mktemp("tempered")
    first = runs.write_experiment(folder, **runs.TEMPERED)
    xcfg.run(first, plugins=planted, output_root=folder / "runs", columns=("entropy",))
    before = analyze_run(folder / "runs" / "tempered", plugins=planted)
    grown = runs.TEMPERED | {"interventions": [*runs.TEMPERED["interventions"], runs.CURED]}
    xcfg.run(runs.write_experiment(folder, **grown), plugins=planted, output_root=folder / "runs", columns=("entropy",))
    return before, analyze_run(folder / "runs" / "tempered", plugins=planted), folder / "runs" / "tempered"


@pytest.fixture
def write_rows(tmp_path):
    """write_rows(rows) -> path of a canonical JSONL dump; missing fields get plain values."""

    def write(rows, name="dump.jsonl"):
        plain = {"sample_id": "a", "token_id": 5, "active": True, "logp_rollout": -1.0, "logp_train": -1.0}
        lines = [json.dumps(plain | {"position": at + 1} | row) for at, row in enumerate(rows)]
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.fixture
def write_table(tmp_path):
    """write_table(table, attested) -> path of a safetensors dump of a DumpTable."""

    def write(table, attested="", name="dump.safetensors"):
        columns = {
            "sample_id": np.repeat(np.arange(len(table.sample_ids)), np.diff(table.offsets)),
            "position": table.positions,
            "token_id": table.token_ids,
            "active": table.active,
            "logp_train": table.training,
            "logp_rollout": table.rollout,
            "weight_version": table.weight_version,
            **({} if table.rank is None else {"rank": table.rank}),
            **table.columns,
        }
        metadata = {f"compute_dtype.{side}": attested for side in ("training", "rollout")} if attested else None
        path = tmp_path / name
        save_file({key: np.ascontiguousarray(values) for key, values in columns.items()}, path, metadata=metadata)
        return path

    return write
