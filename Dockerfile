# clustersim in a slim image, run by a user without privileges.
#
#   docker build -t clustersim .
#   docker run --rm -v "$PWD:/data" clustersim run hello --json
#
# As another user: --user "$(id -u):$(id -g)"; the folders that must be writable are so for everybody.
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY clustersim clustersim
COPY simulator simulator
COPY topologies topologies
COPY workloads workloads
COPY scenarios scenarios
RUN python -m venv /opt/clustersim \
 && /opt/clustersim/bin/pip install --no-cache-dir -c constraints.txt .

FROM python:3.12-slim
RUN useradd --create-home --uid 10001 clustersim \
 && mkdir -p /var/cache/clustersim/numba /var/cache/clustersim/matplotlib /data \
 && chown -R clustersim /var/cache/clustersim /data \
 && chmod -R 1777 /var/cache/clustersim
COPY --from=build /opt/clustersim /opt/clustersim
# the installed package is read-only for the user: compiled code is kept in a folder of its own
ENV PATH=/opt/clustersim/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/clustersim/numba \
    MPLCONFIGDIR=/var/cache/clustersim/matplotlib
USER clustersim
WORKDIR /data
# compile the event loop once, so that no run waits for it
RUN clustersim run hello --json --set simulation.engine=compiled > /dev/null \
 && chmod -R a+rwX /var/cache/clustersim
ENTRYPOINT ["clustersim"]
CMD ["--help"]
