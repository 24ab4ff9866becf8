"""`invoke triage`: what went wrong, told from a run's logs.

reading → sieve → cleaning → scan: a log of any size becomes a few observations. first_cause and metric_rules say which
known problems they are; report shows that, advice adds what to change in the recipe of the run.
"""
