"""Report: metrics and figures in, one HTML page out; nothing is sampled here."""
