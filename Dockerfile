# syntax=docker/dockerfile:1

# The image of every LLMKube program: docker build -t REGISTRY/llmkube:TAG .
# Wheels only, so no compiler is needed at any time; what runs has neither pip of its own nor a shell script.

ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
# Empty for the controller; `llama` adds llama.cpp, for an agent in a container.
ARG EXTRAS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/llmkube
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/llmkube/bin/python -m pip install --only-binary=:all: ".${EXTRAS:+[${EXTRAS}]}" \
    && /opt/llmkube/bin/python -m pip uninstall --yes pip setuptools

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="LLMKube" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/llmkube /opt/llmkube
# Nothing is written outside /tmp, by any user id: the root filesystem may be read-only, and OpenShift chooses the user.
ENV PATH=/opt/llmkube/bin:$PATH \
    HOME=/tmp \
    LLMKUBE_STATE_DIR=/tmp/llmkube \
    PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["llmkube"]
CMD ["controller"]
