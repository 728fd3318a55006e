"""Reading runs from their directories and comparing them with their controls."""
