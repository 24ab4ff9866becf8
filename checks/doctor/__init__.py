"""`invoke doctor`: will this machine, container and environment work for a matrix and a recipe?

A check is a pure function from a case (facts, matrix, recipe) to what is wrong; `checks.facts` collects the facts, here
or on another machine. Checks of a subject stand in the module of that name, which enters them into the table.
"""

from checks.doctor.registry import CHECKS

__all__ = ["CHECKS"]
