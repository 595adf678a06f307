# The image of every LLMKube program; docs/guides/helm.md builds it.
# Wheels only, each of the digest that requirements/ pins, so no compiler is needed and no package's build script
# runs; the final image has neither pip for its environment nor a shell script.

# Python's slim image, by digest: python:3.13-slim@sha256:… There is no default: a fixed digest would keep its
# vulnerabilities. `docker buildx imagetools inspect python:3.13-slim` prints the current one.
# The default below is not an image name but an error message, because Debian's buildah does not support ${BASE:?…}.
ARG BASE=--build-arg_BASE=python:3.13-slim@sha256:…_is_required

FROM ${BASE} AS build
ARG BASE
RUN case "${BASE}" in \
        *@sha256:????????????????????????????????????????????????????????????????) ;; \
        *) echo "BASE=${BASE} has no digest; docker buildx imagetools inspect ${BASE} prints it" >&2; exit 1 ;; \
    esac
# Empty for the controller; `llama` adds llama.cpp, for an agent in a container.
ARG EXTRAS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements ./requirements
RUN python -m venv /opt/build && python -m venv --without-pip /opt/llmkube \
    && /opt/build/bin/python -m pip install --only-binary=:all: --require-hashes -r requirements/build.txt \
    && /opt/build/bin/python -m pip --python /opt/llmkube/bin/python install --only-binary=:all: --require-hashes \
        -r "requirements/${EXTRAS:-runtime}.txt"
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheel . \
    && /opt/build/bin/python -m pip --python /opt/llmkube/bin/python install --no-deps --no-index /wheel/*.whl

FROM ${BASE} AS llmkube
ARG EXTRAS
# llama.cpp's wheel uses the system's OpenMP, which a slim image lacks.
RUN if [ "${EXTRAS}" = llama ]; then \
        apt-get update && apt-get install --yes --no-install-recommends libgomp1 \
        && apt-get clean && rm -rf /var/lib/apt/lists/*; \
    fi
LABEL org.opencontainers.image.title="LLMKube" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/llmkube /opt/llmkube
# Nothing is written outside /tmp, and any user id works: the root filesystem may be read-only, and OpenShift sets the user.
ENV PATH=/opt/llmkube/bin:$PATH \
    HOME=/tmp \
    LLMKUBE_STATE_DIR=/tmp/llmkube \
    PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["llmkube"]
CMD ["controller"]

# `--target llama-server`, with EXTRAS=llama: the image of llama.cpp's server for CPUs (workloads.cpuEngine of the chart).
FROM llmkube AS llama-server
ARG EXTRAS
RUN if [ "${EXTRAS}" != llama ]; then \
        echo "the target llama-server has no llama.cpp without --build-arg EXTRAS=llama" >&2; exit 1; \
    fi
ENTRYPOINT ["llmkube-llama-server"]
CMD ["--help"]

# The default target.
FROM llmkube
