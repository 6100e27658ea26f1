"""What a contract must fulfil by itself, before it is compared with another one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from xcfg.binding import OPERATOR, Bound, Stated, bind, declared_by
from xcfg.errors import ConfigError, IdentityError
from xcfg.schema import codec

from xcfg_ops_logp.contract.shards import ShardMap, real_shards, tiled
from xcfg_ops_logp.contract.specs import CHAIN, LogProbContract, VocabSpec


def contract_faults(contract: LogProbContract) -> tuple[str, ...]:
    """Return what a contract says of itself that cannot be; what it does not say is no fault here.

    Checked: the type of each field, and where they are right, sizes of the vocabulary, exact tiling of real and padded
    ids by the shard maps, one owner of each id, as many shards as ranks, an ignored id that is no real one, the
    temperature against the chain.
    """
    try:
        codec.convert(codec.plain(contract), LogProbContract)
    except ConfigError as error:
        return (str(error),)
    return (*_vocabulary(contract.vocab), *_sharding(contract), *_meaning(contract))


def bind_logprob(
    first: LogProbContract | Stated,
    second: LogProbContract | Stated,
    *,
    scope: str = OPERATOR,
    knobs: Collection[str] = (),
) -> Bound:
    """Return what two contracts allow; `knobs` are the paths that the experiment varies, which declares their fields.

    Raises IdentityError for a contract that contradicts itself, with every contradiction.
    """
    for item, which in ((first, "first"), (second, "second")):
        contract = item.contract if isinstance(item, Stated) else item
        faults = contract_faults(contract) if isinstance(contract, LogProbContract) else ()
        if faults:
            who = (item.holder if isinstance(item, Stated) else "") or f"the {which} side"
            raise IdentityError(
                f"the contract of {who} contradicts itself: {'; '.join(faults)}",
                hint="Nothing is compared until each side's own values fit together.",
            )
    return bind(first, second, scope=scope, declared=declared_by(LogProbContract, knobs))


def vocab_of(mechanism: Mapping[str, Any]) -> VocabSpec:
    """Return the vocabulary that a score reports in mechanism["vocabulary"]; unknown fields stay None."""
    said = mechanism.get("vocabulary")
    said = said if isinstance(said, Mapping) else {}
    real, padded = (said.get(name) if type(said.get(name)) is int else None for name in ("real", "padded"))
    policy = said.get("policy")
    pads = None if real is None or padded is None else padded - real
    return VocabSpec(
        org_vocab_size=real,
        padded_vocab_size=padded,
        num_pad_rows=pads,
        vocab_padding_policy=policy if policy in ("include", "mask") else None,
    )


def _vocabulary(vocab: VocabSpec) -> list[str]:
    org, padded, pads = vocab.org_vocab_size, vocab.padded_vocab_size, vocab.num_pad_rows
    faults = []
    if org is not None and org < 1:
        faults.append(f"vocab.org_vocab_size is {org}")
    if org is not None and padded is not None and padded < org:
        faults.append(f"vocab.padded_vocab_size {padded} is smaller than vocab.org_vocab_size {org}")
    if None not in (org, padded, pads) and pads != padded - org:  # type: ignore[operator]
        faults.append(f"vocab.num_pad_rows is {pads}, and {padded} columns hold {org} ids")
    return faults


def _sharding(contract: LogProbContract) -> list[str]:
    vocab, sharding = contract.vocab, contract.sharding
    real, padded = sharding.vocab_shard_map, sharding.padded_shard_map
    faults = _tiling("sharding.vocab_shard_map", real, "vocab.org_vocab_size", vocab.org_vocab_size)
    faults += _tiling("sharding.padded_shard_map", padded, "vocab.padded_vocab_size", vocab.padded_vocab_size)
    if real and padded and vocab.org_vocab_size and not faults and real_shards(padded, vocab.org_vocab_size) != real:
        faults.append(f"sharding.vocab_shard_map {list(real)} is not the real part of {list(padded)}")
    ranks = contract.capability.tp_size
    if real is not None and ranks is not None and len(real) != ranks:
        faults.append(f"sharding.vocab_shard_map has {len(real)} shards for capability.tp_size {ranks}")
    return faults


def _tiling(name: str, shards: ShardMap | None, size_name: str, size: int | None) -> list[str]:
    if shards is None:
        return []
    domain = tiled(shards)
    if domain is None:
        return [f"{name} {list(shards)} leaves a gap, or gives an id two owners"]
    if size is not None and domain[1] != size:
        return [f"{name} tiles [0, {domain[1]}), and {size_name} is {size}"]
    return []


def _meaning(contract: LogProbContract) -> list[str]:
    org, ignored = contract.vocab.org_vocab_size, contract.gather.ignore_index
    faults = []
    if isinstance(ignored, int) and org is not None and 0 <= ignored < org:
        faults.append(f"gather.ignore_index {ignored} is a real id of {org}")
    chain, applied = contract.transform.transform_chain, contract.transform.temperature_applied
    if chain is not None and applied is not None:
        temperatures = [value for name, value in CHAIN(chain) if name == "temperature"]  # type: ignore[attr-defined]
        if temperatures != ([] if applied == 1 else [applied]):
            faults.append(f"transform.temperature_applied is {applied}, transform.transform_chain {list(chain)}")
    return faults
