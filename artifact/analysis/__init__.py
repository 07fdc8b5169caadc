"""Pure functions from records (or plain numbers) to estimates, tests, cost lines and bands."""
