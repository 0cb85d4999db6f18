"""FedLab: `StandalonePipeline` with its serial trainer and synchronous server."""

from __future__ import annotations

import sys
import types
from importlib.metadata import version

import torch
import torch_models
from runner import CORES, Clock, options, run, threads
from torch.utils.data import DataLoader, TensorDataset
from workloads import Arrays, Workload

# FedLab imports torchvision for data sets that are not used here
vision = types.ModuleType("torchvision")
vision.transforms = types.ModuleType("torchvision.transforms")
sys.modules["torchvision"] = vision

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Server(SyncServerHandler):
    """Takes the cohorts that all peers take."""

    workload: Workload

    def sample_clients(self) -> list[int]:
        return self.workload.cohort(self.round)


class Pipeline(StandalonePipeline):
    """Tells the clock when a round begins and ends; `evaluate` is what FedLab calls after each."""

    clock: Clock

    def evaluate(self) -> None:
        self.clock.end()
        self.clock.begin()


class Clients:
    """FedLab's data set: a loader for each client."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader:
        return DataLoader(TensorDataset(self.x[id], self.y[id]), batch_size=batch_size)


def main() -> None:
    given = options(__doc__)
    torch.set_num_threads(CORES)

    def train(workload: Workload, rounds: int, clock: Clock) -> Arrays:
        model = torch_models.model(workload)
        trainer = SGDSerialClientTrainer(model, workload.population)
        trainer.setup_dataset(Clients(*torch_models.tensors(workload, given.data)))
        trainer.setup_optim(1, workload.batch, workload.lr)
        trainer.criterion = torch_models.loss
        server = Server(model, rounds, workload.cohort_size / workload.population)
        server.workload = workload
        pipeline = Pipeline(server, trainer)
        pipeline.clock = clock
        clock.begin()
        pipeline.main()
        return torch_models.arrays(server.model)

    run(given, f"fedlab {version('fedlab')}", threads(given)[1], train)


if __name__ == "__main__":
    main()
