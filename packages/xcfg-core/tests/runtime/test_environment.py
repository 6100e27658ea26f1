"""Facts behind a key: all that may change a number, and nothing that names a machine or a person."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import xcfg
from xcfg.running import external
from xcfg.runtime import environment
from xcfg.runtime.environment import WORKER_ROOMS, forget_environment, package_digest, scoring_environment
from xcfg.runtime.keys import COMPARATOR_ROOMS


@pytest.fixture
def package(tmp_path, monkeypatch):
    """package({"kit_env/__init__.py": "..."}) writes sources and forgets what was cached."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        package_digest.cache_clear()
        sys.path_importer_cache.pop(str(tmp_path), None)

    yield write
    package_digest.cache_clear()


def digest_by_hand(files: dict[str, str]) -> str:
    state = hashlib.sha256()
    for name in sorted(files, key=Path):
        state.update(name.encode() + b"\0" + hashlib.sha256(files[name].encode()).digest())
    return state.hexdigest()


def test_the_digest_of_a_package_by_hand(package):
    package({"kit_env/__init__.py": "a = 1", "kit_env/b.py": "", "kit_env/sub/c.py": "c", "kit_env/data.json": "{}"})
    expected = digest_by_hand({"__init__.py": "a = 1", "b.py": "", "sub/c.py": "c"})
    assert package_digest("kit_env") == expected
    assert package_digest("kit_env.sub.c") == expected  # the whole distribution counts, not the one module
    assert "kit_env" not in sys.modules


@pytest.mark.parametrize(
    "change",
    [
        {"kit_env/b.py": "b = 2"},
        {"kit_env/new.py": ""},
        {"kit_env/sub/c.py": "c "},
        {"kit_env/__init__.py": "a = 1\n"},
    ],
)
def test_any_changed_source_changes_the_digest(change, package):
    package({"kit_env/__init__.py": "a = 1", "kit_env/b.py": "b = 1", "kit_env/sub/c.py": "c"})
    before = package_digest("kit_env")
    package(change)
    assert package_digest("kit_env") != before


def test_a_moved_source_changes_the_digest_and_a_data_file_does_not(package, tmp_path):
    package({"kit_env/__init__.py": "", "kit_env/b.py": "b"})
    before = package_digest("kit_env")
    package({"kit_env/notes.txt": "n", "kit_env/__pycache__/b.pyc": "x"})
    assert package_digest("kit_env") == before
    (tmp_path / "kit_env/b.py").rename(tmp_path / "kit_env/c.py")
    package({})
    assert package_digest("kit_env") != before


def test_a_package_of_one_module(package):
    package({"kit_single.py": "x = 1", "unrelated.py": "y"})
    assert package_digest("kit_single") == digest_by_hand({"kit_single.py": "x = 1"})
    before = package_digest("kit_single")
    package({"unrelated.py": "z"})
    assert package_digest("kit_single") == before
    package({"kit_single.py": "x = 2"})
    assert package_digest("kit_single") != before


def test_a_package_without_init_is_not_overlooked(package):
    package({"kit_space/a.py": "1"})
    before = package_digest("kit_space")
    assert before == digest_by_hand({"a.py": "1"})
    package({"kit_space/a.py": "2"})
    assert package_digest("kit_space") not in ("", before)


def test_rooms_take_only_what_they_name(package):
    files = {
        "kit_env/__init__.py": "",
        "kit_env/a/x.py": "x",
        "kit_env/a/deep/y.py": "y",
        "kit_env/b/z.py": "z",
        "kit_env/c.py": "c",
    }
    package(files)
    rooms = ("a", "c.py")
    assert package_digest("kit_env", rooms) == digest_by_hand({"a/x.py": "x", "a/deep/y.py": "y", "c.py": "c"})
    before = package_digest("kit_env", rooms)
    package({"kit_env/b/z.py": "other", "kit_env/__init__.py": "other"})
    assert package_digest("kit_env", rooms) == before
    package({"kit_env/a/deep/y.py": "other"})
    assert package_digest("kit_env", rooms) != before


def test_what_is_not_installed_has_no_digest():
    assert package_digest("kit_nowhere_to_be_found") == ""


@pytest.mark.parametrize("room", [*WORKER_ROOMS, *COMPARATOR_ROOMS])
def test_every_room_behind_a_key_exists(room):
    """A room that was renamed would silently leave the key."""
    place = Path(xcfg.__file__).parent / room
    assert place.is_file() or list(place.glob("*.py"))


@pytest.fixture
def variables(monkeypatch):
    """variables(NAME=value): the environment facts where these are all the variables there are."""

    def facts(**values: str) -> dict[str, str]:
        monkeypatch.setattr(environment.os, "environ", values)
        found = scoring_environment(sources=(), devices=("cuda:0",))
        monkeypatch.undo()
        return {name: value for name, value in found.items() if name.startswith("env:")}

    return facts


def test_only_allow_listed_variables_are_facts(variables):
    known = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "", "VLLM_BATCH_INVARIANT": "1", "NVTE_FLASH_ATTN": "0"}
    strangers = {"KIT_OPTION": "1", "HOSTNAME": "h", "USER": "u", "NCCL_SOCKET_IFNAME": "eth0", "MASTER_ADDR": "h"}
    assert variables(**known, **strangers) == {f"env:{name}": value for name, value in known.items()}
    assert variables() == {}


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_API_KEY",
        "VLLM_HOST_IP",
        "VLLM_DP_MASTER_IP",
        "VLLM_CACHE_ROOT",
        "TORCH_HOME",
        "TRITON_CACHE_DIR",
        "TRITON_PTXAS_PATH",
        "PYTORCH_KIT_TOKEN",
        "PYTORCH_KIT_URL",
        "XLA_KIT_SECRET",
        "OMP_KIT_PASSWORD",
    ],
)
def test_what_names_a_place_or_opens_one_is_no_fact(name, variables):
    assert variables(**{name: "hunter2"}) == {}


def test_no_machine_and_no_person_is_a_fact(monkeypatch):
    names = ["kit-host-name", "kit-user", "/kit/home"]
    monkeypatch.setattr(socket, "gethostname", lambda: names[0])
    monkeypatch.setattr(platform, "node", lambda: names[0])
    for variable, value in (("HOSTNAME", names[0]), ("USER", names[1]), ("LOGNAME", names[1]), ("HOME", names[2])):
        monkeypatch.setenv(variable, value)
    facts = repr(scoring_environment(sources=("xcfg",), devices=("cpu", "cuda:0")))
    real = (os.uname().nodename, str(Path(xcfg.__file__).parent), os.getcwd())
    assert not any(name in facts for name in (*names, *real) if len(name) > 3)


def test_the_facts_are_flat_sorted_text():
    facts = scoring_environment(sources=("xcfg",), devices=("cpu",))
    assert list(facts) == sorted(facts)
    assert all(isinstance(value, str) for value in facts.values())
    assert facts["python"] == platform.python_version()
    assert facts["version:numpy"] == np.__version__
    assert facts["source:xcfg"] == package_digest("xcfg") != facts["source:xcfg.worker"]


def test_a_run_starts_with_the_sources_that_are_there_then(package, tmp_path):
    package({"kit_env/__init__.py": "1"})
    before = package_digest("kit_env")
    (tmp_path / "kit_env/__init__.py").write_text("2")
    assert package_digest("kit_env") == before  # within one run the answer stands
    forget_environment()
    assert package_digest("kit_env") != before


def test_a_source_changes_the_facts(package):
    package({"kit_env/__init__.py": "1"})
    before = scoring_environment(sources=("kit_env",), devices=("cpu",))
    package({"kit_env/__init__.py": "2"})
    after = scoring_environment(sources=("kit_env",), devices=("cpu",))
    assert {name for name in before if before[name] != after[name]} == {"source:kit_env"}


def test_a_device_is_described_by_its_kind(monkeypatch):
    monkeypatch.setattr(environment, "accelerator", lambda: {"model_and_driver": "Kit 9000, 1.2"})
    monkeypatch.setattr(environment, "processor", lambda: "kit cpu")
    cpu = scoring_environment(sources=(), devices=("cpu",))
    assert cpu["processor"] == "kit cpu" and not any(name.startswith("accelerator") for name in cpu)
    gpu = scoring_environment(sources=(), devices=("cuda:0",))
    assert gpu["accelerator:model_and_driver"] == "Kit 9000, 1.2" and "processor" not in gpu
    both = scoring_environment(sources=(), devices=("cuda:0", "cpu"))
    assert {"processor", "accelerator:model_and_driver"} <= set(both)
    assert scoring_environment(sources=(), devices=("cuda:1",)) == gpu


@pytest.fixture
def programs():
    """programs(*words): the facts about the words of a user's own command."""

    def facts(*words: str, **options: object) -> dict[str, str]:
        forget_environment()
        found = scoring_environment(sources=(), devices=("cuda:0",), programs=external.programs(words, options))
        return {name: value for name, value in found.items() if name.startswith("program:")}

    return facts


def test_a_program_is_its_bytes_and_not_its_place(programs, tmp_path):
    for folder, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "score.py").write_text(text)
    first, same, other = (programs("python", str(tmp_path / folder / "score.py")) for folder in "abc")
    assert first == same == {"program:1:score.py": digest_by_hand({"score.py": "1"})} != other


def test_two_programs_of_one_name_both_count(programs, tmp_path):
    words = []
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "score.py").write_text(folder)
        words.append(str(tmp_path / folder / "score.py"))
    before = programs(*words)
    (tmp_path / "a" / "score.py").write_text("changed")
    assert programs(*words) != before


def test_a_module_of_the_user_s_is_its_sources(programs, package):
    package({"kit_env/__init__.py": "1"})
    before = programs("kit_env.adapter:Mine")
    assert before == {"program:0:kit_env.adapter:Mine": digest_by_hand({"__init__.py": "1"})}
    package({"kit_env/__init__.py": "2"})
    assert programs("kit_env.adapter:Mine") != before


@pytest.mark.parametrize(
    "words",
    [
        ("torchrun", "--nproc-per-node", "2", "-m", "kit_env.score"),
        ("torchrun", "--module", "--nproc-per-node", "2", "kit_env.score", "--flag", "json"),
        ("python", "-um", "kit_env.score"),
        ("python", "-m", "torch.distributed.run", "-m", "kit_env"),
    ],
)
def test_an_edit_behind_a_module_flag_is_noticed(words, programs, package):
    """Failing means that a trainer is edited and the score of yesterday is taken for today's."""
    package({"kit_env/__init__.py": "", "kit_env/score.py": "1", "kit_env/losses.py": "1"})
    before = programs(*words)
    assert list(before.values()) == [digest_by_hand({"__init__.py": "", "score.py": "1", "losses.py": "1"})]
    package({"kit_env/losses.py": "2"})
    assert programs(*words).keys() == before.keys() and programs(*words) != before


def test_sources_are_files_folders_and_modules(programs, package, tmp_path):
    package({"kit_env/__init__.py": "1", "lib/a.py": "1", "lib/deep/b.py": "1", "lib/note.txt": "1", "conf.yaml": "1"})
    sources = [str(tmp_path / "conf.yaml"), str(tmp_path / "lib"), "kit_env"]
    before = programs("python", sources=sources)
    assert before == {
        "program:sources:0:conf.yaml": digest_by_hand({"conf.yaml": "1"}),
        "program:sources:1:lib": digest_by_hand({"a.py": "1", "deep/b.py": "1"}),
        "program:sources:2:kit_env": digest_by_hand({"__init__.py": "1"}),
    }
    for name, number in (("conf.yaml", 0), ("lib/deep/b.py", 1), ("kit_env/__init__.py", 2)):
        package({name: "2"})
        after = programs("python", sources=sources)
        assert [item for item in before if after[item] != before[item]] == [list(before)[number]]
        package({name: "1"})


@pytest.mark.parametrize("word", ["", "python", "-c", "x" * 5000, "a\0b", "--flag=1", "/no/such/file.py"])
def test_a_word_that_is_no_file_is_no_fact_and_no_crash(word, programs):
    assert programs(word) == {}
