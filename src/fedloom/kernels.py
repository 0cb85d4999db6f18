"""Triton kernels for what torch has no fast form of. Imported only where there is a CUDA device and Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 256


@triton.jit
def _add_rows(total, rows, coefficients, count, length, stride, sets, wide: tl.constexpr, columns: tl.constexpr):
    """Each program owns some columns and adds the rows to them in order."""
    place = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    q = tl.arange(0, wide)
    inside = (place < length)[None, :] & (q < sets)[:, None]
    where = total + q[:, None] * length + place[None, :]
    kept = tl.load(where, mask=inside, other=0.0)
    for k in range(count):
        row = tl.load(rows + k * stride + place, mask=place < length, other=0.0).to(tl.float64)
        kept += row[None, :] * tl.load(coefficients + q * count + k, mask=q < sets, other=0.0)[:, None]
    tl.store(where, kept, mask=inside)


def add_rows(total: Tensor, rows: Tensor, coefficients: Tensor) -> Tensor:
    """`fedloom.rows.add` in one pass over `rows`; `total` is changed in place."""
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    count, length = rows.shape
    sets = len(coefficients)
    if count and length:
        grid = (triton.cdiv(length, _COLUMNS),)
        wide = triton.next_power_of_2(sets)
        _add_rows[grid](total, rows, coefficients.contiguous(), count, length, rows.stride(0), sets, wide, _COLUMNS)
    return total


@triton.jit
def _row_squares(parts, rows, length, stride, blocks, columns: tl.constexpr):
    """Each program sums one block of one row."""
    k, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * columns + tl.arange(0, columns)
    row = tl.load(rows + k * stride + place, mask=place < length, other=0.0).to(tl.float64)
    tl.store(parts + k * blocks + block, tl.sum(row * row))


@triton.jit
def _fold(sums, parts, blocks, columns: tl.constexpr):
    """One program adds up the parts of one row."""
    k = tl.program_id(0).to(tl.int64)
    kept = tl.zeros((columns,), tl.float64)
    for start in range(0, blocks, columns):
        place = start + tl.arange(0, columns)
        kept += tl.load(parts + k * blocks + place, mask=place < blocks, other=0.0)
    tl.store(sums + k, tl.sum(kept))


def row_squares(rows: Tensor) -> Tensor:
    """`fedloom.rows.squares`: the order within a row depends on its length alone."""
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    count, length = rows.shape
    blocks = max(1, triton.cdiv(length, 4096))
    sums = torch.zeros(count, dtype=torch.float64, device=rows.device)
    if count and length:
        parts = torch.empty(count, blocks, dtype=torch.float64, device=rows.device)
        _row_squares[(count, blocks)](parts, rows, length, rows.stride(0), blocks, 4096)
        _fold[(count,)](sums, parts, blocks, 1024)
    return sums


@triton.jit
def _kept(masks, keys, offset, count, least, columns: tl.constexpr):
    """`fedloom.random.keep_mask` for some positions of one mask: SplitMix64 of the key, lowbias32 of each place."""
    k = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * columns + tl.arange(0, columns)
    word = (tl.load(keys + k) + offset).to(tl.uint64, bitcast=True)
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    x = place.to(tl.uint32) * 0x9E3779B9 + (word ^ (word >> 31)).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    tl.store(masks + k * count + place, ((x & 0x7FFFFFFF).to(tl.int32) >= least).to(tl.uint8), mask=place < count)


def kept(keys: Tensor, offset: int, count: int, least: int) -> Tensor:
    """A mask of `count` entries for each key, bool of shape `(len(keys), count)`; `offset` tells call sites apart."""
    masks = torch.empty(len(keys), count, dtype=torch.uint8, device=keys.device)
    if masks.numel():
        _kept[(len(keys), triton.cdiv(count, 2048))](masks, keys, offset, count, least, 2048)
    return masks.view(torch.bool)
