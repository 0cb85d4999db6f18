"""FedJAX: its `federated_averaging`, compiled step by step."""

from __future__ import annotations

from importlib.metadata import version

import jax
import jax_models
from runner import Clock, options, run
from workloads import Arrays, Workload

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map  # newer JAX has it there only, FedJAX 0.0.17 looks for it here

import fedjax


def main() -> None:
    given = options(__doc__)

    def train(workload: Workload, rounds: int, clock: Clock) -> Arrays:
        x, y = jax_models.data(workload, *workload.load(given.data))
        clients = [fedjax.ClientDataset({"x": x[k], "y": y[k]}) for k in range(workload.population)]
        gradient = jax.grad(lambda params, batch, key: jax_models.loss(workload, params, batch["x"], batch["y"], key))
        algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            gradient,
            fedjax.optimizers.sgd(workload.lr),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=workload.batch, num_epochs=1, skip_shuffle=True),
        )
        state = algorithm.init(jax_models.from_torch(workload.initial()))
        for round in range(rounds):
            clock.begin()
            cohort = workload.cohort(round)
            keys = jax.random.split(jax.random.PRNGKey(round), len(cohort))
            given_clients = [(client, clients[client], key) for client, key in zip(cohort, keys, strict=True)]
            state, _ = algorithm.apply(state, given_clients)
            jax.block_until_ready(state.params)
            clock.end()
        return jax_models.to_torch(state.params)

    run(given, f"fedjax {version('fedjax')}", "1 process, XLA's threads", train)


if __name__ == "__main__":
    main()
