"""The jobs of the pipeline, a file each."""
