"""Effective weights: a digest per logical tensor and rank, against the checkpoint in the compute dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xcfg.schema.worker import BuildReport, WeightReport

SHOWN = 3


def weight_errors(expected: Mapping[str, str] | None, builds: Sequence[BuildReport]) -> Iterator[str]:
    """Yield every violation: no weights attested, tensors that differ, are missing, or are not expected.

    A tensor that shares storage with another (tied embeddings) may be missing or extra under its alias. The
    union over ranks must cover the checkpoint, since a pipeline rank holds only its own layers.
    """
    if not builds:
        yield "no rank reported its build, so no weights are attested"
        return
    digests = []
    for build in builds:
        if build.weights is None:
            yield f"rank {build.rank} attests to no weights"
        elif build.weights.method == "digest":
            digests.append((build.rank, build.weights))
        elif build.weights.method != "probe":
            yield f"rank {build.rank} attests to weights by an unknown method {build.weights.method!r}"
        elif not build.weights.tensors:
            yield f"rank {build.rank} attests to its weights by a probe and reports no product of it"
    if not digests:
        return
    if expected is None:
        yield "the checkpoint's tensor digests are not known, so the effective weights cannot be checked"
        return
    for rank, report in digests:
        yield from _rank_errors(rank, report, expected)
    yield from _missing(expected, [report for _, report in digests])


def _rank_errors(rank: int, report: WeightReport, expected: Mapping[str, str]) -> Iterator[str]:
    differing = sorted(name for name, digest in report.tensors.items() if expected.get(name, digest) != digest)
    if differing:
        yield f"rank {rank}: weights differ from the checkpoint cast to {report.dtype}: {_names(differing)}"
    extra = sorted(name for name in report.tensors if name not in expected and report.aliases.get(name) not in expected)
    if extra:
        yield f"rank {rank}: weights that the checkpoint does not have: {_names(extra)}"
    aliased = sorted(
        name
        for name, target in report.aliases.items()
        if name in report.tensors and name not in expected and report.tensors[name] != expected.get(target)
        if target in expected
    )
    if aliased:
        yield f"rank {rank}: aliases differ from the tensor they share storage with: {_names(aliased)}"


def _missing(expected: Mapping[str, str], reports: Sequence[WeightReport]) -> Iterator[str]:
    present = {name for report in reports for name in report.tensors}
    aliases = {name: target for report in reports for name, target in report.aliases.items()}
    missing = []
    for name in sorted(set(expected) - present):
        target = aliases.get(name)
        if target is None or target not in present or expected.get(target, expected[name]) != expected[name]:
            missing.append(name)
    if missing:
        yield f"no rank holds the checkpoint's weights: {_names(missing)}"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
