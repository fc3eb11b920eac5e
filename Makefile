# Two commands matter: `make demo` and `make test`. Each does all its own set-up, as root, on Debian 12.
PY := build/venv/bin/python
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Some images set it. Each program would compile its modules at every start, and pytest all tests for every group.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help:  ## this text
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 16

.PHONY: setup setup-test
setup:  ## what the demo needs (called by it)
	@scripts/setup.sh demo
setup-test:
	@scripts/setup.sh test

.PHONY: demo
demo: setup  ## a live co-location node on this machine; ONCE=1 shows everything, cleans up, ends
	@$(PY) -m control.ctl.demo $(if $(ONCE),--once)

.PHONY: test
test: setup-test  ## every check and every test, on this kernel and in the guest
	@scripts/run_tests.sh $(PYTEST_ARGS)

.PHONY: test-kubernetes
KUBERNETES ?= v1.35
test-kubernetes: setup-test  ## install on a real Kubernetes (built on the first run) and test it there; KUBERNETES=v1.34
	@tests/kubernetes/build.sh $(KUBERNETES)
	@KOORD_KUBERNETES=$(KUBERNETES) tests/kubernetes/run.sh tests/kubernetes $(PYTEST_ARGS)

.PHONY: test-arm64
test-arm64:  ## the kernel tests of the guest on an emulated arm64 machine, half an hour or more
	@scripts/setup.sh arm64
	@KOORD_GUEST=arm64 $(PY) -m pytest -m guest -s tests/guest

.PHONY: test-sched
test-sched:  ## core scheduling and sched_ext on an emulated machine, with a kernel that is compiled on the first run
	@scripts/setup.sh sched
	@KOORD_GUEST=sched $(PY) -m pytest -m guest -s tests/guest

.PHONY: test-oracle
test-oracle: setup-test  ## compare scheduling decisions with the real kube-scheduler: WORLDS=2000 SEED=1
	@tests/kubernetes/build.sh $(KUBERNETES)
	@$(PY) -m tests.kubernetes.oracle --kubernetes $(KUBERNETES) --worlds $(or $(WORLDS),80) --seed $(or $(SEED),1)

.PHONY: unit
unit: setup-test  ## the tests that need neither root nor a kernel feature
	@$(PY) -m pytest -m "not kernel and not guest and not runtime and not kubectl and not e2e and not kubernetes" $(PYTEST_ARGS)

.PHONY: lint
lint:  ## ruff, mypy, import contracts
	@build/venv/bin/ruff check .
	@build/venv/bin/ruff format --check .
	@build/venv/bin/mypy
	@build/venv/bin/lint-imports

.PHONY: bench
bench: setup-test  ## every benchmark: a line `name value unit budget ok|over` each, JSON under build/bench/
	@$(PY) scripts/bench.py $(BENCH)

.PHONY: soak
soak: setup-test  ## koordlet with everything on, on a full node, for DURATION=1h; plot in docs/soak.svg
	@$(PY) tests/scale/soak.py $(if $(DURATION),--duration $(DURATION))

.PHONY: bench-manager
bench-manager: setup-test  ## koord-manager with 5,000 nodes and 100,000 pods, and its webhooks at 200 requests a second
	@$(PY) scripts/bench.py manager webhook

.PHONY: bench-scheduler
bench-scheduler: setup-test  ## pods placed a second on 1,000, 5,000 and 10,000 nodes; memory with 100,000 pods
	@$(PY) tests/scale/bench_scheduler.py

.PHONY: bench-descheduler
bench-descheduler: setup-test  ## a pass over 5,000 nodes and 100,000 pods; load of 1,000 nodes before and after
	@$(PY) tests/scale/bench_descheduler.py

.PHONY: test-hostile
test-hostile: setup-test  ## every attacker of docs/security.md against a whole node while a service runs; SECONDS_EACH=60
	@$(PY) -m tests.hostile --seconds $(or $(SECONDS_EACH),60)

.PHONY: bench-kubernetes
bench-kubernetes: setup-test  ## koord-scheduler beside kube-scheduler on a real API server; koordlet's cost under a real kubelet
	@tests/kubernetes/build.sh $(KUBERNETES)
	@status=0; $(PY) -m tests.kubernetes.bench_scheduler --kubernetes $(KUBERNETES) || status=$$?; \
	KOORD_KUBERNETES=$(KUBERNETES) tests/kubernetes/run.sh --module tests.kubernetes.bench_node || status=$$?; exit $$status

.PHONY: bench-interference
bench-interference: setup-test  ## who is named as culprit, in randomised trials: SEED=n TRIALS=60
	@$(PY) tests/scale/bench_interference.py --seed $(or $(SEED),1) --trials $(or $(TRIALS),60)

.PHONY: bench-proxy
bench-proxy: setup-test  ## what koord-runtime-proxy adds to calls of containerd and dockerd, beside the direct way
	@status=0; for one in bench_proxy bench_proxy_docker; do $(PY) tests/scale/$$one.py || status=$$?; done; exit $$status

.PHONY: demo-colocation
demo-colocation: setup-test  ## a service beside batch work, with and without koordlet, in numbers; ONCE=1 ends by itself
	@$(PY) -m tests.scale.colocation $(if $(ONCE),--once) $(if $(SVG),--svg $(SVG))

.PHONY: bench-colocation
bench-colocation:  ## Debian's services beside Debian's batch work: SERVICES=redis,nginx BATCH=cpu,disk SECONDS_EACH=10 ROUNDS=3 SVG=folder
	@scripts/setup.sh colocation
	@$(PY) -m tests.scale.colocation_real --services "$(SERVICES)" --batch "$(BATCH)" --seconds $(or $(SECONDS_EACH),10) \
	  --rounds $(or $(ROUNDS),3) $(if $(HEAD),--head $(HEAD)) $(if $(WEIGHT),--weight $(WEIGHT)) $(if $(SVG),--svg $(SVG))

.PHONY: chaos
chaos: setup-test  ## kill -9 koordlet while pods come and go: KILLS=50 PODS=200 SEED=n; DURATION=30m: everything fails
	@$(PY) tests/scale/chaos.py $(if $(DURATION),--duration $(DURATION)) $(if $(KILLS),--kills $(KILLS)) $(if $(PODS),--pods $(PODS)) $(if $(SEED),--seed $(SEED))

.PHONY: bpf
bpf:  ## the BPF objects
	@$(MAKE) --no-print-directory -C bpf

.PHONY: crds
crds:  ## rewrite deploy/crds from the structs
	@$(PY) -m koordlet.api.encoding.crdgen --out deploy/crds

.PHONY: docs docs-serve
docs:  ## the documentation site in build/docs/site; fails on a warning or a broken link
	@scripts/docs.sh
docs-serve:  ## the same on a local port, rebuilt at every change
	@scripts/docs.sh serve

.PHONY: diagrams
diagrams:  ## rewrite docs/diagrams
	@$(PY) -m scripts.diagrams

.PHONY: recording
recording: setup  ## record a run of `make demo ONCE=1` in docs/demo.cast, for asciinema
	@$(PY) -m scripts.recording --out docs/demo.cast -- $(MAKE) --no-print-directory demo ONCE=1

.PHONY: screenshots
screenshots:  ## record a run of the demo with Prometheus and draw the dashboards in docs/screenshots; DRAW=1 only draws again
	@scripts/setup.sh screenshots
	@$(PY) -m scripts.screenshots $(if $(DRAW),--draw)

.PHONY: dashboards
dashboards:  ## rewrite deploy/grafana and the panels in docs/grafana.md
	@$(PY) -m scripts.grafana

.PHONY: fuzz
fuzz:  ## every parser of tenant input with hypothesis and Atheris, the API with schemathesis; MINUTES=60 each
	@scripts/fuzz.sh $(or $(MINUTES),5)

.PHONY: security-tables
security-tables:  ## rewrite the tables of docs/security.md from the programs' data
	@$(PY) -m scripts.securitytables
	@$(PY) -m scripts.unitexposure

.PHONY: images chart demo-install
images: setup-test  ## the container images, from Debian packages, with Docker; ARCHIVE=1: for containerd, without Docker
	@$(PY) -m scripts.install.images $(if $(ARCHIVE),--archive)
demo-install: setup-test  ## install the images on the embedded cluster, use them, uninstall; ONCE=1 ends by itself
	@mkdir -p build/kubernetes
	@tests/kubernetes/run.sh --module scripts.install.demo $(if $(ONCE),--once)
chart:  ## the Helm chart in build/chart
	@$(PY) -m scripts.install.chart --out build/chart

.PHONY: configuration
configuration:  ## rewrite the references of fields, gates, flags, keys and metrics in docs
	@$(PY) -m scripts.configreference
	@$(PY) -m scripts.metricsreference

.PHONY: layout
layout:  ## rewrite docs/layout.md, the map of wide folders
	@$(PY) -m scripts.foldermap

.PHONY: pins
pins:  ## renew requirements/*.txt
	@scripts/pins.sh

.PHONY: clean
clean:  ## everything that was built, the virtual environment included
	@rm -rf build koordlet/probes/objects koordlet/api/hooks/*_pb2*.py* koordlet/api/nri/*_pb2*.py* koordlet/api/cri/*_pb2*.py*
	@$(MAKE) --no-print-directory -C bpf clean
