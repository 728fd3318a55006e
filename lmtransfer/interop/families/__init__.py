"""Published families, one per file: tables that map published tensor names and settings to ours."""
