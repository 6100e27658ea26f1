"""What metadata says of engines, on distributions that exist only as a dist-info folder."""

from __future__ import annotations

import pytest
from xcfg.runtime.installed import clashes, engines
from xcfg.schema.runtime import Incompatible, RuntimeDescriptor


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Put distributions on the path: installed("name", "1.0", "other<2", ...)."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name, version, *requires):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (folder / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires), ""]))

    return make


def runtime(*requires, incompatible=()):
    return RuntimeDescriptor(
        name="r", summary="", adapter="a:b", placement="a:b", arms={}, requires=requires, incompatible=incompatible
    )


def test_of_alternatives_the_installed_one_counts(installed):
    installed("xcfg-kit-two", "2.1")
    (found,) = engines(runtime("xcfg-kit-one>=1 | xcfg-kit-two>=2,<3"))
    assert (found.distribution, found.version, found.fits) == ("xcfg-kit-two", "2.1", True)


@pytest.mark.parametrize(("there", "version", "fits"), [(None, "", False), ("1.9", "1.9", False), ("2.0", "2.0", True)])
def test_an_engine_outside_its_range_does_not_fit(installed, there, version, fits):
    """Failing means that an unsupported engine is called usable."""
    if there:
        installed("xcfg-kit-one", there)
    (found,) = engines(runtime("xcfg-kit-one>=2"))
    assert (found.version, found.fits) == (version, fits)


def test_a_requirement_that_the_environment_violates_is_a_clash(installed):
    """Failing means that an engine runs on a version it excludes and nobody is told."""
    installed("xcfg-kit-one", "1.0", "xcfg-kit-lib<5", "xcfg-kit-absent>=1", 'xcfg-kit-lib<1; extra == "more"')
    installed("xcfg-kit-lib", "5.16.1")
    (found,) = clashes([runtime("xcfg-kit-one>=1")])
    assert (found.package, found.other, found.installed) == ("xcfg-kit-one 1.0", "xcfg-kit-lib 5.16.1", True)
    assert found.reason == "it asks for xcfg-kit-lib<5"


def test_metadata_that_is_no_requirement_is_passed_over(installed):
    installed("xcfg-kit-one", "1.0", "not a requirement !!", "xcfg-kit-lib<5")
    installed("xcfg-kit-lib", "4.0")
    assert clashes([runtime("xcfg-kit-one>=1", "also not one !!")]) == ()


def test_a_declared_pair_is_broken_only_where_both_are_here(installed):
    """Failing means that doctor cries about packages that are not installed, or is silent when they are."""
    pair = Incompatible(package="xcfg-kit-one==1.0", other="xcfg-kit-lib>=5", reason="why", source="where")
    (warning,) = clashes([runtime(incompatible=(pair,))])
    assert (warning.installed, warning.reason, warning.source) == (False, "why", "where")
    installed("xcfg-kit-one", "1.0")
    assert not clashes([runtime(incompatible=(pair,))])[0].installed
    installed("xcfg-kit-lib", "5.1")
    assert clashes([runtime(incompatible=(pair, pair))]) == (
        type(warning)(package=pair.package, other=pair.other, reason="why", installed=True, source="where"),
    )
