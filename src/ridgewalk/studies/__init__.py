"""Studies: data in, metrics.json and figures out."""
