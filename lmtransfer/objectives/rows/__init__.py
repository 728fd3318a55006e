"""How training rows are cut from documents."""
