"""The wired house, with what operators look at, and its end."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from dispatcher.bootstrap.built import built_once
from dispatcher.bootstrap.working import Working
from dispatcher.errors import InvalidSettings
from dispatcher.limiters import Fills
from dispatcher.operations.overview import Overviews
from dispatcher.operations.verification import Verification
from dispatcher.reservation import Contents, Timelines
from dispatcher.store import Figures, Listing, Standings, StoreUpkeep
from dispatcher.submission import Telling
from dispatcher.telemetry.metrics import exposition
from dispatcher.transports import close_all

if TYPE_CHECKING:
    from dispatcher.telemetry.metrics.exposition import Exposition

log = logging.getLogger(__name__)


class Parts(Working):
    """The wired house for one configuration, each part built when first asked for."""

    @built_once
    def listing(self) -> Listing:
        """Messages by what operators say of them."""
        late, put_off = self._patience
        return Listing(self.database, late=late, put_off=put_off)

    @built_once
    def telling(self) -> Telling:
        """The use case of those who want to know what became of a message."""
        contents = Contents(self._plain_redis, self.fence)
        return Telling(settings=self.settings, listing=self.listing, contents=contents)

    @built_once
    def overviews(self) -> Overviews:
        """The use case of those who operate."""
        late, put_off = self._patience
        return Overviews(
            settings=self.settings,
            figures=Figures(self.database, late=late, put_off=put_off),
            fills=Fills(
                self._plain_redis,
                namespace=self.settings.namespace,
                channel_limits={name: some for name, some in self._channel_limits.items() if some},
            ),
            signs=self.signs,
            timelines=Timelines(
                Contents(self._plain_redis, self.fence), self.windows, self.settings.quotas_of
            ),
        )

    @built_once
    def exposition(self) -> Exposition:
        """What answers Prometheus."""
        return exposition(self.overviews.vitals, clock=self.clock)

    @built_once
    def verification(self) -> Verification:
        """The use case of those who doubt Redis."""
        return Verification(
            settings=self.settings,
            clock=self.clock,
            store=StoreUpkeep(self.database),
            standings=Standings(self.database),
            contents=self.contents,
        )

    @property
    def _patience(self) -> tuple[timedelta, timedelta]:
        """When a message is overdue, and how long at most the sweep puts one off that is due."""
        late = self.settings.enqueue_grace
        return late, max(late, self.settings.claim_ttl)

    def serve_metrics(self) -> None:
        """Answer Prometheus, where the settings say so. Without a port all else goes on."""
        port = self.settings.metrics_port
        if port is None:
            return
        try:
            port = self.exposition.serve(self.settings.metrics_host, port)
        except InvalidSettings as error:
            log.error("metrics are not served: %s", error)  # noqa: TRY400 - it says all there is
        else:
            log.info("metrics at http://%s:%d/metrics", self.settings.metrics_host, port)

    def close_transports(self) -> None:
        """Close the lines to the providers."""
        if "transports" in vars(self):
            close_all(self.transports.values())

    def close_hooks(self) -> None:
        """Tell what waits to be told."""
        if "hooks" in vars(self) and self.hooks is not None:
            self.hooks.close()

    def close_send_logs(self) -> None:
        """Delete the folder of the send logs, where no send is under way."""
        if "send_logs" in vars(self):
            self.send_logs.close()

    def close(self) -> None:
        """Close what was opened."""
        built = vars(self)
        if "pulse" in built:
            self.pulse.stop()
        if "exposition" in built:
            self.exposition.close()
        if "delivery" in built:
            self.delivery.close()
        self.close_transports()
        self.close_hooks()
        self.close_send_logs()
        if "redis" in built:
            self.redis.close()
        if "_plain_redis" in built:
            self._plain_redis.close()
        if "database" in built:
            self.database.close()
        if "queue" in built:
            self.queue.close()
