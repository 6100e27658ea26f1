"""A reader of pickles that builds plain values and calls nothing.

What torch.save writes is a pickle of protocol 2. This machine knows the opcodes that dictionaries, lists, numbers,
text and arrays need; an array is kept as a description of where its bytes lie. It imports no name that a file
mentions: the few globals below are symbols with a meaning of their own, and any other is refused by name. That is
narrower than torch's restricted unpickler, and it reads a list of a million numbers into an array of its narrowest
dtype instead of a million objects, so that a dump of 10^7 tokens fits into memory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.errors import ArtifactError

from xcfg_dumps.plain import ArrayRef, Numbers, Symbol, TensorRef, Text, narrow

MAX_OBJECTS = 20_000_000
"""Containers, texts and single numbers of one file; runs of numbers count once."""
LONG_TEXT = 1 << 16
"""Bytes from which a text is kept where it lies."""
STORAGES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
}
GLOBALS = {
    "torch._utils _rebuild_tensor_v2",
    "torch Size",
    "collections OrderedDict",
    "_codecs encode",
    "numpy ndarray",
    "numpy dtype",
    "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray _reconstruct",
    "numpy.core.multiarray scalar",
    "numpy._core.multiarray scalar",
    *(f"torch {name}Storage" for name in STORAGES),
}
_INTS = re.compile(rb"(?:K[\s\S]|M[\s\S]{2}|J[\s\S]{4})++e")
_FLOATS = re.compile(rb"(?:G[\s\S]{8})++e")
_STRIDES = ((75, 2, "u1"), (77, 3, "<u2"), (74, 5, "<i4"))
_MALFORMED = (struct.error, IndexError, KeyError, TypeError, ValueError, OverflowError, UnicodeDecodeError)


def load(buffer: bytes | mmap, start: int, stop: int, where: str) -> Any:
    """Return the value pickled in buffer[start:stop]: dicts, Numbers, tuples, numbers, text and references.

    Raises ArtifactError for another opcode, another global (by its name), too many objects and malformed bytes.
    """
    machine = _Machine(buffer, start, stop, where)
    try:
        return machine.run()
    except _MALFORMED as error:
        raise ArtifactError(f"{where} has a malformed pickle at byte {machine.at - start}: {error}") from None


class _Machine:
    def __init__(self, buffer: bytes | mmap, start: int, stop: int, where: str) -> None:
        self.buffer, self.at, self.stop, self.where = buffer, start, stop, where
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.objects = 0

    def run(self) -> Any:
        handlers, buffer = _HANDLERS, self.buffer
        while True:
            if self.at >= self.stop:
                raise ValueError("it ends before its STOP")
            code = buffer[self.at]
            self.at += 1
            if code == 46:  # STOP
                return self.stack.pop()
            handler = handlers.get(code)
            if handler is None:
                raise ArtifactError(
                    f"{self.where}: the pickle opcode {bytes([code])!r} has no place in a dump; nothing was executed",
                    hint="torch.save writes protocol 2; this file holds objects or comes from another writer.",
                )
            handler(self)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        end = self.at + size
        if size < 0 or end > self.stop:
            raise ValueError(f"a length field asks for {size} bytes, {self.stop - self.at} are left")
        data = self.buffer[self.at : end]
        self.at = end
        return bytes(data)

    def push(self, value: Any) -> None:
        self.objects += 1
        if self.objects > MAX_OBJECTS:
            raise ArtifactError(f"{self.where} holds more than {MAX_OBJECTS} objects", hint="Split the dump.")
        self.stack.append(value)

    def popped(self) -> list[Any]:
        """Return what was pushed since the last mark."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def line(self) -> str:
        end = self.buffer.find(b"\n", self.at, min(self.stop, self.at + 1000))
        if end < 0:
            raise ValueError("a name without an end")
        text = bytes(self.buffer[self.at : end])
        self.at = end + 1
        return text.decode("utf-8")


def _mark(m: _Machine) -> None:
    m.marks.append(len(m.stack))
    below = m.stack[-1] if m.stack else None
    if type(below) is not Numbers:
        return
    for pattern, decode in ((_INTS, _ints), (_FLOATS, _floats)):
        found = pattern.match(m.buffer, m.at, m.stop)
        if found is not None:
            below.append(decode(found.group()[:-1]))
            m.at = found.end()
            m.marks.pop()
            m.objects += 1
            return


def _ints(run: bytes) -> NDArray[Any]:
    """Return the numbers of a run of BININT1, BININT2 and BININT in the narrowest dtype."""
    raw = np.frombuffer(run, dtype=np.uint8)
    for code, stride, dtype in _STRIDES:
        if len(raw) % stride == 0 and bool((raw[::stride] == code).all()):
            return np.ascontiguousarray(raw.reshape(-1, stride)[:, 1:]).view(dtype).reshape(-1)
    values, at, end = [], 0, len(run)
    while at < end:
        code = run[at]
        if code == 77:
            values.append(run[at + 1] | run[at + 2] << 8)
            at += 3
        elif code == 75:
            values.append(run[at + 1])
            at += 2
        else:
            values.append(int.from_bytes(run[at + 1 : at + 5], "little", signed=True))
            at += 5
    return np.array(values, dtype=np.int32)


def _floats(run: bytes) -> NDArray[Any]:
    """Return a run of BINFLOAT as float32 where that is exact, else float64."""
    raw = np.frombuffer(run, dtype=np.uint8).reshape(-1, 9)[:, 1:]
    return narrow(np.ascontiguousarray(raw).view(">f8").reshape(-1).astype(np.float64))


def _text(m: _Machine) -> None:
    size = int.from_bytes(m.take(4), "little")
    if size < LONG_TEXT:
        m.push(m.take(size).decode("utf-8", "surrogatepass"))
        return
    if size > m.stop - m.at:
        raise ValueError(f"a length field asks for {size} bytes, {m.stop - m.at} are left")
    m.push(Text(m.at, size))
    m.at += size


def _global(m: _Machine) -> None:
    name = f"{m.line()} {m.line()}"
    if name not in GLOBALS:
        raise ArtifactError(
            f"{m.where} names the global {name[:100]!r}; nothing of it was executed",
            hint="A dump holds tensors, arrays, numbers and text. Take this field out before the loop saves it, or "
            "write a frozen rollout with xcfg_dumps.capture.",
        )
    m.push(Symbol(name))


def _append(m: _Machine) -> None:
    value = m.stack.pop()
    _list(m.stack[-1]).append(value)


def _appends(m: _Machine) -> None:
    items = m.popped()
    _list(m.stack[-1]).extend(items)


def _list(value: Any) -> Numbers:
    if type(value) is not Numbers:
        raise TypeError("it appends to what is no list")
    return value


def _setitems(m: _Machine, items: list[Any]) -> None:
    target = m.stack[-1]
    if type(target) is not dict or len(items) % 2:
        raise TypeError("it sets items of what is no dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) not in (str, int, float, bool, type(None)):
            raise TypeError(f"a key is a {type(key).__name__}")
        target[key] = value


def _setitem(m: _Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _setitems(m, [key, value])


def _reduce(m: _Machine) -> None:
    arguments, function = m.stack.pop(), m.stack.pop()
    if not isinstance(function, Symbol) or type(arguments) is not tuple:
        raise TypeError("it calls what is no known global")
    m.push(_called(function.name, arguments))


def _called(name: str, arguments: tuple[Any, ...]) -> Any:
    """Return what a known global stands for with these arguments."""
    if name == "torch._utils _rebuild_tensor_v2":
        storage, offset, shape, strides = arguments[:4]
        _, kind, key, _, numel = storage
        dtype = STORAGES[kind.name.removeprefix("torch ").removesuffix("Storage")]
        return TensorRef(dtype, str(key), int(numel), int(offset), _sizes(shape), _sizes(strides))
    if name == "collections OrderedDict" and not arguments:
        return {}
    if name == "torch Size":
        return _sizes(arguments[0])
    if name == "_codecs encode" and arguments[1:] == ("latin1",):
        return arguments[0] if isinstance(arguments[0], Text) else arguments[0].encode("latin1")
    if name == "numpy dtype":
        return ArrayRef(dtype=str(arguments[0]))
    if name.endswith("_reconstruct"):
        return ArrayRef()
    if name.endswith(" scalar"):
        return ArrayRef(arguments[0].dtype, (), arguments[1])
    raise TypeError(f"it calls {name!r} in a way that no dump needs")


def _sizes(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or not all(type(size) is int for size in value):
        raise TypeError("a shape is no tuple of integers")
    return value


def _build(m: _Machine) -> None:
    state, target = m.stack.pop(), m.stack[-1]
    if not isinstance(target, ArrayRef) or type(state) is not tuple:
        raise TypeError("it sets the state of an object")
    if target.dtype:  # a dtype: the state says its byte order
        order = state[1]
        target.dtype = f"{order if order in ('<', '>') else ''}{target.dtype}"
    else:
        _, shape, dtype, fortran, data = state
        if fortran and len(shape) > 1:
            raise TypeError("an array in Fortran order")
        target.dtype, target.shape = dtype.dtype, _sizes(shape)
        target.data = data if isinstance(data, (bytes, Text)) else None


def _tuple(m: _Machine, size: int) -> None:
    items = tuple(m.stack[len(m.stack) - size :])
    if len(items) != size:
        raise IndexError("it takes more than there is")
    del m.stack[len(m.stack) - size :]
    m.push(items)


def _protocol(m: _Machine) -> None:
    version = m.take(1)[0]
    if version != 2:
        raise ArtifactError(f"{m.where} is a pickle of protocol {version}", hint="torch.save writes protocol 2.")


def _persistent(m: _Machine) -> None:
    value = m.stack.pop()
    if type(value) is not tuple or len(value) != 5 or value[0] != "storage" or not isinstance(value[1], Symbol):
        raise TypeError("a persistent id that is no storage")
    m.push(value)


def _put(m: _Machine, size: int) -> None:
    m.memo[int.from_bytes(m.take(size), "little")] = m.stack[-1]


_HANDLERS: dict[int, Callable[[_Machine], None]] = {
    0x80: _protocol,
    ord("("): _mark,
    ord("}"): lambda m: m.push({}),
    ord("]"): lambda m: m.push(Numbers()),
    ord(")"): lambda m: m.push(()),
    ord("X"): _text,
    ord("J"): lambda m: m.push(int.from_bytes(m.take(4), "little", signed=True)),
    ord("K"): lambda m: m.push(m.take(1)[0]),
    ord("M"): lambda m: m.push(int.from_bytes(m.take(2), "little")),
    0x8A: lambda m: m.push(int.from_bytes(m.take(m.take(1)[0]), "little", signed=True)),
    ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("t"): lambda m: m.push(tuple(m.popped())),
    0x85: lambda m: _tuple(m, 1),
    0x86: lambda m: _tuple(m, 2),
    0x87: lambda m: _tuple(m, 3),
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _setitem,
    ord("u"): lambda m: _setitems(m, m.popped()),
    ord("q"): lambda m: _put(m, 1),
    ord("r"): lambda m: _put(m, 4),
    ord("h"): lambda m: m.stack.append(m.memo[m.take(1)[0]]),
    ord("j"): lambda m: m.stack.append(m.memo[int.from_bytes(m.take(4), "little")]),
    ord("c"): _global,
    ord("R"): _reduce,
    ord("b"): _build,
    ord("Q"): _persistent,
}
"""Opcode of protocol 2 -> what it does; whatever is not here is refused."""
