"""What a run answered to each example that it was scored on: kept in its directory, read back for comparisons."""
