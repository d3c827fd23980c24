# One image for every command: migrate, worker, beat, submit.

FROM python:3.12.11-slim-bookworm AS build
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt ./
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --constraint constraints.txt build hatchling
COPY pyproject.toml README.md LICENSE quota_dispatcher_pytest.py ./
COPY dispatcher dispatcher
COPY migrations migrations
# --no-isolation: the wheel is built by the pinned hatchling from above.
RUN /opt/build/bin/python -m build --wheel --no-isolation --outdir /wheels
RUN python -m venv /opt/dispatcher \
 && /opt/dispatcher/bin/pip install --constraint constraints.txt "$(ls /wheels/*.whl)[apprise,metrics,mysql,postgres,webhook,worker]"

FROM python:3.12.11-slim-bookworm
COPY --from=build /opt/dispatcher /opt/dispatcher
RUN useradd --system --uid 10001 --home-dir /data --create-home dispatcher
ENV PATH=/opt/dispatcher/bin:$PATH PYTHONUNBUFFERED=1 DISPATCHER_DATA_DIR=/data
USER dispatcher
# dispatcher.toml is read from here; mount one to configure channels and quotas.
WORKDIR /app
ENTRYPOINT ["dispatcher"]
CMD ["--help"]
