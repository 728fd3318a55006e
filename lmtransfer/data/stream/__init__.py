"""Endless streams of optimiser steps, and evaluation batches, built from rows."""
