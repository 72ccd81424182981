# syntax=docker/dockerfile:1
# The image for `sidetier drill`: the sidecar's image with a Java and Kafka's jars, so that a drill
# downloads nothing.
#
#   docker build --build-arg REQUIREMENTS=consumer --tag sidetier-consumer .
#   docker build --file docker/drill.Dockerfile --tag sidetier-drill .

ARG SIDETIER_IMAGE=sidetier-consumer
ARG KAFKA_IMAGE=apache/kafka:4.3.1
# A Java for glibc; the Java in Kafka's own image is for musl.
ARG JAVA_IMAGE=eclipse-temurin:21-jre

FROM ${KAFKA_IMAGE} AS kafka
FROM ${JAVA_IMAGE} AS java

# A folder of the cache counts as complete if it has this marker.
FROM ${JAVA_IMAGE} AS cache
COPY --from=kafka /opt/kafka/libs /opt/sidetier-cache/jars/kafka-4.3.1
RUN ["touch", "/opt/sidetier-cache/jars/kafka-4.3.1/.complete"]

FROM ${SIDETIER_IMAGE}
COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY --from=cache /opt/sidetier-cache /opt/sidetier-cache
ENV JAVA_HOME=/opt/java/openjdk \
    SIDETIER_CACHE=/opt/sidetier-cache
# The sidecar's health check asks a port that a drill does not open.
HEALTHCHECK NONE
CMD ["drill", "--config", "/etc/sidetier/sidetier.yaml"]
