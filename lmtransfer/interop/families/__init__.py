"""Published families, one per file: tables that map their tensor names and settings to ours."""
