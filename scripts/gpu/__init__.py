"""The GPU check: GPU tests, throughput, phases of a step and memory; see ``scripts/gpu_check.sh``."""
