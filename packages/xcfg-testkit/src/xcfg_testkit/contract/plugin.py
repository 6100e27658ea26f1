"""What a plugin module must fulfil: found by its entry point, light, with known hooks and valid records."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any, ClassVar

import msgspec
import pluggy
from xcfg.errors import MissingDependencyError
from xcfg.plugin import (
    PROJECT,
    CommandProvider,
    DebugMatrix,
    DumpReaderDescriptor,
    Profile,
    RendererDescriptor,
    SignatureDescriptor,
    spec,
)
from xcfg.plugin.operators import load_factory, split_factory
from xcfg.schema.arguments import ArgumentTable
from xcfg.schema.codec import decode_json, pretty_json
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import CheckpointDescriptor, RuntimeDescriptor

from xcfg_testkit.contract.guard import Contract

RECORDS: dict[str, type[msgspec.Struct]] = {
    "xcfg_knobs": KnobDefinition,
    "xcfg_operator_backends": OperatorBackendDescriptor,
    "xcfg_runtimes": RuntimeDescriptor,
    "xcfg_checkpoints": CheckpointDescriptor,
    "xcfg_debug_matrices": DebugMatrix,
    "xcfg_renderers": RendererDescriptor,
    "xcfg_dump_readers": DumpReaderDescriptor,
    "xcfg_signatures": SignatureDescriptor,
    "xcfg_profiles": Profile,
    "xcfg_commands": CommandProvider,
}
HEAVY = ("torch", "transformers", "vllm", "megatron", "transformer_engine", "triton", "jax", "tensorflow", "ray")
FACTORIES = ("factory", "adapter", "placement")


class PluginContract(Contract):
    """Give `module`, e.g. "my_kernel.plugin". entry_point: its name in the group `xcfg`, once it is installed.

    factories_importable: whether the engine behind the factories is installed where the tests run.
    """

    needs = ("module",)
    module: ClassVar[str]
    entry_point: ClassVar[str] = ""
    factories_importable: ClassVar[bool] = True

    def manager(self) -> pluggy.PluginManager:
        """Return a manager with only this plugin."""
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(spec)
        manager.register(importlib.import_module(self.module))
        return manager

    def records(self) -> list[tuple[str, Any]]:
        """Return (hook, record) for everything that the plugin registers."""
        manager = self.manager()
        return [(name, record) for name in RECORDS for records in getattr(manager.hook, name)() for record in records]

    def test_it_is_light(self) -> None:
        """Failing means that `xcfg --help` waits for an engine. Import it inside the factory, not in the plugin."""
        code = f"import {self.module}, sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stdout.strip(), f"importing {self.module} also imports {done.stdout.strip()}"

    def test_argument_tables_hold_together(self) -> None:
        """Failing means that `xcfg doctor` starts an engine to read a table, or reads a trap that can never fire."""
        for _, record in self.records():
            reference = getattr(record, "arguments", "")
            if not reference:
                continue
            module, _, attribute = reference.partition(":")
            code = f"import sys; from {module} import {attribute} as table; table(); "
            code += f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert not done.stdout.strip(), f"reading {reference} also imports {done.stdout.strip()}"
            table = getattr(importlib.import_module(module), attribute)()
            assert isinstance(table, ArgumentTable), f"{reference} returned {type(table).__name__}"
            flags = [flag for argument in table.arguments for flag in argument.flags]
            assert len(flags) == len(set(flags)), "one spelling stands for two arguments"
            odd = [flag for flag in flags if flag.startswith("-") or ("_" in flag and not flag.isupper())]
            assert not odd, f"{odd}: no leading dashes, hyphens for underscores"
            for trap in table.traps:
                assert trap.when, f"the trap {trap.name!r} waits for nothing"
                unknown = {condition.flag for condition in trap.when} - set(flags)
                assert not unknown, f"the trap {trap.name!r} waits for {unknown}"
                assert trap.happens, f"the trap {trap.name!r} does not say what happens"
                assert trap.source, f"the trap {trap.name!r} does not say where it was seen"

    def test_hooks_are_known(self) -> None:
        """Failing means a misspelt hook, or one with other arguments, that would never be called."""
        self.manager().check_pending()
        module = importlib.import_module(self.module)
        unmarked = [
            name
            for name in vars(module)
            if name.startswith("xcfg_") and callable(getattr(module, name)) and not _is_marked(module, name)
        ]
        assert not unmarked, f"{unmarked} look like hooks and lack @hookimpl"

    def test_hooks_return_tuples_of_records(self) -> None:
        """Failing means that the loader cannot read what a hook returns. Return a tuple of the documented record."""
        manager = self.manager()
        for name, kind in RECORDS.items():
            for records in getattr(manager.hook, name)():
                assert isinstance(records, tuple), f"{name} returned {type(records).__name__}"
                wrong = [record for record in records if not isinstance(record, kind)]
                assert not wrong, f"{name} returned {wrong}"

    def test_it_registers_something(self) -> None:
        """Failing means a plugin that adds nothing, over which the other tests hold emptily."""
        observes = [
            name for name in ("xcfg_before_case", "xcfg_after_case", "xcfg_after_run") if hasattr(self._module(), name)
        ]
        assert self.records() or observes

    def test_ids_are_unique(self) -> None:
        """Failing means that the plugin conflicts with itself. Give each record its own id and aliases."""
        seen: set[tuple[str, ...]] = set()
        for hook, record in self.records():
            for key in _ids(hook, record):
                assert key not in seen, f"{key} stands twice"
                seen.add(key)

    def test_records_survive_json(self) -> None:
        """Failing means that a record cannot be stored or sent to a worker. Use plain JSON values in it."""
        for _, record in self.records():
            assert decode_json(pretty_json(record), type(record)) == record

    def test_factories_name_what_exists(self) -> None:
        """Failing means that a record points at a module or name that is not there. Fix the `module:attr` string."""
        for _, record in self.records():
            for factory in [getattr(record, name, "") for name in FACTORIES]:
                if not factory:
                    continue
                module, _ = split_factory(factory)
                assert importlib.util.find_spec(module.partition(".")[0]), f"{factory}: no such package"
                if self.factories_importable:
                    try:
                        load_factory(factory)
                    except MissingDependencyError:  # an extra that this environment lacks: the module must be there
                        assert importlib.util.find_spec(module), f"{factory}: no such module"

    def test_the_entry_point(self) -> None:
        """Failing means that xcfg does not find the plugin after pip install. Check [project.entry-points.xcfg]."""
        if not self.entry_point:
            return
        found = {point.name: point.value for point in entry_points(group=PROJECT)}
        assert found.get(self.entry_point) == self.module, f"the group {PROJECT} holds {sorted(found)}"

    def _module(self) -> Any:
        return importlib.import_module(self.module)


def _is_marked(module: Any, name: str) -> bool:
    return getattr(getattr(module, name), f"{PROJECT}_impl", None) is not None


def _ids(hook: str, record: Any) -> list[tuple[str, ...]]:
    if hook == "xcfg_operator_backends":
        return [(hook, record.operation, name) for name in (record.backend_id, *record.aliases)]
    return [(hook, record.module if hook == "xcfg_debug_matrices" else record.name)]
