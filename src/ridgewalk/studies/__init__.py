"""Studies that reproduce the paper: settings and data in, metrics.json, figures and one HTML page out."""
