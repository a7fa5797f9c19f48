"""What people see in a browser: a self-contained page of a run's privacy, and a local page with knobs."""
