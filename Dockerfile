# syntax=docker/dockerfile:1
# The sidecar's image: Python, the pinned dependencies, the wheel of this tree, and nothing to build
# with. The steps are those of docker/build.sh, which tests/integration/image runs too.
#
#   docker build --tag sidetier .
#   docker run --read-only --user "$(id -u kafka):$(id -g kafka)" --publish 9108:9108 \
#     --env SIDETIER_HTTP__HOST=0.0.0.0 --volume /var/lib/kafka/data:/var/lib/kafka/data:ro \
#     --volume "$PWD/sidetier.yaml:/etc/sidetier/sidetier.yaml:ro" sidetier

# An exact patch release. For a build that can never change, give the digest too:
# --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS builder
WORKDIR /src
# The dependencies are a layer of their own, which lasts until the lock file changes.
COPY docker/build.sh docker/build.sh
COPY requirements requirements
# `--build-arg REQUIREMENTS=consumer` for an image that reads and copies records too (`sidetier
# consume`, exports on a schedule, mirrors). The sidecar needs none of those libraries.
ARG REQUIREMENTS=runtime
RUN ["docker/build.sh", "dependencies", "/opt/sidetier"]
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY archive archive
COPY cli cli
COPY config config
COPY consumer consumer
COPY leadership leadership
COPY mirror mirror
COPY pipeline pipeline
COPY sandbox sandbox
COPY segments segments
COPY storage storage
COPY telemetry telemetry
COPY uploader uploader
COPY wire wire
RUN ["docker/build.sh", "package", "/opt/sidetier", "/wheels"]

FROM ${PYTHON_IMAGE}
ARG PYTHON_IMAGE
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sidetier" \
      org.opencontainers.image.description="Tiered storage for Apache Kafka that runs beside the broker" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="docker.io/library/${PYTHON_IMAGE}" \
      org.opencontainers.image.licenses="Apache-2.0"
# pip goes, and the standard library is compiled: the base image comes without bytecode.
RUN --mount=type=bind,source=docker,target=/docker ["/docker/build.sh", "interpreter"]
COPY --from=builder /opt/sidetier /opt/sidetier
COPY docker/healthcheck.py /opt/sidetier/healthcheck.py
# Everything is compiled and nothing is written: the root may be read-only.
ENV PATH=/opt/sidetier/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can see that it is not root. Give the broker's own user or group
# instead where the log dirs are not readable by everybody.
USER 65532:65532
EXPOSE 9108
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["/opt/sidetier/bin/python", "-I", "-S", "/opt/sidetier/healthcheck.py"]
# No shell in between: SIGTERM reaches the sidecar, which then has uploader.shutdown_grace (25 s).
ENTRYPOINT ["/opt/sidetier/bin/sidetier"]
CMD ["run", "--config", "/etc/sidetier/sidetier.yaml"]
