# What a person does often. Every target installs what it needs; see scripts/setup.
PYTHON := build/venv/bin/python

.PHONY: help demo test test-engines model lint format sanitize fuzz bench soak docs build clean

help:
	@echo "make demo          a burst through the gateway, with and without rooms, side by side"
	@echo "make test          all tests (unit, integration)"
	@echo "make test-engines  the real TokenSpeed frontend and scheduler on a CPU (1.7 GB from PyPI)"
	@echo "make model         the room link as a model: every property over every state"
	@echo "make lint          clang-format, clang-tidy, ruff, mypy, docs against code"
	@echo "make format        format everything"
	@echo "make sanitize      the tests under ASan + UBSan, the C tests under TSan"
	@echo "make fuzz          whatever is decoded, and the configuration, fuzzed for ten minutes each (100 in all)"
	@echo "make bench         roomkeeper beside the servicers it replaces; QUICK=1: under five minutes"
	@echo "make soak          mixed load and mischief for 30 minutes: is anything left behind?"
	@echo "make docs          regenerate the configuration reference"

build:
	@scripts/setup build
	@scripts/build release

demo:
	@scripts/setup build demo
	@scripts/build release
	@PYTHONPATH=python ROOMKEEPER_BRIDGE_DIR=build/release/python/roomkeeper $(PYTHON) -m roomkeeper demo

test:
	@scripts/setup build test
	@scripts/build dev
	@$(PYTHON) scripts/run_tests.py --preset dev

test-engines:
	@scripts/setup build
	@scripts/test-engines

model:
	@scripts/setup model
	@scripts/model

lint:
	@scripts/setup build lint
	@scripts/build dev
	@scripts/lint

format:
	@scripts/setup build lint
	@scripts/format

sanitize:
	@scripts/setup build sanitize
	@scripts/sanitize

fuzz:
	@scripts/setup build sanitize
	@scripts/fuzz

bench:
	@scripts/setup build
	@bench/run $(if $(QUICK),--quick)

soak:
	@bench/soak

docs:
	@scripts/setup build test
	@scripts/build dev
	@$(PYTHON) scripts/configuration_reference.py --write

clean:
	rm -rf build
