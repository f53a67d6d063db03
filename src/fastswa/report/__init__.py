"""The report of a run, or of several, as one HTML file that asks for nothing from outside it."""

# How many images a report suggests to label next, and at most how many unlabelled ones it looks at for that.
SUGGESTIONS, LOOKED_AT = 50, 20_000
