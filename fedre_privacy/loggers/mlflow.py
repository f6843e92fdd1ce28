"""MLflow, in a file of this machine or on a server."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from ..core.engines import Package
from .base import PROJECT, LoggedWork, Logger, Point, flat_settings, loggers

FILE = "mlflow.db"
PARAMETERS, METRICS, LONGEST = 100, 1000, 500
"""Parameters and metrics that one call takes, and characters of a parameter's value."""


@loggers.register("mlflow")
class MLflow(Logger):
    """Log to ``$MLFLOW_TRACKING_URI``, or without it to ``mlflow.db`` in the folder of runs.

    The experiment is ``$MLFLOW_EXPERIMENT_NAME``, or without it ``fedre-privacy``. ``mlflow ui
    --backend-store-uri sqlite:///runs/mlflow.db`` shows that file.
    """

    also = ("ml-flow",)
    needs = (Package("mlflow"),)
    extra = "mlflow"

    def begin(self, work: LoggedWork) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        place = work.runs.resolve()
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            place.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(uri or f"sqlite:///{place / FILE}")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        artifacts = None if uri else (place / "mlflow-artifacts").as_uri()
        run = self._client.create_run(
            _experiment(self._client, name, artifacts),
            run_name=work.name,
            tags={"kind": work.kind, "mlflow.source.name": PROJECT},
        )
        self._id = run.info.run_id
        parameters = [
            Param(key, json.dumps(value, default=str)[:LONGEST])
            for key, value in flat_settings(work.settings).items()
        ]
        for first in range(0, len(parameters), PARAMETERS):
            self._client.log_batch(self._id, params=parameters[first : first + PARAMETERS])

    def log(self, point: Point) -> None:
        self._add({f"{point.group}/{name}": v for name, v in point.values.items()}, point.step)

    def summarise(self, values: Mapping[str, float]) -> None:
        self._add({f"final/{name}": value for name, value in values.items()}, 0)

    def end(self, *, complete: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if complete else "FAILED")

    def _add(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_key(name), float(v), now, step) for name, v in values.items()]
        for first in range(0, len(metrics), METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + METRICS])


def _experiment(client: Any, name: str, artifacts: str | None) -> str:
    """The id of an experiment, made where there is none; another process may make it meanwhile."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def _key(name: str) -> str:
    """A name in the characters that MLflow allows."""
    return "".join(sign if sign.isalnum() or sign in "_-. /" else "_" for sign in name)
