"""pfl-research: `FederatedAveraging` on its `SimulatedBackend`, in one process or in two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.metadata import version

from runner import CORES, Clock, options, run, threads
from workloads import Arrays, Workload


def start_ranks(processes: int) -> int:
    """This program once for each rank; the worst exit code."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(CORES // processes),
        "TORCHELASTIC_RUN_ID": "peers",  # without it pfl lets every rank train the whole cohort, and says nothing
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(processes)
    ]
    return max(abs(rank.wait()) for rank in ranks)


def main() -> None:
    given = options(__doc__, devices=("cpu", "cuda"), processes=CORES)
    os.environ["PFL_PYTORCH_DEVICE"] = given.device
    each, how = threads(given)
    if given.processes > 1 and "RANK" not in os.environ:
        sys.exit(start_ranks(given.processes))

    import torch
    import torch_models
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    if given.device == "cpu":
        torch.set_num_threads(each)

    class Timed(TrainingProcessCallback):
        """Tells the clock when a round begins and ends."""

        def __init__(self, clock: Clock) -> None:
            self.clock = clock

        def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
            self.clock.begin()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            if given.device == "cuda":
                torch.cuda.synchronize()
            self.clock.end()
            self.clock.begin()
            return False, Metrics()

    def train(workload: Workload, rounds: int, clock: Clock) -> Arrays:
        model = torch_models.model(workload, given.device)
        model.loss = lambda x, y: torch_models.loss(model(x), y)
        # pfl evaluates in its first round whatever it is told: let that cost nothing
        model.metrics = lambda x, y: {"nothing": Weighted(0, len(x))}
        x, y = torch_models.tensors(workload, given.data, given.device)
        clients = [Dataset([x[k], y[k]], user_id=str(k)) for k in range(workload.population)]
        drawn = (client for round in range(rounds) for client in workload.cohort(round))
        data = FederatedDataset(make_dataset_fn=clients.__getitem__, user_sampler=lambda: next(drawn))
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=rounds + 1,
                train_cohort_size=workload.cohort_size,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
            model=PyTorchModel(
                model=model,
                local_optimizer_create=torch.optim.SGD,
                central_optimizer=torch.optim.SGD(model.parameters(), 1.0),
            ),
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=workload.lr, local_batch_size=workload.batch
            ),
            callbacks=[Timed(clock)],
        )
        return torch_models.arrays(model)

    run(given, f"pfl {version('pfl')}", how, train)


if __name__ == "__main__":
    main()
