"""Killing commands at random moments, going on, and comparing with runs that were left alone."""
