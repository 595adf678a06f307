# Everything a newcomer needs: `make demo`, `make test`. Each target sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
unexport PYTHONDONTWRITEBYTECODE  # tests start programs some hundred times: none compiles itself again

.DEFAULT_GOAL := help
.PHONY: help demo test soak check docs newcomer envtest node bench manifests reference generate chart dist pins lock clean
.PHONY: tagged site push sign publish publish-site
.PHONY: install-metal-agent uninstall-metal-agent install-powermetrics-sudo uninstall-powermetrics-sudo

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 30

# Installs the pinned wheels of requirements/, checked by digest, and then this tree, without downloads.
PINNED := --require-hashes --only-binary :all:
SERVING := $(VENV)/.serving
SERVES := --requirement requirements/llama.txt --requirement requirements/build.txt
THIS := --no-deps --no-build-isolation --editable .

define checked_python
@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "$(PYTHON) is not Python 3.11 or later (macOS brings 3.9); name one: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; \
	exit 1; \
} >&2
endef

# $(1) are the files of requirements/, $(2) the installer's flags
define installed
@if command -v uv >/dev/null 2>&1; then \
	test -x $(BIN)/python || uv venv --quiet --python "$(PYTHON)" $(VENV); \
	uv pip install $(2) --python $(BIN)/python $(PINNED) $(1) && \
	uv pip install --quiet --python $(BIN)/python $(THIS); \
else \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install $(2) --disable-pip-version-check $(PINNED) $(1) && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(THIS); \
fi
endef

$(STAMP): pyproject.toml requirements/dev.txt
	$(checked_python)
	$(call installed,--requirement requirements/dev.txt,--quiet)
	@touch $@ $(SERVING)  # it includes the packages that serving needs

$(SERVING): pyproject.toml requirements/llama.txt requirements/build.txt
	$(checked_python)
	@echo "Installing the packages for serving into $(VENV), once: $$(grep -c '^[a-z].*==' requirements/llama.txt) packages."
	$(call installed,$(SERVES),--quiet)
	@touch $@

demo: $(SERVING)  ## serve the built-in model in the background and ask it a question; ARGS="--gateway-port 8081"
	@found=$$($(BIN)/llmkube up start $(ARGS)) || { \
		echo 'Flags of `llmkube up` are passed on: make demo ARGS="--gateway-port 8081"' >&2; exit 1; }; \
	echo "$$found" | grep -E '^(llmkube up is|page) '; \
	steps=$$(mktemp); trap 'rm -f "$$steps"' EXIT; \
	$(BIN)/llmkube deploy demo --source builtin://demo >"$$steps" 2>&1 || { cat "$$steps" >&2; exit 1; }; \
	$(BIN)/llmkube chat demo "What is LLMKube?"
	@echo "stop        $(BIN)/llmkube up stop"

test: $(STAMP)  ## run the test suite on every core: a sample of the tests of .ci/run (tests/lengths.py)
	-@$(BIN)/python tests/charts/chart_tools.py  # the tests that need a missing tool name it
	LLMKUBE_LENGTHS=$${LLMKUBE_LENGTHS:-sample} $(BIN)/python -m pytest --numprocesses auto --dist loadgroup -m "not envtest and not node"

soak: export LLMKUBE_LENGTHS = soak
soak: test  ## run it at full length: more seeds, examples and hours (tests/lengths.py), and random mutants
	$(BIN)/python -m tests.random_mutants --count 120

envtest: $(STAMP)  ## run the API suites on two real kube-apiservers, built once from the published modules
	@test -n "$$LLMKUBE_TEST_KUBECONFIG" || $(BIN)/python tests/envtest/build.py
	$(BIN)/python -m pytest -m envtest tests/envtest $(if $(LLMKUBE_TEST_KUBECONFIG),,--numprocesses 2 --dist worksteal)

node: $(STAMP)  ## run the tests on a real node: kubelet, containerd, kube-proxy, images built from the Dockerfile; needs root
	@$(BIN)/python tests/node/needs.py
	@$(BIN)/python tests/charts/chart_tools.py helm >/dev/null
	@$(BIN)/python tests/node/build.py
	@$(BIN)/python tests/node/images.py >/dev/null
	$(BIN)/python -m pytest -m node --numprocesses 4 --dist loadscope --no-loadscope-reorder tests/node

bench: $(STAMP)  ## run every benchmark (about 20 minutes), or BENCH="NAME…", and write docs/reference/benchmarks.md
	$(BIN)/python benchmarks/harness.py $(BENCH)

check: $(STAMP)  ## linters, formatting, types and import contracts
	! git grep -nE '^(<<<<<<<|>>>>>>>) '  # an unresolved conflict
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check --quiet src tests benchmarks
	$(BIN)/python tests/async_rules.py src benchmarks  # flake8-async is slow: only files that changed; ruff's rules alone check the tests
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir "$${MYPY_CACHE_DIR:-.mypy_cache}/darwin"  # code for macOS only; a cache is for one platform
	$(BIN)/lint-imports
	"$$($(BIN)/python tests/charts/chart_tools.py actionlint)" -shellcheck= -pyflakes=  # not by whichever version is on PATH

docs: $(STAMP)  ## check the pages: links, paths, commands; run their consoles
	$(BIN)/python -m pytest -q tests/docs

screenshots: $(STAMP)  ## draw the pictures of docs/guides/page.md in a real browser
	LLMKUBE_PAGE_SHOTS=$(CURDIR)/docs/pictures $(BIN)/pytest -q -n 0 tests/e2e/test_page.py -k each_view

newcomer: $(STAMP)  ## clone the last commit, and type the commands of README and docs into a terminal of 80 columns
	PYTHONPATH=tests $(BIN)/python tests/docs/newcomer.py

manifests: $(STAMP)  ## write the files generated from the classes: docs/reference/crds.md, the chart's definitions and roles
	$(BIN)/llmkube crds --docs > docs/reference/crds.md
	$(BIN)/llmkube crds > charts/llmkube/files/crds.yaml
	for program in agent controller gateway; do \
		roles="$(BIN)/llmkube rbac $$program --lease-namespace @RELEASE_NAMESPACE@"; \
		$$roles --all-namespaces > charts/llmkube/files/rbac/$$program-cluster.yaml || exit 1; \
		$$roles --namespace @SERVED_NAMESPACE@ > charts/llmkube/files/rbac/$$program-namespace.yaml || exit 1; \
	done
	$(BIN)/llmkube rbac policies --lease-namespace @RELEASE_NAMESPACE@ > charts/llmkube/files/rbac/policies.yaml
	$(BIN)/python tests/charts/dashboards.py
	$(BIN)/python tests/mac/launchd_template.py > launchd/com.llmkube.metal-agent.plist

reference: $(STAMP)  ## write the pages generated from code: docs/reference/cli.md, config.md, metrics.md, reasons.md
	$(BIN)/python tests/docs/reference.py

generate: manifests reference  ## write everything that is generated from code

chart: $(STAMP)  ## package the Helm chart with IMAGE and CPU_ENGINE=REPOSITORY@sha256:… in it, and index it: dist/charts
	@$(BIN)/python tests/charts/package.py dist/charts "$(IMAGE)" "$(CPU_ENGINE)"

dist: $(STAMP)  ## build the files of a release from the last commit: wheel, sdist, lock, SBOM, checksums: dist; URL=https://… adds a formula
	@$(BIN)/python tests/supply/dist.py dist $(if $(URL),--url $(URL))

# The steps of .github/workflows/release.yml (docs/guides/release.md).
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
SITE := $(VENV)/site
SITE_OPTIONS := project=LLMKube root_doc=README extensions=myst_parser myst_heading_anchors=6 html_theme=alabaster \
	exclude_patterns=.*,dist,build suppress_warnings=toc.not_included,misc.highlighting_failure
UV := $(VENV)/uv
PLATFORMS ?= linux/amd64,linux/arm64
BUILDAH ?= buildah
export REGISTRY BASE

tagged:  ## check that the tag in GITHUB_REF_NAME is the version of pyproject.toml
	@test "$$GITHUB_REF_NAME" = "v$(VERSION)" || { echo "the tag $$GITHUB_REF_NAME is not v$(VERSION), the version of pyproject.toml" >&2; exit 1; }

site: $(SITE)  ## write the pages as HTML, search included: dist/site; fails on a link that leads nowhere
	rm -rf dist/site
	$(SITE)/bin/sphinx-build -q -W --keep-going -d $(SITE)/doctrees -C $(addprefix -D ,$(SITE_OPTIONS)) . dist/site
	cp dist/site/README.html dist/site/index.html

# an environment with the packages of one lock
$(SITE) $(UV):
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check $(PINNED) --requirement requirements/$(patsubst uv,lock,$(@F)).txt || { rm -rf $@; exit 1; }

# $(1) is the name of the image, $(2) what the Dockerfile needs besides BASE
define pushed
$(BUILDAH) build --platform $(PLATFORMS) --manifest "$$registry/$(1)" --build-arg BASE="$$base" --timestamp "$$time" $(2) .; \
$(BUILDAH) manifest push --all --rm --digestfile dist/digest "$$registry/$(1)" "docker://$$registry/$(1):$(VERSION)"; \
echo "$$registry/$(1)@$$(cat dist/digest)" >> dist/PUSHED
endef

push: $(STAMP)  ## build the images for PLATFORMS on BASE=IMAGE@sha256:…, and push them and the chart to REGISTRY; digests: dist/PUSHED
	@set -eu; mkdir -p dist; rm -f dist/PUSHED; registry=$$(echo "$$REGISTRY" | tr A-Z a-z); time=$$(git log -1 --format=%ct); \
	python=docker.io/library/python; base=$${BASE:-$$python@$$(skopeo inspect --format '{{.Digest}}' docker://$$python:3.13-slim)}; \
	set -x; \
	$(call pushed,llmkube); \
	$(call pushed,llmkube-llama,--build-arg EXTRAS=llama --target llama-server); \
	$(MAKE) --no-print-directory chart IMAGE="$$(sed -n 1p dist/PUSHED)" CPU_ENGINE="$$(sed -n 2p dist/PUSHED)"; \
	helm=$$($(BIN)/python tests/charts/chart_tools.py helm); \
	"$$helm" push $(HELM_FLAGS) dist/charts/llmkube-$(VERSION).tgz "oci://$$registry/charts" 2>&1 | tee dist/digest; \
	sed -n "s|^Digest: |$$registry/charts/llmkube@|p" dist/digest >> dist/PUSHED; rm dist/digest; test $$(wc -l < dist/PUSHED) = 3

sign:  ## sign what `make dist` and `make push` have made, with cosign; SIGN="--key …" uses a key instead of the workflow's identity
	@set -eux; cosign=$$($(PYTHON) tests/charts/chart_tools.py cosign); \
	xargs -n 1 "$$cosign" sign --yes $(SIGN) < dist/PUSHED; \
	"$$cosign" sign-blob --yes $(SIGN) --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS

publish: $(UV)  ## upload wheel and sources of `make dist` to the package index; PUBLISH=--dry-run only checks them
	test -n "$$UV_PUBLISH_TOKEN" || unset UV_PUBLISH_TOKEN; \
	$(UV)/bin/uv publish $(PUBLISH) dist/llmkube-$(VERSION)-py3-none-any.whl dist/llmkube-$(VERSION).tar.gz

publish-site:  ## push what `make site` has made to the branch gh-pages of PAGES=https://…, without its history
	touch dist/site/.nojekyll && git -C dist/site init --quiet --initial-branch gh-pages && git -C dist/site add --all
	git -C dist/site -c user.name=release -c user.email=release@localhost commit --quiet --message "$(VERSION)"
	git -C dist/site push --force "$(PAGES)" gh-pages

pins: $(STAMP)  ## list the pinned packages with their files, and the default images of engines
	@$(BIN)/python tests/supply/pins.py

lock: $(STAMP)  ## update requirements/*.txt, versions and digests; KEEP=1 keeps versions that pyproject.toml still allows
	@$(BIN)/python tests/supply/lock.py $(if $(KEEP),--keep)

# Path of the program named in the guides: a link into this tree, so that it uses the pinned wheels of requirements/.
PREFIX ?= /usr/local
GUIDE_PROGRAM := $(PREFIX)/bin/llmkube-metal-agent

install-metal-agent: $(SERVING)  ## on a Mac, start the agent now and at every login; ARGS="--daemon" for a daemon
	@$(call as_owner,$(PREFIX)/bin,mkdir -p $(PREFIX)/bin)
	@$(call as_owner,$(PREFIX)/bin,ln -sf $(CURDIR)/$(BIN)/llmkube-metal-agent $(GUIDE_PROGRAM))
	@$(BIN)/llmkube agent install $(ARGS)

uninstall-metal-agent: $(SERVING)  ## stop the agent and its engines and remove its job; models are kept
	@$(BIN)/llmkube agent uninstall
	@$(call as_owner,$(PREFIX)/bin,rm -f $(GUIDE_PROGRAM))

# $(2), with sudo if this user may not write to $(1) or, if that is missing, to its nearest parent
define as_owner
folder=$(1); until test -e $$folder; do folder=$$(dirname $$folder); done; \
if test -w $$folder; then $(2); else echo "$$ sudo $(2)" >&2; sudo $(2); fi
endef

POWER_RULE := /etc/sudoers.d/llmkube-powermetrics

install-powermetrics-sudo: $(STAMP)  ## on a Mac, allow this user's agents to measure power: one line of sudoers, shown first
	@$(BIN)/llmkube agent sudoers > $(VENV)/powermetrics.sudoers && cat $(VENV)/powermetrics.sudoers
	visudo -cf $(VENV)/powermetrics.sudoers
	sudo install -m 0440 -o 0 -g 0 $(VENV)/powermetrics.sudoers $(POWER_RULE)

uninstall-powermetrics-sudo:  ## remove that line
	sudo rm -f $(POWER_RULE)

clean:  ## remove the virtual environment and every cache
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
