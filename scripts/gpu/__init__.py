"""What only a GPU can show: its tests, throughput, phases of a step, memory; ``python -m gpu`` in the folder scripts."""
