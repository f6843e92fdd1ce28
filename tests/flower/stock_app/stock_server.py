"""The server: federated averaging. The call of `capture` is the line that was added."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from stock_task import network

from fedre_privacy.flower.capture import capture

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Lead all rounds."""
    torch.manual_seed(0)
    FedAvg().start(
        grid=capture(grid, str(context.run_config["uploads"]), epochs=1),
        initial_arrays=ArrayRecord(network().state_dict()),
        train_config=ConfigRecord({"lr": float(context.run_config["lr"])}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
