"""Official metrics of the tasks."""
