"""The only room that knows all the others: from a Config to a finished run folder."""
