"""Endless optimiser steps from rows; batches for evaluation."""
