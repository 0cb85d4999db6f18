"""fedloom: federated learning on clients whose data differ.

Names are imported when they are first used: the command line answers a typing mistake without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedloom import callbacks as callbacks
    from fedloom import models as models
    from fedloom import sampling as sampling
    from fedloom import schedule as schedule
    from fedloom.accounting import epsilon as epsilon
    from fedloom.algorithm import Algorithm as Algorithm
    from fedloom.algorithm import replace as replace
    from fedloom.algorithms import central as central
    from fedloom.algorithms import fedadagrad as fedadagrad
    from fedloom.algorithms import fedadam as fedadam
    from fedloom.algorithms import fedadp as fedadp
    from fedloom.algorithms import fedavg as fedavg
    from fedloom.algorithms import fedavgm as fedavgm
    from fedloom.algorithms import feddyn as feddyn
    from fedloom.algorithms import fedglad as fedglad
    from fedloom.algorithms import fedlamb as fedlamb
    from fedloom.algorithms import fedlars as fedlars
    from fedloom.algorithms import fednova as fednova
    from fedloom.algorithms import fedprox as fedprox
    from fedloom.algorithms import fedsgd as fedsgd
    from fedloom.algorithms import fedyogi as fedyogi
    from fedloom.algorithms import normalized_fedavg as normalized_fedavg
    from fedloom.algorithms import private as private
    from fedloom.algorithms import scaffold as scaffold
    from fedloom.callbacks import stop_at as stop_at
    from fedloom.data import partition as partition
    from fedloom.data.catalog import load as load
    from fedloom.data.federated import FederatedData as FederatedData
    from fedloom.data.federated import federate as federate
    from fedloom.data.holdout import hold_out as hold_out
    from fedloom.errors import Diverged as Diverged
    from fedloom.errors import FedloomError as FedloomError
    from fedloom.estimate import estimate_accumulator as estimate_accumulator
    from fedloom.faults import Fault as Fault
    from fedloom.history import History as History
    from fedloom.personalization import personalize as personalize
    from fedloom.robust import centred_clipping as centred_clipping
    from fedloom.robust import coordinate_median as coordinate_median
    from fedloom.robust import geometric_median as geometric_median
    from fedloom.robust import multi_krum as multi_krum
    from fedloom.robust import norm_bounding as norm_bounding
    from fedloom.robust import trimmed_mean as trimmed_mean
    from fedloom.simulation import simulate as simulate
    from fedloom.simulation import simulate_trials as simulate_trials
    from fedloom.system import System as System
    from fedloom.task import Task as Task
    from fedloom.task import accuracy as accuracy
    from fedloom.task import cross_entropy as cross_entropy
    from fedloom.task import recall_at as recall_at
    from fedloom.task import squared_error as squared_error
    from fedloom.task import tag_cross_entropy as tag_cross_entropy
    from fedloom.task import token_accuracy as token_accuracy
    from fedloom.task import token_cross_entropy as token_cross_entropy
    from fedloom.testing import check_algorithm as check_algorithm
    from fedloom.transforms.base import Transform as Transform
    from fedloom.transforms.base import chain as chain
    from fedloom.transforms.base import from_torch as from_torch
    from fedloom.types import Cohort as Cohort
    from fedloom.upload import Upload as Upload
    from fedloom.upload import adaptive_clip as adaptive_clip
    from fedloom.upload import clip as clip
    from fedloom.upload import keep as keep
    from fedloom.upload import zeroing as zeroing
    from fedloom.weighting import Weighting as Weighting
    from fedloom.weighting import by_angle as by_angle
    from fedloom.weighting import by_effective_steps as by_effective_steps
    from fedloom.weighting import by_examples as by_examples
    from fedloom.weighting import uniform as uniform

_HOMES = {
    "accounting": ("epsilon",),
    "algorithm": ("Algorithm", "replace"),
    "algorithms": (
        *("central", "fedadagrad", "fedadam", "fedadp", "fedavg", "fedavgm", "feddyn", "fedglad", "fedlamb", "fedlars"),
        *("fednova", "fedprox", "fedsgd", "fedyogi", "normalized_fedavg", "private", "scaffold"),
    ),
    "callbacks": ("stop_at",),
    "data.catalog": ("load",),
    "data.federated": ("FederatedData", "federate"),
    "data.holdout": ("hold_out",),
    "errors": ("Diverged", "FedloomError"),
    "estimate": ("estimate_accumulator",),
    "personalization": ("personalize",),
    "faults": ("Fault",),
    "history": ("History",),
    "robust": (
        *("centred_clipping", "coordinate_median", "geometric_median"),
        *("multi_krum", "norm_bounding", "trimmed_mean"),
    ),
    "simulation": ("simulate", "simulate_trials"),
    "system": ("System",),
    "task": (
        *("Task", "accuracy", "cross_entropy", "recall_at", "squared_error"),
        *("tag_cross_entropy", "token_accuracy", "token_cross_entropy"),
    ),
    "testing": ("check_algorithm",),
    "transforms.base": ("Transform", "chain", "from_torch"),
    "types": ("Cohort",),
    "upload": ("Upload", "adaptive_clip", "clip", "keep", "zeroing"),
    "weighting": ("Weighting", "by_angle", "by_effective_steps", "by_examples", "uniform"),
}
_MODULES = {"partition": "data.partition"} | {name: name for name in ("callbacks", "models", "sampling", "schedule")}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"fedloom.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"fedloom.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'fedloom' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
