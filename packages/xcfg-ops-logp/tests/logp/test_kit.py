"""The conformance kit on this package: the same tests that a third party runs."""

from __future__ import annotations

from typing import ClassVar

import pytest
from xcfg_ops_logp.plugin import REFERENCE
from xcfg_ops_logp.torch_backends import FIXED_POINT, GATHERED, PARTIALS, REDUCED, REFERENCE_FLOAT32, SLIME, TREE
from xcfg_testkit import PluginContract, SelectedLogprobContract


class TestPlugin(PluginContract):
    """The module, its hook and its records."""

    module = "xcfg_ops_logp.plugin"
    entry_point = "ops-logp"


class TestReference(SelectedLogprobContract):
    """Every declared dtype and claim of the reference, bounded by the precision of float64."""

    descriptor = REFERENCE
    compute_dtype = "float64"


class TestReferenceFloat32(SelectedLogprobContract):
    """The same arithmetic in float32."""

    descriptor = REFERENCE_FLOAT32


class Sharded(SelectedLogprobContract):
    """A backend that the kit splits over ranks itself."""

    __test__ = False
    long_vocabulary: ClassVar[int] = 16_411


class TestTree(Sharded):
    """The tp-invariant tree."""

    __test__ = True
    descriptor = TREE
    peers: ClassVar[dict[str, str]] = {GATHERED.backend_id: GATHERED.factory}


class TestGathered(Sharded):
    """All logits on every rank."""

    __test__ = True
    descriptor = GATHERED
    peers: ClassVar[dict[str, str]] = {TREE.backend_id: TREE.factory}


class TestPartials(Sharded):
    """Tiles in their order."""

    __test__ = True
    descriptor = PARTIALS


class TestReduced(Sharded):
    """The library's all-reduce."""

    __test__ = True
    descriptor = REDUCED


class TestFixedPoint(Sharded):
    """The integer oracle."""

    __test__ = True
    descriptor = FIXED_POINT


class TestSlime(Sharded):
    """Slime's formula."""

    __test__ = True
    descriptor = SLIME


@pytest.mark.parametrize(
    ("contract", "claim"),
    [
        (TestReduced, "tp-invariant"),
        (TestReduced, "batch-invariant"),
        (TestSlime, "tp-invariant"),
        (TestPartials, "tp-invariant"),
    ],
)
def test_a_claim_that_is_not_made_would_be_refuted(contract, claim):
    """If this fails, the kit believes what these backends do not keep: a library's order, or tiles that shards cut."""
    assert claim not in contract.descriptor.properties
    assert contract().over_ranks()[claim]
