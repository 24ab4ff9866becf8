"""What to change upstream: one module for each change (verl/, mindspeed/, …), one engine for all of them."""
