"""What only a GPU can show: its tests, throughput, phases of a step and memory; see ``scripts/gpu_check.sh``."""
