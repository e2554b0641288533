"""Memory by address, for compiled kernels: a batch's bytes lie wherever the network or a codec put them.

Nothing here checks a bound but `read_varint`: a kernel checks every length before it reads or writes.

What is called for each record takes addresses, not arrays: Numba counts the references to an array that is
handed on, and such a count waits until all that was copied before it is in memory.
"""

# ruff: noqa: ARG001  (Numba gives a generator of code more than it needs)
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from penstock.records.arrow.caching import compiled
from penstock.records.batch import Buffer

BAD: Final = 2**62  # behind every limit, so that whatever is read from there is bad too
_BYTE: Final = ir.IntType(8)
_POSITIVE: Final = 2**63 - 1

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile at the first call, to run without the GIL, and keep the result on disk if possible."""
    result: Function = compiled(function, nogil=True)
    return result


def _instruction(generator: Callable[..., Any]) -> Callable[..., Any]:
    """What a kernel calls to have the generated code in its place."""
    wrapped: Callable[..., Any] = intrinsic(generator)
    return wrapped


def address_of(buffer: Buffer) -> int:
    """Where the buffer's bytes lie, as long as the caller keeps it alive."""
    if not memoryview(buffer).nbytes:
        return 0
    array = np.frombuffer(buffer, np.uint8)
    return int(array.__array_interface__["data"][0])


@_instruction
def byte_at(typing: Any, address: Any) -> Any:
    """The byte at an address, as a signed word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = builder.load(builder.inttoptr(arguments[0], _BYTE.as_pointer()))
        return builder.zext(byte, ir.IntType(64))

    return types.int64(types.int64), generate


def _load_of(bits: int, swapped: bool) -> Callable[..., Any]:
    """A load of a signed number of some bits from any address, as a signed word."""

    def load(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            number = builder.load(pointer, align=1)
            if swapped:
                number = builder.bswap(number)
            return number if bits == 64 else builder.sext(number, ir.IntType(64))

        return types.int64(types.int64), generate

    return _instruction(load)


# In the order of Arrow, which is the machine's.
int32_at = _load_of(32, swapped=False)
int64_at = _load_of(64, swapped=False)
# In the order of Kafka.
big_int16_at = _load_of(16, swapped=True)
big_int32_at = _load_of(32, swapped=True)
big_int64_at = _load_of(64, swapped=True)


def _store_of(bits: int) -> Callable[..., Any]:
    """A store of the low bits of a word to any address."""

    def store(typing: Any, address: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            number = arguments[1]
            if bits != 64:
                number = builder.trunc(number, ir.IntType(bits))
            builder.store(number, pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return _instruction(store)


# In the order of Arrow, as above.
put_byte = _store_of(8)
put_int32 = _store_of(32)
put_int64 = _store_of(64)


@_instruction
def copy_bytes(typing: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy `size` bytes from one address to another; where they lie may overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, at = (builder.inttoptr(address, _BYTE.as_pointer()) for address in arguments[:2])
        cgutils.raw_memmove(builder, to, at, arguments[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@kernel
def read_varint(address: int, limit: int) -> tuple[int, int]:
    """The zigzag varint at an address, and the address behind it: `BAD` if it runs past `limit`."""
    if address >= limit:
        return 0, BAD
    byte: int = byte_at(address)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), address + 1
    result = byte & 0x7F
    for index in range(1, min(10, limit - address)):
        byte = byte_at(address + index)
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return ((result >> 1) & _POSITIVE) ^ -(result & 1), address + index + 1
    return 0, BAD


@kernel
def varint_size(value: int) -> int:
    """How many bytes `write_varint` writes."""
    rest = (value << 1) ^ (value >> 63)
    size = 1
    while rest & ~0x7F:
        rest = (rest >> 7) & _POSITIVE >> 6
        size += 1
    return size


@kernel
def write_varint(address: int, value: int) -> int:
    """Write a zigzag varint to an address; the address behind it."""
    rest = (value << 1) ^ (value >> 63)
    while rest & ~0x7F:
        put_byte(address, rest | 0x80)
        rest = (rest >> 7) & _POSITIVE >> 6
        address += 1
    put_byte(address, rest)
    return address + 1
