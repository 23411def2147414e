# The common tasks of this repository. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help build test test-python test-torch test-strangers test-onnx demo bundle deb image wheel bench fmt lint tsan asan fuzz clean setup

# Seconds for each fuzz target of `make fuzz`.
FUZZ_SECONDS ?= 60
# The output folder of `make bundle`.
DIST ?= dist
# Options of Bazel for `make build`, `make test` and `make bundle`, such as --config=ci.
BAZEL_OPTIONS ?=

help:  ## Lists these targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:
	@deploy/setup-debian.sh

build: setup  ## Builds everything.
	@bazel/progress build $(BAZEL_OPTIONS) //...

test: setup  ## Builds and runs every test; the last line is `N passed, N failed`.
	@tests/run $(BAZEL_OPTIONS)

test-python: setup  ## Tests the Python package with the oldest and the newest versions of what it needs.
	@tests/python/run_versions $(BAZEL_OPTIONS)

test-torch: setup  ## Tests residentd.torch with torch from PyPI; skips without a registry.
	@BAZEL_OPTIONS='$(BAZEL_OPTIONS)' tests/torch/run

test-strangers: build  ## Runs tritonclient (a sentence encoder too), perf_analyzer and KServe's SDK, from PyPI, with the daemon; skips without a registry.
	@tests/strangers/run

test-onnx: build  ## Loads the models of the node tests of the package onnx, from PyPI, and checks their results; skips without a registry.
	@tests/onnx/run

demo: setup  ## Builds, starts a daemon, streams work to it, decodes with a small model, checks the results.
	@deploy/demo.sh

bundle: setup  ## Makes dist/: the programs with every library that they need, for other machines.
	@BAZEL_OPTIONS='$(BAZEL_OPTIONS)' bazel/bundle.sh $(DIST)

deb: bundle  ## Makes DIST/residentd_VERSION_ARCHITECTURE.deb, for Debian 12, Ubuntu 24.04, or newer.
	@deploy/deb/make_package $(DIST)

image: bundle  ## Makes DIST/*.oci.tar: images for containers, one with and one without a compiler.
	@deploy/docker/make_images $(DIST)

wheel: setup  ## Makes the Python packages in DIST/python, for pip; does not build the daemon.
	@bazel build //client/python:wheel //client/python:lane_wheel
	@install -D -m 644 -t $(DIST)/python $$(bazel info bazel-bin 2>/dev/null)/client/python/*.whl
	@ls $(DIST)/python/*.whl

bench: setup  ## Measures on this machine (its GPUs, or the CPU if there are none); see also tests/gpu/run.
	@tests/bench

fmt: setup  ## Formats the C++ sources.
	@git ls-files -z '*.h' '*.c' '*.cc' '*.cu' '*.cuh' | xargs -0 clang-format -i

lint: setup  ## Checks format, lock annotations (clang) and shell scripts; changes nothing.
	@.ci/lint

tsan: setup  ## Runs the runtime's tests under ThreadSanitizer.
	@.ci/sanitize tsan

asan: setup  ## Runs the runtime's tests under AddressSanitizer and UBSan.
	@.ci/sanitize asan

fuzz: setup  ## Runs each fuzz target for FUZZ_SECONDS (default 60).
	@.ci/fuzz $(FUZZ_SECONDS)

clean:  ## Removes the build outputs.
	@bazel clean
	@rm -rf $(DIST) out
