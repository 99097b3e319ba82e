# The project's entry points. `make run` and `make test` install what they need by themselves.

PORT ?= 11211
HOST ?= 127.0.0.1
# A server of root has to be told as whom it serves.
AS_ROOT := $(if $(filter 0,$(shell id -u)),-u root)

.PHONY: help run docs test setup fmt clippy unit examples doc tidy models loom shuttle miri tsan clients \
	clients-short namespaces cluster-test differential soak simulation mutants hostile fuzz fuzz-short rtl-test \
	rtl-lint rtl-full rtl-synth rtl-wave deny sbom release arm64 oracle oracle-short sanitize
.DEFAULT_GOAL := help

help:            ## list the targets
	@sed -nE 's/^#?([a-z0-9-]+): *## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

run:             ## build the server and start it on 127.0.0.1:11211
	@scripts/setup run
	cargo build --profile quick --bin amalgam
	@echo "Starting on $(HOST):$(PORT); end it with Ctrl-C. Two lines to try in another terminal:"
	@echo "  printf 'set greeting 0 60 5\r\nhello\r\nquit\r\n' | nc $(HOST) $(PORT)"
	@echo "  printf 'get greeting\r\nquit\r\n' | nc $(HOST) $(PORT)"
	@exec target/quick/amalgam serve $(AS_ROOT) -l $(HOST) -p $(PORT) $(ARGS)

docs:            ## write the tables of docs/results anew from stored JSON
	cargo run -q --bin amalgam-lab -- reproduce --docs docs/results --out docs/results/reproduce

test:            ## everything that must pass before a change lands
	@scripts/setup test
	@scripts/test

setup:           ## install what `make test` needs
	@scripts/setup test

fmt clippy unit examples doc tidy models loom shuttle miri tsan clients clients-short namespaces \
cluster-test differential soak simulation mutants hostile fuzz fuzz-short rtl-test rtl-lint rtl-full rtl-synth \
rtl-wave deny sbom release arm64 oracle oracle-short sanitize:
	@scripts/setup $@
	@scripts/test $@

# One line each for `make help`:
#fmt:            ## formatting only
#clippy:         ## lints only
#unit:           ## unit, property and conformance tests only
#examples:       ## the library's examples only
#deny:           ## licences, versions, sources and known vulnerabilities of the libraries
#sbom:           ## what the binary is built from, as CycloneDX, to target/sbom
#release:        ## packages, static binaries, image, checksums, to target/release-files
#arm64:          ## tests of engines, protocols, server and cluster on 64-bit Arm, emulated (ARGS)
#doc:            ## documentation, warnings denied
#tidy:           ## the rules of this project only
#models:         ## HotRing's ring as a model, in every order of its steps
#loom:           ## exhaustive interleavings of small models
#shuttle:        ## random interleavings of the rings' protocols
#miri:           ## undefined behaviour in `op`, `index::mem` and three engines
#tsan:           ## data races under ThreadSanitizer, long form
#sanitize:       ## the server with clients under AddressSanitizer and ThreadSanitizer (SECONDS_EACH)
#clients:        ## clients, and the suites of other people's clients, with memcached too
#clients-short:  ## the same with three suites, as in `make test`
#namespaces:     ## a cluster of processes in network namespaces, with etcd, small
#cluster-test:   ## the same, large, nodes killed and cut off (NODES=8 FAULT_SECONDS=120 ROUNDS=4)
#differential:   ## random commands to memcached and to us, long form
#soak:           ## the conformance suite with far more cases
#simulation:     ## seeds of a whole cluster with crashes (SEED=0 SEEDS=50000); goes on where it was
#oracle:         ## 2,000 seeds whose histories another checker judges (SEED=0 SEEDS=2000)
#oracle-short:   ## histories of engines, processes and seeds, as in `make test`
#mutants:        ## planted defects, each of which the simulation must find
#hostile:        ## clients that attack every port, ten times the short form (AMALGAM_EFFORT)
#fuzz:           ## each fuzz target for an hour of CPU in all runs, in the background (SECONDS_EACH)
#fuzz-short:     ## each fuzz target from its corpus and for 20 s
#rtl-test:       ## the hardware, simulated in lockstep with its reference, and the quick proofs
#rtl-lint:       ## Verilator's, verible's and slang's opinion of the hardware
#rtl-full:       ## rtl-test, rtl-lint, deeper proofs, benches, clients, line rates, synthesis
#rtl-synth:      ## LUTs, flip-flops and block RAMs of each module on three families of chips
#rtl-wave:       ## one request as a waveform: target/rtl-wave.vcd and .svg
