"""Federated averaging in NVFLARE's simulator. The line with `Capture` was added.

Words: absolute folders of the workspace, of the sites' own copies, and of the capture, if any.
"""

import sys

from nvflare.app_opt.pt.job_config.fed_avg import FedAvgJob
from nvflare.job_config.script_runner import ScriptRunner
from stock_net import Net

from fedre_privacy.nvflare.capture import Capture

SITES = 2


def main(workspace: str, diary: str, uploads: str = "") -> int:
    """Run two rounds; return what the simulator returns, 0 if all went well."""
    job = FedAvgJob(initial_model=Net(), n_clients=SITES, num_rounds=2, name="stock")
    for number in range(1, SITES + 1):
        job.to(ScriptRunner("stock_client.py", script_args=diary), f"site-{number}")
    if uploads:
        job.to_server(Capture(uploads, lr=0.1, epochs=1, size_key="images"))
    return int(job.simulator_run(workspace, threads=SITES) or 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
