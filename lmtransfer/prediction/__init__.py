"""``predict``: what is asked, what answers, where the answers go."""
