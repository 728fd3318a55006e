"""Demonstrations, lectures, benchmarks and the GPU check, none of which is installed with the package."""
