# syntax=docker/dockerfile:1
# The sidecar's image: Python, the pinned dependencies and the wheel of this repository, without build
# tools. docker/build.sh contains the steps; tests/integration/image runs them too.
#
#   docker build --tag sidetier .
#   docker run --read-only --user "$(id -u kafka):$(id -g kafka)" --publish 9108:9108 \
#     --env SIDETIER_HTTP__HOST=0.0.0.0 --volume /var/lib/kafka/data:/var/lib/kafka/data:ro \
#     --volume "$PWD/sidetier.yaml:/etc/sidetier/sidetier.yaml:ro" sidetier

# An exact patch release. A tag can move: to pin the image, also give its digest, once in the reference
# and once for the label (`docker buildx imagetools inspect python:3.11.14-slim-bookworm` prints it):
#   --build-arg BASE_IMAGE=python:3.11.14-slim-bookworm@sha256:... --build-arg BASE_DIGEST=sha256:...
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

FROM ${BASE_IMAGE} AS builder
WORKDIR /src
# The dependencies are a separate layer, which is cached until the lock file changes.
COPY docker/build.sh docker/build.sh
COPY requirements requirements
# Use `--build-arg REQUIREMENTS=consumer` for an image that also reads and copies records (`sidetier
# consume`, exports on a schedule, mirrors). The sidecar needs none of these libraries.
ARG REQUIREMENTS=runtime
RUN ["docker/build.sh", "dependencies", "/opt/sidetier"]
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY archive archive
COPY brokers brokers
COPY cli cli
COPY config config
COPY consumer consumer
COPY endpoint endpoint
COPY leadership leadership
COPY mirror mirror
COPY pipeline pipeline
COPY segments segments
COPY storage storage
COPY telemetry telemetry
COPY uploader uploader
COPY wire wire
RUN ["docker/build.sh", "package", "/opt/sidetier", "/wheels"]

FROM ${BASE_IMAGE}
ARG BASE_IMAGE
ARG BASE_DIGEST=""
# The commit, and its time in RFC 3339; `make release` sets both.
ARG REVISION=unknown
ARG CREATED=""
LABEL org.opencontainers.image.title="sidetier" \
      org.opencontainers.image.description="Tiered storage for Apache Kafka that runs beside the broker" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.url="https://github.com/sidetier/sidetier" \
      org.opencontainers.image.source="https://github.com/sidetier/sidetier" \
      org.opencontainers.image.documentation="https://github.com/sidetier/sidetier/tree/main/docs" \
      org.opencontainers.image.base.name="docker.io/library/${BASE_IMAGE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      org.opencontainers.image.licenses="Apache-2.0"
# Removes pip and compiles the standard library: the base image contains no bytecode.
RUN --mount=type=bind,source=docker,target=/docker ["/docker/build.sh", "interpreter"]
COPY --from=builder /opt/sidetier /opt/sidetier
COPY docker/healthcheck.py /opt/sidetier/healthcheck.py
# All code is compiled, and nothing is written at run time: the root file system may be read-only.
ENV PATH=/opt/sidetier/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A numeric user, so that Kubernetes can verify that it is not root. If not everybody can read the log
# dirs, run the container as the broker's user or group instead.
USER 65532:65532
EXPOSE 9108
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["/opt/sidetier/bin/python", "-I", "-S", "/opt/sidetier/healthcheck.py"]
# No shell in between, so that SIGTERM reaches the sidecar, which then has uploader.shutdown_grace (25 s).
ENTRYPOINT ["/opt/sidetier/bin/sidetier"]
CMD ["run", "--config", "/etc/sidetier/sidetier.yaml"]
