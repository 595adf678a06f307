"""What to run, with no opinion on where: pure functions from objects to plans."""
