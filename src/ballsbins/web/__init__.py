"""Pages for a browser: a self-contained page about the privacy of a run, and a local interactive page."""
