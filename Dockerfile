# The images of Stilltide. Targets:
#   worker (default)  every command except the audit; no Java
#   spark             all commands, with Java, PySpark and the jars of audits and tables: a container fetches nothing
# Another base image: --build-arg BASE=...; a directory of jars instead of a download: --build-context jars=DIRECTORY.
# The images install locks of their own, cut out of the tested lock: a worker needs neither Spark nor development tools.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS dependencies
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_CACHE_DIR=/var/cache/pip
RUN python -m venv --without-pip /opt/stilltide
RUN --mount=type=bind,source=requirements.worker.lock,target=/tmp/lock \
    --mount=type=cache,target=/var/cache/pip \
    pip --python /opt/stilltide/bin/python install --require-hashes --only-binary :all: -r /tmp/lock

FROM dependencies AS application
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY connectors connectors
COPY pipeline pipeline
COPY stilltide stilltide
RUN --mount=type=cache,target=/var/cache/pip \
    pip --python /opt/stilltide/bin/python install --no-deps --target /opt/application .

FROM ${BASE} AS base
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin stilltide
COPY --link --from=dependencies /opt/stilltide /opt/stilltide
ENV PATH=/opt/application/bin:/opt/stilltide/bin:$PATH PYTHONPATH=/opt/application \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
EXPOSE 6066
ENTRYPOINT ["stilltide"]
CMD ["worker"]

FROM base AS worker
COPY --link --from=application /opt/application /opt/application
USER 10001

# Without the application, so that a change of the code does not install Java and PySpark again.
FROM base AS java
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,source=requirements.spark.lock,target=/tmp/lock \
    --mount=type=cache,target=/var/cache/pip \
    PIP_CACHE_DIR=/var/cache/pip pip --python /opt/stilltide/bin/python install \
      --require-hashes --disable-pip-version-check --root-user-action ignore -r /tmp/lock

FROM java AS fetch
RUN --mount=type=bind,source=connectors,target=/src/stilltide/connectors \
    --mount=type=bind,source=schemas,target=/src/stilltide/schemas \
    PYTHONPATH=/src STILLTIDE_CACHE_DIR=/opt/cache \
    python -c "from stilltide.connectors.local.jars import format_jars, spark_jars; spark_jars(); [format_jars(name) for name in ('delta', 'iceberg')]"

FROM scratch AS jars
COPY --from=fetch /opt/cache/jars/*.jar /

FROM java AS spark
COPY --link --from=jars /*.jar /opt/cache/jars/
COPY --link --from=application /opt/application /opt/application
ENV STILLTIDE_CACHE_DIR=/opt/cache
RUN install --directory --owner 10001 --group 10001 /reports /tables # volumes there belong to the user
USER 10001

FROM worker
