"""Runs read from their directories, and put beside their controls."""
