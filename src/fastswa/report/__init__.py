"""The report of a run, or of several, as one HTML file that asks for nothing from outside it."""
