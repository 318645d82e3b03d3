# Everything that can be done with the sources. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Everything is compiled alike, so that a package is compiled once for all stages: without C, but for the race detector, and as the programs are.
GO_FLAGS := -trimpath -tags=grpcnotrace
export GOFLAGS := $(filter-out $(GO_FLAGS),$(GOFLAGS)) $(GO_FLAGS)
export CGO_ENABLED := 0

TOOLS := $(CURDIR)/.tools
GOTESTSUM := $(TOOLS)/gotestsum --format pkgname --hide-summary=skipped
STAGE := scripts/stage.sh

# $(call TESTS,stage,packages,flags of go test,environment) runs tests, each once. With RERUN=1, which CI sets, one that
# fails is run once more, alone: if it passes then, it is listed as flaky in .out/STAGE.flaky, and at the end of CI. More than
# five failures, a panic or a data race fail at once.
# Nobody debugs the test binaries: without symbols each of them is linked in two thirds of the time. What go vet finds, make lint does, once.
RERUN_FLAGS = $(if $(RERUN),--rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-abort-on-data-race --rerun-fails-report .out/$1.flaky)
TESTS = $(STAGE) $1 env $4 $(GOTESTSUM) --jsonfile .out/$1.json $(RERUN_FLAGS) --packages "$2" -- -vet=off -ldflags='-s -w' $3
PAGE := broker/daemon/page
MQTTJS := test/interop/clients/mqttjs
PEERS := test/interop/devices/node

# Packages that start whole programs, or take their time: they have targets of their own.
WHOLE := ./test/e2e/... ./test/interop/... ./test/flood/... ./test/kube/... ./test/chaos/... ./test/bench/...
UNIT = $$(go list ./... | grep -Ev '/test/(e2e|interop|flood|kube|chaos|bench)(/|$$)')
PROGRAMS := ./cloud/cmd/... ./edge/cmd/... ./mappers/cmd/...

# Tests of whole programs that need root: loop mounts and namespaces. And those of which `make e2e` runs one part, and `make chaos` the others.
ROOTED := FullDisk|FrozenDisk|AnotherNamespace|PowerCut|ReadOnlyDisk|BadNetwork|NetworkNamespace|OnAHost|OnHosts
IN_PART := KilledAtEveryStep|KilledInARollBack|EachDamagedFile|TestScripts/kubectl-verbs

# Tests mostly wait for what they test, not for the processor: more of them run at a time than there are processors.
PARALLEL := -p 4 -parallel 6

# How long things are tried for.
ROUNDS ?= 20
CLOCK_ROUNDS ?= 10
FUZZTIME ?= 2s
BENCHTIME ?= 2s
export ROUNDS CLOCK_ROUNDS

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: build ## start hub, core, mappers and simulated devices, and watch them
	@bin/edgebus demo $(ARGS)

.PHONY: demo-cluster
demo-cluster: build $(TOOLS)/nats-server ## start three hubs that are one, and kill them by keys (KEYS=kskq presses these, without a terminal)
	@PATH="$(TOOLS):$$PATH" bin/edgebus demo cluster $(if $(KEYS),--keys $(KEYS)) $(ARGS)

.PHONY: build
build: ## build the programs into bin/ (VERSION=v1.2.0 gives them a version)
	@$(STAGE) build go build -buildvcs=auto -ldflags '-s -w $(if $(VERSION),-X github.com/edgebus/edgebus/broker/daemon.version=$(VERSION))' -o bin/ $(PROGRAMS)

.PHONY: test
test: unit e2e ## run the packages' tests and the scripts against the real programs; no root needed

.PHONY: unit
unit: needs $(TOOLS)/gotestsum $(TOOLS)/nats-server ## run the packages' tests, with few repetitions of what is random (make race has all)
	@$(call TESTS,unit,$(UNIT),$(PARALLEL) -short)

.PHONY: race
race: needs needs-gcc $(TOOLS)/gotestsum $(TOOLS)/nats-server ## run the packages' tests with the race detector
	@$(call TESTS,race,$(UNIT),-race -timeout 20m -p 4,CGO_ENABLED=1)

.PHONY: race-compiled
race-compiled: needs-gcc # for make race
	@$(STAGE) race-compiled env CGO_ENABLED=1 go list -race -test -export -f '{{""}}' $(UNIT)

.PHONY: e2e
e2e: needs needs-shells $(TOOLS)/gotestsum $(TOOLS)/kubectl $(TOOLS)/oidc-provider $(TOOLS)/controller $(TOOLS)/helm $(TOOLS)/nats-server build ## run the scripts against the real programs
	@$(call TESTS,e2e,./test/e2e/... ./test/kube/...,$(PARALLEL) -count=1 -timeout 10m)

.PHONY: interop
interop: needs needs-clients $(TOOLS)/gotestsum $(TOOLS)/kubectl $(TOOLS)/kubeedge-mapper build ## try the MQTT clients, brokers and devices of others with the programs, and flood them
	@$(call TESTS,interop,./test/interop/... ./test/flood/...,-count=1 -timeout 10m -p 1 -parallel 4)

.PHONY: chaos
chaos: needs $(TOOLS)/gotestsum $(TOOLS)/kubectl $(TOOLS)/nats-server $(TOOLS)/linearizable build ## break links, kill programs and cut power, ROUNDS times, and set clocks, CLOCK_ROUNDS times (SEED repeats a run); and what needs root, or the system's kubectl
	@$(call TESTS,root,./test/e2e ./test/e2e/upgrade ./broker/journal ./broker/wal ./broker/history ./cloud/store/disk ./test/disk,-count=1 -timeout 10m -p 3 -parallel 4 -run '$(ROOTED)|$(IN_PART)',ROOT_TESTS=1 ALL_TESTS=1)
	@rm -f .out/chaos.txt
	@status=0; ROOT_TESTS=1 CHAOS_SUMMARY=$(CURDIR)/.out/chaos.txt $(STAGE) chaos $(GOTESTSUM) --jsonfile .out/chaos.json -- \
		-count=1 -timeout $$((20 + (ROUNDS + CLOCK_ROUNDS) / 2))m ./test/chaos/... || status=$$?; \
		cat .out/chaos.txt 2>/dev/null || true; exit $$status

.PHONY: chaos-cluster
chaos-cluster: needs $(TOOLS)/gotestsum $(TOOLS)/nats-server $(TOOLS)/linearizable build ## break three hubs and the servers of their log, ROUNDS times, or each fault for MINUTES (FAULTS=hub-*,power chooses; SEED repeats a run)
	@ROOT_TESTS=1 CLUSTER_ROUNDS=$(ROUNDS) MINUTES=$(MINUTES) CHAOS_SUMMARY=$(CURDIR)/.out/chaos-cluster.txt $(STAGE) chaos-cluster $(GOTESTSUM) --format standard-verbose --jsonfile .out/chaos-cluster.json -- \
		-count=1 -timeout $$((20 + ROUNDS / 2 + 60 * $(or $(MINUTES),0)))m -run HubsOnHosts ./test/chaos/cluster

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME
	@$(STAGE) fuzz scripts/fuzz.sh $(FUZZTIME)

.PHONY: lint
lint: $(TOOLS)/golangci-lint $(TOOLS)/govulncheck $(TOOLS)/helm ## check style, imports, mistakes, alert rules, boards and the Helm chart
	@$(STAGE) lint $(TOOLS)/golangci-lint run
	@$(STAGE) names go run ./scripts/vocabulary
	@$(STAGE) arch go test ./test/arch
	@$(STAGE) monitoring env -C scripts/monitoring go test -count=1 .
	@$(STAGE) chart env -C test/tools/chart go test -count=1 .
	@$(STAGE) chunkenc env -C test/tools/chunkenc go test -count=1 .
	@$(STAGE) otlp env -C test/tools/otlp go test -count=1 .
	@$(STAGE) porcupine env -C test/tools/porcupine go test -count=1 .
	@$(STAGE) licenses env -C test/tools/licenses go test -count=1 .
	@$(STAGE) govulncheck scripts/vulncheck.sh $(TOOLS)/govulncheck

.PHONY: bench
bench: needs-bench $(TOOLS)/nats-server build ## measure the bus beside its physical limits, into docs/benchmarks.md
	@$(STAGE) bench go run -tags testprogram,grpcnotrace ./test/bench -t $(BENCHTIME) -o docs/benchmarks.md

.PHONY: microbench
microbench: ## run the packages' own benchmarks
	@$(STAGE) microbench go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -timeout 60m $(UNIT)

.PHONY: page
page: needs needs-page $(TOOLS)/gotestsum $(TOOLS)/oidc-provider build ## try the web page in Chromium, light and dark, wide and narrow; and check that it is built of its sources
	@$(MAKE) --no-print-directory page-dist
	@git diff --exit-code --stat -- $(PAGE)/dist || { echo "the page isn't what its sources make: commit what make page-dist has made" >&2; exit 1; }
	@test -z "$$(git status --porcelain -- $(PAGE)/dist)" || { git status --short -- $(PAGE)/dist; exit 1; }
	@$(STAGE) page env -C test/page go test -count=1 -timeout 10m .

.PHONY: needs-page
needs-page: test/page/axe/node_modules
	@scripts/needs.sh chromium=chromium npm=npm pgrep=procps mosquitto_pub=mosquitto-clients

.PHONY: page-dist
page-dist: $(PAGE)/web/node_modules ## bundle the web page's sources anew (needs npm); the result is committed
	@$(STAGE) page-dist sh -c '(cd $(PAGE)/web && npx tsc) && go run -C scripts/page . $(CURDIR)/$(PAGE)'

$(PAGE)/web/node_modules: $(PAGE)/web/package-lock.json
	@scripts/needs.sh npm=npm
	@cd $(PAGE)/web && npm ci --no-audit --no-fund --silent && touch node_modules

.PHONY: man
man: build ## make man pages of what --help says, in .out/man (VERSION as for build): man -l .out/man/edgebus-twin-set.1
	@$(STAGE) man go run $(if $(VERSION),-ldflags '-X github.com/edgebus/edgebus/broker/daemon.version=$(VERSION)') ./scripts/manpages .out/man bin/cloudhub bin/edge{core,agent,discovery} bin/mapper-*

# What users install. RELEASE makes it, of all architectures unless ARCH=amd64,arm64 says which.
RELEASE = rm -rf .out/$1; $(STAGE) $1 env -C scripts/release go run . $1 --version '$(or $(VERSION),$(error VERSION=v0.9.0 is needed))' --out ../../.out/$1 $(if $(ARCH),--arch $(ARCH))

.PHONY: packages
packages: ## make deb and rpm packages, in .out/packages (VERSION=v0.9.0)
	@$(call RELEASE,packages)

.PHONY: images
images: ## make container images, in .out/images (VERSION=v0.9.0)
	@$(call RELEASE,images)

.PHONY: release
release: ## make a release, in .out/release (VERSION=v0.9.0; EDGEBUS_RELEASE_KEY signs it): packages, images, archives, SBOMs, checksums
	@$(call RELEASE,release)

.PHONY: packages-test
packages-test: needs-packages $(TOOLS)/gotestsum $(TOOLS)/cosign $(TOOLS)/nats-server ## install, upgrade, remove and purge what users install, on a Debian of its own
	@$(STAGE) packages-test env -C scripts/release CI=$(CI) $(GOTESTSUM) --jsonfile ../../.out/packages.json -- -count=1 -timeout 20m .

.PHONY: golden
golden: ## write the golden files anew; read the difference before you commit it
	@$(STAGE) golden env GOLDEN=write go test -count=1 $(UNIT)
	@$(STAGE) monitoring env -C scripts/monitoring go run .
	@$(STAGE) licences env -C scripts/release GOLDEN=write go test -count=1 -run Licences .

.PHONY: ci
ci: ## what CI runs after `make test`: lint, race, interop, the page, packages, chaos and a short fuzz
	@scripts/ci.sh chaos+lint+race-compiled race interop page packages-test fuzz

.PHONY: clean
clean: ## remove what was built, apart from the tools
	@rm -rf bin .out

# What tests need of the system. In CI a test that misses a program fails.
.PHONY: needs
needs:
	@mkdir -p .out
	@scripts/needs.sh mosquitto_pub=mosquitto-clients mosquitto_rr=mosquitto-clients /usr/sbin/mosquitto=mosquitto openssl=openssl curl=curl git=git \
		/usr/sbin/mkfs.ext4=e2fsprogs mount=mount prlimit=util-linux unshare=util-linux \
		ip=iproute2 /usr/sbin/tc=iproute2 nsenter=util-linux iptables=iptables kubectl=kubernetes-client dbus-daemon=dbus-daemon \
		/usr/lib/python3/dist-packages/kubernetes=python3-kubernetes /usr/lib/python3/dist-packages/grpc=python3-grpcio /usr/lib/python3/dist-packages/google/protobuf=python3-protobuf \
		protoc=protobuf-compiler grpc_python_plugin=protobuf-compiler-grpc

.PHONY: needs-shells
needs-shells: # that complete the command line of edgebus
	@scripts/needs.sh zsh=zsh fish=fish /usr/share/bash-completion/bash_completion=bash-completion python3=python3

.PHONY: needs-bench
needs-bench: # the broker that ours is compared with, and the tool that keeps both on a core
	@scripts/needs.sh /usr/sbin/mosquitto=mosquitto taskset=util-linux

.PHONY: needs-packages
needs-packages: # a Debian to install into, and what reads packages
	@mkdir -p .out
	@scripts/needs.sh mmdebstrap=mmdebstrap systemd-nspawn=systemd-container nsenter=util-linux lintian=lintian rpm=rpm \
		qemu-arm-static=qemu-user-static minisign=minisign podman=podman crun=crun docker-compose=docker-compose curl=curl

.PHONY: needs-gcc
needs-gcc: # for the race detector
	@scripts/needs.sh gcc=gcc /usr/include/stdlib.h=libc6-dev

.PHONY: needs-clients
needs-clients: $(MQTTJS)/node_modules $(PEERS)/node_modules # the MQTT clients that both brokers are tried with, and the devices that mappers are
	@scripts/needs.sh /usr/bin/python3=python3 /usr/lib/python3/dist-packages/paho/mqtt=python3-paho-mqtt /usr/sbin/snmpd=snmpd snmptrap=snmp /usr/sbin/nginx=nginx-light openssl=openssl \
		/usr/lib/python3/dist-packages/pymodbus=python3-pymodbus /usr/lib/python3/dist-packages/serial_asyncio=python3-serial-asyncio socat=socat prometheus-alertmanager=prometheus-alertmanager \
		ip=iproute2 nsenter=util-linux jq=jq

# What npm has, as the lock files have it.
$(MQTTJS)/node_modules $(PEERS)/node_modules test/page/axe/node_modules: %/node_modules: %/package.json %/package-lock.json
	@scripts/needs.sh node=nodejs npm=npm
	@$(STAGE) $(notdir $*) npm ci --prefix $* --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# Pinned tools, built once.
$(TOOLS)/gotestsum: TOOL := gotest.tools/gotestsum
$(TOOLS)/golangci-lint: TOOL := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(TOOLS)/govulncheck: TOOL := golang.org/x/vuln/cmd/govulncheck
$(TOOLS)/gotestsum $(TOOLS)/golangci-lint $(TOOLS)/govulncheck: scripts/tools/go.mod scripts/tools/go.sum
	@$(STAGE) $(@F) env -C scripts/tools GOBIN=$(TOOLS) go install $(TOOL)
	@touch $@

# What else speaks the Kubernetes API: a recent kubectl, which is tried beside the system's own, a controller that is written with
# controller-runtime, and helm. One module, so that what they share is compiled once.
$(TOOLS)/kubectl $(TOOLS)/controller: TOOL = ./$(@F)
$(TOOLS)/helm: TOOL := helm.sh/helm/v3/cmd/helm
$(TOOLS)/kubectl $(TOOLS)/controller $(TOOLS)/helm: test/tools/kubernetes/go.mod test/tools/kubernetes/go.sum $(wildcard test/tools/kubernetes/*/main.go)
	@$(STAGE) $(@F) env -C test/tools/kubernetes go build -ldflags '-s -w' -o $(TOOLS)/ $(TOOL)
	@touch $@

# A mapper made with KubeEdge's framework, for the bridge that KubeEdge's mappers register with.
$(TOOLS)/kubeedge-mapper: test/tools/kubeedge/go.mod test/tools/kubeedge/go.sum test/tools/kubeedge/main.go
	@$(STAGE) $(@F) env -C test/tools/kubeedge go build -ldflags '-s -w' -o $(TOOLS)/kubeedge-mapper .
	@touch $@

# cosign, which verifies what a release signs.
$(TOOLS)/cosign: test/tools/cosign/go.mod test/tools/cosign/go.sum
	@$(STAGE) $(@F) env -C test/tools/cosign go build -ldflags '-s -w' -o $(TOOLS)/cosign github.com/sigstore/cosign/v2/cmd/cosign
	@touch $@

# The server of NATS, which replicates the log of several hubs.
$(TOOLS)/nats-server: test/tools/nats/go.mod test/tools/nats/go.sum
	@$(STAGE) $(@F) env -C test/tools/nats go build -ldflags '-s -w' -o $(TOOLS)/nats-server github.com/nats-io/nats-server/v2
	@touch $@

# What checks whether histories of registers are linearizable.
$(TOOLS)/linearizable: test/tools/porcupine/go.mod test/tools/porcupine/go.sum test/tools/porcupine/main.go
	@$(STAGE) $(@F) env -C test/tools/porcupine go build -ldflags '-s -w' -o $(TOOLS)/linearizable .
	@touch $@

# An OpenID Connect provider, for the tests of signing in.
$(TOOLS)/oidc-provider: test/tools/oidc/go.mod test/tools/oidc/go.sum test/tools/oidc/main.go
	@$(STAGE) $(@F) env -C test/tools/oidc go build -ldflags '-s -w' -o $(TOOLS)/oidc-provider .
	@touch $@
