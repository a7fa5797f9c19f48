"""Several epochs: exactly by Mellin inversion, and as a bracket by a second method, polygons and tilted FFT."""
