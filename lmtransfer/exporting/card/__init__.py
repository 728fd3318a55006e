"""The model card of an export: what is said in it, where each fact comes from, and the page itself."""
