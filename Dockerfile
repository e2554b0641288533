# Two images from one file: `docker build --target broker .` and `docker build --target etcd .`.
# docker-compose.yml builds both.

# etcd as Debian packages it. The build fails on a version that may lose what it acknowledged.
FROM debian:trixie-slim AS etcd
RUN apt-get update \
    && apt-get install --yes --no-install-recommends etcd-server etcd-client \
    && rm -rf /var/lib/apt/lists/* \
    && dpkg --compare-versions "$(dpkg-query --show --showformat='${Version}' etcd-server)" ge 3.5.6
VOLUME /var/lib/etcd
EXPOSE 2379 2380
ENTRYPOINT ["etcd"]

FROM python:3.12-slim AS broker
COPY pyproject.toml README.md LICENSE /opt/penstock/
COPY src /opt/penstock/src
RUN pip install --no-cache-dir "/opt/penstock[cluster]" \
    && useradd --system --no-create-home penstock \
    && install --directory --owner=penstock --group=penstock /var/lib/penstock
USER penstock
ENV PENSTOCK_DATA_DIR=/var/lib/penstock \
    PENSTOCK_ADDR=0.0.0.0:9092
VOLUME /var/lib/penstock
EXPOSE 9092
# SIGTERM hands leadership over and stops cleanly: give it time (docker stop --time 60).
STOPSIGNAL SIGTERM
ENTRYPOINT ["penstock"]
CMD ["serve"]
