# Image for CI jobs: the tessera command on a minimal Debian with a shell, run without root. It has no GPU kernels; with the CUDA
# Toolkit in the first stage and -Dcuda=enabled it has.
#   docker build -t tessera . && docker run --rm -v /srv/models:/models tessera tessera inspect /models/Llama-3.1-8B
ARG DEBIAN=trixie

FROM debian:${DEBIAN}-slim AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc git libc6-dev libcurl4-openssl-dev libjs-chart.js liburing-dev libxxhash-dev libzstd-dev \
        meson ninja-build pkgconf \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN meson setup build --prefix /usr/local -Dauto_features=disabled -Dhtml=enabled -Dremote=enabled -During=enabled \
    && meson compile -C build \
    && build/tests/peers/golden/check_golden tests/peers/golden/vectors \
    && DESTDIR=/installed meson install -C build --no-rebuild

FROM debian:${DEBIAN}-slim
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libcurl4 liburing2 libxxhash0 libzstd1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home tessera \
    && install -d -o tessera -g tessera /work
COPY --from=build /installed/usr/local /usr/local
USER 1000:1000
WORKDIR /work
CMD ["tessera", "help"]
