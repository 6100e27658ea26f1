"""Every reader keeps the rules of the kit, on a file laid out as its framework writes it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from xcfg.plugin.manager import PluginManager
from xcfg_dumps.plugin import xcfg_dump_readers
from xcfg_testkit import DumpReaderContract

READERS = {record.name: record for record in xcfg_dump_readers()}


class Laid:
    """Gives the layouts of conftest to the methods of a contract."""

    sides: ClassVar[tuple[str, ...]] = ("rollout",)
    layouts: SimpleNamespace

    @pytest.fixture(autouse=True)
    def _given(self, layouts: SimpleNamespace) -> None:
        self.layouts = layouts

    def expected(self) -> Any:
        return self.layouts.expected(*self.sides)


class TestSlimeRollout(Laid, DumpReaderContract):
    descriptor = READERS["slime-rollout"]

    def write_sample(self, folder: Path) -> Path:
        return self.layouts.slime_rollout(folder)


class TestSlimeTrain(Laid, DumpReaderContract):
    descriptor = READERS["slime-train"]
    sides = ("training",)

    def write_sample(self, folder: Path) -> Path:
        return self.layouts.slime_train(folder)


class TestMilesTrain(Laid, DumpReaderContract):
    descriptor = READERS["slime-train"]
    sides = ("rollout", "training")

    def write_sample(self, folder: Path) -> Path:
        return self.layouts.miles_train(folder)


class TestNemoRl(Laid, DumpReaderContract):
    descriptor = READERS["nemo-rl"]
    sides = ("rollout", "training")

    def write_sample(self, folder: Path) -> Path:
        return self.layouts.jsonl(folder, [self.layouts.nemo_record(0), self.layouts.nemo_record(1)])

    def expected(self) -> Any:
        columns = self.layouts.expected(*self.sides)
        for name in ("logp_rollout", "logp_train"):  # the dummy of index 0 is dropped, the prompt's zeros are kept
            columns[name][1] = columns[name][6] = 0.0
        return columns


class TestPrimeRl(Laid, DumpReaderContract):
    descriptor = READERS["prime-rl"]

    def write_sample(self, folder: Path) -> Path:
        return self.layouts.jsonl(folder, [self.layouts.prime_record(0), self.layouts.prime_record(1)])

    def expected(self) -> Any:
        columns = self.layouts.expected(ids=("step4-rank2-0", "step4-rank2-1"))
        columns["logp_rollout"] = [0, 0, -0.5, -1.25, -3, 0, 0, -0.75]
        columns["logp_train"] = [-11.7, -2, -0.5, -1.5, -2.875, -11.7, -2, -0.8125]
        return columns | {"rank": [2] * 8, "entropy": [0.25] * 8}


class TestVllm(Laid, DumpReaderContract):
    descriptor = READERS["vllm"]

    def write_sample(self, folder: Path) -> Path:
        return self.layouts.jsonl(folder, [self.layouts.vllm_request(0), self.layouts.vllm_request(1)])


class TestOpenAiChat(Laid, DumpReaderContract):
    descriptor = READERS["openai"]

    def write_sample(self, folder: Path) -> Path:
        return self.layouts.jsonl(folder, [self.layouts.chat_answer(0), self.layouts.chat_answer(1)])


class TestOpenAiCompletions(Laid, DumpReaderContract):
    descriptor = READERS["openai"]

    def write_sample(self, folder: Path) -> Path:
        return self.layouts.jsonl(folder, [self.layouts.completion_answer(0), self.layouts.completion_answer(1)])


class TestNpz(Laid, DumpReaderContract):
    descriptor = READERS["npz"]
    sides = ("rollout", "training")

    def write_sample(self, folder: Path) -> Path:
        np.savez_compressed(folder / "dump.npz", **self.layouts.canonical())
        return folder / "dump.npz"


class TestParquet(Laid, DumpReaderContract):
    descriptor = READERS["parquet"]
    sides = ("rollout", "training")

    def write_sample(self, folder: Path) -> Path:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        columns = self.layouts.expected(*self.sides)
        parquet.write_table(arrow.table(columns), folder / "dump.parquet", row_group_size=3)
        return folder / "dump.parquet"


def test_every_reader_that_reads_has_a_contract() -> None:
    """Failing means that a reader was added without the kit; the refusing ones and folders have tests of their own."""
    held = {item.descriptor.name for item in globals().values() if _is_contract(item)}
    assert {name for name in READERS if not name.startswith("refused-")} - held == {"frozen"}


def _is_contract(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, DumpReaderContract) and item is not DumpReaderContract


def test_every_sample_is_recognised_by_one_reader(tmp_path: Path, layouts: Any, manager: PluginManager) -> None:
    """Failing means that a person must name the format of a file that says what it is."""
    from xcfg.flow.dumps import choose_reader

    found = {}
    for name, item in list(globals().items()):
        if _is_contract(item):
            folder = tmp_path / name
            folder.mkdir()
            case = item()
            case.layouts = layouts
            found[name] = (item.descriptor.name, choose_reader(case.write_sample(folder), manager, None)[0])
    assert len(found) == 10
    assert all(wanted == chosen for wanted, chosen in found.values()), found
