"""The only source of randomness: numbers are a function of (seed, round, client, purpose), never of hidden state.

A counter-based hash gives the same bits in the loop, in a stack of clients, on any device and on any machine, and a
resumed or re-ordered run needs nothing saved to go on with the same draws.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

_ONE_AT_A_TIME = threading.RLock()  # torch's generators are the whole process's


@contextmanager
def generator_kept(needed: bool = True) -> Iterator[None]:
    """What is drawn from torch's own generators inside leaves them as they were outside; other threads wait."""
    if not needed:
        yield
        return
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned word: torch multiplies int64 modulo 2^64, which is what hashing needs."""
    word &= 2**64 - 1
    return word - 2**64 if word >= 2**63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift(x: Tensor, count: int) -> Tensor:
    return (x >> count) & ((1 << (64 - count)) - 1)  # torch's >> copies the sign bit


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014): every input bit reaches every output bit."""
    if x.dim() and _on_host(x):  # a single number would be no array
        return _tensor(_mix_array(_array(x).copy()))
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _on_host(x: Tensor) -> bool:
    """Whether its numbers can be looked at: not in a stack, not while a program is traced, not on a device."""
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return False
    return type(x) is Tensor and x.is_cpu and not torch._C._functorch.is_functorch_wrapped_tensor(x)


Words = npt.NDArray[np.uint64]


def _array(x: Tensor) -> Words:
    """The same memory as unsigned words: of small arrays NumPy's operations take a fraction of torch's time."""
    words: Words = x.numpy().view(np.uint64)
    return words


def _tensor(x: Words) -> Tensor:
    return torch.from_numpy(x.view(np.int64))


def _mix_array(x: Words) -> Words:
    """`_mix` in place, on the host."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _mix_int(x: int) -> int:
    """The same for one number, on the host."""
    x &= 2**64 - 1
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return x ^ (x >> 31)


def key(seed: int | Sequence[int], round: int, client: int | Tensor, purpose: str) -> Tensor:
    """An int64 key, one per client asked for; `purpose` keeps batch order, dropout and sampling apart.

    A seed for each client, where they belong to different runs, gives each the key of its run.

    >>> key(0, 3, torch.tensor([5, 6]), "batches").equal(key(0, 3, torch.tensor([5, 6]), "batches"))
    True
    """
    if isinstance(seed, int):
        state = _state(seed, round, purpose)
        if isinstance(client, int):
            return torch.tensor(_signed(_mix_int(state + _mix_int(client + _GOLDEN))))
        return _key(client.to(torch.int64), _signed(state))
    states = {each: _signed(_state(each, round, purpose)) for each in set(seed)}
    own = torch.tensor([states[each] for each in seed])
    return _key(torch.as_tensor(client, dtype=torch.int64), own)


def _key(client: Tensor, state: int | Tensor) -> Tensor:
    if client.dim() and _on_host(client):
        words = _mix_array(_array(client) + np.uint64(_GOLDEN % 2**64))
        words = words + (_array(state) if isinstance(state, Tensor) else np.uint64(state % 2**64))
        return _tensor(_mix_array(words))
    return _mix(_mix(client + _GOLDEN) + state)


def _state(seed: int, round: int, purpose: str) -> int:
    return _mix_int(_mix_int(_mix_int(seed + _GOLDEN) + _word(purpose)) + round)


@cache
def _word(purpose: str) -> int:
    return int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")


def bits(keys: Tensor, count: int) -> Tensor:
    """64 random bits at each of `count` positions of each key, int64 of shape `(*keys.shape, count)`; or new keys."""
    if _on_host(keys):
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN % 2**64)
        return _tensor(_mix_array(_mix_array(_array(keys)[..., None] + steps)))
    position = torch.arange(1, count + 1, device=keys.device) * _GOLDEN
    return _mix(_mix(keys.unsqueeze(-1) + position))


def uniform(keys: Tensor, count: int) -> Tensor:
    """Float64 numbers in [0, 1), 53 bits each."""
    return _shift(bits(keys, count), 11).double() * 2.0**-53


def permutation(keys: Tensor, count: int, lengths: Tensor | None = None) -> Tensor:
    """A permutation of `range(count)` per key; with `lengths`, of `range(length)` followed by the rest.

    The first `length` entries do not depend on `count`: a client's order is the same in every stack.

    >>> sorted(permutation(key(0, 0, 0, "batches"), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    order = bits(keys, count)
    if lengths is not None:
        # bits are shifted down by one so that no draw can reach the padding's value
        padding = torch.arange(count, device=keys.device) >= lengths.unsqueeze(-1)
        order = torch.where(padding, torch.iinfo(torch.int64).max, order >> 1)
    return order.argsort(dim=-1, stable=True)


def keep_mask(key: Tensor, site: int, shape: torch.Size, drop: float) -> Tensor:
    """Dropout's mask for one call site: True with probability 1 - drop, by a 32-bit hash of (key, site, position).

    A position counts rows first, so the mask of a row does not depend on how many rows follow it.
    """
    if drop >= 1:
        return torch.zeros(shape, dtype=torch.bool, device=key.device)
    low = _mix(key + offset(site)).to(torch.int32)
    position = torch.arange(shape.numel(), dtype=torch.int32, device=key.device) * -1640531527
    x = (position + low).reshape(shape)
    # lowbias32 (Wellons 2018); the masks undo the sign that >> copies
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261
    x = x ^ ((x >> 16) & 0xFFFF)
    return (x & 0x7FFFFFFF) >= least_kept(drop)


def offset(site: int) -> int:
    """What a call site's number adds to the key of its mask."""
    return _signed((site + 1) * _GOLDEN)


def least_kept(drop: float) -> int:
    """The smallest of 31 bits at which an entry is kept."""
    return int(drop * 2**31)


def host_keep_mask(key: int, site: int, count: int, drop: float) -> npt.NDArray[np.bool_]:
    """The first `count` entries of `keep_mask`, on the host: NumPy has unsigned numbers, and is twice as fast in them.

    >>> at = key(0, 0, 0, "dropout")
    >>> host_keep_mask(int(at), 1, 8, 0.5).tolist() == keep_mask(at, 1, torch.Size([8]), 0.5).tolist()
    True
    """
    if drop >= 1:
        return np.zeros(count, dtype=np.bool_)
    x = np.arange(count, dtype=np.uint32)
    x *= np.uint32(0x9E3779B9)
    x += np.uint32(_mix_int(key + offset(site)) % 2**32)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    x &= np.uint32(0x7FFFFFFF)
    kept: npt.NDArray[np.bool_] = x >= np.uint32(least_kept(drop))
    return kept
