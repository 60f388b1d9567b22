# `make` alone prints the targets.
.DEFAULT_GOAL := help
.PHONY: help build run test check lint race sim kill kill-cold kill-restore failover faults moving power flood fuzz bench profile clean tzdata peers peers-stop bench-peers

TOOLS := go tool -modfile=.ci/tools/go.mod
SEED ?=
SEEDS ?= 20000
KILLS ?= 100
COLD_KILLS ?= 200
FAULTS ?= 200
MOVES ?= 100
POWER ?= 100
FLOOD ?= 1000000
FUZZTIME ?= 10m
PEERS ?=
# Tests run side by side: one more than there are cores, because most of them wait for servers.
PARALLEL := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
# All is compiled with the profile that go build takes for the program, so that a dependency is compiled once.
export GOFLAGS := $(shell go env GOFLAGS) '-pgo=$(CURDIR)/cmd/carillon/default.pgo'
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

help: ## print this
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/carillon
	@mkdir -p bin
	go build -o bin/carillon ./cmd/carillon

run: build ## start the engine with sample jobs and watch them fire
	@./bin/carillon demo

test: ## vet and test everything (short forms of the long runs included)
	go vet ./...
	go test -timeout 15m -parallel $(PARALLEL) ./engine/node ./... # the longest first: the others run beside it
	cd bench/peers && go vet ./... && go test ./...

check: lint test ## what a change must pass: lint and test

lint: ## formatting, vet, staticcheck, dead code
	@out=$$($(TOOLS) gofumpt -l .); test -z "$$out" || { echo "not formatted:"; echo "$$out"; exit 1; }
	go vet ./...
	$(TOOLS) staticcheck ./...
	@out=$$($(TOOLS) deadcode -test ./...); test -z "$$out" || { echo "$$out"; exit 1; }

race: ## test under the race detector
	go test -race -timeout 30m ./...

sim: ## simulate whole clusters: make sim SEEDS=20000, or one: make sim SEED=123
	go test ./engine/sim -run 'TestSim$$' -v -timeout 0 $(if $(SEED),-seed=$(SEED) -seeds=1,-seeds=$(SEEDS))

kill: ## kill -9 a loaded engine 100 times and check every trigger: make kill KILLS=100
	CARILLON_KILLS=$(KILLS) go test ./engine/node -run 'TestKill$$|TestKillPersistAsync$$' -v -timeout 0

kill-cold: ## the same 200 times with jobs on disk, a checkpoint every 200 ms and snapshots saved beside: make kill-cold COLD_KILLS=200
	CARILLON_KILLS=$(COLD_KILLS) go test ./engine/node -run 'TestKillCold$$' -v -timeout 0

kill-restore: ## kill -9 a restore, straight and into other partitions, KILLS times each: make kill-restore KILLS=100
	CARILLON_KILLS=$(KILLS) go test ./engine/node -run 'TestKillWhileRestoring$$' -v -timeout 0

failover: ## kill -9 owners with three replicas and 3,000 triggers a second, freeze and hand over others, and check every trigger: make failover KILLS=50 FOLLOW=placed
	CARILLON_FOLLOW=$(FOLLOW) CARILLON_FAILOVERS=$(KILLS) CARILLON_REPLICAS=3 CARILLON_STEADY=1200 CARILLON_HANDOVERS=10 CARILLON_FREEZES=3 CARILLON_FROZEN=20 \
	  go test ./engine/node -run 'TestFailover|TestHandOver|TestFrozenOwner' -parallel 1 -v -timeout 0

faults: ## kill, freeze, cut off and slow down three nats-servers and three engines, at random: make faults FAULTS=200 SEED=7 FOLLOW=placed
	CARILLON_FOLLOW=$(FOLLOW) CARILLON_FAULTS=$(FAULTS) CARILLON_SEED=$(SEED) CARILLON_REPLICAS=3 CARILLON_SPLIT=60 go test ./engine/node -run 'TestFaults/network|TestSplitViews' -v -timeout 0

moving: ## kill nodes, and fill their disks, at any write while partitions are taken and given up: make moving MOVES=100 SEED=7
	CARILLON_MOVES=$(MOVES) CARILLON_SEED=$(SEED) go test ./engine/node -run TestMoving -v -timeout 0

power: ## cut the power of a loaded engine, 100 seeds of it, and check every trigger: make power POWER=100
	CARILLON_POWER=$(POWER) go test ./engine/node -run TestPowerLoss -v -timeout 0

flood: ## bad commands beside a job that goes on firing: make flood FLOOD=1000000
	CARILLON_FLOOD=$(FLOOD) go test ./engine/node -run TestFlood -v -timeout 0

fuzz: ## fuzz every decoder: make fuzz FUZZTIME=10m
	@for pkg in . ./engine ./engine/schedule ./wal ./snapshot ./snapshot/archive ./bench/report; do \
	  for f in $$(go test $$pkg -list '^Fuzz' | grep '^Fuzz'); do \
	    echo "$$pkg $$f"; go test $$pkg -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) || exit 1; \
	  done; done

bench: build ## lateness at 5,000 triggers a second for a minute, beside the machine's own floor
	./bin/carillon bench lateness

profile: ## take the profile that the program is compiled with, under load (about seven minutes)
	bench/profile.sh

peers: build ## install the peers' servers (PostgreSQL and Redis, Debian's) and see each start and stop
	@{ ls /usr/lib/postgresql/*/bin/initdb || command -v initdb; } >/dev/null 2>&1 && command -v redis-server >/dev/null || \
	  { $(SUDO) apt-get update -q && $(SUDO) apt-get install -yq postgresql redis-server; }
	cd bench/peers && go run . check

peers-stop: ## end what a killed run of the peers left behind
	cd bench/peers && go run . stop

bench-peers: build ## Carillon beside its peers, one table (about 15 minutes): make bench-peers PEERS='--rates 1000,5000'
	cd bench/peers && go build -o ../../bin/peers .
	./bin/peers run --carillon bin/carillon --out bin/results/peers $(PEERS)

tzdata: ## take the zone rules of the Go toolchain in use
	cp "$$(go env GOROOT)/lib/time/zoneinfo.zip" engine/schedule/tzdata/zoneinfo.zip
	sed -n 's/^DATA=//p' "$$(go env GOROOT)/lib/time/update.bash" > engine/schedule/tzdata/VERSION

clean: ## remove what was built
	rm -rf bin
