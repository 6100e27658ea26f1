"""The source digest: of every file, of nothing else, without an import."""

from __future__ import annotations

import hashlib
import sys

import pytest
from xcfg.errors import PluginError
from xcfg.operators import package_source_digest


def test_hand_computed(kernels):
    """If this fails, the digest is not the documented one and cannot be recomputed by a third party."""
    expected = hashlib.sha256()
    for name in ("__init__.py", "ops.py"):
        data = (kernels / name).read_bytes()
        expected.update(name.encode() + b"\0" + len(data).to_bytes(8, "little") + data)
    assert package_source_digest("throwaway_kernels.ops") == expected.hexdigest()
    assert "throwaway_kernels" not in sys.modules


def test_any_source_change_changes_it(kernels):
    """If this fails, an edited kernel resumes the scores of the old one."""
    seen = {package_source_digest("throwaway_kernels")}
    (kernels / "deep").mkdir()
    (kernels / "deep" / "new.py").write_text("x = 1\n")
    seen.add(package_source_digest("throwaway_kernels"))
    (kernels / "deep" / "new.py").write_text("x = 2\n")
    seen.add(package_source_digest("throwaway_kernels"))
    (kernels / "deep" / "new.py").rename(kernels / "deep" / "old.py")
    seen.add(package_source_digest("throwaway_kernels"))
    assert len(seen) == 4


def test_other_files_do_not_count(kernels):
    """If this fails, a byte-compiled cache changes the scoring key."""
    before = package_source_digest("throwaway_kernels")
    (kernels / "__pycache__").mkdir()
    (kernels / "__pycache__" / "ops.cpython-311.pyc").write_bytes(b"x")
    (kernels / "notes.txt").write_text("x")
    assert package_source_digest("throwaway_kernels") == before


def test_a_package_that_fails_on_import(kernels):
    """If this fails, a digest needs the heavy engine that the package imports."""
    (kernels / "__init__.py").write_text("raise RuntimeError('imported')\n")
    assert len(package_source_digest("throwaway_kernels.ops")) == 64


def test_a_single_module(tmp_path, monkeypatch):
    """If this fails, a one-file distribution has no digest."""
    (tmp_path / "throwaway_single.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = package_source_digest("throwaway_single")
    (tmp_path / "throwaway_single.py").write_text("x = 2\n")
    assert package_source_digest("throwaway_single") != first
    assert "throwaway_single" not in sys.modules


@pytest.mark.parametrize("name", ["there_is_no_such_package", "", "sys"])
def test_nothing_to_read_is_an_error(name):
    """If this fails, the digest of nothing stands for a package."""
    with pytest.raises(PluginError, match="no Python source"):
        package_source_digest(name)
