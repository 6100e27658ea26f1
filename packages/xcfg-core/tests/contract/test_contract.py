"""The packaged contract: its figures, its digest, and that nothing malformed can take its place."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import pytest
from xcfg.contract import available, load_contract, loader
from xcfg.errors import ConfigError
from xcfg.schema.codec import digest

DIGEST = "787238862f406a303dff89c434037ca3d4c4669d6cf8b17ede02de3e861f98b0"


def document() -> dict[str, Any]:
    return json.loads((files("xcfg.contract") / "ws1-c1-v2.json").read_bytes())


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(change: Any) -> None:
        broken = copy.deepcopy(document())
        change(broken)
        monkeypatch.setattr(loader, "_documents", lambda: (broken,))

    return install


def test_current_is_the_packaged_version_and_its_digest_is_fixed() -> None:
    contract = load_contract()
    assert (contract.source, contract.version) == ("ws1", "ws1-c1-v2")
    assert contract == load_contract("ws1", "ws1-c1-v2")
    assert contract.digest == digest(document()) == DIGEST, "the contract changed: give it a new version"
    assert (contract.ref.source, contract.ref.version, contract.ref.digest) == ("ws1", "ws1-c1-v2", DIGEST)
    assert available() == (("ws1", "ws1-c1-v2"),)


@pytest.mark.parametrize(
    ("first", "second", "limit"),
    [
        ("float32", "float32", 1e-5),
        ("float64", "float64", 1e-5),
        ("float64", "float32", 1e-5),
        ("float16", "float32", 5e-3),
        ("bfloat16", "float16", 6e-2),
        ("float16", "bfloat16", 6e-2),
        ("bfloat16", "float64", 6e-2),
        ("fp8", "bfloat16", None),
        ("bfloat16", "float8_e4m3fn", None),
        ("int8", "int8", None),
        ("", "bfloat16", None),
        ("bf16", "bfloat16", None),
    ],
)
def test_threshold_is_the_coarser_entry(first: str, second: str, limit: float | None) -> None:
    assert load_contract().threshold(first, second) == limit


def test_every_figure_names_its_source_and_provenance() -> None:
    contract = load_contract()
    for classes in (contract.accuracy.default, contract.accuracy.gradients):
        assert set(classes) == {"elementwise", "reduction", "attention", "logprob"}
        for entries in classes.values():
            assert set(entries) == {"float32", "float16", "bfloat16"}
            assert all(entry.source and entry.provenance for entry in entries.values())
    assert "27 active tokens" in contract.accuracy.default["logprob"]["bfloat16"].provenance
    assert all(entry.rtol == 0 for entry in contract.accuracy.default["logprob"].values())
    assert (contract.invariance.atol, contract.invariance.rtol) == (0, 0)
    assert (contract.clip_range.low, contract.clip_range.high) == (0.8, 1.2)
    rule = contract.assessment
    assert (rule.ratio, rule.bias) == (1.5, 0.25)
    assert set(rule.provenance) == {"ratio", "bias", "resamples", "level", "seed", "min_sequences"}


def test_the_published_table_is_taken_over() -> None:
    contract = load_contract()
    bf16 = {name: (entry["bfloat16"].atol, entry["bfloat16"].rtol) for name, entry in contract.accuracy.default.items()}
    assert bf16 == {
        "elementwise": (2e-2, 1.6e-2),
        "reduction": (5e-2, 2e-2),
        "attention": (5e-2, 2e-2),
        "logprob": (6e-2, 0),
    }
    assert contract.accuracy.gradients["reduction"]["bfloat16"].atol == 1e-1
    assert contract.accuracy.gradients["logprob"]["bfloat16"].atol == 5e-2
    assert contract.chain["approx_kl0"].limits == {"float32": 1e-5, "float16": 5e-3, "bfloat16": 5e-2}


@pytest.mark.parametrize(("source", "version"), [("ws2", "current"), ("ws1", "ws1-c1-v3"), ("", ""), ("ws1", "../x")])
def test_an_unknown_contract_names_what_exists(source: str, version: str) -> None:
    with pytest.raises(ConfigError, match="no numerical contract") as caught:
        load_contract(source, version)
    assert "ws1 ws1-c1-v2" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.update(extra=1), "unknown field"),
        (lambda d: d.pop("invariance"), "missing required field"),
        (lambda d: d.update(digest="0"), "its own digest"),
        (lambda d: d["accuracy"]["default"]["logprob"]["bfloat16"].update(atol=0), "positive atol"),
        (lambda d: d["accuracy"]["default"]["logprob"]["bfloat16"].update(atol=-1.0), "positive atol"),
        (lambda d: d["accuracy"]["default"]["logprob"]["bfloat16"].update(rtol=0.1), "rtol 0"),
        (lambda d: d["accuracy"]["default"]["logprob"]["bfloat16"].update(atol="6e-2"), "float"),
        (lambda d: d["accuracy"]["default"].pop("logprob"), "logprob is missing"),
        (lambda d: d["accuracy"]["gradients"]["reduction"]["float32"].update(rtol=-1.0), "negative"),
        (lambda d: d["clip_range"].update(low=1.1), "enclose 1"),
        (lambda d: d["assessment"].update(ratio=0.9), "ratio > 1"),
        (lambda d: d["assessment"].update(resamples=0), "at least 1 resample"),
        (lambda d: d["descriptive"].update(probability_edges=[]), "must rise"),
        (lambda d: d["descriptive"].update(probability_edges=[0.5, 0.1]), "must rise"),
        (lambda d: d.update(schema_version="v0"), "unknown schema_version"),
    ],
)
def test_a_damaged_file_is_refused(damaged: Any, change: Any, text: str) -> None:
    damaged(change)
    with pytest.raises(ConfigError, match=text):
        load_contract()


def test_a_contract_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        load_contract().accuracy.default["logprob"]["bfloat16"].atol = 1.0  # type: ignore[misc]
