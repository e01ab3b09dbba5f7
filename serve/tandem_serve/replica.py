"""The Ray Serve class: one HTTP server and one engine in one process; thin."""

import asyncio
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI

from tandem_engine.api.engine_client import EngineClient
from tandem_engine.api.errors import ReplicaLost
from tandem_serve.api.document import AppArgs, LiveSettings
from tandem_serve.http.app import build_app
from tandem_serve.http.operations import metrics_text
from tandem_serve.http.settings import HttpSettings
from tandem_serve.http.state import HttpState
from tandem_serve.metrics_server import MetricsServer, metrics_port
from tandem_serve.replica_log import configure_logging, report_startup
from tandem_serve.start_backoff import StartBackoff

if TYPE_CHECKING:
    from tandem_serve.rank_actors import ActorLauncher

_LAST_ANSWERS_S: Final = 0.5
"""Time for the errors of running requests to reach their clients."""


class Replica:
    """One replica. Ray calls all of its methods on one event loop."""

    def __init__(self, args: dict[str, Any]) -> None:
        configure_logging()
        self._args = AppArgs.model_validate(args)
        self._engine: EngineClient | None = None
        self._http: HttpState | None = None
        self._metrics: MetricsServer | None = None
        self._end: threading.Timer | None = None

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The HTTP application; Serve calls it after the constructor."""
        app = build_app(_http_settings(self._args), lambda: self._engine)
        self._http = app.state.http
        return app

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Start the engine, the first time; afterwards pass it the live settings.

        An exception makes Ray replace the replica.
        """
        live = LiveSettings.model_validate(user_config)
        if self._http is not None:
            await self._http.tracing.apply(live.tracing)
        if self._engine is None:
            self._show_metrics()
            self._engine = await self._start(live)
        else:
            schedule = live.schedule_config(self._args.engine.cache_block_size)
            await self._engine.reconfigure(schedule, live.slo)

    def _show_metrics(self) -> None:
        """Serve the metrics on a port of their own, where the environment names one."""
        port, http = metrics_port(), self._http
        if port is None or http is None or self._metrics is not None:
            return
        self._metrics = MetricsServer(lambda: metrics_text(http), port)
        self._metrics.start()

    async def _start(self, live: LiveSettings) -> EngineClient:
        starts = StartBackoff.of_environment()
        if pause_s := starts.pause_s():
            report_startup(f"The last start failed; waiting {pause_s} s before the next one")
            await asyncio.sleep(pause_s)
        starts.begin()
        # It takes long; in a thread, so that this process answers Ray meanwhile.
        engine = await asyncio.to_thread(_start_engine, self._args, live)
        starts.succeed()
        return engine

    def check_health(self) -> None:
        """Raise when the engine cannot serve any more.

        A replica that has lost a rank ends by itself: Serve would ask three times, a second apart,
        before it replaces it, and new requests would be sent here meanwhile.
        """
        if self._engine is None:
            return
        try:
            self._engine.check_health()
        except ReplicaLost:
            if self._end is None:
                self._end = threading.Timer(_LAST_ANSWERS_S, end_process)
                self._end.start()
            raise

    async def __del__(self) -> None:
        """Stop the engine; Serve calls it after the running requests' time."""
        try:
            if self._engine is not None:
                await self._engine.stop()
            if self._http is not None:
                await self._http.tracing.close()
        finally:
            if self._metrics is not None:
                await self._metrics.stop()


def _start_engine(args: AppArgs, live: LiveSettings) -> EngineClient:
    report_startup("Starting the engine")
    # torch is needed here alone: the task that only builds the application does without it.
    from tandem_engine.build import build_engine  # noqa: PLC0415

    config = args.engine.engine_config(live)
    return build_engine(
        config,
        model_name=args.model_name,
        report=report_startup,
        launcher=_rank_launcher() if config.parallelism.ranks > 1 else None,
    )


def _rank_launcher() -> "ActorLauncher":
    from ray import serve  # noqa: PLC0415

    from tandem_serve.rank_actors import ActorLauncher  # noqa: PLC0415

    context = serve.get_replica_context()
    return ActorLauncher(f"{context.app_name} {context.replica_id.unique_id}")


def _http_settings(args: AppArgs) -> HttpSettings:
    return HttpSettings(
        model_name=args.model_name,
        created_s=int(time.time()),
        max_link_num=args.server.max_link_num,
        max_request_bytes=args.server.max_request_length * 2**20,
        e2e_timeout_s=args.server.e2e_timeout,
        strict=args.server.strict,
        allowed_origins=tuple(args.server.allowed_origins),
        api_keys_folder=Path(args.api_keys_folder) if args.api_keys_folder else None,
        returns_request_id=False,
    )


def end_process() -> None:
    """End at once, without the end of an interpreter that waits for threads."""
    logging.shutdown()
    os._exit(1)
