"""Starting commands: words, their configuration, one run, the points of a sweep, jobs in processes of their own."""
